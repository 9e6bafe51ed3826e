"""A block and its gradient as graphs of one instance that take weights as inputs, and what the gradient adds to each weight.

Weights change with every step of training, so a program must not hold them. What the gradient needs of the forward pass is kept by it where
a minimal cut of both says so; the rest is computed again. A weight's gradient is a sum over all rows of all launches of a block, which is
taken once: a graph hands over what the terms are made of, the two factors of a product, a row of a table and its number, or, of anything
else, the term.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy

from disc.frontend.batched.blocks import Block
from disc.frontend.batched.rows import RowClass, row_class
from disc.frontend.recurrent_tracing import checked_forms
from disc.frontend.tracing_lock import alone

aten = torch.ops.aten
PASSED_ON = (aten.detach.default, aten.alias.default)
SAME = (*PASSED_ON, aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.clone.default)
RESHAPED = (*SAME, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
ZEROS = (aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default)


Product = Callable[[Tensor, Tensor], Tensor]  # [rows, m], [rows, n] → [m, n], the product of the first one's transpose with the second


@dataclass(frozen=True, eq=False)
class Weight:
    """turned: a program takes its transpose, [n, m] of [m, n], row-major."""

    tensor: Tensor
    turned: bool = False


@dataclass(frozen=True, eq=False)
class Graph:
    """module: of flat inputs of one instance, and behind them `weights`."""

    module: fx.GraphModule
    weights: tuple[Weight, ...]


@dataclass(frozen=True)
class Source:
    """Where a value of an instance lies: among the rows or numbers that the block is given, its results, what its forward pass keeps, or
    what its gradient makes. place: its number there. shape: it is reshaped to this."""

    kind: Literal["row", "number", "result", "kept", "made"]
    place: int
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Term:
    """What each row adds to a weight. kind: "product" of two `parts`, [m, k] and [k, n]; "row": the first part belongs to the row of the
    weight that the second, i64, numbers; "whole": the part itself. turned: it is the transpose that is added."""

    weight: Tensor
    kind: Literal["product", "row", "whole"]
    parts: tuple[Source, ...]
    turned: bool = False

    def added(self, parts: Sequence[Tensor], gradient: Tensor | None, product: Product) -> Tensor:
        """The weight's gradient, None where it is nothing yet, with what all rows of the parts, [B, ...], add."""
        if self.kind == "product":
            factors = parts[0].transpose(1, 2).flatten(0, 1), parts[1].flatten(0, 1)
            found = product(*(reversed(factors) if self.turned else factors))
            return found if gradient is None else gradient.add_(found)
        gradient = torch.zeros_like(self.weight, requires_grad=False) if gradient is None else gradient
        target = gradient.t() if self.turned else gradient
        if self.kind == "row":
            target.index_add_(0, parts[1], parts[0])
        else:
            target += parts[0].sum(0)
        return gradient


@dataclass(frozen=True, eq=False)
class Gradient:
    """graph: of `inputs` and the gradients of `results` (places among the block's) gives the gradients of the rows in `rows` (places among
    the block's), then `made`, of which `terms` are made."""

    graph: Graph
    inputs: tuple[Source, ...]
    results: tuple[int, ...]
    rows: tuple[int, ...]
    made: tuple[RowClass, ...]
    terms: tuple[Term, ...]


@dataclass(frozen=True, eq=False)
class Differentiated:
    """forward: of rows and numbers gives the block's results, then `kept`. gradient: None where no row and no weight has one."""

    forward: Graph
    kept: tuple[RowClass, ...]
    gradient: Gradient | None


@alone
def forward_alone(block: Block) -> Differentiated:
    """The block itself. Raises what PyTorch raises where values decide what is computed."""
    with torch.no_grad(), checked_forms():
        joint = _with_inputs(make_fx(lambda *flat: tuple(block.module(*flat)))(*_example(block)), _example(block))
    return Differentiated(_graph_of(joint.module.graph, joint, _inputs(joint.module)[: len(_example(block))]), (), None)


