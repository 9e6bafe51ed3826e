"""Decompositions of gradients against PyTorch's kernels: plain functions on tensors, so nothing is compiled."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from disc.frontend import convolution_gradients
from disc.frontend.convolution_gradients import convolution_backward
from disc.frontend.loss_gradients import negative_log_likelihood_backward
from disc.frontend.pool_gradients import TABLE, average_backward, from_windows, maximum_backward
from disc.frontend.windows import maximum_with_indices_2d

aten = torch.ops.aten
SPECIAL = (float("nan"), float("-inf"))


@pytest.mark.parametrize("most_per_image", [0, 1 << 17], ids=["images-together", "image-by-image"])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions(transposed: bool, most_per_image: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strides above, at and below the kernel's size, with remainders, padding beyond the windows, holes, groups, one dim and two."""
    monkeypatch.setattr(convolution_gradients, "MOST_PER_IMAGE", most_per_image)
    for stride, padding, dilation, groups, kernel, rank in itertools.product((1, 2, 3), (0, 1), (1, 2, 3), (1, 2), (1, 2, 3, 4), (1, 2)):
        if transposed and padding > dilation * (kernel - 1):
            continue
        x = torch.randn(3, 4, *(11, 14)[:rank])
        weight = torch.randn(*((4, 6 // groups) if transposed else (6, 4 // groups)), *[kernel] * rank)
        settings = ([stride] * rank, [padding] * rank, [dilation] * rank, transposed, [0] * rank, groups)
        gradient = torch.randn_like(aten.convolution(x, weight, None, *settings))
        arguments = (gradient, x, weight, [gradient.shape[1]], *settings, [True] * 3)
        for ours, expected in zip(convolution_backward(*arguments), aten.convolution_backward(*arguments), strict=True):
            assert ours is not None
            torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4, msg=lambda text, case=(kernel, settings): f"{case}: {text}")


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pools(ceil_mode: bool) -> None:
    """Of equal values the first is the maximum, of NaN the last; -inf is one where all are."""
    for kernel, stride, padding, dilation in itertools.product((1, 2, 3, 5), (1, 2, 3), (0, 1, 2), (1, 2)):
        if 2 * padding > kernel:
            continue
        x = torch.randint(-3, 4, (2, 3, 11, 14)).float()
        x.view(-1)[::37], x.view(-1)[5::41], x[0, 0] = *SPECIAL, SPECIAL[1]
        numbers = ([kernel] * 2, [stride] * 2, [padding] * 2)
        values, places = aten.max_pool2d_with_indices(x, *numbers, [dilation] * 2, ceil_mode)
        ours = maximum_with_indices_2d(x, *numbers, [dilation] * 2, ceil_mode)
        torch.testing.assert_close(ours, (values, places), equal_nan=True, rtol=0, atol=0)
        arguments = (torch.randn_like(values), x, *numbers, [dilation] * 2, ceil_mode, places)
        expected = aten.max_pool2d_with_indices_backward(*arguments)
        torch.testing.assert_close(maximum_backward(*arguments), expected)
        if dilation == 1:
            torch.testing.assert_close(from_windows(*arguments[:2], *numbers, places), expected)
        for counted, divisor in ((True, None), (False, None), (True, 5)):
            average = (x, *numbers, ceil_mode, counted, divisor)
            gradient = torch.randn_like(aten.avg_pool2d(*average))
            torch.testing.assert_close(average_backward(2, gradient, *average), aten.avg_pool2d_backward(gradient, *average))


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pools_of_three_dims(ceil_mode: bool) -> None:
    x = torch.randn(2, 3, 7, 5, 8)
    for stride, padding, counted, divisor in (
        ([2, 1, 3], [1, 0, 1], True, None), ([], [0], True, None), ([3], [1, 1, 0], False, None), ([1], [1], True, 5),
    ):  # fmt: skip
        average = (x, [3, 2, 2], stride, padding, ceil_mode, counted, divisor)
        gradient = torch.randn_like(aten.avg_pool3d(*average))
        torch.testing.assert_close(average_backward(3, gradient, *average), aten.avg_pool3d_backward(gradient, *average))


def scatters(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> bool:
    """Whether the function's trace, by our decompositions, has a scatter."""
    traced = make_fx(function, decomposition_table=TABLE, tracing_mode="symbolic")(*inputs)  # pyright: ignore[reportArgumentType]
    return any("scatter" in str(node.target) or "index_put" in str(node.target) for node in traced.graph.nodes)


def test_indices_must_be_those_of_the_pool() -> None:
    """Indices from elsewhere may point outside their windows; eager adds there too."""

    def pooled(kernel: int, moved: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def function(x: torch.Tensor) -> torch.Tensor:
            values, places = aten.max_pool2d_with_indices(x, [3, 3], [2])
            places = places + moved if moved else places.detach()
            return aten.max_pool2d_with_indices_backward(values, x, [kernel] * 2, [2, 2], [0], [1, 1], False, places)

        return function

    def given(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return aten.max_pool2d_with_indices_backward(
            torch.ones_like(places, dtype=x.dtype), x, [3, 3], [2, 2], [0, 0], [1, 1], False, places
        )

    x = torch.randn(1, 2, 7, 9)
    assert not scatters(lambda x: torch.autograd.grad(torch.nn.functional.max_pool2d(x, 3, 2).sum(), x)[0], x.requires_grad_())
    x = x.detach()
    assert not scatters(pooled(3, 0), x) and scatters(pooled(3, 1), x) and scatters(pooled(2, 0), torch.randn(1, 2, 7, 9)[..., :7])
    assert scatters(given, x, torch.zeros(1, 2, 3, 4, dtype=torch.int64))


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("shape", [(5, 7), (7,), (2, 7, 3, 4)])
def test_losses(shape: tuple[int, ...], reduction: int) -> None:
    """With and without weights of classes; one target is ignored."""
    x = torch.randn(shape)
    target = torch.randint(7, {1: (), 2: (5,), 4: (2, 3, 4)}[len(shape)])
    if target.dim():
        target.view(-1)[0] = -100
    forward, backward = (getattr(aten, f"nll_loss{'2d' if len(shape) == 4 else ''}_{way}") for way in ("forward", "backward"))
    for weight in (None, torch.rand(7)):
        loss, total = forward(x, target, weight, reduction, -100)
        arguments = (torch.randn_like(loss), x, target, weight, reduction, -100, total)
        torch.testing.assert_close(negative_log_likelihood_backward(*arguments), backward(*arguments))
