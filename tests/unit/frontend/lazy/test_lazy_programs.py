"""Programs under `disc.lazy` compute what PyTorch computes: training, reading in the middle, what is written, what cannot be compiled."""

from __future__ import annotations

import contextlib
import copy
import io
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import disc
from disc.errors import DiscError
from disc.frontend.lazy.tensors import LazyTensor

FUNCTIONS: Any = torch  # those on lists of tensors are no public ones
SIZES = (6, 6, 6, 9, 4, 6, 13, 1, 5)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(torch.relu(self.first(x))))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.Linear(8 * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        return self.last(x.view(x.shape[0], -1))


def train(
    make: Callable[[], nn.Module],
    optimizer: Callable[..., torch.optim.Optimizer],
    example: Callable[[int], Tensor],
    *,
    lazily: bool,
    before: bool = False,
    clip: bool = False,
) -> tuple[list[float], list[Tensor]]:
    """Losses, and the state at the end. before: the loss is read before the backward pass."""
    torch.manual_seed(0)
    model = make()
    steps, losses = optimizer(model.parameters()), list[float]()

    def run() -> None:
        for batch in SIZES:
            x, labels = example(batch), torch.randint(5, (batch,))
            steps.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            if before:
                losses.append(loss.item())
            loss.backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            steps.step()
            if not before:
                losses.append(loss.item())

    if lazily:
        with disc.lazy(strict=True):
            run()
    else:
        run()
    gradients = [each.grad.detach() for each in model.parameters() if each.grad is not None]
    return losses, [*(each.detach() for each in model.state_dict().values()), *gradients]


def rows(batch: int) -> Tensor:
    return torch.randn(batch, 8)


def images(batch: int) -> Tensor:
    return torch.randn(batch, 3, 8, 8)


def sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=0.01)


def adam(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 0.01)


@pytest.mark.parametrize(
    ("make", "example", "optimizer", "before"),
    [
        (Net, rows, sgd, False),
        (Net, rows, adam, True),
        (Convolutions, images, adam, False),
        pytest.param(Net, rows, sgd, True, marks=pytest.mark.long),
        pytest.param(Net, rows, adam, False, marks=pytest.mark.long),
        pytest.param(Convolutions, images, sgd, False, marks=pytest.mark.long),
        pytest.param(Convolutions, images, sgd, True, marks=pytest.mark.long),
        pytest.param(Convolutions, images, adam, True, marks=pytest.mark.long),
    ],
)
def test_training(
    make: Callable[[], nn.Module], example: Callable[[int], Tensor], optimizer: Callable[..., torch.optim.Optimizer], before: bool
) -> None:
    losses, state = train(make, optimizer, example, lazily=True, before=before)
    expected, end = train(make, optimizer, example, lazily=False, before=before)
    np.testing.assert_allclose(losses, expected, rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(state, end, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-4)
    stats = disc.lazy.stats()
    assert stats.hits >= len(SIZES) - 5, stats
    assert not stats.refused, stats


def test_gradients_are_clipped() -> None:
    losses, state = train(Net, sgd, rows, lazily=True, clip=True)
    expected, end = train(Net, sgd, rows, lazily=False, clip=True)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for ours, theirs in zip(state, end, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    assert disc.lazy.stats().hits


def repeated(function: Callable[[int], object], times: int = 5) -> list[object]:
    """What the function gives with the numbers of its calls, lazily, after checking it against PyTorch."""
    expected = [pytree.tree_map(_numbers, function(n)) for n in range(times)]
    with disc.lazy(strict=True):
        found = [pytree.tree_map(_numbers, function(n)) for n in range(times)]
    for one, other in zip(found, expected, strict=True):
        for ours, theirs in zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True):
            if isinstance(theirs, Tensor | np.ndarray):
                torch.testing.assert_close(torch.as_tensor(ours), torch.as_tensor(theirs), rtol=1e-4, atol=1e-5)
            else:
                assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5) if isinstance(theirs, float) else ours == theirs
    return found


def _numbers(value: object) -> object:
    return torch.as_tensor(value.detach().numpy().copy()) if isinstance(value, torch.Tensor) else value


X = torch.linspace(-1, 1, 12).view(3, 4)
W = torch.linspace(0, 2, 16).view(4, 4)