@alone
def differentiated(block: Block) -> Differentiated:
    """The block with its gradient. Raises what PyTorch raises for an op without one."""
    example = _example(block)
    floats = [place for place, each in enumerate(block.rows) if each.dtype.is_floating_point]
    results, weights = _differentiable(block, example, floats)
    if not results:
        return forward_alone(block)
    tangents = [torch.zeros(block.results[place].shape, dtype=block.results[place].dtype) for place in results]

    def computed(*flat: Tensor) -> tuple[Sequence[Tensor], list[Tensor | None]]:
        given, last = flat[: len(example)], flat[len(example) :]
        with torch.enable_grad():
            inputs = _leaves(given, floats)
            made = block.module(*inputs)
            sources = [*(inputs[place] for place in floats), *weights]
            return made, list(torch.autograd.grad([made[place] for place in results], sources, list(last), allow_unused=True))

    def flat_results(*flat: Tensor) -> list[Tensor]:
        made, found = computed(*flat)
        return [*made, *(each for each in found if each is not None)]

    reached = [each is not None for each in computed(*example, *tangents)[1]]
    rows = tuple(place for place, used in zip(floats, reached[: len(floats)], strict=True) if used)
    used_weights = [weight for weight, used in zip(weights, reached[len(floats) :], strict=True) if used]
    with checked_forms():
        joint = _with_inputs(make_fx(flat_results)(*example, *tangents), (*example, *tangents))
    return _Cut(block, joint, results, rows, used_weights).made()


def _example(block: Block) -> tuple[Tensor, ...]:
    numbers = [torch.zeros((), dtype=torch.int64) for _ in range(block.values)]
    return (*(torch.zeros(each.shape, dtype=each.dtype) for each in block.rows), *numbers)


def _leaves(given: Sequence[Tensor], floats: Sequence[int]) -> list[Tensor]:
    return [each.detach().requires_grad_() if place in floats else each for place, each in enumerate(given)]


def _differentiable(block: Block, example: Sequence[Tensor], floats: Sequence[int]) -> tuple[tuple[int, ...], list[Tensor]]:
    """The places of the results that depend on a row or a weight in a way that has a gradient, and the weights that they depend on so."""
    inputs = _leaves(example, floats)
    with torch.enable_grad():
        made = list(enumerate(block.module(*inputs)))
    found = [(place, each) for place, each in made if each.requires_grad]
    own = {id(each) for each in inputs}
    weights = [each for each in _leaves_behind([each for _, each in found]) if id(each) not in own]
    return tuple(place for place, _ in found), weights


def _leaves_behind(results: Sequence[Tensor]) -> list[Tensor]:
    """The leaves of autograd's graph of these, each once."""
    leaves, seen = {id(each): each for each in results if each.is_leaf}, set[object]()
    waiting: list[torch.autograd.graph.Node | None] = [each.grad_fn for each in results]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)  # of the node that adds a gradient up
        if isinstance(leaf, Tensor):
            leaves.setdefault(id(leaf), leaf)
        waiting.extend(behind for behind, _ in reversed(node.next_functions))
    return list(leaves.values())


def _with_inputs(traced: fx.GraphModule, example: Sequence[Tensor]) -> Graph:
    """The graph with the weights that may have gradients as further inputs, each in the order of dims in which it is read, and without ops
    that write."""
    weights: list[Tensor] = []
    known: dict[int, fx.Node] = {}
    last = _inputs(traced)[-1:]
    for node in list(traced.graph.nodes):
        if node.op != "get_attr" or not isinstance(weight := getattr(traced, str(node.target), None), Tensor) or not weight.requires_grad:
            continue
        if id(weight) not in known:
            with traced.graph.inserting_after(last[0]) if last else traced.graph.inserting_before(next(iter(traced.graph.nodes))):
                known[id(weight)] = traced.graph.placeholder(f"weight{len(weights)}")
            last = [known[id(weight)]]
            weights.append(weight)
        node.replace_all_uses_with(known[id(weight)])
        traced.graph.erase_node(node)
    traced.recompile()
    module = make_fx(torch.func.functionalize(traced, remove="mutations"))(*example, *(each.detach() for each in weights))
    return _turned(module, weights, len(example))


