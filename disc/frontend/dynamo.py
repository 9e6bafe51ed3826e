"""The `torch.compile` backend: inference and training graphs of AOTAutograd, compiled whole or, around ops that cannot be, in parts.

A model that eager PyTorch runs, runs: an op without a lowering, a part whose compilation fails and a call that compiled code refuses go to
PyTorch, are counted (`statistics`) and named in a `DiscWarning` once. Where PyTorch then raises, that is the model's own error.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import cast

import sympy
import torch
import torch._functorch.config as partition_settings
from functorch.compile import min_cut_rematerialization_partition
from torch import fx
from torch._dynamo import eval_frame
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException, Unsupported
from torch._functorch._aot_autograd import graph_compile
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler, ViewAndMutationMeta
from torch._guards import TracingContext
from torch._logging._internal import trace_log, trace_structured
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental import proxy_tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._sympy.value_ranges import ValueRanges
from torch.utils.checkpoint import CheckpointPolicy
from torch_mlir import ir

from disc.artifact.cache import open_traces
from disc.config import Options, read_environment
from disc.errors import CustomOpError, DiscError, TargetError, UnsupportedOp, UnsupportedOpError, WrittenError, did_you_mean, warn
from disc.frontend.complex_numbers import has_complex, without_complex
from disc.frontend.control_flow import constants_and_bodies
from disc.frontend.decompose import fake_mode
from disc.frontend.decompositions import is_random, training_table
from disc.frontend.dialects import load_frontend_dialects
from disc.frontend.effect_tokens import with_tokens, without_tokens
from disc.frontend.fixed_sizes import fixed_sizes
from disc.frontend.folded_numbers import divided_as_in_python
from disc.frontend.graph_calls import called_as_graph
from disc.frontend.graph_parts import Executable, run_in_parts, untold_symbols
from disc.frontend.imported import Imported, OutputSpec
from disc.frontend.kept_traces import CompiledGraph, EagerGraph, Keeping, Record
from disc.frontend.locations import frame_text, is_library, line_text, user_line
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
from disc.frontend.recurrent_tracing import trace_recurrent_layers
from disc.frontend.registered import graph_cache, graph_compiler
from disc.frontend.replaced import replaced
from disc.frontend.resampling import eager_scales
from disc.frontend.rolled_loops import roll_loops
from disc.frontend.scan_gradients import keep_drawn
from disc.frontend.symbols import shape_environment
from disc.frontend.unrolled_functions import Unrolling, forget_all
from disc.ir.dialect import make_context
from disc.ir.state import set_donated, set_replaced
from disc.ral.executable import Executable as NativeExecutable
from disc.targets.cuda import target_for
from disc.targets.select import select_targets

Compiler = Callable[[Imported], Executable]
_LOGGER = logging.getLogger("disc.torch_compile")


@dataclass
class Statistics:
    """What the backend did since the process started (or `reset_statistics`).

    graphs: graphs handed over by PyTorch; compiled: modules compiled (a graph with eager ops gives several);
    cached: how many of these came from the compile cache; eager: op name → how many nodes run in PyTorch.
    failed: error → graphs and parts that run in PyTorch because they could not be compiled; refused_calls: error → calls that ran in
    PyTorch because the compiled code refused their inputs. untraced: line → functions of which Dynamo, which stopped there, gave no graph.
    """

    graphs: int = 0
    compiled: int = 0
    cached: int = 0
    eager: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    refused_calls: Counter[str] = field(default_factory=Counter)
    untraced: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Settings:
    """The options of `torch.compile(options=...)`. strict: an error of ours is raised instead of running the part in PyTorch. targets: of
    the device where the tensors lie, or those asked for, which must be of it; () before that is known. memory: a share of what is kept for
    a backward pass where time alone counts."""

    options: Options = field(default_factory=Options)
    strict: bool = False
    targets: tuple[str, ...] = ()
    memory: float = 1.0


_statistics = Statistics()
_named: set[str] = set()
_compiler: Compiler | None = None


def statistics() -> Statistics:
    """The live counters."""
    return _statistics


def reset_statistics() -> None:
    """Counts from zero, and names again in warnings what runs in PyTorch."""
    global _statistics
    _statistics = Statistics()
    _named.clear()


def set_compiler(compiler: Compiler | None) -> None:
    """How an `Imported` becomes callable: `compiler(imported)(inputs)` → results. None: the public compile for the tensors' device."""
    global _compiler
    _compiler = compiler


