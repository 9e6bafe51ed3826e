"""`torch.func.grad` under `disc.lazy`: values, and which of them have gradients, are those of eager PyTorch, in one program for all sizes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap

import disc
from disc.frontend.lazy.tensors import real

Program = Callable[[Tensor], list[Any]]
SIZES = (3, 5, 4, 1, 0, 7, 3, 11)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x))).sum(-1)


def forces(net: Net) -> Program:
    def program(x: Tensor) -> list[Any]:
        force = -grad(lambda each: net(each).sum())(x)
        (net(x).square().sum() + (force - x).square().sum()).backward()
        gradients = [each.grad for each in net.parameters()]
        net.zero_grad()
        return [force, *gradients]

    return program


def of_what_is_pending(net: Net) -> Program:
    def program(x: Tensor) -> list[Any]:
        y = torch.sin(x * 2)
        gradient, value = grad_and_value(lambda each: net(each).sum())(y)
        return [gradient + y, value * 2]

    return program


def of_parameters(net: Net) -> Program:
    def program(x: Tensor) -> list[Any]:
        kept = {name: each.detach() for name, each in net.named_parameters()}

        def loss(parameters: dict[str, Tensor]) -> Tensor:
            return functional_call(net, parameters, (x,)).square().sum()

        gradients = grad(loss)(kept)
        return [gradients, grad(loss)(dict(net.named_parameters()))]

    return program


def with_others(net: Net) -> Program:
    """Several arguments, a second result, and an argument that nothing depends on."""

    def program(x: Tensor) -> list[Any]:
        def function(a: Tensor, b: Tensor, c: Tensor, scale: float) -> tuple[Tensor, dict[str, Tensor]]:
            inner = net(a * scale) * b.sum()
            return inner.sum(), {"inner": inner, "a": a, "plain": b, "weight": net.last.weight}

        gradients, (value, others) = grad_and_value(function, argnums=(0, 2), has_aux=True)(x, x + 1, x * 3, scale=0.5)
        return [gradients, value, others, grad(function, has_aux=True)(x, x, x, 2.0)]

    return program


def twice(net: Net) -> Program:
    def program(x: Tensor) -> list[Any]:
        inner = grad(lambda each: net(each).pow(3).sum())
        return [grad(lambda each: inner(each).square().sum())(x), grad(lambda each: (each * x).sum())(x)]

    return program


def without_gradients_around(net: Net) -> Program:
    def program(x: Tensor) -> list[Any]:
        with torch.no_grad():
            found = grad_and_value(lambda each: net(each).sum())(x)
        return [*found, grad(lambda each: net(each).detach().sum() + each.sum())(x)]

    return program


def of_what_has_gradients(net: Net) -> Program:
    def program(x: Tensor) -> list[Any]:
        start = x.clone().requires_grad_()
        y = start * 2
        gradient = grad(lambda each: (each**3).sum() + net(y).sum())(y)
        gradient.sum().backward()
        return [gradient, start.grad]

    return program


def of_nothing(net: Net) -> Program:
    del net

    def program(x: Tensor) -> list[Any]:
        return [grad_and_value(lambda each: x.sum() * 2)(x + 1), grad(lambda each: each.sum())(x)]

    return program


def of_samples(net: Net) -> Program:
    def program(x: Tensor) -> list[Any]:
        y = x + 1
        return [vmap(grad(lambda row: net(row).sum()))(y), grad(lambda each: vmap(net)(each).sum())(y), (y * 2).sum()]

    return program


PROGRAMS = (
    forces, of_what_is_pending, of_parameters, with_others, twice, without_gradients_around, of_what_has_gradients, of_nothing,
    of_samples,
)  # fmt: skip


def facts(value: Any) -> Any:
    """What a program gave: numbers, and what has gradients."""
    if isinstance(value, list | tuple):
        return [facts(each) for each in value]
    if isinstance(value, dict):
        return {name: facts(each) for name, each in value.items()}
    with torch._C.DisableTorchFunction():
        tensor = real(value)
        return [tensor.detach().clone(), tensor.requires_grad]


def inputs(count: int) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(count))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", PROGRAMS)
def test_is_as_eager(make: Callable[[Net], Program]) -> None:
    torch.manual_seed(0)
    program = make(Net())
    for count in SIZES:
        expected = facts(program(inputs(count)))
        with disc.lazy():
            found = program(inputs(count))
        torch.testing.assert_close(facts(found), expected, rtol=1e-4, atol=1e-5)
    found = disc.lazy.stats()
    assert found.hits >= 3, found
    assert make is of_samples or not found.refused, found  # in `vmap` everything has values


def test_forces_are_compiled_once() -> None:
    net = Net()
    program = forces(net)
    for count in (3, 5, 4, 7, 9, 13):
        with disc.lazy():
            program(inputs(count))
    assert disc.lazy.stats().compiles == 1, disc.lazy.stats()


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x: x * 2, RuntimeError, "to return a scalar Tensor, got tensor with 2 dims"),
        (lambda x: x.mul_(2).sum(), RuntimeError, "a leaf Variable that requires grad is being used in an in-place operation"),
        (lambda x: 3.0, RuntimeError, "to return a Tensor, got <class 'float'>"),
        (lambda x: x.sum() / [][0], IndexError, "list index out of range"),
        (lambda x: (x @ x.t() @ x[:1].t()).sum(), RuntimeError, "mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_errors_are_those_of_pytorch(function: Callable[[Tensor], Any], error: type[Exception], message: str) -> None:
    for _ in range(4):
        with disc.lazy():
            x = inputs(3) * 2
            with pytest.raises(error, match=message):
                print(grad(function)(x))
            torch.testing.assert_close(x.sum(), inputs(3).sum() * 2)


def test_an_error_is_raised_once() -> None:
    """What failed is not tried again: it may have had effects."""
    calls = [0]

    def function(x: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] == 3:
            raise ValueError("the third time")
        return (x * x).sum()

    for number in range(6):
        with disc.lazy():
            x = inputs(3) * 2
            if number == 2:
                with pytest.raises(ValueError, match="the third time"):
                    grad(function)(x)
            else:
                torch.testing.assert_close(real(grad(function)(x)), inputs(3) * 4)
    assert calls[0] == 6


def test_a_result_that_is_none_takes_one_call() -> None:
    for _ in range(4):
        torch.manual_seed(3)
        with disc.lazy():
            x = inputs(3) * 2
            with pytest.raises(RuntimeError, match="to return a scalar Tensor"):
                grad(lambda y: y * torch.rand(3, 4))(x)
            found = torch.rand(2)
        torch.manual_seed(3)
        torch.rand(3, 4)
        torch.testing.assert_close(real(found), torch.rand(2))


WRITING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the argument": lambda y, kept: (y.mul_(2) * y).sum(),
    "a view of it": lambda y, kept: (y[0].mul_(2) * y).sum(),
    "a captured tensor": lambda y, kept: (kept.copy_(y) * y).sum(),
    "by an element": lambda y, kept: kept.__setitem__(0, y[0]) or (kept * y).sum(),
    "a captured tensor, with none": lambda y, kept: (kept.add_(1) * y).sum(),
    "as out": lambda y, kept: (torch.sin(torch.ones(3, 4), out=kept) * y).sum(),
    "an intermediate": lambda y, kept: ((y * 2).add_(1) * y * kept).sum(),
}


@pytest.mark.parametrize("name", WRITING)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_what_is_written(name: str, with_gradients: bool) -> None:
    """PyTorch's transform refuses some of it, and what it writes, it writes once."""

    def step(kept: Tensor) -> list[Any]:
        x = inputs(3).requires_grad_(with_gradients) * 3
        try:
            gradient = grad(lambda y: WRITING[name](y, kept))(x)
        except RuntimeError as error:
            return [str(error)[:60], facts(x), facts(kept)]
        return ["", facts(gradient), facts(x), facts(kept)]

    kept, expected = torch.ones(3, 4), torch.ones(3, 4)
    for _ in range(5):
        with disc.lazy():
            found = step(kept)
        wanted = step(expected)
        assert found[0] == wanted[0]
        torch.testing.assert_close(found[1:], wanted[1:])


