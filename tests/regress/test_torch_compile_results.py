"""torch.compile(backend="disc"): results share memory, and have strides, as in eager; what is not a tensor comes back as it is."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from disc.frontend import dynamo

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def shared(results: Sequence[object]) -> list[tuple[int, int]]:
    """The pairs that share memory."""
    tensors = [(i, t.untyped_storage().data_ptr()) for i, t in enumerate(results) if isinstance(t, torch.Tensor)]
    return [(i, j) for (i, a), (j, b) in itertools.combinations(tensors, 2) if a == b]


def strides(results: Sequence[object]) -> list[object]:
    return [t.stride() if isinstance(t, torch.Tensor) else t for t in results]


def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x + 1
    return y, y.view(-1), y


def views_alone(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    return y[:, 1:], y.t(), y.flatten()


def around_topk(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x + 1
    values = torch.topk(y, 2)[0]
    return y, y.t(), values * 2, values.t()


FUNCTIONS: dict[str, Callable[..., tuple[object, ...]]] = {
    "a tensor and its view": both,
    "views of what is not returned": views_alone,
    "transposed": lambda x: ((x + 1).t(),),
    "expanded": lambda x: ((x + 1)[0].expand(3, x.shape[1]), x[None].expand(2, *x.shape)),
    "around an op of PyTorch": around_topk,
    "of the input": lambda x: (x, x.view(-1), x[1:] + 0, x.detach()),
    "sliced": lambda x: ((x + 1)[:, ::2], (x + 1).unfold(1, 2, 1)),
    "split": lambda x: (*(x + 1).chunk(2, 1), x.sum()),
    "no tensors": lambda x: (None, x.shape[0], 2.5, x.shape[0] > 3, x + 1, x.shape[1] / 2),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("gradients", [False, True])
def test_memory_and_strides(name: str, gradients: bool) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="disc")
    for size in ((3, 4), (5, 6), (4, 8)):
        x = torch.randn(size, requires_grad=gradients)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours, eager = compiled(x), function(x)
        assert [type(value) for value in ours] == [type(value) for value in eager]
        torch.testing.assert_close(ours, eager)
        assert shared((*ours, x)) == shared((*eager, x))
        assert strides(ours) == strides(eager)
    assert not dynamo.statistics().failed and not dynamo.statistics().refused_calls


def test_a_write_through_a_view_is_seen() -> None:
    result = torch.compile(both, backend="disc")(torch.zeros(3, 4))
    result[1][0] = 99
    assert result[0][0, 0] == 99 and result[2][0, 0] == 99


LAYERS = (
    nn.ReLU(),
    nn.GELU(),
    nn.Conv2d(4, 4, 3),
    nn.MaxPool2d(2),
    nn.Softmax(1),
    nn.LayerNorm(6),
    nn.GroupNorm(2, 4),
    nn.AdaptiveAvgPool2d(1),
)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_strides_of_channels_last_images(layer: nn.Module) -> None:
    compiled = torch.compile(layer, backend="disc")
    for batch in (2, 3):
        x = torch.randn(batch, 4, 6, 6).to(memory_format=torch.channels_last)
        with torch.no_grad():
            ours, eager = compiled(x), layer(x)
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
        assert ours.stride() == eager.stride()


# --- more than functions of tensors ---------------------------------------------------------------------------------------------


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean


def test_buffers_are_updated() -> None:
    models = [Counted(), Counted()]
    compiled = torch.compile(models[0], backend="disc")
    for batch in (3, 5, 4):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(compiled(x), models[1](x))
    torch.testing.assert_close(dict(models[0].named_buffers()), dict(models[1].named_buffers()))


def mutate(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    x[1:].add_(1)
    return x.sum() + x.view(-1)[0]


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:  # pyright: ignore
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:  # pyright: ignore
        return gradient * ctx.saved_tensors[0] * 7  # not the true one, so that a test sees which ran


@torch.library.custom_op("disc_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, gradient: gradient * 2)


def chosen(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.exp() + 1, lambda x: x - 1, (x + 1,)) * 2


IDIOMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mutated input": mutate,
    "autograd function": lambda x: Cube.apply(x * 2).exp(),  # pyright: ignore
    "custom op": lambda x: twice(x + 1) * 3,
    "cond": chosen,
    "item": lambda x: x * x.sum().item(),
    "mask": lambda x: x[x > 0].sum() + x.mean(),
    "random": lambda x: x + torch.rand_like(x) + nn.functional.dropout(x + 1, 0.5) * torch.randn(x.shape[0], 1),
    "graph break": lambda x: (x + 1, torch._dynamo.graph_break())[0] * 2,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", IDIOMS)
@pytest.mark.parametrize("gradients", [False, True])
def test_idioms(name: str, gradients: bool) -> None:
    function = IDIOMS[name]
    compiled = torch.compile(function, backend="disc", options={"random": "eager"})
    for number, rows in enumerate((3, 5, 4)):
        seen = []
        for each in (compiled, function):
            torch.manual_seed(number)
            leaf = torch.randn(rows, 4, requires_grad=gradients)
            x = leaf * 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = each(x)
                if gradients:
                    result.sum().backward()
            seen.append((result.detach(), x.detach(), leaf.grad))
        torch.testing.assert_close(*seen, rtol=1e-5, atol=1e-5)
    assert not dynamo.statistics().refused_calls
