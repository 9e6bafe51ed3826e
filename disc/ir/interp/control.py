"""Values of control flow: runs the functions of a control op."""

from __future__ import annotations

from collections.abc import Mapping

from torch_mlir import ir

from disc.ir.control import CASE, WHILE, body_blocks
from disc.ir.interp.values import Array, Rule, Scope
from disc.ir.ops import int_attr, string_attr


def _while(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    *conditions, body = body_blocks(op)
    count = int_attr(op, "carried")
    carried, captured = operands[:count], operands[count:]
    if not conditions:
        for _ in range(scope.evaluate(string_attr(op, "trips"))):
            carried = scope.run_function(body, [*carried, *captured])
        return carried
    (condition,) = conditions
    while scope.run_function(condition, [*carried, *captured])[0]:
        carried = scope.run_function(body, [*carried, *captured])
    return carried


def _case(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    blocks = body_blocks(op)
    index = int(operands[0])
    return scope.run_function(blocks[index if 0 <= index < len(blocks) else -1], operands[1:])


RULES: Mapping[str, Rule] = {WHILE: _while, CASE: _case}
