"""Golden tests of single passes: `lit tests/ir`."""

import sys
from pathlib import Path

import lit.formats

root = Path(__file__).resolve().parents[2]
config.name = "disc-ir"  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
config.suffixes = [".mlir"]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
config.environment["PYTHONPATH"] = str(root)  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
config.substitutions += [  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    ("%disc_opt", f"{sys.executable} -m disc.cli.debug.opt"),
    ("%filecheck", f"{sys.executable} -m filecheck"),
]
