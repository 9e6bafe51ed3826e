"""Traces of torch.compile's graphs in the compile cache: a later process that brings the same graph does not trace it.

PyTorch keeps what AOTAutograd makes of a graph, its guards and what its wrappers need among it, where a backend's compiled graphs can
be written (`AOTAutogradCache`). Ours are the name of a program in the compile cache, and what is done around its calls. Here are the key,
which holds all that a trace depends on, and where entries lie: in a folder beside the programs, not in PyTorch's own. What cannot be named
in a key (functions of the user, custom ops, tensors that the graph holds, inputs that share memory) is traced each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import sympy
import torch
from torch import fx
from torch._dynamo.convert_frame import compile_lock
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import autograd_cache, descriptors, graph_compile, runtime_wrappers, schemas
from torch._functorch._aot_autograd.aot_autograd_result import BundledAOTAutogradResult, BundledCompiledBackward, BundledCompiledForward
from torch._functorch._aot_autograd.autograd_cache import (
    AOTAutogradCache,
    AOTAutogradCachePickler,
    BypassAOTAutogradCache,
    FXGraphCacheMiss,
)
from torch._guards import TracingContext
from torch._inductor import config as inductor_config
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental import _config as symbolic_config
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols
from torch.fx.traceback import _get_memory_budget_annotation

from disc.artifact.cache import Cache, cache_key, check_folder
from disc.artifact.file import write_bytes
from disc.errors import ArtifactError
from disc.frontend.graph_parts import Executable
from disc.frontend.memory_layouts import Layout
from disc.frontend.output_views import Assembly, Turn, plain_module
from disc.frontend.replaced import replaced
from disc.frontend.written_values import NAMESPACES, UnwritableError, Writer

VARIANTS = 4  # entries for one graph: by what PyTorch decided by its sizes
_DIGEST = hashlib.sha256().digest_size
_SAVED = graph_compile._cache_autograd_info
_OWN_MODULES = frozenset(["torch", "_operator", "operator", "math", "builtins"])


class EagerGraph:
    """A graph as it is now, run by PyTorch. Written, it is read where it is called."""

    def __init__(self, module: fx.GraphModule) -> None:
        graph = fx.Graph()
        graph.output(graph.graph_copy(module.graph, {}))  # pyright: ignore[reportArgumentType]
        self._module: fx.GraphModule | None = plain_module(module, graph)
        self._text = ""

    def __call__(self, inputs: list[object]) -> Sequence[object]:
        return self.deserialize().forward(*inputs)

    def deserialize(self) -> fx.GraphModule:
        """The module, as PyTorch calls it."""
        if self._module is None:
            self._module = _graphs.value(self._text)
        assert self._module is not None
        return self._module

    def __getstate__(self) -> str:
        return self._text or _graphs.text(self._module)

    def __setstate__(self, text: str) -> None:
        self._module, self._text = None, text


_graphs = Writer(())


@dataclass(frozen=True)
class Record:
    """What of a compiled graph is written. entry: the program in the compile cache; None where nothing is computed. single: it returns one
    tensor. turn, assemble: as of `output_views`; numbers: the types of the results that are no tensors, by place. place: in the user's
    sources. eager: the graph itself, for calls that the program refuses."""

    entry: str | None
    single: bool
    turn: Turn | None
    assemble: Assembly | None
    numbers: Mapping[int, type[int | float]]
    place: str
    eager: EagerGraph


class CompiledGraph(OutputCode):
    """A graph as PyTorch takes and writes it. record: None where it cannot be written; loops: how many were found in the joint graph."""

    def __init__(self, run: Executable, record: Record | None, loops: int) -> None:
        self.run, self.record, self.loops = run, record, loops
        self._boxed_call = True

    def __call__(self, inputs: list[object]) -> Sequence[object]:  # pyright: ignore[reportIncompatibleMethodOverride]  # whose list is emptied
        taken = list(inputs)
        inputs.clear()
        return self.run(taken)

    def __getstate__(self) -> tuple[Record | None, int]:
        return self.record, self.loops

    def __setstate__(self, written: tuple[Record, int]) -> None:
        self.record, self.loops = written
        self._boxed_call = True

    def prepare_for_serialization(self) -> None:
        if self.record is None:
            raise BypassAOTAutogradCache("a graph that is not one program of the compile cache")

    def post_compile(self, example_inputs: object, constants: object, graph_kwargs: Mapping[str, object]) -> None:
        """After it has been read."""
        keeping, record = Keeping.current, self.record
        assert keeping is not None
        assert record is not None
        self.run = keeping.restored(record)
        if not graph_kwargs["is_backward"]:
            keeping.loops(self.loops)


@dataclass
class Keeping:
    """While a graph is traced and compiled: where the result is looked for, and kept. facts: all that enters keys but the graph. program:
    what a record is, run; None where the compile cache has it no more. loops: told how many loops a graph has that was found. found: how
    many graphs were; _last: number of the last entry that was read."""

    facts: Mapping[str, str]
    cache: Cache
    program: Callable[[Record], Executable | None]
    loops: Callable[[int], object]
    found: int = 0
    _inputs: Sequence[object] = field(default=(), repr=False)
    _known: set[sympy.Basic] = field(default_factory=set, repr=False)
    _stale: bool = field(default=False, repr=False)
    _last: int = field(default=0, repr=False)

    current: ClassVar[Keeping | None] = None  # one thread traces at a time

    @contextmanager
    def on(self) -> Iterator[None]:
        replacements = {
            (autograd_cache, "autograd_cache_key"): self._key,
            (AOTAutogradCache, "iterate_over_candidates"): staticmethod(self._candidates),
            (AOTAutogradCache, "_pickle_entry"): staticmethod(_content),
            (AOTAutogradCache, "_write_to_local_cache"): staticmethod(self._write),
            (graph_compile, "_cache_autograd_info"): self._saved_later,
            (graph_compile, "serialize_graph_module"): EagerGraph,
        }
        settings = {"bundled_autograd_cache": True, "enable_remote_autograd_cache": False}
        before, Keeping.current = Keeping.current, self
        try:
            with replaced(replacements), functorch_config.patch(settings):
                yield
        finally:
            Keeping.current = before

    def restored(self, record: Record) -> Executable:
        run = self.program(record)
        if run is None:
            self._stale, self.found = True, 0
            raise FXGraphCacheMiss("its program is in the compile cache no more")
        self.found += 1
        return run

    def _saved_later(self, *args: Any, **kwargs: Any) -> tuple[Callable[..., object] | None, object]:
        """In the place of PyTorch's, which returns what saves the result once a backward pass is compiled, where none is yet."""
        save, entry = cast("tuple[Callable[..., object] | None, object]", _SAVED(*args, **kwargs))
        if save is None:
            return None, entry

        def save_here(*args: Any) -> object:
            with compile_lock, self.on():
                return save(*args)

        return save_here, entry

    # --- the key --------------------------------------------------------------------------------------------------------------------

    def _key(self, module: Any, inputs: Sequence[object], settings: Any, more: object = None) -> tuple[str, list[str]]:
        """In the place of PyTorch's. Raises BypassAOTAutogradCache where the result is not to be kept."""
        graph = getattr(module, "gm", module)
        with autograd_cache.sanitize_gm_for_cache(graph):
            autograd_cache.check_cacheable(graph)
            _check_graph(graph)
            if settings.precompile_backend_id is not None or settings.ignore_shape_env:
                raise BypassAOTAutogradCache("PyTorch keeps what it compiles elsewhere")
            details = (graph, list(inputs), settings, [_of_input(each) for each in inputs])
            facts = {**self.facts, **_process_facts(graph), "sizes": _of_sizes(_environment(), inputs)}
            self._inputs, self._known = list(inputs), _guards(_environment())
            pickler = AOTAutogradCachePickler(graph)
            try:
                pickler.dump(details)
            except Exception as error:
                raise BypassAOTAutogradCache(f"the graph cannot be written: {error}") from error
            _check_memory(inputs)
            return cache_key(facts, [("graph", memoryview(pickler._stream.getvalue()))]), []

    # --- the entries ------------------------------------------------------------------------------------------------------------------

    def _candidates(self, local: bool, remote: object, key: str) -> Iterator[tuple[object, bytes, bool]]:
        if self.cache.folder.exists():
            check_folder(self.cache.folder.parent)  # what is read runs as code
        for number in range(VARIANTS):
            content = self.cache.lookup(_name(key, number), _read)
            if content is not None:
                self._last = number
                yield _entries.value(content.decode()), content, True

    def _write(self, key: str, content: bytes) -> None:
        """Raises BypassAOTAutogradCache where the trace has made a guard that is not one of the graph's own sizes, as they are named by
        now: it would be lost. One that follows from what has become of sizes (a number, another size) is in that, which is kept."""
        environment = _environment()
        symbols, made = _symbols_of(self._inputs), _guards(environment) - self._known
        foreign = [each for each in made if not each.free_symbols <= symbols]
        lost = environment is not None and any(environment.replace(each) != sympy.true for each in foreign)
        if lost or (environment is not None and environment.deferred_runtime_asserts):
            raise BypassAOTAutogradCache("a guard is of what is no input of the graph")
        free = next((number for number in range(VARIANTS) if not self.cache.has(_name(key, number))), 0)
        whole = hashlib.sha256(content).digest() + content
        self.cache.store(_name(key, self._last if self._stale else free), lambda path: write_bytes(path, whole))


