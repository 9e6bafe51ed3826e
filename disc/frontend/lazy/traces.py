"""Traces of recorded calls, as a tree: programs that begin alike share their first calls.

A call is the same as another where the function, the structure of its arguments, what is no tensor and no number in them, and which
values and inputs they are, agree. Inputs agree in dtype, rank, and what they share memory with. Sizes are no part of it; numbers are one
only as long as they have always been the same, and floats where only they can be computed with (`calls.VARYING`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from disc.frontend.lazy.calls import Input, Value

if TYPE_CHECKING:
    from disc.frontend.lazy.compiled import Variant
    from disc.frontend.lazy.tensors import LazyTensor

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
    """A call behind the calls of `before`.

    first: the number of the first value that it makes. scalars: Python numbers of its arguments that have always been the same, None for
    others. floats: the dtype in which floats among them may differ, None where they may not. results: the leaves of `form`, or a single
    one; line: of the user, "file.py:3"; trace: the same as PyTorch writes it. ahead: compiled traces that go through it, or end here.
    alone: it cannot be part of a compiled program; writes: it changes an argument.
    """

    func: Callable[..., Any]
    args: Any
    kwargs: Any
    context: Context
    scalars: list[float | None]
    before: Step | None
    first: int
    floats: torch.dtype | None = None
    results: tuple[Result, ...] = ()
    form: pytree.TreeSpec | None = None
    line: str = ""
    trace: str = ""
    ahead: list[Variant] = field(default_factory=list)
    alone: bool = False
    writes: bool = False
    children: dict[Hashable, list[Step]] = field(default_factory=dict)
    segment: Segment = field(default_factory=lambda: Segment())

    def steps(self) -> list[Step]:
        """From the first one to this one."""
        found, step = list[Step](), self
        while step.before is not None:
            found.append(step)
            step = step.before
        return found[::-1]

    def follow(self, key: Hashable, scalars: list[float]) -> Step | None:
        """The call that comes next, if it is known."""
        known = self.children.get(key)
        if known is None:
            return None
        if known[0].scalars == scalars:
            return known[0]
        for step in known:
            if all(mine is None or mine == each for mine, each in zip(step.scalars, scalars, strict=True)):
                return step
        return next((step for step in known if step.admit(scalars)), None)

    def admit(self, scalars: Sequence[float]) -> bool:
        """Whether the step is for these numbers from now on."""
        general = [mine if mine == each else None for mine, each in zip(self.scalars, scalars, strict=True)]
        changed = [(mine, each) for mine, each, now in zip(self.scalars, scalars, general, strict=True) if now is None and mine is not None]
        if any(self.floats is None if type(mine) is float else mine < FEWEST_GENERAL or each < FEWEST_GENERAL for mine, each in changed):
            return False
        self.scalars = general
        return True


@dataclass(eq=False)
class Segment:
    """A trace that has ended at a step.

    runs: by PyTorch, since a program was made of it; written: inputs that it writes; kept: those that were the same tensors
    the time before; inputs: of the last time that PyTorch ran it; refused: why it is not compiled.
    """

    runs: int = 0
    written: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    inputs: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    refused: str = ""
    variants: list[Variant] = field(default_factory=list)

    def note(self, run: Run) -> None:
        """A run of the trace by PyTorch."""
        self.runs += 1
        self.written |= run.written()
        self.kept = frozenset(number for number, (held, each) in enumerate(zip(self.inputs, run.inputs, strict=False)) if held() is each)
        self.inputs = [weakref.ref(each) for each in run.inputs]


def root(context: Context) -> Step:
    """Where traces begin."""
    return Step(root, (), {}, context, [], None, 0)


@dataclass
class Bound:
    """Sizes of a run as symbols of a compiled trace.

    inputs, steps: how many have been looked at; symbols: their values so far; unchecked: numbers of guards; fits: whether nothing speaks
    against the trace so far.
    """

    unchecked: list[int]
    inputs: int = 0
    steps: int = 0
    symbols: dict[str, float] = field(default_factory=dict)
    fits: bool = True


@dataclass(eq=False)
class Run:
    """A trace while it is recorded.

    inputs: tensors that were there before; given: as the program has them, lazy ones of earlier traces too; numbers: by identity;
    storages: the first input that lies in each; gradients: leaf → the input that is its gradient so far; versions: when an input was first
    seen. scalars: of each step. proxies: the values. pending: how many steps have not been run; after a first one that had to be, none is
    (deferring). bound: what compiled traces have found of its sizes so far.
    """

    here: Step
    inputs: list[torch.Tensor] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    storages: dict[int, int] = field(default_factory=dict)
    gradients: dict[int, int] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    scalars: list[tuple[float, ...]] = field(default_factory=list)
    proxies: list[weakref.ref[LazyTensor]] = field(default_factory=list)
    pending: int = 0
    deferring: bool = True
    bound: dict[Variant, Bound] = field(default_factory=dict)

    def live(self) -> list[int]:
        return [number for number, each in enumerate(self.proxies) if each() is not None]

    def written(self) -> frozenset[int]:
        return frozenset(number for number, each in enumerate(self.inputs) if each._version != self.versions[number])
