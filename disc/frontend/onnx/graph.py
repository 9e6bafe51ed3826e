"""A module of PyTorch that runs an ONNX graph, node by node, with torch functions: what torch.export traces."""

from __future__ import annotations

import inspect
import keyword
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import torch
from onnx import defs
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from disc.errors import CompilerBug, DiscError, ExportError, UnsupportedFormatError, UnsupportedOp, UnsupportedOpError, printable
from disc.frontend.export_errors import NO_STATIC_ANSWER, shortened
from disc.frontend.onnx.dims import Input
from disc.frontend.onnx.file import ModelFile
from disc.frontend.onnx.functions import DEFAULT_DOMAINS, full_name, node_name, place
from disc.frontend.onnx.narrow import arrived
from disc.frontend.onnx.node import Attribute, Node, Subgraph, Traced, check_inputs, expected_type
from disc.frontend.onnx.ops import EXPANDING, NARROW_TYPES, RANDOM, Rule, rule_for
from disc.frontend.onnx.tensors import StoredTensor, stored_tensor
from disc.frontend.onnx.values import (
    Constant,
    Leaf,
    Narrow,
    NodeError,
    Result,
    Sizes,
    Value,
    distinct,
    is_constant,
    leaves,
    rebuilt,
    type_name,
)
from disc.frontend.onnx.values import Sequence as ValueSequence

Values = dict[str, Value]
Results = torch.Tensor | tuple[torch.Tensor, ...]
LARGEST_FOLDED = 2**26  # bytes: what is computed when compiling out of much less, such as a mask of ones


def forward(rule: Rule, node: Node) -> Result:
    return rule(node)


def _at(file: str, line: int) -> Callable[[Rule, Node], Result]:
    """Calls a rule from a frame that stands at `line` of `file`: what PyTorch's traces and disc's messages name as the user's line.

    It has the name `forward`, the frames that PyTorch keeps.
    """
    return types.FunctionType(forward.__code__.replace(co_filename=file, co_firstlineno=line - 1), {})


@dataclass(frozen=True)
class Step:
    """One node, read. label: "'name' (Op)"; line: where messages say it stands."""

    op: str
    label: str
    line: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]
    schema: defs.OpSchema | None
    rule: Rule
    call: Callable[[Rule, Node], Result]

    def reads(self) -> set[str]:
        """The names it takes from outside, those of its subgraphs too."""
        inner = (graph.reads() for graph in self.attributes.values() if isinstance(graph, Graph))
        return {name for name in self.inputs if name}.union(*inner)


class Graph(Subgraph):
    """A graph of nodes, read: nothing of the file is looked at again."""

    def __init__(self, proto: onnx.GraphProto, model: ModelFile) -> None:
        self.model = model
        self.inputs = tuple(each.name for each in proto.input)
        self.outputs = tuple(each.name for each in proto.output)
        self.constants: Values = {each.name: self._stored(each).value() for each in proto.initializer}
        self.steps = [self._step(node, number) for number, node in enumerate(proto.node)]

    def _stored(self, proto: onnx.TensorProto) -> StoredTensor:
        return stored_tensor(proto, self.model.folder, self.model.name)

    def _step(self, node: onnx.NodeProto, number: int) -> Step:
        rule = rule_for(node.domain, node.op_type)
        if rule is None:
            raise CompilerBug(f"frontend: {node.op_type} passed the check of operators without a rule")
        own = node.domain in DEFAULT_DOMAINS
        return Step(
            full_name(node), f"'{node_name(node, number)}' ({full_name(node)})", place(self.model.name, node, number), tuple(node.input),
            tuple(node.output), {each.name: self._attribute(each) for each in node.attribute},
            defs.get_schema(node.op_type, self.model.opset) if own else None, rule,
            _at(f"{self.model.name}:{node_name(node, number)}", number + 1),
        )  # fmt: skip

    def _attribute(self, proto: onnx.AttributeProto) -> Attribute:
        value = onnx.helper.get_attribute_value(proto)
        if isinstance(value, onnx.TensorProto):
            stored = self._stored(value).value()
            return stored.data if isinstance(stored, Constant) else stored
        if isinstance(value, onnx.GraphProto):
            return Graph(value, self.model)
        return list(value) if proto.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS, onnx.AttributeProto.STRINGS) else value

    def reads(self) -> set[str]:
        """The names of outer values that are read."""
        made = {*self.inputs, *self.constants, *(name for step in self.steps for name in step.outputs)}
        return set(self.outputs).union(*(step.reads() for step in self.steps)) - made


