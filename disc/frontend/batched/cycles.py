"""Structures without an end, and where in the user's code an error comes from."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from itertools import pairwise

import torch

from disc.errors import CycleError
from disc.frontend.batched.rows import Row
from disc.frontend.batched.values import CONSTANTS

_PLAIN = (*CONSTANTS, torch.nn.Module, torch.Tensor, Row)


def cycle(calls: Sequence[tuple[object, ...]]) -> CycleError | None:
    """The error for calls of one function inside of each other, two of which have the same structure; None where there are none.

    calls: their arguments, outermost first.
    """
    structures = [_structure(each) for each in calls]
    last: dict[int, int] = {}
    for number, each in enumerate(structures):
        first = last.get(id(each))
        if each is not None and first is not None:
            return CycleError(f"a cycle: {_edges(structures[first : number + 1])} is where it began")
        last[id(each)] = number
    return None


def _structure(arguments: Sequence[object]) -> object:
    """The argument that is the structure."""
    return next((each for each in arguments if not isinstance(each, _PLAIN)), None)


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
    return ".?"


def line_of(error: BaseException, files: set[str]) -> str:
    """ "file.py:12", the innermost line of the user's functions in an error's traceback; "" where there is none."""
    found = [f"{each.filename}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__) if each.filename in files]
    return found[-1] if found else ""
