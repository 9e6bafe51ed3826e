"""The graph of an exported program in ops that have a rule: every other op gives way to its decomposition.

A decomposition is traced once per kind of operands, by itself; PyTorch's own `run_decompositions` traces the whole program anew, twice.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._higher_order_ops.effects import with_effects
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, TensorArgument
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from disc.frontend.allow_list import has_lowering
from disc.frontend.branch_demands import Premise, demanded_in, premises_within
from disc.frontend.call import NOT_DECOMPOSED, TAKES_NOTHING
from disc.frontend.complex_numbers import has_complex, without_complex
from disc.frontend.custom_ops import FUNCTIONALIZED
from disc.frontend.decisions import Found
from disc.frontend.decompositions import PARTLY_LOWERED, Decomposition, find_decomposition
from disc.frontend.effect_tokens import CHECKS, PRINTS
from disc.frontend.folded_numbers import steps_apart
from disc.frontend.in_place import PARTS, RetraceError, Write, local_writes
from disc.frontend.locations import line_text
from disc.frontend.symbols import to_shape, to_size
from disc.frontend.user_lowerings import check_promise, check_trace, failed_lowering, lowering_of

aten = torch.ops.aten
ORIGIN = ("stack_trace", "nn_module_stack")  # what the nodes of a decomposition take from the op they stand for: the user's line
# Ops that take dims of size 0 although their decompositions look for the extremes along them.
OF_NOTHING = (aten._softmax.default, aten._log_softmax.default, aten._safe_softmax.default, aten.logsumexp.default,
              aten.scaled_dot_product_attention.default, aten._cdist_forward.default, aten._pdist_forward.default)  # fmt: skip
SET_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
CONTROL = (torch.ops.higher_order.cond, torch.ops.higher_order.while_loop, torch.ops.higher_order.scan, torch.ops.higher_order.map_impl)

Values = dict[fx.Node, object]  # node of an old graph → node of the new one, a sequence of those, or a constant
Constants = dict[fx.Node, tuple[str, torch.Tensor]]  # get_attr node → name and data
Bodies = dict[fx.Node, fx.Graph]  # get_attr node → the graph that control flow runs


@dataclass(frozen=True)
class Decomposed:
    """values: node of the old graph → node of `graph`; constants: of the bodies, too; demands: of sizes, in branches that sizes choose."""

    graph: fx.Graph
    values: Mapping[fx.Node, fx.Node]
    constants: Constants
    bodies: Bodies = field(default_factory=dict)
    demands: Sequence[Found] = ()


def decompose(module: fx.GraphModule) -> Decomposed:
    """The graph of `module` as a new one. An op without a rule stays where it has no decomposition, or none that can be traced.

    Raises: RetraceError.
    """
    mode = fake_mode(module.graph)
    real = without_complex(module, mode) if has_complex(module) else None
    writer = _Writer(mode, when=premises_within(module))
    values: Values = {}
    writer.graph.output(writer.write(module if real is None else real.module, values, {}))  # pyright: ignore[reportArgumentType]
    writer.graph.eliminate_dead_code()
    left = set(writer.graph.nodes)
    if real is not None:
        values = {old: values[new] for old, new in real.values.items() if new in values}
    kept = {old: new for old, new in values.items() if isinstance(new, fx.Node) and new in left}
    left |= {node for body in writer.bodies.values() for node in body.nodes}
    constants = {node: constant for node, constant in writer.constants.items() if node in left}
    return Decomposed(writer.graph, kept, constants, writer.bodies, writer.demands)


def constants_by_attribute(module: fx.GraphModule) -> Constants:
    found: Constants = {}
    for node in module.graph.find_nodes(op="get_attr"):
        if isinstance(value := getattr(module, str(node.target), None), torch.Tensor):
            found[node] = (str(node.target), value)
    return found


def fake_mode(graph: fx.Graph) -> FakeTensorMode:
    """The mode that made the values of the graph."""
    for node in graph.nodes:
        if isinstance(value := node.meta.get("val"), FakeTensor):
            return value.fake_mode
    return FakeTensorMode(shape_env=ShapeEnv(), export=True)


def without_bodies(program: ExportedProgram) -> ExportedProgram:
    """The program with the graphs under `torch.no_grad` in the one that calls them.

    PyTorch's retracing runs such a graph as generated Python code, whose lines would stand in place of the user's.
    """
    if not any(isinstance(part, fx.GraphModule) for part in program.graph_module.children()):
        return program
    module = fx.GraphModule(program.graph_module, copy.deepcopy(program.graph))
    module.meta = dict(program.graph_module.meta)
    while _inline_first(module):
        pass
    module.recompile()
    return program._update(module, _signature_of(module, program.graph_signature))


def _signature_of(module: fx.GraphModule, signature: ExportGraphSignature) -> ExportGraphSignature:
    """The signature with the names that the results of a rewritten graph have."""
    (returned,) = module.graph.output_node().args
    assert isinstance(returned, list | tuple)
    results = [
        dataclasses.replace(spec, arg=TensorArgument(name=node.name))
        if isinstance(node, fx.Node) and isinstance(spec.arg, TensorArgument)
        else spec
        for spec, node in zip(signature.output_specs, returned, strict=True)
    ]
    return dataclasses.replace(signature, output_specs=results)


def _inline_first(module: fx.GraphModule) -> bool:
    """Puts one graph under `torch.no_grad` in place of its call. False: there is none."""
    call = next(iter(module.graph.find_nodes(op="call_function", target=SET_GRAD)), None)
    if call is None:
        return False
    attribute = call.args[1]
    assert isinstance(attribute, fx.Node) and isinstance(attribute.target, str)
    body = getattr(module, attribute.target)
    values = dict(zip(body.graph.find_nodes(op="placeholder"), call.args[2:], strict=True))
    for node in body.graph.find_nodes(op="get_attr"):
        name = f"{attribute.target}_{node.target}"
        setattr(module, name, getattr(body, node.target))
        with module.graph.inserting_before(call):
            values[node] = module.graph.get_attr(name)
        values[node].meta = dict(node.meta)
    with module.graph.inserting_before(call):
        results = module.graph.graph_copy(body.graph, values)
    for part in list(call.users):
        part.replace_all_uses_with(results[part.args[1]])  # pyright: ignore
        module.graph.erase_node(part)
    module.graph.erase_node(call)
    if not attribute.users:
        module.graph.erase_node(attribute)
    return True


@dataclass
class _Writer:
    mode: FakeTensorMode
    graph: fx.Graph = field(default_factory=fx.Graph)
    constants: Constants = field(default_factory=dict)
    traces: dict[object, fx.GraphModule | str] = field(default_factory=dict)  # by kind of call; or why there is none
    bodies: Bodies = field(default_factory=dict)
    opened: list[object] = field(default_factory=list)  # kinds of calls that are being replaced: in its own decomposition a call stays
    when: Mapping[fx.GraphModule, Premise] = field(default_factory=dict)  # graphs that control flow runs → when
    demands: list[Found] = field(default_factory=list)

    def write(self, module: fx.GraphModule, values: Values, origin: Mapping[str, object]) -> object:
        """Adds the nodes of `module` to the graph; returns what it returns.

        values: is filled; holds the placeholders of `module` already, unless new ones are to be made. origin: metadata that replaces the
        nodes' own.
        """
        constants, writes = constants_by_attribute(module), local_writes(module.graph, self.mode)
        for node in module.graph.nodes:
            if node.op == "output":
                return _mapped(node.args[0], values)
            if node in values:
                continue
            write = writes.get(node)
            result = self._node(module, node, write, values, origin)
            if write is not None and write.parts:
                values[node] = result
                result = self._whole(write, result, values, origin or node.meta)
            values.update(dict.fromkeys((node,) if write is None else write.written, result))
            if node in constants and isinstance(result, fx.Node):
                self.constants[result] = constants[node]
            if node.op == "get_attr" and isinstance(result, fx.Node) and any(user.target in CONTROL for user in node.users):
                self.bodies[result] = self._body(getattr(module, str(node.target)))
        raise AssertionError("a graph without an output")

    def _node(self, module: fx.GraphModule, node: fx.Node, write: Write | None, values: Values, origin: Mapping[str, object]) -> object:
        """What represents `node` in the new graph."""
        if node.target is operator.getitem:
            parts = _mapped(node.args[0], values)
            if isinstance(parts, list | tuple):
                return parts[node.args[1]]  # pyright: ignore[reportArgumentType, reportCallIssue]
        if node.target is SET_GRAD:
            body = getattr(module, node.args[1].target)  # pyright: ignore
            return self._inline(body, _mapped(node.args[2:], values), origin)
        if node.target is with_effects:
            return [self._without_token(node, values)]
        if node.target in PRINTS:
            return None
        if isinstance(node.target, torch._ops.HigherOrderOperator) and node.target not in (*CONTROL, *FUNCTIONALIZED):
            raise RetraceError(str(node.target))
        op = node.target if write is None else write.op
        trace = self._trace(node, op) if isinstance(op, torch._ops.OpOverload) and not is_lowered(node, op) else ""
        if isinstance(trace, fx.GraphModule) and isinstance(op, torch._ops.OpOverload):
            own = dict(origin) or {name: node.meta[name] for name in ORIGIN if name in node.meta}
            if op in OF_NOTHING:
                own[TAKES_NOTHING] = True
            self.opened.append(_kind(node, op))
            result = self._inline(trace, [values[each] for each in node.all_input_nodes], own)
            self.opened.pop()
            return result
        copy = self.graph.create_node(node.op, op, *_mapped((node.args, node.kwargs), values), name=node.name)
        copy.meta = {**node.meta, **origin}
        if trace:
            copy.meta[NOT_DECOMPOSED] = trace
        return copy

    def _whole(self, write: Write, part: object, values: Values, origin: Mapping[str, object]) -> object:
        """What is written to as a whole, with the part of it that was written."""
        for view in reversed(write.parts):
            source = view.args[0]
            assert isinstance(source, fx.Node)
            arguments, others = _mapped((view.args[1:], view.kwargs), values)  # pyright: ignore[reportGeneralTypeIssues]
            part = self.graph.call_function(PARTS[view.target], (values[source], part, *arguments), others)  # pyright: ignore
            part.meta = {"val": source.meta["val"], **{name: origin[name] for name in ORIGIN if name in origin}}
        return part

    def _without_token(self, node: fx.Node, values: Values) -> object:
        """Adds a check that PyTorch strings on a token; what the program prints is left out. Returns the token, which is the next, too.

        Raises: RetraceError for another effect.
        """
        token, op, *arguments = node.args
        assert isinstance(token, fx.Node)
        if op in CHECKS:
            call = self.graph.call_function(op, *_mapped((tuple(arguments), node.kwargs), values))  # pyright: ignore[reportArgumentType]
            call.meta = {name: node.meta[name] for name in ORIGIN if name in node.meta}
        elif op not in PRINTS:
            raise RetraceError(str(op))
        return values[token]

    def _body(self, module: fx.GraphModule) -> fx.Graph:
        """The graph that control flow runs, with placeholders of its own. What is demanded in a branch that sizes choose holds in it alone,
        so that its traces are its own."""
        premise = self.when.get(module)
        module = without_complex(module, self.mode).module if has_complex(module) else module
        traces = self.traces if premise is None else {}
        writer = _Writer(
            self.mode, constants=self.constants, traces=traces, bodies=self.bodies, opened=self.opened, when=self.when, demands=self.demands
        )
        with demanded_in(premise, self.mode.shape_env, self.demands):
            writer.graph.output(writer.write(module, {}, {}))  # pyright: ignore[reportArgumentType]
        writer.graph.eliminate_dead_code()
        return writer.graph

    def _inline(self, module: fx.GraphModule, operands: Sequence[object], origin: Mapping[str, object]) -> object:
        return self.write(module, dict(zip(module.graph.find_nodes(op="placeholder"), operands, strict=True)), origin)

    def _trace(self, node: fx.Node, op: torch._ops.OpOverload) -> fx.GraphModule | str:
        """The decomposition of the call, as a graph of its operands in the order of `all_input_nodes`; or why there is none, "" if there is
        nothing to say."""
        _, partly = PARTLY_LOWERED.get(op, (None, None))
        function = lowering_of(op) or partly or find_decomposition(op) if _makes_tensors(node) else None
        if function is None:
            return ""
        key = _kind(node, op)
        if key not in self.traces:
            self.traces[key] = _traced(node, function, self.mode)
        return "" if key in self.opened else self.traces[key]


def _traced(node: fx.Node, function: Decomposition, mode: FakeTensorMode) -> fx.GraphModule | str:
    inputs = node.all_input_nodes
    op = node.target
    registered = lowering_of(op) is function

    def call(*operands: object) -> object:
        args, kwargs = _lists_of_its_own(_mapped((node.args, node.kwargs), dict(zip(inputs, operands, strict=True))))
        with torch._C.DisableTorchFunction():
            result = function(*args, **kwargs)
        if registered:
            check_promise(result, node.meta["val"])
        if result is NotImplemented:
            raise NotImplementedError
        if isinstance(result, tuple | list):  # a plain tuple: a named one would become a node that makes it
            return tuple(map(_as_promised, result, node.meta["val"]))
        return _as_promised(result, node.meta["val"])

    try:
        # Before dispatch, composite ops are seen whole: they may have a rule. Tracing's own function mode would hand the op back whole.
        with mode, enable_python_dispatcher(), torch.no_grad(), steps_apart():
            trace = make_fx(call, pre_dispatch=True)(*(each.meta["val"] for each in inputs))
        if has_complex(trace):  # within an op of real tensors, as an inverse transform of them
            trace = without_complex(trace, mode).module
        if registered:
            check_trace(op, trace.graph)
    except NotImplementedError as error:
        if registered:
            raise failed_lowering(op, error, line_text(node)) from error
        return ""
    except Exception as error:  # whatever PyTorch stumbles over: the op stays, and is refused with its line if nothing else can lower it
        if registered:
            raise failed_lowering(op, error, line_text(node)) from error
        said = str(error).strip().splitlines()
        return f"its decomposition into other ops fails ({type(error).__name__}{f': {said[0]}' if said else ''})"
    return "" if any(isinstance(value, FakeTensor) for _, value in constants_by_attribute(trace).values()) else trace


def _lists_of_its_own(argument: Any) -> Any:
    """The argument with lists that can be written, as some decompositions do."""
    if isinstance(argument, tuple | list):
        return (tuple if isinstance(argument, tuple) else list)(map(_lists_of_its_own, argument))
    return {name: _lists_of_its_own(each) for name, each in argument.items()} if isinstance(argument, dict) else argument


def _as_promised(result: object, value: object) -> object:
    """The result in the type that PyTorch gives the op: some decompositions compute statistics in a wider one."""
    if isinstance(result, torch.Tensor) and isinstance(value, torch.Tensor) and result.dtype != value.dtype:
        return result.to(value.dtype)
    return result


def is_lowered(node: fx.Node, op: torch._ops.OpOverload) -> bool:
    """Whether a rule takes the call. A lowering of the user's comes before it."""
    if lowering_of(op) is not None:
        return False
    return has_lowering(op) and not (op in PARTLY_LOWERED and PARTLY_LOWERED[op][0](node))


def _makes_tensors(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) or (isinstance(value, list | tuple) and any(isinstance(part, torch.Tensor) for part in value))


def _mapped(argument, values):  # pyright: ignore
    """The argument with each node replaced by its value."""
    return fx.map_arg(argument, values.__getitem__)


def _kind(node: fx.Node, op: torch._ops.OpOverload) -> object:
    """All that a trace of the call depends on."""
    places = {each: place for place, each in enumerate(node.all_input_nodes)}

    def describe(argument: object) -> object:
        if isinstance(argument, fx.Node):
            return (places[argument], _facts(argument.meta.get("val")))
        if isinstance(argument, list | tuple):
            return tuple(describe(part) for part in argument)
        return (type(argument), repr(argument))

    return (op, describe(node.args), *((name, describe(value)) for name, value in sorted(node.kwargs.items())))


def _facts(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return (value.dtype, to_shape(value.shape), to_shape(value.stride()), value.device, value.layout)
    if isinstance(value, torch.SymInt):
        return to_size(value)
    if isinstance(value, list | tuple):
        return tuple(map(_facts, value))
    return repr(value)
