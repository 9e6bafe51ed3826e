"""What is made for a machine with a GPU, checked on the stand-in driver, which runs the kernels in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

TOOLS = Path(__file__).parents[2] / "tools"


def _run(tool: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DISC_CACHE": "0", "PYTHONPATH": str(TOOLS.parent)}
    environment.pop("OUT", None)
    return subprocess.run(
        [sys.executable, str(TOOLS / tool), *map(str, arguments)], capture_output=True, text=True, check=False, env=environment
    )


def test_kernels_are_checked(tmp_path: Path) -> None:
    """All is right at first. A wrong result is found."""
    library, folder = tmp_path / "libcuda.so.1", tmp_path / "gpu"
    options = ["-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-pthread"]
    subprocess.run(["gcc", *options, str(Path(__file__).parent / "fake_driver.c"), "-o", str(library)], check=True)
    made = _run("gpu_prepare.py", "--folder", folder, "--programs", "groups", "--models")
    assert made.returncode == 0 and "12 launches, 4 versions" in made.stdout, made.stderr
    right = _run("gpu_check.py", "--folder", folder, "--fake", library, "--out", tmp_path)
    assert right.returncode == 0 and right.stdout == (tmp_path / "gpu_check.txt").read_text(), right.stderr
    assert right.stdout.splitlines()[-1].split()[:3] == ["groups", "12", "0"]
    arrays = dict(np.load(folder / "groups.npz"))
    changed = max(name for name, array in arrays.items() if ".r" in name and array.size)
    arrays[changed] = arrays[changed] * 2 + 1
    np.savez(folder / "groups.npz", **arrays)
    wrong = _run("gpu_check.py", "--folder", folder, "--fake", library)
    assert wrong.returncode == 1 and f"{changed}: differs by" in wrong.stdout, wrong.stderr
