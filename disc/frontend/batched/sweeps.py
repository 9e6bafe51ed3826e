"""Launches of trained blocks, forward or backward, as one native call for each way (`_ral.Sweep`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from disc.frontend.batched.differentiate import Gradient, Weight
from disc.frontend.batched.products import Products
from disc.frontend.batched.regions import Kind
from disc.frontend.batched.rows import RowClass
from disc.frontend.batched.trained_blocks import Layouts, TrainedBlock, gradient_tables
from disc.ral import _ral

if TYPE_CHECKING:
    from disc.ral.executable import Executable

TABLE, NUMBERS, ROWS, ADDED = range(4)  # RAL_SWEEP_...
FIRST, RESULTS = 0, 1  # the starts of a launch: of what its calls keep and make, and of its results
Value = tuple[int, int, int, int, int]
# A table: rows of a class, their gradients, the flags of those that have some, room for what a launch adds to them (with a number), what
# calls of a kind keep or make (with its place), or a weight (with whether it is turned).
Name = tuple[str, Any, int]


class Sweep(ABC):
    """Blocks of kinds as those of a sweep. tables: the names of its tables, in order."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.kinds = tuple(kinds)
        self.number = {kind: place for place, kind in enumerate(kinds)}
        self._weights: dict[Name, tuple[Weight, Products]] = {}
        self._tables: dict[Name, int] = {}
        self._starts = RESULTS + max((len(kind.results) for kind in kinds), default=0)
        self._native = _ral.Sweep([self.block(kind) for kind in kinds])

    @property
    def tables(self) -> list[Name]:
        return list(self._tables)

    @abstractmethod
    def block(self, kind: Kind) -> tuple[_ral.Context, list[Value], list[Value], list[Value], int]:
        """Its program, inputs, results, what says which of its calls are needed, and how many vectors it has."""

    def launch(self, kind: Kind, count: int, offset: int, first: int | None, starts: Sequence[int] | None) -> list[int]:
        """A launch as the native call takes it. offset: where its vectors begin. One that has no such places, or another kind, is left
        to the caller."""
        if first is None or starts is None or kind not in self.number:
            return [-1, count, offset, *[0] * self._starts]
        return [self.number[kind], count, offset, first, *starts, *[0] * (self._starts - RESULTS - len(starts))]

    def run(
        self, tables: Mapping[Name, Tensor], used: Sequence[int], launches: np.ndarray, indices: np.ndarray, begin: int, *, backwards: bool
    ) -> tuple[int, bytes]:
        """As `ral_run_sweep`: (next, which ran)."""
        return self._native.run(tuple(map(tables.__getitem__, self._tables)), list(used), launches, indices, begin, backwards)

    def table(self, what: str, of: object, place: int = 0) -> int:
        """The number of a table."""
        return self._tables.setdefault((what, of, place), len(self._tables))

    def _whole(self, classes: Sequence[RowClass]) -> list[Value]:
        return [(TABLE, self.table("rows", each), 0, 0, 0) for each in classes]

    def weights(self, layouts: Layouts) -> dict[Name, Tensor]:
        """The tables that are weights."""
        return {name: layouts.of([weight], products)[0] for name, (weight, products) in self._weights.items()}

    def _inputs_of(self, weights: Sequence[Weight], products: Products) -> list[Value]:
        for each in weights:
            self._weights.setdefault(("weight", id(each.tensor), each.turned), (each, products))
        return [(TABLE, self.table("weight", id(each.tensor), each.turned), 0, 0, 0) for each in weights]


