"""An ONNX graph that is run, node by node, with torch functions."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import torch
from onnx import defs
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from disc.errors import CompilerBug, DiscError, ExportError, UnsupportedFormatError, UnsupportedOp, UnsupportedOpError
from disc.frontend.export_errors import NO_STATIC_ANSWER, shortened
from disc.frontend.onnx.file import ModelFile
from disc.frontend.onnx.functions import DEFAULT_DOMAINS, full_name, node_name, place
from disc.frontend.onnx.node import Attribute, Node, Subgraph, Traced, check_inputs, expected_type
from disc.frontend.onnx.ops import EXPANDING, NARROW_TYPES, RANDOM, Rule, rule_for
from disc.frontend.onnx.tensors import StoredTensor, stored_tensor
from disc.frontend.onnx.values import (
    Constant,
    Leaf,
    Narrow,
    NodeError,
    Result,
    Value,
    distinct,
    is_constant,
    leaves,
    rebuilt,
    type_name,
)
from disc.frontend.untraced import untraced

Values = dict[str, Value]
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
        inner = [each for step in self.steps for each in step.attributes.values() if isinstance(each, Graph)]
        self.draws = any(step.op in RANDOM for step in self.steps) or any(graph.draws for graph in inner)

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
        with untraced():
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