def backend(
    module: fx.GraphModule, example_inputs: Sequence[object], *, mode: str | None = None, options: Mapping[str, object] | None = None
) -> Callable[..., object]:
    """`torch.compile(model, backend="disc", options={"threads": 2})`.

    options: fields of `disc.Options` that make sense here (threads, dtype, cache, random, tf32, graphs); target, as of `disc.compile`
    (default: that of the device where the tensors lie); strict (default False): raise what otherwise makes a graph, or a part, run in
    PyTorch; memory (default 1): which share may be kept for a backward pass of what makes it fastest, the rest is computed again. mode:
    ignored, with a warning; there is one way to compile.

    Raises: DiscError for options that are not there.
    """
    settings = checked_settings(options or {})
    try:
        here = targets_of([*example_inputs, *module.parameters(), *module.buffers()])
    except DiscError as error:
        _failed(error, settings, module.graph)
        return module.forward
    settings = dataclasses.replace(settings, targets=_checked_targets(settings.targets, here) or here)
    if mode is not None:
        _warn_once(f"torch.compile(mode={mode!r}): disc has no modes, this one is ignored")

    eval_frame.cached_backends.setdefault(id(backend), backend)  # pyright: ignore[reportArgumentType]  # which a reset asks, once
    unrolling = Unrolling.of(module.graph) if here == ("native",) else None
    if unrolling is not None and unrolling.has_other_steps() and unrolling.record_from_now_on(options or {}):
        _LOGGER.info("graph %s: the calls of an earlier one in other numbers; the function is recorded from now on", _place(module.graph))
        return module.forward
    loops = list[int]()
    try:
        keeping = _keeping(settings, loops)
        # The fused attention kernels cannot be looked into; the composite one is matmuls and a softmax.
        with (
            sdpa_kernel([SDPBackend.MATH]),
            eager_scales(),
            divided_as_in_python(),
            formats_not_asked(),
            fixed_sizes(shape_environment(example_inputs)) as fixed,
            keeping.on() if keeping else nullcontext(),
        ):
            compiled = with_autograd(settings, loops=loops.append, kept=keeping is not None)(module, list(example_inputs))
    except TorchDynamoException:
        raise
    except Exception as error:
        _failed(error, settings, module.graph)
        return module.forward
    _tell_fixed(fixed)
    if unrolling is not None:
        unrolling.note(sum(loops))
    if keeping is not None:
        _count_found(keeping.found)
    return compiled


def _tell_fixed(sizes: Mapping[str, str]) -> None:
    for line, size in sizes.items():
        _warn_once(
            f"disc compiles for one size alone of a dynamic dim, and anew for others: the trace of the call at {line} made it {size}"
        )


def _keeping(settings: Settings, loops: list[int]) -> Keeping | None:
    """Where traces are kept; None where they are not: they hold the names of programs of the compile cache, and whoever asks for
    TORCH_TRACE wants graphs to be traced."""
    cache = graph_cache()
    if cache is None or _compiler is not None or settings.targets != ("native",) or trace_log.handlers:
        return None
    facts = cache.facts(settings.options, settings.targets)
    if facts is None:
        return None
    own = {"memory": repr(settings.memory)}
    return Keeping({**facts, **own}, open_traces(read_environment()), lambda record: _kept_program(record, settings), loops.append)


def _count_found(graphs: int) -> None:
    _statistics.graphs += graphs
    _statistics.compiled += graphs
    _statistics.cached += graphs


def _without_graph(error: Unsupported, code: CodeType) -> None:
    """Counts a function that Dynamo leaves to PyTorch as a whole, and warns: nobody else does. What it calls may have graphs."""
    if is_library(code.co_filename):
        return
    line = frame_text(*(user_line("".join(error.real_stack.format())) or (code.co_filename, code.co_firstlineno)))
    _statistics.untraced[line] += 1
    first = error.msg.split("***")[0]  # behind it: that a loop cannot be left in the middle
    said = [" ".join(text.split()) for text in re.findall(r"(?:Explanation|Hint): (.*)", first)]
    why = " ".join([first.strip().splitlines()[0] + ":", *said]) if said else first.strip()
    _warn_once(f"Dynamo has no graph for disc of {code.co_qualname} (stopped at {line}), and leaves the function to PyTorch: {why}")


