"""The `torch.compile` backend: inference and training graphs of AOTAutograd, compiled whole or, around ops that cannot be, in parts.

Importing this module lets one graph serve sizes 0 and 1 too (`backed_size_oblivious`): Dynamo reads that setting when it creates the
symbols of a graph, before a backend is called, so there is no later point at which a backend could ask for it.
"""

from __future__ import annotations

import importlib
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import sympy
import torch
import torch.fx.experimental._config as symbolic_config
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._sympy.value_ranges import ValueRanges

from disc.config import Options
from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.frontend.decompositions import training_table
from disc.frontend.dialects import load_frontend_dialects
from disc.frontend.imported import Constant, Imported, OutputSpec
from disc.frontend.lowering import GraphInput, GraphSource, lower_graph, refused_nodes
from disc.frontend.output_views import cut_views
from disc.frontend.symbols import shape_environment
from disc.ir.dialect import make_context

symbolic_config.backed_size_oblivious = True

Executable = Callable[[list[object]], Sequence[object]]
Compiler = Callable[[Imported], Executable]


@dataclass
class Statistics:
    """What the backend did since the process started (or `reset_statistics`).

    graphs: graphs handed over by PyTorch; compiled: modules compiled (a graph with eager ops gives several);
    cached: how many of these came out of the compile cache; eager: op name → how many nodes run in PyTorch.
    """

    graphs: int = 0
    compiled: int = 0
    cached: int = 0
    eager: Counter[str] = field(default_factory=Counter)


_statistics = Statistics()
_compiler: Compiler | None = None


def statistics() -> Statistics:
    """The live counters."""
    return _statistics


def reset_statistics() -> None:
    global _statistics
    _statistics = Statistics()


def set_compiler(compiler: Compiler | None) -> None:
    """How an `Imported` becomes callable: `compiler(imported)(inputs)` → results. None: the public compile for this CPU."""
    global _compiler
    _compiler = compiler


def _compile_step(imported: Imported) -> Executable:
    _statistics.compiled += 1
    return (_compiler or _native_compiler)(imported)


def _native_compiler(imported: Imported) -> Executable:
    # The public interface lies above this floor, hence by name and only when it is needed.
    api = importlib.import_module("disc.api")
    executable = api.compile_graph(imported, "native", Options())
    _statistics.cached += executable.stats()["compiles"] == 0
    executable.like = torch.empty(0)  # a graph of sizes alone takes no tensor
    single = imported.outputs.is_single()

    def run(inputs: list[object]) -> list[object]:
        # Parameters come as they are; a tensor that wants gradients cannot be lent out.
        results = executable(*(x.detach() if isinstance(x, torch.Tensor) else x for x in inputs))
        return [results] if single else list(results)

    return run


def backend(module: fx.GraphModule, example_inputs: Sequence[object], **options: object) -> Callable[..., object]:
    """`torch.compile(model, backend=disc.frontend.dynamo.backend, dynamic=True)`.

    Raises: TypeError for options; there are none.
    """
    if options:
        raise TypeError(f"the disc backend has no options {sorted(options)}")
    compile_with_autograd = aot_autograd(fw_compiler=_boxed, bw_compiler=_boxed, inference_compiler=_boxed, decompositions=training_table())
    # The fused attention kernels cannot be looked into; the composite one is matmuls and a softmax.
    with sdpa_kernel([SDPBackend.MATH]):
        return compile_with_autograd(module, list(example_inputs))


