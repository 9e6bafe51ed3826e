"""Convolutions in groups of which the call decides how many there are, and transposed ones by kernels of dynamic channels. Shapes stay
symbolic.

    channels = x.shape[1]
    F.conv2d(x, kernel.expand(channels, 1, 3, 3), groups=channels)        a filter of each channel, which blurs, or takes local means

The number of groups of an op of the IR is a constant. So a group is a dim of a batched product of the kernels with what their windows meet;
where a group is one channel and one filter of it, of a sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from disc.frontend.call import arguments_by_name
from disc.frontend.convolution_gradients import Sliding, what_windows_meet
from disc.frontend.eager_strides import Decomposition
from disc.frontend.layer_formulas import wide

aten = torch.ops.aten


def has_dynamic_groups(node: fx.Node) -> bool:
    """Whether a call of a graph is one of these convolutions, which no rule takes."""
    given = arguments_by_name(node)
    weight = given["weight"]
    assert isinstance(weight, fx.Node)
    return isinstance(given["groups"], fx.Node) or (bool(given["transposed"]) and not _are_known(weight.meta["val"].shape[:2]))


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """x: [batch, channels, ...]; weight: [outputs, channels / groups, ...], if transposed [channels, outputs / groups, ...]. NotImplemented
    for all others, and where sizes of the kernel are dynamic."""
    count = weight.dim() - 2
    stride, padding, dilation, output_padding = (list(each) * (count // len(each)) for each in (stride, padding, dilation, output_padding))
    other = isinstance(groups, int) and not (transposed and not _are_known(weight.shape[:2]))
    if other or not _are_known((*weight.shape[2:], *output_padding)):
        return NotImplemented
    if transposed:
        x, weight = _spread(x, weight, stride, padding, dilation, output_padding), _turned(weight, groups)
        stride, padding = [1] * count, [0] * count
    if isinstance(groups, int):
        return aten.convolution.default(x, weight, bias, stride, padding, dilation, False, [0] * count, groups)
    result = _in_groups(x, weight, Sliding(stride, padding, dilation, groups))
    return result if bias is None else result + bias.reshape([1, bias.shape[0], *[1] * count])


def _are_known(sizes: Sequence[int]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _in_groups(x: Tensor, weight: Tensor, sliding: Sliding) -> Tensor:
    batch, groups = x.shape[0], sliding.groups
    outputs, channels, *kernel = weight.shape
    padded = F.pad(x, [p for pad in reversed(sliding.padding) for p in (pad, pad)]) if any(sliding.padding) else x
    reach = [d * (size - 1) + 1 for d, size in zip(sliding.dilation, kernel, strict=True)]
    space = [(size - r) // step + 1 for size, r, step in zip(padded.shape[2:], reach, sliding.stride, strict=True)]
    met = what_windows_meet(padded, kernel, space, sliding, lead=2)  # [batch, channels, kernel..., positions...]
    if isinstance(channels, int) and channels == 1 and statically_known_true(outputs == groups):
        products = wide(met) * wide(weight).reshape([outputs, *kernel, *[1] * sliding.rank])
        return products.sum(list(range(2, 2 + sliding.rank))).to(x.dtype)
    columns = channels * math.prod(kernel)
    rows = weight.reshape(groups, outputs // groups, columns)
    return torch.matmul(rows, met.reshape(batch, groups, columns, math.prod(space))).reshape(batch, outputs, *space)


# --- transposed ones ------------------------------------------------------------------------------------------------------------


def _turned(weight: Tensor, groups: int) -> Tensor:
    """[channels, outputs / groups, ...] → [outputs, channels / groups, ...], with windows from their ends."""
    channels, outputs, *kernel = weight.shape
    apart = weight.reshape(groups, channels // groups, outputs, *kernel).transpose(1, 2)
    return apart.reshape(groups * outputs, channels // groups, *kernel).flip(list(range(2, weight.dim())))


def _spread(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], behind: Sequence[int]
) -> Tensor:
    """x with the zeros between its elements, and around them, over which windows of the turned kernel slide step by step."""
    edges: list[int] = []
    for dim, (step, pad, d, more) in enumerate(zip(stride, padding, dilation, behind, strict=True), 2):
        if step > 1:
            x = F.pad(x.unsqueeze(dim + 1), [0, 0] * (x.dim() - dim - 1) + [0, step - 1]).flatten(dim, dim + 1)
        before = d * (weight.shape[dim] - 1) - pad
        edges = [before, before + more - (step - 1), *edges]
    return F.pad(x, edges)


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {aten.convolution.default: convolution}