@pytest.mark.parametrize("function", [
    lambda n: torch.tanh(X @ W + n % 2),
    lambda n: (X[: 2 + n % 2] @ W).softmax(-1).max(-1),
    lambda n: torch.cat([X, X + 1]).view(-1, 2).sum(0, keepdim=True).expand(3 + n, 2),
    lambda n: torch.where(X > 0.1, X, -X).t().contiguous(),
    lambda n: [each * 2 for each in (X @ W).split(2, -1)],
    lambda n: (X @ W).mean().item(),
    lambda n: {"a": (X @ W)[1], "b": X.sum()},
    lambda n: [len(X @ W), (X @ W).shape[1], (X * 2).dim(), (X + 1).dtype == torch.float32, (X @ W).size(-1)],
    lambda n: [row.sum() for row in X @ W],
    lambda n: (X @ W).view((X @ W).shape[0], 2, -1).permute(1, 0, 2),
    lambda n: "positive" if (X @ W).sum() > 0 else "negative",
    lambda n: np.asarray(X @ W).tolist(),
    lambda n: torch.nonzero(X @ W > 0.5) * 2,
    lambda n: (X @ W)[(X @ W) > 0.5].sum(),
    lambda n: X.numpy() + 1,
    lambda n: f"{(X @ W).sum():.2f} {(X * 0).sum()}",
    lambda n: torch.stack([X.sum(), (X @ W).sum()]).tolist(),
    lambda n: F.dropout(X, 0.0, True) + X.to(torch.float64).sum().float(),
    lambda n: (X.double() @ W.double()).to(torch.bfloat16).float(),
    lambda n: torch.einsum("ij,jk->ik", X, W).abs_().add_(1).sqrt_(),
])  # fmt: skip
def test_expressions(function: Callable[[int], object]) -> None:
    repeated(function)


def test_values_are_computed_when_they_are_read() -> None:
    with disc.lazy():
        for _ in range(3):
            y = torch.tanh(X @ W)
            y.sum().item()
        y = torch.tanh(X @ W)
        assert type(y) is LazyTensor and isinstance(y, torch.Tensor) and torch.is_tensor(y)
        assert y._value is None and y.shape == (3, 4) and y.dtype is torch.float32 and y._value is None
        z = y.sum()
        assert disc.lazy.stats().hits == 1
        assert z.item() == pytest.approx((X @ W).tanh().sum().item(), rel=1e-5)
        assert disc.lazy.stats().hits == 2
    torch.testing.assert_close(y + 0, torch.tanh(X @ W))
    assert type(y + 0) is torch.Tensor


def test_what_is_made_of_sizes_alone_is_what_pytorch_makes_now() -> None:
    def made(count: int) -> Tensor:
        return torch.zeros(count) + torch.full((count,), 2) + torch.ones((1, count), dtype=torch.int32, device="cpu")

    for count in (4, 4, 4, 3):
        with disc.lazy():
            found = made(count)
            leaf = torch.zeros(count, requires_grad=True)
            (leaf * 2).sum().backward()
        assert found.tolist() == [[3.0] * count] and leaf.grad is not None and leaf.grad.tolist() == [2.0] * count
    assert disc.lazy.stats().hits
    with torch.device("meta"), disc.lazy():
        assert torch.zeros(4).is_meta
    with disc.lazy():
        assert torch.zeros(4).sum().item() == 0
        torch.set_default_dtype(torch.float64)
        try:
            assert torch.zeros(4).dtype is torch.float64 and torch.zeros(4).add(1).tolist() == [1.0] * 4
        finally:
            torch.set_default_dtype(torch.float32)


def test_other_sizes_need_no_other_program() -> None:
    def step(batch: int) -> float:
        return (torch.ones(batch, 4) @ W).view(batch, 2, 2).relu().sum().item()

    of_a_row = W.sum(0).relu().sum().item()
    with disc.lazy(strict=True):
        for batch in (5, 5, 7, 9, 3, 2, 11):
            assert step(batch) == pytest.approx(batch * of_a_row, rel=1e-4)
    assert disc.lazy.stats().compiles == 1, disc.lazy.stats()
    assert disc.lazy.stats().hits == 5


