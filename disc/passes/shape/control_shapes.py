"""Dims of control flow: what its regions get, and what they must return. A loop carries shapes that do not change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch_mlir import ir

from disc.errors import ShapeConstraintError
from disc.ir.op_table import BINDING
from disc.ir.ops import all_ops, block_ops, is_tensor, terminator_of
from disc.shapes import ALWAYS, NEVER, Condition, Dim, Truth

if TYPE_CHECKING:
    from disc.passes.shape.shape_rules import Shapes

Dims = tuple[Dim, ...]


def while_dims(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    """Those of the operands, which the body must return again.

    Raises ShapeConstraintError where a shape changes from one iteration to the next, or may.
    """
    carried = [shapes.dims[operand] for operand in op.operands]
    for region in op.regions:
        _walk(shapes, region.blocks[0], carried)
    for inner in all_ops(op.regions[0].blocks[0]):
        if inner.name in BINDING:
            shapes.refuse(inner, "a size that depends on data, in the condition of a loop")
    returned = [shapes.dims[operand] for operand in terminator_of(op.regions[1].blocks[0]).operands]
    for number, (before, after) in enumerate(zip(carried, returned, strict=True)):
        for axis, (old, new) in enumerate(zip(before, after, strict=True)):
            if shapes.env.equal(old, new) is not Truth.YES:
                raise ShapeConstraintError(
                    f"dim {axis} of value {number} that the loop carries is {old} before an iteration and {new} after it: "
                    "what a loop carries must keep its shape"
                )
    return carried


def branch_dims(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    """Those of what the branches return, which must agree.

    Raises ShapeConstraintError where they do not, or may not.
    """
    returned: list[list[Dims]] = []
    for region, premise in zip(op.regions, _premises(shapes, op), strict=True):
        _walk_branch(shapes, region.blocks[0], premise)
        returned.append([shapes.dims[operand] for operand in terminator_of(region.blocks[0]).operands])
    first, *others = returned
    own = {name for region in op.regions for name in _bound_in(shapes, region.blocks[0])}
    if any(own & set(dim.symbols()) for dims in first for dim in dims):
        raise ShapeConstraintError("the size of a result is known in its branch alone")
    for number, dims in enumerate(first):
        for other in others:
            for axis, (one, another) in enumerate(zip(dims, other[number], strict=True)):
                if shapes.env.equal(one, another) is not Truth.YES:
                    raise ShapeConstraintError(
                        f"dim {axis} of result {number} is {one} in one branch and {another} in another: they must agree"
                    )
    return first


def _premises(shapes: Shapes, op: ir.Operation) -> Sequence[Condition | None]:
    """When each branch runs, where sizes decide."""
    found = shapes.values.get(op.operands[0]) if op.name == "stablehlo.if" else None
    truth = found.item() if found is not None else None
    condition = shapes.arithmetic.condition(truth) if isinstance(truth, Dim) else ALWAYS
    if condition in (ALWAYS, NEVER):
        return [None] * len(op.regions)
    try:
        return condition, condition.negated()
    except ValueError:  # too long
        return [None] * len(op.regions)


def _walk_branch(shapes: Shapes, block: ir.Block, premise: Condition | None) -> None:
    """What holds of sizes where a branch runs is known there, unless its ops teach more, which the whole program is asked for."""
    if premise is not None:
        shapes.when[block] = premise
        with shapes.env.supposing(shapes.env.known_when(premise, shapes.conditions)) as are_facts:
            known, refused = (shapes.env.knowledge(), dict(shapes.env.requirements)), len(shapes.unsupported)
            if are_facts:
                _walk(shapes, block, [])
                if (shapes.env.knowledge(), shapes.env.requirements) == known and len(shapes.unsupported) == refused:
                    return
            del shapes.unsupported[refused:]
    _walk(shapes, block, [])


def _bound_in(shapes: Shapes, block: ir.Block) -> Iterator[str]:
    """The symbols that ops of a region bind."""
    for op in all_ops(block):
        if op.name in BINDING:
            size = shapes.made[op.results[0]].item()
            assert isinstance(size, Dim)
            yield from size.symbols()


def _walk(shapes: Shapes, block: ir.Block, dims: Sequence[Dims]) -> None:
    for argument, given in zip(block.arguments, dims, strict=True):
        shapes.dims[argument] = shapes.meet(given, argument)
    for op in block_ops(block)[:-1]:
        shapes.visit(op)
    for operand in filter(is_tensor, terminator_of(block).operands):
        assert operand in shapes.dims
