"""Runs the golden artifacts with an installed disc and NumPy alone: `python -I try_installed.py tests/golden`, by `tools/wheels.py`.

Ends with an AssertionError where something is not as it should be.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from pathlib import Path

import numpy as np

import disc


def check_package() -> None:
    """It is the installed one, whole, and nothing else is there that could have helped."""
    package = Path(disc.__file__).parent
    assert package.is_relative_to(sys.prefix), f"{package} is not in {sys.prefix}"
    assert (package / "py.typed").exists() and (package / "ral" / "libral.so").exists()
    metadata = importlib.metadata.metadata("disc-compiler")
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    for name in ("torch", "torch_mlir", "typer", "pydantic"):
        assert importlib.util.find_spec(name) is None, f"{name} is installed"


def check_artifact(path: Path) -> None:
    stored = np.load(path.with_suffix(".npz"))
    results = disc.load(path)(*(stored[name] for name in stored.files if name.startswith("input")))
    expected = [stored[name] for name in stored.files if name.startswith("output")]
    for result, each in zip(results if isinstance(results, tuple) else (results,), expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), each, rtol=2e-5, atol=2e-6)


if __name__ == "__main__":
    check_package()
    paths = sorted(Path(sys.argv[1]).glob("*/*.disc"))
    assert paths, f"no artifact in {sys.argv[1]}"
    for path in paths:
        check_artifact(path)
    print(f"{len(paths)} golden artifacts right with Python {platform.python_version()}, NumPy {np.__version__}")