def _content(entry: Any, remote: bool) -> bytes:
    """In the place of PyTorch's: its entry, but for where inputs come from, which a later trace knows itself. Raises BypassAOTAutogradCache
    where it has parts that are not written."""
    entry = copy(entry)
    entry.sanitized_aot_config = replace(entry.sanitized_aot_config, aot_autograd_arg_pos_to_source=None)
    try:
        return _entries.text(entry).encode()
    except UnwritableError as error:
        raise BypassAOTAutogradCache(f"not written: {error}") from error


_entries = Writer(
    [
        *(each for each in vars(descriptors).values() if isinstance(each, type) and is_dataclass(each)),
        schemas.CacheableAOTConfig, schemas.InputAliasInfo, schemas.MemoryFormatMeta, schemas.MutationType, schemas.OutputAliasInfo,
        schemas.OutputType, schemas.PlainTensorMeta, schemas.ViewAndMutationMeta,
        runtime_wrappers.AOTDedupeWrapper, runtime_wrappers.AOTSyntheticBaseWrapper,
        BundledAOTAutogradResult, BundledCompiledForward, BundledCompiledBackward,
        Assembly, CompiledGraph, EagerGraph, Layout, Record, Turn,
    ],
    [FakeTensor, FunctionalTensor],
)  # fmt: skip