def test_a_branch_that_writes_is_taken_anew() -> None:
    """What it writes is written once, as PyTorch's transform does it."""

    def function(x: Tensor, scratch: list[Tensor], write: bool) -> Tensor:
        if write:
            scratch.append(torch.zeros(3, 4).add_(1))
        return (torch.tanh(x) * len(scratch)).sum()

    def step(scratch: list[Tensor], write: bool) -> list[Any]:
        gradient = grad(lambda x: function(x, scratch, write))(inputs(3) * 2)
        return [facts(gradient), len(scratch)]

    ours, theirs = list[Tensor](), list[Tensor]()
    for write in (False, False, False, False, True, False, True, True):
        with disc.lazy():
            found = step(ours, write)
        torch.testing.assert_close(found, step(theirs, write))


def test_dynamo_traces_transforms_while_another_thread_records() -> None:
    weight, ended = torch.randn(4, 4), threading.Event()
    started = threading.Event()

    def energy(x: Tensor) -> Tensor:
        return torch.tanh(x @ weight).sum()

    def record() -> None:
        for times in itertools.count():
            with disc.lazy():
                x = torch.randn(3, 4)
                torch.testing.assert_close(real(vmap(energy)(x)).sum(), energy(x))
                float(grad(energy)(x).sum())
            if times == 5:  # nothing is compiled any more: to PyTorch other threads trace as well, then
                started.set()
            if ended.is_set():
                return

    def clipped(x: Tensor) -> Tensor:
        return torch.nn.utils.get_total_norm([x, x * 2])

    programs = (
        grad(energy), vmap(energy), vmap(grad(energy)), torch.func.hessian(energy), torch.func.jacfwd(torch.sin), clipped,
        lambda x: grad_and_value(energy)(x)[1], lambda x: torch.func.jvp(energy, (x,), (x,))[1],
    )  # fmt: skip
    thread = threading.Thread(target=record)
    thread.start()
    try:
        assert started.wait(60)
        torch._dynamo.trace_rules.clear_lru_cache()  # as groups of processes do
        for each in programs:
            torch._dynamo.reset()
            x = torch.randn(4, 4)
            torch.testing.assert_close(torch.compile(each, backend="eager", fullgraph=True)(x), each(x))  # pyright: ignore[reportCallIssue, reportArgumentType]
    finally:
        ended.set()
        thread.join()