def test_a_batch_that_is_written_may_have_other_sizes() -> None:
    """Its sizes were constants, as those of weights are: each size had a program of its own, and none was run."""

    def step(batch: int) -> float:
        x = torch.ones(batch, 4)
        x[:, 0] = 2
        return (x[:, :-1] @ W[1:]).relu().sum().item()

    wanted = [step(batch) for batch in (5, 6, 7, 9, 3)]
    with disc.lazy(strict=True):
        found = [step(batch) for batch in (5, 6, 7, 9, 3)]
    assert found == pytest.approx(wanted, rel=1e-4)
    assert disc.lazy.stats().compiles == 1 and disc.lazy.stats().hits >= 2, disc.lazy.stats()


def test_a_number_of_heads_that_a_batch_is_equal_to() -> None:
    """It was taken for the batch, and each batch had a program, in which PyTorch computed some ops."""

    def step(batch: int) -> float:
        x = torch.arange(batch * 12.0).view(batch, 3, 4) / 50
        heads = x.view(batch, 3, 2, 2).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(batch, 3, 4).sum().item()

    batches = (3, 5, 2, 4, 2, 6)
    wanted = [step(batch) for batch in batches]
    with warnings.catch_warnings(), disc.lazy(strict=True):
        warnings.simplefilter("error")
        assert [step(batch) for batch in batches] == pytest.approx(wanted, rel=1e-4)
    assert disc.lazy.stats().compiles == 1 and disc.lazy.stats().hits >= 3, disc.lazy.stats()


EQUAL_TO_A_SIZE: dict[str, Callable[[Tensor], Tensor]] = {
    "operator": lambda x: (x - 1) ** 2,
    "function": lambda x: torch.pow(x, 2),
    "base": lambda x: 2**x,
    "method": lambda x: x.pow(exponent=2) + x.clone().pow_(2),
    "float_power": lambda x: x.float_power(2).float(),
    "matrix_power": lambda x: torch.linalg.matrix_power(x.T @ x, 2),
    "step": lambda x: x[:, ::2],
    "named dim": lambda x: x.reshape(-1, 2, 2).softmax(dim=2),
}


@pytest.mark.parametrize("name", EQUAL_TO_A_SIZE)
def test_numbers_that_are_equal_to_a_size(name: str) -> None:
    """They were taken for it: where a batch of 2 came first, squares ran in PyTorch, with a warning of its own."""
    function, of = EQUAL_TO_A_SIZE[name], {size: torch.randn(size, 4) for size in (2, 3, 5)}

    def gradient(size: int) -> Tensor:
        w = W[:, :4].clone().requires_grad_()
        (function(of[size] @ w) * 3).sum().backward()
        assert w.grad is not None
        return w.grad.clone()

    expected = {size: gradient(size) for size in of}
    with warnings.catch_warnings(), disc.lazy(strict=True):
        warnings.simplefilter("error")
        for size in (2, 2, 2, 3, 5, 2):
            torch.testing.assert_close(gradient(size) + 0, expected[size], rtol=1e-4, atol=1e-4)
    assert disc.lazy.stats().hits >= 3, disc.lazy.stats()


def test_a_dilation_that_a_batch_is_equal_to() -> None:
    layer, last = nn.Conv1d(3, 4, 3, dilation=4), nn.Linear(4, 1)

    def step(batch: int) -> tuple[float, Tensor]:
        layer.weight.grad = None
        y = last(torch.relu(layer(F.pad(torch.full((batch, 3, 8), 0.5), (8, 0)))).transpose(1, 2))
        y.square().mean().backward()
        assert layer.weight.grad is not None
        return y.sum().item(), layer.weight.grad.clone()

    expected = {batch: step(batch) for batch in (4, 5)}
    with warnings.catch_warnings(), disc.lazy(strict=True):
        warnings.simplefilter("error")
        found = [(batch, step(batch)) for batch in (4, 4, 4, 5, 4)]
    for batch, ours in found:
        torch.testing.assert_close(ours, expected[batch], rtol=1e-4, atol=1e-5)
    assert disc.lazy.stats().compiles, disc.lazy.stats()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [(torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}), (torch.optim.SGD, {"maximize": True}),
     (torch.optim.AdamW, {}), (torch.optim.Adam, {"amsgrad": True}), (torch.optim.RMSprop, {"centered": True})],
    ids=["sgd", "maximize", "adamw", "amsgrad", "rmsprop"],
)  # fmt: skip
def test_a_learning_rate_by_a_schedule(kind: type[torch.optim.Optimizer], options: dict[str, object], foreach: bool) -> None:
    """It is another number in every step, and so is what is made of it, as `1 - lr * weight_decay`."""

    def losses(lazily: bool) -> list[float]:
        torch.manual_seed(0)
        model, found = Net(), list[float]()
        optimizer = kind(model.parameters(), lr=0.05, foreach=foreach, **options)  # pyright: ignore[reportCallIssue]
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        with disc.lazy(strict=True) if lazily else contextlib.nullcontext():
            for step in range(9):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(rows(6)), torch.randint(5, (6,))) * (1 + 0.1 * step)
                loss.backward()
                optimizer.step()
                schedule.step()
                found.append(loss.item())
        return found

    np.testing.assert_allclose(losses(lazily=True), losses(lazily=False), rtol=1e-4)
    stats = disc.lazy.stats()
    assert stats.hits >= 4, stats
    assert stats.compiles <= 3, stats


