"""split-reductions: a reduction of dims on both sides of one that stays reduces the last dims first, row by row, then the others.

    %y = stablehlo.reduce(%x) across dimensions = [0, 2, 3]    ─►    %r = stablehlo.reduce(%x) across dimensions = [2, 3]
                                                                     %y = stablehlo.reduce(%r) across dimensions = [0]

As in the gradient of a bias of channels, and in the statistics of a batch norm. The lanes of a kernel would run over the dim that stays,
whose elements are far from each other. Sums and products of 16-bit floats, which are rounded once, stay as they are, and so do reductions
of what is transposed: its last dim may not be the last in memory. Requires stage `named`, before any groups; keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.op_table import ELEMENTWISE
from disc.ir.ops import block_ops, dims_of, ints_attr, replace_op
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.reducers import IN_ORDER, reduced_kinds
from disc.ir.rewriting import element_type, entries, is_one, named_type, producer
from disc.ir.stages import load_env

ROUNDED = ("f16", "bf16")
EXACT = ("maximum", "minimum")


@dataclass(frozen=True)
class SplitReductions(FunctionPass):
    """Replaces what should be split."""

    name: ClassVar[str] = "split-reductions"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        env = load_env(module)
        for op in [each for each in block_ops(block) if each.name == "stablehlo.reduce" and may_split(each)]:
            sizes = dims_of(op.operands[0], env)
            _, most = env.range(env.product([sizes[axis] for axis in last_dims(op)]))
            if (most is None or most >= state.thresholds.graph.split_row) and not is_turned(op.operands[0]):
                _split(op)


def may_split(op: ir.Operation) -> bool:
    """Legality: reductions by one op in any order, which keep a dim between those that they reduce, and round nothing twice."""
    if IN_ORDER in op.attributes or len(op.results) != 1:
        return False
    (kind,) = reduced_kinds(op) or [None]
    rounded = str(element_type(op.operands[0].type)) in ROUNDED and kind not in EXACT
    last = last_dims(op)
    return kind is not None and not rounded and bool(last) and len(last) < len(_reduced(op))


def _reduced(op: ir.Operation) -> list[int]:
    """The dims that it reduces, without those of one element."""
    sizes = entries(op.operands[0].type)
    return [axis for axis in sorted(ints_attr(op, "dimensions")) if not is_one(sizes[axis])]


def last_dims(op: ir.Operation) -> list[int]:
    """Those of the reduced dims behind all that stay."""
    sizes, reduced = entries(op.operands[0].type), _reduced(op)
    kept = [axis for axis in range(len(sizes)) if axis not in reduced and not is_one(sizes[axis])]
    return [axis for axis in reduced if axis > max(kept, default=-1)]


def is_turned(value: ir.Value) -> bool:
    """Whether a value, behind elementwise ops, is a transpose that moves the last dim."""
    pending, seen = [value], {value}
    while pending:
        op = producer(pending.pop())
        if op is not None and op.name == "stablehlo.transpose":
            order = ints_attr(op, "permutation")
            if order[-1] != len(order) - 1:
                return True
        elif op is not None and op.name in ELEMENTWISE:
            pending.extend(operand for operand in op.operands if operand not in seen)
            seen.update(op.operands)
    return False


def _split(op: ir.Operation) -> None:
    last = last_dims(op)
    rows = _reduce(op, op.operands[0], last)
    rest = [axis for axis in ints_attr(op, "dimensions") if axis not in last]
    replace_op(op, [_reduce(op, rows, [axis - sum(each < axis for each in last) for axis in rest])])


def _reduce(op: ir.Operation, source: ir.Value, dims: Sequence[int]) -> ir.Value:
    """The reduction `op` of `source` along `dims`."""
    made = op.clone(ip=ir.InsertionPoint(op)).operation
    made.operands[0] = source
    made.attributes["dimensions"] = ir.DenseI64ArrayAttr.get(list(dims))
    kept = [entry for axis, entry in enumerate(entries(source.type)) if axis not in dims]
    made.results[0].set_type(named_type(element_type(source.type), kept))
    return made.results[0]
