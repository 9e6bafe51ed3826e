"""Odd programs under `disc.lazy`, with sizes that change from step to step, compute what eager PyTorch computes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import disc
from disc.frontend.lazy import public
from disc.frontend.lazy.tensors import real

Step = Callable[[int], list[object]]
SIZES = (3, 3, 3, 5, 1, 0, 7, 3)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No traces of other tests."""
    disc.lazy.disable()
    public._thread.__init__()
    yield
    disc.lazy.disable()


def rows(count: int, width: int = 4) -> Tensor:
    return torch.linspace(-1, 1.3, count * width).view(count, width)


def plain(value: object) -> object:
    """Copies of tensors, made by PyTorch."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if not isinstance(value, Tensor):
        return value
    with torch._C.DisableTorchFunction():
        return real(value).detach().clone()


def written_diagonal() -> Step:
    buffer = torch.zeros(4, 4)

    def step(count: int) -> list[object]:
        buffer.t()[0] += rows(count).sum(0)
        diagonal = buffer.diagonal()
        diagonal.add_(0.25)
        buffer.diagonal(-2).mul_(2)
        return [buffer.clone(), diagonal.sum().item()]

    return step


def gradient_of_a_diagonal() -> Step:
    weight = nn.Parameter(torch.linspace(0, 1, 16).view(4, 4))

    def step(count: int) -> list[object]:
        weight.grad = None
        (rows(count) @ weight).sum().add(weight.diagonal(1).sin().sum()).backward()
        return [weight.grad]

    return step


def as_many_parts_as_rows() -> Step:
    def step(count: int) -> list[object]:
        x = torch.cos(rows(count))
        parts = [*x.unbind(0), *x.split(2), *torch.chunk(x, 3), *x.tensor_split(2), *torch.split(x, 1)]
        return [*(row.sum() * n for n, row in enumerate(x)), *parts, *x.t().unbind(), len(parts), [float(each) for each in x.sum(1)]]

    return step


def cut_off_from_the_step_before() -> Step:
    weight, held = nn.Parameter(torch.linspace(-1, 1, 16).view(4, 4)), list[Tensor]()

    def step(count: int) -> list[object]:
        before = held.pop().detach().clone().sum() if held else torch.zeros(())
        held.append(torch.tanh(rows(count) @ weight + before))
        disc.lazy.flush()
        weight.grad = None
        held[0].sum().backward()
        return [weight.grad, before]

    return step


def hooks_of_modules() -> Step:
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), list[Tensor]()
    for each in model.parameters():
        nn.init.constant_(each, 0.3)
    model[0].register_forward_hook(lambda module, given, result: result.add(1))
    model[2].register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    model[2].register_full_backward_hook(lambda module, inputs, results: seen.append(inputs[0].sum()))

    def step(count: int) -> list[object]:
        model.zero_grad()
        y = model(rows(count))
        y.square().sum().backward()
        return [y, [each.grad for each in model.parameters()], seen.pop(), y.detach().clone()]

    return step


def copies_of_tensors() -> Step:
    layer = nn.Linear(4, 4)
    nn.init.constant_(layer.weight, 0.2)

    def step(count: int) -> list[object]:
        y = layer(rows(count)).detach()
        other = copy.copy(y)
        return [copy.deepcopy(y), pickle.loads(pickle.dumps(y)), copy.deepcopy(layer)(rows(count)), other.add_(1), y]

    return step


@pytest.mark.parametrize("make", [
    written_diagonal, gradient_of_a_diagonal, as_many_parts_as_rows, cut_off_from_the_step_before, hooks_of_modules, copies_of_tensors,
])  # fmt: skip
def test_program(make: Callable[[], Step]) -> None:
    results = list[list[object]]()
    for lazily in (False, True):
        torch.manual_seed(0)
        step, found = make(), list[object]()
        for count in SIZES:
            if lazily:
                with disc.lazy():
                    result = step(count)
            else:
                result = step(count)
            found.append(plain(result))
        results.append(found)
    for ours, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert disc.lazy.stats().hits, disc.lazy.stats()
