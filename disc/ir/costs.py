"""Rough cost of producing one element of a node, in vector instructions; used by profit decisions only."""

from __future__ import annotations

from disc.ir.graph import Node
from disc.ir.op_table import OPS


def op_cost(node: Node) -> int:
    """The cost of the op alone."""
    return 0 if node.op == "input" else OPS[node.op].cost


def node_cost(node: Node, limit: int = 64) -> int:
    """The cost with everything that is inlined above it, up to `limit`."""
    total, pending, seen = 0, [node], {node}
    while pending and total < limit:
        current = pending.pop()
        total += op_cost(current)
        if current.op == "stablehlo.reduce":
            continue
        for operand in current.operands:
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
    return total
