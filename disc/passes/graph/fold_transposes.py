"""Transposes around a contraction become dimension numbers of the contraction.

    %t = stablehlo.transpose %w, dims = [1, 0]
    %y = dot_general %x, %t, contracting [1] x [0]    ─►   %y = dot_general %x, %w, contracting [1] x [1]

    %s = stablehlo.multiply (stablehlo.transpose %x), %splat
    %y = dot_general %s, ...                          ─►   %y = dot_general (stablehlo.multiply %x, %splat), ...

    %y = dot_general %x, %w, contracting [1] x [0]
    %t = stablehlo.transpose %y, dims = [1, 0]        ─►   %t = dot_general %w, %x, contracting [0] x [1]

Requires and keeps stage `named`. A transpose that would change the order of the free dims of the result is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.op_table import ELEMENTWISE
from disc.ir.ops import block_ops, build, ints_attr, rank_of, replace_op
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.rewriting import defining, element_type, entries, erase_dead, has_one_use, make_splat, named_type, splat_value
from disc.passes.graph.dot_numbers import DotNumbers


@dataclass(frozen=True)
class FoldTransposes(FunctionPass):
    """Folds every transpose before or after a dot_general that its dimension numbers can express."""

    name: ClassVar[str] = "fold-transposes"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        for op in block_ops(block):
            if op.name == "stablehlo.dot_general":
                for side in (0, 1):
                    _sink_transpose(op, side)
                _fold_operands(op)
        for op in block_ops(block):
            if op.name == "stablehlo.transpose":
                _fold_result(op)
        erase_dead(block)


def keeps_order_of_free_dims(permutation: Sequence[int], bound: Sequence[int]) -> bool:
    """May a transpose be folded into an operand? Its free dims (those not `bound`) must stand in the same order before it."""
    free = [permutation[dim] for dim in range(len(permutation)) if dim not in bound]
    return free == sorted(free)


def _fold_operands(dot: ir.Operation) -> None:
    numbers = DotNumbers.of(dot)
    operands = list(dot.operands)
    for side in (0, 1):
        transpose = defining(operands[side], "stablehlo.transpose")
        while transpose is not None:
            permutation = ints_attr(transpose, "permutation")
            if not keeps_order_of_free_dims(permutation, numbers.bound(side)):
                break
            operands[side] = transpose.operands[0]
            numbers = numbers.with_dims_of(side, permutation)
            transpose = defining(operands[side], "stablehlo.transpose")
    if operands != list(dot.operands):
        replace_op(dot, numbers.build_dot(dot, operands, dot.results[0].type).results)


def _scaling(value: ir.Value) -> list[ir.Operation]:
    """The chain of elementwise ops above `value`, last one first: each read by the next alone, each with splats for other operands."""
    chain: list[ir.Operation] = []
    while (op := defining(value, *ELEMENTWISE)) is not None and has_one_use(value):
        varying = [operand for operand in op.operands if splat_value(operand) is None]
        if len(varying) != 1:
            break
        chain.append(op)
        value = varying[0]
    return chain


def _sink_transpose(dot: ir.Operation, side: int) -> None:
    """f(transpose(x)) that feeds the dot becomes transpose(f(x)), where the transpose then folds (the scaled query of an attention).

    f may be a chain, such as a scaling between two conversions.
    """
    chain = _scaling(dot.operands[side])
    if not chain:
        return
    below = [defining(operand, "stablehlo.transpose") for operand in chain[-1].operands]
    transpose = next((op for op in below if op is not None and splat_value(op.results[0]) is None), None)
    if transpose is None or not keeps_order_of_free_dims(ints_attr(transpose, "permutation"), DotNumbers.of(dot).bound(side)):
        return
    for scale in reversed(chain):
        transpose = _swap(scale, transpose)


def _swap(scale: ir.Operation, transpose: ir.Operation) -> ir.Operation:
    """Does the scaling before the transpose; returns the new transpose."""
    source = transpose.operands[0]
    operands: list[ir.Value] = []
    for operand in scale.operands:
        splat = splat_value(operand)
        dims = entries(source.type) if ir.RankedTensorType(operand.type).rank else []
        operands.append(source if splat is None else make_splat(splat, named_type(element_type(operand.type), dims), scale))
    type_ = named_type(element_type(scale.results[0].type), entries(source.type))
    attributes = {name: scale.attributes[name] for name in scale.attributes}
    moved = build(scale.name, operands, [type_], attributes, before=scale)
    permutation = {"permutation": transpose.attributes["permutation"]}
    turned = build(transpose.name, moved.results, [scale.results[0].type], permutation, before=scale)
    replace_op(scale, turned.results)
    return turned


@dataclass(frozen=True)
class ResultOrder:
    """How a transpose reorders the result of a dot: the new order of the batch dims, and whether the sides change places."""

    batch: tuple[int, ...]
    swaps_sides: bool


def result_order(permutation: Sequence[int], batch: int, left_free: int) -> ResultOrder | None:
    """What a transposed result of a dot means for the dot; None where dimension numbers cannot say it."""
    rank = len(permutation)
    left, right = list(range(batch, batch + left_free)), list(range(batch + left_free, rank))
    if sorted(permutation[:batch]) != list(range(batch)):
        return None
    rest = list(permutation[batch:])
    if rest == left + right:
        return ResultOrder(tuple(permutation[:batch]), False)
    return ResultOrder(tuple(permutation[:batch]), True) if rest == right + left else None


def _fold_result(transpose: ir.Operation) -> None:
    dot = defining(transpose.operands[0], "stablehlo.dot_general")
    if dot is None or not has_one_use(dot.results[0]):
        return
    numbers = DotNumbers.of(dot)
    batch = len(numbers.batching[0])
    left_free = rank_of(dot.operands[0]) - len(numbers.bound(0))
    order = result_order(ints_attr(transpose, "permutation"), batch, left_free)
    if order is None:
        return
    numbers, operands = numbers.with_batch_order(order.batch), list(dot.operands)
    if order.swaps_sides:
        numbers, operands = numbers.swapped(), operands[::-1]
    replace_op(transpose, numbers.build_dot(dot, operands, transpose.results[0].type).results)
