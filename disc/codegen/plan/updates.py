"""Fusions that write over a part of one of their arguments: what they make can lie in its memory."""

from __future__ import annotations

from disc.ir.graph import Body, Node

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
