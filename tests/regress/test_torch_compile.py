"""What torch.compile(backend="disc", dynamic=True) once refused or got wrong: each against eager, one compile for all calls."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from disc.frontend import dynamo

Calls = Sequence[tuple[object, ...]]


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def check(function: Callable[..., object], calls: Calls, eager: Sequence[str] = (), graphs: int | None = 1) -> None:
    """Every call gives eager's values and strides of views; `eager`: the ops that stay with PyTorch."""
    compiled = torch.compile(function, backend="disc", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for inputs in calls:
            torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=1e-5, atol=1e-5)
    assert graphs is None or dynamo.statistics().graphs == graphs
    assert sorted(dynamo.statistics().eager) == sorted(eager)


def rows(*sizes: tuple[int, ...]) -> Calls:
    return [(torch.randn(size),) for size in sizes]


SIZES = rows((3, 4), (5, 6), (4, 7))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, :2] + torch.tensor([1.0, 2.0]),
        lambda x: x * torch.tensor(2.5),
        lambda x: x * torch.tensor([x.shape[0]]),
        lambda x: x[:, torch.tensor([1, 0])] + 0,
        lambda x: x + torch.as_tensor([[1.0]], dtype=torch.float64),
    ],
)
def test_tensor_literals(function: Callable[..., object]) -> None:
    """A literal is a real tensor among fake ones: AOTAutograd refused it, then the lowering."""
    check(function, SIZES)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift, self.whole, self.flag = 1.5, 1e-3, 3, True
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale + self.shift * self.whole + (1.0 if self.flag else 2.0)


def test_float_attributes() -> None:
    """The symbol of a float has no integer bounds. A new value needs no new graph, in training neither."""
    model = Scaled()
    compiled = torch.compile(model, backend="disc", dynamic=True)
    for scale, batch in ((1.5, 3), (2.5, 5), (-4.0, 2)):
        model.scale = scale
        x = torch.randn(batch, 4, requires_grad=True)
        torch.testing.assert_close(compiled(x), model(x))
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(gradient, torch.autograd.grad(model(x).sum(), x)[0])
    assert dynamo.statistics().graphs == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x, s: x * s,
        lambda x, s: x * (s * 2 + 1) + math.sqrt(s),
        lambda x, s: x + torch.arange(x.shape[0]) * s,
        lambda x, s: x.to(torch.float64) * s,
    ],
)
def test_float_inputs(function: Callable[..., object]) -> None:
    check(function, [(torch.randn(3), 2.5), (torch.randn(5), 3.5), (torch.randn(5), 1 / 3)])


@pytest.mark.parametrize(
    ("function", "eager"),
    [
        (lambda x, k: x * k, ()),
        (lambda x, k: x / 3 + k % 3, ()),
        (lambda x, k: x + k // 2, ()),
        (lambda x, k: x + (-k) % 5, ()),
        (lambda x, k: x + max(k, 2), ()),
        (lambda x, k: x + x.shape[0] // k, ("aten.add.Tensor",)),
        (lambda x, k: x + 7 % k, ("aten.add.Tensor",)),
    ],
)
def test_integer_inputs(function: Callable[..., object], eager: Sequence[str]) -> None:
    """An integer that is no size may be negative: it has no lower bound, and a quotient of it is no unsigned one."""
    check(function, [(torch.randn(4), k) for k in (5, -5, -7, 2, -1)], eager)


def test_programs_of_integers_come_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISC_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("DISC_CACHE", raising=False)
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, k: (x + k).sin(), backend="disc", dynamic=True)
        torch.testing.assert_close(compiled(torch.ones(3), -5), (torch.ones(3) - 5).sin())
    assert dynamo.statistics().compiled == 2 and dynamo.statistics().cached == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / math.sqrt(x.shape[-1]),
        lambda x: x * x.shape[-1] ** -0.5 + float(x.shape[0]),
        lambda x: x[:, : math.floor(x.shape[1] * 0.5)] + 1,
        lambda x: x[:, : math.ceil(x.shape[1] / 3)] + 1,
        lambda x: x[: int(x.shape[0] * 0.75)] + 1,
        lambda x: x[:, : math.floor(x.shape[1] * 0.7)] + 1,
    ],
)
def test_numbers_from_sizes(function: Callable[..., object]) -> None:
    check(function, SIZES)


def test_what_has_no_integer_form_stays_with_pytorch() -> None:
    check(lambda x: x[:, : math.floor(x.shape[1] ** 0.9)] + 1, SIZES, eager=("aten.slice.Tensor", "input slice_2"))
    torch._dynamo.reset()
    dynamo.reset_statistics()
    check(lambda x: x * (x.shape[0] > 4), SIZES, eager=("aten.mul.Tensor",))


def test_an_input_without_a_type_stays_with_pytorch() -> None:
    """An input that has no type in the IR ended in an error instead of a graph in parts."""
    calls = [(torch.randn(n), torch.randn(m).to(torch.float8_e4m3fn)) for n, m in ((3, 4), (5, 2))]
    check(lambda x, z: (x.exp() + 1, z.float() * 2), calls, eager=("input arg3_1",))


def test_graph_without_tensors() -> None:
    """Without an input tensor the results came as NumPy arrays."""
    check(lambda x, n: torch.full((n, 2), 0.5), [(torch.randn(2), 3), (torch.randn(2), 5)])


def halves(x: torch.Tensor) -> torch.Tensor:
    return x[:, : x.shape[1] // 2]


def twins(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x + 1
    return y, y[:, : x.shape[1] // 2], y.t(), y.narrow(1, 1, 2)


def mutated(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.clone()
    y.add_(1)
    return y[:, 1:], y * 2, y


@pytest.mark.parametrize("function", [halves, twins, mutated, lambda x: (x[None].expand(3, *x.shape), x.sum(), x.detach())])
@pytest.mark.parametrize("gradients", [False, True])
def test_results_that_are_views(function: Callable[..., object], gradients: bool) -> None:
    """A copy of a view was read with the strides of the copy, in the memory of the input: wrong values."""
    check(function, [(torch.randn(size, requires_grad=gradients),) for size in ((3, 4), (5, 6), (4, 8))], graphs=None)
    assert dynamo.statistics().graphs <= 1 + gradients  # a graph that only hands out its input has no gradient graph


def test_by_default_the_second_shape_is_the_last_to_compile() -> None:
    """PyTorch makes the sizes that changed dynamic then (dynamic=None)."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16)).eval()
    compiled = torch.compile(model, backend="disc")
    for batch, length in [(2, 3), (3, 5), (4, 7), (5, 64), (9, 65), (2, 101)]:
        x = torch.randn(batch, length, 8)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    assert dynamo.statistics().graphs == 2
