"""grid_sample of volumes: values between the elements of [n, c, d, h, w], at the places of a grid [n, ..., 3] from -1 to 1 (PyTorch has
a decomposition for images alone)."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from disc.frontend.eager_strides import Decomposition

aten = torch.ops.aten
LINEAR, NEAREST = 0, 1
ZEROS, BORDER, REFLECTION = 0, 1, 2


def reflected(place: Tensor, low: float, span: float) -> tuple[Tensor, Tensor]:
    """At the borders low and low + span, as often as it takes; and whether that is an even number of times, counted from low upward."""
    distance = (place - low).abs()
    is_even = (distance / span).floor() % 2 == 0
    rest = torch.fmod(distance, span)
    return torch.where(is_even, rest + low, span - rest + low), is_even


def _places(grid: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    """Of coordinates from -1 to 1, in elements. NaN, also an infinite coordinate reflected, is the last one, as in eager."""
    place = (grid + 1) / 2 * (size - 1) if align_corners else ((grid + 1) * size - 1) / 2
    if padding == REFLECTION:
        if align_corners:
            single = torch.zeros_like(place)
            place = torch.where(torch.full_like(place, size) > 1, reflected(place, 0.0, torch.sym_max(size - 1, 1))[0], single)
        else:
            place = reflected(place, -0.5, size)[0]
    if padding == ZEROS:
        return place
    last = torch.full_like(place, size - 1)
    return torch.where(place.isnan(), last, place).clamp(torch.zeros_like(place), last)


def grid_sampler_3d(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    if interpolation_mode not in (LINEAR, NEAREST):
        return NotImplemented
    batch, channels, *sizes = input.shape
    places = [_places(grid[..., 2 - dim], size, padding_mode, align_corners) for dim, size in enumerate(sizes)]
    rows = torch.arange(batch).reshape(batch, 1, 1, 1, 1)
    columns = torch.arange(channels).reshape(1, channels, 1, 1, 1)

    def taken(corner: list[Tensor], weight: Tensor | float = 1.0) -> Tensor:
        """Of elements [n, 1, ...], times their weight; those beyond the volume are 0, also where the weight is no number."""
        inside = torch.ones_like(corner[0], dtype=torch.bool)
        indices: list[Tensor] = []
        for each, size in zip(corner, sizes, strict=True):
            here = (each >= 0) & (each < size)
            inside = inside & here
            indices.append(torch.where(here, each, 0.0).to(torch.int64).unsqueeze(1))
        return torch.where(inside.unsqueeze(1), input[rows, columns, indices[0], indices[1], indices[2]] * weight, 0.0)

    if interpolation_mode == NEAREST:
        return taken([each.round() for each in places])
    first = [each.floor() for each in places]
    total = None
    for corner in itertools.product((0, 1), repeat=3):
        at = [low + step for low, step in zip(first, corner, strict=True)]
        weight = torch.ones_like(first[0])
        for place, low, step in zip(places, first, corner, strict=True):
            weight = weight * (place - low if step else low + 1 - place)
        part = taken(at, weight.unsqueeze(1))
        total = part if total is None else total + part
    assert total is not None
    return total


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {aten.grid_sampler_3d.default: grid_sampler_3d}
