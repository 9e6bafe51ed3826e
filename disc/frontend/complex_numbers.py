"""A graph with complex tensors as one of real tensors alone.

    mul(z, w)   ─►   a * c - b * d,  a * d + b * c       where a, b = select(view_as_real(z), -1, 0), select(view_as_real(z), -1, 1)

A complex value is a real tensor with one more dim of size 2, as it lies in memory, or one tensor for each part. What is given to the graph,
and what it returns, stays complex: `view_as_real` reads the former, `view_as_complex` makes the latter. An op with a form
(`complex_forms.py`) gives way to it, another one to its decomposition; one without either stays as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import Argument, map_aggregate

from disc.frontend.call import arguments_by_name
from disc.frontend.complex_forms import FORMS, JOINED, Given, Joined
from disc.frontend.complex_functions import REAL_OF, Pair
from disc.frontend.decompositions import Decomposition, find_decomposition
from disc.frontend.in_place import Write, local_writes

aten = torch.ops.aten
ORIGIN = ("stack_trace", "nn_module_stack")
Table = Mapping[torch._ops.OperatorBase, Decomposition]
SET_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled


@dataclass
class Value:
    """A complex value of the new graph: as it lies in memory, or by parts; the other form is made when it is asked for."""

    joined: fx.Node | None = None
    parts: tuple[fx.Node, fx.Node] | None = None
    whole: fx.Node | None = None  # as a complex tensor


@dataclass(frozen=True)
class RealGraph:
    """values: placeholder or constant of the old graph, or what it returns → node of the new one."""

    module: fx.GraphModule
    values: Mapping[fx.Node, fx.Node]


def has_complex(module: fx.GraphModule) -> bool:
    """Whether a tensor of the graph, or of one under `torch.no_grad` in it, is complex."""
    return any(
        _is_complex(node.meta.get("val")) or (node.target is SET_GRAD and has_complex(_called(module, node))) for node in module.graph.nodes
    )


def _is_complex(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_complex, value))
    return isinstance(value, torch.Tensor) and value.is_complex()


def _called(module: fx.GraphModule, node: fx.Node) -> fx.GraphModule:
    return cast("fx.GraphModule", getattr(module, str(cast("fx.Node", node.args[1]).target)))


def without_complex(module: fx.GraphModule, mode: FakeTensorMode, table: Table | None = None) -> RealGraph:
    """The graph of `module` anew. mode: made its values. table: decompositions for what forms are made of; None: composite ops stay whole.

    Raises: UnsupportedOpError, RetraceError.
    """
    writer = _Writer(module, mode, table)
    values: dict[fx.Node, object] = {}
    returned = writer.write(module, values, {})
    results = map_aggregate(cast("Argument", returned), lambda each: writer.whole(each) if isinstance(each, Value) else each)
    writer.graph.output(results)  # pyright: ignore[reportArgumentType]
    writer.graph.eliminate_dead_code()
    new = fx.GraphModule(module, writer.graph)
    new.meta = dict(module.meta)
    left = set(writer.graph.nodes)
    found = {old: value.whole if isinstance(value, Value) else value for old, value in values.items()}
    return RealGraph(new, {old: node for old, node in found.items() if isinstance(node, fx.Node) and node in left})


@dataclass(frozen=True)
class _Trace:
    """A form, traced. kinds: what it returns; several: whether there may be several results."""

    module: fx.GraphModule
    kinds: tuple[type, ...]
    several: bool


@dataclass
class _Writer:
    root: fx.GraphModule
    mode: FakeTensorMode
    table: Table | None
    graph: fx.Graph = field(default_factory=fx.Graph)

    def write(self, module: fx.GraphModule, values: dict[fx.Node, object], origin: Mapping[str, object]) -> object:
        """Adds the nodes of `module`; returns what it returns. values, origin: as in `decompose`."""
        writes = local_writes(module.graph, self.mode)
        for node in module.graph.nodes:
            if node.op == "output":
                return fx.map_arg(node.args[0], values.__getitem__)  # pyright: ignore[reportArgumentType]
            if node in values:
                continue
            write = writes.get(node)
            result = self._node(module, node, write, values, origin)
            values.update(dict.fromkeys(write.written if write is not None else (node,), result))
        raise AssertionError("a graph without an output")

    def _node(
        self, module: fx.GraphModule, node: fx.Node, write: Write | None, values: dict[fx.Node, object], origin: Mapping[str, object]
    ) -> object:
        operands = [values[each] for each in node.all_input_nodes]
        if node.target is operator.getitem and isinstance(parts := values[cast("fx.Node", node.args[0])], list | tuple):
            return parts[cast("int", node.args[1])]
        if node.target is SET_GRAD and has_complex(_called(module, node)):
            body = _called(module, node)
            given = fx.map_arg(node.args[2:], values.__getitem__)  # pyright: ignore
            return self.write(body, dict(zip(body.graph.find_nodes(op="placeholder"), given, strict=True)), origin)
        op = node.target if write is None else write.op
        own = dict(origin) or {name: node.meta[name] for name in ORIGIN if name in node.meta}
        touches = any(isinstance(each, Value) for each in operands) or _is_complex(node.meta.get("val"))
        if not touches or node.op != "call_function" or not isinstance(op, torch._ops.OpOverload):
            return self._kept(module, node, op, values, origin)
        if node.target is aten.view_as_complex.default:
            return Value(joined=cast("fx.Node", operands[0]))
        if node.target is aten.view_as_real.default:
            return self.joined(cast("Value", operands[0]))
        trace = self._form(node, op, values)
        if trace is not None:
            return self._inlined(trace, operands, op in JOINED, own)
        decomposed = self._decomposed(node, op) if op not in FORMS else None
        if decomposed is not None:
            placeholders = decomposed.graph.find_nodes(op="placeholder")
            return self.write(decomposed, dict(zip(placeholders, operands, strict=True)), own)
        return self._kept(module, node, op, values, origin)

    def _kept(
        self, module: fx.GraphModule, node: fx.Node, op: object, values: Mapping[fx.Node, object], origin: Mapping[str, object]
    ) -> object:
        """The node as it is, of complex tensors where it takes or makes them."""

        def operand(each: fx.Node) -> object:
            return map_aggregate(cast("Argument", values[each]), lambda part: self.whole(part) if isinstance(part, Value) else part)

        args, kwargs = fx.map_arg((node.args, node.kwargs), operand)  # pyright: ignore
        target = node.target if node.op != "call_function" else op
        if node.op == "get_attr" and not hasattr(self.root, str(target)):
            setattr(self.root, str(target), getattr(module, str(target)))
        copy = self.graph.create_node(node.op, target, args, kwargs, name=node.name)  # pyright: ignore[reportArgumentType]
        copy.meta = {**node.meta, **origin}
        value = node.meta.get("val")
        return Value(whole=copy) if isinstance(value, torch.Tensor) and value.is_complex() else copy

    # --- values -------------------------------------------------------------------------------------------------------------

    def joined(self, value: Value) -> fx.Node:
        if value.joined is None:
            if value.parts is not None:
                parts = [self._call(aten.unsqueeze.default, (part, -1)) for part in value.parts]
                value.joined = self._call(aten.cat.default, (parts, -1))
            else:
                assert value.whole is not None
                conjugated = value.whole.meta["val"].is_conj()  # of which PyTorch makes no view
                whole = self._call(aten.resolve_conj.default, (value.whole,)) if conjugated else value.whole
                value.joined = self._call(aten.view_as_real.default, (whole,))
        return value.joined

    def parts(self, value: Value) -> tuple[fx.Node, fx.Node]:
        if value.parts is None:
            joined = self.joined(value)
            value.parts = (self._call(aten.select.int, (joined, -1, 0)), self._call(aten.select.int, (joined, -1, 1)))
        return value.parts

    def whole(self, value: Value) -> fx.Node:
        if value.whole is None:
            value.whole = self._call(aten.view_as_complex.default, (self.joined(value),))
        return value.whole

    def _call(self, op: torch._ops.OpOverload, args: tuple[object, ...]) -> fx.Node:
        node = self.graph.call_function(op, args)  # pyright: ignore[reportArgumentType]
        given = fx.map_arg(args, lambda each: each.meta["val"])  # pyright: ignore
        with self.mode, torch.no_grad():
            node.meta["val"] = op(*given)  # pyright: ignore[reportGeneralTypeIssues]
        source = node.all_input_nodes[0].meta
        node.meta |= {name: source[name] for name in ORIGIN if name in source}
        return node

    # --- forms --------------------------------------------------------------------------------------------------------------

    def _form(self, node: fx.Node, op: torch._ops.OpOverload, values: Mapping[fx.Node, object]) -> _Trace | None:
        """The form of the call as a graph of its operands, in the order of `all_input_nodes`, a complex one by parts."""
        form, whole = FORMS.get(op), op in JOINED
        if form is None:
            return None
        inputs, result = node.all_input_nodes, node.meta["val"]
        kinds: list[tuple[type, ...]] = []

        def call(*operands: torch.Tensor) -> object:
            rest = iter(operands)
            bound: dict[fx.Node, object] = {}
            for each in inputs:
                taken = next(rest)
                bound[each] = taken if not _is_complex(each.meta["val"]) else Joined(taken) if whole else Pair(taken, next(rest))
            arguments = {name: fx.map_arg(value, bound.__getitem__) for name, value in arguments_by_name(node, op).items()}  # pyright: ignore
            with torch._C.DisableTorchFunction():
                found = form(Given(op, arguments, result, _real_dtype(node)))
            if found is NotImplemented:
                raise NotImplementedError
            several = list(found) if isinstance(found, list | tuple) else [found]
            wanted = list(result) if isinstance(result, list | tuple) else [result]
            kinds.append(tuple(map(type, several)))
            return [part for each, meta in zip(several, wanted, strict=True) for part in _checked(each, meta)]

        given = [cast("fx.Node", part).meta["val"] for each in inputs for part in self._operand(values[each], whole)]
        try:
            with self.mode, enable_python_dispatcher(), torch.no_grad():
                trace = self._tracer(call)(*given)
        except Exception:  # whatever PyTorch stumbles over: the op stays, and is refused with its line
            return None
        return _Trace(trace, kinds[-1], isinstance(result, list | tuple))

    def _tracer(self, call: Callable[..., object]) -> Callable[..., fx.GraphModule]:
        if self.table is None:
            return make_fx(call, pre_dispatch=True)
        return make_fx(call, decomposition_table=self.table)  # pyright: ignore[reportArgumentType]

    def _operand(self, value: object, whole: bool) -> Sequence[object]:
        """What a form gets in the place of a value. whole: complex ones as they lie in memory."""
        if not isinstance(value, Value):
            return (value,)
        return (self.joined(value),) if whole else self.parts(value)

    def _inlined(self, trace: _Trace, operands: Sequence[object], whole: bool, origin: Mapping[str, object]) -> object:
        given = [part for each in operands for part in self._operand(each, whole)]
        placeholders = trace.module.graph.find_nodes(op="placeholder")
        found = self.write(trace.module, dict(zip(placeholders, given, strict=True)), origin)
        rest = iter(cast("Sequence[fx.Node]", found))
        results: list[object] = []
        for kind in trace.kinds:
            made = next(rest)
            results.append(Value(parts=(made, next(rest))) if kind is Pair else Value(joined=made) if kind is Joined else made)
        return results if trace.several else results[0]

    def _decomposed(self, node: fx.Node, op: torch._ops.OpOverload) -> fx.GraphModule | None:
        function = find_decomposition(op)
        if function is None:
            return None
        inputs = node.all_input_nodes

        def call(*operands: object) -> object:
            args, kwargs = fx.map_arg((node.args, node.kwargs), dict(zip(inputs, operands, strict=True)).__getitem__)  # pyright: ignore
            with torch._C.DisableTorchFunction():
                found = function(*args, **kwargs)  # pyright: ignore
            if found is NotImplemented:
                raise NotImplementedError
            return list(found) if isinstance(found, tuple | list) else found

        try:
            with self.mode, enable_python_dispatcher(), torch.no_grad():
                trace = self._tracer(call)(*(each.meta["val"] for each in inputs))
        except Exception:
            return None
        return None if any(each.target is op for each in trace.graph.nodes) else trace


def _real_dtype(node: fx.Node) -> torch.dtype:
    """Of the parts of a complex result; else of the widest complex operand."""
    results = node.meta["val"]
    for value in results if isinstance(results, list | tuple) else [results]:
        if value.is_complex():
            return REAL_OF[value.dtype]
    wide = [each.meta["val"].dtype for each in node.all_input_nodes if _is_complex(each.meta.get("val"))]
    return torch.float64 if torch.complex128 in wide else torch.float32


def _checked(found: object, meta: torch.Tensor) -> list[torch.Tensor]:
    """The result as one or two real tensors, of the dtype that PyTorch gives it."""
    if isinstance(found, Pair):
        if not meta.is_complex():
            raise NotImplementedError
        return [found.to(REAL_OF[meta.dtype]).re, found.to(REAL_OF[meta.dtype]).im]
    if isinstance(found, Joined):
        return [found.tensor]
    assert isinstance(found, torch.Tensor)
    return [found if found.dtype == meta.dtype else found.to(meta.dtype)]
