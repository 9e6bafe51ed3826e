"""Which values depend on weights and constants alone."""

from __future__ import annotations

from torch_mlir import ir

from disc.ir.interp.oracle import can_evaluate
from disc.ir.op_table import CONTROL
from disc.ir.ops import block_ops, string_attr, strings_attr
from disc.shapes import parse_dim

LEAVES = ("disc.weight", "stablehlo.constant")


def constant_values(block: ir.Block) -> dict[ir.Value, None]:
    """The values of a block that have one content for all inputs: static types, no dim symbol, no argument behind them."""
    constants: dict[ir.Value, None] = {}
    for op in block_ops(block):
        if op.name in LEAVES or _is_constant(op, constants):
            constants.update(dict.fromkeys(op.results))
    return constants


def _is_constant(op: ir.Operation, constants: dict[ir.Value, None]) -> bool:
    if not op.results or op.name in CONTROL or not can_evaluate(op) or not all(operand in constants for operand in op.operands):
        return False
    if not all(isinstance(result.type, ir.RankedTensorType) and result.type.has_static_shape for result in op.results):
        return False
    return all(parse_dim(text).is_const for text in _expressions(op))


def _expressions(op: ir.Operation) -> list[str]:
    """The dim expressions in the attributes of an op."""
    found = [string_attr(op, name) for name in ("expr",) if name in op.attributes]
    for name in ("starts", "low", "sizes"):
        found += strings_attr(op, name) if name in op.attributes else []
    return found
