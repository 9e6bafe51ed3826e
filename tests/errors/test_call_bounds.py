"""Bounds, dtype, rank, size and strides of inputs are checked in every call, without being asked for."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

import disc
from disc.errors import InputRankError, InputTypeError, ShapeConstraintError


@pytest.fixture(scope="module")
def bounded() -> disc.Executable:
    model = torch.nn.Linear(8, 4).eval()
    return disc.compile(model, (torch.randn(4, 8),), dynamic_shapes=({0: Dim("batch", min=2, max=64)},))


@pytest.mark.parametrize("size", [2, 63, 64])
def test_within_the_bounds(bounded: disc.Executable, size: int) -> None:
    assert bounded(torch.randn(size, 8)).shape == (size, 4)
    assert bounded(torch.randn(8, size).t()).shape == (size, 4)  # other strides are read, by a copy


@pytest.mark.parametrize("size", [65, 100, 2**20])
def test_beyond_the_bounds(bounded: disc.Executable, size: int) -> None:
    with pytest.raises(ShapeConstraintError, match=rf"'input'.*{size}"):
        bounded(torch.empty(size, 8))


def test_wrong_dtype_rank_and_size(bounded: disc.Executable) -> None:
    with pytest.raises(InputTypeError, match=r"input 'input' .*: expected dtype f32, got f64"):
        bounded(torch.randn(4, 8, dtype=torch.float64))
    with pytest.raises(InputRankError, match=r"input 'input' .*: expected rank 2, got 3"):
        bounded(torch.randn(4, 8, 1))
    with pytest.raises(ShapeConstraintError, match="dim 1 must be 8, got 9"):
        bounded(torch.randn(4, 9))