def _turned(module: fx.GraphModule, weights: Sequence[Tensor], count: int) -> Graph:
    """With matrices as inputs in the order of dims in which products read them along their rows. count: of the inputs before weights."""
    inputs = _inputs(module)[count:]
    found = [Weight(each) for each in weights]
    for place, (node, weight) in enumerate(zip(inputs, weights, strict=True)):
        if weight.dim() != 2:
            continue
        with module.graph.inserting_after(_inputs(module)[-1]):
            other = _shaped(module.graph.placeholder(f"turned{place}"), node, (weight.shape[1], weight.shape[0]))
        _read_along_rows(node, (node, other), turned=False)
        found.append(Weight(weight, turned=True))
    module.graph.eliminate_dead_code()
    return Graph(module, tuple(found))


def _read_along_rows(value: fx.Node, inputs: tuple[fx.Node, fx.Node], *, turned: bool) -> None:
    """Gives the users of `value`, the weight or its transpose, the one of the two inputs (the weight, its transpose) that they read along
    its rows."""
    for user in list(value.users):
        if _is_transpose(user):
            _read_along_rows(user, inputs, turned=not turned)
        elif user.target is aten.mv.default and user.args[0] is value and user.args[1] is not value:
            with user.graph.inserting_before(user):
                other = inputs[not turned]
                again = _shaped(user.graph.call_function(aten.t.default, (other,)), other, _shape(value))
            user.replace_input_with(value, again)
        else:
            user.replace_input_with(value, inputs[turned])