class Runner:
    """Runs graphs in one scope of values. materialize: a constant as a tensor of the trace."""

    def __init__(self, opset: int, materialize: Callable[[Constant], torch.Tensor]) -> None:
        self.opset = opset
        self.materialize = materialize

    def run(self, steps: Iterable[Step], values: Values) -> None:
        """Adds the results of the steps to `values`."""
        for step in steps:
            self._name_results(step, self._results(step, values), values)

    def fold(self, step: Step, values: Values) -> bool:
        """Computes a step now, where all that it reads is constant; False where it is not, or the result would be large."""
        inputs = [values.get(name) if name else None for name in step.inputs]
        if step.op in RANDOM or not all(is_constant(each) for name, each in zip(step.inputs, inputs, strict=True) if name):
            return False
        if any(isinstance(each, Graph) for each in step.attributes.values()) or (step.op in EXPANDING and self._is_large(step, inputs)):
            return False
        with _disable_current_modes(), torch.no_grad():
            results = self._called(step, self._node(step, inputs, values, lambda constant: constant.data))
            parts = results if isinstance(results, tuple) else (results,)
            kept = tuple(map(_constant, parts))
        self._name_results(step, kept, values)
        return True

    def _is_large(self, step: Step, inputs: Sequence[Value]) -> bool:
        with _disable_current_modes(), FakeTensorMode() as mode:
            result = self._called(step, self._node(step, inputs, {}, lambda constant: mode.from_tensor(constant.data)))
        result = result.stored if isinstance(result, Narrow) else result
        return isinstance(result, torch.Tensor) and result.numel() * result.element_size() > LARGEST_FOLDED

    def _results(self, step: Step, values: Values) -> Result:
        inputs = [values[name] if name else None for name in step.inputs]
        return self._called(step, self._node(step, inputs, values, self.materialize))

    def _node(self, step: Step, inputs: Sequence[Value], values: Values, materialize: Callable[[Constant], torch.Tensor]) -> Node:
        def run_graph(graph: Subgraph, arguments: Sequence[Value]) -> tuple[Value, ...]:
            assert isinstance(graph, Graph)
            scope = {**values, **graph.constants, **dict(zip(graph.inputs, arguments, strict=True))}
            for inner in graph.steps:
                if not self.fold(inner, scope):
                    self._name_results(inner, self._results(inner, scope), scope)
            return tuple(scope[name] for name in graph.outputs)

        def traced(graph: Subgraph) -> Traced:
            assert isinstance(graph, Graph)
            return self._traced(graph, values)

        return Node(step.op, inputs, len(step.outputs), step.attributes, step.schema, self.opset, materialize, run_graph, traced)

    def _traced(self, graph: Graph, outer: Values) -> Traced:
        """A graph as a function for PyTorch's control flow, which takes what it reads of `outer` as operands."""
        known = {**outer, **graph.constants}
        for name in graph.inputs:
            known.pop(name, None)
        steps = [step for step in graph.steps if not self.fold(step, known)]
        made = {name for step in steps for name in step.outputs}
        read = sorted(set(graph.outputs).union(*(step.reads() for step in steps)) - made - set(graph.inputs))
        operands, order = distinct(leaf for name in read for leaf in leaves(known[name], self.materialize))

        def call(arguments: Sequence[Value], given: Sequence[Leaf]) -> tuple[Value, ...]:
            source, materialized = (given[place] for place in order), dict[int, torch.Tensor]()
            scope = {name: rebuilt(known[name], source, materialized) for name in read}
            scope.update(zip(graph.inputs, arguments, strict=True))
            runner = Runner(self.opset, lambda constant: found if (found := materialized.get(id(constant))) is not None else constant.data)
            for step in steps:
                if not runner.fold(step, scope):
                    runner.run([step], scope)
            return tuple(scope[name] for name in graph.outputs)

        return Traced(operands, call)

    def _called(self, step: Step, node: Node) -> Result:
        """Raises: UnsupportedOpError, UnsupportedFormatError, ExportError, naming the node."""
        try:
            bound = check_inputs(node)
            if step.op not in NARROW_TYPES and (narrow := [each for each in node.inputs if isinstance(each, Narrow)]):
                raise NodeError(f"it is not supported on tensors of {type_name(narrow[0])}")
            results = step.call(step.rule, node)
        except NodeError as error:
            if error.unsupported:
                raise UnsupportedOpError([UnsupportedOp(f"onnx.{step.op}", str(error), step.line)]) from error
            raise UnsupportedFormatError(f"{step.line}: node {step.label}: {error}") from error
        except (DiscError, RecursionError, MemoryError, *NO_STATIC_ANSWER):
            raise
        except Exception as error:
            raise ExportError(f"{step.line}: node {step.label} cannot be computed: {type(error).__name__}: {shortened(error)}") from error
        for number, part in enumerate(results if isinstance(results, tuple) else (results,)):
            wanted, have = expected_type(node, number, bound), type_name(part)
            if wanted is not None and have is not None and wanted != have:
                raise CompilerBug(f"frontend: the rule of {step.op} gives {have}, not {wanted} ({step.line})")
        return results

    def _name_results(self, step: Step, results: Result, values: Values) -> None:
        parts = results if isinstance(results, tuple) else (results,)
        if len(parts) < len(step.outputs):
            reason = f"result {len(parts) + 1} of it is not supported"
            raise UnsupportedOpError([UnsupportedOp(f"onnx.{step.op}", reason, step.line)])
        values.update({name: part for name, part in zip(step.outputs, parts, strict=False) if name})