def test_numbers_that_change() -> None:
    """Those that can only be computed with; others make programs of their own. Signs of zeros and numbers out of range are kept."""
    integers, doubles = torch.arange(3), torch.ones(3, dtype=torch.float64)
    numbers = (0.5, 0.25, -3.0, 0.0, -0.0, 1.5, 1e30, 7.25, 0.125)

    def step(n: int) -> list[Tensor]:
        f = numbers[n]
        x = X * f
        return [
            x, X / 3 + f, f - X, torch.mul(f, X), torch.add(X, W[0], alpha=f), X.sub(X * 2, alpha=f), torch.lerp(X, X + 1, f), x.sum() * f,
            torch.addcmul(X, X, X, value=f), torch.addcdiv(X, X, X.abs() + 1, value=f), 1 / (X * f), doubles * f, integers * f,
            (X.bfloat16() * f).float(), torch.div(X, 0.5 + abs(f), rounding_mode="floor"), *FUNCTIONS._foreach_mul([X, W], f),
            *FUNCTIONS._foreach_addcmul([X], [X], [X], f),
        ]  # fmt: skip

    repeated(step, len(numbers))
    assert disc.lazy.stats().hits


def test_a_number_out_of_range_is_refused_as_by_pytorch() -> None:
    with disc.lazy():
        for f in (1.0, 2.0, 3.0, 4.0):
            torch.add(X, X, alpha=f).sum().item()
        assert disc.lazy.stats().hits
        with pytest.raises(RuntimeError, match="overflow"):
            torch.add(X, X, alpha=1e300).sum().item()


def test_what_is_written_is_written() -> None:
    counter, table = torch.zeros(3), torch.zeros(4, 3)

    def step(n: int) -> list[Tensor]:
        counter.add_(1).mul_(2)
        table[1 + n % 2] = counter
        view = table[0]
        view += counter.sum()
        return [counter * 2, table.sum(0)]

    def both(n: int) -> list[Tensor]:
        if n == 0:
            counter.zero_()
            table.zero_()
        return [*step(n), counter, table]

    repeated(both, 8)
    assert disc.lazy.stats().hits


def test_views_share_memory() -> None:
    x = torch.zeros(4, 4)

    def step(n: int) -> list[Tensor]:
        if n == 0:
            x.zero_()
        y = x * 2 + n
        rows, part = y.view(2, 8), x[1]
        total = (rows + 1).sum()
        total.item()
        rows.add_(1)  # seen through y
        part.add_(1)  # and this through x
        return [y, x, rows, total]

    repeated(step, 6)


def test_inputs_that_share_memory() -> None:
    base = torch.zeros(6)
    left, right = base[:4], base[2:]

    def step(n: int) -> list[Tensor]:
        if n == 0:
            base.zero_()
        left.add_(1)
        right.mul_(2)
        return [left + 0, right + 0, base + 0]

    repeated(step, 6)