def _inputs(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _end(graph: fx.Graph) -> fx.Node:
    (found,) = (node for node in graph.nodes if node.op == "output")
    return found


def _outputs(graph: fx.Graph) -> list[Any]:
    return list(_end(graph).args[0])  # pyright: ignore[reportArgumentType]


def _drop(graph: fx.Graph, targets: Sequence[object]) -> None:
    """Takes out the nodes that pass their first operand on."""
    for node in list(graph.nodes):
        if node.target in targets:
            node.replace_all_uses_with(_node(node, 0))
            graph.erase_node(node)


def _graph_of(graph: fx.Graph, joint: Graph, inputs: Sequence[fx.Node], names: dict[str, Weight] | None = None) -> Graph:
    """The graph as one of these of its inputs, in this order, then of the weights that it reads. names: of the inputs that are weights."""
    if names is None:
        found = _inputs(joint.module)
        names = {node.name: weight for node, weight in zip(found[len(found) - len(joint.weights) :], joint.weights, strict=True)}
    made = fx.Graph()
    for node in [each for each in graph.nodes if each.op == "placeholder" and not each.users and each not in inputs]:
        graph.erase_node(node)
    read = [node for node in graph.nodes if node.op == "placeholder" and node.name in names]
    known = {}
    for node in (*inputs, *read):
        known[node] = made.placeholder(node.name)
        known[node].meta = dict(node.meta)
    made.output(made.graph_copy(graph, known))
    return Graph(fx.GraphModule(joint.module, made), tuple(names[node.name] for node in read))


# --- forward and backward -------------------------------------------------------------------------------------------------------


class _Cut:
    """A joint graph of a block and its gradient on its way to two. joint: of (rows, numbers, gradients of `results`, weights) gives the
    block's results, the gradients of `rows`, those of `weights`."""

    def __init__(self, block: Block, joint: Graph, results: tuple[int, ...], rows: tuple[int, ...], weights: Sequence[Tensor]) -> None:
        self._block, self._joint, self._results, self._rows, self._weights = block, joint, results, rows, weights
        self._given = len(block.rows) + block.values
        self._names: dict[str, Weight] = {}

    def made(self) -> Differentiated:
        self._name_inputs()
        _drop(self._joint.module.graph, PASSED_ON)
        self._compute_shared_again()
        count = len(self._block.results)
        primals = [node for node in _inputs(self._joint.module) if node.name.startswith("primals")]
        forward, backward = min_cut_rematerialization_partition(
            self._joint.module, (), num_fwd_outputs=count, static_lifetime_input_indices=list(range(len(primals)))
        )
        outputs = _outputs(forward.graph)
        places = {node.name: Source("result", place, _shape(node)) for place, node in reversed(list(enumerate(outputs[:count])))}
        kept = list(dict.fromkeys(node for node in outputs[count:] if node.name not in places and node.op != "placeholder"))
        places |= {node.name: Source("kept", place, _shape(node)) for place, node in enumerate(kept)}
        for place, node in enumerate(_inputs(forward)[: self._given]):
            is_row = place < len(self._block.rows)
            places[node.name] = Source("row" if is_row else "number", place if is_row else place - len(self._block.rows), _shape(node))
        _end(forward.graph).args = ((*outputs[:count], *kept),)
        graph = _graph_of(forward.graph, self._joint, _inputs(forward)[: self._given], self._names)
        return Differentiated(graph, tuple(_class_of(node) for node in kept), self._gradient(backward, places))

    def _name_inputs(self) -> None:
        """As the partition tells what the forward pass is given from gradients."""
        for place, node in enumerate(_inputs(self._joint.module)):
            of_result = self._given <= place < self._given + len(self._results)
            node.name = node.target = f"{'tangents' if of_result else 'primals'}_{place}"
        weights = _inputs(self._joint.module)[self._given + len(self._results) :]
        self._names = {node.name: weight for node, weight in zip(weights, self._joint.weights, strict=True)}
        self._joint.module.recompile()

    def _compute_shared_again(self) -> None:
        """What depends on weights alone is no row that a forward pass could keep."""
        shared = {node for node in _inputs(self._joint.module) if node.name in self._names}
        for node in self._joint.module.graph.nodes:
            if node.op == "get_attr" or (node.op == "call_function" and all(each in shared for each in node.all_input_nodes)):
                shared.add(node)
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE

    def _gradient(self, backward: fx.GraphModule, places: dict[str, Source]) -> Gradient:
        terms, made = _with_terms(backward, len(self._rows), self._weights, places)
        tangents = [node for node in _inputs(backward) if node.name.startswith("tangents")]
        inputs = [node for node in _inputs(backward) if node.name in places and node.users]
        graph = _graph_of(backward.graph, self._joint, [*inputs, *tangents], self._names)
        sources = tuple(places[node.name] for node in inputs)
        return Gradient(graph, sources, self._results, self._rows, made, terms)


def _class_of(node: fx.Node) -> RowClass:
    return row_class(node.meta["val"])


# --- terms ----------------------------------------------------------------------------------------------------------------------


def _with_terms(
    module: fx.GraphModule, rows: int, weights: Sequence[Tensor], places: dict[str, Source]
) -> tuple[tuple[Term, ...], tuple[RowClass, ...]]:
    """Puts what the terms of the weights are made of, unless it lies somewhere, in the place of the results behind the first `rows`.
    places: where inputs lie, by name. Returns the terms and what they are made of."""
    end, results = _end(module.graph), _outputs(module.graph)
    made: list[fx.Node] = []
    terms: list[Term] = []
    numbers = [node for node in _inputs(module) if node.name in places and places[node.name].kind == "number"]
    with module.graph.inserting_before(end):
        for weight, node in zip(weights, results[rows:], strict=True):
            for kind, parts, turned in _parts(node, numbers):
                terms.append(Term(weight, kind, tuple(_source(each, places, made) for each in parts), turned))
    end.args = ((*results[:rows], *made),)
    module.graph.eliminate_dead_code()
    module.recompile()
    return tuple(terms), tuple(map(_class_of, made))


def _source(node: fx.Node, places: dict[str, Source], made: list[fx.Node]) -> Source:
    """Where the value lies, or will: it is added to `made`, as what it is a reshaped form of."""
    shape = _shape(node)
    while node.op == "call_function" and (node.target in RESHAPED or (_is_transpose(node) and 1 in _shape(node)) or _sums_nothing(node)):
        node = _node(node, 0)
    if node.name in places:
        found = places[node.name]
        return Source(found.kind, found.place, shape)
    if node not in made:
        made.append(node)
    return Source("made", made.index(node), shape)


Part = tuple[Literal["product", "row", "whole"], list[fx.Node], bool]


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


def _sums_nothing(node: fx.Node) -> bool:
    """Whether it sums over dims of size 1, as the gradient of a bias of one row does."""
    if node.target is not aten.sum.dim_IntList or not node.args[1]:
        return False
    shape = _shape(_node(node, 0))
    return all(shape[each] == 1 for each in node.args[1])  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]


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
