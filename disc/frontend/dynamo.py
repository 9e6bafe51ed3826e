"""The `torch.compile` backend: inference and training graphs of AOTAutograd, compiled whole or, around ops that cannot be, in parts.

A model that eager PyTorch runs, runs: an op without a lowering, a part whose compilation fails and a call that compiled code refuses go to
PyTorch, are counted (`statistics`) and named in a `DiscWarning` once. Where PyTorch then raises, that is the model's own error.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from types import CodeType

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
from torch._logging._internal import trace_log
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental import proxy_tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy

from disc.artifact.cache import open_traces
from disc.config import read_environment
from disc.errors import DiscError
from disc.frontend.backend_counts import failed, place_of, statistics, warn_once
from disc.frontend.backend_counts import reset_statistics as reset_statistics
from disc.frontend.backend_settings import Settings, checked_settings, checked_targets, targets_of
from disc.frontend.fixed_sizes import fixed_sizes
from disc.frontend.folded_numbers import divided_as_in_python
from disc.frontend.graph_calls import kept_program, own_compiler
from disc.frontend.graph_calls import set_compiler as set_compiler
from disc.frontend.kept_programs import graph_facts
from disc.frontend.kept_traces import CompiledGraph, Keeping
from disc.frontend.locations import frame_text, is_library, user_line
from disc.frontend.output_views import returned_nodes
from disc.frontend.recurrent_tracing import trace_recurrent_layers
from disc.frontend.replaced import replaced
from disc.frontend.resampling import eager_scales
from disc.frontend.scan_gradients import keep_drawn
from disc.frontend.symbols import shape_environment
from disc.frontend.unrolled_functions import Unrolling, forget_all

_LOGGER = logging.getLogger("disc.torch_compile")


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
        failed(error, settings.strict, module.graph)
        return module.forward
    settings = dataclasses.replace(settings, targets=checked_targets(settings.targets, here) or here)
    if mode is not None:
        warn_once(f"torch.compile(mode={mode!r}): disc has no modes, this one is ignored")

    eval_frame.cached_backends.setdefault(id(backend), backend)  # pyright: ignore[reportArgumentType]  # which a reset asks, once
    unrolling = Unrolling.of(module.graph) if here == ("native",) else None
    if unrolling is not None and unrolling.has_other_steps() and unrolling.record_from_now_on(options or {}):
        _LOGGER.info("graph %s: the calls of an earlier one in other numbers; the function is recorded from now on", place_of(module.graph))
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
        failed(error, settings.strict, module.graph)
        return module.forward
    _tell_fixed(fixed)
    if unrolling is not None:
        unrolling.note(sum(loops))
    if keeping is not None:
        _count_found(keeping.found)
    return compiled


def _tell_fixed(sizes: Mapping[str, str]) -> None:
    for line, size in sizes.items():
        warn_once(f"disc compiles for one size alone of a dynamic dim, and anew for others: the trace of the call at {line} made it {size}")


def _keeping(settings: Settings, loops: list[int]) -> Keeping | None:
    """Where traces are kept; None where they are not: they hold the names of programs of the compile cache, and whoever asks for
    TORCH_TRACE wants graphs to be traced."""
    if own_compiler() is not None or settings.targets != ("native",) or trace_log.handlers:
        return None
    facts = graph_facts(settings.options, settings.targets)
    if facts is None:
        return None
    own = {"memory": repr(settings.memory)}
    return Keeping({**facts, **own}, open_traces(read_environment()), lambda record: kept_program(record, settings), loops.append)


def _count_found(graphs: int) -> None:
    counts = statistics()
    counts.graphs += graphs
    counts.compiled += graphs
    counts.cached += graphs


def _without_graph(error: Unsupported, code: CodeType) -> None:
    """Counts a function that Dynamo leaves to PyTorch as a whole, and warns: nobody else does. What it calls may have graphs."""
    if is_library(code.co_filename):
        return
    line = frame_text(*(user_line("".join(error.real_stack.format())) or (code.co_filename, code.co_firstlineno)))
    statistics().untraced[line] += 1
    first = error.msg.split("***")[0]  # behind it: that a loop cannot be left in the middle
    said = [" ".join(text.split()) for text in re.findall(r"(?:Explanation|Hint): (.*)", first)]
    why = " ".join([first.strip().splitlines()[0] + ":", *said]) if said else first.strip()
    warn_once(f"Dynamo has no graph for disc of {code.co_qualname} (stopped at {line}), and leaves the function to PyTorch: {why}")


trace_recurrent_layers(backend, _without_graph)
backend.reset = forget_all  # pyright: ignore[reportFunctionMemberAccess]

# Of each node of a trace; which of the memory formats it has nobody asks, and to find out takes up to half of the time of tracing.
_METADATA = partial(proxy_tensor._extract_tensor_metadata, include_contiguity=False)  # pyright: ignore[reportPrivateImportUsage]


def formats_not_asked() -> AbstractContextManager[None]:
    return replaced({(proxy_tensor, "_extract_tensor_metadata"): _METADATA})


class _Decompositions(Mapping[torch._ops.OperatorBase, Callable[..., object]]):
    """`training_table`, collected when a graph is traced: not where its trace is kept."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @cached_property
    def _table(self) -> Mapping[torch._ops.OperatorBase, Callable[..., object]]:
        from disc.frontend import graph_programs  # before PyTorch traces: modules are loaded in no mode of it

        return graph_programs.training_table(eager_random=self._settings.options.random == "eager")

    def __getitem__(self, op: torch._ops.OperatorBase) -> Callable[..., object]:
        return self._table[op]

    def __iter__(self) -> Iterator[torch._ops.OperatorBase]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


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
        from disc.frontend.graph_programs import roll_loops

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

    forward, backward, inference = (
        SerializableAOTDispatchCompiler(CompiledGraph, each) if kept else each for each in (compiler, backward_compiler, inference_compiler)
    )
    compiled = aot_autograd(
        fw_compiler=forward, bw_compiler=backward, inference_compiler=inference,
        partition_fn=partition,
        decompositions=_Decompositions(settings),
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
    holds one all the same, each call asks (`_donated`)."""
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
    from disc.frontend.graph_programs import compile_graph

    statistics().graphs += 1
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
