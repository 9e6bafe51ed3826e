"""quantize-dots: f32 dots with a weight are done in 8 bits, the activations quantized row by row in every call (dynamic quantization).

    %y = dot_general %x, %w : f32     ─►     %l, %h = stablehlo.reduce min, max of %x along k            (two numbers per row)
                                             %u = convert(round((%x - %l) * (255 / (%h - %l)))) : ui8
                                             %s = "disc.scaled_dot"(%u, %q, %steps)                      (ui8, i8, f32) -> f32
                                             %y = %s * ((%h - %l) / 255) + %l * %totals

A row uses all 256 levels between its least and its greatest element (activations behind GELU or ReLU are hardly negative). A weight's
column is symmetric in [-127, 127] with a step per block of k (`quantize_weights.py`): unsigned by signed bytes is what `vpdpbusd`
multiplies, and sums of a block are exact. %q, %steps and %totals (the sums of a column's steps * values) are weights made here. An
infinity or NaN in a row, or a range that overflows, makes that row of the result infinite or NaN, never a finite number.

Where the kernel of a dot makes %x (GELU, attention), it is rounded to bf16 before all this: it crosses memory, and half as many bytes do.

The first dots of a program stay as they are, up to the share `early` of all multiplications: their errors run through every dot that
follows, and where residuals begin small (GPT-2) nothing dilutes them. So do the smallest of the others, up to the share `small`: an error
is relative to what a dot makes, however little work that is. In a transformer these are the projections behind attention, which gain
least, too: their rows are quantized for themselves alone. Why a dot stays is its attribute `disc.note`, which `explain` shows.

Requires and keeps stage `named`, and weights that are folded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar

import numpy as np
from torch_mlir import ir

from disc.ir.interp.values import Array, constant_attribute, constant_value, element_name, held_weight
from disc.ir.op_table import DOTS, ELEMENTWISE, VIEWS
from disc.ir.ops import block_ops, build, main_block, replace_op, string_attr
from disc.ir.passes import CompileState, Pass
from disc.ir.rewriting import defining, entries, erase_dead, make_splat, named_type, producer, static_entry
from disc.ir.weights import SCALED_BLOCK, Weight, WeightTable
from disc.passes.graph.dot_numbers import DotNumbers
from disc.passes.graph.quantize_weights import LEAST, quantize_columns

LEVELS = 255.0  # steps between the least and the greatest element of a row
MOST_CONTRACTED = 2**24  # sums of bytes along k are exact in f32 up to here, as the interpreter's are
NOTE = "disc.note"
CONSTANT = "constant"  # the name of a weight that is written in the program


@dataclass(frozen=True)
class QuantizeDots(Pass):
    """Quantizes every dot that gains.

    early, small: these shares of the multiplications of all dots that gain stay in the type they have, from the first dot on, and from
    the smallest one on of the others.
    """

    name: ClassVar[str] = "quantize-dots"
    early: float = 0.09
    small: float = 0.021

    def apply(self, module: ir.Module, state: CompileState) -> None:
        block, least = main_block(module), state.thresholds.graph.quantize_least
        quantized, gaining = _Quantized(state.weights), list[_Gaining]()
        for op in block_ops(block):
            if op.name != "stablehlo.dot_general":
                continue
            if not may_quantize(op):
                _stays(op, "not f32 rows times a weight")
            elif not should_quantize(op, least):
                _stays(op, f"contracts or makes fewer than {least} elements")
            else:
                gaining.append(_Gaining(op, math.prod(sizes_of(op)), is_stored(op.operands[0])))
        total = sum(each.work for each in gaining)
        first = _within(gaining, self.early * total)
        others = gaining[len(first) :]
        smallest = _within(sorted(others, key=lambda each: each.work), self.small * total)
        for each in first:
            _stays(each.op, "among the first dots, whose errors would run through all others")
        for each in smallest:
            _stays(each.op, "among the smallest dots, whose errors cost as much as those of large ones")
        for each in others:
            if each not in smallest:
                replace_op(each.op, [quantized.dot(each.op, each.stored)])
        erase_dead(block)


@dataclass(frozen=True)
class _Gaining:
    """A dot that gains. work: its multiplications per row; stored: whether its left operand lies in memory before it is quantized."""

    op: ir.Operation
    work: int
    stored: bool


def _within(dots: Sequence[_Gaining], room: float) -> Sequence[_Gaining]:
    """As many of the first ones as have `room` multiplications together."""
    sums = accumulate(each.work for each in dots)
    return dots[: sum(each <= room for each in sums)]


def _stays(op: ir.Operation, why: str) -> None:
    op.attributes[NOTE] = ir.StringAttr.get(f"not in 8 bits: {why}")


def may_quantize(op: ir.Operation) -> bool:
    """Legal? An f32 dot of rows, contracted along their last dims, with a weight that is folded."""
    if any(element_name(value.type) != "f32" for value in (*op.operands, *op.results)):
        return False
    left, right = op.operands
    numbers = DotNumbers.of(op)
    free = numbers.free(0, len(entries(left.type)))
    trailing = numbers.contracting[0] == tuple(range(len(free), len(entries(left.type))))
    return _is_leaf(right) and not _is_leaf(left) and not numbers.batching[0] and trailing and sizes_of(op)[0] < MOST_CONTRACTED


def _is_leaf(value: ir.Value) -> bool:
    return defining(value, "disc.weight", "stablehlo.constant") is not None


def should_quantize(op: ir.Operation, least: int) -> bool:
    """Profitable? Where products along k and columns outweigh what quantizes an element and scales a result: `least` of each. A threshold,
    not a cost: what a dot loses is accuracy, too, and which targets multiply bytes is not known to passes that run once for all of them."""
    return min(sizes_of(op)) >= least


def sizes_of(op: ir.Operation) -> tuple[int, int]:
    """The elements that are contracted, and the columns, of a dot with a weight."""
    right = ir.RankedTensorType(op.operands[1].type).shape
    contracted = DotNumbers.of(op).contracting[1]
    inner, outer = ([size for dim, size in enumerate(right) if (dim in contracted) is side] for side in (True, False))
    return math.prod(inner), math.prod(outer)


@dataclass(frozen=True)
class _Rows:
    """The left operand: x = low + step * values (ui8), low and step one per row."""

    values: ir.Value
    low: ir.Value
    step: ir.Value


@dataclass(frozen=True)
class _Columns:
    """The right operand as the names of weights: values (i8) and steps (f32, one per column and block of k), and totals (f32, one per
    column: the sum of steps * values)."""

    values: str
    steps: str
    totals: str


@dataclass
class _Quantized:
    """The quantized form of every operand that is needed, each made once."""

    weights: WeightTable
    rows: dict[object, _Rows] = field(default_factory=dict)
    columns: dict[object, _Columns] = field(default_factory=dict)

    def dot(self, op: ir.Operation, stored: bool) -> ir.Value:
        """The quantized form of the dot `op`, before it; stored: whether its left operand lies in memory before it is quantized."""
        numbers, left = DotNumbers.of(op), op.operands[0]
        key = (left, numbers.contracting[0])
        if key not in self.rows:
            self.rows[key] = _quantize_rows(left, numbers.contracting[0], op, stored)
        return _scaled(op, numbers, self.rows[key], self._columns(op, numbers))

    def _columns(self, op: ir.Operation, numbers: DotNumbers) -> _Columns:
        origin, array = _content(op.operands[1], self.weights)
        key = (origin if origin != CONSTANT else op.operands[1], numbers.contracting[1])
        if key not in self.columns:
            order = [*numbers.free(1, array.ndim), *numbers.contracting[1]]
            moved = array.transpose(order)
            columns = quantize_columns(np.asarray(moved.reshape(-1, sizes_of(op)[0]), np.float32))
            made = {"bytes": columns.values.reshape(moved.shape), "steps": columns.steps, "totals": columns.totals}
            names = [self.weights.add(f"{name}.{origin}", Weight(each, "i8" if name == "bytes" else "f32")) for name, each in made.items()]
            self.columns[key] = _Columns(*names)
        return self.columns[key]


def _content(value: ir.Value, weights: WeightTable) -> tuple[str, Array]:
    """A name for a weight or constant, and what it holds."""
    op = value.owner.operation  # pyright: ignore[reportAttributeAccessIssue]
    if op.name == "disc.weight":
        name = string_attr(op, "name")
        return name, held_weight(weights[name])
    array = constant_value(op.attributes["value"])
    return CONSTANT, np.broadcast_to(array, ir.RankedTensorType(value.type).shape)


def _scaled(op: ir.Operation, numbers: DotNumbers, row: _Rows, column: _Columns) -> ir.Value:
    result = op.results[0].type
    rank, split = len(entries(result)), len(numbers.free(0, len(entries(op.operands[0].type))))
    columns, f32, byte = entries(result)[split:], ir.F32Type.get(), ir.IntegerType.get_signless(8)
    contracted = [entries(op.operands[1].type)[dim] for dim in numbers.contracting[1]]

    def weight(name: str, element: ir.Type, dims: Sequence[ir.Attribute]) -> ir.Value:
        return build("disc.weight", [], [named_type(element, dims)], {"name": name}, before=op).results[0]

    def along(value: ir.Value, side: int) -> ir.Value:
        return _along(value, range(split) if side == 0 else range(split, rank), result, op)

    inner, outer = sizes_of(op)
    paired = DotNumbers(((), ()), (numbers.contracting[0], tuple(range(len(columns), len(columns) + len(contracted)))))
    operands = [
        row.values,
        weight(column.values, byte, [*columns, *contracted]),
        weight(column.steps, f32, [static_entry(outer), static_entry(-(-inner // SCALED_BLOCK))]),
    ]
    attributes = {"dot_dimension_numbers": paired.attribute()}
    products = build("disc.scaled_dot", operands, [result], attributes, before=op).results[0]
    scaled = _binary("multiply", products, along(row.step, 0), op)
    totals = weight(column.totals, f32, columns)
    return _binary("add", scaled, _binary("multiply", along(row.low, 0), along(totals, 1), op), op)


def _quantize_rows(value: ir.Value, contracted: tuple[int, ...], before: ir.Operation, stored: bool) -> _Rows:
    if stored:
        value = _converted(value, ir.BF16Type.get(), before)
    infinity = np.array(np.inf, np.float32)
    low, high = _reduce({"minimum": infinity, "maximum": -infinity}, value, contracted, before)
    low, high, value = (_converted(each, ir.F32Type.get(), before) for each in (low, high, value))
    width = _binary("maximum", _binary("subtract", high, low, before), _splat(LEAST, low.type, before), before)
    factor = _binary("divide", _splat(LEVELS, width.type, before), width, before)
    kept = _kept(value, contracted)
    above = _binary("subtract", value, _along(low, kept, value.type, before), before)
    steps = _binary("multiply", above, _along(factor, kept, value.type, before), before)
    step = _binary("multiply", width, _splat(1 / LEVELS, width.type, before), before)
    return _Rows(_rounded(steps, ir.IntegerType.get_unsigned(8), before), low, step)


def is_stored(value: ir.Value) -> bool:
    """Does a dot's kernel make `value`? That is so where no reduction stands between them: the row kernel that quantizes reads it then."""
    pending, seen, found = [value], set[ir.Operation](), False
    while pending:
        op = producer(pending.pop())
        if op is None or op in seen:
            continue
        seen.add(op)
        if op.name == "stablehlo.reduce":
            return False
        if op.name in DOTS:
            found = True
        elif op.name in ELEMENTWISE or op.name in VIEWS:
            pending += op.operands
    return found


