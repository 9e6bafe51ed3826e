"""The extreme of nothing: refused in the call, as in eager. Softmax of nothing is nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import disc
from disc.errors import ShapeConstraintError

OPTIONS = disc.Options(cache=False, threads=1)
Call = Callable[[torch.Tensor], object]

CALLS: dict[str, Call] = {
    "amax": lambda x: x.amax(0),
    "amin of both dims": lambda x: x.amin((0, 1)),
    "max": lambda x: x.max(),
    "min with indices": lambda x: x.min(0),
    "argmax": lambda x: x.argmax(0),
    "argmin of all": lambda x: x.argmin(),
    "aminmax": lambda x: torch.aminmax(x, dim=0),
    "norm of infinity": lambda x: torch.linalg.vector_norm(x, float("-inf"), 0),
}


class Calls(nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> object:
        return self.call(x)


@pytest.mark.parametrize("name", CALLS)
def test_no_extreme_of_nothing(name: str) -> None:
    call, empty = CALLS[name], torch.zeros(0, 3)
    executable = disc.compile(Calls(call).eval(), torch.randn(4, 3), options=OPTIONS)
    with pytest.raises((IndexError, RuntimeError)):
        call(empty)
    with pytest.raises(ShapeConstraintError, match=r"test_empty_reductions.py:\d+"):
        executable(empty)
    executable(torch.randn(1, 3))


def test_a_dim_of_size_0_that_is_kept() -> None:
    executable = disc.compile(Calls(lambda x: x.amax(0)).eval(), torch.randn(4, 3), options=OPTIONS)
    assert executable(torch.zeros(4, 0)).shape == (0,)


@pytest.mark.parametrize("call", [lambda x: x.softmax(0), lambda x: x.log_softmax(0), lambda x: x.logsumexp(0), lambda x: x.sum(0)])
def test_what_takes_nothing(call: Call) -> None:
    executable = disc.compile(Calls(call).eval(), torch.randn(4, 3), options=OPTIONS)
    for rows in (0, 1, 5):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(executable(x), call(x))
