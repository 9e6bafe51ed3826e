"""A block and its gradient as graphs of one instance that take weights as inputs, and what the gradient adds to each weight.

Weights change with every step of training, so a program must not hold them. A weight's gradient is a sum over all rows of all launches of
a block, which is taken once: a graph hands over what the terms are made of, the two factors of a product, a row of a table and its number,
or, of anything else, the term.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from disc.frontend.batched.blocks import Block

aten = torch.ops.aten
SAME = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.clone.default, aten.detach.default, aten.alias.default)
ZEROS = (aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default)


Product = Callable[[Tensor, Tensor], Tensor]  # [rows, m], [rows, n] → [m, n], the product of the first one's transpose with the second


@dataclass(frozen=True)
class Graph:
    """module: of (rows, values, gradients, weights), flat, each of one instance but the weights. weights: in the order of its inputs."""

    module: fx.GraphModule
    weights: tuple[Tensor, ...]


@dataclass(frozen=True)
class Term:
    """What each row adds to a weight. weight: its place among those of the graph. kind: "product" of results `first` ([m, k]) and
    `first + 1` ([k, n]); "row": result `first` belongs to the row of the weight that result `first + 1`, i64, numbers; "whole": result
    `first` itself. turned: it is the transpose that is added."""

    weight: int
    kind: str
    first: int
    turned: bool = False

    def added(self, results: Sequence[Tensor], gradient: Tensor, product: Product) -> None:
        """Adds what all rows of the results, [B, ...], add to the weight's gradient."""
        first = results[self.first]
        target = gradient.t() if self.turned else gradient
        if self.kind == "whole":
            target += first.sum(0)
        elif self.kind == "row":
            target.index_add_(0, results[self.first + 1], first)
        else:
            left, right = first.transpose(1, 2).flatten(0, 1), results[self.first + 1].flatten(0, 1)
            target += product(left, right)


@dataclass(frozen=True)
class Gradient:
    """graph: gives the gradients of the rows in `rows` (places among the block's), then what `terms` are made of. results: the places of
    the block's results whose gradients it takes."""

    graph: Graph
    rows: tuple[int, ...]
    results: tuple[int, ...]
    terms: tuple[Term, ...]


def forward_graph(block: Block) -> Graph:
    """The block itself."""
    with torch.no_grad():
        return _with_inputs(make_fx(lambda *flat: tuple(block.module(*flat)))(*_example(block)), _example(block))


def gradient_graph(block: Block) -> Gradient | None:
    """The gradient of the block; None where no row and no weight has one."""
    example, count = _example(block), len(block.rows)
    weights = forward_graph(block).weights
    floats = [place for place, each in enumerate(block.rows) if each.dtype.is_floating_point]
    results = _differentiable(block, example, floats)
    gradients = [torch.zeros(block.results[place].shape, dtype=block.results[place].dtype) for place in results]

    def computed(*flat: Tensor) -> list[Tensor | None]:
        given, last = flat[: len(example)], flat[len(example) :]
        with torch.enable_grad():
            inputs = _leaves(given, floats)
            made = block.module(*inputs)
            sources = [*(inputs[place] for place in floats), *weights]
            return list(torch.autograd.grad([made[place] for place in results], sources, list(last), allow_unused=True))

    if not results:
        return None
    reached = [each is not None for each in computed(*example, *gradients)]
    rows = tuple(place for place, used in zip(floats, reached[: len(floats)], strict=True) if used)
    used_weights = [weight for weight, used in zip(weights, reached[len(floats) :], strict=True) if used]
    traced = make_fx(lambda *flat: [each for each in computed(*flat) if each is not None])(*example, *gradients)
    graph = _with_inputs(traced, (*example, *gradients))
    numbers = {id(weight): number for number, weight in enumerate(graph.weights)}
    places = [numbers.setdefault(id(weight), len(numbers)) for weight in used_weights]
    every = (*graph.weights, *(weight for weight in used_weights if all(weight is not each for each in graph.weights)))
    terms = _with_terms(graph.module, len(rows), places, count, block.values)
    return Gradient(Graph(graph.module, every), rows, results, terms)


def _example(block: Block) -> tuple[Tensor, ...]:
    numbers = [torch.zeros((), dtype=torch.int64) for _ in range(block.values)]
    return (*(torch.zeros(each.shape, dtype=each.dtype) for each in block.rows), *numbers)


def _leaves(given: Sequence[Tensor], floats: Sequence[int]) -> list[Tensor]:
    return [each.detach().requires_grad_() if place in floats else each for place, each in enumerate(given)]


def _differentiable(block: Block, example: Sequence[Tensor], floats: Sequence[int]) -> tuple[int, ...]:
    """The places of the results that depend on a row or a weight in a way that has a gradient."""
    with torch.enable_grad():
        return tuple(place for place, each in enumerate(block.module(*_leaves(example, floats))) if each.requires_grad)


