"""The parts of an attention fusion: two dots, and between them what normalizes the rows of the first one's scores."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from disc.codegen.plan.contraction import declare, read_contraction
from disc.codegen.plan.index import IndexSpace
from disc.codegen.plan.softmax import read_segments, read_softmax
from disc.errors import CompilerBug
from disc.ir.graph import Body, Node


def read_attention(body: Body) -> tuple[Node, Node, Node, Node]:
    """(first dot, second dot, scores, probabilities)."""
    dots = [node for node in body.nodes if node.op == "stablehlo.dot_general"]
    if len(dots) != 2:
        raise CompilerBug(f"an attention fusion holds {len(dots)} dots")
    probability = dots[1].operands[0]
    return dots[0], dots[1], _scores(body.nodes, dots[0], probability), probability


def no_softmax(nodes: Sequence[Node], first: Node, second: Node) -> str | None:
    """Why two dots are no attention for a device whose kernels keep the maximum and the sum of each row of scores; None where they are.
    nodes: of the fusion, in order."""
    probability = second.operands[0]
    if read_softmax(_scores(nodes, first, probability), probability) is None:
        return "what lies between the dots is no softmax"
    return None


def rows_between(body: Body, scores: Node, probability: Node) -> Body:
    """The nodes from the scores to the probabilities."""
    wanted: dict[Node, None] = {}
    pending = [probability]
    while pending:
        node = pending.pop()
        if node in wanted or node is scores:
            continue
        wanted[node] = None
        pending.extend(operand for operand in node.operands if operand.op != "input")
    order = {node: position for position, node in enumerate(body.nodes)}
    return Body(body.arguments, tuple(sorted(wanted, key=lambda node: order[node])), (probability,))


def _scores(nodes: Sequence[Node], dot: Node, probability: Node) -> Node:
    """The last value computed from the first dot one to one through which alone the rows read the dot."""
    reached: dict[Node, None] = {dot: None}
    for node in nodes:
        if node is probability or node.op == "stablehlo.reduce":
            break
        if any(operand in reached for operand in node.operands):
            reached[node] = None
    return next(node for node in reversed(reached) if _hides(node, reached))


def _hides(last: Node, reached: Collection[Node]) -> bool:
    """Whether all of `reached` that `last` is computed from is read for `last` alone."""
    behind: set[Node] = set()
    pending = [last]
    while pending:
        fresh = [operand for operand in pending.pop().operands if operand in reached and operand not in behind]
        behind.update(fresh)
        pending.extend(fresh)
    return all(user is last or user in behind for node in behind for user in node.uses)


def keeps_segments_apart(space: IndexSpace, body: Body) -> bool:
    """Whether the kernel of an attention fusion of a packed program computes nothing between two sequences."""
    dot, _, scores, probability = read_attention(body)
    contraction = read_contraction(space, dot)
    declare(space, contraction)
    return read_softmax(scores, probability) is not None and read_segments(space, contraction, scores) is not None
