"""Constants of several values become weights: in a kernel a constant is one value in a register.

    %c = stablehlo.constant dense<[1.0, 2.0]>        ─►     %c = "disc.weight"() {name = "constant"}

Requires and keeps stage `named`; afterwards every constant is a splat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.interp.values import constant_value, element_name, is_splat, stored_weight
from disc.ir.ops import block_ops, build, replace_op
from disc.ir.passes import CompileState, FunctionPass


@dataclass(frozen=True)
class StoreConstants(FunctionPass):
    """Moves the data to the weight table."""

    name: ClassVar[str] = "store-constants"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        for op in block_ops(block):
            if op.name != "stablehlo.constant":
                continue
            value = constant_value(op.attributes["value"])
            if value.size <= 1 or is_splat(value):
                continue
            kind = op.results[0].type
            name = state.weights.add("constant", stored_weight(value, element_name(kind)))
            replace_op(op, build("disc.weight", [], [kind], {"name": name}, before=op).results)
