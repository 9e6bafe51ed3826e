"""Functions of torch.compile whose loops Dynamo unrolls: each further number of steps is no further compile."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import disc
from disc.frontend import dynamo, unrolled_functions
from disc.frontend.loops_found import FEWEST_STEPS
from disc.frontend.unrolled_functions import Unrolling

W, U = torch.randn(4, 8) * 0.4, torch.randn(8, 8) * 0.3


def states(x: Tensor, w: Tensor, u: Tensor, ends: list[Tensor]) -> dict[str, Any]:
    """Weights are normed in every step, as a module with `weight_norm` does it; one goes by what the step takes of it."""
    g = u[:, :1].clone()
    h, found = torch.zeros(x.shape[0], 8), []
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] @ torch._weight_norm(w, w[:, :1], 0) + h @ torch._weight_norm(u, g, 0))  # pyright: ignore[reportPrivateImportUsage]
        found.append(h)
    ends.append(h)
    return {"last": h, "ends": ends, "all": [torch.stack(found, 1)], "steps": x.shape[1]}


def check(compiled: Callable[..., Any], batch: int, steps: int) -> None:
    """Values and gradients against eager; values are PyTorch's own tensors."""
    x, given = torch.randn(batch, steps, 4), []
    for function in (compiled, states):
        inputs = [each.clone().requires_grad_() for each in (x, W, U)]
        ends = list[Tensor]()
        result = function(*inputs, ends=ends)
        assert result["steps"] == steps and type(result["last"]) is Tensor is type(result["all"][0])
        assert result["ends"] is ends and type(ends[0]) is Tensor
        loss = result["all"][0].square().sum() + result["last"].sum()
        given.append([result["last"], *torch.autograd.grad(loss, inputs)])
    for ours, theirs in zip(*given, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("fresh_dynamo")
def test_all_numbers_of_steps_take_one_more_compile() -> None:
    compiled = torch.compile(states, backend="disc", fullgraph=True, options={"target": ["native"]})  # pyright: ignore[reportCallIssue, reportArgumentType]
    other = torch.compile(states, backend="eager")
    began, compiles = dynamo.statistics().graphs, disc.lazy.stats().compiles
    check(compiled, 3, 8)
    assert dynamo.statistics().graphs == began + 2, "a forward and a backward graph"
    for batch, steps in ((3, 11), (4, 11), (5, 11), (3, 9), (7, 20), (2, 6), (3, 9), (7, 20)):
        check(compiled, batch, steps)
    assert disc.lazy.stats().compiles == compiles + 1
    assert dynamo.statistics().graphs <= began + 4
    check(other, 3, 9)  # the same function, compiled by somebody else

    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        compiled(torch.randn(3, 4, 5), W, U, [])
    check(compiled, 3, 9)
    x = torch.randn(2, 3, 5, 4)
    torch.testing.assert_close(
        torch.vmap(lambda each: compiled(each, W, U, [])["last"])(x), torch.stack([states(each, W, U, [])["last"] for each in x])
    )
    with torch.inference_mode():
        inside = torch.randn(3, 9, 4)
        torch.testing.assert_close(compiled(inside, W, U, [])["last"], states(inside, W, U, [])["last"])
    with torch.compiler.set_stance("force_eager"):
        check(compiled, 3, 9)
    with disc.lazy():
        pending = compiled(x[0], W, U, [])["last"].sum()
        torch.testing.assert_close(float(pending), float(states(x[0], W, U, [])["last"].sum()), rtol=1e-4, atol=1e-4)


class _Owner:
    """Compiles a method of its own, so that what torch.compile gives leads back to it."""

    def __init__(self) -> None:
        self.step = torch.compile(self._step, backend="disc", options={"target": ["native"]})  # pyright: ignore[reportCallIssue, reportArgumentType]

    def _step(self, x: Tensor) -> Tensor:
        for row in x:
            x = torch.tanh(x * row) + x
        return x.sum()


@pytest.mark.usefixtures("fresh_dynamo")
def test_what_owns_a_recorded_function_is_freed() -> None:
    owner = _Owner()
    for steps in (8, 11, 9):
        torch.testing.assert_close(owner.step(torch.ones(steps, 2)), owner._step(torch.ones(steps, 2)))
    assert len(unrolled_functions._switched) == 1
    left = weakref.ref(owner)
    del owner
    gc.collect()
    assert left() is None and not unrolled_functions._switched


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_reset_brings_the_function_back() -> None:
    compiled = torch.compile(states, backend="disc", options={"target": ["native"]})  # pyright: ignore[reportCallIssue, reportArgumentType]
    for _ in range(2):
        check(compiled, 3, 8)
        check(compiled, 3, 11)
        graphs, recorded = dynamo.statistics().graphs, disc.lazy.stats().noted + disc.lazy.stats().recorded
        check(compiled, 3, 9)
        assert dynamo.statistics().graphs == graphs and disc.lazy.stats().noted + disc.lazy.stats().recorded > recorded
        torch._dynamo.reset()
        graphs, recorded = dynamo.statistics().graphs, disc.lazy.stats().noted + disc.lazy.stats().recorded
        check(compiled, 3, 8)
        assert dynamo.statistics().graphs > graphs and disc.lazy.stats().noted + disc.lazy.stats().recorded == recorded
        torch._dynamo.reset()


def test_calls_that_are_made_many_times_are_a_loop_that_is_not_found() -> None:
    calls, few = frozenset({("linear", "a.py:1"), ("tanh", "a.py:2")}), frozenset({("sin", "a.py:3"), ("cos", "a.py:4")})
    known: dict[frozenset[tuple[str, str]], int] = {}

    def graph(of: frozenset[tuple[str, str]], number: int) -> Unrolling:
        return Unrolling(sys._getframe(), of, number, known)

    assert not graph(calls, 2 * FEWEST_STEPS).has_other_steps()
    graph(calls, 2 * FEWEST_STEPS).note(0)
    graph(few, 2 * FEWEST_STEPS - 1).note(0)
    assert graph(calls, 2 * FEWEST_STEPS + 4).has_other_steps() and not graph(calls, 2 * FEWEST_STEPS).has_other_steps()
    assert not graph(few, 2 * FEWEST_STEPS + 4).has_other_steps()


@pytest.mark.usefixtures("fresh_dynamo")
def test_other_graphs_of_a_function_are_no_other_numbers_of_steps() -> None:
    """Gradients, dtypes and branches."""

    def function(x: Tensor, double: bool) -> Tensor:
        if double:
            x = x + x
        for t in range(6):
            x = torch.sin(x * 0.5 + t % 1).exp()
        return x

    compiled, compiles = torch.compile(function, backend="disc"), disc.lazy.stats()
    before = (compiles.compiles, compiles.noted)
    x = torch.randn(3, 4)
    for given in (x, x.double(), x.clone().requires_grad_()):
        for double in (False, True):
            torch.testing.assert_close(compiled(given, double), function(given, double))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, True), function(x, True))
    assert (compiles.compiles, compiles.noted) == before
