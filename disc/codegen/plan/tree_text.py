"""The nodes of decision trees in plans: `m>37?2:1` goes on at node 2 for more than 37 rows, else at node 1; `@0` takes schedule 0. A tree
begins at its first node. `library>0?2:1` asks whether there is a library of products."""

from __future__ import annotations

from collections.abc import Sequence

from disc.codegen.plan.text import IllegalPlan
from disc.speculation.schedules import QUESTIONS
from disc.speculation.tree import LEAF

Node = tuple[int, int, int, int]  # as of `DecisionTree`


def node_texts(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Nodes as texts."""
    return tuple(
        f"@{threshold}" if feature == LEAF else f"{QUESTIONS[feature]}>{threshold}?{above}:{below}"
        for feature, threshold, below, above in nodes
    )


def read_nodes(texts: Sequence[str], schedules: int) -> tuple[Node, ...]:
    """The nodes of texts, of a tree over so many schedules. Raises IllegalPlan."""
    try:
        nodes = tuple(map(_node, texts))
    except ValueError as error:
        raise IllegalPlan("tree", str(error)) from error
    for place, (feature, threshold, left, right) in enumerate(nodes):
        if feature == LEAF and not 0 <= threshold < schedules:
            raise IllegalPlan("nodes", f"there is no schedule {threshold}")
        if feature != LEAF and not (place < left < len(nodes) and place < right < len(nodes)):
            raise IllegalPlan("nodes", f"node {place} must go on at later nodes")
    if not nodes:
        raise IllegalPlan("nodes", "there must be one")
    return nodes


def _node(text: str) -> Node:
    if text.startswith("@"):
        return (LEAF, int(text[1:]), 0, 0)
    question, _, places = text.partition("?")
    feature, _, threshold = question.partition(">")
    above, _, below = places.partition(":")
    if feature not in QUESTIONS:
        raise ValueError(f"{text!r} asks for no size of a product")
    return (QUESTIONS.index(feature), int(threshold), int(below), int(above))
