"""A graph with ops that only PyTorch can run, as compiled parts around these ops.

x ──► part 0 ──► topk ──► part 2 ──► result        stages 0, 1, 2: even ones are compiled, odd ones run node by node
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Sequence

import sympy
import torch
from torch import fx

from disc.errors import UnsupportedOp
from disc.frontend.output_views import is_view, output_node
from disc.frontend.symbols import linear_form, to_shape, to_size

aten = torch.ops.aten
Executable = Callable[[list[object]], Sequence[object]]
BEFORE = -1  # the stage of what is given


def run_in_parts(module: fx.GraphModule, refused: Container[fx.Node], compile_part: Callable[[fx.GraphModule], Executable]) -> Executable:
    """`module` with as much as possible compiled; `refused` nodes, and the arithmetic on sizes, are run by PyTorch and Python."""
    outer = _Outer(module, compile_part)
    stages = _stages(module.graph, refused)
    for stage in sorted(set(stages.values())):
        nodes = [node for node in module.graph.nodes if stages.get(node) == stage]
        if stage % 2 == 0 and not all(is_view(node) for node in nodes):
            outer.add_part(nodes)
        else:
            outer.add_nodes(nodes)
    forward = outer.finish()
    return lambda inputs: forward(*inputs)


def _stages(graph: fx.Graph, refused: Container[fx.Node]) -> dict[fx.Node, int]:
    """When each node can run. A node comes after its operands, and what draws random numbers or has effects stays in its order."""
    stages: dict[fx.Node, int] = {}
    compiled: set[fx.Node] = set()
    last_ordered = BEFORE
    for node in graph.nodes:
        if node.op == "output":
            continue
        earliest = max((stages[source] for source in node.all_input_nodes), default=BEFORE)
        if node.op != "call_function":
            stages[node] = BEFORE
        elif _can_compile(node, refused, compiled):
            compiled.add(node)
            stages[node] = earliest + earliest % 2
        else:
            stages[node] = earliest + 1 - earliest % 2
            if _is_ordered(node):
                stages[node] = last_ordered = max(stages[node], last_ordered)
    return stages


def _can_compile(node: fx.Node, refused: Container[fx.Node], compiled: Container[fx.Node]) -> bool:
    """Sizes are computed by Python: a part takes them as inputs. A member of several results belongs to what made them."""
    if node.target is operator.getitem:
        return all(source in compiled for source in node.all_input_nodes)
    makes_tensors = any(isinstance(value, torch.Tensor) for value in _as_list(node.meta.get("val")))
    return node not in refused and makes_tensors and all(_is_computed_from_sizes(source) for source in node.all_input_nodes)


def _is_number(node: fx.Node) -> bool:
    """Whether the value is a Python float or bool, which compiled code does not take."""
    return isinstance(node.meta.get("val"), torch.SymFloat | torch.SymBool | float)


def _is_computed_from_sizes(node: fx.Node) -> bool:
    """Whether a part can compute the value itself, if it is a number."""
    pending, seen = [node], {node}
    while pending:
        current = pending.pop()
        if not _is_number(current):
            continue
        sources = current.all_input_nodes
        sizes = all(isinstance(source.meta.get("val"), torch.SymInt | int) or _is_number(source) for source in sources)
        if current.op != "call_function" or not sizes:
            return False
        pending += [source for source in sources if source not in seen]
        seen.update(sources)
    return True


def _with_numbers(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """`nodes` behind the numbers that they take and that are computed from sizes."""
    found: dict[fx.Node, None] = {}
    pending = [source for node in reversed(nodes) for source in reversed(node.all_input_nodes)]
    while pending:
        node = pending[-1]
        missing = [source for source in node.all_input_nodes if _is_number(source) and source not in found]
        if not _is_number(node) or node in found or not missing:
            if _is_number(pending.pop()):
                found[node] = None
        else:
            pending += reversed(missing)
    return [*found, *nodes]


def _is_ordered(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is not operator.getitem and isinstance(node.target, torch._ops.HigherOrderOperator)
    return torch.Tag.nondeterministic_seeded in node.target.tags or node.is_impure() or node.target.namespace not in ("aten", "prims")


class _Outer:
    """The graph around the parts, while it grows.

    values: node of the module → node of the new graph.
    """

    def __init__(self, module: fx.GraphModule, compile_part: Callable[[fx.GraphModule], Executable]) -> None:
        self.module = module
        self.compile_part = compile_part
        self.graph = fx.Graph()
        self.attributes: dict[str, object] = {}
        self.values: dict[fx.Node, fx.Node] = {}

    def add_nodes(self, nodes: Sequence[fx.Node]) -> None:
        for node in nodes:
            self.values[node] = self.graph.node_copy(node, self.values.__getitem__)
            if node.op == "get_attr":
                self.attributes[str(node.target)] = operator.attrgetter(str(node.target))(self.module)

    def add_part(self, nodes: Sequence[fx.Node]) -> None:
        made = set(nodes)
        outputs = [node for node in nodes if any(user not in made for user in node.users)]
        nodes = _with_numbers(nodes)
        members = set(nodes)
        given = dict.fromkeys(
            source for node in nodes for source in node.all_input_nodes if source not in members and source.op != "get_attr"
        )
        inputs = [*given, *self._size_sources(nodes, list(given))]
        part = _part_graph(self.module, inputs, nodes, outputs)
        name = f"part_{len(self.attributes)}"
        self.attributes[name] = _Part(self.compile_part(part))
        call = self.graph.call_module(name, tuple(self.values[node] for node in inputs))
        for place, node in enumerate(outputs):
            self.values[node] = self.graph.call_function(operator.getitem, (call, place))
            self.values[node].meta = dict(node.meta)

    def finish(self) -> Callable[..., Sequence[object]]:
        output = output_node(self.module.graph)
        self.graph.output(fx.map_arg(output.args[0], self.values.__getitem__))
        return fx.GraphModule(self.attributes, self.graph).forward  # pyright: ignore[reportArgumentType]

    def _size_sources(self, nodes: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> list[fx.Node]:
        """Further inputs of a part: the symbols in its sizes that its own inputs do not determine (`floordiv(s0, 2)` does not determine
        s0)."""
        known = {name for node in inputs for size in sizes_of(node.meta.get("val")) for name in _told_by(size)}
        needed = {
            str(symbol): symbol for node in [*inputs, *nodes] for size in sizes_of(node.meta.get("val")) for symbol in size.free_symbols
        }
        found = (self._source_of(symbol) for name, symbol in sorted(needed.items()) if name not in known)
        return [node for node in found if node is not None]

    def _source_of(self, symbol: sympy.Basic) -> fx.Node | None:
        """A node whose value is the symbol, made of the new graph's tensors where there is none yet."""
        for node in self.values:
            if isinstance(value := node.meta.get("val"), torch.SymInt) and to_size(value) == symbol:
                return node
        for node, copy in list(self.values.items()):
            value = node.meta.get("val")
            for dim, size in enumerate(to_shape(value.shape) if isinstance(value, torch.Tensor) else ()):
                if size == symbol:
                    return self._size_node(node, copy, dim)
        return None

    def _size_node(self, node: fx.Node, copy: fx.Node, dim: int) -> fx.Node:
        with self.module.graph.inserting_after(node):
            size = self.module.graph.call_function(aten.sym_size.int, (node, dim))
        size.meta = {"val": node.meta["val"].shape[dim]}
        self.values[size] = self.graph.call_function(aten.sym_size.int, (copy, dim))
        return size


