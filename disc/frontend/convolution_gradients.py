"""Gradients of convolutions as convolutions and matrix products. Shapes stay symbolic.

With stride s and dilation d, element u of the padded input and element o of the result meet at place a of the kernel where
u = s * o + d * a.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.eager_strides import Decomposition
from disc.frontend.tiled_gradients import may_tile, tiled_gradient

aten = torch.ops.aten
MOST_PER_IMAGE = 1 << 17  # elements of a weight up to which, and if dynamic, each image has its own product: more would not fit a cache


@dataclass(frozen=True)
class Sliding:
    """How windows slide, one number per spatial dim: `stride`, `padding` and `dilation` in elements. groups: of channels."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    @property
    def rank(self) -> int:
        return len(self.stride)


def convolution_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """That of a transposed convolution by its input is a convolution; the gradients by the weight swap the roles of input and result."""
    count = weight.dim() - 2
    stride, padding, dilation = (list(each) * (count // len(each)) for each in (stride, padding, dilation))
    if not all(isinstance(size, int) for size in weight.shape[2:]):
        return NotImplemented
    sliding = Sliding(stride, padding, dilation, groups)
    by_input = by_weight = by_bias = None
    if output_mask[0] and transposed:
        by_input = aten.convolution.default(gradient, weight, None, stride, padding, dilation, False, [0] * count, groups)
    elif output_mask[0]:
        by_input = _by_input(gradient, x, weight, sliding)
    if output_mask[1]:
        wide, narrow = (gradient, x) if transposed else (x, gradient)
        plain = isinstance(groups, int) and (sliding.stride, sliding.dilation, groups) == ([1] * count, [1] * count, 1)
        tiled = plain and may_tile(wide, weight)
        by_weight = tiled_gradient(wide, narrow, weight, padding) if tiled else _by_weight(wide, narrow, weight, sliding)
    if output_mask[2]:
        by_bias = gradient.sum([0, *range(2, count + 2)])
    return by_input, by_weight, by_bias


# --- by the input ---------------------------------------------------------------------------------------------------------------


def _by_input(gradient: Tensor, x: Tensor, weight: Tensor, sliding: Sliding) -> Tensor:
    """A transposed convolution; by strides it is one for each remainder of u by s, so that no zeros are multiplied."""
    if sliding.stride == [1] * sliding.rank:
        return _transposed(gradient, weight, sliding.padding, sliding.dilation, sliding.groups)
    phases = [_phases(*each) for each in zip(sliding.stride, sliding.dilation, weight.shape[2:], strict=True)]
    reach = [d * (size - 1) // s for s, d, size in zip(sliding.stride, sliding.dilation, weight.shape[2:], strict=True)]
    parts = [_phase(gradient, weight, each, reach, sliding.groups) for each in itertools.product(*phases)]
    whole = torch.stack(parts, -1).unflatten(-1, sliding.stride)
    first = [2 + dim for dim in range(sliding.rank)]
    whole = whole.permute(0, 1, *(place for dim in first for place in (dim, dim + sliding.rank)))
    for dim in first:
        whole = whole.flatten(dim, dim + 1)
    return _cut(whole, x, sliding.padding)


@dataclass(frozen=True)
class _Phase:
    """The elements u = s * q + r of the padded input for one r: places first, first + step, ... of the kernel meet them, at
    q = o + offset + dilation * (how many places come before). count: of the places."""

    first: int
    step: int
    count: int
    offset: int
    dilation: int


def _phases(stride: int, dilation: int, size: int) -> list[_Phase]:
    """One for each remainder."""
    shared = math.gcd(stride, dilation)
    found: list[_Phase] = []
    for remainder in range(stride):
        places = [place for place in range(size) if place * dilation % stride == remainder]
        first = places[0] if places else 0
        found.append(_Phase(first, stride // shared, len(places), first * dilation // stride, dilation // shared))
    return found


def _phase(gradient: Tensor, weight: Tensor, phases: Sequence[_Phase], reach: Sequence[int], groups: int) -> Tensor:
    """[batch, channels, q...], with `reach` more values of q along each dim than the result has elements."""
    shape = [gradient.shape[0], weight.shape[1] * groups, *(size + r for size, r in zip(gradient.shape[2:], reach, strict=True))]
    if not all(phase.count for phase in phases):
        return gradient.new_zeros(shape)
    for dim, phase in enumerate(phases, 2):
        weight = weight[(slice(None),) * dim + (slice(phase.first, None, phase.step),)]
    part = _transposed(gradient, weight, [0] * len(phases), [phase.dilation for phase in phases], groups)
    edges = [(each.offset, r - each.offset - each.dilation * (each.count - 1)) for each, r in zip(phases, reach, strict=True)]
    return F.pad(part, [amount for edge in reversed(edges) for amount in edge])


def _transposed(gradient: Tensor, weight: Tensor, padding: Sequence[int], dilation: Sequence[int], groups: int) -> Tensor:
    ones, zeros = [1] * len(padding), [0] * len(padding)
    return aten.convolution.default(gradient, weight, None, ones, list(padding), list(dilation), True, zeros, groups)


def _cut(whole: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
    """Without the padding; what no window reaches at the end is 0."""
    for dim, pad in enumerate(padding, 2):
        size = x.shape[dim]
        filled = F.pad(whole, [0, 0] * (len(padding) + 1 - dim) + [0, size])
        whole = filled.narrow(dim, pad, size)
    return whole


# --- by the weight --------------------------------------------------------------------------------------------------------------


def _by_weight(wide: Tensor, narrow: Tensor, weight: Tensor, sliding: Sliding) -> Tensor:
    """The products of `narrow` with what each place of the kernel has met of `wide`, summed over positions and images."""
    batch, groups = wide.shape[0], sliding.groups
    kernel, space = list(weight.shape[2:]), list(narrow.shape[2:])
    columns = weight.shape[1] * math.prod(kernel)
    padded = F.pad(wide, [p for pad in reversed(sliding.padding) for p in (pad, pad)]) if any(sliding.padding) else wide
    elements = weight.shape[0] * columns
    if not isinstance(elements, int) or elements <= MOST_PER_IMAGE:
        met = what_windows_meet(padded, kernel, space, sliding, lead=2).reshape(batch, groups, columns, math.prod(space))
        rows = narrow.reshape(batch, groups, weight.shape[0] // groups, math.prod(space))
        products = torch.matmul(met, rows.transpose(2, 3))
        total = products.to(torch.float32).sum(0).to(weight.dtype) if weight.dtype.itemsize < 4 else products.sum(0)
    else:
        met = what_windows_meet(padded.transpose(0, 1), kernel, space, sliding, lead=1).reshape(groups, columns, batch * math.prod(space))
        rows = narrow.transpose(0, 1).reshape(groups, weight.shape[0] // groups, batch * math.prod(space))
        total = torch.matmul(met, rows.transpose(1, 2))
    return total.transpose(1, 2).reshape(weight.shape)


def what_windows_meet(padded: Tensor, kernel: Sequence[int], space: Sequence[int], sliding: Sliding, *, lead: int) -> Tensor:
    """What each place of the kernel meets at each position: [images, channels, kernel..., positions...], or, with the dims of the kernel
    at `lead` 1 of what has its channels first, [channels, kernel..., images, positions...].

    What lies along the last dim is copied, for positions to be neighbors; along the others a place is then a window into that, where it
    is enough that the positions of one image are.
    """
    dims = list(zip(kernel, space, sliding.stride, sliding.dilation, strict=True))
    for number, (size, positions, stride, dilation) in enumerate(reversed(dims)):
        axis = padded.dim() - 1 - number
        reach = dilation * (size - 1) + 1
        if number and stride == 1 and lead == 2:  # the size of windows is a plain int to PyTorch: it fixes one that is symbolic
            padded = padded.unfold(axis, reach, 1)[..., ::dilation].movedim(-1, lead)
        else:
            padded = torch.stack([_at(padded, axis, place * dilation, positions, stride, reach) for place in range(size)], lead)
    return padded


def _at(x: Tensor, dim: int, start: int, count: int, step: int, reach: int) -> Tensor:
    """Elements start, start + step, ... along a dim: the same place of each window of `reach` elements."""
    return x.narrow(dim, start, count) if step == 1 else x.unfold(dim, reach, step).select(-1, start)


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {aten.convolution_backward.default: convolution_backward}