trace_recurrent_layers(backend, _without_graph)
backend.reset = forget_all  # pyright: ignore[reportFunctionMemberAccess]

# Of each node of a trace; which of the memory formats it has nobody asks, and to find out takes up to half of the time of tracing.
_METADATA = partial(proxy_tensor._extract_tensor_metadata, include_contiguity=False)  # pyright: ignore[reportPrivateImportUsage]


def formats_not_asked() -> AbstractContextManager[None]:
    return replaced({(proxy_tensor, "_extract_tensor_metadata"): _METADATA})


def with_autograd(
    settings: Settings,
    noted: Callable[[fx.GraphModule], object] | None = None,
    loops: Callable[[int], object] | None = None,
    kept: bool = False,
) -> Callable[[fx.GraphModule, list[object]], Callable[..., object]]:
    """What makes a program of a module and examples of its inputs, of whose results gradients can be asked for. noted: gets the graph that
    computes values and gradients; loops: gets how many loops were found in a graph. kept: within `Keeping.on` traces are."""
    rolled = 0

    def roll(graph: fx.GraphModule) -> None:
        nonlocal rolled
        found = roll_loops(graph)
        rolled += found
        if loops is not None:
            loops(found)

    kept_alone = set[str]()

    def compiler(graph: fx.GraphModule, inputs: Sequence[object]) -> CompiledGraph:
        return _boxed(graph, settings, rolled)

    def backward_compiler(graph: fx.GraphModule, inputs: Sequence[object]) -> CompiledGraph:
        return _boxed(graph, settings, rolled, donated=kept_alone)

    def inference_compiler(graph: fx.GraphModule, inputs: Sequence[object]) -> CompiledGraph:
        roll(graph)
        return _boxed(graph, settings, rolled, _written_inputs(graph.graph))

    def partition(joint: fx.GraphModule, inputs: Sequence[object], **options: object) -> tuple[fx.GraphModule, fx.GraphModule]:
        if noted is not None:
            noted(joint)
        roll(joint)  # before it is cut: a value of all iterations is then one tensor
        return _partition(joint, inputs, memory=settings.memory, **options)

    eager = settings.options.random == "eager"
    forward, backward, inference = (
        SerializableAOTDispatchCompiler(CompiledGraph, each) if kept else each for each in (compiler, backward_compiler, inference_compiler)
    )
    compiled = aot_autograd(
        fw_compiler=forward, bw_compiler=backward, inference_compiler=inference,
        partition_fn=partition,
        decompositions=training_table(eager_random=eager),
    )  # fmt: skip

    def noting(forward: fx.GraphModule, backward: fx.GraphModule, about: ViewAndMutationMeta) -> list[int]:
        kept_alone.update(_kept_alone(forward, backward, about))
        return []  # PyTorch would refuse to retain the graph

    def program(module: fx.GraphModule, inputs: list[object]) -> Callable[..., object]:
        with replaced({(graph_compile, "collect_bw_donated_buffer_idxs"): noting}):
            return compiled(module, inputs)

    return program


_collect_donated = graph_compile.collect_bw_donated_buffer_idxs


def _kept_alone(forward: fx.GraphModule, backward: fx.GraphModule, about: ViewAndMutationMeta) -> set[str]:
    """The names of the inputs of a backward graph that the forward graph has made for it alone, each in memory of its own. Whether somebody
    holds one all the same, each call asks (`graph_calls.py`)."""
    returned = {node for node in returned_nodes(forward.graph) if isinstance(node, fx.Node)}
    values = [value for node in returned if isinstance(value := node.meta.get("val"), torch.Tensor) and value.layout == torch.strided]
    sharing = Counter(StorageWeakRef(value.untyped_storage()) for value in values)
    placeholders = backward.graph.find_nodes(op="placeholder")
    donated = [placeholders[number] for number in _collect_donated(forward, backward, about)]
    return {node.name for node in donated if sharing[StorageWeakRef(node.meta["val"].untyped_storage())] <= 1}


