"""Sizes that floats round, extremes of several sizes, and average pooling with an overhang that counts its padding."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import sympy
import torch
from torch.nn import functional
from torch.utils._sympy import functions as torch_sympy

import disc
from disc.errors import DiscWarning, ShapeConstraintError
from disc.frontend.symbols import to_size, to_text
from disc.shapes import parse_dim


class Model(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def centers(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[1] // 2
    return torch.arange(0.5, half) / half + x.sum()


SIZES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "arange from a half": centers,
    "ceil of a difference over 3": lambda x: x[:, : math.ceil((x.shape[1] - 0.5) / 3)] * 2,
    "ceil of a sum": lambda x: x[:, : math.ceil((x.shape[1] * 0.75 + 1) / 4)] * 2,
    "floor": lambda x: x[:, : math.floor(x.shape[1] * 0.5 + 0.25)] * 2,
    "round of a half": lambda x: x[:, : round(x.shape[1] * 0.5)] * 2,
    "round of a sixth": lambda x: x[:, : round(x.shape[1] / 6 + 0.5)] * 2,
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_floats_round(name: str) -> None:
    model = Model(SIZES[name]).eval()
    compiled = disc.compile(model, (torch.randn(4, 20),), options=disc.Options(cache=False))
    for x in (torch.randn(batch, length) for batch in (4, 7) for length in (18, 21, 22, 23, 47, 64)):
        torch.testing.assert_close(compiled(x), model(x))


# A trace that joined the constants would round in another way than Python does: for 100, 10, 5 and 90 a size would be another one.
STEPS = [*range(64), 67, 71, 79, 89, 90, 91, 97, 100, 101, 180, 211, 997, 1000, 4099]
JOINED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "int": lambda x: x.new_zeros(int(0.7 * (x.shape[0] * 0.9))),
    "ceil": lambda x: x.new_zeros(math.ceil(0.1 * (x.shape[0] * 3.0))),
    "floor of a sum": lambda x: x.new_zeros(math.floor((x.shape[0] + 0.1) + 0.2)),
    "round": lambda x: x.new_zeros(round(x.shape[0] * 0.1 * 5.0)),
    "like terms": lambda x: x.new_zeros(int(0.7 * x.shape[0] + 0.1 * x.shape[0])),
}


@pytest.mark.parametrize("name", JOINED)
def test_every_step_is_rounded(name: str) -> None:
    function = JOINED[name]
    executable = disc.compile(Model(function), (torch.randn(20),), options=disc.Options(cache=False))
    for x in (torch.randn(size) for size in STEPS):
        torch.testing.assert_close(executable(x), function(x))
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="disc", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiscWarning)
        for size in (100, 10, 5, 90, 37):
            assert compiled(torch.randn(size)).shape == function(torch.randn(size)).shape


@pytest.mark.parametrize(
    "branch",
    [
        lambda n: n * 0.1 * 10 == n, lambda n: 10 * (0.1 * n) >= 21, lambda n: (n + 0.1) - 0.1 < 7, lambda n: (n + 0.1) - 0.1 == n,
        lambda n: n * 0.1 * 3 == n * 0.3, lambda n: 0.7 * (n * 0.9) >= 0.63 * n, lambda n: n * 0.1 + n * 0.2 > n * 0.3,
    ],
)  # fmt: skip
def test_branches_compare_what_every_step_has_rounded(branch: Callable[[float], bool]) -> None:
    """The sizes that take the example's branch are taken, all others refused; in exact arithmetic most of these branches are one."""
    model = Model(lambda x: x + 1 if branch(x.shape[0]) else x - 1)
    executable = disc.compile(model, (torch.randn(20),), options=disc.Options(cache=False))
    refused = 0
    for size in STEPS:
        x = torch.randn(size)
        if branch(size) == branch(20):
            torch.testing.assert_close(executable(x), model(x))
            continue
        refused += 1
        with pytest.raises(ShapeConstraintError, match=r"dim 0 of input 'x'.*\(decided at .*test_rounded_sizes.py:\d+\)"):
            executable(x)
    assert refused


def test_constants_that_are_joined_exactly_compile() -> None:
    model = Model(lambda x: x[: int(0.5 * (x.shape[0] * 0.25) + 0.5 - 0.25)] * 2)
    compiled = disc.compile(model, (torch.randn(20),), options=disc.Options(cache=False))
    for x in (torch.randn(size) for size in (18, 22, 37, 100, 101)):
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("divisor", [2, 3, 4, 6, 7, 10, 64, 100])
def test_rounding_is_that_of_python(divisor: int) -> None:
    n = sympy.Symbol("n", integer=True, nonnegative=True)
    rounded = sympy.sympify(torch_sympy.RoundToInt(torch_sympy.IntTrueDiv(n, sympy.Integer(divisor))))
    dim = parse_dim(to_text(to_size(rounded)))
    for size in (*range(1100), *range(2**41 - 300, 2**41), *(10**6 * divisor + divisor // 2 + shift for shift in (-1, 0, 1))):
        assert dim.evaluate({"n": size}) == round(size / divisor), size


@pytest.mark.parametrize("kind", [sympy.Min, sympy.Max, torch_sympy.Min, torch_sympy.Max])
def test_extremes_of_three_sizes_are_read_again(kind: type[sympy.Expr]) -> None:
    a, b, c = (sympy.Symbol(name, integer=True, positive=True) for name in "abc")
    dim = parse_dim(to_text(kind(a * b, b + 1, c)))
    for values in ({"a": 2, "b": 9, "c": 11}, {"a": 1, "b": 3, "c": 2}, {"a": 1, "b": 3, "c": 8}):
        expected = (min if kind.__name__ == "Min" else max)(values["a"] * values["b"], values["b"] + 1, values["c"])
        assert dim.evaluate(values) == expected


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (5, 4, 2)])
def test_average_pool_whose_overhang_does_not_count(kernel: int, stride: int, padding: int) -> None:
    model = Model(lambda x: functional.avg_pool1d(x, kernel, stride, padding, ceil_mode=True)).eval()
    compiled = disc.compile(model, (torch.randn(2, 3, 4 * stride + 1),), options=disc.Options(cache=False))
    for count in (2, 3, 7):
        x = torch.randn(3, 3, count * stride + 1)
        torch.testing.assert_close(compiled(x), model(x))
