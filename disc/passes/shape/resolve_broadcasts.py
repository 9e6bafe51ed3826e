"""resolve-broadcasts: removes broadcasts whose operand has the shape of the result already.

    %1 = "disc.broadcast_in_dim"(%0) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<?xf32, [@S1]>) -> tensor<?x?xf32, [@S0, @S1]>
    %2 = "disc.broadcast_in_dim"(%1) {dims = array<i64: 0, 1>, maybe = array<i64: 0>} : (...) -> tensor<?x?xf32, [@S0, @S1]>
becomes
    %2 = "disc.broadcast_in_dim"(%0) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<?xf32, [@S1]>) -> tensor<?x?xf32, [@S0, @S1]>

Requires and guarantees stage `named`. A dim that the facts decide leaves `maybe`; broadcasts of broadcasts become one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.ops import block_ops, dims_of, ints_attr, is_unused, replace_op, to_attribute
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.stages import load_env
from disc.ir.symbols import ModuleEnv
from disc.shapes import Dim, Truth

NAME = "disc.broadcast_in_dim"


@dataclass(frozen=True)
class ResolveBroadcasts(FunctionPass):
    name: ClassVar[str] = "resolve-broadcasts"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        env = load_env(module)
        broadcasts = [op for op in block_ops(block) if op.name == NAME]
        for op in broadcasts:
            _compose(op, env)
            _decide(op, env)
        for op in broadcasts:
            if is_identity(op, env):
                replace_op(op, [op.operands[0]])
        for op in reversed([op for op in block_ops(block) if op.name == NAME]):
            if is_unused(op):
                op.erase()


def undecided(source: Sequence[Dim], target: Sequence[Dim], positions: Sequence[int], env: ModuleEnv) -> list[int]:
    """The operand dims of which it is not known whether they expand (surely 1) or stay (surely the size of the result)."""
    return [
        index
        for index, dim in enumerate(source)
        if env.equal(dim, 1) is not Truth.YES and env.equal(dim, target[positions[index]]) is not Truth.YES
    ]


def is_identity(op: ir.Operation, env: ModuleEnv) -> bool:
    """Whether the result has the dims of the operand, in order."""
    source, target = dims_of(op.operands[0], env), dims_of(op.results[0], env)
    if ints_attr(op, "dims") != list(range(len(target))):
        return False
    return all(env.equal(left, right) is Truth.YES for left, right in zip(source, target, strict=True))


def _decide(op: ir.Operation, env: ModuleEnv) -> None:
    maybe = undecided(dims_of(op.operands[0], env), dims_of(op.results[0], env), ints_attr(op, "dims"), env)
    if maybe != ints_attr(op, "maybe"):
        op.attributes["maybe"] = ir.DenseI64ArrayAttr.get(maybe)


def _compose(op: ir.Operation, env: ModuleEnv) -> None:
    """Reads through the broadcast that made the operand.

    The inner one may expand a dim that the outer one then compares with its result: both steps in one still map index 0 where
    the size is 1 and the same index elsewhere, so only the positions are combined.
    """
    inner = op.operands[0].owner
    if isinstance(inner, ir.Block) or inner.name != NAME:
        return
    outer_positions = ints_attr(op, "dims")
    op.attributes["dims"] = to_attribute([outer_positions[position] for position in ints_attr(inner, "dims")])
    op.operands[0] = inner.operands[0]
