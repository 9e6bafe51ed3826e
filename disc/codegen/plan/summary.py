"""What is said of a kernel to people: its ops, and the bytes that it must move."""

from __future__ import annotations

from disc.codegen.plan.index import ZERO, IndexSpace
from disc.ir.graph import Body
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim


def kernel_ops(body: Body) -> tuple[str, ...]:
    """The ops in a kernel, in order."""
    return tuple(node.op for node in body.nodes if node.op != "input")


def traffic(space: IndexSpace, body: Body) -> Dim:
    """Bytes that must move: every input and output once (a gathered table counts as its output)."""
    total = ZERO
    gathered = {node.operands[0] for node in body.nodes if node.op == "disc.gather"}
    for node in (*(argument for argument in body.arguments if argument not in gathered), *body.yields):
        total = total + space.env.product(node.dims) * ELEMENT_BYTES[node.element]
    return total
