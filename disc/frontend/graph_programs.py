"""Graphs of AOTAutograd as programs: lowered whole, or in parts around what only PyTorch can run, and compiled.

Nothing here is needed where traces are kept (`kept_traces`): it is loaded when a graph is compiled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import sympy
import torch
from torch import fx
from torch._logging._internal import trace_structured
from torch.utils._sympy.value_ranges import ValueRanges
from torch_mlir import ir

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.frontend.backend_counts import failed, place_of, report, statistics
from disc.frontend.backend_settings import Settings
from disc.frontend.complex_numbers import has_complex, without_complex
from disc.frontend.control_flow import constants_and_bodies
from disc.frontend.decompose import fake_mode
from disc.frontend.decompositions import training_table
from disc.frontend.dialects import load_frontend_dialects
from disc.frontend.effect_tokens import with_tokens, without_tokens
from disc.frontend.graph_calls import around, called_program, nothing, or_eager, own_compiler
from disc.frontend.graph_parts import Executable, run_in_parts, untold_symbols
from disc.frontend.imported import Imported, OutputSpec
from disc.frontend.kept_traces import EagerGraph, Record
from disc.frontend.locations import line_text
from disc.frontend.lowering import GraphInput, GraphSource, LoweredGraph, lower_graph, lower_or_refuse
from disc.frontend.memory_layouts import UNKNOWN_LAYOUT, memory_layout
from disc.frontend.output_views import (
    Assembly,
    Turn,
    bases_of_results,
    computed_roots,
    cut_results,
    replaced_inputs,
    returned_nodes,
    turn_inputs,
)
from disc.frontend.random_ops import draws_in_eager
from disc.frontend.registered import graph_compiler
from disc.frontend.rolled_loops import roll_loops as roll_loops
from disc.frontend.symbols import shape_environment
from disc.ir.dialect import make_context
from disc.ir.state import set_donated, set_replaced

_LOGGER = logging.getLogger("disc.torch_compile")


def compile_graph(
    module: fx.GraphModule, settings: Settings, replaced: Mapping[int, int] | None = None, donated: Collection[str] = ()
) -> Executable:
    """The graph as one compiled module, or as compiled parts around the ops that only PyTorch can run.

    replaced: number of a result → number of the input into which the caller copies it after each call. Such a result may have been computed
    there by then: it comes as the input itself. donated: names of inputs that the caller has no use for afterwards, as a rule: where
    nobody holds one in a call, it may be written over.
    """
    tokens = 0
    try:
        module, tokens = without_tokens(_real(module, settings))
        whole = _lowered_or_refused(module, settings, replaced or {}, donated)
    except Exception as error:
        failed(error, settings.strict, module.graph)
        return with_tokens(EagerGraph(module), tokens)
    return with_tokens(_whole_or_in_parts(module, whole, settings), tokens)


def _whole_or_in_parts(module: fx.GraphModule, whole: _Lowered | dict[fx.Node, UnsupportedOp], settings: Settings) -> Executable:
    if isinstance(whole, _Lowered):
        _LOGGER.info("graph %s: one program", place_of(module.graph))
        return _guarded(module, settings, lambda: _compiled(whole, settings))
    asked_for = _drawn_by_pytorch(module.graph, settings)
    if settings.strict and not whole.keys() <= asked_for.keys():
        raise UnsupportedOpError([op for node, op in whole.items() if node not in asked_for])
    report(whole)
    _LOGGER.info("graph %s: compiled around %d calls that PyTorch runs", place_of(module.graph), len(whole))
    try:
        return run_in_parts(module, whole, lambda part: compile_part(part, settings))
    except Exception as error:
        failed(error, settings.strict, module.graph)
        return EagerGraph(module)


def _real(module: fx.GraphModule, settings: Settings) -> fx.GraphModule:
    """The graph without complex numbers inside."""
    if not has_complex(module):
        return module
    return without_complex(module, fake_mode(module.graph), training_table(eager_random=settings.options.random == "eager")).module


def compile_part(module: fx.GraphModule, settings: Settings) -> Executable:
    """A graph without refused ops, which is changed."""
    return _guarded(module, settings, lambda: _compiled(_lowered(_cut(module)), settings))


def _guarded(module: fx.GraphModule, settings: Settings, compiled: Callable[[], _Compiled]) -> Executable:
    """What `compiled` makes of the graph. What cannot be compiled stays with PyTorch, and so does a call that is refused."""
    eager = EagerGraph(module)
    place = place_of(module.graph)
    try:
        made = compiled()
    except Exception as error:
        failed(error, settings.strict, module.graph)
        return eager
    run = or_eager(made.run, eager, settings, place)
    if made.is_kept:
        run.record = Record(made.entry, made.single, made.cut.turn, made.cut.assemble, made.numbers, place, eager)  # pyright: ignore[reportFunctionMemberAccess]
    return run


@dataclass(frozen=True)
class _Cut:
    """A graph that takes and returns values in row-major order. turn: inputs of the whole graph → its own; assemble: the results of the
    whole graph of its own, each of which it returns once. None where these are the same. replaced: of its own results, as of
    `compile_graph`; donated: the numbers of its inputs that are."""

    module: fx.GraphModule
    assemble: Assembly | None
    turn: Turn | None
    replaced: Mapping[int, int] = field(default_factory=dict[int, int])
    donated: Collection[int] = ()

    @property
    def outputs(self) -> list[fx.Node]:
        return [node for node in returned_nodes(self.module.graph) if isinstance(node, fx.Node)]

    def source(self) -> GraphSource:
        return graph_source(self.module, self.outputs)


@dataclass(frozen=True)
class _Lowered:
    """program: None where nothing is computed."""

    cut: _Cut
    program: LoweredGraph | None


@dataclass(frozen=True)
class _Compiled:
    """entry, single, numbers: as of `Record`; is_kept: whether there is one."""

    run: Executable
    cut: _Cut
    entry: str | None = None
    single: bool = False
    numbers: Mapping[int, type[int | float]] = field(default_factory=dict)

    @property
    def is_kept(self) -> bool:
        return self.entry is not None or not self.cut.outputs


def _cut(module: fx.GraphModule, replaced: Mapping[int, int] | None = None, donated: Collection[str] = ()) -> _Cut:
    """Changes `module`. replaced, donated: as of `compile_graph`. Raises: UnsupportedOpError."""
    places = replaced_inputs(module.graph, replaced) if replaced else {}
    seen = bases_of_results(module.graph)
    assemble, turn = cut_results(module), turn_inputs(module)
    outputs = {node: number for number, node in enumerate(returned_nodes(module.graph)) if isinstance(node, fx.Node)}
    given = [place for place, node in enumerate(module.graph.find_nodes(op="placeholder")) if node.name in donated and node not in seen]
    own = {outputs[node]: place for node, place in places.items() if node in outputs}
    turned = turn.orders if turn is not None else ()  # of these, the program gets a view
    return _Cut(module, assemble, turn, own, [place for place in given if place not in turned])


def _lowered(cut: _Cut) -> _Lowered:
    """Raises: UnsupportedOpError, CompilerBug."""
    return _Lowered(cut, lower_graph(cut.source(), _context()) if cut.outputs else None)


def _drawn_by_pytorch(graph: fx.Graph, settings: Settings) -> dict[fx.Node, UnsupportedOp]:
    """What `Options(random="eager")` leaves to PyTorch."""
    if settings.options.random != "eager":
        return {}
    drawn = [node for node in graph.nodes if node.op == "call_function" and draws_in_eager(node.target)]
    return {node: UnsupportedOp(str(node.target), 'drawn by PyTorch, as random="eager" asks for', line_text(node)) for node in drawn}


def _lowered_or_refused(
    module: fx.GraphModule, settings: Settings, replaced: Mapping[int, int], donated: Collection[str]
) -> _Lowered | dict[fx.Node, UnsupportedOp]:
    """The graph lowered, or the nodes of `module` that cannot be; `module` stays as it is.

    Raises: UnsupportedOpError, CompilerBug.
    """
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(module.graph, copies))  # pyright: ignore[reportArgumentType]
    copy = fx.GraphModule(module, graph)
    scattered = _without_layout(copy)
    if scattered:  # where results cannot be cut off, the ops before them are looked at as they are
        source, cut = graph_source(copy, computed_roots(graph)), None
    else:
        cut = _cut(copy, replaced, donated)
        if not cut.outputs:
            return _Lowered(cut, None)
        source = cut.source()
    known = untold_symbols(graph) | scattered | _drawn_by_pytorch(graph, settings)
    lowered = lower_or_refuse(source, _context(), known)
    if isinstance(lowered, LoweredGraph):
        assert cut is not None
        return _Lowered(cut, lowered)
    originals = {new: old for old, new in copies.items()}
    return {originals[node]: reason for node, reason in lowered.items() if node in originals}


def _without_layout(module: fx.GraphModule) -> dict[fx.Node, UnsupportedOp]:
    tensors = [node for node in computed_roots(module.graph) if isinstance(node.meta["val"], torch.Tensor)]
    scattered = [node for node in tensors if memory_layout(node.meta["val"]) is None]
    return {node: UnsupportedOp(str(node.target), UNKNOWN_LAYOUT, line_text(node)) for node in scattered}


def _context() -> ir.Context:
    context = make_context()
    load_frontend_dialects(context)
    return context


def _compiled(lowered: _Lowered, settings: Settings) -> _Compiled:
    cut, program = lowered.cut, lowered.program
    if program is None:
        return _Compiled(around(nothing, cut.turn, cut.assemble, {}), cut)
    outputs, names = cut.outputs, tuple(argument.name for argument in cut.source().inputs)
    set_replaced(program.module, cut.replaced)
    set_donated(program.module, cut.donated)
    _trace("disc_module", lambda: program.module.operation.get_asm())
    imported = Imported(program.module, program.weights, names, OutputSpec(program.result_names))
    run = _compile_step(imported, settings, place_of(cut.module.graph), cut.turn)
    numbers = {place: _number_type(node) for place, node in enumerate(outputs) if not isinstance(node.meta["val"], torch.Tensor)}
    entry = getattr(run, "entry", None)
    return _Compiled(around(run, cut.turn, cut.assemble, numbers), cut, entry, imported.outputs.is_single(), numbers)


def _number_type(node: fx.Node) -> type[int | float]:
    return float if isinstance(node.meta["val"], torch.SymFloat | float) else int


def _trace(name: str, text: Callable[[], str]) -> None:
    """An artifact among those that PyTorch writes for TORCH_TRACE, beside its own of the same graph. Without it, text is not called."""
    trace_structured("artifact", lambda: {"name": name, "encoding": "string"}, payload_fn=text)


def _compile_step(imported: Imported, settings: Settings, place: str, turn: Turn | None) -> Executable:
    statistics().compiled += 1
    compiler = own_compiler()
    return compiler(imported) if compiler else _native_compiler(imported, settings, f"disc: {place}", turn)


def _native_compiler(imported: Imported, settings: Settings, label: str, turn: Turn | None) -> Executable:
    """label, turn: as of `called_program`."""
    executable = graph_compiler()(imported, settings.options, settings.targets)
    statistics().cached += executable.stats()["compiles"] == 0
    _trace("disc_report", lambda: str(executable.explain()))
    run = called_program(executable, imported.outputs.is_single(), label, turn)
    run.entry = executable.entry  # pyright: ignore[reportFunctionMemberAccess]
    return run


def graph_source(module: fx.GraphModule, outputs: Sequence[fx.Node]) -> GraphSource:
    """The graph of AOTAutograd as far as `outputs` need it: parameters are inputs, sizes come as SymInt inputs."""
    inputs = [GraphInput(node, node.name) for node in module.graph.find_nodes(op="placeholder")]
    constants, bodies = constants_and_bodies(module)
    named = [(node.name, node) for node in outputs]
    return GraphSource(module.graph, inputs, constants, named, _ranges(module.graph), bodies=bodies)


def _ranges(graph: fx.Graph) -> Mapping[sympy.Symbol, ValueRanges]:
    """The range of every symbol, from the shape environment that made it."""
    environment = shape_environment(node.meta.get("val") for node in graph.nodes)
    return dict(environment.var_to_range) if environment is not None else {}