def test_averages_of_weights() -> None:
    """`p` and `p.data` are one memory, and so is what `state_dict` gives: such programs were left to PyTorch."""

    def averaged(*, lazily: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 5))
        mean, kept = copy.deepcopy(model).requires_grad_(requires_grad=False), model.state_dict()
        of_all, steps = mean.state_dict(), torch.optim.SGD(model.parameters(), 0.05)
        with disc.lazy(strict=True) if lazily else contextlib.nullcontext():
            for batch in SIZES:
                steps.zero_grad()
                loss = F.cross_entropy(model(rows(max(batch, 2))), torch.randint(5, (max(batch, 2),)))
                loss.backward()
                steps.step()
                for mine, theirs in zip(mean.parameters(), model.parameters(), strict=True):
                    mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)
                of_all["1.running_mean"].lerp_(kept["1.running_mean"], 0.1)
                loss.item()
        return [each.detach().clone() for each in (*mean.state_dict().values(), *kept.values())]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected, found = averaged(lazily=False), averaged(lazily=True)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert disc.lazy.stats().hits >= 4 and not disc.lazy.stats().refused, disc.lazy.stats()


def test_statistics_that_are_read_in_another_tensor() -> None:
    """A batch norm writes its statistics without a word to PyTorch's versions."""
    mean, variance, x = torch.zeros(8), torch.ones(8), torch.randn(6, 8)
    aliases = mean.detach(), variance.detach()

    def step(n: int) -> list[Tensor]:
        if n == 0:
            mean.zero_()
            variance.fill_(1)
        F.batch_norm(x + n, mean, variance, training=True)
        return [each * 2 for each in aliases]

    repeated(step, 6)


def test_gradients_add_up() -> None:
    w = nn.Parameter(W.clone())

    def step(n: int) -> list[Tensor]:
        if n % 3 == 0:
            w.grad = None
        loss = (X @ w).tanh().sum()
        loss.backward()
        assert w.grad is not None
        return [loss, w.grad]

    repeated(step, 12)


def test_a_graph_is_freed_once() -> None:
    w = nn.Parameter(W.clone())
    with disc.lazy():
        for _ in range(4):
            loss = (X @ w).tanh().sum()
            loss.backward()
            disc.lazy.flush()
            assert loss.requires_grad
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
    assert disc.lazy.stats().hits


def test_what_is_written_while_it_is_pending() -> None:
    w = nn.Parameter(W.clone())

    def step(n: int) -> list[object]:
        if n == 0:
            with torch.no_grad():
                w.copy_(W)
        y = X @ w
        with torch.no_grad():
            w.mul_(0.5)
        w.data.add_(1)  # not recorded: what is pending comes first
        return [y.detach(), (X @ w).detach(), w.sum().item()]

    repeated(step)


def test_gradients_by_function() -> None:
    w = nn.Parameter(W.clone())
    repeated(lambda n: list(torch.autograd.grad((X @ w).tanh().sum(), [w])))


def test_gradients_twice() -> None:
    w = nn.Parameter(W.clone())

    def step(n: int) -> list[Tensor]:
        (first,) = torch.autograd.grad((X @ w).tanh().sum(), [w], create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), [w])
        return [first, second]

    repeated(step)


def test_no_grad_and_autocast_are_kept() -> None:
    w = nn.Parameter(W.clone())

    def step(n: int) -> list[object]:
        with torch.no_grad():
            a = X @ w
        with torch.autocast("cpu", torch.bfloat16):
            b = X @ W
        c = X @ w
        return [a.requires_grad, c.requires_grad, b.dtype is torch.bfloat16, a, c.detach()]

    repeated(step)


def test_a_loss_by_sizes_that_is_read_before_its_gradients() -> None:
    w = nn.Parameter(W.clone())

    def step(n: int) -> list[object]:
        w.grad = None
        x = torch.full((3 + n % 3, 4), 0.5)
        loss = F.mse_loss(x @ w, x)
        value = loss.item()
        loss.backward()
        return [value, w.grad]

    repeated(step, 6)
    assert not disc.lazy.stats().refused, disc.lazy.stats()


def test_a_trace_ends_where_gradients_are_off_and_autocast_is_on() -> None:
    """What was on where a call was made counts: of an optimizer's step and the forward pass behind it, and of a product in f32."""
    w = nn.Parameter(W.clone())
    optimizer = torch.optim.SGD([w], 0.1)

    def step(n: int) -> list[object]:
        if n == 0:
            with torch.no_grad():
                w.copy_(W)
            optimizer.zero_grad()
        y = X @ w
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            disc.lazy.flush()
        loss = y.sin().mean()
        before = None if w.grad is None else w.grad.clone()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return [loss.detach(), y.dtype is torch.float32, before]

    repeated(step, 10)


