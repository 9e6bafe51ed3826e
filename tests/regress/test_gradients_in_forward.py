"""Models that take gradients in `forward`: compiled for every size, or refused with the op and the line."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import disc
from disc.errors import UnsupportedOpError
from disc.frontend.tracing_lock import alone

Function = Callable[[torch.Tensor], torch.Tensor]
LSTM = nn.LSTM(6, 4, batch_first=True)


class ByAutograd(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_(True)
        return torch.autograd.grad(self.function(x).sum(), x)[0]


class ByFunction(ByAutograd):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda y: self.function(y).sum())(x)


class Counting(ByAutograd):
    """It writes a buffer, too."""

    def __init__(self, function: Function) -> None:
        super().__init__(function)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) + self.calls


def labels_of(x: torch.Tensor) -> torch.Tensor:
    """The loss of labels of which two are alike."""
    return F.ctc_loss(x.unsqueeze(1).log_softmax(-1), torch.ones(1, 2, dtype=torch.long), torch.tensor([5]), torch.tensor([2]))


DISTANCES = [lambda x, p=p: torch.cdist(x, torch.cat([x.detach() + 1, x.detach()]), p) for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf)]
PAIRS = [lambda x, p=p: torch.pdist(x, p) for p in (0.0, 1.0, 1.5, 2.0, 3.0, math.inf)]
BRANCHES = [
    lambda x: torch.cond(x.sum() > 0, lambda y: y.exp().sin(), lambda y: y.tanh(), (x,)),
    lambda x: torch.cond(x.shape[0] > 6, lambda y: y.exp().sin(), lambda y: y.tanh(), (x,)),
]


def agrees(model: nn.Module, example: torch.Tensor, rows: tuple[int, ...] = (5, 7, 1, 30)) -> None:
    eager = copy.deepcopy(model)
    executable = disc.compile(model, (example,), options=disc.Options(cache=False))
    for count in rows:
        x = torch.randn(count, 6)
        torch.testing.assert_close(executable(x), eager(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [ByAutograd, ByFunction])
@pytest.mark.parametrize("function", [*DISTANCES, *PAIRS])
def test_of_distances(kind: type[ByAutograd], function: Function) -> None:
    agrees(kind(function), torch.randn(5, 6), (5, 7, 1, 12))  # more than 25, and eager rounds more


@pytest.mark.parametrize("function", BRANCHES)
def test_through_branches(function: Function) -> None:
    agrees(ByAutograd(function), torch.randn(5, 6))


def test_through_a_recurrent_layer() -> None:
    agrees(ByAutograd(lambda x: LSTM(x[None])[0]), torch.randn(5, 6))


@pytest.mark.parametrize("kind", [ByAutograd, ByFunction])
def test_of_an_alignment(kind: type[ByAutograd]) -> None:
    """States that no path reaches have a likelihood of -inf, and a slope."""
    agrees(kind(labels_of), torch.randn(5, 6), (5, 7, 30))


def test_beside_written_buffers() -> None:
    agrees(Counting(F.silu), torch.randn(5, 6))


@pytest.mark.parametrize(
    ("mode", "padding", "align_corners"),
    [
        ("bilinear", "zeros", True),
        pytest.param("bilinear", "reflection", False, marks=pytest.mark.long),  # the others have both
        ("nearest", "border", False),
        ("bicubic", "reflection", True),
    ],
)
def test_of_sampled_images(mode: str, padding: str, align_corners: bool) -> None:
    def both(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, grid = x.detach().requires_grad_(True), grid.detach().requires_grad_(True)
        sampled = F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=align_corners)
        return torch.autograd.grad((sampled * sampled.cos()).sum(), (x, grid))

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return both(x, grid)

    executable = disc.compile(Model(), (torch.randn(2, 3, 5, 6), torch.rand(2, 4, 5, 2)), options=disc.Options(cache=False))
    for (batch, height, width), rows in (((2, 5, 6), 4), ((1, 7, 2), 1), ((3, 4, 9), 7)):
        x, grid = torch.randn(batch, 3, height, width), torch.rand(batch, rows, 5, 2) * 3 - 1.5
        torch.testing.assert_close(executable(x, grid), both(x, grid), rtol=1e-4, atol=1e-4)


def sines(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + x.sin()) - 2


TRANSFORMS = [
    lambda x: torch.func.jvp(sines, (x,), (x.cos(),))[1],
    lambda x: torch.func.jvp(lambda y: torch.cat([y, 2 * y * y], -1), (x,), (x.cos(),))[1],
    lambda x: torch.func.jvp(lambda y: F.layer_norm(y, (6,)), (x,), (x.cos(),))[1],
    lambda x: torch.func.jvp(F.gelu, (x,), (x.cos(),))[1],
    lambda x: torch.func.jvp(lambda y: F.group_norm(y[:, :, None], 2), (x,), (x.cos(),))[1],
    lambda x: torch.func.jvp(lambda y: torch.zeros_like(y), (x,), (x.cos(),))[1],
    lambda x: torch.func.jvp(lambda y, z: {"a": y * z + 1}, (x, x + 1), (x.cos(), x))[1]["a"],
    lambda x: torch.func.jvp(torch.func.grad(lambda y: (sines(y) * y).sum()), (x,), (x.cos(),))[1],
    lambda x: torch.func.jvp(lambda y: (torch.func.grad(lambda z: (z**3).sum())(y), y * 2), (x,), (x.cos(),), has_aux=True)[1],
    lambda x: torch.func.jvp(lambda y: torch.func.jvp(sines, (y,), (y,))[1], (x,), (x.cos(),))[1],
    lambda x: torch.func.vmap(torch.func.grad(lambda y: F.gelu(y).sum()))(x),
    lambda x: torch.func.vmap(torch.func.grad(lambda y: (F.layer_norm(y, (6,)) ** 3).sum()))(x),
]


@pytest.mark.parametrize("function", TRANSFORMS)
def test_transforms_keep_the_batch_dynamic(function: Function) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    agrees(Model(), torch.randn(5, 6))


def test_what_cannot_be_traced_is_named() -> None:
    """Not that the model did not accept its example, which it does."""
    model = ByAutograd(lambda x: x * 2 if x.sum() > 0 else x)
    with pytest.raises(UnsupportedOpError, match=r"a branch in Python that depends on data at test_gradients_in_forward.py:\d+"):
        disc.compile(model, (torch.randn(5, 6),))


KEYWORDS: list[Function] = [
    lambda x: F.gelu(input=x, approximate="tanh"),
    lambda x: torch.group_norm(input=x, num_groups=2, cudnn_enabled=False),
    lambda x: torch.layer_norm(input=x, normalized_shape=[6], cudnn_enable=False),
    lambda x: F.layer_norm(input=x, normalized_shape=(6,)),
    lambda x: F.group_norm(input=x, num_groups=3),
]


@pytest.mark.parametrize("function", KEYWORDS)
def test_forms_take_the_keywords_of_what_they_stand_for(function: Function) -> None:
    agrees(nn.Sequential(Called(function)), torch.randn(5, 6))


class Called(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.filterwarnings("ignore::disc.errors.DiscWarning")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.func.jvp(lambda y: (y * 2, y.argmax(1)), (x,), (x.cos(),))[1][0],
        lambda x: torch.vmap(lambda y: F.group_norm(y[None, :, None], 2))(x),
    ],
)
def test_transforms_that_fix_sizes(function: Function) -> None:
    x = torch.randn(5, 6)
    found = disc.compile(Called(function), (x,))(x)
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, function(x), rtol=1e-4, atol=1e-5)


def test_a_trace_that_fails_leaves_no_transform_entered() -> None:
    """Of `vmap`'s, all random numbers of the process would be refused."""

    @alone
    def failing() -> None:
        torch._C._functorch._vmap_increment_nesting(3, "error")  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError("an op")

    with pytest.raises(ValueError, match="an op"):
        failing()
    assert torch.randn(2).shape == (2,)