def _name(key: str, number: int) -> str:
    return cache_key({"trace": key, "number": str(number)}, [])


def _read(path: Path) -> bytes:
    whole = path.read_bytes()
    digest, content = whole[:_DIGEST], whole[_DIGEST:]
    if hashlib.sha256(content).digest() != digest:
        raise ArtifactError(f"'{path}' is damaged: its digest is another one")
    return content


# --- what a trace depends on ----------------------------------------------------------------------------------------------------------


def _environment() -> ShapeEnv | None:
    context = TracingContext.try_get()
    return None if context is None or context.fake_mode is None else context.fake_mode.shape_env


def _check_graph(module: fx.GraphModule) -> None:
    """Raises BypassAOTAutogradCache where the graph calls what its text does not tell, or holds tensors."""
    if next(module.parameters(), None) is not None or next(module.buffers(), None) is not None:
        raise BypassAOTAutogradCache("the graph holds tensors")
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            raise BypassAOTAutogradCache(f"the graph calls a {type(part).__name__}")
        for value in vars(part).values():
            if isinstance(value, torch.Tensor | torch.ScriptObject):
                raise BypassAOTAutogradCache("the graph holds tensors")
        for node in part.graph.nodes:
            if node.op == "call_function":
                _check_target(node)


def _check_target(node: fx.Node) -> None:
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        if not target.cacheable():
            raise BypassAOTAutogradCache(f"{target.name()} cannot be kept")
        return
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        packet = target.overloadpacket if isinstance(target, torch._ops.OpOverload) else target
        known = packet._qualified_op_name.partition("::")[0] in NAMESPACES
    else:
        known = (getattr(target, "__module__", None) or "torch").partition(".")[0] in _OWN_MODULES
    if not known or node.meta.get("is_wrapped"):
        raise BypassAOTAutogradCache(f"the graph calls {target}, which is not PyTorch's own")


