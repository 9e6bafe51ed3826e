"""Results that are views: they stay views, of what the compiled graph computes or takes.

AOTAutograd makes a result that shares memory with an input or with another result once more, out of that and of the strides that the
graph returned. A copy with strides of its own would be read wrongly, so the graph is cut before such views, and PyTorch makes them after
each call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import fx

Views = Callable[[Sequence[object], Sequence[object]], dict[int, object]]


@dataclass(frozen=True)
class _View:
    """Result `position` is `node`, a chain of views of `root`."""

    position: int
    node: fx.Node
    root: fx.Node


def cut_views(module: fx.GraphModule) -> Views | None:
    """Takes the views out of the results of `module`: each gives way to its root, or to None when that is an input.

    Returns: (inputs, results of the cut module) → position → view; None when there is nothing to cut.
    """
    output = next(node for node in module.graph.nodes if node.op == "output")
    returned = output.args[0]
    if not isinstance(returned, list | tuple):
        return None
    views = _shared_views(list(returned))
    if not views:
        return None
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    computed = {view.root: view.position for view in views if view.root.op != "placeholder"}
    replay = _replay_graph(module, [*placeholders, *computed], [view.node for view in views])
    results = list(returned)
    for view in views:
        results[view.position] = None if view.root.op == "placeholder" else view.root
    output.args = (tuple(results),)
    module.graph.eliminate_dead_code()
    module.recompile()

    def make(inputs: Sequence[object], results: Sequence[object]) -> dict[int, object]:
        made = replay(*inputs, *(results[position] for position in computed.values()))
        return {view.position: value for view, value in zip(views, made, strict=True)}

    return make


def _shared_views(returned: list[object]) -> list[_View]:
    """The results that are views of an input or of what another result shares memory with."""
    found: list[_View] = []
    roots: dict[fx.Node, int] = {}
    for position, node in enumerate(returned):
        if isinstance(node, fx.Node):
            root = _root(node)
            roots[root] = roots.get(root, 0) + 1
            if root is not node:
                found.append(_View(position, node, root))
    return [view for view in found if view.root.op == "placeholder" or roots[view.root] > 1]


def _root(node: fx.Node) -> fx.Node:
    """What `node` is a view of in the end: itself when it is none."""
    while _is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _is_view(node: fx.Node) -> bool:
    source = node.args[0] if node.target is operator.getitem else node
    if not isinstance(source, fx.Node) or not isinstance(source.target, torch._ops.OpOverload):
        return False
    aliases = [result.alias_info for result in source.target._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def _replay_graph(module: fx.GraphModule, given: Sequence[fx.Node], wanted: Sequence[fx.Node]) -> fx.GraphModule:
    """A graph from the values of `given` to those of `wanted`."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(f"given{number}") for number, node in enumerate(given)}

    def copy(node: fx.Node) -> fx.Node:
        if node not in copies:
            copies[node] = graph.node_copy(node, copy)
        return copies[node]

    graph.output(tuple([copy(node) for node in wanted]))
    return fx.GraphModule(module, graph)