class _Part(torch.nn.Module):
    def __init__(self, run: Executable) -> None:
        super().__init__()
        self.run = run

    def __call__(self, *inputs: object) -> Sequence[object]:  # without hooks that somebody has for all modules
        return self.run(list(inputs))


def _part_graph(module: fx.GraphModule, inputs: Sequence[fx.Node], nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        for source in node.all_input_nodes:
            if source not in copies and source.op == "get_attr":
                copies[source] = graph.node_copy(source)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return fx.GraphModule(module, graph)


def untold_symbols(graph: fx.Graph) -> dict[fx.Node, UnsupportedOp]:
    """The placeholders with a size that has a symbol which no placeholder determines, with the reason for refusing them."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    known = {name for node in placeholders for size in sizes_of(node.meta.get("val")) for name in _told_by(size)}
    untold = ((node, size) for node in placeholders for size in sizes_of(node.meta.get("val")) if not _is_told(size, known))
    return {node: UnsupportedOp(f"input {node.name}", f"nothing determines the sizes in {size}") for node, size in untold}


def _is_told(size: sympy.Expr, known: Container[str]) -> bool:
    return all(str(symbol) in known for symbol in size.free_symbols)


def sizes_of(value: object) -> list[sympy.Expr]:
    """The symbolic sizes of a value of the graph."""
    if isinstance(value, torch.Tensor):
        return [size for size in to_shape(value.shape) if isinstance(size, sympy.Expr)]
    if isinstance(value, torch.SymInt):
        return [size for size in (to_size(value),) if isinstance(size, sympy.Expr)]
    if isinstance(value, list | tuple):
        return [size for item in value for size in sizes_of(item)]
    return []


def _told_by(size: sympy.Expr) -> set[str]:
    """The symbols that can be computed from a value of `size`."""
    return {str(symbol) for symbol in size.free_symbols} if linear_form(size) is not None else set()


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]