class Forward(Sweep):
    """Gives results, and what gradients need of them."""

    def block(self, kind: Kind) -> tuple[_ral.Context, list[Value], list[Value], list[Value], int]:
        """As of `Sweep`."""
        block, rows = kind.lifted, len(kind.rows)
        assert isinstance(block, TrainedBlock)
        numbers = [(NUMBERS, self.table("rows", each), place, 0, 0) for place, each in enumerate(kind.rows)]
        others = [(NUMBERS, -1, rows + place, 0, 0) for place in range(kind.values)]
        results = [(ROWS, self.table("rows", each), RESULTS + place, 0, 0) for place, each in enumerate(kind.results)]
        kept = [(ROWS, self.table("kept", kind, place), FIRST, 0, 0) for place in range(len(block.kept))]
        inputs = [*self._whole(kind.block.tables()), *numbers, *others, *self._inputs_of(block.weights, block.products)]
        return block.program.context, inputs, [*results, *kept], [], rows + kind.values


class Backward(Sweep):
    """Adds the gradients of what calls were given to those of rows, and gives what those of weights are made of. rooms: tables that have
    to have a row for each call of a launch of a kind."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.rooms: dict[Kind, list[Name]] = {}
        super().__init__(kinds)

    def block(self, kind: Kind) -> tuple[_ral.Context, list[Value], list[Value], list[Value], int]:
        """As of `Sweep`."""
        gradient, executable, products = program_of(kind)
        inputs = self._whole(gradient_tables(kind.block, gradient))
        for each in gradient.inputs:
            if each.kind == "row":
                inputs.append((NUMBERS, self.table("rows", kind.rows[each.place]), each.place, 0, 0))
            elif each.kind == "number":
                inputs.append((NUMBERS, -1, len(kind.rows) + each.place, 0, 0))
            elif each.kind == "result":
                inputs.append((ROWS, self.table("rows", kind.results[each.place]), RESULTS + each.place, 0, 0))
            else:
                inputs.append((ROWS, self.table("kept", kind, each.place), FIRST, 0, 0))
        inputs += [(ROWS, self.table("gradients", kind.results[place]), RESULTS + place, 0, 0) for place in gradient.results]
        inputs += self._inputs_of(gradient.graph.weights, products)
        results: list[Value] = []
        self.rooms[kind] = [("room", kind.rows[place], number) for number, place in enumerate(gradient.rows)]
        for place, room in zip(gradient.rows, self.rooms[kind], strict=True):
            of = kind.rows[place]
            results.append((ADDED, self.table("gradients", of), place, self.table(*room), self.table("flags", of)))
        results += [(ROWS, self.table("made", kind, place), FIRST, 0, 0) for place in range(len(gradient.made))]
        needed = [(ROWS, self.table("flags", each), RESULTS + place, 0, 0) for place, each in enumerate(kind.results)]
        return executable.context, inputs, results, needed, len(kind.rows) + kind.values


def rows_in(table: Tensor) -> int:
    """0 for one of rank 0."""
    return table.shape[0] if table.dim() else 0


def program_of(kind: Kind) -> tuple[Gradient, Executable, Products]:
    """That of the gradient of a kind that may be part of a `Backward`."""
    block = kind.lifted
    assert isinstance(block, TrainedBlock)
    assert isinstance(block.gradient, tuple)
    gradient, executable = block.gradient
    assert executable is not None
    return gradient, executable, block.products


def may_go_back(kind: Kind) -> bool:
    """Whether a kind may be part of a `Backward`: its gradient is a program, which adds to rows of dtypes that the runtime adds."""
    found = kind.lifted.gradient if isinstance(kind.lifted, TrainedBlock) else None
    if not isinstance(found, tuple) or found[1] is None:
        return False
    return all(kind.rows[place].dtype in (torch.float32, torch.float64) for place in found[0].rows)


class Sweeps:
    """The sweeps that a model made last: kinds are the same from batch to batch, until blocks are compiled anew."""

    def __init__(self) -> None:
        self._forward, self._backward = Forward(()), Backward(())

    def forward(self, kinds: Sequence[Kind]) -> Forward:
        """That of these kinds."""
        found = self._forward
        if found.kinds != tuple(kinds):
            found = self._forward = Forward(kinds)
        return found

    def backward(self, kinds: Sequence[Kind]) -> Backward:
        """That of these kinds."""
        found = self._backward
        if found.kinds != tuple(kinds):
            found = self._backward = Backward(kinds)
        return found
