"""Decompositions of pooling: adaptive windows, and the places of maxima. Shapes stay symbolic.

A window along one dim is a row of positions and whether each of them counts; windows of several dims are taken dim by dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from disc.frontend.eager_strides import Decomposition

aten = torch.ops.aten


@dataclass(frozen=True)
class Windows:
    """index: [windows, elements] positions along a dim, all in range; counts: whether the element is in the window."""

    index: Tensor
    counts: Tensor

    def of(self, x: Tensor, dim: int) -> Tensor:
        """x with [windows, elements] in place of `dim`, which counts from the end."""
        return x.index_select(dim, self.index.flatten()).unflatten(dim, self.index.shape)

    def fitted(self, dim: int) -> tuple[Tensor, Tensor]:
        """index and counts, against dims [windows, elements] that are followed by the dims after `dim`."""
        shape = [*self.index.shape, *[1] * (-dim - 1)]
        return self.index.reshape(shape), self.counts.reshape(shape)


def adaptive_windows(size: int, count: int) -> Windows:
    """Window i has the positions from floor(i * size / count) to ceil((i + 1) * size / count)."""
    i = torch.arange(count).unsqueeze(-1)
    start, end = i * size // count, ((i + 1) * size + count - 1) // count
    index = start + torch.arange((size + count - 1) // count + 1)
    return Windows(torch.clamp(index, max=size - 1), index < end)


def sliding_windows(size: int, count: int, kernel: int, stride: int, padding: int, dilation: int) -> Windows:
    index = torch.arange(count).unsqueeze(-1) * stride - padding + torch.arange(kernel) * dilation
    return Windows(torch.clamp(index, 0, size - 1), (index >= 0) & (index < size))


# --- averages -------------------------------------------------------------------------------------------------------------------


def adaptive_average(x: Tensor, output_size: Sequence[int]) -> Tensor:
    """Averages of averages: all windows of one dim that meet a window of another have the same count."""
    result = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    for dim, count in zip(range(-len(output_size), 0), output_size, strict=True):
        if count == 1:
            result = result.mean(dim, keepdim=True)
            continue
        windows = adaptive_windows(x.shape[dim], count)
        _, counts = windows.fitted(dim)
        sums = torch.where(counts, windows.of(result, dim), 0.0).sum(dim)
        result = sums / counts.sum(1).to(result.dtype)
    return result.to(x.dtype)


def adaptive_average_backward(gradient: Tensor, x: Tensor, rank: int = 2) -> Tensor:
    """Each position gets the gradient of every window over the last dims that it is in, divided by the window's count."""
    result = gradient.to(torch.float32) if gradient.dtype in (torch.float16, torch.bfloat16) else gradient
    for dim in range(-rank, 0):
        count, size = gradient.shape[dim], x.shape[dim]
        i, position = torch.arange(count), torch.arange(size).unsqueeze(-1)
        start, end = i * size // count, ((i + 1) * size + count - 1) // count
        result = _shared(result, dim, (position >= start) & (position < end), end - start)
    return result.to(gradient.dtype)


def _shared(gradient: Tensor, dim: int, inside: Tensor, length: Tensor) -> Tensor:
    """The sum over the windows along `dim` that each position is in. inside: [positions, windows]; length: of the windows, to divide by."""
    after = [1] * (-dim - 1)
    gradient = gradient / length.reshape([-1, *after]).to(gradient.dtype)
    return torch.where(inside.reshape([*inside.shape, *after]), gradient.unsqueeze(dim - 1), 0.0).sum(dim)


# --- maxima and their places ----------------------------------------------------------------------------------------------------


def lowest(dtype: torch.dtype) -> float | int:
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def places_of_maxima(candidates: Tensor, places: Tensor, counts: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The maxima along a dim, and the place of each: the least of equal ones, or that of the last NaN. counts: which elements count."""
    values = candidates.amax(dim)
    hits = counts & (candidates == values.unsqueeze(dim))
    place = torch.where(hits, places, torch.iinfo(torch.int64).max).amin(dim)
    if candidates.dtype.is_floating_point:
        last = torch.where(counts & (candidates != candidates), places, -1).amax(dim)
        place = torch.where(last >= 0, last, place)
    return values, place


def maxima(x: Tensor, windows: Sequence[Windows]) -> tuple[Tensor, Tensor]:
    """The maximum of each window over the last dims, and its row-major place there: the first one, or the last NaN.

    From the last dim on: in each window of it the place of the maximum, then among those along the dim before.
    """
    values, place = x, torch.arange(1)
    stride = 1
    for dim, along in zip(range(-1, -len(windows) - 1, -1), reversed(windows), strict=True):
        index, counts = along.fitted(dim)
        candidates = torch.where(counts, along.of(values, dim), lowest(x.dtype))
        places = index * stride + (along.of(place, dim) if dim < -1 else 0)
        values, place = places_of_maxima(candidates, places, counts, dim)
        stride = stride * x.shape[dim]
    return values, place


def adaptive_maximum(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    if all(size == 1 for size in output_size):  # one window: no gather
        plane = x.flatten(-len(output_size))
        index = torch.arange(plane.shape[-1]).unsqueeze(0)
        values, place = maxima(plane, [Windows(index, index >= 0)])
        shape = [*x.shape[: -len(output_size)], *output_size]
        return values.reshape(shape), place.reshape(shape)
    sizes = x.shape[-len(output_size) :]
    return maxima(x, [adaptive_windows(size, count) for size, count in zip(sizes, output_size, strict=True)])


def maximum_with_indices(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,),
    ceil_mode: bool = False, *, dims: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    kernels, paddings, dilations = (list(each) * (dims // len(each)) for each in (kernel_size, padding, dilation))
    strides = list(stride) * (dims // len(stride)) if stride else kernels
    windows = []
    for size, kernel, step, pad, spread in zip(x.shape[-dims:], kernels, strides, paddings, dilations, strict=True):
        reach = size + 2 * pad - spread * (kernel - 1) - 1
        count = (reach + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode:  # no window begins in the padding behind the end
            count = cast(int, torch.sym_min(count, (size + pad - 1) // step + 1))
        windows.append(sliding_windows(size, count, kernel, step, pad, spread))
    return maxima(x, windows)


def maximum_with_indices_2d(*args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
    return maximum_with_indices(*args, **kwargs, dims=2)  # pyright: ignore


def maximum_with_indices_3d(*args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
    return maximum_with_indices(*args, **kwargs, dims=3)  # pyright: ignore


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    aten._adaptive_avg_pool3d.default: adaptive_average,
    aten._adaptive_avg_pool2d_backward.default: adaptive_average_backward,
    aten._adaptive_avg_pool3d_backward.default: partial(adaptive_average_backward, rank=3),
    aten.adaptive_max_pool2d.default: adaptive_maximum,
    aten.adaptive_max_pool3d.default: adaptive_maximum,
}
