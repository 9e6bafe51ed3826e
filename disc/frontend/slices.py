"""Slices of dims whose size is symbolic that end, or begin, at a constant: as in Python they take what there is.

    cache[:, -4:]      # the last 4, or all where there are fewer
    ids[:, :512]       # truncated, where there is more to truncate

PyTorch's trace decides which it is, by the example.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from disc.frontend.packed_sequences import item as item_of_sizes

_LEAST = 3  # PyTorch's trace takes every size to be at least 2: the lesser of it and 2 is 2 there, for sizes 0 and 1 as well


def item(x: Tensor, index: object) -> object:
    """`x[index]`."""
    return item_of_sizes(x, _clamped(x, index))


def _ends(place: object) -> bool:
    """Whether it is a slice as above. Others that begin or end at constants cut off something that must be there."""
    if not isinstance(place, slice) or place.step not in (None, 1):
        return False
    from_start = (place.start is None or (type(place.start) is int and place.start == 0)) and type(place.stop) is int
    if from_start:
        return place.stop >= _LEAST
    return place.stop is None and type(place.start) is int and place.start <= -_LEAST


def _clamped(x: Tensor, index: object) -> object:
    places: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
    plain = all(each is None or each is ... or type(each) in (int, slice) for each in places)
    if not plain or not any(_ends(each) for each in places):
        return index
    taken = sum(each is not None and each is not ... for each in places)
    dim, result = 0, list[object]()
    for place in places:
        if place is ...:
            dim += x.dim() - taken
        elif place is not None:
            if _ends(place) and dim < x.dim() and isinstance(size := x.shape[dim], torch.SymInt):
                place = _within(place, size)
            dim += 1
        result.append(place)
    return tuple(result)


def _within(place: slice, size: torch.SymInt) -> slice:
    if place.stop is not None:
        return place if statically_known_true(size >= place.stop) else slice(None, torch.sym_min(size, place.stop))
    return place if statically_known_true(size >= -place.start) else slice(torch.sym_max(size, -place.start) + place.start, None)