def _converted(value: ir.Value, element: ir.Type, before: ir.Operation) -> ir.Value:
    """`value` itself where it has that element type."""
    if ir.RankedTensorType(value.type).element_type == element:
        return value
    return build("stablehlo.convert", [value], [named_type(element, entries(value.type))], before=before).results[0]


def _kept(value: ir.Value, contracted: Sequence[int]) -> list[int]:
    return [dim for dim in range(len(entries(value.type))) if dim not in contracted]


def _rounded(value: ir.Value, byte: ir.Type, before: ir.Operation) -> ir.Value:
    """To the nearest integer, ties to even; saturated."""
    whole = build("stablehlo.round_nearest_even", [value], [value.type], before=before).results[0]
    return build("stablehlo.convert", [whole], [named_type(byte, entries(value.type))], before=before).results[0]


def _reduce(kinds: Mapping[str, np.ndarray], value: ir.Value, contracted: Sequence[int], before: ir.Operation) -> list[ir.Value]:
    """Reductions of `value` along `contracted`, in one pass: associative op → what it starts from."""
    element = ir.RankedTensorType(value.type).element_type
    scalar = ir.RankedTensorType.get([], element)
    starts = [
        build("stablehlo.constant", [], [scalar], {"value": constant_attribute(start, scalar)}, before=before).results[0]
        for start in kinds.values()
    ]
    result = named_type(element, [entry for dim, entry in enumerate(entries(value.type)) if dim not in contracted])
    count, dims = len(kinds), ir.DenseI64ArrayAttr.get(list(contracted))
    op = build("stablehlo.reduce", [*[value] * count, *starts], [result] * count, {"dimensions": dims}, 1, before=before)
    body = ir.Block.create_at_start(op.regions[0], [scalar] * (2 * count), [before.location] * (2 * count))
    with ir.InsertionPoint(body):
        pairs = zip(kinds, list(body.arguments)[:count], list(body.arguments)[count:], strict=True)
        both = [build(f"stablehlo.{kind}", pair, [scalar], location=before.location).results[0] for kind, *pair in pairs]
        build("stablehlo.return", both, location=before.location)
    return list(op.results)


def _splat(value: float, type_: ir.Type, before: ir.Operation) -> ir.Value:
    return make_splat(np.array(value, np.float32), type_, before)


def _binary(name: str, left: ir.Value, right: ir.Value, before: ir.Operation) -> ir.Value:
    return build(f"stablehlo.{name}", [left, right], [left.type], before=before).results[0]


def _along(value: ir.Value, dims: Sequence[int], type_: ir.Type, before: ir.Operation) -> ir.Value:
    """`value` broadcast to the dims of `type_`, its own being `dims` of it."""
    wide = named_type(ir.RankedTensorType(value.type).element_type, entries(type_))
    attributes = {"dims": ir.DenseI64ArrayAttr.get(list(dims)), "maybe": ir.DenseI64ArrayAttr.get([])}
    return build("disc.broadcast_in_dim", [value], [wide], attributes, before=before).results[0]
