"""Slices of dims whose size is symbolic that end, or begin, at a constant: as in Python they take what there is.

    cache[:, -4:]      # the last 4, or all where there are fewer
    ids[:, :512]       # truncated, where there is more to truncate

PyTorch's trace decides which it is, by the example. Of at most 2 it knows without asking, since it takes every size to be at least 2: what
such a slice demands of the size is recorded, as it is no slice any more where the program reads nothing of it but its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sympy
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy.symbol import SymT, symbol_is_type

from disc.frontend.conditions import relation
from disc.frontend.packed_sequences import item as item_of_sizes
from disc.shapes import Condition

LEAST = 3  # PyTorch's trace takes every size to be at least 2: the lesser of it and 2 is 2 there, for sizes 0 and 1 as well


def item(x: Tensor, index: object) -> Any:
    """`x[index]`, of a packed sequence's sizes a number."""
    return item_of_sizes(x, _clamped(x, index))


def _ends(place: object) -> bool:
    """Whether it is a slice as above. Others that begin or end at constants cut off something that must be there."""
    if not isinstance(place, slice) or place.step not in (None, 1):
        return False
    from_start = (place.start is None or (type(place.start) is int and place.start == 0)) and type(place.stop) is int
    if from_start:
        return place.stop >= LEAST
    return place.stop is None and type(place.start) is int and place.start <= -LEAST


def demands(func: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[torch.SymInt, int]]:
    """(size, least) of the dims of which a call takes a number of elements that PyTorch knows to be there without asking, and of what
    counts from the end of one."""
    if not args or not isinstance(args[0], Tensor):
        return
    x = args[0]
    yield from ((-each, 1) for each in _bounds(func, args, kwargs) if _is_given(each) and statically_known_true(each < 0))
    if func == Tensor.__getitem__ and len(args) == 2:
        found = [(size, _least(place)) for place, size in _sliced(x, args[1]) if isinstance(place, slice)]
    elif func in _TAKING:
        names, default, least_of = _TAKING[func]
        given = {**dict(zip(names, args[1:], strict=False)), **kwargs}
        dim, number = given.get("dim", given.get("dimension", default)), least_of(given)
        found = [(x.shape[dim], number)] if type(dim) is int and type(number) is int and -x.dim() <= dim < x.dim() else []
    else:
        return
    yield from ((size, least) for size, least in found if isinstance(size, torch.SymInt) and 0 < least < LEAST and _is_given(size))


def _bounds(func: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.SymInt]:
    """The computed places at which a call begins or ends a slice. `-n` counts from the end for PyTorch, which takes n to be positive; in
    Python it is the first place where n is 0."""
    if func in (Tensor.__getitem__, Tensor.__setitem__) and len(args) > 1:
        places = [bound for place, _ in _sliced(args[0], args[1]) if isinstance(place, slice) for bound in (place.start, place.stop)]
    elif func in _TAKING:
        given = {**dict(zip(_TAKING[func][0], args[1:], strict=False)), **kwargs}
        cuts = given.get("indices", given.get("indices_or_sections", given.get("tensor_indices_or_sections")))
        places = [given.get("start"), given.get("end"), *(cuts if isinstance(cuts, list | tuple) else ())]
    else:
        return
    yield from (each for each in places if isinstance(each, torch.SymInt))


def _is_given(size: torch.SymInt) -> bool:
    """Of a size that depends on data, PyTorch assumes nothing."""
    return not any(symbol_is_type(each, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)) for each in size.node.expr.free_symbols)


def taking(func: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Condition]:
    """What a call of one of TAKING demands, `squeeze` among them, which PyTorch takes to remove no symbolic dim."""
    for size, least in demands(func, args, kwargs):
        yield relation(">=", size.node.expr, sympy.Integer(least))
    if func in _SQUEEZING and args and isinstance(args[0], Tensor):
        x, dims = args[0], kwargs.get("dim", args[1] if len(args) > 1 else tuple(range(args[0].dim())))
        chosen = [x.shape[each] for each in ((dims,) if type(dims) is int else dims) if -x.dim() <= each < x.dim()]
        yield from (
            relation("!=", each.node.expr, sympy.Integer(1)) for each in chosen if isinstance(each, torch.SymInt) and _is_given(each)
        )


def _end(given: Mapping[str, Any]) -> object:
    start, length = given.get("start"), given.get("length")
    return start + length if type(start) is int and type(length) is int and start >= 0 else None


def _of_slice(given: Mapping[str, Any]) -> object:
    return _least(slice(given.get("start"), given.get("end")))