def _partition(
    joint: fx.GraphModule, inputs: Sequence[object], *, memory: float = 1.0, **options: object
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward graph, with as little kept between them as a cut of the joint graph allows: what is cheap, views
    above all, is computed again. What was drawn is kept for the backward pass, which would draw anew, and what that reverses as it is:
    its loops read it from the end. memory: a share of what that keeps; what has the least arithmetic for its
    bytes is computed again (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", chosen as a knapsack)."""
    keep_drawn(joint.graph)
    for node in joint.graph.nodes:
        if node.target is torch.ops.aten.flip.default and node.meta.get("partitioner_tag") == "is_backward":
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    with partition_settings.patch(activation_memory_budget=memory):
        return min_cut_rematerialization_partition(joint, inputs, **options)  # pyright: ignore[reportArgumentType]


def targets_of(values: Iterable[object]) -> tuple[str, ...]:
    """Those of the GPUs where tensors of a graph lie; of this CPU where there is none. Raises TargetError for a GPU without code."""
    gpus = {value.device for value in values if isinstance(value, torch.Tensor) and value.device.type == "cuda"}
    capabilities = {torch.cuda.get_device_capability(gpu) for gpu in gpus}
    return tuple(sorted({target_for(10 * major + minor) for major, minor in capabilities})) or ("native",)


OPTIONS = ("threads", "dtype", "cache", "random", "tf32", "graphs")
WORDS = (*OPTIONS, "target", "strict", "memory")


def checked_settings(given: Mapping[str, object]) -> Settings:
    """Raises DiscError for an option that is not there, or makes no sense here."""
    if "packed" in given:
        raise DiscError(
            "torch.compile(options=...): packed is for artifacts, whose inputs it changes for a server: "
            "disc.compile(model, example_inputs, options=disc.Options(packed=True))"
        )
    unknown = sorted(set(given) - set(WORDS))
    if unknown:
        wrong = ", ".join(name + did_you_mean(name, WORDS) for name in unknown)
        raise DiscError(f"torch.compile(options=...): disc has no option {wrong}; there are {', '.join(WORDS)}")
    fields = {name: value for name, value in given.items() if name in OPTIONS}
    asked = given.get("target")
    names = () if asked is None else (asked,) if isinstance(asked, str) else tuple(cast("Sequence[str]", asked))
    if names:
        select_targets(names)
    options = dataclasses.replace(Options(), **fields)  # pyright: ignore[reportArgumentType]
    return Settings(options, bool(given.get("strict", False)), names, _share(given.get("memory", 1.0)))


def _share(memory: object) -> float:
    if isinstance(memory, bool) or not isinstance(memory, int | float) or not 0 <= memory <= 1:
        raise DiscError(f"torch.compile(options=...): memory is a share of what is kept for a backward pass, from 0 to 1, not {memory!r}")
    return float(memory)


def _checked_targets(asked: tuple[str, ...], here: tuple[str, ...]) -> tuple[str, ...]:
    """Raises TargetError where a target asked for is of another device than the tensors."""
    device = select_targets(here)[0].device
    wrong = [name for name in asked if select_targets(name)[0].device != device]
    if wrong:
        raise TargetError(f"torch.compile(options=...): the tensors lie on the {device}, target {wrong[0]} is none of its")
    return asked


def _written_inputs(graph: fx.Graph) -> dict[int, int]:
    """Of a graph without gradients that AOTAutograd hands over: the number of a result → that of the input into which it copies it."""
    context = TracingContext.try_get()
    about = context.fw_metadata if context is not None else None
    if about is None or about.tokens or len(graph.find_nodes(op="placeholder")) != len(about.input_info):
        return {}
    inputs = about.mutated_inp_runtime_indices
    return {number: place for number, place in enumerate(inputs)
            if about.input_info[place].mutates_data and not about.input_info[place].mutates_metadata}  # fmt: skip


def _boxed(
    module: fx.GraphModule, settings: Settings, loops: int, replaced: Mapping[int, int] | None = None, donated: Collection[str] = ()
) -> CompiledGraph:
    """replaced, donated: as of `compile_graph`."""
    _statistics.graphs += 1
    # AOTAutograd calls while it traces; constants of the graph are real tensors
    with unset_fake_temporarily(), without_function_modes():
        run = compile_graph(module, settings, replaced, donated)
    return CompiledGraph(run, getattr(run, "record", None), loops)


@contextmanager
def without_function_modes() -> Iterator[None]:
    """PyTorch's functions as they are. Modes that watch them are the program's, and so is where overriding is off: a backward graph is
    compiled within a call of the program."""
    modes = list[torch.overrides.TorchFunctionMode]()
    while torch._C._len_torch_function_stack():
        modes.append(torch._C._pop_torch_function_stack())
    try:
        with torch._C._EnableTorchFunction():
            yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


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
        _failed(error, settings, module.graph)
        return with_tokens(EagerGraph(module), tokens)
    return with_tokens(_whole_or_in_parts(module, whole, settings), tokens)


def _whole_or_in_parts(module: fx.GraphModule, whole: _Lowered | dict[fx.Node, UnsupportedOp], settings: Settings) -> Executable:
    if isinstance(whole, _Lowered):
        _LOGGER.info("graph %s: one program", _place(module.graph))
        return _guarded(module, settings, lambda: _compiled(whole, settings))
    asked_for = _drawn_by_pytorch(module.graph, settings)
    if settings.strict and not whole.keys() <= asked_for.keys():
        raise UnsupportedOpError([op for node, op in whole.items() if node not in asked_for])
    _report(whole)
    _LOGGER.info("graph %s: compiled around %d calls that PyTorch runs", _place(module.graph), len(whole))
    try:
        return run_in_parts(module, whole, lambda part: compile_part(part, settings))
    except Exception as error:
        _failed(error, settings, module.graph)
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
    place = _place(module.graph)
    try:
        made = compiled()
    except Exception as error:
        _failed(error, settings, module.graph)
        return eager
    run = _or_eager(made.run, eager, settings, place)
    if made.is_kept:
        run.record = Record(made.entry, made.single, made.cut.turn, made.cut.assemble, made.numbers, place, eager)  # pyright: ignore[reportFunctionMemberAccess]
    return run


def _or_eager(run: Executable, eager: EagerGraph, settings: Settings, place: str) -> Executable:
    def guarded(inputs: list[object]) -> Sequence[object]:
        try:
            return run(inputs)
        except WrittenError:  # PyTorch would compute with the new values
            raise
        except CustomOpError as error:  # the op has run: its own error is the model's, as in eager mode
            own = error.__cause__ or error
        except Exception as error:
            if settings.strict:
                raise
            results = eager(inputs)  # an error of the model is raised here, as PyTorch words it
            _statistics.refused_calls[type(error).__name__] += 1
            _warn_once(f"disc: compiled code ({place}) refused a call, which ran in PyTorch: {type(error).__name__}: {error}")
            return results
        raise own

    guarded.plain = plain_executable(run)  # pyright: ignore[reportFunctionMemberAccess]
    return guarded


def _kept_program(record: Record, settings: Settings) -> Executable | None:
    """What a record is, run; None where the compile cache does not have its program any more."""
    if record.entry is None:
        run = _around(_nothing, record.turn, record.assemble, {})
    else:
        cache = graph_cache()
        executable = None if cache is None else cache.program(record.entry, settings.options, settings.targets)
        if executable is None:
            return None
        run = called_as_graph(executable, record.single, f"disc: {record.place}", record.turn)
        run = _around(run, record.turn, record.assemble, record.numbers)
    return _or_eager(run, record.eager, settings, record.place)


def plain_executable(program: Executable) -> NativeExecutable | None:
    """What calls the program may have run instead, on the same inputs by position: where it does nothing else, unless that fails."""
    return getattr(program, "plain", None)


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
    drawn = [node for node in graph.nodes if node.op == "call_function" and is_random(node.target)]
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
        return _Compiled(_around(_nothing, cut.turn, cut.assemble, {}), cut)
    outputs, names = cut.outputs, tuple(argument.name for argument in cut.source().inputs)
    set_replaced(program.module, cut.replaced)
    set_donated(program.module, cut.donated)
    _trace("disc_module", lambda: program.module.operation.get_asm())
    imported = Imported(program.module, program.weights, names, OutputSpec(program.result_names))
    run = _compile_step(imported, settings, _place(cut.module.graph), cut.turn)
    numbers = {place: _number_type(node) for place, node in enumerate(outputs) if not isinstance(node.meta["val"], torch.Tensor)}
    entry = getattr(run, "entry", None)
    return _Compiled(_around(run, cut.turn, cut.assemble, numbers), cut, entry, imported.outputs.is_single(), numbers)


def _nothing(inputs: list[object]) -> Sequence[object]:
    return []


def _around(
    run: Executable,
    turn: Turn | None,
    assemble: Assembly | None,
    numbers: Mapping[int, type[int | float]],
) -> Executable:
    """A program as the whole graph is called. numbers: the types of its results that are no tensors, by place."""
    writes = getattr(run, "writes", False)

    def execute(inputs: list[object]) -> Sequence[object]:
        results = list(run(turn(inputs) if turn else inputs))
        try:
            for place, kind in numbers.items():
                results[place] = kind(results[place])  # pyright: ignore[reportArgumentType]
            return assemble(inputs, results) if assemble else results
        except Exception as error:
            if writes:
                raise WrittenError("the call has written its inputs, and its results could not be handed over") from error
            raise

    return execute if turn or numbers or assemble else run


def _number_type(node: fx.Node) -> type[int | float]:
    return float if isinstance(node.meta["val"], torch.SymFloat | float) else int


def _trace(name: str, text: Callable[[], str]) -> None:
    """An artifact among those that PyTorch writes for TORCH_TRACE, beside its own of the same graph. Without it, text is not called."""
    trace_structured("artifact", lambda: {"name": name, "encoding": "string"}, payload_fn=text)


def _compile_step(imported: Imported, settings: Settings, place: str, turn: Turn | None) -> Executable:
    _statistics.compiled += 1
    return _compiler(imported) if _compiler else _native_compiler(imported, settings, f"disc: {place}", turn)


def _native_compiler(imported: Imported, settings: Settings, label: str, turn: Turn | None) -> Executable:
    """label, turn: as of `called_as_graph`."""
    executable = graph_compiler()(imported, settings.options, settings.targets)
    _statistics.cached += executable.stats()["compiles"] == 0
    _trace("disc_report", lambda: str(executable.explain()))
    run = called_as_graph(executable, imported.outputs.is_single(), label, turn)
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


# --- what runs in PyTorch: counted, and named once ------------------------------------------------------------------------------


def _report(refused: Mapping[fx.Node, UnsupportedOp]) -> None:
    """One warning for all that was not named before, and the counters."""
    _statistics.eager.update(op.op for op in refused.values())
    lines = sorted({str(op) for op in refused.values()} - _named)
    _named.update(lines)
    if lines:
        warn("disc leaves these ops to PyTorch:\n  " + "\n  ".join(lines))


def _failed(error: Exception, settings: Settings, graph: fx.Graph) -> None:
    """Counts a graph or part that will run in PyTorch, and warns. Raises `error` in strict mode."""
    if settings.strict:
        raise error
    _statistics.failed[type(error).__name__] += 1
    _statistics.eager.update(op.op for op in (error.ops if isinstance(error, UnsupportedOpError) else ()))
    what = str(error) if isinstance(error, DiscError) else f"{type(error).__name__}: {error}\n{_saved(graph)}"
    _warn_once(f"disc leaves a graph ({_place(graph)}) to PyTorch, which could not be compiled: {what}")


def _warn_once(message: str) -> None:
    if message not in _named:
        _named.add(message)
        warn(message)


def _place(graph: fx.Graph) -> str:
    """Where the graph begins and ends in the user's sources."""
    lines = [line for line in (line_text(node) for node in graph.nodes if node.op == "call_function") if line != "unknown line"]
    return "unknown lines" if not lines else lines[0] if lines[0] == lines[-1] else f"{lines[0]} to {lines[-1]}"


def _saved(graph: fx.Graph) -> str:
    """Keeps the graph of a failure that has no reproducer of its own."""
    with tempfile.NamedTemporaryFile("w", prefix="disc-graph-", suffix=".txt", delete=False) as file:
        file.write(str(graph))
    return f"the graph is saved as {file.name}"
