"""Models of paper 004 trained through torch.compile(backend="disc"): losses, gradients and weights of steps of changing sizes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training_models import TRAININGS

from disc import Executable
from disc.errors import DiscError
from disc.frontend import dynamo, registered

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def marked(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.long) if TRAININGS[name].long else name


def trained(model: nn.Module, forward: Callable[..., torch.Tensor], batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """The loss and the gradients of each step, then the weights and buffers."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen: list[torch.Tensor] = []
    for batch in batches:
        optimizer.zero_grad()
        loss = forward(*batch)
        loss.backward()
        optimizer.step()
        seen += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return [*seen, *(value.detach() for value in model.state_dict().values())]


@pytest.fixture
def executables() -> Iterator[list[Executable]]:
    """What torch.compile has had compiled."""
    made: list[Executable] = []
    compiler = registered.graph_compiler()

    def recorded(*arguments: object) -> Executable:
        made.append(compiler(*arguments))  # pyright: ignore[reportArgumentType]
        return made[-1]

    registered.set_graph_compiler(recorded)
    yield made
    registered.set_graph_compiler(compiler)


@pytest.mark.parametrize("name", [marked(name) for name in TRAININGS])
def test_steps_are_those_of_eager(name: str, executables: list[Executable]) -> None:
    """In one graph each way, with nothing left to PyTorch and no input copied."""
    training = TRAININGS[name]
    model = training.make()
    eager = copy.deepcopy(model)
    batches = [training.inputs(*sizes) for sizes in training.sizes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = trained(model, torch.compile(model, backend="disc", dynamic=True, options={"strict": True}), batches)
    for ours, expected in zip(found, trained(eager, eager, batches), strict=True):
        torch.testing.assert_close(ours, expected, rtol=2e-3, atol=2e-5)
    statistics = dynamo.statistics()
    assert not statistics.eager and not statistics.failed and not statistics.refused_calls
    assert len(executables) == 2 and not any(each.stats()["copied_bytes"] for each in executables)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_is_one_graph(kind: type[torch.optim.SGD | torch.optim.AdamW], executables: list[Executable]) -> None:
    """Its first step makes the state, the second has it; from then on steps take no other graph.

    Compared with what Dynamo writes of a step, run by PyTorch: that has the number of steps as an f32 tensor, and 1 - 0.999 ** step loses four
    digits which the eager step, in Python's floats, keeps.
    """
    settings: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {})}
    models = [nn.Linear(7, 5), nn.Linear(7, 5)]
    models[1].load_state_dict(models[0].state_dict())
    ours, eager = (kind(model.parameters(), **settings) for model in models)
    step = torch.compile(ours.step, backend="disc", options={"strict": True})
    eager_step = torch.compile(eager.step, backend="eager")
    for _ in range(5):
        gradients = [torch.randn(5, 7), torch.randn(5)]
        for model in models:
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight.grad = gradient.clone()
        step()
        eager_step()
        torch.testing.assert_close(list(models[0].parameters()), list(models[1].parameters()), rtol=1e-5, atol=1e-6)
    assert len(executables) <= 2 and not dynamo.statistics().eager


def kept_bytes(model: nn.Module, x: torch.Tensor, memory: float) -> tuple[int, list[torch.Tensor]]:
    """What a compiled step keeps for its backward pass beside weights and inputs, and the gradients."""
    torch._dynamo.reset()
    options: dict[str, Any] = {"strict": True, "memory": memory}
    compiled = torch.compile(model, backend="disc", dynamic=True, options=options)
    own, kept = {x.data_ptr(), *(p.data_ptr() for p in model.parameters())}, dict[int, int]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.data_ptr(), tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = compiled(x)
    return sum(size for place, size in kept.items() if place not in own), list(torch.autograd.grad(result.sum(), list(model.parameters())))


def test_less_is_kept_where_memory_is_short() -> None:
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(24, 24), nn.LayerNorm(24), nn.GELU())))
    x = torch.randn(37, 24)
    whole, expected = kept_bytes(model, x, 1.0)
    half, gradients = kept_bytes(model, x, 0.5)
    assert 0 < half <= 0.7 * whole
    torch.testing.assert_close(gradients, expected)
    with pytest.raises(DiscError, match=r"memory is a share .* not 2"):
        dynamo.checked_settings({"memory": 2})


def test_labels_that_are_a_column() -> None:
    """What a decomposition gives under names, of inputs that are not row-major."""
    model, x, words = nn.Linear(5, 7), torch.randn(6, 5), torch.randint(7, (6, 3))

    def loss(x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), words[:, -1]) + F.nll_loss(model(x), words[:, 0], reduction="sum")

    compiled = torch.compile(loss, backend="disc", dynamic=True, options={"strict": True})
    found = torch.autograd.grad(compiled(x, words), list(model.parameters()))
    torch.testing.assert_close(found, torch.autograd.grad(loss(x, words), list(model.parameters())))
