"""Element-wise steps of the slices of a dot become steps of the dot, which takes them as its epilogue.

    %q = "disc.slice"(%y) {starts = ["0", "0"], ...}          %b = stablehlo.concatenate %bq, %bk, dim = 0
    %k = "disc.slice"(%y) {starts = ["0", "768"], ...}   ─►   %z = stablehlo.add %y, broadcast(%b)
    %0 = stablehlo.add %q, broadcast(%bq)                     %0 = "disc.slice"(%z) {starts = ["0", "0"], ...}
    %1 = stablehlo.add %k, broadcast(%bk)                     %1 = "disc.slice"(%z) {starts = ["0", "768"], ...}

A slice without the step gets its neutral element (x + -0.0, x * 1.0), so every result keeps its bits. A step of 16-bit floats may
compute in f32 between two conversions. Requires and keeps stage `named`; `fold-constants` concatenates the vectors at compile time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import ClassVar

import numpy as np
from torch_mlir import ir

from disc.ir.interp.values import Array, element_name, held_dtype, is_splat, stored_weight
from disc.ir.op_table import ELEMENTWISE
from disc.ir.ops import block_ops, build, ints_attr, rank_of, replace_op, strings_attr
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.rewriting import (
    defining,
    element_type,
    entries,
    erase_dead,
    has_one_use,
    is_one,
    make_reshape,
    make_splat,
    named_type,
    producer,
    producers_after,
    splat_value,
    static_entry,
    static_size,
)
from disc.ir.weights import WeightTable
from disc.passes.graph.constants import constant_values
from disc.passes.graph.simplify_elementwise import is_lossless
from disc.shapes import parse_dim


@dataclass(frozen=True)
class Kind:
    """What a step does: the op, which operand the slice is (side: 0 for a commutative op, wherever it stands), in which type it
    computes."""

    name: str
    side: int
    element: str


# For each op and side the row value that changes no bit of any x, NaN, infinities and signed zeros included; None: there is none.
NEUTRAL: Mapping[tuple[str, int], float | None] = {
    ("stablehlo.add", 0): -0.0,
    ("stablehlo.subtract", 0): 0.0,
    ("stablehlo.subtract", 1): None,
    ("stablehlo.multiply", 0): 1.0,
    ("stablehlo.divide", 0): 1.0,
    ("stablehlo.divide", 1): None,
}
_COMMUTATIVE = ("stablehlo.add", "stablehlo.multiply")


@dataclass(frozen=True, eq=False)
class Step:
    """What alone reads `value`, a slice in some layout.

    main: the arithmetic; ops: it, or it between a widening and the conversion back. row: one element for all columns of the slice, or a
    constant with one for each.
    """

    main: ir.Operation
    ops: tuple[ir.Operation, ...]
    kind: Kind
    value: ir.Value
    row: Array | ir.Value


@dataclass(frozen=True)
class MergeSlices(FunctionPass):
    """Moves steps with constant rows above the slices, the first ones first."""

    name: ClassVar[str] = "merge-slices"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        constants, rows = constant_values(block), _Rows(state.weights)
        done: set[ir.Operation] = set()
        for op in [op for op in block_ops(block) if op.name == "disc.slice"]:  # slices stay; what they read may be a step that has moved
            root = op.operands[0]
            if op in done:
                continue
            done |= {use.owner.operation for use in root.uses}
            parts = tiles(root)
            if not parts or root in constants or not may_be_epilogue(root):
                continue
            steps = [next_step(part, constants) for part in parts]
            kind = common_kind(steps)
            while kind is not None:
                root = _merge(root, parts, steps, kind, rows)
                steps = [next_step(part, constants) for part in parts]
                kind = common_kind(steps)
        erase_dead(block)


# --- which steps ------------------------------------------------------------------------------------------------------


def tiles(root: ir.Value) -> list[ir.Operation]:
    """The slices that cut the last dim of a float tensor into parts without gap or overlap, in order; none where anything else reads it."""
    readers = [use.owner.operation for use in root.uses]
    dims = entries(root.type)
    if any(reader.name != "disc.slice" for reader in readers) or not dims or not isinstance(element_type(root.type), ir.FloatType):
        return []
    found: dict[int, ir.Operation] = {}
    for reader in readers:
        starts = [parse_dim(text) for text in strings_attr(reader, "starts")]
        whole = entries(reader.results[0].type)[:-1] == dims[:-1] and all(start == 0 for start in starts[:-1])
        if not whole or not starts[-1].is_const or any(step != 1 for step in ints_attr(reader, "strides")):
            return []
        found[starts[-1].const] = reader
    parts = [found[start] for start in sorted(found)]
    ends = np.cumsum([0, *(width(part) or 0 for part in parts)]).tolist()
    covers = len(parts) == len(readers) and ends[:-1] == sorted(found) and ends[-1] == static_size(dims[-1])
    return parts if covers and len(parts) > 1 else []


def width(part: ir.Operation) -> int | None:
    """The size of the last dim of a slice."""
    return static_size(entries(part.results[0].type)[-1])


def next_step(part: ir.Operation, constants: dict[ir.Value, None]) -> Step | None:
    """The first op after a slice, changes of layout aside, if it is a step with a constant row."""
    value, columns = part.results[0], 1
    reader = _only_reader(value)
    while reader is not None and reader.name in ("disc.reshape", "stablehlo.transpose"):
        columns = split_columns(value, reader, columns)
        value = reader.results[0]
        reader = _only_reader(value)
    return _step_on(value, reader, columns, constants) if reader is not None else None


def _step_on(value: ir.Value, reader: ir.Operation, columns: int, constants: dict[ir.Value, None]) -> Step | None:
    """The step that the only reader of `value` is, or begins."""
    ops, source = (reader,), value
    if reader.name == "stablehlo.convert":
        source = reader.results[0]
        main = _only_reader(source)
        back = _only_reader(main.results[0]) if main is not None and main.results else None
        exact = is_lossless(element_name(value.type), element_name(source.type))
        if main is None or back is None or back.name != "stablehlo.convert" or not exact:
            return None
        ops, reader = (reader, main, back), main
    if len(reader.operands) != 2 or [each.type for each in (*reader.results, *ops[-1].results)] != [source.type, value.type]:
        return None
    side = 0 if reader.operands[0] == source else 1
    kind = Kind(reader.name, 0 if reader.name in _COMMUTATIVE else side, element_name(source.type))
    row = _row_of(reader.operands[1 - side], columns, constants) if (kind.name, kind.side) in NEUTRAL else None
    return Step(reader, ops, kind, value, row) if row is not None else None


def split_columns(value: ir.Value, layout: ir.Operation, columns: int) -> int:
    """How many of the last dims after a change of layout are the columns of the slice, in order, if the last `columns` were before.

    0: the columns are not the last dims any more, so that only a scalar commutes with the change.
    """
    source, result = entries(value.type), entries(layout.results[0].type)
    before = source[: len(source) - columns]
    split = [static_size(entry) for entry in result[len(before) :]]
    known = [size for size in split if size is not None]
    if layout.name != "disc.reshape" or not columns or result[: len(before)] != before or len(known) < len(split):
        return 0
    return len(split) if prod(known) == prod(static_size(entry) or 0 for entry in source[len(before) :]) else 0


def common_kind(steps: Sequence[Step | None]) -> Kind | None:
    """A kind that every slice can take now: it has such a step, or does not mind one."""
    kinds = dict.fromkeys(step.kind for step in steps if step is not None)
    return next((kind for kind in kinds if may_merge(steps, kind)), None)


def may_merge(steps: Sequence[Step | None], kind: Kind) -> bool:
    """Legal? Slices without a step of this kind need its neutral element."""
    return NEUTRAL[kind.name, kind.side] is not None or all(step is not None and step.kind == kind for step in steps)


def may_be_epilogue(root: ir.Value) -> bool:
    """Structure: steps of `root` can become part of a dot's epilogue; elsewhere they would only move from one kernel to another."""
    pending = [root]
    while pending:
        op = producer(pending.pop())
        if op is None:
            continue
        if op.name == "stablehlo.dot_general":
            return True
        if op.name == "disc.reshape" or op.name in ELEMENTWISE:
            pending += [operand for operand in op.operands if has_one_use(operand)]
    return False