def _of_input(value: object) -> object:
    """What PyTorch's key does not hold of an input. Raises BypassAOTAutogradCache for an input of another kind."""
    if value is None or isinstance(value, torch.SymInt) or type(value) in (bool, int, float, str):
        return type(value).__name__
    if type(value) is not FakeTensor or value.layout is not torch.strided:
        raise BypassAOTAutogradCache(f"an input is a {type(value).__name__}")
    leaf = (value.is_leaf, value._is_view(), isinstance(value, torch.nn.Parameter))
    return (*leaf, str(value.storage_offset()), str(value.untyped_storage().nbytes()))


def _check_memory(inputs: Sequence[object]) -> None:
    """Raises BypassAOTAutogradCache where two inputs share memory: which do so is guarded when they are traced."""
    storages = [each.untyped_storage()._cdata for each in inputs if isinstance(each, torch.Tensor)]
    if len(set(storages)) < len(storages):
        raise BypassAOTAutogradCache("inputs share memory")


def _symbols_of(inputs: Sequence[object]) -> set[sympy.Symbol]:
    return {each.node.expr for each in inputs if isinstance(each, torch.SymInt) and isinstance(each.node.expr, sympy.Symbol)}


def _of_sizes(environment: ShapeEnv | None, inputs: Sequence[object]) -> str:
    """What is known of sizes before the trace. Raises BypassAOTAutogradCache where one is known in a call alone, or is no input."""
    if environment is None:
        return ""
    given = _symbols_of(inputs)
    used = [size for each in inputs if isinstance(each, torch.Tensor) for size in (*each.shape, *each.stride(), each.storage_offset())]
    sizes = [each.node.expr for each in (*used, *inputs) if isinstance(each, torch.SymInt)]
    if environment.deferred_runtime_asserts or any(free_unbacked_symbols(each) for each in sizes):
        raise BypassAOTAutogradCache("a size is known in a call alone")
    if not {symbol for each in sizes for symbol in each.free_symbols} <= given:
        raise BypassAOTAutogradCache("a size is no input of the graph")
    ranges = sorted(f"{symbol} {limits}" for symbol, limits in environment.var_to_range.items())
    equal = sorted(f"{symbol} {other}" for symbol, other in environment.replacements.items())
    guards = sorted(str(each.expr) for each in environment.guards)
    divisible = sorted(map(str, environment.divisible))
    return repr((ranges, equal, guards, divisible))


def _guards(environment: ShapeEnv | None) -> set[sympy.Basic]:
    return set() if environment is None else {each.expr for each in environment.guards}


def _process_facts(module: fx.GraphModule) -> Mapping[str, str]:
    """What of the process a trace depends on. Raises BypassAOTAutogradCache where something else looks at each call."""
    if torch._C._len_torch_dispatch_stack():
        raise BypassAOTAutogradCache("a mode looks at all calls")
    choices = functorch_config.activation_memory_budget_solver, functorch_config.activation_memory_budget_runtime_estimator
    if functorch_config.joint_custom_pass is not None or not all(isinstance(each, str) for each in choices):
        raise BypassAOTAutogradCache("a function of the user changes the trace")
    if (
        "activation_quantization_aten_pass" in inductor_config.post_grad_fusion_options
        or inductor_config.unsafe_skip_cache_dynamic_shape_guards
    ):
        raise BypassAOTAutogradCache("an option of Inductor changes the trace, or the look for it")
    autocast = {kind: torch.get_autocast_dtype(kind) for kind in torch._C._autocast_supported_devices() if torch.is_autocast_enabled(kind)}
    deterministic = (
        torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # pyright: ignore[reportAttributeAccessIssue]
    )  # fmt: skip
    backends = (torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled())
    modes = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_cache_enabled(),
        autocast,
        deterministic,
        backends,
    )
    defaults = (torch.get_default_dtype(), torch.get_default_device())
    checkpoints = (autograd_cache._collect_context_fn_hashes(module), _get_memory_budget_annotation(next(iter(module.graph.nodes))))
    return {
        "modes": repr((modes, defaults, checkpoints, choices)),
        "autograd": hashlib.sha256(functorch_config.save_config()).hexdigest(),
        "symbols": hashlib.sha256(cast("Any", symbolic_config).save_config()).hexdigest(),
    }
