"""quantize-dots: f32 dots with a weight are done in 8 bits, the activations quantized row by row in every call (dynamic quantization).

    %y = dot_general %x, %w : f32     ─►     %l, %h = stablehlo.reduce min, max of %x along k            (two numbers per row)
                                             %u = convert(round((%x - %l) * (255 / (%h - %l)))) : ui8
                                             %a = dot_general %u, %q : (ui8, i8) -> i32
                                             %y = convert(%a) * ((%h - %l) / 255 * %step) + %l * (%step * sum of %q along k)

A row uses all 256 levels between its least and its greatest element (activations behind GELU or ReLU are hardly negative), a weight's
column is symmetric in [-127, 127]: unsigned by signed bytes is what `vpdpbusd` multiplies. All that depends on the weight alone (%q,
%step, the sum) is folded into the weight table by `fold-constants`. An infinity or NaN in a row, or a range that overflows, makes that
row of the result infinite or NaN, never a finite number.

Requires and keeps stage `named`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from torch_mlir import ir

from disc.ir.interp_values import constant_attribute, element_name
from disc.ir.ops import block_ops, build, main_block, rank_of, replace_op
from disc.ir.passes import CompileState, Pass
from disc.passes.constants import constant_values
from disc.passes.dot_numbers import DotNumbers
from disc.passes.rewriting import entries, erase_dead, make_splat, named_type

LEVELS = 255.0  # steps between the least and the greatest element of a row
MOST = 127.0  # the largest magnitude of a weight, the same on both sides of zero
LEAST = 2.0**-100  # the least range that is resolved: below it a row or column is taken as constant, and no quotient overflows
MOST_CONTRACTED = 2**16  # as many products of an unsigned with a signed byte fit 32 bits


@dataclass(frozen=True)
class QuantizeDots(Pass):
    """Quantizes every dot that gains.

    least: a dot that contracts fewer elements, or has fewer columns, stays as it is: there is too little work per element quantized.
    """

    name: ClassVar[str] = "quantize-dots"
    least: int = 32

    def apply(self, module: ir.Module, state: CompileState) -> None:
        block = main_block(module)
        constants = constant_values(block)
        quantized = _Quantized()
        for op in block_ops(block):
            if may_quantize(op, constants) and should_quantize(op, self.least):
                replace_op(op, [quantized.dot(op)])
        erase_dead(block)


def may_quantize(op: ir.Operation, constants: Mapping[ir.Value, None]) -> bool:
    """Legal? An f32 dot of rows, contracted along their last dims, with a weight."""
    if op.name != "stablehlo.dot_general" or any(element_name(value.type) != "f32" for value in (*op.operands, *op.results)):
        return False
    left, right = op.operands
    numbers = DotNumbers.of(op)
    free = numbers.free(0, rank_of(left))
    trailing = numbers.contracting[0] == tuple(range(len(free), rank_of(left)))
    return right in constants and left not in constants and not numbers.batching[0] and trailing and sizes_of(op)[0] < MOST_CONTRACTED


def should_quantize(op: ir.Operation, least: int) -> bool:
    """Profitable? Where the products of an element outweigh its quantization."""
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
    """The right operand: w = step * values (i8), and total = step * the sum of values, step and total one per column."""

    values: ir.Value
    step: ir.Value
    total: ir.Value


@dataclass
class _Quantized:
    """The quantized form of every operand that was asked for, each made once."""

    rows: dict[object, _Rows] = field(default_factory=dict)
    columns: dict[object, _Columns] = field(default_factory=dict)

    def dot(self, op: ir.Operation) -> ir.Value:
        """The quantized form of the dot `op`, before it."""
        numbers, (left, right) = DotNumbers.of(op), op.operands
        keys = [(value, contracted) for value, contracted in zip(op.operands, numbers.contracting, strict=True)]
        if keys[0] not in self.rows:
            self.rows[keys[0]] = _quantize_rows(left, numbers.contracting[0], op)
        if keys[1] not in self.columns:
            self.columns[keys[1]] = _quantize_columns(right, numbers.contracting[1], op)
        return _dequantized(op, numbers, self.rows[keys[0]], self.columns[keys[1]])


def _dequantized(op: ir.Operation, numbers: DotNumbers, row: _Rows, column: _Columns) -> ir.Value:
    result = op.results[0].type
    rank, split = len(entries(result)), len(numbers.free(0, rank_of(op.operands[0])))

    def along(value: ir.Value, side: int) -> ir.Value:
        return _along(value, range(split) if side == 0 else range(split, rank), result, op)

    word = ir.IntegerType.get_signless(32)
    products = numbers.build_dot(op, [row.values, column.values], named_type(word, entries(result))).results[0]
    floats = build("stablehlo.convert", [products], [result], before=op).results[0]
    scaled = _binary("multiply", floats, _binary("multiply", along(row.step, 0), along(column.step, 1), op), op)
    return _binary("add", scaled, _binary("multiply", along(row.low, 0), along(column.total, 1), op), op)


def _quantize_rows(value: ir.Value, contracted: tuple[int, ...], before: ir.Operation) -> _Rows:
    infinity = np.array(np.inf, np.float32)
    low, high = _reduce({"minimum": infinity, "maximum": -infinity}, value, contracted, before)
    width = _binary("maximum", _binary("subtract", high, low, before), _splat(LEAST, low.type, before), before)
    factor = _binary("divide", _splat(LEVELS, width.type, before), width, before)
    kept = _kept(value, contracted)
    above = _binary("subtract", value, _along(low, kept, value.type, before), before)
    steps = _binary("multiply", above, _along(factor, kept, value.type, before), before)
    step = _binary("multiply", width, _splat(1 / LEVELS, width.type, before), before)
    return _Rows(_rounded(steps, ir.IntegerType.get_unsigned(8), before), low, step)


def _quantize_columns(value: ir.Value, contracted: tuple[int, ...], before: ir.Operation) -> _Columns:
    magnitude = build("stablehlo.abs", [value], [value.type], before=before).results[0]
    (most,) = _reduce({"maximum": np.array(LEAST, np.float32)}, magnitude, contracted, before)
    step = _binary("multiply", most, _splat(1 / MOST, most.type, before), before)
    factor = _binary("divide", _splat(MOST, most.type, before), most, before)
    steps = _binary("multiply", value, _along(factor, _kept(value, contracted), value.type, before), before)
    values = _rounded(steps, ir.IntegerType.get_signless(8), before)
    wide = build("stablehlo.convert", [values], [value.type], before=before).results[0]
    (total,) = _reduce({"add": np.zeros((), np.float32)}, wide, contracted, before)
    return _Columns(values, step, _binary("multiply", total, step, before))


def _kept(value: ir.Value, contracted: Sequence[int]) -> list[int]:
    return [dim for dim in range(rank_of(value)) if dim not in contracted]


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