def _only_reader(value: ir.Value) -> ir.Operation | None:
    return next(iter(value.uses)).owner.operation if has_one_use(value) else None


def _row_of(operand: ir.Value, columns: int, constants: dict[ir.Value, None]) -> Array | ir.Value | None:
    """The scalar that fills an operand, or the constant that holds one element for each of the last `columns` dims."""
    splat = splat_value(operand)
    if splat is not None or not columns:
        return splat
    repeated = defining(operand, "disc.broadcast_in_dim")
    source = operand if repeated is None else repeated.operands[0]
    dims = list(range(rank_of(operand))) if repeated is None else ints_attr(repeated, "dims")
    if source not in constants or (repeated is not None and ints_attr(repeated, "maybe")):
        return None
    result = entries(operand.type)
    held = [dims[place] for place, entry in enumerate(entries(source.type)) if not is_one(entry)]
    wanted = [dim for dim in range(len(result) - columns, len(result)) if not is_one(result[dim])]
    return source if held == wanted else None


# --- the rewrite ------------------------------------------------------------------------------------------------------


class _Rows:
    """The scalars of rows as weights, each content once (the scaled query of every layer); a constant would not be concatenated early."""

    def __init__(self, weights: WeightTable) -> None:
        self._weights = weights
        self._names: dict[tuple[str, bytes], str] = {}

    def build(self, data: Array, element: ir.Type, before: ir.Operation) -> ir.Value:
        key = (str(element), data.tobytes())
        if key not in self._names:
            self._names[key] = self._weights.add("merged.scalars", stored_weight(data, str(element)))
        type_ = named_type(element, [static_entry(data.size)])
        return build("disc.weight", [], [type_], {"name": self._names[key]}, before=before).results[0]


