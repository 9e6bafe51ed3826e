"""Calls of blocks by instances, the tables that hold what they compute, and many calls as one native call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from disc.frontend.batched.regions import Kind
from disc.frontend.batched.rows import Row, RowClass
from disc.ral.schedule import Schedule, ScheduledBlock

if TYPE_CHECKING:
    from disc.frontend.batched.recorder import Recorder
    from disc.ral.executable import Executable


class Launch:
    """One call of a block by one instance. results: rows to compute. error: what computing them raised."""

    __slots__ = ("depth", "done", "error", "instance", "kind", "recorder", "results", "rows", "values")

    def __init__(self, recorder: Recorder, kind: Kind, rows: list[Row], values: list[int], depth: int, instance: int) -> None:
        self.recorder = recorder
        self.kind = kind
        self.rows = rows
        self.values = values
        self.depth = depth
        self.instance = instance
        self.done = False
        self.error: Exception | None = None
        self.results = [Row(each, self, depth) for each in kind.results]


class Table:
    """Rows of one kind; grows by doubling."""

    def __init__(self, kind: RowClass) -> None:
        self.kind = kind
        self.used = 0
        self.data = torch.empty((0, *kind.shape), dtype=kind.dtype)

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


class Batches:
    """Groups of launches, each of one kind, in an order in which each reads only what is there or groups before it compute."""

    def __init__(self, groups: Sequence[list[Launch]], table: Callable[[RowClass], Table]) -> None:
        self._groups = groups
        self._classes = list(dict.fromkeys(each for group in groups for each in (*group[0].kind.rows, *group[0].kind.results)))
        self._tables = [table(each) for each in self._classes]
        self._before = [each.used for each in self._tables]

    def place(self) -> None:
        """Gives each result its row, as the native call will: behind those in use, result by result."""
        number = dict(zip(self._classes, self._tables, strict=True))
        for group in self._groups:
            for place, kind in enumerate(group[0].kind.results):
                table = number[kind]
                table.reserve(len(group))
                for row, each in enumerate(group, table.used):
                    each.results[place].place = row
                table.used += len(group)

    def run(self) -> None:
        """Computes the results, whose places are known. Raises what a block raises, with tables as they were."""
        kinds = list(dict.fromkeys(group[0].kind for group in self._groups))
        number = {each: place for place, each in enumerate(self._classes)}
        blocks = [_scheduled(each, number) for each in kinds]
        block = {each: place for place, each in enumerate(kinds)}
        batches, indices = [], list[int]()
        for group in self._groups:
            kind = group[0].kind
            batches.append((block[kind], len(group), len(indices)))
            for place in range(len(kind.rows)):
                indices += [each.rows[place].place for each in group]
            for place in range(kind.values):
                indices += [each.values[place] for each in group]
        try:
            data = [each.data for each in self._tables]
            Schedule(blocks).run(data, self._before, np.array(batches, np.int64), np.array(indices, np.int64))
        except BaseException:
            for table, used in zip(self._tables, self._before, strict=True):
                table.used = used
            raise


def executable_of(kind: Kind) -> Executable | None:
    """The compiled program of a kind; None where it runs in another way."""
    return kind.lifted.executable if kind.lifted is not None else None


def _scheduled(kind: Kind, number: dict[RowClass, int]) -> ScheduledBlock:
    executable = executable_of(kind)
    assert executable is not None
    return ScheduledBlock(executable, _numbers(kind.rows, number), kind.values, _numbers(kind.results, number))


def _numbers(kinds: Sequence[RowClass], number: dict[RowClass, int]) -> tuple[int, ...]:
    return tuple(number[each] for each in kinds)
