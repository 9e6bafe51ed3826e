"""turn-weights: weights of f32 that products on GPUs read across their rows are stored along k, once, when compiling.

    %w = "disc.weight"() {name = "mlp.c_fc"}                   %t = "disc.weight"() {name = "turned.mlp.c_fc"}
    %y = dot_general %x, %w, contracting [1] x [0]     ─►      %y = dot_general %x, %t, contracting [1] x [1]

The tensor cores of sm_90 read factors of tf32 from shared memory along k alone; others have to be turned on the way, in registers: products
of f32 take 1.5 to 3.7 times as long (docs/speed_goals.md). Elements of 16 bits are read either way. Requires stage `named`; keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.ops import block_ops, build, replace_op, string_attr
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.rewriting import element_type, entries, named_type
from disc.ir.weights import Weight
from disc.passes.graph.dot_numbers import DotNumbers

VECTOR = 4  # elements of f32 in a load of 16 bytes


@dataclass(frozen=True)
class TurnWeights(FunctionPass):
    """Weights that nothing but products reads, all of which sum over the same dim, get that dim as their last."""

    name: ClassVar[str] = "turn-weights"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        for op in block_ops(block):
            if op.name == "disc.weight" and str(element_type(op.results[0].type)) == "f32":
                dim = _summed(op.results[0])
                if dim is not None:
                    _turn(op, dim, state)


def _summed(weight: ir.Value) -> int | None:
    """The one dim that all readers sum over, where it is not the last one, and where loads of 16 bytes are as possible along it."""
    rank, dims = len(entries(weight.type)), set[int]()
    for use in weight.uses:
        dot = use.owner
        contracting = DotNumbers.of(dot).contracting[use.operand_number] if dot.name == "stablehlo.dot_general" else ()
        if len(contracting) != 1:
            return None
        dims.update(contracting)
    if len(dims) != 1 or rank - 1 in dims:
        return None
    dim, sizes = dims.pop(), ir.RankedTensorType(weight.type).shape
    return dim if sizes[dim] % VECTOR == 0 or sizes[-1] % VECTOR else None


def _turn(op: ir.Operation, dim: int, state: CompileState) -> None:
    matrix, name = op.results[0], string_attr(op, "name")
    dims = entries(matrix.type)
    order = [*(each for each in range(len(dims)) if each != dim), dim]
    held = state.weights[name]
    turned = state.weights.add(f"turned.{name}", Weight(held.array.transpose(order), held.dtype))
    type_ = named_type(element_type(matrix.type), [dims[each] for each in order])
    new = build("disc.weight", [], [type_], {"name": turned}, before=op).results[0]
    image = [order.index(each) for each in range(len(dims))]
    while (use := next(iter(matrix.uses), None)) is not None:
        dot = use.owner
        operands, numbers = list(dot.operands), DotNumbers.of(dot)
        for side in (0, 1):
            if operands[side] == matrix:
                operands[side], numbers = new, numbers.with_dims_of(side, image)
        replace_op(dot, numbers.build_dot(dot, operands, dot.results[0].type).results)
    op.erase()