def _with_inputs(traced: fx.GraphModule, example: Sequence[Tensor]) -> Graph:
    """The graph with the weights that may have gradients as further inputs, and without ops that write."""
    places: dict[str, fx.Node] = {}
    weights: list[Tensor] = []
    known: dict[int, fx.Node] = {}
    last = [node for node in traced.graph.nodes if node.op == "placeholder"][-1:]
    for node in list(traced.graph.nodes):
        if node.op != "get_attr" or not isinstance(weight := getattr(traced, str(node.target), None), Tensor) or not weight.requires_grad:
            continue
        if id(weight) not in known:
            with traced.graph.inserting_after(last[0]) if last else traced.graph.inserting_before(next(iter(traced.graph.nodes))):
                known[id(weight)] = traced.graph.placeholder(f"weight{len(weights)}")
            last = [known[id(weight)]]
            weights.append(weight)
        places[node.name] = known[id(weight)]
        node.replace_all_uses_with(places[node.name])
        traced.graph.erase_node(node)
    traced.recompile()
    inputs = (*example, *(each.detach() for each in weights))
    return Graph(make_fx(torch.func.functionalize(traced, remove="mutations"))(*inputs), tuple(weights))


# --- terms ----------------------------------------------------------------------------------------------------------------------


def _with_terms(module: fx.GraphModule, rows: int, weights: Sequence[int], count: int, values: int) -> tuple[Term, ...]:
    """Puts what the terms of the weights are made of in the place of the results behind the first `rows`. count: of the rows among the
    inputs, behind which `values` numbers follow."""
    (end,) = (node for node in module.graph.nodes if node.op == "output")
    results: list[Any] = list(end.args[0])
    made = results[:rows]
    terms: list[Term] = []
    numbers = [node for node in module.graph.nodes if node.op == "placeholder"][count : count + values]
    with module.graph.inserting_before(end):
        for place, node in zip(weights, results[rows:], strict=True):
            for kind, parts, turned in _parts(node, numbers):
                terms.append(Term(place, kind, len(made), turned))
                made += parts
    end.args = (tuple(made),)
    module.graph.eliminate_dead_code()
    module.recompile()
    return tuple(terms)


Part = tuple[str, list[fx.Node], bool]


def _parts(node: fx.Node, numbers: Sequence[fx.Node]) -> list[Part]:
    """The terms that a gradient is the sum of. Nodes are made where the graph inserts."""
    target, shape = node.target, _shape(node)
    if target in SAME and _shape(source := _node(node, 0)) == shape:
        return _parts(source, numbers)
    if target is aten.add.Tensor and not node.kwargs and all(isinstance(each, fx.Node) and _shape(each) == shape for each in node.args):
        return [*_parts(_node(node, 0), numbers), *_parts(_node(node, 1), numbers)]
    if _is_transpose(node):
        inner = _parts(_node(node, 0), numbers)
        if all(kind == "product" for kind, _, _ in inner):
            return [(kind, parts, not turned) for kind, parts, turned in inner]
    if target is aten.mm.default:
        return [("product", [_node(node, 0), _node(node, 1)], False)]
    outer = _outer(node)
    if outer is not None:
        return [("product", outer, False)]
    row = _row(node, numbers)
    return [("row", row, False)] if row is not None else [("whole", [node], False)]


def _is_transpose(node: fx.Node) -> bool:
    if node.target is aten.t.default:
        return len(_shape(node)) == 2
    swap = node.target is aten.transpose.int and {int(each) % 2 for each in node.args[1:]} == {0, 1}  # pyright: ignore[reportArgumentType]
    turn = node.target is aten.permute.default and list(node.args[1]) == [1, 0]  # pyright: ignore[reportArgumentType]
    return len(_shape(node)) == 2 and (swap or turn)


def _outer(node: fx.Node) -> list[fx.Node] | None:
    """The column and the row whose product is an outer one."""
    if node.target is not aten.mul.Tensor or len(_shape(node)) != 2 or not all(isinstance(each, fx.Node) for each in node.args):
        return None
    rows, columns = _shape(node)
    for column, row in ((_node(node, 0), _node(node, 1)), (_node(node, 1), _node(node, 0))):
        if _shape(column) == (rows, 1) and _shape(row) in ((columns,), (1, columns)):
            graph = node.graph
            flat = row if len(_shape(row)) == 2 else _shaped(graph.call_function(aten.view.default, (row, [1, columns])), row, (1, columns))
            return [column, flat]
    return None


def _row(node: fx.Node, numbers: Sequence[fx.Node]) -> list[fx.Node] | None:
    """What is added to one row of a table of zeros, and its number, an input."""
    if node.target is aten.index_put.default and node.args[3:4] == (True,):
        base, indices, update = node.args[0], node.args[1], node.args[2]
        if isinstance(base, fx.Node) and base.target in ZEROS and isinstance(indices, list | tuple) and len(indices) == 1:
            index = indices[0]
            if isinstance(index, fx.Node) and isinstance(update, fx.Node) and index in numbers and _shape(update) == _shape(node)[1:]:
                return [update, index]
    if node.target is aten.embedding_dense_backward.default:
        update, index, _, padding, scaled = node.args
        if isinstance(update, fx.Node) and index in numbers and padding == -1 and scaled is False and _shape(update) == _shape(node)[1:]:
            return [update, index]  # pyright: ignore[reportReturnType]
    return None


def _node(node: fx.Node, place: int) -> fx.Node:
    found = node.args[place]
    assert isinstance(found, fx.Node)
    return found


def _shape(node: Any) -> tuple[int, ...]:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(value.shape) if isinstance(value, Tensor) else (-1,)


def _shaped(node: fx.Node, like: fx.Node, shape: tuple[int, ...]) -> fx.Node:
    node.meta["val"] = like.meta["val"].new_empty(shape)
    return node
