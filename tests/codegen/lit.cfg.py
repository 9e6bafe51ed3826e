"""Golden plans of kernels: `lit tests/codegen`."""

from pathlib import Path

lit_config.load_config(config, str(Path(__file__).parents[1] / "ir" / "lit.cfg.py"))  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
config.name = "disc-codegen"  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
