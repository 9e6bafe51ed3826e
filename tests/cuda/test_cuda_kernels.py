"""Kernels for GPUs without one: the text of every version in Triton's interpreter, and as code for each kind of GPU.

Each in a process of its own: Triton interprets or compiles, and which is decided while it is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import MODELS

FOLDER = Path(__file__).parent
PROGRAMS = ("layer", "rows", "products", "attention", "schedules few_queries", "some_elementwise")
LONG = ("elementwise", "long_rows", "every_schedule")


def _run(program: str, *arguments: str) -> str:
    environment = {**os.environ, "DISC_CACHE": "0"}
    done = subprocess.run([sys.executable, str(FOLDER / program), *arguments], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


@pytest.mark.parametrize("name", [*PROGRAMS, *(pytest.param(each, marks=pytest.mark.long) for each in LONG)])
def test_values(name: str) -> None:
    assert int(_run("programs.py", *name.split())) > 0


def test_the_checker_finds_what_is_wrong() -> None:
    """A missing mask, two programs that write one element, an element that none writes, a store to an argument."""
    assert _run("wrong_kernels.py").split() == ["4", "found"]


@pytest.mark.parametrize("versions", ["first", pytest.param("all", marks=pytest.mark.long)])
def test_code(versions: str) -> None:
    """Kernels of every kind compile for GPUs of three generations, with the parameters that a launch gives them, and without spills."""
    assert _run("compiled_kernels.py", versions).strip().endswith("compiled")


def test_sections() -> None:
    """One artifact for CPUs and GPUs: cubins, what describes them, grids, scratch, watched checks."""
    assert int(_run("gpu_sections.py").split()[0]) > 0


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """Every model is one artifact for a CPU and a GPU, whose host code launches all kernels for any shape."""
    assert int(_run("gpu_sections.py", name).split()[0]) > 0
