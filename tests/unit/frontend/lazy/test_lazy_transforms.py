"""`torch.func.grad` under `disc.lazy`: values, and which of them have gradients, are those of eager PyTorch, in one program for all sizes."""

from __future__ import annotations

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
