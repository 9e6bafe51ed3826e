"""grid_sample of images, and its gradients: of the image by adding up what each place takes, of the grid by the slopes between elements.

The arithmetic of places is that of eager's kernels, so that what is no place (NaN, infinities, what overflows) is read where they read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from disc.frontend.eager_strides import Decomposition
from disc.frontend.sampled_volumes import BORDER, NEAREST, ZEROS

aten = torch.ops.aten
CUBIC = 2
_A = -0.75  # of the cubic kernel, as eager has it


@dataclass(frozen=True)
class Taps:
    """The elements that each place of a grid takes along one dim: [taps, n, h, w].

    index: which; inside: whether it is there; weight, slope: how much is taken of it, and by how much that grows with the place.
    """

    index: Tensor
    inside: Tensor
    weight: Tensor
    slope: Tensor

    def beside(self, other: int) -> Taps:
        """With a dim for channels, and one, 0 or 1, for the taps along the other side of the image."""
        parts = self.index, self.inside, self.weight, self.slope
        return Taps(*(part.unsqueeze(2).unsqueeze(other) for part in parts))


@dataclass(frozen=True)
class Sample:
    """What each place of a grid takes of an image; tensors that broadcast to [taps of rows, taps of columns, n, c, h, w].

    index: of elements of the whole tensor; inside: whether they are there.
    """

    row: Taps
    column: Taps
    index: Tensor
    inside: Tensor

    def of(self, x: Tensor) -> Tensor:
        return torch.where(self.inside, x.flatten()[self.index], 0.0)

    @property
    def weight(self) -> Tensor:
        return self.row.weight * self.column.weight


def _clipped(place: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """At the borders, of which NaN is the first; and the slope, which is 0 there and beyond."""
    last = torch.full_like(place, size - 1)
    kept = torch.minimum(torch.where(place > 0, place, 0.0), last)
    return kept, ((kept > 0) & (kept < last)).to(place.dtype)


def _reflected(place: Tensor, size: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """At the middles of the outermost elements, or at their edges, as often as it takes; and the slope."""
    low = 0.0 if align_corners else -0.5
    period = torch.sym_max(2 * (size - 1), 1) if align_corners else 2 * size
    distance = (place - low).abs()
    rest = distance - (distance / period).trunc() * period
    turned = rest > period - rest
    folded = torch.where(turned, period - rest, rest) + low
    slope = torch.where(turned ^ (place < low), -1.0, 1.0).to(place.dtype)
    if not align_corners:
        return folded, slope
    single = torch.full_like(place, size) <= 1  # nothing to reflect
    return torch.where(single, 0.0, folded), torch.where(single, 0.0, slope)


def _kept_inside(place: Tensor, size: int, padding: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """The place that is read for this one, and the slope of that."""
    if padding == ZEROS:
        return place, torch.ones_like(place)
    if padding == BORDER:
        return _clipped(place, size)
    folded, slope = _reflected(place, size, align_corners)
    kept, inner = _clipped(folded, size)
    return kept, slope * inner


def _cubic(distance: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """The weight at a distance below 1 (near), or from 1 to 2, and its slope."""
    inner = ((_A + 2) * distance - (_A + 3)) * distance * distance + 1
    outer = ((_A * distance - 5 * _A) * distance + 8 * _A) * distance - 4 * _A
    inner_slope = (3 * (_A + 2) * distance - 2 * (_A + 3)) * distance
    outer_slope = (3 * _A * distance - 10 * _A) * distance + 8 * _A
    return torch.where(near, inner, outer), torch.where(near, inner_slope, outer_slope)


def _taps(coordinate: Tensor, size: int, mode: int, padding: int, align_corners: bool) -> Taps:
    """coordinate: from -1 to 1, [n, h, w]."""
    scale = (size - 1) / 2 if align_corners else size / 2
    place = (coordinate + 1) * scale - (0.0 if align_corners else 0.5)
    if mode == CUBIC:
        first = place.floor()
        step = torch.arange(-1, 3).reshape(4, 1, 1, 1)
        weight, slope = _cubic((place - first - step).abs(), (step == 0) | (step == 1))
        slope = torch.where(step <= 0, slope, -slope) * scale
        at = _kept_inside(first + step, size, padding, align_corners)[0].round()
    else:
        place, slope = _kept_inside(place, size, padding, align_corners)
        if mode == NEAREST:
            at = place.round().unsqueeze(0)
            weight, slope = torch.ones_like(at), torch.zeros_like(at)
        else:
            first, step = place.floor(), torch.arange(2).reshape(2, 1, 1, 1)
            weight = torch.where(step == 0, first + 1 - place, place - first)
            slope = torch.where(step == 0, -slope, slope) * scale
            at = first + step
    inside = (at >= 0) & (at < size)
    return Taps(torch.where(inside, at, 0.0).to(torch.int64), inside, weight, slope)


def _sample(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Sample:
    """x: [n, c, ...]; grid: [n, h, w, 2]. Pairs of taps are dims of a sum: sixteen that are written out take a minute to compile."""
    batch, channels, height, width = x.shape
    column = _taps(grid[..., 0], width, mode, padding, align_corners).beside(0)
    row = _taps(grid[..., 1], height, mode, padding, align_corners).beside(1)
    layers = torch.arange(batch).reshape(-1, 1, 1, 1) * channels + torch.arange(channels).reshape(-1, 1, 1)
    index = layers * (height * width) + (row.index * width + column.index)
    return Sample(row, column, index, row.inside & column.inside)


def grid_sampler_2d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    sample = _sample(x, grid, interpolation_mode, padding_mode, align_corners)
    return (sample.of(x) * sample.weight).sum((0, 1))


def grid_sampler_2d_backward(
    gradient: Tensor, x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool, output_mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """gradient: [n, c, h, w]; x: the image, [n, c, ...]; grid: [n, h, w, 2]."""
    sample = _sample(x, grid, interpolation_mode, padding_mode, align_corners)
    of_image = of_grid = None
    if output_mask[0]:
        given = torch.where(sample.inside, gradient * sample.weight, 0.0)
        of_image = torch.zeros_like(x).flatten().index_put((sample.index,), given, accumulate=True).reshape(x.shape)
    if output_mask[1]:
        taken = sample.of(x) * gradient
        slopes = sample.column.slope * sample.row.weight, sample.row.slope * sample.column.weight
        of_grid = torch.stack([(taken * slope).sum((0, 1, 3)) for slope in slopes], -1)
    return of_image, of_grid


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    aten.grid_sampler_2d.default: grid_sampler_2d, aten.grid_sampler_2d_backward.default: grid_sampler_2d_backward,
}  # fmt: skip