def _boxed(module: fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
    _statistics.graphs += 1
    views = cut_views(module)
    with unset_fake_temporarily():  # AOTAutograd calls while it traces; constants of the graph are real tensors
        run = compile_graph(module)

    def boxed(inputs: list[object]) -> Sequence[object]:
        taken = list(inputs)
        inputs.clear()
        results = run(taken)
        return results if views is None else _with_views(results, views(taken, results))

    boxed._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return boxed


def _with_views(results: Sequence[object], views: Mapping[int, object]) -> list[object]:
    return [views.get(position, result) for position, result in enumerate(results)]


def compile_graph(module: fx.GraphModule) -> Executable:
    """The graph as one compiled module, or as compiled parts around the ops that only PyTorch can run."""
    source = graph_source(module)
    with make_context() as context:
        load_frontend_dialects(context)
    refused = refused_nodes(source, context)
    if refused:
        _report(refused)
        return _partitioned(module, refused)
    return _compiled(module, source)


def _compiled(module: fx.GraphModule, source: GraphSource) -> Executable:
    """Raises: UnsupportedOpError."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    outputs = _output_nodes(module)
    computed = [position for position, output in enumerate(outputs) if isinstance(output, fx.Node) and output not in placeholders]
    if not computed:
        return lambda inputs: [inputs[placeholders.index(o)] if isinstance(o, fx.Node) else o for o in outputs]
    context = make_context()
    load_frontend_dialects(context)
    source = GraphSource(source.graph, source.inputs, source.weights, [source.outputs[i] for i in computed], source.ranges)
    lowered = lower_graph(source, context)
    names = tuple(argument.name for argument in source.inputs)
    run = _compile_step(Imported(lowered.module, lowered.weights, names, OutputSpec(lowered.result_names)))
    whole = {position for position in computed if _is_size(outputs[position])}

    def execute(inputs: list[object]) -> list[object]:
        results: list[object] = [inputs[placeholders.index(o)] if o in placeholders else o for o in outputs]
        for position, result in zip(computed, run(inputs), strict=True):
            results[position] = int(result) if position in whole else result  # pyright: ignore[reportArgumentType]
        return results

    return execute


def _is_size(node: object) -> bool:
    return isinstance(node, fx.Node) and not isinstance(node.meta["val"], torch.Tensor)


def _output_nodes(module: fx.GraphModule) -> list[fx.Node | Constant]:
    returned = next(node for node in module.graph.nodes if node.op == "output").args[0]
    return list(returned) if isinstance(returned, list | tuple) else [returned]  # pyright: ignore[reportReturnType]


def graph_source(module: fx.GraphModule) -> GraphSource:
    """The graph of AOTAutograd: parameters are inputs, sizes come as SymInt inputs."""
    inputs, weights = [], {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            inputs.append(GraphInput(node, node.name))
        elif node.op == "get_attr":
            value = operator.attrgetter(node.target)(module)
            if isinstance(value, torch.Tensor):
                weights[node] = (node.target, value)
    outputs = [(output.name if isinstance(output, fx.Node) else "", output) for output in _output_nodes(module)]
    return GraphSource(module.graph, inputs, weights, outputs, _ranges(module.graph))


def _ranges(graph: fx.Graph) -> Mapping[sympy.Symbol, ValueRanges]:
    """The range of every symbol, out of the shape environment that made it."""
    environment = shape_environment(node.meta.get("val") for node in graph.nodes)
    return dict(environment.var_to_range) if environment is not None else {}


# --- ops that stay with PyTorch -------------------------------------------------------------------------------------------------


class _Supported(OperatorSupportBase):
    def __init__(self, refused: Mapping[fx.Node, UnsupportedOp]) -> None:
        self.refused = refused

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        # Sizes are computed by Python: a part then takes them as inputs and needs no symbol from elsewhere.
        tensors = [value for value in _as_list(node.meta.get("val")) if isinstance(value, torch.Tensor)]
        return node.op == "call_function" and node not in self.refused and bool(tensors)


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _report(refused: Mapping[fx.Node, UnsupportedOp]) -> None:
    """One warning for all, and the counters."""
    _statistics.eager.update(op.op for op in refused.values())
    lines = sorted({str(op) for op in refused.values()})
    warnings.warn("disc leaves these ops to PyTorch:\n  " + "\n  ".join(lines), stacklevel=2)


def _partitioned(module: fx.GraphModule, refused: Mapping[fx.Node, UnsupportedOp]) -> Executable:
    """Largest possible parts are compiled; refused nodes and plain Python arithmetic on sizes run as they are."""
    partitioner = CapabilityBasedPartitioner(module, _Supported(refused), allows_single_node_partition=True)
    parts = partitioner.propose_partitions()
    if not parts:
        return lambda inputs: module(*inputs)
    fused = partitioner.fuse_partitions(parts)
    for name, child in list(fused.named_children()):
        if name.startswith("fused_") and isinstance(child, fx.GraphModule):
            setattr(fused, name, _Part(child))
    return lambda inputs: fused(*inputs)


class _Part(torch.nn.Module):
    """A compiled part in the place of its graph; a part that cannot be compiled on its own stays with PyTorch and is counted."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        super().__init__()
        returned = next(node for node in graph_module.graph.nodes if node.op == "output").args[0]
        self.single = not isinstance(returned, list | tuple)
        try:
            self.run = _compiled(graph_module, graph_source(graph_module))
        except UnsupportedOpError as error:
            _statistics.eager.update(op.op for op in error.ops)
            warnings.warn(f"disc leaves a part of the graph to PyTorch: {error}", stacklevel=2)
            self.run: Executable = lambda inputs: _as_list(graph_module(*inputs))

    def forward(self, *inputs: object) -> object:
        results = self.run(list(inputs))
        return results[0] if self.single else tuple(results)
