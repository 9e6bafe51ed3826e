"""A model over trees and graphs: a program for each kind of node, and what finds the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from disc.artifact.manifest import STORAGE
from disc.artifact.structures import NODES, ROOTS, KindRecord, StructuresRecord, fields_of, tensor_names
from disc.errors import (
    InputRankError,
    InputTypeError,
    OutOfMemoryError,
    ShapeConstraintError,
    TooManyNodesError,
)
from disc.ral import _ral
from disc.ral.block_programs import BlockPrograms, as_array, given_out
from disc.ral.gpu_programs import Program
from disc.ral.nested import flat_arrays
from disc.ral.plain_objects import NotPlain, check_plain
from disc.ral.schedule import NodeKind, Numbers, Question, Schedule, ScheduledBlock, Structures

Array = npt.NDArray[np.generic]
Arranged = tuple[Numbers, Numbers, Numbers, list[int]]  # as of `Structures.arrange`


@dataclass(frozen=True)
class _Block:
    """A program without an `Executable`."""

    context: _ral.Context


class StructuredProgram(BlockPrograms):
    """Stands in place of a loaded program (`_ral.Context`): takes the arrays of a structure, and calls the programs of its blocks.

    Several threads may call it at once; each has tables of its own.
    """

    def __init__(self, record: StructuresRecord, programs: Sequence[Program], isa: str, view: memoryview) -> None:
        """record, view: of a file that was checked; programs: one for each kind."""
        super().__init__(programs, isa, view)
        self._record = record
        self._names = tensor_names(record)
        kinds = [_node_kind(number, kind) for number, kind in enumerate(record["kinds"])]
        self._schedule = Schedule(
            [_scheduled(kind, context, record) for kind, context in zip(record["kinds"], self._contexts, strict=True)]
        )
        objects, arrays = _question(record["objects"]), _question(record["arrays"])
        read = {*record["fields"], *record["columns"], *_asked(objects)}
        check = lambda kind: check_plain(kind, read)  # noqa: E731 - it needs no name
        self._structures = Structures(self._schedule, kinds, len(record["results"]), objects, check, arrays)
        self._free: list[list[Array]] = []  # tables that no call uses

    # --- calls ------------------------------------------------------------------------------------------------------------------

    def call(self, inputs: tuple[object, ...], out: object) -> object:
        """As of `_ral.Context`: results [roots, ...] of the tensors that `tensor_names` lists."""
        arrays = self._checked(inputs)
        results = self._run(self._arranged(arrays), out)
        if out is not None:
            return out
        made = [self.like_given(each, inputs[0]) for each in results]
        return made[0] if self.single else tuple(made)

    def batch(self, instances: Sequence[object]) -> list[object]:
        """The results of each instance."""
        if not isinstance(instances, Sequence) or isinstance(instances, str | bytes):
            raise InputTypeError(f"batch takes a list of instances, not a {type(instances).__name__}")
        if all(isinstance(each, Mapping) for each in instances):
            arrays = flat_arrays(self._record, cast("Sequence[Mapping[str, object]]", instances), self.most_nodes)
            arranged = self._arranged(arrays)
        else:
            arranged = self._walked(instances)
        results = [[self.like_given(row, None) for row in each] for each in self._run(arranged, None)]
        return [list(each) for each in zip(*results, strict=True)]

    def _walked(self, instances: Sequence[object]) -> Arranged:
        try:
            return self._structures.walk(instances, [0] * len(self._record["tables"]))
        except (NotPlain, AttributeError) as error:
            raise InputTypeError(
                f"an instance is no structure of this model ({error}): give plain objects, mappings, or tensors"
            ) from error

    def _checked(self, inputs: tuple[object, ...]) -> list[Numbers]:
        """Raises InputRankError, InputTypeError, DeviceError, ShapeConstraintError."""
        if len(inputs) != len(self._names):
            raise InputRankError(f"expected {len(self._names)} inputs ({', '.join(self._names)}), got {len(inputs)}")
        arrays = [self._numbers(name, each) for name, each in zip(self._names, inputs, strict=True)]
        for name, each in zip(self._names[:-1], arrays[:-1], strict=True):
            if len(each) != len(arrays[0]):
                first = f"input '{self._names[0]}' has {len(arrays[0])}"
                raise ShapeConstraintError(f"input '{name}' has {len(each)} nodes, {first}: all but the roots have a number for each node")
        return arrays

    def _numbers(self, name: str, given: object) -> Numbers:
        array = as_array(name, given)
        if array.dtype != np.int64:
            raise InputTypeError(f"input '{name}' must be i64, got {array.dtype}")
        if array.ndim != 1:
            raise InputRankError(f"input '{name}' must have 1 dim, got {array.ndim}")
        return cast("Numbers", self.contiguous(array))

    def _arranged(self, arrays: Sequence[Numbers]) -> Arranged:
        *nodes, roots = arrays
        count = len(nodes[0]) if nodes else len(roots)
        if count > self.most_nodes:
            raise TooManyNodesError(f"the structure has {count} nodes; at most {self.most_nodes} are accepted")
        columns = dict(zip(self._record["columns"], nodes, strict=False))
        children = dict(zip(self._record["fields"], nodes[len(columns) :], strict=True))
        return self._structures.arrange(count, children, columns, roots, [0] * len(self._record["tables"]))

    def _run(self, arranged: Arranged, out: object) -> list[Array]:
        """Runs the batches; the results of the roots."""
        batches, indices, rows, used = arranged
        tables = self._tables(used)
        self._schedule.run(tables, [0] * len(used), batches, indices)
        given = [None] * rows.shape[1] if out is None else given_out(out, rows.shape[1])
        results = [
            _taken(tables[table], rows[:, place], to) for place, (table, to) in enumerate(zip(self._record["results"], given, strict=True))
        ]
        with self._lock:
            self._free.append(tables)
            self._calls += 1
        return results

    def _tables(self, used: Sequence[int]) -> list[Array]:
        """Tables of at least so many rows. They are kept from call to call: what is handed out is copied."""
        with self._lock:
            tables: list[Array] = self._free.pop() if self._free else [np.empty((0,)) for _ in used]
        for place, (count, each) in enumerate(zip(used, self._record["tables"], strict=True)):
            if (
                tables[place].ndim == 1 + len(each["dims"])
                and tables[place].shape[0] >= count
                and tables[place].dtype == STORAGE[each["dtype"]]
            ):
                continue
            tables[place] = _empty((count + count // 4, *each["dims"]), each["dtype"])
        return tables

    def table_bytes(self) -> int:
        """Of those that no call uses."""
        return sum(each.nbytes for kept in list(self._free) for each in kept)


def structure_lines(record: StructuresRecord) -> list[str]:
    """The kinds of nodes, as text."""
    lines = [f"structures: i64[{NODES}] {', '.join(tensor_names(record)[:-1])} (-1 = none); i64[{ROOTS}] {tensor_names(record)[-1]}"]
    for number, kind in enumerate(record["kinds"]):
        parts = [*kind["columns"], *(f"{row['field']} (result {row['result']})" for row in kind["rows"])]
        lines.append(f"kind {number}: {kind['name']} ({kind['line']}) of {', '.join(parts) or 'nothing'}")
    return lines


def _empty(shape: tuple[int, ...], dtype: str) -> Array:
    """Raises OutOfMemoryError."""
    try:
        return np.empty(shape, STORAGE[dtype])
    except (MemoryError, ValueError) as error:  # the latter for sizes beyond all memory
        raise OutOfMemoryError(f"there is no memory for {shape[0]} rows of {dtype}{list(shape[1:])}") from error


def _taken(table: Array, rows: Numbers, to: Array | None) -> Array:
    """The rows, in `to` where that is given. Raises ShapeConstraintError, InputTypeError."""
    if to is None:
        return table.take(rows, 0)
    if to.dtype != table.dtype:
        raise InputTypeError(f"out must be {table.dtype}, got {to.dtype}")
    if to.shape != (len(rows), *table.shape[1:]):
        raise ShapeConstraintError(f"out must have the shape {(len(rows), *table.shape[1:])}, got {to.shape}")
    to[...] = table[rows]
    return to


def _node_kind(number: int, kind: KindRecord) -> NodeKind:
    rows = tuple((row["field"], row["result"]) for row in kind["rows"])
    return NodeKind(
        number, {name: name for name in fields_of(kind)}, {name: name for name in kind["columns"]}, rows, tuple(kind["columns"])
    )


def _scheduled(kind: KindRecord, context: _ral.Context, record: StructuresRecord) -> ScheduledBlock:
    rows = tuple(record["results"][row["result"]] for row in kind["rows"])
    return ScheduledBlock(_Block(context), rows, len(kind["columns"]), tuple(record["results"]))


def _question(node: object) -> Question | int:
    if isinstance(node, int):
        return node
    asked = cast("dict[str, Any]", node)
    return Question(asked["attribute"], asked["none"], _question(asked["yes"]), _question(asked["no"]))


def _asked(node: Question | int) -> set[str]:
    return set() if isinstance(node, int) else {node.attribute, *_asked(node.yes), *_asked(node.no)}
