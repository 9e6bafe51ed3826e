"""grid_sample of images, where PyTorch's decomposition of it is wrong, and its gradients: of the image by adding up what each place takes,
of the grid by the slopes between elements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from disc.frontend.eager_strides import Decomposition
from disc.frontend.grid_samples import BORDER, NEAREST, REFLECTION, ZEROS, reflected

aten = torch.ops.aten
CUBIC = 2
_A = -0.75  # of the cubic kernel, as eager has it


@dataclass(frozen=True)
class Tap:
    """An element that a place takes, along one dim. index: which; inside: whether it is there; weight, slope: how much is taken of it, and
    by how much that grows with the place."""

    index: Tensor
    inside: Tensor
    weight: Tensor
    slope: Tensor


def _clipped(place: Tensor, last: float) -> tuple[Tensor, Tensor]:
    """At the borders, and the slope, which is 0 there and beyond."""
    inner = (place > 0) & (place < last)
    return place.clamp(torch.zeros_like(place), torch.full_like(place, last)), inner.to(place.dtype)


def _kept_inside(place: Tensor, size: int, padding: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """The place that is read for this one, and the slope of that."""
    if padding == ZEROS:
        return place, torch.ones_like(place)
    if padding == BORDER:
        return _clipped(place, size - 1)
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    folded, is_even = reflected(place, low, torch.sym_max(span, 1))
    slope = torch.where((place < low) == is_even, -1.0, 1.0).to(place.dtype)
    if align_corners:  # of a single element there is nothing to reflect
        single = torch.full_like(place, size) <= 1
        folded, slope = torch.where(single, 0.0, folded), torch.where(single, 0.0, slope)
    kept, inner = _clipped(folded, size - 1)
    return kept, slope * inner


def _cubic(distance: Tensor, near: bool) -> tuple[Tensor, Tensor]:
    """The weight at a distance below 1 (near), or from 1 to 2, and its slope."""
    if near:
        weight = ((_A + 2) * distance - (_A + 3)) * distance * distance + 1
        return weight, (3 * (_A + 2) * distance - 2 * (_A + 3)) * distance
    weight = ((_A * distance - 5 * _A) * distance + 8 * _A) * distance - 4 * _A
    return weight, (3 * _A * distance - 10 * _A) * distance + 8 * _A


def _taps(coordinate: Tensor, size: int, mode: int, padding: int, align_corners: bool) -> list[Tap]:
    """coordinate: from -1 to 1."""
    place = (coordinate + 1) / 2 * (size - 1) if align_corners else ((coordinate + 1) * size - 1) / 2
    scale = (size - 1) / 2 if align_corners else size / 2

    def tap(at: Tensor, weight: Tensor, slope: Tensor) -> Tap:
        inside = (at >= 0) & (at < size)
        return Tap(torch.where(inside, at, 0.0).to(torch.int64), inside, weight, slope)

    if mode == CUBIC:
        first, found = place.floor(), list[Tap]()
        part = place - first
        for step in (-1, 0, 1, 2):
            distance = part - step if step <= 0 else step - part
            weight, slope = _cubic(distance, step in (0, 1))
            at = _kept_inside(first + step, size, padding, align_corners)[0].round()
            found.append(tap(at, weight, (slope if step <= 0 else -slope) * scale))
        return found
    place, slope = _kept_inside(place, size, padding, align_corners)
    slope = slope * scale
    if mode == NEAREST:
        return [tap(place.round(), torch.ones_like(place), torch.zeros_like(place))]
    first = place.floor()
    return [tap(first, first + 1 - place, -slope), tap(first + 1, place - first, slope)]


def _pairs(
    x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool
) -> Iterator[tuple[Tap, Tap, Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]]:
    """The elements that each place of a grid [n, h, w, 2] takes of an image [n, c, ...]: how, along rows and along columns, where there is
    one, and its indices."""
    batch, channels, height, width = x.shape
    columns = _taps(grid[..., 0], width, mode, padding, align_corners)
    rows = _taps(grid[..., 1], height, mode, padding, align_corners)
    images = torch.arange(batch).reshape(-1, 1, 1, 1)
    layers = torch.arange(channels).reshape(1, -1, 1, 1)
    for row, column in itertools.product(rows, columns):
        inside = (row.inside & column.inside).unsqueeze(1)
        yield row, column, inside, (images, layers, row.index.unsqueeze(1), column.index.unsqueeze(1))


def grid_sampler_2d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """Reflected at the middles of the outermost elements, of which a side of 1 has one: PyTorch's decomposition takes sides for longer."""
    if padding_mode != REFLECTION or not align_corners:
        return _OF_PYTORCH(x, grid, interpolation_mode, padding_mode, align_corners)
    total = torch.zeros((), dtype=x.dtype)
    for row, column, inside, places in _pairs(x, grid, interpolation_mode, padding_mode, align_corners):
        total = total + torch.where(inside, x[places] * (row.weight * column.weight).unsqueeze(1), 0.0)
    return total


def grid_sampler_2d_backward(
    gradient: Tensor, x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool, output_mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """gradient: [n, c, h, w]; x: the image, [n, c, ...]; grid: [n, h, w, 2]."""
    of_image = torch.zeros_like(x)
    of_x, of_y = torch.zeros_like(grid[..., 0]), torch.zeros_like(grid[..., 1])
    for row, column, inside, places in _pairs(x, grid, interpolation_mode, padding_mode, align_corners):
        if output_mask[0]:
            weight = (row.weight * column.weight).unsqueeze(1)
            of_image = of_image.index_put(places, torch.where(inside, gradient * weight, 0.0), accumulate=True)
        if output_mask[1] and interpolation_mode != NEAREST:
            taken = torch.where(inside, x[places] * gradient, 0.0).sum(1)
            of_x = of_x + taken * row.weight * column.slope
            of_y = of_y + taken * row.slope * column.weight
    return of_image if output_mask[0] else None, torch.stack((of_x, of_y), -1) if output_mask[1] else None


_OF_PYTORCH = decomposition_table[aten.grid_sampler_2d.default]
TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    aten.grid_sampler_2d.default: grid_sampler_2d, aten.grid_sampler_2d_backward.default: grid_sampler_2d_backward,
}  # fmt: skip
