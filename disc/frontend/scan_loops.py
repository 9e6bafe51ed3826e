"""A `scan` that a graph has as a loop: what of it is read, what every iteration computes alike, and what it only adds up can leave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import fx
from torch.utils import _pytree as pytree

from disc.frontend.loop_rows import place_of
from disc.frontend.loops_found import Carried, Local, Loop, Rows, Source, may_repeat

aten = torch.ops.aten
SCAN = torch.ops.higher_order.scan


@dataclass
class Scan(Loop):
    """call: of `scan`. finals: places whose last value is read, stacks: those whose values of all iterations are, and by what. starts: what
    is carried, read or not; first: rows that there are in any case."""

    call: fx.Node = field(kw_only=True)
    starts: Sequence[Carried] = field(kw_only=True)
    finals: dict[int, list[fx.Node]] = field(default_factory=dict)
    stacks: dict[int, list[fx.Node]] = field(default_factory=dict)
    first: Rows = field(kw_only=True)

    def is_read_outside(self, place: int, *, before_last: bool = False) -> bool:
        return place in self.stacks or (place in self.finals and not before_last)

    def carried(self) -> list[Carried]:
        used, inside = super().carried(), {place for place, _ in self.body}
        return used + [each for each in self.starts if each not in used and each.place in self.finals and each.place in inside]


def scan_loop(module: fx.GraphModule, call: fx.Node) -> Scan | None:
    """The loop of a call of `scan`, without what nobody reads. What is the same in every iteration is computed before it. None where there
    are other graphs within it, or what draws or writes."""
    body = _body_of(module, call)
    starts, rows, outer = (list(cast("Sequence[fx.Node]", each)) for each in call.args[1:4])
    if body is None or not all(isinstance(each, fx.Node) for each in (*starts, *rows, *outer)) or not rows:
        return None
    results = [_original(each) for each in _placed_results(body)]
    nodes = [node for node in body.nodes if node.op == "call_function"]
    places = {node: place for place, node in enumerate(nodes)}
    every = [Rows(each, 0, 0, 1) for each in rows]
    carried = [Carried(places[node], start) for node, start in zip(results, starts, strict=False)]
    inputs = dict[fx.Node, Source](zip(body.find_nodes(op="placeholder"), [*carried, *every, *outer], strict=True))
    loop = Scan([nodes], call=call, starts=carried, first=every[0])
    _find_sources(loop, places, inputs, kept={places[each] for each in results})
    for user in call.users:
        if user.users:
            number = cast("int", user.args[1])
            found = loop.finals if number < len(starts) else loop.stacks
            found.setdefault(places[results[number]], []).append(user)
    _drop_unread(loop)
    return loop


def _body_of(module: fx.GraphModule, call: fx.Node) -> fx.Graph | None:
    """A copy of the graph of an iteration, with what is known of its values."""
    graph = cast("fx.Node", call.args[0])
    body = getattr(module, str(graph.target), None)
    if not isinstance(body, fx.GraphModule):
        return None
    copy = fx.Graph()
    copy.output(copy.graph_copy(body.graph, {}))
    plain = all(
        node.op in ("placeholder", "output") or (node.op == "call_function" and may_repeat(node, sizes=True)) for node in copy.nodes
    )
    return copy if plain else None


def _placed_results(body: fx.Graph) -> list[fx.Node]:
    """What an iteration returns, as nodes of its own."""
    output = body.output_node()
    results = list(cast("Sequence[fx.Node]", output.args[0]))
    with body.inserting_before(output):
        for number, each in enumerate(results):
            if each.op == "placeholder":
                results[number] = body.call_function(aten.clone.default, (each,))
                results[number].meta = dict(each.meta)
    return results


def _original(node: fx.Node) -> fx.Node:
    """What it is a copy of, where that is a node of the body."""
    while node.target is aten.clone.default and not node.kwargs and (before := node.all_input_nodes[0]).op == "call_function":
        node = before
    return node


def _find_sources(loop: Scan, places: Mapping[fx.Node, int], inputs: Mapping[fx.Node, Source], kept: Set[int]) -> None:
    """kept: places of results, which stay in the loop."""
    graph = loop.call.graph
    for node, place in places.items():
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        sources = dict[int, Source]()
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, fx.Node):
                leaf = _original(leaf)
                sources[number] = inputs[leaf] if leaf in inputs else loop.fixed.get(places[leaf]) or Local(places[leaf])
        if place in kept or not all(isinstance(each, fx.Node) for each in sources.values()):
            loop.sources |= {(place, number): source for number, source in sources.items()}
            continue
        args, kwargs = pytree.tree_unflatten([sources.get(number, leaf) for number, leaf in enumerate(leaves)], spec)
        with graph.inserting_before(loop.call):
            loop.fixed[place] = graph.call_function(cast("torch._ops.OpOverload", node.target), args, kwargs)
        loop.fixed[place].meta = {**place_of(node), "val": node.meta["val"]}


def _drop_unread(loop: Scan) -> None:
    """Takes all out that no result needs."""
    needed, pending = set[int](), [*loop.finals, *loop.stacks]
    while pending:
        place = pending.pop()
        if place in needed:
            continue
        needed.add(place)
        sources = [source for (mine, _), source in loop.sources.items() if mine == place]
        pending += [each.place for each in sources if isinstance(each, Local | Carried)]
    loop.leave_out(place for place in range(len(loop.iterations[0])) if place not in needed)
