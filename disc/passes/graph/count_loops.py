"""count-loops: a loop that counts up to a size runs a number of times that the host knows before it begins.

    %y:2 = "control.while"(%zero, %a) {carried = 2 : i64, condition = @c, body = @b}      c(%i, %a): %i < S0;  b(%i, %a) returns %i + 1, ...
becomes
    %y:2 = "control.while"(%zero, %a) {carried = 2 : i64, trips = "S0", body = @b}

Nothing is read back from a kernel between its iterations then. Where the size is one that the program computes, the condition stays.
Requires and keeps stage `named`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.control import WHILE, body_blocks
from disc.ir.ops import block_ops, int_attr, string_attr, terminator_of
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.rewriting import defining, splat_value
from disc.ir.stages import load_env
from disc.ir.symbols import ModuleEnv

_LESS = {"LT": (0, 1), "GT": (1, 0)}  # direction → which operands are the smaller one and the larger one


@dataclass(frozen=True)
class CountLoops(FunctionPass):
    """Replaces the condition of every such loop by the number of its trips."""

    name: ClassVar[str] = "count-loops"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        env = load_env(module)
        for op in block_ops(block):
            trips = counted(op, env) if op.name == WHILE and "condition" in op.attributes else None
            if trips is not None:
                del op.attributes["condition"]
                op.attributes["trips"] = ir.StringAttr.get(trips)


def counted(loop: ir.Operation, env: ModuleEnv) -> str | None:
    """The number of trips of a loop that counts an i64 from 0 up to a size, by ones, as an expression; None for any other loop."""
    condition, body = body_blocks(loop)
    compare = defining(_unconverted(terminator_of(condition).operands[0]), "stablehlo.compare")
    if compare is None or str(ir.RankedTensorType(compare.operands[0].type)) != "tensor<i64>":
        return None
    direction = str(compare.attributes["comparison_direction"]).removeprefix("#stablehlo<comparison_direction ").removesuffix(">")
    if direction not in _LESS:
        return None
    count, limit = (compare.operands[place] for place in _LESS[direction])
    trips = _size(limit)
    if trips is None or not isinstance(count, ir.BlockArgument) or any(name in env.made for name in env.parse(trips).symbols()):
        return None
    number = count.arg_number
    if number >= int_attr(loop, "carried") or _constant(loop.operands[number]) != 0:
        return None
    step = defining(terminator_of(body).operands[number], "stablehlo.add")
    operands = list(step.operands) if step is not None else []
    counts = body.arguments[number] in operands and any(_constant(operand) == 1 for operand in operands)
    return trips if counts else None


def _unconverted(value: ir.Value) -> ir.Value:
    """The i1 behind the i64 that conditions return."""
    convert = defining(value, "stablehlo.convert")
    return value if convert is None else convert.operands[0]


def _constant(value: ir.Value) -> int | None:
    found = splat_value(value)
    return None if found is None else int(found)


def _size(value: ir.Value) -> str | None:
    """An i64 that is a size, or a number, as an expression."""
    made = defining(value, "disc.dim_value")
    if made is not None:
        return string_attr(made, "expr")
    constant = _constant(value)
    return None if constant is None else str(constant)
