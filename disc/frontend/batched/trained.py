"""Batches whose results have gradients: what ran, by a recorder or by a native walk, and the model whose batches these are."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from disc.frontend.batched.gradients import Launches, Target, attached
from disc.frontend.batched.launches import Table
from disc.frontend.batched.model import Model
from disc.frontend.batched.recorder import Recorder, Tensors
from disc.frontend.batched.regions import Kind
from disc.frontend.batched.reused import Loan, Memory
from disc.frontend.batched.rows import Row, RowClass, own_rows
from disc.frontend.batched.structural import UNKNOWN, Recursion, Walked
from disc.frontend.batched.sweeps import Forward, Name, Sweeps, rows_in
from disc.frontend.batched.trained_blocks import Layouts, TrainedBlock

if TYPE_CHECKING:
    from disc.ral._ral import Launch


class _Noted:
    """Launches of one kind that a recorder ran together. first: as of `Launches`."""

    def __init__(self, kind: Kind, launches: Sequence[Launch], first: int | None) -> None:
        self.kind, self._first = kind, first
        self.given: list[tuple[Row, ...]] = [each.rows for each in launches]
        self._made: list[tuple[Row, ...]] = [each.results for each in launches]
        self._values = [each.values for each in launches]

    def rows(self) -> list[Row]:
        return [row for rows in (*self.given, *self._made) for row in rows]

    def launches(self) -> Launches:
        """As they lie in tables."""
        count = len(self._values)
        values = torch.tensor(self._values, dtype=torch.int64).reshape(count, self.kind.values).t()
        numbers = torch.cat([self._places(self.given, len(self.kind.rows)), values]).flatten()
        return Launches(self.kind, count, numbers, self._starts(), self._first, self._places(self._made, len(self.kind.results)))

    def _starts(self) -> tuple[int, ...] | None:
        starts = tuple(row.place for row in self._made[0])
        follow = all(row.place == start + number for number, rows in enumerate(self._made) for row, start in zip(rows, starts, strict=True))
        return starts if follow else None

    @staticmethod
    def _places(groups: Sequence[tuple[Row, ...]], count: int) -> Tensor:
        return torch.tensor([[row.place for row in rows] for rows in groups], dtype=torch.int64).reshape(len(groups), count).t()


class GradientRecorder(Recorder):
    """Keeps what ran (`Ran`), and gives rows that become tensors their gradients."""

    def __init__(self, memory: Memory, sweeps: Sweeps, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.memory, self.layouts, self.sweeps = memory, Layouts(), sweeps
        self._kept: dict[Kind, list[Table]] = {}
        self._calls: dict[Kind, int] = {}  # that kept something
        self._ran: list[tuple[int, int]] = []  # of the group that runs: first row and number of what launches kept
        self._noted: list[_Noted] = []
        self._leaves: dict[int, Tensor] = {}  # weights and given tensors that may have gradients, by identity
        self._inputs: dict[int, Row] = {}  # the rows of the latter

    # --- forward ----------------------------------------------------------------------------------------------------------------

    def constant(self, launch: Launch) -> None:
        """What depends on weights alone is computed once, and has gradients like anything else: those of all calls meet in its one row."""
        known = launch.kind in self._constants
        super().constant(launch)
        if not known:
            self._keep(launch.kind, [launch], None)

    def compute(self, row: Row) -> None:
        with torch.no_grad():
            super().compute(row)
        self._attach([row])

    def settle(self) -> None:
        """What gradients need is put aside, too."""
        super().settle()
        self._place_all()

    def _place_all(self) -> None:
        with torch.no_grad():
            self.place([row for each in self._noted for row in each.rows() if row.place < 0 and row.value is not None])

    def hand_out(self, rows: Sequence[Row]) -> None:
        self._attach(rows)

    def _run_group(self, group: list[Launch]) -> None:
        self._ran = []
        with torch.no_grad():
            super()._run_group(group)
        ran = [each for each in group if each.error is None]
        if ran:
            self._keep(ran[0].kind, ran, self._ran[0][0] if sum(count for _, count in self._ran) == len(ran) else None)
            self._attach([row for each in ran for row in each.results])  # those that PyTorch computed

    def call(self, kind: Kind, tables: Tensors, rows: Tensors, values: Tensors, out: Tensors) -> None:
        """Keeps what the gradient needs, where the block gives some."""
        block = kind.lifted
        if not isinstance(block, TrainedBlock):
            super().call(kind, tables, rows, values, out)
            return
        kept, first, count = self._kept.setdefault(kind, [Table(each, 0) for each in block.kept]), self._calls.get(kind, 0), len(out[0])
        for each in kept:
            each.used = first  # also where the last launch failed
        block.run(tables, rows, values, [*out, *(each.take(count) for each in kept)], self.layouts)
        self._calls[kind] = first + count
        self._ran.append((first, count))

    def _keep(self, kind: Kind, launches: Sequence[Launch], first: int | None) -> None:
        noted = _Noted(kind, launches, first)
        self._noted.append(noted)
        self._leaves |= {id(weight): weight for weight, _ in kind.weights if weight.requires_grad}
        for row in (row for rows in noted.given for row in rows):
            if row.launch is None and row.value is not None and row.value.requires_grad and id(row.value) not in self._leaves:
                self._leaves[id(row.value)] = row.value
                self._inputs[id(row.value)] = row

    def _attach(self, rows: Sequence[Row]) -> None:
        """Gives the rows that have values gradients."""
        found = list({id(row): row for row in rows if row.launch is not None and _may_need(row.value)}.values())
        values = [row.value for row in found if row.value is not None]
        made = attached(self, len(self._noted), values, [_target(row) for row in found], list(self._leaves.values()))
        for row, value in zip(found, made, strict=True):
            row.value, row.version = value, value._version

    # --- backward ---------------------------------------------------------------------------------------------------------------

    def before(self, count: int) -> Sequence[Launches]:
        """As of `Ran`."""
        self._place_all()
        return [each.launches() for each in self._noted[:count]]

    def rows_of(self, kind: RowClass) -> Tensor:
        table = self.tables[kind]
        return table.data[: table.used]

    def kept_by(self, kind: Kind) -> Sequence[Tensor]:
        """As of `Ran`."""
        return [each.data[: self._calls.get(kind, 0)] for each in self._kept.get(kind, [])]

    def given(self, leaf: Tensor) -> tuple[RowClass, int] | None:
        """As of `Ran`."""
        row = self._inputs.get(id(leaf))
        return (row.kind, row.place) if row is not None and row.place >= 0 else None


def _may_need(value: Tensor | None) -> bool:
    # not by `requires_grad`, which a view of a weight has even where no gradients are recorded
    return value is not None and value.is_floating_point() and value.grad_fn is None


def _target(row: Row) -> Target:
    return lambda: (row.kind, row.place)


class WalkedBatch:
    """A batch that a native walk has found (`Ran`)."""

    def __init__(self, recursion: Recursion, walked: Walked, memory: Memory, sweeps: Sweeps) -> None:
        self.memory, self.layouts, self.sweeps = memory, Layouts(), sweeps
        self._recursion = recursion
        self._walked = walked
        loan = Loan(memory)
        weakref.finalize(self, loan.end)
        self._tables = {kind: loan.tensor((count, *kind.shape), kind.dtype)
                        for kind, count in zip(recursion.classes, walked.used, strict=True)}  # fmt: skip
        calls, used = dict.fromkeys(recursion.kinds, 0), dict.fromkeys(self._tables, 0)
        indices = torch.from_numpy(walked.indices)
        self._launches: list[Launches] = []
        records: list[list[int]] = []
        sweep = sweeps.forward(recursion.kinds)
        for block, count, offset in walked.batches.tolist():
            kind = recursion.kinds[block]
            starts = []
            for each in kind.results:
                starts.append(used[each])
                used[each] += count
            vectors = len(kind.rows) + kind.values
            self._launches.append(Launches(kind, count, indices[offset : offset + vectors * count], tuple(starts), calls[kind]))
            records.append(sweep.launch(kind, count, offset, calls[kind], starts))
            calls[kind] += count
        self._kept = {kind: [loan.tensor((count, *each.shape), each.dtype) for each in _block(kind).kept] for kind, count in calls.items()}
        self._run(sweep, np.array(records, np.int64).reshape(len(records), -1 if records else 3))

    def _run(self, sweep: Forward, launches: np.ndarray) -> None:
        tables: dict[Name, Tensor] = {("rows", kind, 0): each for kind, each in self._tables.items()}
        tables |= {("kept", kind, place): each for kind, kept in self._kept.items() for place, each in enumerate(kept)}
        weights = sweep.weights(self.layouts)
        tables |= weights
        used = [rows_in(tables[name]) if name in weights else 0 for name in sweep.tables]
        sweep.run(tables, used, launches, self._walked.indices, 0, backwards=False)

    def results(self) -> list[object]:
        """Those of the instances, with gradients."""
        columns: list[Sequence[Tensor]] = []
        weights = {id(weight): weight for kind in self._recursion.kinds for weight, _ in kind.weights if weight.requires_grad}
        for number, kind in enumerate(self._recursion.results):
            places = self._walked.rows[:, number].tolist()
            values = own_rows(self._tables[kind][places])
            targets = [_fixed(kind, place) for place in places]
            leaves = list(weights.values()) if kind.dtype.is_floating_point else []
            columns.append(attached(self, len(self._launches), values, targets, leaves))
        return [self._recursion.filled(each) for each in zip(*columns, strict=True)]

    def before(self, count: int) -> Sequence[Launches]:
        """As of `Ran`."""
        return self._launches[:count]

    def rows_of(self, kind: RowClass) -> Tensor:
        """As of `Ran`."""
        return self._tables[kind]

    def kept_by(self, kind: Kind) -> Sequence[Tensor]:
        """As of `Ran`."""
        return self._kept[kind]

    def given(self, leaf: Tensor) -> None:
        """As of `Ran`: numbers are all that a walk takes from instances."""


def _block(kind: Kind) -> TrainedBlock:
    assert isinstance(kind.lifted, TrainedBlock)
    return kind.lifted


def _fixed(kind: RowClass, place: int) -> Target:
    return lambda: (kind, place)


class TrainedModel(Model):
    """A model whose batches have gradients. Weights are no part of blocks: they may change from batch to batch."""

    gradients: ClassVar[bool] = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._memory, self._sweeps = Memory(), Sweeps()

    def mode(self) -> contextlib.AbstractContextManager[None]:
        return torch.enable_grad()

    def recorder(self) -> Recorder:
        return GradientRecorder(self._memory, self._sweeps, self._lower, self._programs_now(), self.techniques)

    def is_stale(self, kind: Kind) -> bool:
        """What blocks were made with are the elements of frozen weights, and which are frozen."""
        return any(
            weight.requires_grad != contents.trained or (not contents.trained and not contents.are_those_of(weight))
            for weight, contents in kind.weights
        )

    def walk(self, recursion: Recursion, instances: Sequence[object]) -> tuple[list[object], int] | None:
        if not all(isinstance(kind.lifted, TrainedBlock) for kind in recursion.kinds):
            return None
        try:
            walked = recursion.arranged(instances)
            with torch.no_grad():
                batch = WalkedBatch(recursion, walked, self._memory, self._sweeps)
        except UNKNOWN:
            return None
        recursion.count(walked)
        return batch.results(), len(walked.batches)
