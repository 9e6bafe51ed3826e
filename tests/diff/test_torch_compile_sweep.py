"""Small models of all kinds through torch.compile(backend="disc") at sizes 3, 5, 1 and 0: as in eager, and no failure of ours behind it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch_compile_models import ALWAYS, CASES

from disc.frontend import dynamo

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def outcome(function: object, inputs: tuple[torch.Tensor, ...]) -> tuple[object, Exception | None]:
    try:
        return function(*(x.clone() for x in inputs)), None  # pyright: ignore[reportCallIssue]
    except Exception as error:
        return None, error


@pytest.mark.parametrize("name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.long) for name in CASES])
def test_as_in_eager(name: str) -> None:
    function, make = CASES[name]
    torch.manual_seed(0)
    compiled = torch.compile(function, backend="disc")  # pyright: ignore[reportCallIssue, reportArgumentType]
    for n in (3, 5, 1, 0):
        inputs = make(n)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours, failure = outcome(compiled, inputs)
            eager, expected = outcome(function, inputs)
        assert (failure is None) == (expected is None), f"n = {n}: {failure!r}, eager {expected!r}"
        if expected is None:
            torch.testing.assert_close(ours, eager, rtol=2e-4, atol=2e-5, equal_nan=True)
    assert set(dynamo.statistics().failed) <= {"UnsupportedOpError"} and not dynamo.statistics().refused_calls, dynamo.statistics()
