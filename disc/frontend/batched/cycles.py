"""Structures without an end, and where in the user's code an error comes from."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from itertools import pairwise

import torch

from disc.errors import CycleError
from disc.frontend.batched.rows import Row
from disc.frontend.batched.values import CONSTANTS

_UNKNOWN = ".?"
_PLAIN = (*CONSTANTS, torch.nn.Module, torch.Tensor, Row)


def cycle(calls: Sequence[tuple[object, ...]]) -> CycleError | None:
    """The error for calls of one function inside of each other, two of which have the same structure; None where there are none.

    calls: their arguments, outermost first.
    """
    structures = _structures(calls)
    last: dict[int, int] = {}
    for number, each in enumerate(structures):
        first = last.get(id(each))
        if each is not None and first is not None:
            return CycleError(f"a cycle: {_edges(structures[first : number + 1])} is where it began")
        last[id(each)] = number
    return None


def _structures(calls: Sequence[tuple[object, ...]]) -> list[object]:
    """The argument of each call that is the structure. One that all calls are given, as a list of what was seen, is none unless it holds
    itself, or nothing but tensors differs between calls."""
    places = [place for place in range(min(map(len, calls))) if not all(isinstance(each[place], _PLAIN) for each in calls)]
    moving = [place for place in places if any(each[place] is not calls[0][place] for each in calls)]
    itself = [place for place in places if _edge(calls[-1][place], calls[-1][place]) != _UNKNOWN]
    if not moving and not itself and any(_constants(each) != _constants(calls[0]) for each in calls):
        return [None for _ in calls]
    chosen = moving or itself or places
    return [next((each[place] for place in chosen if not isinstance(each[place], _PLAIN)), None) for each in calls]


def _constants(arguments: Sequence[object]) -> list[object]:
    return [each for each in arguments if isinstance(each, CONSTANTS)]


def _edges(structures: Sequence[object]) -> str:
    """ "Tree.left.children[2]"."""
    text = type(structures[0]).__name__
    for parent, child in pairwise(structures):
        text += _edge(parent, child)
    return text


def _edge(parent: object, child: object) -> str:
    slots = [name for kind in type(parent).__mro__ for name in getattr(kind, "__slots__", ())]
    fields = {**getattr(parent, "__dict__", {}), **{name: getattr(parent, name, None) for name in slots}}
    for name, value in fields.items():
        if value is child:
            return f".{name}"
        if isinstance(value, list | tuple):
            for number, each in enumerate(value):
                if each is child:
                    return f".{name}[{number}]"
    return _UNKNOWN


def line_of(error: BaseException, files: set[str]) -> str:
    """ "file.py:12", the innermost line of the user's functions in an error's traceback; "" where there is none."""
    found = [f"{each.filename}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__) if each.filename in files]
    return found[-1] if found else ""
