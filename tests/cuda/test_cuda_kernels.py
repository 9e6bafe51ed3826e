"""Kernels for GPUs without one: the text of every version in Triton's interpreter, and as code for each kind of GPU.

Each in a process of its own: Triton interprets or compiles, and which is decided while it is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fused_programs import Fused
from torch import nn

import disc
from disc.frontend.models import import_model
from disc.ir.dialect import make_context
from tests.models import MODELS

FOLDER = Path(__file__).parent
# What one process runs: starting one costs as much as a program.
PROGRAMS = (
    "layer rows shared_rows sums products convolutions attention schedules maps ones few_rows few_queries some_elementwise",
    "scans scatters sorts groups segments",
)
FEW_MODELS = "mlp"  # the others are `long`
LONG = ("elementwise", "long_rows", "long_shared_rows", "long_sums", "every_schedule", "long_scans", "long_scatters", "long_sorts")


def _run(program: str, *arguments: str) -> str:
    environment = {**os.environ, "DISC_CACHE": "0", "PYTHONPATH": str(FOLDER.parent.parent)}
    newer = ["-W", "error:Conversion of an array"]  # an error of NumPy 2.5, which Triton's interpreter may meet on other machines
    command = [sys.executable, *newer, str(FOLDER / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def _check_each(program: str, names: str) -> None:
    lines = [line.split() for line in _run(program, *names.split()).splitlines()]
    assert [name for name, _ in lines] == names.split()
    assert all(int(launches) > 0 for _, launches in lines)


@pytest.mark.parametrize("names", [*PROGRAMS, *(pytest.param(each, marks=pytest.mark.long) for each in LONG)])
def test_values(names: str) -> None:
    _check_each("kernel_programs.py", names)


def test_the_checker_finds_what_is_wrong() -> None:
    """A missing mask, two programs that write one element, an element that none writes, a store to an argument; tensor maps of other memory, of
    nothing, and more than are declared."""
    assert _run("wrong_kernels.py").split() == ["7", "found"]


@pytest.mark.parametrize(
    "arguments", ["first", "recorded sm_90", *(pytest.param(each, marks=pytest.mark.long) for each in ("recorded", "whole"))]
)
def test_code(arguments: str) -> None:
    """Kernels of every kind, and by every schedule of products, compile for GPUs of three generations, with the parameters that a launch
    gives them, without spills and within the shared memory of a block. Those of sm_90 are the texts that were compiled when the record was
    made."""
    assert _run("compiled_kernels.py", *arguments.split()).strip().endswith("compiled")


@pytest.mark.parametrize(("rows", "kinds"), [(nn.LayerNorm(8), ["compute", "stitch", "compute"]), (nn.Softmax(-1), ["attention"])])
def test_attention_is_that_with_a_softmax(rows: nn.Module, kinds: list[str]) -> None:
    """On a GPU two products with other rows between them are three kernels; on a CPU they are one."""
    model = nn.Sequential(nn.Linear(4, 8), rows, nn.Linear(8, 2))
    assert [each.kind for each in Fused.of_model(model, (torch.ones(3, 4),), ({0: torch.export.Dim.DYNAMIC},)).kernels] == kinds


@pytest.mark.parametrize(("tf32", "precision"), [(False, "tf32x3"), (True, "tf32")])
def test_products_of_f32_are_as_exact_as_is_asked_for(tf32: bool, precision: str) -> None:
    model, dims = nn.Linear(4, 8), ({0: torch.export.Dim.DYNAMIC},)
    imported = import_model(model, (torch.ones(3, 4),), dims, make_context())
    (kernel,) = Fused(imported, disc.Options(cache=False, tf32=tf32)).kernels
    assert all(f'input_precision="{precision}"' in version.text for version in kernel.versions)


def test_sums_of_columns_share_a_loop() -> None:
    """Reductions that do not need each other load what they have in common once (paper 002, section 5.1)."""
    dims = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
    (kernel,) = Fused.of_model(ColumnSums(), (torch.ones(3, 4),), dims).kernels
    for version in kernel.versions:
        loops = [line for line in version.text.splitlines() if " in range(" in line and "part" not in line]
        assert len(loops) == 1 and version.text.count("tl.load(a0") == 1, version.text


class ColumnSums(nn.Module):
    """Two rounds over the same columns, if they are not one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * x).sum(0) - x.amin(0)


def test_sections() -> None:
    """One artifact for CPUs and GPUs: cubins, what describes them, grids, scratch, watched checks."""
    assert int(_run("gpu_sections.py").split()[0]) > 0


@pytest.mark.parametrize(
    "names", [FEW_MODELS, *(pytest.param(each, marks=pytest.mark.long) for each in MODELS if each not in FEW_MODELS.split())]
)
def test_values_of_models(names: str) -> None:
    """Every kernel of a small model, every version that two of its sizes reach."""
    _check_each("model_kernels.py", names)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """Every model is one artifact for a CPU and a GPU, whose host code launches all kernels for any shape."""
    assert int(_run("gpu_sections.py", name).split()[0]) > 0
