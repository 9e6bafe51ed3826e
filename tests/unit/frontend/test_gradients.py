"""Decompositions of gradients against PyTorch's kernels: plain functions on tensors, so nothing is compiled."""

from __future__ import annotations

import itertools

import pytest
import torch

from disc.frontend import convolution_gradients
from disc.frontend.convolution_gradients import convolution_backward
from disc.frontend.loss_gradients import negative_log_likelihood_backward
from disc.frontend.pool_gradients import average_backward, maximum_backward
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
        torch.testing.assert_close(maximum_backward(*arguments), aten.max_pool2d_with_indices_backward(*arguments))
        for counted, divisor in ((True, None), (False, None), (True, 5)):
            average = (x, *numbers, ceil_mode, counted, divisor)
            gradient = torch.randn_like(aten.avg_pool2d(*average))
            torch.testing.assert_close(average_backward(gradient, *average), aten.avg_pool2d_backward(gradient, *average))


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
