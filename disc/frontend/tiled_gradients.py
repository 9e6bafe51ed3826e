"""Gradients of convolution kernels in tiles, by an op of this compiler, which is PyTorch's, too, for graphs that are not compiled."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from disc.targets.tiles import WINDOWS, should_tile
from disc.targets.x86_thresholds import CPU

_OPS = torch.library.Library("disc", "FRAGMENT")
_OPS.define("kernel_gradient(Tensor source, Tensor gradient, int[] window, int[] padding) -> Tensor")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def may_tile(source: Tensor, weight: Tensor) -> bool:
    """Whether the runtime has tiles for the gradient of a kernel [outputs, channels, ...] by strides of 1, and it should use them."""
    outputs, channels, *window = weight.shape
    sizes = all(isinstance(size, int) for size in weight.shape) and tuple(window) in WINDOWS
    floats = source.dtype == weight.dtype and weight.dtype in DTYPES
    on_cpu = source.device.type == "cpu"  # no function of the runtime runs on a GPU
    return sizes and floats and on_cpu and should_tile(channels, outputs, CPU.fusion)


def tiled_gradient(source: Tensor, gradient: Tensor, weight: Tensor, padding: Sequence[int]) -> Tensor:
    """The gradient of `weight`, where `may_tile`. Sums are those of f32, and rounded once."""
    return torch.ops.disc.kernel_gradient(source, gradient, weight.shape[2:], padding)


def _kernel_gradient(source: Tensor, gradient: Tensor, window: Sequence[int], padding: Sequence[int]) -> Tensor:
    weight = _kernel_shape(source, gradient, window, padding)  # its values are not read
    ones, zeros, wanted = [1, 1], [0, 0], [False, True, False]
    return torch.ops.aten.convolution_backward(gradient, source, weight, None, ones, list(padding), ones, False, zeros, 1, wanted)[1]


def _kernel_shape(source: Tensor, gradient: Tensor, window: Sequence[int], padding: Sequence[int]) -> Tensor:
    return source.new_empty(gradient.shape[1], source.shape[1], *window)


_OPS.impl("kernel_gradient", _kernel_gradient, "CPU")
_OPS.impl("kernel_gradient", _kernel_shape, "Meta")
