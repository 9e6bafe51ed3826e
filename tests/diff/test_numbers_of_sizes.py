"""Functions of `math` of dynamic sizes: numbers that every call computes; where they decide, the dim is that of the example."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import disc
from disc.errors import InputValueError, ShapeConstraintError

SHAPES = [(2, 3), (1, 1), (7, 16), (0, 4)]
CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "logarithms": lambda x: x * math.log(x.shape[-1]) + math.log2(x.shape[-1] + 1) - math.log10(x.shape[-1]) * math.log1p(x.shape[0]),
    "base": lambda x: x / math.log(x.shape[-1] + 1, 3),
    "entropy": lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1) / math.log(x.shape[-1] + 1),
    "filled": lambda x: torch.full_like(x, math.exp(-x.shape[0])) + x.masked_fill(x > 0, math.tanh(x.shape[1])),
    "of quotients": lambda x: x * math.sin(x.shape[0] / x.shape[1]) * math.sqrt(math.log(x.shape[1] + 2)),
    "length": lambda x: x * len(x) + len(x.T) + torch.arange(len(x), dtype=torch.float32)[:, None] + len([x, x]) + len(x.shape),
    "made of lengths": lambda x: x.view(len(x), len(x.T), 1).sum(2) + torch.zeros(len(x), len(x.T)) + x[len(x) // 2 :].sum(),
    "root of a length": lambda x: x * math.sqrt(len(x)) / (len(x) + 1),
    "double": lambda x: x.double() * math.erf(x.shape[1] / 8) + math.cos(x.shape[0]),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_numbers_of_sizes(name: str) -> None:
    function = CASES[name]
    executable = disc.compile(function, (torch.randn(4, 8),))
    for shape in SHAPES:
        x = torch.randn(shape)
        torch.testing.assert_close(executable(x), function(x))


def test_no_logarithm_of_nothing() -> None:
    executable = disc.compile(lambda x: x * math.log(x.shape[-1]), (torch.randn(4, 8),))
    with pytest.raises(InputValueError, match="finite"):
        executable(torch.randn(4, 0))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 if math.log(x.shape[0]) > 1 else x * 3,
        lambda x: sum(x * step for step in range(int(math.log2(x.shape[0])))),
        lambda x: x[:, : math.ceil(math.log2(x.shape[0]))],
        lambda x: x * {4: 2.0}.get(len(x), 1.0),
        lambda x: sum(x[row] for row in range(len(x))),
    ],
)
def test_a_number_that_decides_fixes_the_dim(function: Callable[[Tensor], Tensor]) -> None:
    executable = disc.compile(function, (torch.randn(4, 8),))
    x = torch.randn(4, 5)
    torch.testing.assert_close(executable(x), function(x))
    with pytest.raises(ShapeConstraintError, match="must be 4"):
        executable(torch.randn(9, 5))
