"""Bounds, dtype, rank, size and strides of inputs are checked in every call, without being asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.export import Dim

import disc
from disc.errors import InputRankError, InputTypeError, OutOfMemoryError, ShapeConstraintError


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


def _compiled(function: Callable[..., torch.Tensor], *example: torch.Tensor | int) -> disc.Executable:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor | int) -> torch.Tensor:
            return function(x, y)

    shapes = tuple({0: Dim.DYNAMIC} if isinstance(each, torch.Tensor) else Dim.DYNAMIC for each in example)
    return disc.compile(Model(), example, dynamic_shapes=shapes)


def test_slice_as_long_as_another_input() -> None:
    """Elements behind the input were read."""
    exe = _compiled(lambda x, y: x[: y.shape[0]] * 2, torch.randn(8), torch.randn(5))
    x = torch.randn(7)
    for size in (0, 1, 6, 7):
        assert torch.equal(exe(x, torch.randn(size)), x[:size] * 2)
    for size in (8, 100):
        with pytest.raises(ShapeConstraintError, match=rf"must be at least .*{size}"):
            exe(x, torch.randn(size))


def test_slice_that_ends_beyond() -> None:
    exe = _compiled(lambda x, y: x[: y.shape[0] - 2] * 2, torch.randn(8), torch.randn(5))
    x = torch.randn(7)
    for size in (3, 9):
        assert torch.equal(exe(x, torch.randn(size)), x[: size - 2] * 2)
    with pytest.raises(ShapeConstraintError, match=r"must be at least dim 0 of input 'y'"):
        exe(x, torch.randn(10))


def test_branch_on_two_sizes() -> None:
    """The branch of the example was taken whatever the sizes."""
    exe = _compiled(lambda x, y: x[: y.shape[0]] * 2, torch.randn(5), torch.randn(8))
    x = torch.randn(5)
    assert torch.equal(exe(x, torch.randn(6)), x * 2)
    with pytest.raises(ShapeConstraintError, match="must be at least"):
        exe(x, torch.randn(4))


def test_scalar_index() -> None:
    exe = _compiled(lambda x, y: x[y] * 2, torch.randn(8), 5)
    x = torch.randn(8)
    for index in (0, 7):
        assert torch.equal(exe(x, index), x[index] * 2)
    for index in (-1, 8, 1 << 40):
        with pytest.raises(ShapeConstraintError, match="must be at least"):
            exe(x, index)


def test_size_divided_by_an_empty_one() -> None:
    """The division ended the process."""
    exe = _compiled(lambda x, y: x.view(y.shape[0], -1) + 1, torch.randn(12), torch.randn(3))
    x = torch.randn(12)
    assert torch.equal(exe(x, torch.randn(4)), x.view(4, 3) + 1)
    with pytest.raises(ShapeConstraintError, match="must not be 0"):
        exe(x, torch.randn(0))
    with pytest.raises(ShapeConstraintError, match="got 10, expected 12"):
        exe(x, torch.randn(5))


@pytest.mark.parametrize("size", [1 << 60, (1 << 61) + 1, 1 << 62])
def test_bytes_that_64_bits_do_not_hold(size: int) -> None:
    """The number of bytes wrapped, and values were written behind the memory."""
    exe = _compiled(lambda x, y: torch.arange(y).cumsum(0).sum() + x, torch.zeros(3, dtype=torch.int64), 5)
    x = torch.arange(3)
    assert torch.equal(exe(x, 7), x + 56)
    with pytest.raises(OutOfMemoryError):
        exe(x, size)


def test_empty_input_of_many_columns() -> None:
    exe = disc.compile(_SumOfColumns(), (torch.randn(4, 5),), dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},))
    assert exe(torch.randn(0, 7)) == 7
    for columns in (1 << 60, 1 << 62):
        with pytest.raises(OutOfMemoryError):
            exe(torch.empty(0, columns))


class _SumOfColumns(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0).cumsum(0).exp().sum()
