"""Traces of recorded calls, as a tree: programs that begin alike share their first calls.

A call is the same as another where the function, the structure of its arguments, what is no tensor and no number in them, and which
values and inputs they are, agree. Inputs agree in dtype, rank, and what they share memory with. Sizes are no part of it; numbers are one
only as long as they have always been the same, and floats where only they can be computed with (`calls.VARYING`). The tree and the trace
that is being recorded (`Run`) are in C++ (`_ral.Follower`), which compares calls with it; what Python knows of a call is a `Step`.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from disc.frontend.lazy.calls import Input, Value
from disc.ral._ral import LazyRun as Run

if TYPE_CHECKING:
    from disc.frontend.lazy.variants import Variant

FEWEST_GENERAL = 2  # integers below stay what they are: PyTorch decides by 0 and 1, and -1 has a meaning


@dataclass(frozen=True, slots=True)
class Made:
    """A new tensor. root: whose memory it has, where it is a view."""

    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_leaf: bool
    root: Value | Input | None


Result = Made | Value | Input | None


@dataclass(frozen=True)
class Context:
    """What PyTorch is told apart from arguments. autocast: the dtype, where it is on."""

    grad: bool
    autocast: torch.dtype | None


@dataclass(eq=False)
class Step:
    """A call behind the calls of `before`. number: in the tree (`_ral.Follower`).

    first: the number of the first value that it makes. scalars: Python numbers of its arguments that have always been the same, None for
    others, as of when a trace was compiled last. floats: the dtype in which floats among them may differ, None where they may not.
    results: the leaves of `form`, or a single one; line: of the user, "file.py:3"; trace: the same as PyTorch writes it. ahead: compiled
    traces that go through it, or end here. alone: it cannot be part of a compiled program; writes: it changes an argument. turned: it, or
    one before, wrote what requires gradients to what did not, so that facts of values are no longer what they were; turns: the values that
    it wrote so. passed: gradients of other values that are kept go through one that it makes. ends: the trace ends behind it, as
    gradients of what it makes are asked for later, which are no results of the program that makes both, or a step of an optimizer ends.
    branches: how many calls have been recorded behind it, by their functions.
    """

    func: Callable[..., Any]
    args: Any
    kwargs: Any
    context: Context
    before: Step | None
    first: int
    number: int = -1
    scalars: list[float | None] = field(default_factory=list)
    floats: torch.dtype | None = None
    results: tuple[Result, ...] = ()
    form: pytree.TreeSpec | None = None
    line: str = ""
    trace: str = ""
    ahead: list[Variant] = field(default_factory=list)
    alone: bool = False
    writes: bool = False
    turned: bool = False
    turns: frozenset[int] = frozenset()
    passed: bool = False
    ends: bool = False
    branches: Counter[Callable[..., Any]] = field(default_factory=Counter)
    segment: Segment = field(default_factory=lambda: Segment())

    def steps(self) -> list[Step]:
        """From the first one to this one."""
        found, step = list[Step](), self
        while step.before is not None:
            found.append(step)
            step = step.before
        return found[::-1]


_marks: dict[int, tuple[weakref.ref[torch.Tensor], object]] = {}


def mark_of(tensor: torch.Tensor) -> object:
    """An object of a tensor's own, for as long as that lives."""
    key = id(tensor)
    known = _marks.get(key)
    if known is None:
        known = _marks[key] = weakref.ref(tensor, lambda _: _marks.pop(key, None)), object()
    return known[1]


def forget_mark(tensor: torch.Tensor) -> None:
    """Has nothing refer to a tensor weakly: PyTorch swaps none that something refers to so."""
    _marks.pop(id(tensor), None)


@dataclass(eq=False)
class History:
    """What runs by PyTorch have shown, of one trace or of traces that differ by numbers of steps alone.

    runs: since a program was made; written: inputs that they write; kept: those that were the same tensors the time before; inputs: marks
    of those of the last time, shapes: theirs; varied: dims that have not had one size, as input and place.
    """

    runs: int = 0
    written: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    inputs: list[object] = field(default_factory=list)
    shapes: list[torch.Size] = field(default_factory=list)
    varied: frozenset[tuple[int, int]] = frozenset()

    def note(self, run: Run) -> None:
        """A run by PyTorch."""
        self.runs += 1
        inputs = run.inputs
        self.written |= frozenset(run.written())
        marks = [mark_of(each) for each in inputs]
        self.kept = frozenset(number for number, (before, now) in enumerate(zip(self.inputs, marks, strict=False)) if before is now)
        self.inputs = marks
        shapes = [each.shape for each in inputs]
        self.varied |= frozenset((number, dim) for number, (before, now) in enumerate(zip(self.shapes, shapes, strict=False))
                                 for dim, (was, size) in enumerate(zip(before, now, strict=True)) if was != size)  # fmt: skip
        self.shapes = shapes


@dataclass(eq=False)
class Segment:
    """A trace that has ended at a step. refused: why it is not compiled."""

    history: History = field(default_factory=History)
    refused: str = ""
    variants: list[Variant] = field(default_factory=list)


def root(context: Context, number: int) -> Step:
    """Where traces begin."""
    return Step(root, (), {}, context, None, 0, number)
