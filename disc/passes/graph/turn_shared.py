"""turn-shared: a matrix that several products read along its rows is transposed once, not by each of them.

    %a = dot_general %x, %w, contracting [1] x [1]          %t = stablehlo.transpose %w, dims = [1, 0] {disc.store}
    %b = dot_general %y, %w, contracting [1] x [1]    ─►    %a = dot_general %x, %t, contracting [1] x [0]
    %c = dot_general %z, %w, contracting [1] x [1]          %b = dot_general %y, %t, contracting [1] x [0]    ...

A step of a recurrent network that Python's loop has written out is such a product, of a few rows and a weight that is an argument: to pack
the weight takes half as long as to multiply by it. In the body of a loop one product is several: what it reads so, and the loop does not
change, is transposed before the loop. Requires stage `named`, before any groups; keeps it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.control import WHILE, body_blocks
from disc.ir.op_table import STORED
from disc.ir.ops import block_ops, build, function_blocks, int_attr, replace_op
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.rewriting import element_type, entries, named_type
from disc.passes.graph.constants import constant_values
from disc.passes.graph.dot_numbers import DotNumbers
from disc.passes.graph.hoist_invariants import move_before


@dataclass(frozen=True)
class TurnShared(FunctionPass):
    """Writes what is shared in the order in which products read it in place."""

    name: ClassVar[str] = "turn-shared"

    def apply(self, module: ir.Module, state: CompileState) -> None:
        super().apply(module, state)
        main, *inner = function_blocks(module)  # a function stands before the one that runs it
        for block in (*inner, main):
            constants = constant_values(block)
            for op in block_ops(block):
                if op.name == WHILE:
                    _turn_before(op, constants)

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        constants = constant_values(block)
        readers: dict[ir.Value, list[ir.Operation]] = {}
        for op in block_ops(block):
            if op.name == "stablehlo.dot_general" and reads_along_rows(op) and op.operands[1] not in constants:
                readers.setdefault(op.operands[1], []).append(op)
        for matrix, dots in readers.items():
            if len(dots) >= state.thresholds.graph.turned_readers:
                _turn(matrix, dots)


def _turn_before(loop: ir.Operation, constants: Container[ir.Value]) -> None:
    """Transposes before the loop what its body reads along its rows, and what the body, or a loop in it, transposes already."""
    body, carried = body_blocks(loop)[-1], int_attr(loop, "carried")
    moved: list[ir.Value] = []
    for matrix, operand in list(zip(body.arguments, loop.operands, strict=True))[carried:]:
        if operand in constants:
            continue
        uses = [(use.owner.operation, use.operand_number) for use in matrix.uses]
        turned = [op.results[0] for op, _ in uses if op.name == "stablehlo.transpose" and STORED in op.attributes]
        dots = [op for op, number in uses if op.name == "stablehlo.dot_general" and number == 1 and reads_along_rows(op)]
        moved += turned
        if dots and not turned:
            moved.append(_turn(matrix, dots))
    if moved:
        move_before(loop, moved)


def reads_along_rows(dot: ir.Operation) -> bool:
    """Whether the right operand is one matrix, [columns of the result, contracted]. (Constants are packed ahead of time.)"""
    numbers = DotNumbers.of(dot)
    return len(entries(dot.operands[1].type)) == 2 and numbers.contracting[1] == (1,)


def _turn(matrix: ir.Value, dots: list[ir.Operation]) -> ir.Value:
    """The matrix transposed, which the products read from now on."""
    rows, columns = entries(matrix.type)
    attributes = {"permutation": ir.DenseI64ArrayAttr.get([1, 0]), STORED: ir.UnitAttr.get()}
    type_ = named_type(element_type(matrix.type), [columns, rows])
    turned = build("stablehlo.transpose", [matrix], [type_], attributes, location=dots[0].location, before=dots[0]).results[0]
    for dot in dots:
        numbers = DotNumbers.of(dot).with_dims_of(1, (1, 0))
        replace_op(dot, numbers.build_dot(dot, [dot.operands[0], turned], dot.results[0].type).results)
    return turned