def _of_parts(given: Mapping[str, Any]) -> object:
    """The most elements that lie before, or behind, one of the places at which it is cut."""
    places = given.get("indices", given.get("indices_or_sections", given.get("tensor_indices_or_sections")))
    known = [abs(each) for each in places if type(each) is int] if isinstance(places, list | tuple) else []
    return max((each for each in known if each < LEAST), default=0)  # of more, PyTorch asks


def _of_sizes(given: Mapping[str, Any]) -> object:
    sizes = given.get("split_sizes", given.get("split_size_or_sections", given.get("split_size")))
    known = [each for each in sizes if type(each) is int] if isinstance(sizes, list | tuple) else []
    return sum(known) if isinstance(sizes, list | tuple) and len(known) < len(sizes) else 0


_TAKING: dict[object, tuple[tuple[str, ...], int | None, Callable[[Mapping[str, Any]], object]]] = {
    **dict.fromkeys((torch.narrow, Tensor.narrow, torch.narrow_copy, Tensor.narrow_copy), (("dim", "start", "length"), None, _end)),
    **dict.fromkeys((torch.topk, Tensor.topk), (("k", "dim"), -1, lambda given: given.get("k"))),
    Tensor.unfold: (("dimension", "size", "step"), None, lambda given: given.get("size")),
    **dict.fromkeys((torch.tensor_split, Tensor.tensor_split), (("indices_or_sections", "dim"), 0, _of_parts)),
    **dict.fromkeys((torch.vsplit, Tensor.vsplit), (("indices_or_sections",), 0, _of_parts)),
    **dict.fromkeys((torch.hsplit, Tensor.hsplit), (("indices_or_sections",), 1, _of_parts)),
    **dict.fromkeys((torch.dsplit, Tensor.dsplit), (("indices_or_sections",), 2, _of_parts)),
    **dict.fromkeys((torch.split, Tensor.split), (("split_size_or_sections", "dim"), 0, _of_sizes)),
    **dict.fromkeys((torch.split_with_sizes, Tensor.split_with_sizes), (("split_sizes", "dim"), 0, _of_sizes)),
    **dict.fromkeys((torch.ops.aten.slice, torch.ops.aten.slice.Tensor), (("dim", "start", "end", "step"), 0, _of_slice)),
}


_SQUEEZING = (torch.squeeze, Tensor.squeeze)
TAKING: tuple[object, ...] = (Tensor.__getitem__, Tensor.__setitem__, *_TAKING, *_SQUEEZING)


def _least(place: slice) -> int:
    """The elements that must be there for a slice of a known number of them; 0 for others, whose size says what there is."""
    start, stop = place.start, place.stop
    if type(start) is int and start < 0 and (stop is None or (type(stop) is int and stop < 0)):
        return -start
    return stop if type(stop) is int and (start is None or (type(start) is int and start >= 0)) else 0


def _clamped(x: Tensor, index: object) -> object:
    places = _sliced(x, index)
    if not any(size is not None and _ends(place) for place, size in places):
        return index
    return tuple(_within(place, size) if size is not None and _ends(place) else place for place, size in places)


def _sliced(x: Tensor, index: object) -> list[tuple[Any, torch.SymInt | None]]:
    """Every place of an index, with the size of its dim where that is symbolic; nothing for an index that takes elements by data."""
    places: tuple[Any, ...] = tuple(map(_of_python, index if isinstance(index, tuple) else (index,)))
    if not all(each is None or each is ... or type(each) in (int, slice) for each in places):
        return []
    taken = sum(each is not None and each is not ... for each in places)
    dim, found = 0, list[tuple[Any, torch.SymInt | None]]()
    for place in places:
        size = None
        if place is ...:
            dim += x.dim() - taken
        elif place is not None:
            size = x.shape[dim] if dim < x.dim() else None
            dim += 1
        found.append((place, size if isinstance(size, torch.SymInt) else None))
    return found


def _of_python(place: Any) -> Any:
    """Integers of NumPy as Python's."""
    if isinstance(place, slice):
        return slice(*map(_of_python, (place.start, place.stop, place.step)))
    return int(place) if isinstance(place, np.integer) else place


def _within(place: slice, size: torch.SymInt) -> slice:
    if place.stop is not None:
        return place if statically_known_true(size >= place.stop) else slice(None, torch.sym_min(size, place.stop))
    return place if statically_known_true(size >= -place.start) else slice(torch.sym_max(size, -place.start) + place.start, None)
