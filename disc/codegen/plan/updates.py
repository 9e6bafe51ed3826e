"""Fusions that write over one of their arguments, or a part of it: what they make can lie in its memory."""

from __future__ import annotations

from disc.ir.graph import Body, Node
from disc.ir.op_table import ELEMENTWISE, MADE, VIEWS

_INDEXED = frozenset({"input", "stablehlo.reduce", *MADE, *VIEWS})  # what else a loop may hold whose results are written over arguments
UPDATE, SCATTER = "stablehlo.dynamic_update_slice", "stablehlo.scatter"


def updated_argument(body: Body) -> Node | None:
    """The argument over which a slice or a scatter is written, where that is all that the fusion makes, and it reads the argument nowhere
    else; None for any other fusion."""
    node = body.yields[0]
    if len(body.yields) != 1 or node.op not in (UPDATE, SCATTER) or len(node.siblings) != 1:
        return None
    source = node.operands[0]
    alone = source.uses == [node] and node.operands.count(source) == 1
    return source if alone and source in body.arguments else None


def overwritten_arguments(kind: str, body: Body) -> list[tuple[int, Node]]:
    """Pairs of a result, by number, and an argument in whose memory the kernel of a loop may put it: an element of the argument is read for
    the elements of results at the same index alone, and before the first of these that is stored in its place.

    A kernel computes the results at an index one after the other, in their order, stores each at once, and loads nothing there twice.
    """
    if kind != "loop" or not all(node.op in ELEMENTWISE or node.op in _INDEXED for node in body.nodes):
        return []
    found: list[tuple[int, Node]] = []
    for argument in body.arguments:
        made = _made_elementwise(argument)
        readers = [number for number, result in enumerate(body.yields) if result in made]
        found += [
            (number, argument)
            for number, result in enumerate(body.yields)
            if readers and number >= readers[0] and (result.dims, result.element) == (argument.dims, argument.element)
        ]
    return found


def _made_elementwise(argument: Node) -> set[Node]:
    """What is computed of an argument, if that goes on element by element throughout; else nothing."""
    found, pending = {argument}, [argument]
    while pending:
        for user in pending.pop().uses:
            if user.op not in ELEMENTWISE or user.dims != argument.dims:
                return set()
            if user not in found:
                found.add(user)
                pending.append(user)
    return found