def test_checks_of_factorizations() -> None:
    scale = nn.Parameter(torch.tensor(0.5))

    def step(n: int) -> list[object]:
        scale.grad = None
        loss = torch.linalg.cholesky(scale.exp() * (X.T @ X) + torch.eye(X.shape[1])).diagonal().log().sum()
        loss.backward()
        return [loss.item(), scale.grad]

    repeated(step)
    with disc.lazy(), pytest.raises(RuntimeError, match="not positive-definite"):
        torch.linalg.cholesky((scale - 9.5).exp() * 0 - torch.eye(X.shape[1])).diagonal().log().sum().item()


def test_custom_functions_see_tensors() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            assert type(x) is Tensor
            return x * 2

        @staticmethod
        def backward(ctx: object, *grads: Tensor) -> Tensor:
            return grads[0] * 2

    w = nn.Parameter(W.clone())

    def step(n: int) -> list[object]:
        w.grad = None
        Double.apply(torch.tanh(X @ w)).sum().backward()  # pyright: ignore[reportOptionalMemberAccess]
        return [w.grad]

    repeated(step)
    with disc.lazy():
        pending = torch.tanh(X @ w)
    w.grad = None
    Double.apply(pending).sum().backward()  # pyright: ignore[reportOptionalMemberAccess]
    torch.testing.assert_close(w.grad, torch.autograd.grad(2 * torch.tanh(X @ w).sum(), w)[0])


def test_errors_are_pytorchs() -> None:
    with disc.lazy():
        for _ in range(4):
            torch.tanh(X @ W).sum().item()
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.tanh(X @ torch.ones(3, 3)).sum().item()
        assert torch.tanh(X @ W).sum().item() == pytest.approx(torch.tanh(X @ W).sum().item())


def test_an_exception_in_the_block_loses_nothing() -> None:
    total = torch.zeros(3)
    with pytest.raises(ValueError, match="mine"), disc.lazy():
        for n in range(6):
            total.add_(1)
            total.mul_(1)
            disc.lazy.flush()
            if n == 5:
                total.add_(1)
                raise ValueError("mine")
    assert total.tolist() == [7.0] * 3


