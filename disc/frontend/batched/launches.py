"""The tables that hold what blocks compute, and the compiled blocks of a model as one schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from disc.frontend.batched.regions import Kind
from disc.frontend.batched.rows import RowClass
from disc.ral.schedule import Numbers, Schedule, ScheduledBlock

if TYPE_CHECKING:
    from disc.ral.executable import Executable


class Table:
    """Rows of one kind, `rows` at first; grows by doubling."""

    def __init__(self, kind: RowClass, rows: int) -> None:
        self.kind = kind
        self.used = 0
        self.data = torch.empty((rows, *kind.shape), dtype=kind.dtype)

    def reserve(self, count: int) -> None:
        if self.used + count > self.data.shape[0]:
            data = torch.empty((max(2 * self.data.shape[0], self.used + count), *self.kind.shape), dtype=self.kind.dtype)
            data[: self.used] = self.data[: self.used]
            self.data = data

    def take(self, count: int) -> torch.Tensor:
        """The next rows, to be written."""
        self.reserve(count)
        self.used += count
        return self.data[self.used - count : self.used]


class Programs:
    """The compiled blocks of a model as one schedule. classes: of the tables that they read and write. rows: of each table, how many its
    last batch had."""

    def __init__(self) -> None:
        self.classes: list[RowClass] = []
        self.rows: dict[RowClass, int] = {}
        self._numbers: dict[RowClass, int] = {}
        self._blocks: list[ScheduledBlock] = []
        self._schedule: Schedule | None = None

    def admit(self, kind: Kind) -> None:
        """Adds the block of a kind, if it is a compiled program that takes nothing but rows and numbers."""
        executable = executable_of(kind)
        if executable is None or (kind.lifted is not None and kind.lifted.takes_weights):
            return
        kind.targets = tuple(map(self._number, kind.results))
        self._blocks.append(ScheduledBlock(executable, tuple(map(self._number, kind.rows)), kind.values, kind.targets))
        kind.slot = len(self._blocks) - 1
        self._schedule = None

    def run(self, tables: Sequence[Table], batches: Numbers, indices: Numbers) -> None:
        """As `Schedule.run`, on the tables of `classes`. Raises what a block raises."""
        if self._schedule is None:
            self._schedule = Schedule(self._blocks)
        self._schedule.run([each.data for each in tables], [each.used for each in tables], batches, indices)

    def _number(self, kind: RowClass) -> int:
        if kind not in self._numbers:
            self._numbers[kind] = len(self.classes)
            self.classes.append(kind)
        return self._numbers[kind]


def executable_of(kind: Kind) -> Executable | None:
    """The compiled program of a kind; None where it runs in another way."""
    return kind.lifted.executable if kind.lifted is not None else None
