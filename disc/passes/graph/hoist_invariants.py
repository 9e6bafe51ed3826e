"""hoist-invariants: what every iteration of a loop would compute alike is computed once, before the loop.

    body(%a, %w, %x):  %y = stablehlo.dot_general(%w, %x);  %n = stablehlo.add(%a, %y);  return %n
    %r = "control.while"(%a, %w, %x) {carried = 1, body = @body, ...}
becomes
    body(%a, %w, %x, %y):  %n = stablehlo.add(%a, %y);  return %n
    %y = stablehlo.dot_general(%w, %x)
    %r = "control.while"(%a, %w, %x, %y) {carried = 1, body = @body, ...}

Moved are sums, windows and products of values that the loop does not change, with what follows of them; broadcasts stay in the loop, which
would read more memory for less arithmetic, and so does what is element-wise alone. Ops that may fail stay too: a loop may have no
iteration. Requires and keeps stage `named`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.control import WHILE, body_blocks
from disc.ir.op_table import BINDING, ELEMENTWISE, MADE, STRUCTURAL, VIEWS, Kind, of_kind
from disc.ir.ops import block_ops, build, function_blocks, int_attr, replace_op, terminator_of
from disc.ir.passes import CompileState, Pass
from disc.ir.rewriting import erase_dead, producer

WORK = of_kind(Kind.REDUCTION, Kind.WINDOW, Kind.DOT, Kind.CONVOLUTION) | {"disc.cumulative"}
# What cannot fail: a gather may be given an index that is out of range.
MOVABLE = (WORK | ELEMENTWISE | MADE | VIEWS | STRUCTURAL | {"stablehlo.constant", "disc.weight"}) - {"disc.gather", "disc.philox"}


@dataclass(frozen=True)
class HoistInvariants(Pass):
    """Moves what is invariant out of every loop, out of inner ones first."""

    name: ClassVar[str] = "hoist-invariants"

    def apply(self, module: ir.Module, state: CompileState) -> None:
        main, *inner = function_blocks(module)  # a function stands before the one that runs it
        for block in (*inner, main):
            for op in block_ops(block):
                if op.name == WHILE:
                    _hoist(op)


def invariants(body: ir.Block, carried: int) -> list[ir.Value]:
    """The values to compute before the loop, of a body whose first arguments are carried: those that only what changes reads, each made by
    some work."""
    fixed: dict[ir.Value, bool] = dict.fromkeys(list(body.arguments)[carried:], False)  # value → whether work has made it
    for op in block_ops(body):
        if op.name in MOVABLE and all(operand in fixed for operand in op.operands) and _is_closed(op):
            worked = op.name in WORK or any(fixed[operand] for operand in op.operands)
            fixed.update((result, worked) for result in op.results)
    found: dict[ir.Value, None] = {}
    for op in block_ops(body):
        if not op.results or op.results[0] not in fixed:
            for operand in op.operands:
                found.update((value, None) for value in _frontier(operand, fixed))
    return list(found)


def _is_closed(op: ir.Operation) -> bool:
    """Whether the body of an op reads nothing from outside."""
    inside = [block for region in op.regions for block in region.blocks]
    made = {value for block in inside for each in block_ops(block) for value in each.results} | {a for b in inside for a in b.arguments}
    return all(operand in made for block in inside for each in block_ops(block) for operand in each.operands)


def _frontier(value: ir.Value, fixed: dict[ir.Value, bool]) -> list[ir.Value]:
    """What to move, that a value is made of: itself, or what it repeats."""
    op = producer(value)
    if op is None or not fixed.get(value, False):
        return []
    if op.name == "disc.broadcast_in_dim":
        return _frontier(op.operands[0], fixed)
    return [value]


def _hoist(loop: ir.Operation) -> None:
    carried = int_attr(loop, "carried")
    body = body_blocks(loop)[-1]
    if any(op.name in BINDING for op in block_ops(body)):
        return  # what has a size that an iteration binds stays in it
    moved = invariants(body, carried)
    if moved:
        move_before(loop, moved)


def move_before(loop: ir.Operation, moved: Sequence[ir.Value]) -> None:
    """Makes values of a loop's body before the loop: they depend on arguments that are not carried, alone. The loop is another op then."""
    body = body_blocks(loop)[-1]
    places: dict[ir.Value, ir.Value] = dict(zip(body.arguments, loop.operands, strict=True))
    made = [_copied(value, places, loop) for value in moved]
    operands = [*loop.operands, *made]
    attributes = {name: loop.attributes[name] for name in loop.attributes}
    new = build(loop.name, operands, [result.type for result in loop.results], attributes, before=loop)
    replace_op(loop, list(new.results))
    for block in body_blocks(new):
        added = [block.add_argument(value.type, ir.Location.unknown()) for value in made]
        if block == body:
            for old, argument in zip(moved, added, strict=True):
                old.replace_all_uses_with(argument)
            erase_dead(block)
        _set_type(block)


def _copied(value: ir.Value, places: dict[ir.Value, ir.Value], before: ir.Operation) -> ir.Value:
    """The value, made before the loop. places: what stands there for values of the body; gets those that are made."""
    pending = [value]
    while pending:
        current = pending[-1]
        op = producer(current)
        if current in places or op is None:
            pending.pop()
            continue
        missing = [operand for operand in op.operands if operand not in places]
        if missing:
            pending += missing
            continue
        copy = op.clone(ip=ir.InsertionPoint(before)).operation
        for number, operand in enumerate(op.operands):
            copy.operands[number] = places[operand]
        places.update(zip(op.results, copy.results, strict=True))
    return places[value]


def _set_type(block: ir.Block) -> None:
    """The type of the function, whose arguments are others now."""
    arguments: Sequence[ir.Type] = [each.type for each in block.arguments]
    returned = [each.type for each in terminator_of(block).operands]
    block.owner.operation.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(list(arguments), returned))
