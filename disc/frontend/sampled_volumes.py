"""grid_sample of volumes: values between the elements of [n, c, d, h, w], at the places of a grid [n, ..., 3] from -1 to 1.

The arithmetic of places is that of eager's kernels, which is another one for images (`sampled_images`).
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from disc.frontend.eager_strides import Decomposition

aten = torch.ops.aten
LINEAR, NEAREST = 0, 1
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _reflected(place: Tensor, low: float, span: float) -> Tensor:
    """At the borders low and low + span, as often as it takes."""
    distance = (place - low).abs()
    rest = torch.fmod(distance, span)
    return torch.where((distance / span).floor() % 2 == 0, rest + low, span - rest + low)


def _places(grid: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    """Of coordinates from -1 to 1, in elements. NaN, also an infinite coordinate reflected, is the last one, as in eager."""
    place = (grid + 1) / 2 * (size - 1) if align_corners else ((grid + 1) * size - 1) / 2
    if padding == REFLECTION:
        if align_corners:
            single = torch.zeros_like(place)
            place = torch.where(torch.full_like(place, size) > 1, _reflected(place, 0.0, torch.sym_max(size - 1, 1)), single)
        else:
            place = _reflected(place, -0.5, size)
    if padding == ZEROS:
        return place
    last = torch.full_like(place, size - 1)
    return torch.where(place.isnan(), last, place).clamp(torch.zeros_like(place), last)


def grid_sampler_3d(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    if interpolation_mode not in (LINEAR, NEAREST):
        return NotImplemented
    batch, channels, *sizes = input.shape
    places = [_places(grid[..., 2 - dim], size, padding_mode, align_corners) for dim, size in enumerate(sizes)]
    layers = torch.arange(batch).reshape(-1, 1, 1, 1, 1) * channels + torch.arange(channels).reshape(-1, 1, 1, 1)
    starts = layers * (sizes[0] * sizes[1] * sizes[2])
    elements = input.flatten()

    def taken(corner: list[Tensor], weight: Tensor | float = 1.0) -> Tensor:
        """Of elements [n, 1, ...], times their weight; those beyond the volume are 0, also where the weight is no number."""
        inside = torch.ones_like(corner[0], dtype=torch.bool)
        place = torch.zeros((), dtype=torch.int64)
        for each, size in zip(corner, sizes, strict=True):
            here = (each >= 0) & (each < size)
            inside = inside & here
            place = place * size + torch.where(here, each, 0.0).to(torch.int64).unsqueeze(1)
        return torch.where(inside.unsqueeze(1), elements[starts + place] * weight, 0.0)

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
