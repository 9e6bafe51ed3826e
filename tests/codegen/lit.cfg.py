"""Golden plans of kernels: `lit tests/codegen`."""

import sys
from pathlib import Path

import lit.formats

root = Path(__file__).resolve().parents[2]
config.name = "disc-codegen"  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
config.suffixes = [".mlir"]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
config.substitutions += [  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    ("%disc_opt", f"{sys.executable} {root}/tools/disc_opt.py"),
    ("%filecheck", f"{sys.executable} -m filecheck"),
]
