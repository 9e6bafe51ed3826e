"""Small programs as people write them, whose sizes PyTorch's own code would fix to the example's, or which had no lowering."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from compiled import Wrapped, assert_close
from torch import Tensor

import disc
from disc.errors import ShapeConstraintError

SIZES = ((4, 6), (1, 5), (13, 7), (3, 1), (2, 2))


def made_of_sizes(x: Tensor) -> tuple[Tensor, ...]:
    rows, columns = x.shape
    windows = [
        torch.hann_window(columns),
        torch.hann_window(columns, periodic=False),
        torch.hamming_window(columns),
        torch.hamming_window(9),
    ]
    windows += [
        torch.blackman_window(rows),
        torch.bartlett_window(columns),
        torch.kaiser_window(columns, False, 8.0),
        torch.bartlett_window(5),
    ]
    grids = [F.affine_grid(x[:1, :1] * torch.ones(2, 3)[None], [1, 1, rows, columns], align_corners=each) for each in (False, True)]
    return (*windows, *grids, torch.linspace(-1, 3, columns), torch.linspace(0, 1, rows, dtype=torch.float64))


def products(x: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.kron(x, torch.eye(2)), torch.kron(x[0], x), torch.linalg.multi_dot([x.T, x, x.T]), torch.vander(x[0]), torch.vander(x[0], 3, True),
        torch.linalg.norm(x, 2), torch.linalg.norm(x, -2, keepdim=True), torch.linalg.norm(x), torch.linalg.norm(x, "nuc"),
    )  # fmt: skip


def places(x: Tensor) -> tuple[Tensor, ...]:
    index, at = torch.tensor([0, 0]), torch.tensor([0, -1])
    rows = torch.ones(2, x.shape[1]) * 3
    reduced = [x.index_reduce(0, index, rows, how, include_self=each) for how in ("mean", "prod", "amax", "amin") for each in (True, False)]
    halved = F.interpolate(x[None, None].repeat(1, 1, 2, 2), scale_factor=0.5, mode="area")
    return (*reduced, x.put(at, torch.tensor([8.0, 9.0])), x.put(at, torch.tensor([8.0, 9.0]), accumulate=True), halved)


def parts_of_sizes(x: Tensor) -> tuple[Tensor, ...]:
    """Whole numbers against a fraction of a size: once they were compared with its whole part, or the code did not lower."""
    rows, half = torch.arange(x.shape[0]), x.shape[0] / 2
    return (
        rows < half,
        rows >= half,
        rows == half,
        rows * half,
        rows + half,
        torch.where(rows > 1, rows, half),
        rows.clamp(max=half),
        rows // half,
    )


def extremes(x: Tensor) -> tuple[Tensor, ...]:
    """Of sizes from 1 on, though PyTorch's trace takes each to be 2 at least; also written with negative numbers."""
    rows, half = x.shape[0], max(1, x.shape[0] // 2)
    turned = x[: -min(-1, -(rows // 2))], x[: -max(-3, -rows)], x.new_ones(-min(-1, -(rows // 2)), 300).cumsum(1)
    return (x[:half], x * half, torch.arange(half), x.new_zeros(torch.sym_max(rows, 1)), x.topk(max(1, x.shape[1] // 2), 1).values, *turned)


@pytest.mark.parametrize("function", [parts_of_sizes, made_of_sizes, products, places, extremes])
def test_one_compile_serves_all_sizes(function: object) -> None:
    executable = disc.compile(Wrapped(function).eval(), (torch.randn(5, 3),))
    for sizes in SIZES:
        x = torch.randn(sizes)
        for number, (ours, theirs) in enumerate(zip(executable(x), function(x), strict=True)):
            assert_close(ours, theirs, 2e-4, f"result {number} of {sizes}")


def test_neighbors() -> None:
    executable = disc.compile(Wrapped(torch.nextafter).eval(), (torch.randn(4), torch.randn(4)))
    numbers = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3.4028235e38, float("inf"), float("-inf"), float("nan"), 1.1754944e-38])
    x, to = numbers.repeat(len(numbers)), numbers.repeat_interleave(len(numbers))
    assert torch.equal(executable(x, to).view(torch.int32), torch.nextafter(x, to).view(torch.int32))


def test_a_negative_variance_is_refused_in_each_call() -> None:
    executable = disc.compile(Wrapped(F.gaussian_nll_loss).eval(), (torch.randn(4, 3), torch.randn(4, 3), torch.rand(4, 3)))
    for sizes in ((4, 3), (1, 5)):
        given = torch.randn(sizes), torch.randn(sizes), torch.rand(sizes)
        torch.testing.assert_close(executable(*given), F.gaussian_nll_loss(*given))
    with pytest.raises(
        ShapeConstraintError, match=r"input 'inputs_2': gaussian_nll_loss: .* negative .*: got 1 or more at compiled.py:\d+"
    ):
        executable(torch.ones(2, 2), torch.ones(2, 2), torch.tensor([[1.0, 1.0], [1.0, -0.5]]))


def test_as_many_classes_as_a_size() -> None:
    compiled = disc.compile(Wrapped(lambda x, y: F.one_hot(x, y.shape[0])), (torch.arange(4), torch.ones(9)))
    for places, classes in ((3, 7), (0, 5), (1, 1), (9, 9)):
        x, y = torch.arange(places), torch.ones(classes)
        assert torch.equal(compiled(x, y), F.one_hot(x, classes))
    with pytest.raises(ShapeConstraintError, match=r"test_sized_forms.py:\d+"):
        compiled(torch.arange(9), torch.ones(7))


@pytest.mark.parametrize("ord", [2, -2, 1, -math.inf, "fro"])
def test_norms_of_matrices_take_any_size(ord: float | str) -> None:
    class Norm(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.linalg.matrix_norm(x, ord), torch.linalg.matrix_norm(x, ord, dim=(2, 0), keepdim=True)

    executable = disc.compile(Norm(), (torch.randn(2, 5, 3),), options=disc.Options(cache=False))
    for shape in ((2, 5, 3), (1, 1, 1), (3, 12, 7), (4, 3, 8)):
        x = torch.randn(shape)
        torch.testing.assert_close(executable(x), Norm()(x), rtol=1e-4, atol=1e-4)


def quotients(x: Tensor, y: Tensor) -> list[Tensor]:
    rows, others = x.shape[0], y.shape[0]
    return [
        x.sum() + rows // (others - 5) + rows % (others - 5),
        x.new_zeros(20 + rows // (others - 5) + rows % (others - 5)),
        x * (rows // (rows // 4)),
        torch.arange(8) % (rows - 3),
        x.sum(1) + 7 // rows,
    ]


def test_divisors_below_zero_and_zero() -> None:
    """Of sizes, also in kernels, where a division by 0 would end the process."""
    executable = disc.compile(Wrapped(quotients), (torch.randn(20, 3), torch.randn(9)), options=disc.Options(cache=False))
    for rows, others in ((7, 3), (8, 4), (20, 12)):
        x, y = torch.randn(rows, 3), torch.randn(others)
        torch.testing.assert_close(list(executable(x, y)), quotients(x, y), rtol=1e-4, atol=1e-4)
    for rows, others in ((7, 5), (3, 9), (0, 9)):
        x, y = torch.randn(rows, 3), torch.randn(others)
        with pytest.raises((ZeroDivisionError, RuntimeError)):
            quotients(x, y)
        with pytest.raises(ShapeConstraintError, match=r"must (not )?be"):
            executable(x, y)
