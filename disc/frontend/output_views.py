"""What a compiled graph returns: values in row-major order; views, shared memory and strides are made of them after each call.

Eager results have strides, and may share memory with an input or with each other; AOTAutograd even makes such a result once more, out of
its base and the strides that the graph returned. A compiled graph knows neither. So the graph is cut before the views among its
results, PyTorch makes these after each call, and a value that lies in memory in another order of dims is computed transposed.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.frontend.locations import line_text
from disc.frontend.memory_layouts import UNKNOWN_LAYOUT, Layout, memory_layout

aten = torch.ops.aten


@dataclass(frozen=True)
class Assembly:
    """Makes of the inputs of a call, and of the results of a cut module, the results of the whole one. laid_out: layouts of results, by
    place; views: from inputs and results to what is made of them; sources: of each result a place among all these, or a constant."""

    laid_out: Mapping[int, Layout]
    views: fx.GraphModule | None
    sources: Sequence[tuple[int | None, object]]

    def __call__(self, inputs: Sequence[object], results: Sequence[object]) -> list[object]:
        values = [*inputs, *results]
        for place, layout in self.laid_out.items():
            values[len(inputs) + place] = layout.apply(results[place])  # pyright: ignore[reportArgumentType]
        if self.views is not None:
            values += self.views.forward(*values)
        return [constant if place is None else values[place] for place, constant in self.sources]


@dataclass(frozen=True)
class Turn:
    """Makes of the inputs of a call what a module takes whose inputs lie in other orders of dims. orders: by place."""

    orders: Mapping[int, tuple[int, ...]]

    def __call__(self, inputs: Sequence[object]) -> list[object]:
        values = list(inputs)
        for place, order in self.orders.items():
            values[place] = values[place].permute(order)  # pyright: ignore[reportAttributeAccessIssue]
        return values


def output_node(graph: fx.Graph) -> fx.Node:
    return next(node for node in reversed(graph.nodes) if node.op == "output")


def returned_nodes(graph: fx.Graph) -> list[object]:
    """What the graph returns: nodes and constants."""
    returned = output_node(graph).args[0]
    return list(returned) if isinstance(returned, list | tuple) else [returned]


def cut_results(module: fx.GraphModule) -> Assembly | None:
    """Makes `module` return each computed value once and in row-major order.

    Returns: what makes the results of the whole module of those of the cut one; None where these are the same.

    Raises: UnsupportedOpError where the layout of a result is not known.
    """
    returned = returned_nodes(module.graph)
    nodes = [node for node in dict.fromkeys(returned) if isinstance(node, fx.Node)]
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    computed = computed_roots(module.graph)
    made = [node for node in nodes if node not in computed and node.op != "placeholder"]
    replay = _replay_graph(module, [*placeholders, *computed], made) if made else None
    laid_out = {place: layout for place, node in enumerate(computed) if (layout := _layout_of(node)) is not None}
    _return(module, computed, laid_out)
    places = {node: place for place, node in enumerate([*placeholders, *computed, *made])}
    sources = [(places[node], None) if isinstance(node, fx.Node) else (None, node) for node in returned]
    if returned == computed and not laid_out:
        return None
    return Assembly(laid_out, replay, sources)


def turn_inputs(module: fx.GraphModule) -> Turn | None:
    """Makes `module` take inputs that are dense in another order of dims in the order in which they lie, so that compiled code reads them
    in place: what a forward pass has kept, laid out as in eager, is such an input of the backward pass.

    Returns: what makes the inputs of the changed module of those of a call; None where these are the same.
    """
    orders: dict[int, tuple[int, ...]] = {}
    placeholders = module.graph.find_nodes(op="placeholder")
    for place, node in enumerate(placeholders):
        value = node.meta.get("val")
        readable = isinstance(value, torch.Tensor) and not value.is_complex()  # a program reads complex inputs as they lie, and only so
        layout = memory_layout(value) if readable else None
        if layout is not None and layout.order != tuple(range(len(layout.order))):
            orders[place] = layout.order
            with module.graph.inserting_after(placeholders[-1]):
                _turn(module.graph, node, layout.order)
    module.recompile()
    return Turn(orders) if orders else None


def _turn(graph: fx.Graph, placeholder: fx.Node, order: Sequence[int]) -> None:
    value = placeholder.meta["val"]
    back = graph.call_function(aten.permute.default, (placeholder, [order.index(dim) for dim in range(len(order))]))
    placeholder.replace_all_uses_with(back, lambda user: user is not back)
    back.meta, placeholder.meta = dict(placeholder.meta), {**placeholder.meta, "val": value.permute(order)}


def replaced_inputs(graph: fx.Graph, replaced: Mapping[int, int]) -> dict[fx.Node, int]:
    """The computed results that may lie where inputs lay, and the numbers of these. replaced: number of a result → that of the input into
    which the caller copies it after each call. Both lie row by row, and nothing else that is returned is one of both, or a view of it."""
    returned, placeholders = returned_nodes(graph), graph.find_nodes(op="placeholder")
    seen = bases_of_results(graph)
    found: dict[fx.Node, int] = {}
    for number, place in replaced.items():
        node, placeholder = returned[number], placeholders[place]
        if not isinstance(node, fx.Node) or node.op != "call_function" or is_view(node) or seen[node] != 1 or seen[placeholder]:
            continue
        if _lies_in_rows(node.meta.get("val")) and _lies_in_rows(placeholder.meta.get("val")):
            found[node] = place
    return found


def bases_of_results(graph: fx.Graph) -> Counter[fx.Node]:
    """What results are, or are views of: inputs, and what is computed; of how many results each."""
    return Counter(base for node in returned_nodes(graph) if isinstance(node, fx.Node) for base in _bases(node))


def _bases(node: fx.Node) -> set[fx.Node]:
    """What a result is a view of: what is computed, and inputs."""
    found, seen, pending = set[fx.Node](), {node}, [node]
    while pending:
        each = pending.pop()
        if each.op == "call_function" and (is_view(each) or not _is_tensor(each)):
            pending += [source for source in each.all_input_nodes if source not in seen]
            seen.update(each.all_input_nodes)
        else:
            found.add(each)
    return found


def _lies_in_rows(value: object) -> bool:
    layout = memory_layout(value) if isinstance(value, torch.Tensor) and not value.is_complex() else None
    return layout is not None and layout.row_major


def computed_roots(graph: fx.Graph) -> list[fx.Node]:
    """What must be computed before the views among the results can be made: tensors, and sizes that are read off other tensors."""
    returned = [node for node in returned_nodes(graph) if isinstance(node, fx.Node)]
    needed: dict[fx.Node, None] = {}
    seen: set[fx.Node] = set()
    pending = returned[::-1]
    while pending:
        node = pending.pop()
        if node.op != "call_function" or node in seen:
            continue
        seen.add(node)
        sources = node.all_input_nodes
        if not is_view(node) and (_is_tensor(node) or any(_is_tensor(each) and each.op != "placeholder" for each in sources)):
            needed[node] = None
        else:
            pending += reversed(sources)
    return list(needed)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor | list | tuple)


def _return(module: fx.GraphModule, computed: Sequence[fx.Node], laid_out: Mapping[int, Layout]) -> None:
    output = output_node(module.graph)
    returned: list[fx.Node] = []
    for place, node in enumerate(computed):
        layout = laid_out.get(place)
        if layout is None or layout.order == tuple(range(len(layout.order))):
            returned.append(node)
            continue
        with module.graph.inserting_before(output):
            transposed = module.graph.call_function(aten.permute.default, (node, list(layout.order)))
        transposed.meta = {**node.meta, "val": node.meta["val"].permute(layout.order)}
        returned.append(transposed)
    output.args = (tuple(returned),)
    module.graph.eliminate_dead_code()
    module.recompile()


def _layout_of(node: fx.Node) -> Layout | None:
    """None where the result is no tensor, or lies in memory row by row.

    Raises: UnsupportedOpError.
    """
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return None
    layout = memory_layout(value)
    if layout is None:
        raise UnsupportedOpError([UnsupportedOp(str(node.target), UNKNOWN_LAYOUT, line_text(node))])
    return None if layout.row_major else layout


# --- views ----------------------------------------------------------------------------------------------------------------------


def is_view(node: fx.Node) -> bool:
    """Whether the node's value shares memory with its first argument."""
    source = node.args[0] if node.target is operator.getitem else node
    if not isinstance(source, fx.Node) or not isinstance(source.target, torch._ops.OpOverload):
        return False
    aliases = [result.alias_info for result in source.target._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def _replay_graph(module: fx.GraphModule, given: Sequence[fx.Node], wanted: Sequence[fx.Node]) -> fx.GraphModule:
    """A module from the values of `given` to those of `wanted`."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(f"given{number}") for number, node in enumerate(given)}

    def copy(node: fx.Node) -> fx.Node:
        if node not in copies:
            copies[node] = graph.node_copy(node, copy)
        return copies[node]

    graph.output(tuple([copy(node) for node in wanted]))
    return plain_module(module, graph)


def plain_module(module: fx.GraphModule, graph: fx.Graph) -> fx.GraphModule:
    """The module with another graph, which is not needed but to be run: without what was noted of its trace, tensors among it."""
    for node in graph.nodes:
        node.meta = {}
    made = fx.GraphModule(module, graph)
    made.meta = {}
    return made
