"""Algebraic simplification with exact IEEE results, common subexpressions, dead code.

    %0 = "disc.reshape"(%x) : (A) -> B                     %1 = stablehlo.transpose %x, dims = [0, 1]
    %2 = "disc.reshape"(%0) : (B) -> C             ─►      %2 = "disc.reshape"(%x) : (A) -> C
    %one = stablehlo.constant dense<1.0> ...
    %3 = stablehlo.multiply %2, %one                       uses of %3 read %2

Requires and keeps stage `named`. A rule replaces one op by a value of the same type; rules run until none applies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from disc.errors import CompilerBug
from disc.ir.ops import block_ops, function_blocks, replace_op
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.rewriting import close_regions, erase_dead
from disc.passes.graph.simplify_elementwise import ELEMENTWISE_RULES
from disc.passes.graph.simplify_structure import STRUCTURE_RULES

Rule = Callable[[ir.Operation], ir.Value | None]

# A rule never makes more ops than it removes without bringing an op nearer to the arguments, so this bound is never met.
_MAXIMUM_SWEEPS = 200


def _merge(*tables: Mapping[str, tuple[Rule, ...]]) -> dict[str, tuple[Rule, ...]]:
    merged: dict[str, tuple[Rule, ...]] = {}
    for table in tables:
        for name, rules in table.items():
            merged[name] = (*merged.get(name, ()), *rules)
    return merged


RULES: Mapping[str, tuple[Rule, ...]] = _merge(ELEMENTWISE_RULES, STRUCTURE_RULES)


@dataclass(frozen=True)
class Simplify(FunctionPass):
    """Runs the rules, then merges equal ops, until nothing changes."""

    name: ClassVar[str] = "simplify"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        for _ in range(_MAXIMUM_SWEEPS):
            changed = _sweep(block)
            erase_dead(block)
            before = len(block.operations)
            PassManager.parse("builtin.module(cse)").run(module.operation)
            for each in function_blocks(module):
                close_regions(each)
            erase_dead(block)
            if not changed and len(block.operations) == before:
                return
        raise CompilerBug("simplify does not come to an end: two of its rules undo each other")


def _sweep(block: ir.Block) -> bool:
    """Tries the rules of every op once, in block order."""
    changed = False
    for op in block_ops(block):
        value = _replacement(op)
        if value is not None:
            replace_op(op, [value])
            changed = True
    return changed


def _replacement(op: ir.Operation) -> ir.Value | None:
    for rule in RULES.get(op.name, ()):
        value = rule(op)
        if value is None:
            continue
        if value.type != op.results[0].type:
            raise CompilerBug(f"the rule {rule.__name__} gives {value.type} for {op}")
        return value
    return None
