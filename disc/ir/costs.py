"""Rough cost of producing one element of a node, in vector instructions; used by profit decisions only."""

from __future__ import annotations

from disc.ir.graph import Node

EXPENSIVE = {
    "exponential": 14, "exponential_minus_one": 24, "log": 20, "log_plus_one": 24, "tanh": 24, "logistic": 20, "erf": 26, "erfc": 30,
    "erf_inv": 30, "sine": 30, "cosine": 30, "tan": 36, "power": 60, "atan2": 40, "sqrt": 8, "rsqrt": 12, "divide": 8, "cbrt": 30,
    "remainder": 30,
}  # fmt: skip
VIEWS = frozenset(
    {
        "disc.reshape", "disc.broadcast_in_dim", "stablehlo.transpose", "disc.slice", "disc.diagonals", "stablehlo.reverse",
        "stablehlo.convert", "disc.iota",
    }
)  # fmt: skip


def op_cost(node: Node) -> int:
    """The cost of the op alone."""
    if node.op in VIEWS or node.op in ("input", "stablehlo.constant", "disc.dim_value"):
        return 0
    return EXPENSIVE.get(node.name, 1)


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
