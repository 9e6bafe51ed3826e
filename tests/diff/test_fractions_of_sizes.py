"""Sizes times fractions: `int(0.3 * n)`, `F.interpolate(x, scale_factor=1.7)`; `int(...)` and `float(...)` of dynamic sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._sympy import functions as torch_sympy

import disc
from disc.errors import ShapeConstraintError, UnsupportedOpError
from disc.frontend.symbols import SymbolError, to_size, to_text
from disc.shapes import parse_dim

SHAPES = [(1, 3, 7, 11), (2, 3, 5, 4), (0, 3, 9, 9), (2, 3, 13, 17), (1, 3, 10, 30), (1, 3, 20, 57)]


def _third(n: int) -> int:
    return int(n / 3)


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "nearest": lambda x: F.interpolate(x, scale_factor=1.7),
    "bilinear": lambda x: F.interpolate(x, scale_factor=(0.6, 1.1), mode="bilinear"),
    "recomputed": lambda x: F.interpolate(x, scale_factor=1.1, mode="bilinear", recompute_scale_factor=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=(2.5, 1.5), mode="bicubic", align_corners=True),
    "area": lambda x: F.interpolate(x, scale_factor=0.6, mode="area"),
    "one dim": lambda x: F.interpolate(x[:, :, 0], scale_factor=1.9),
    "sizes": lambda x: F.interpolate(x, size=(int(x.shape[2] * 0.3) + 1, int(x.shape[3] * 1.7))),
    "slices": lambda x: x[..., int(0.1 * x.shape[-1]) : int(0.9 * x.shape[-1])],
    "floor": lambda x: x[..., math.floor(x.shape[-1] * 0.6) :],
    "ceiling": lambda x: x[..., math.ceil(x.shape[-1] * 0.7) :],
    "quotients": lambda x: x[..., : int(x.shape[-1] // 1.5)] + int(x.shape[-1] / 3 * 2),
    "another function": lambda x: x[..., : _third(x.shape[-1])],
    "in a comprehension": lambda x: torch.stack([x * int(n * 0.2) for n in x.shape]),
    "made": lambda x: torch.zeros(int(x.shape[-1] * 0.37)) + torch.arange(int(x.shape[-1] * 0.37)) + x.sum(),
    "the most": lambda x: torch.topk(x, max(1, int(x.shape[-1] * 0.25)))[0],
    "integers": lambda x: x.reshape(int(x.shape[0]) * int(x.shape[1]), int(x.shape[2]) * int(x.shape[3])) + int(x.shape[3]),
    "floats": lambda x: x * float(x.shape[-1]) / float(x.numel() + 1) + float(x.shape[0] / 3),
    "other numbers": lambda x: x * int("3") + float("0.5") + int("11", base=2),
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_sizes(name: str) -> None:
    function = CASES[name]
    before = function.__code__
    executable = disc.compile(function, (torch.randn(2, 3, 10, 12),))
    assert function.__code__ is before
    for shape in SHAPES:
        x = torch.randn(shape)
        torch.testing.assert_close(executable(x), function(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear"])
@pytest.mark.parametrize("through", ["compile", "torch.compile"])
def test_factors_that_leave_or_double_a_size(mode: str, through: str) -> None:
    """Eager's kernels of some modes then read by the sizes: 4 columns by 1.1 are 4, 5 by 2.1 are 10."""
    dims = {"linear": 1, "trilinear": 3}.get(mode, 2)

    def resize(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=(1.5, 2.1, 1.1)[-dims:] if dims != 2 else (2.1, 1.1), mode=mode)

    sizes = [(5, 4), (7, 4), (5, 12), (10, 2), (3, 30)]
    example = torch.randn(2, 3, *[9] * (dims - 2), *(7, 12)[-dims:])
    compiled = disc.compile(resize, (example,)) if through == "compile" else torch.compile(resize, backend="disc", dynamic=True)
    for size in sizes:
        x = torch.randn(2, 3, *[5] * (dims - 2), *size[-dims:])
        torch.testing.assert_close(compiled(x), resize(x), atol=1e-5, rtol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("scales", [(1.5, 1.5), (2.5, 1.0), (1.0, 3.0)])
def test_corners_of_single_elements(mode: str, scales: tuple[float, float]) -> None:
    def resize(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=scales, mode=mode, align_corners=True)

    executable = disc.compile(resize, (torch.randn(2, 3, 10, 12),))
    for shape in [(1, 3, 1, 1), (2, 3, 1, 7), (1, 3, 5, 1), (2, 3, 13, 17)]:
        x = torch.randn(shape)
        torch.testing.assert_close(executable(x), resize(x), atol=1e-5, rtol=1e-5)


def test_whole_parts_are_those_of_f64() -> None:
    """Of all hundredths, every product; which are refused is a matter of rounding alone."""
    n = sympy.Symbol("n", integer=True, positive=True)
    refused = 0
    for hundredths in range(1, 400):
        factor = hundredths / 100
        for kind, rounded in ((torch_sympy.FloorToInt, math.floor), (torch_sympy.TruncToInt, int), (torch_sympy.CeilToInt, math.ceil)):
            product = sympy.Float(factor) * torch_sympy.ToFloat(n) if hundredths % 100 else None
            if product is None:
                continue
            expected = [rounded(factor * size) for size in range(1, 1100)]
            try:
                dim = parse_dim(to_text(to_size(sympy.sympify(kind(product)))))
            except SymbolError:
                refused += 1
                continue
            assert [dim.evaluate({"n": size}) for size in range(1, 1100)] == expected, (factor, kind)
    assert 0 < refused < 150


def test_what_depends_on_rounding_is_refused_by_line() -> None:
    with pytest.raises(UnsupportedOpError, match=r"test_fractions_of_sizes.py:\d+: how 0.7 \* size is rounded .* size \* 7 // 10 is exact"):
        disc.compile(lambda x: F.interpolate(x, scale_factor=0.7), (torch.randn(2, 3, 10, 12),))


def test_a_root_is_a_range_of_sizes() -> None:
    executable = disc.compile(lambda x: x[:, : int(math.sqrt(x.shape[1]))], (torch.randn(2, 12),))
    x = torch.randn(3, 15)
    torch.testing.assert_close(executable(x), x[:, :3])
    with pytest.raises(ShapeConstraintError, match="must be at most 15"):
        executable(torch.randn(3, 16))


class _ToldApart(torch.nn.Module):
    """Looks at what `int` gives as Python does at plain numbers."""

    def forward(self, x: Tensor) -> Tensor:
        rows = int(x.shape[0])
        if isinstance(rows, int) and isinstance(x.shape[1], int):
            x = x + 1
        if type(rows) is int and type(float(x.shape[1])) is float:
            x = x * 2
        return x * rows


class _AsText(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if f"{int(x.shape[0])}" == "4" else x


class _AsKey(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * {int(x.shape[0]): 3}[4] + int(x.shape[0]).bit_length()


def _in_a_branch(x: Tensor) -> Tensor:
    def many(a: Tensor) -> Tensor:
        return a * int(a.shape[0]) + float(a.shape[1]) if isinstance(a, Tensor) else a

    return torch.cond(x.sum() > 0, many, lambda a: a - int(a.shape[1] * 0.5), (x,))


@pytest.mark.parametrize("model", [_ToldApart(), _in_a_branch])
def test_numbers_that_stay_dynamic(model: Callable[[Tensor], Tensor]) -> None:
    executable = disc.compile(model, (torch.randn(4, 6),))
    for shape in [(4, 6), (3, 5), (1, 1), (9, 2)]:
        for x in (torch.randn(shape).abs(), -torch.randn(shape).abs()):
            torch.testing.assert_close(executable(x), model(x))


@pytest.mark.parametrize("model", [_AsText(), _AsKey()])
def test_numbers_that_must_be_plain_fix_the_dim(model: torch.nn.Module) -> None:
    executable, x = disc.compile(model, (torch.randn(4, 6),)), torch.randn(4, 5)
    torch.testing.assert_close(executable(x), model(x))
    with pytest.raises(ShapeConstraintError, match="dim 0 must be 4, got 3"):
        executable(torch.randn(3, 5))