def test_threads_record_for_themselves() -> None:
    found: dict[int, list[float]] = {}

    def work(number: int) -> None:
        with disc.lazy():
            found[number] = [torch.tanh(X * number @ W).sum().item() for _ in range(5)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for number, values in found.items():
        assert values == pytest.approx([torch.tanh(X * number @ W).sum().item()] * 5, rel=1e-5)


def test_a_program_that_never_repeats_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from disc.frontend.lazy import run_ends

    monkeypatch.setattr(run_ends, "FRUITLESS", 20)
    with pytest.warns(UserWarning, match="none of which came twice") as caught, disc.lazy():
        found = [X.clamp(max=n / 40).sum().item() for n in range(60)]  # not a number that may change from call to call
    assert found == pytest.approx([X.clamp(max=n / 40).sum().item() for n in range(60)])
    assert len(caught) == 1


def test_native_code_gets_tensors() -> None:
    """Functions that PyTorch does not hand over: transforms, the engine of gradients, DLPack, copies and files, our own programs."""
    w = nn.Parameter(W.clone())
    exe = disc.compile(nn.Tanh(), (X,))

    def step(n: int) -> list[object]:
        w.grad = None
        y = X @ w
        torch.autograd.backward(y.sum())
        copied = copy.deepcopy(nn.Linear(2, 2))
        file = io.BytesIO()
        torch.save(y.detach() * 2, file)
        file.seek(0)
        return [
            torch.vmap(lambda row: row * 2)(y.detach()), torch.func.grad(lambda x: (x * y.detach()).sum())(X), w.grad,
            torch.utils.dlpack.from_dlpack(y.detach() + 1), np.asarray(y.detach()), copied.weight.requires_grad, torch.load(file),
            exe(y.detach() * 1), torch.func.functional_call(nn.Linear(4, 4), {"weight": W, "bias": W[0]}, (X,)),
        ]  # fmt: skip

    repeated(step)


def test_lists_without_lazy_tensors_stay_themselves() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x + x, x * x

    exe = disc.compile(Twice(), (X,))
    with disc.lazy():
        X.sum()
    out = [torch.empty_like(X), torch.empty_like(X)]
    assert exe(X, out=out) is out
    assert torch.equal(out[1], X * X)


def test_hooks_run() -> None:
    w = nn.Parameter(W.clone())
    seen: list[float] = []

    def step(n: int) -> list[object]:
        w.grad = None
        y = X @ w
        y.register_hook(lambda gradient: seen.append(gradient.sum().item()))
        y.sum().backward()
        return [w.grad, len(seen) > n]

    repeated(step)


def test_a_late_error_names_the_line() -> None:
    with disc.lazy():
        for _ in range(3):
            torch.tanh(torch.ones(2, 4) @ W).sum().item()
        y = torch.tanh(torch.ones(2, 3) @ W).sum()
        with pytest.raises(RuntimeError, match="cannot be multiplied") as raised:
            y.item()
        assert "test_lazy_programs.py:" in raised.value.__notes__[0]
        with pytest.raises(RuntimeError, match="was not computed"):
            y.item()


def test_misuse() -> None:
    with pytest.raises(DiscError, match="no option treads"):
        disc.lazy.enable(treads=2)
    disc.lazy.enable()
    with pytest.raises(DiscError, match="on already"):
        disc.lazy.enable()
    with disc.lazy():  # within: the same recorder
        (X + 1).sum().item()
    disc.lazy.disable()
    disc.lazy.disable()


def test_draws_come_in_the_order_of_eager() -> None:
    """Some are at once, as they take no tensors, and others are recorded."""
    weights = torch.linspace(0.1, 1, 12).view(3, 4)

    def step() -> list[Tensor]:
        chosen = torch.multinomial(weights * 2, 1)
        noise = torch.randn(3, 1)
        mask = nn.functional.dropout(weights, 0.5)
        started = torch.empty(4).uniform_()
        return [chosen + noise, mask * started, torch.rand_like(weights), torch.randperm(5) + 1]

    torch.manual_seed(0)
    expected = [step() for _ in range(6)]
    torch.manual_seed(0)
    found = list[list[Tensor]]()
    for _ in expected:
        with disc.lazy(random="eager"):
            found.append(step())
    torch.testing.assert_close(found, expected)
    assert disc.lazy.stats().hits, disc.lazy.stats()


def test_sizes_that_depend_on_data_are_asked_for() -> None:
    """The trace ends behind what has such sizes, and what comes behind that is compiled."""
    weight, before = nn.Parameter(torch.linspace(-1, 1, 16).view(4, 4)), 0
    for number in range(14):
        x, found = rows(3 + number % 5)[:, :4] * (1 + number % 3), list[tuple[float, object]]()
        for lazily in (False, True):
            before = disc.lazy.stats().uncompiled
            with disc.lazy() if lazily else contextlib.nullcontext():
                h = (x @ weight).tanh()
                chosen = h[h > 0.1]
                loss = -chosen.mean() if chosen.numel() else h.sum() * 0
                loss = loss + (h.square().mean() if chosen.dim() == 1 and chosen.is_floating_point() else 0)
                loss.backward()
                found.append((loss.item(), weight.grad))
            weight.grad = None
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert disc.lazy.stats().uncompiled == before, disc.lazy.stats()


def test_hooks_of_the_function_that_a_gradient_comes_by() -> None:
    """It is the value's own, though a loss is computed of that in the same trace."""
    weight = nn.Parameter(torch.linspace(-1, 1, 16).view(4, 4))
    for number in range(6):
        x, found = rows(3 + number % 2)[:, :4], list[list[float]]()
        for lazily in (False, True):
            seen = list[float]()
            with disc.lazy() if lazily else contextlib.nullcontext():
                h = (x @ weight).tanh()
                loss = h.square().sum()
                function: Any = h.grad_fn
                function.register_hook(lambda given, gone, seen=seen: seen.append(gone[0].sum().item()))
                loss.backward()
                seen.append(loss.item())
            weight.grad = None
            found.append(seen)
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert disc.lazy.stats().hits, disc.lazy.stats()