def _merge(root: ir.Value, parts: Sequence[ir.Operation], steps: Sequence[Step | None], kind: Kind, rows: _Rows) -> ir.Value:
    """Does every step of this kind before the slices; returns what they read now."""
    taken = [step if step is not None and step.kind == kind else None for step in steps]
    first = parts[0]
    for part in parts:
        first = part if part.is_before_in_block(first) else first
    pieces = [_piece(part, step, kind) for part, step in zip(parts, taken, strict=True)]
    for needed in producers_after([piece for piece in pieces if isinstance(piece, ir.Value)], first):
        needed.move_before(first)
    main = next(step.main for step in taken if step is not None)
    type_ = named_type(element_type(main.results[0].type), entries(root.type))
    operands = [_convert(root, type_, main, first), _whole_row(pieces, type_, rows, first)]
    moved = build(kind.name, operands if kind.side == 0 else operands[::-1], [type_], location=main.location, before=first).results[0]
    result = _convert(moved, root.type, main, first)
    for part, step in zip(parts, taken, strict=True):
        part.operands[0] = result
        if step is not None:
            replace_op(step.ops[-1], [step.value])
            for op in reversed(step.ops[:-1]):
                op.erase()
    return result


def _convert(value: ir.Value, type_: ir.Type, main: ir.Operation, before: ir.Operation) -> ir.Value:
    if value.type == type_:
        return value
    return build("stablehlo.convert", [value], [type_], location=main.location, before=before).results[0]


def _piece(part: ir.Operation, step: Step | None, kind: Kind) -> Array | ir.Value:
    """The row of one slice: a constant, or an array that repeats a scalar."""
    if step is not None and isinstance(step.row, ir.Value):
        return step.row
    scalar = NEUTRAL[kind.name, kind.side] if step is None else step.row
    return np.full(width(part) or 0, scalar, held_dtype(kind.element))


def _whole_row(pieces: Sequence[Array | ir.Value], type_: ir.Type, rows: _Rows, before: ir.Operation) -> ir.Value:
    """The pieces side by side, repeated for every row of a tensor of this type."""
    element = element_type(type_)
    vectors: list[ir.Value] = []
    for is_constant, group in groupby(pieces, lambda piece: isinstance(piece, ir.Value)):
        members = list(group)
        if is_constant:
            vectors += [_flat(piece, before) for piece in members if isinstance(piece, ir.Value)]
            continue
        data = np.concatenate([piece for piece in members if not isinstance(piece, ir.Value)])
        if len(members) == len(pieces) and is_splat(data):
            return make_splat(data[0].reshape(()), type_, before)
        vectors.append(rows.build(data, element, before))
    vector = vectors[0]
    if len(vectors) > 1:
        columns = named_type(element, entries(type_)[-1:])
        vector = build("stablehlo.concatenate", vectors, [columns], {"dimension": 0}, before=before).results[0]
    attributes = {"dims": [len(entries(type_)) - 1], "maybe": []}
    return build("disc.broadcast_in_dim", [vector], [type_], attributes, before=before).results[0]


def _flat(vector: ir.Value, before: ir.Operation) -> ir.Value:
    size = prod(ir.RankedTensorType(vector.type).shape)
    return make_reshape(vector, named_type(element_type(vector.type), [static_entry(size)]), before)
