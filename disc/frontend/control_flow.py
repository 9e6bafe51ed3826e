"""PyTorch's control flow → `stablehlo.if` and `stablehlo.while`, whose regions read what is around them.

`scan` and `map` are loops that count: in each iteration they read a slice of their inputs and write one of their stacked results.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import fx
from torch_mlir import ir

from disc.frontend.locations import line_text
from disc.frontend.op_builder import OpBuilder, RuleError, Tensor, integers, is_static, same_shape, tensor_type
from disc.frontend.rules.indexing import take
from disc.frontend.symbols import Shape, to_shape
from disc.ir.ops import ints_attr
from disc.ir.rewriting import defining

HIGHER = torch.ops.higher_order


def constants_and_bodies(module: fx.GraphModule) -> tuple[dict[fx.Node, tuple[str, torch.Tensor]], dict[fx.Node, fx.Graph]]:
    """get_attr node → name and data of a constant, and → the graph that control flow runs there; of the graphs in these, too."""
    constants: dict[fx.Node, tuple[str, torch.Tensor]] = {}
    bodies: dict[fx.Node, fx.Graph] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(str(node.target))(module)
        if isinstance(value, torch.Tensor):
            constants[node] = (str(node.target), value)
        elif isinstance(value, fx.GraphModule) and any(user.target in CONTROL_FLOW for user in node.users):
            inner = constants_and_bodies(value)
            constants |= inner[0]
            bodies |= {node: value.graph, **inner[1]}
    return constants, bodies


@dataclass(frozen=True)
class ControlCall:
    """A call. value: of an argument; run: emits a graph (its get_attr node) for operands at the insertion point, returns its results;
    draws: whether a graph, or one that it runs, draws random numbers."""

    node: fx.Node
    value: Callable[[object], object]
    run: Callable[[fx.Node, Sequence[object]], list[Tensor]]
    draws: Callable[[fx.Node], bool]

    def graph(self, position: int) -> fx.Node:
        found = self.node.args[position]
        assert isinstance(found, fx.Node)
        return found

    def values(self, position: int) -> list[object]:
        """An argument that is a sequence."""
        found = self.node.args[position] if position < len(self.node.args) else ()
        assert isinstance(found, list | tuple)
        return [self.value(each) for each in found]

    def tensors(self, position: int) -> list[Tensor]:
        """Raises: RuleError where one is no tensor."""
        found = self.values(position)
        tensors = [each for each in found if isinstance(each, Tensor)]
        if len(tensors) != len(found):
            raise RuleError("it carries a number that is no tensor")
        return tensors

    @property
    def read(self) -> Container[object]:
        """The numbers of the results that are read."""
        picked = [user.args[1] for user in self.node.users if user.target is operator.getitem]
        return picked if all(user.target is operator.getitem for user in self.node.users) else range(len(self.results))

    @property
    def turned(self) -> Container[object]:
        """The numbers of the results that are read in reverse alone, along their first dim."""
        picked = {user.args[1]: user for user in self.node.users if user.target is operator.getitem}
        return [number for number, each in picked.items() if all(_reverses(user) for user in each.users)]

    @property
    def results(self) -> list[torch.Tensor]:
        found = self.node.meta["val"]
        return list(found) if isinstance(found, list | tuple) else [found]


def _reverses(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.flip.default and list(node.args[1]) == [0]  # pyright: ignore[reportArgumentType]


def _cond(emitter: OpBuilder, call: ControlCall) -> tuple[Tensor, ...]:
    argument = call.node.args[0]
    value = argument.meta["val"] if isinstance(argument, fx.Node) else argument
    predicate = _truth(emitter, value) if isinstance(value, torch.SymBool | bool) else call.value(argument)
    if not isinstance(predicate, Tensor):
        raise RuleError("its condition is no tensor and no comparison of sizes")
    scalar = emitter.convert(emitter.reshape(predicate, ()), torch.bool)
    operands, results = call.values(3), call.results
    kinds = [tensor_type(to_shape(each.shape), each.dtype) for each in results]
    op = ir.Operation.create("stablehlo.if", results=kinds, operands=[scalar.value], regions=2)
    for region, position in zip(op.regions, (1, 2), strict=True):
        block = ir.Block.create_at_start(region, [], [])
        with ir.InsertionPoint(block):
            _return(emitter, call.run(call.graph(position), operands), kinds)
    return _made(op, results)


def _truth(emitter: OpBuilder, value: torch.SymBool | bool) -> Tensor:
    if isinstance(value, bool):
        return emitter.scalar(value, torch.bool)
    return emitter.condition(value.node.expr)


def _while_loop(emitter: OpBuilder, call: ControlCall) -> tuple[Tensor, ...]:
    carried, further = call.tensors(2), call.values(3)

    def condition(values: Sequence[Tensor]) -> list[Tensor]:
        (found,) = call.run(call.graph(0), [*values, *further])
        return [emitter.convert(emitter.reshape(found, ()), torch.bool)]

    def body(values: Sequence[Tensor]) -> list[Tensor]:
        return call.run(call.graph(1), [*values, *further])

    if call.draws(call.graph(0)) or call.draws(call.graph(1)):
        return drawing_loop(emitter, carried, condition, body)
    return loop(emitter, carried, condition, body)


Region = Callable[[Sequence[Tensor]], list[Tensor]]


def drawing_loop(emitter: OpBuilder, carried: Sequence[Tensor], condition: Region, body: Region) -> tuple[Tensor, ...]:
    """A loop whose regions draw random numbers: it carries the number of the iteration, too, on which the seed in it depends."""
    word = torch.int64

    def next_state(values: Sequence[Tensor]) -> list[Tensor]:
        with emitter.seeded_by(values[0]):
            return [emitter.binary("add", values[0], emitter.scalar(1, word)), *body(values[1:])]

    def goes_on(values: Sequence[Tensor]) -> list[Tensor]:
        with emitter.seeded_by(values[0]):
            return condition(values[1:])

    return loop(emitter, [emitter.scalar(0, word), *carried], goes_on, next_state)[1:]


def loop(emitter: OpBuilder, carried: Sequence[Tensor], condition: Region, body: Region) -> tuple[Tensor, ...]:
    """What a loop leaves that goes on while `condition` holds, a bool without dims, of what it carries."""
    kinds = [tensor_type(each.shape, each.dtype) for each in carried]
    initial = [_fitted(emitter, each, kind).value for each, kind in zip(carried, kinds, strict=True)]
    op = ir.Operation.create("stablehlo.while", results=kinds, operands=initial, regions=2)
    for region, run in zip(op.regions, (condition, body), strict=True):
        block = ir.Block.create_at_start(region, kinds, [op.location] * len(kinds))
        with ir.InsertionPoint(block):
            values = [Tensor(value, each.shape, each.dtype) for value, each in zip(block.arguments, carried, strict=True)]
            returned = run(values)
            _return(emitter, returned, kinds if run is body else [each.value.type for each in returned])
    return tuple(Tensor(value, each.shape, each.dtype) for value, each in zip(op.results, carried, strict=True))


def _scan(emitter: OpBuilder, call: ControlCall) -> tuple[Tensor, ...]:
    return _stacking_loop(emitter, call, call.tensors(1), call.tensors(2), call.values(3))


def _map(emitter: OpBuilder, call: ControlCall) -> tuple[Tensor, ...]:
    return _stacking_loop(emitter, call, [], call.tensors(1), call.values(2))


def _stacking_loop(
    emitter: OpBuilder, call: ControlCall, carried: Sequence[Tensor], sources: Sequence[Tensor], further: Sequence[object]
) -> tuple[Tensor, ...]:
    """Over the first dim of the sources; what the graph returns behind what is carried is stacked along a new first dim, where that is
    read. Sources that are reversed are read from their end, what is read in reverse alone is written from there: neither is copied."""
    if not sources:
        raise RuleError("it has no inputs to go over")
    count, graph = sources[0].shape[0], call.graph(0)
    emitter.require(">=", count, 1, f"PyTorch goes over one element at least (needed at {line_text(call.node)})")
    read = [place for place in range(len(carried), len(call.results)) if place in call.read]
    stacked = [emitter.full(0, to_shape(each.shape), each.dtype) for each in (call.results[place] for place in read)]
    word = torch.int64
    start, trips = emitter.scalar(0, word), emitter.size_scalar(count, word)
    turned = [_turned(each) for each in sources]

    def from_end(index: Tensor) -> Tensor:
        return emitter.binary("subtract", trips, emitter.binary("add", index, emitter.scalar(1, word)))

    def body(values: Sequence[Tensor]) -> list[Tensor]:
        index, state, buffers = values[0], values[1 : 1 + len(carried)], values[1 + len(carried) :]
        slices = [
            _row(emitter, each, index) if other is None else _row(emitter, other, from_end(index))
            for each, other in zip(sources, turned, strict=True)
        ]
        with emitter.seeded_by(index) if call.draws(graph) else nullcontext():
            returned = call.run(graph, [*state, *slices, *further])
        rows = [returned[place] for place in read]
        ends = [from_end(index) if place in call.turned else index for place in read]
        written = [_written(emitter, *each) for each in zip(buffers, rows, ends, strict=True)]
        return [emitter.binary("add", index, emitter.scalar(1, word)), *returned[: len(carried)], *written]

    found = loop(emitter, [start, *carried, *stacked], lambda values: [emitter.compare("lt", values[0], trips)], body)[1:]
    written = dict(zip((*range(len(carried)), *read), found, strict=True))
    for place in (each for each in read if each in call.turned):
        value = written[place]
        written[place] = emitter.op("stablehlo.reverse", [value.value], value.shape, value.dtype, dimensions=integers([0]))
    return tuple(written.get(place, start) for place in range(len(call.results)))  # what nobody reads may be anything


def _turned(source: Tensor) -> Tensor | None:
    """What `source` is the reverse of along its first dim: its rows are read from the end, and no copy is made of them."""
    op = defining(source.value, "stablehlo.reverse")
    if op is None or ints_attr(op, "dimensions") != [0]:
        return None
    return Tensor(op.operands[0], source.shape, source.dtype)


def _row(emitter: OpBuilder, source: Tensor, index: Tensor) -> Tensor:
    """`source[index]`, for an index within."""
    return emitter.reshape(take(emitter, source, emitter.reshape(index, (1,)), [0], vector=False), source.shape[1:])


def _written(emitter: OpBuilder, buffer: Tensor, row: Tensor, index: Tensor) -> Tensor:
    """The buffer with a row in the place of an index within."""
    zero = emitter.scalar(0, torch.int64).value
    part = emitter.reshape(row, (1, *row.shape))
    operands = [buffer.value, part.value, index.value, *[zero] * row.rank]
    return emitter.op("stablehlo.dynamic_update_slice", operands, buffer.shape, buffer.dtype)


def _return(emitter: OpBuilder, values: Sequence[Tensor], kinds: Sequence[ir.Type]) -> None:
    if len(values) != len(kinds):
        raise RuleError(f"one of its graphs returns {len(values)} tensors, where there are to be {len(kinds)}")
    ir.Operation.create("stablehlo.return", operands=[_fitted(emitter, *each).value for each in zip(values, kinds, strict=True)])


def _fitted(emitter: OpBuilder, value: Tensor, kind: ir.Type) -> Tensor:
    """The value in a type that says as much of its shape as control flow does."""
    if value.value.type == kind:
        return value
    if ir.RankedTensorType(kind).element_type != ir.RankedTensorType(value.value.type).element_type:
        raise RuleError("its graphs return tensors of other dtypes than it has")
    shape: Shape = tuple(size if wanted < 0 else wanted for size, wanted in zip(value.shape, ir.RankedTensorType(kind).shape, strict=True))
    if is_static(shape) and not same_shape(shape, value.shape):
        return emitter.op("stablehlo.reshape", [value.value], shape, value.dtype)
    cast = ir.Operation.create("tensor.cast", results=[kind], operands=[value.value]).result
    return Tensor(cast, value.shape, value.dtype)


def _made(op: ir.Operation, results: Sequence[torch.Tensor]) -> tuple[Tensor, ...]:
    return tuple(Tensor(value, to_shape(each.shape), each.dtype) for value, each in zip(op.results, results, strict=True))


CONTROL_FLOW: Mapping[object, Callable[[OpBuilder, ControlCall], tuple[Tensor, ...]]] = {
    HIGHER.cond: _cond, HIGHER.while_loop: _while_loop, HIGHER.scan: _scan, HIGHER.map_impl: _map,
}  # fmt: skip
