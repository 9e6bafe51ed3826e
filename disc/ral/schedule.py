"""Many calls of blocks as one native call: blocks read rows of tables and write rows behind those in use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from disc.ral import _ral

if TYPE_CHECKING:
    from disc.ral.plain_objects import Getter

Numbers = npt.NDArray[np.int64]


class Program(Protocol):
    """What a schedule needs of a program; an `Executable` has it."""

    @property
    def context(self) -> _ral.Context: ...


@dataclass(frozen=True)
class ScheduledBlock:
    """A program whose inputs are the tables that it reads, [rows, ...], in order of first use in `rows`; a vector of row numbers, i64
    [count], for each of `rows`; and `values` further vectors, i64 [count]. Its results are [count, ...].

    rows, results: the numbers of tables among those of the schedule.
    """

    executable: Program
    rows: tuple[int, ...]
    values: int
    results: tuple[int, ...]

    @property
    def tables(self) -> tuple[int, ...]:
        """The tables that it reads, in the order of its inputs."""
        return tuple(dict.fromkeys(self.rows))


class Schedule:
    """Runs batches of the blocks. Several threads may use one at once."""

    def __init__(self, blocks: Sequence[ScheduledBlock]) -> None:
        self.native = _ral.Schedule([(each.executable.context, each.tables, each.rows, each.values, each.results) for each in blocks])

    def run(self, tables: Sequence[Any], used: Sequence[int], batches: Numbers, indices: Numbers) -> list[int]:
        """Runs batches, i64 [n, 3] of (block, count >= 1, offset), in order; returns how many rows of each table are in use then.

        tables: torch tensors [rows, ...], contiguous, which are written. used: how many rows of each hold something already. indices: i64
        [m], where from `offset` on lie the vectors of a batch, of `count` numbers each. The results of a batch take the next `count` rows
        of their tables, in order.

        Raises what a call of the executables raises; CompilerBug for rows that are not in use, and for a table that is too small.
        """
        return self.native.run(tuple(tables), list(used), batches, indices)


@dataclass(frozen=True)
class NodeKind:
    """What is computed for the nodes of one kind.

    block: the number of the block in the schedule. fields: attribute of each field in which such nodes have a child. columns: attribute of
    each column of integers that they have. rows: the vectors of row numbers that the block reads: (field, number of the child's result).
    reads: the columns that its further vectors are.
    """

    block: int
    fields: dict[str, str]
    columns: dict[str, str]
    rows: tuple[tuple[str, int], ...]
    reads: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """Whether an attribute of an object is true, or is None where `is_none`. yes, no: what is known then, another question or a kind."""

    attribute: str
    is_none: bool
    yes: Question | int
    no: Question | int


class Structures:
    """Makes schedules of trees and graphs without cycles, one batch for all nodes of a height and a kind."""

    def __init__(
        self,
        schedule: Schedule,
        kinds: Sequence[NodeKind],
        results: int,
        kind: Question | int = 0,
        check: Callable[[type], dict[str, Getter]] | None = None,
        array_kind: Question | int = 0,
    ) -> None:
        """results: how many each block has. kind: how the kind of an object is found; array_kind: how that of a node of flat arrays is, by
        questions about fields, columns, and further columns that no kind reads. check: called with the type of objects before their
        attributes are read, and again after the type was changed; what it raises ends the walk."""
        self._schedule = schedule.native
        self.fields = tuple(dict.fromkeys(name for each in kinds for name in each.fields))
        asked = [name for name in _attributes(array_kind) if name not in self.fields]
        self.columns = tuple(dict.fromkeys([*(name for each in kinds for name in each.columns), *asked]))
        field, column = ({name: number for number, name in enumerate(names)} for names in (self.fields, self.columns))
        questions: list[tuple[str, bool, int, int]] = []
        _number(kind, questions)
        array_questions: list[tuple[str, bool, int, int]] = []
        _number(array_kind, array_questions)
        place = {name: number for number, name in enumerate((*self.fields, *self.columns))}
        self.native = _ral.Structures(
            list(self.fields),
            list(self.columns),
            [
                (
                    each.block,
                    [(field[name], attribute) for name, attribute in each.fields.items()],
                    [(column[name], attribute) for name, attribute in each.columns.items()],
                    [(field[name], result) for name, result in each.rows],
                    [column[name] for name in each.reads],
                )
                for each in kinds
            ],
            questions,
            results,
            check,
            [(place[name], is_none, yes, no) for name, is_none, yes, no in array_questions],
        )

    def linearize(
        self, kinds: Numbers, children: dict[str, Numbers], columns: dict[str, Numbers], used: Sequence[int]
    ) -> tuple[Numbers, Numbers, Numbers, list[int]]:
        """(batches, indices, rows, used) for `Schedule.run`, of flat arrays with an element for each node, in any order. children: by
        field, the numbers of nodes, -1 where there is none. rows: i64 [nodes, results], where the results of each node will be. used: how
        many rows of each table are in use before, and after the schedule ran.

        Raises CycleError; NodeIndexError, MissingFieldError and NodeKindError for children that are no nodes, missing, or where the kind
        has none.
        """
        own = [children[name] for name in self.fields], [columns[name] for name in self.columns]
        return self.native.linearize(self._schedule, kinds, *own, list(used))

    def arrange(
        self, count: int, children: dict[str, Numbers], columns: dict[str, Numbers], roots: Numbers, used: Sequence[int]
    ) -> tuple[Numbers, Numbers, Numbers, list[int]]:
        """The same of `count` nodes whose arrays say of which kind each is (`array_kind`), where -1 in a column is no number. roots:
        numbers of nodes, i64 [roots]; rows: i64 [roots, results]. Raises as `linearize`."""
        own = [children[name] for name in self.fields], [columns[name] for name in self.columns]
        return self.native.arrange(self._schedule, *own, count, roots, list(used))

    def walk(self, roots: Sequence[object], used: Sequence[int]) -> tuple[Numbers, Numbers, Numbers, list[int]]:
        """The same of Python objects; rows: i64 [roots, results]. An object that is reached twice is computed once.

        Raises StructureError; whatever attributes of the objects raise.
        """
        return self.native.walk(self._schedule, list(roots), list(used))


def _attributes(node: Question | int) -> list[str]:
    """What the questions are about."""
    return [] if isinstance(node, int) else [node.attribute, *_attributes(node.yes), *_attributes(node.no)]


def _number(node: Question | int, questions: list[tuple[str, bool, int, int]]) -> int:
    """Adds the questions of a tree to the list; its number, or ~kind."""
    if isinstance(node, int):
        return ~node
    place = len(questions)
    questions.append((node.attribute, node.is_none, 0, 0))
    questions[place] = (node.attribute, node.is_none, _number(node.yes, questions), _number(node.no, questions))
    return place
