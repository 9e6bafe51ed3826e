"""Values by the distance of two positions, out of a table, in loops and rows: both orders of dims, both signs, several element types."""

from __future__ import annotations

import math

import pytest
import torch
from compiled import SIZES, ModuleProgram, module_program, randn
from torch import Tensor

from disc.errors import ShapeConstraintError

LONGEST = 70  # of the learned table: one row for each distance
ALL = [[0, 1]]


def distances(length: int) -> Tensor:
    """Column - row."""
    line = torch.arange(length)
    return line[None, :] - line[:, None]


def buckets(distance: Tensor, many: int) -> Tensor:
    """Exact up to half of them, then by logarithm, as in T5."""
    far = many // 2 + (torch.log(distance.abs().float() / (many // 2) + 1e-6) * 3).to(torch.int64)
    return torch.where(distance.abs() < many // 2, distance.abs(), torch.minimum(far, torch.full_like(far, many - 1)))


def tables(program: ModuleProgram) -> int:
    """How many results of kernels run over distances."""
    records = program.executables[0].manifest["kernels"]
    return len([result for record in records for result in record["results"] if "S1 * 2" in str(result)])  # type: ignore[union-attr]


def biased(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """In the order of the table, transposed, along rows that are normalized, and with the columns first."""
    bias = table[buckets(distances(x.shape[1]), table.shape[0])].permute(2, 0, 1)
    steps = x[:, :, None] - x[:, None, :]
    flipped = table[buckets(distances(x.shape[1]).T + 1, table.shape[0])]
    return steps + bias[0], steps * bias.transpose(1, 2)[1], torch.softmax(steps + bias[1], -1), steps.unsqueeze(-1) * flipped


@pytest.mark.parametrize(
    "element", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.long), pytest.param(torch.bfloat16, marks=pytest.mark.long)]
)
def test_bias(element: torch.dtype) -> None:
    program = module_program(biased, randn(2, 11), randn(12, 3).to(element), dynamic=[[0, 1], []])
    assert tables(program)
    for length in SIZES:
        program.check(randn(3, length), randn(12, 3).to(element))


def computed(x: Tensor) -> tuple[Tensor, Tensor]:
    """Nothing is looked up; expensive, so that it is tabulated; forwards and backwards along rows."""
    distance = distances(x.shape[1]).float()
    value = torch.exp(-distance.abs() / 7) * torch.cos(distance)
    turned = torch.sin((3 - distance) / 5) + torch.tanh(distance)
    return x[:, :, None] * value, (x[:, None, :] * turned.T).sum(-1)


def test_computed() -> None:
    program = module_program(computed, randn(2, 11), dynamic=ALL)
    assert tables(program)
    for length in SIZES:
        program.check(randn(3, length))


def learned(x: Tensor, table: Tensor) -> Tensor:
    """A row for every distance below LONGEST."""
    return x[:, :, None] + table[distances(x.shape[1]) + (LONGEST - 1)]


def test_index_out_of_range_as_in_the_program() -> None:
    """All distances of the longest length are in the table, those of a longer one are not; nothing else is looked up."""
    program = module_program(learned, randn(2, 11), randn(2 * LONGEST - 1), dynamic=[[0, 1], []])
    assert tables(program)
    for length in (0, 1, 2, LONGEST - 1, LONGEST):
        program.check(randn(2, length), randn(2 * LONGEST - 1))
    for executable in program.executables:
        with pytest.raises(ShapeConstraintError, match="out of range"):
            executable(randn(2, LONGEST + 1), randn(2 * LONGEST - 1))


def looked_up(x: Tensor) -> tuple[Tensor, Tensor]:
    """Indices by distance into rows of their own, and into columns."""
    length = x.shape[2]
    index = (distances(length) // 2).clamp(-3, 4) + 3
    index = index[None].expand(x.shape[0], length, length)
    wide = torch.cat([x[:, 0, :, None]] * 8, -1) * torch.arange(8) / math.pi
    return wide.gather(2, index), wide.gather(2, index.transpose(1, 2)).transpose(1, 2)


def test_indices() -> None:
    program = module_program(looked_up, randn(2, 1, 11), dynamic=[[0, 2]])
    assert tables(program)
    for length in SIZES:
        program.check(randn(2, 1, length))