def _constant(part: Value) -> Value:
    """A result that was computed outside of any trace."""
    if isinstance(part, torch.Tensor):
        return Constant(part.contiguous())
    if isinstance(part, Narrow) and isinstance(part.stored, torch.Tensor):
        return Narrow(Constant(part.stored.contiguous()), part.kind)
    return part


class OnnxModule(torch.nn.Module):
    """The model as a module: inputs are parameters of `forward`, in the order of the graph, as are the results; a single one is no tuple.

    names: parameter → the input's name in the file.
    """

    def __init__(self, model: ModelFile, inputs: Sequence[Input]) -> None:
        super().__init__()
        self.graph = Graph(model.graph, model)
        self._opset = model.opset
        parameters = identifiers(each.name for each in inputs)
        self.names = {name: each.name for name, each in zip(parameters, inputs, strict=True)}
        self._kinds = {name: each.kind for name, each in zip(parameters, inputs, strict=True)}
        self._dims = {name: each.dims for name, each in zip(parameters, inputs, strict=True)}
        known: Values = {**self.graph.constants, **{name: each.value() for name, each in model.weights.items()}}
        self._steps = self._folded(known)
        read = set(self.graph.outputs).union(*(step.reads() for step in self._steps))
        self._known = self._registered({name: value for name, value in known.items() if name in read})
        signature = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in self.names]
        self.forward = self._forward(inspect.Signature(signature))

    def _folded(self, known: Values) -> list[Step]:
        """The steps that remain; the results of the others are added to `known`."""
        runner = Runner(self._opset, lambda constant: constant.data)
        return [step for step in self.graph.steps if not runner.fold(step, known)]

    def _registered(self, known: Values) -> Values:
        """The same constants, as buffers of this module."""
        names, kept = identifiers(known), {}
        for name, (original, value) in zip(names, known.items(), strict=True):
            data = value.stored if isinstance(value, Narrow) else value
            if isinstance(data, Constant):
                self.register_buffer(f"w_{name}", data.data)
                data = Constant(data.data, f"w_{name}")
                value = Narrow(data, value.kind) if isinstance(value, Narrow) else data
            kept[original] = value
        return kept

    def _forward(self, signature: inspect.Signature) -> Callable[..., Results]:
        def forward(*args: torch.Tensor, **named: torch.Tensor) -> Results:
            given = signature.bind(*args, **named).arguments
            self._require_equal(given)
            values: Values = {**self._known, **{self.names[name]: self._arrived(name, value) for name, value in given.items()}}
            runner = Runner(self._opset, self._materialized)
            for step in self._steps:
                if not runner.fold(step, values):
                    runner.run([step], values)
            results = tuple(each for name in self.graph.outputs for each in self._results(name, values[name]))
            return results if len(results) != 1 else results[0]

        forward.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
        return forward

    def _arrived(self, name: str, value: torch.Tensor) -> Value:
        kind = self._kinds[name]
        return Narrow(arrived(value, kind), kind) if kind else value

    def _require_equal(self, given: Mapping[str, torch.Tensor]) -> None:
        """Dims of one name have one size."""
        first: dict[str, int] = {}
        for name, tensor in given.items():
            for size, dim in zip(tensor.shape, self._dims[name], strict=True):
                if isinstance(dim, str) and dim:
                    torch._check(first.setdefault(dim, size) == size)

    def _materialized(self, constant: Constant) -> torch.Tensor:
        return getattr(self, constant.buffer) if constant.buffer is not None else constant.data

    def _results(self, name: str, value: Value) -> list[torch.Tensor]:
        """A sequence is as many results as it has items."""
        if isinstance(value, ValueSequence):
            return [each for item in value.items for each in self._results(name, item)]
        if isinstance(value, Narrow):
            return self._results(name, value.stored)
        if isinstance(value, torch.Tensor):
            return [value]
        if isinstance(value, Constant):
            return [self._materialized(value)]
        if isinstance(value, Sizes):
            return [value.tensor()]
        raise UnsupportedOpError([UnsupportedOp(f"output '{printable(name)}'", "it is an empty optional; results are tensors")])


def identifiers(names: Iterable[str]) -> list[str]:
    """A name of Python for each, all of them different: the name itself where it is one."""
    found: dict[str, None] = {}
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = f"_{plain}" if not plain or plain[0].isdigit() or keyword.iskeyword(plain) or hasattr(torch.nn.Module, plain) else plain
        while plain in found:
            plain += "_"
        found[plain] = None
    return list(found)
