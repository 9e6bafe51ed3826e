"""`Executable`: a compiled model that runs on any shape. A thin face of the C++ runtime."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol, cast

import numpy as np

from disc.artifact import file as artifact
from disc.artifact.manifest import FixedRecord, Manifest, NamedWeight, TargetRecord, arguments_of, results_of
from disc.config import check_graphs, check_threads, threads_of_environment
from disc.errors import ArtifactError, CompilerBug, DiscError, InputRankError, InputTypeError, ShapeConstraintError, TargetError, counted
from disc.ral import _ral, nested_inputs
from disc.ral import torch_functions as torch_functions  # registers itself with the runtime
from disc.ral.caches import CacheInputs
from disc.ral.elsewhere import Elsewhere
from disc.ral.gpu_programs import NONE, GpuPrograms, from_sections, gpu_number, programs_in, programs_of, stream_handle
from disc.ral.mistakes import PACKED, no_attribute, way_to_a_tensor, who_fixed
from disc.ral.results import builder
from disc.ral.state import Array, HiddenValues, Seed, State
from disc.ral.torch_profiler import Profiler, find_profiler, ranges
from disc.ral.widen import widened

if TYPE_CHECKING:
    from disc.explain.report import Explanation
    from disc.explain.sweep import Sweep
    from disc.ral.block_programs import BlockPrograms


class Explainer(Protocol):
    """What writes `Executable.explain`. It lies on a floor above, and is registered from there."""

    def explain(self, executable: Executable) -> Explanation:
        """What the program is, and which versions ran since loading."""
        ...

    def explain_call(self, executable: Executable, inputs: Sequence[object], profiled: Callable[[], Profiled]) -> Explanation:
        """What the program does on these inputs. profiled: runs them."""
        ...

    def sweep(
        self,
        executable: Executable,
        symbol: str,
        sizes: Sequence[int],
        inputs: Sequence[object],
        profiled: Callable[[Sequence[object]], Profiled],
    ) -> Sweep:
        """The time of a call over the sizes of a symbol. profiled: runs such inputs."""
        ...


class Profiled(NamedTuple):
    """One call. manifest, isa: of the code that ran: a GPU's where the tensors lay on one; gpu: its number, None on a CPU. kernels:
    launches and seconds of each, in the order of the manifest; counters: by how much each of the manifest's went up."""

    manifest: Manifest
    isa: str
    gpu: int | None
    kernels: Sequence[tuple[int, float]]
    counters: Sequence[int]


TIMES, TRACE = 1, 2  # of `set_profile`
_find_explainer: Callable[[], Explainer] | None = None
_profiler: Profiler | None = None  # PyTorch's, once PyTorch is there


def set_explainer(find: Callable[[], Explainer]) -> None:
    """`find` returns the explainer of `Executable.explain`; it is called on first use."""
    global _find_explainer
    _find_explainer = find


class _Parts(NamedTuple):
    """What `save` writes for an executable that was compiled in this process."""

    manifest: Manifest
    code: Mapping[str, bytes]
    weights: Sequence[NamedWeight]
    stablehlo: bytes | None
    targets: Mapping[str, TargetRecord] | None


class TraceEvent(NamedTuple):
    """A part of a launch that one thread did. kernel: the number of the launch in the manifest; thread: the system's number of it;
    start_ns, end_ns: of the monotonic clock; first, end: which tasks, -1 and -1 for a library function."""

    kernel: int
    thread: int
    start_ns: int
    end_ns: int
    first: int
    end: int


class Value(NamedTuple):
    """One input or result. dtype: as MLIR writes it ("f32", "i64"). dims: each one's size, or the name or expression of what varies."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]

    def __str__(self) -> str:
        """ "f32[S0, 768]"."""
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"


# Of an Executable, for the other parts of disc; completion leaves them out.
INNER = {"contents", "context", "entry", "force_schedule", "from_parts", "like", "most_nodes", "remap", "replace_inputs"}


def _sizes(dims: Iterable[int | str]) -> tuple[int | str, ...]:
    """Of a result, whose dims a manifest has as texts."""
    return tuple(int(dim) if isinstance(dim, str) and dim.isdecimal() else dim for dim in dims)


class Executable:
    """A compiled model. Call it with tensors of any accepted shape; the same kind comes back.

    Inputs are torch tensors, NumPy arrays or anything with DLPack; Python ints are i64 scalars, floats for f64 scalars,
    bools for i1 scalars. The memory of inputs is read in place unless it is not contiguous (then it is copied and counted). Results are
    fresh tensors, never views of inputs, and carry no gradients, whether or not inputs require them. bf16 of NumPy arrays is given as its
    bits in uint16, or with the dtype of ml_dtypes, and returned as its bits.

    Tensors on an NVIDIA GPU run the file's code for GPUs, which is loaded when the first come, in place and in the order of the framework's
    current stream there (`stream=` gives another one; without a framework that tells its own, the default stream). Results lie on that GPU,
    and the call does not wait for them, unless it has to read a size. An index out of range that a kernel finds is raised by the next call
    or by `synchronize`. Loaded for a GPU (`isa="cuda"`, "cuda@1" for the second), a program takes tensors of the host, too: all of them,
    copied there and back.

    Several threads may call one executable at once; the GIL is released in the meantime. Where a program keeps tensors from call to call
    (`state`), or writes inputs, such calls take turns.
    """

    entry: str | None = None
    """Of the compile cache, where the program lies there."""

    def __init__(
        self,
        context: _ral.Context,
        manifest: Manifest,
        parts: _Parts | None,
        compiles: int,
        gpus: GpuPrograms,
        first: Mapping[str, Array] | None = None,
        gpu: int = 0,
    ) -> None:
        """Used by `from_parts` and `load`. gpus: the same program for tensors there. first: the first values of the state, by name. gpu:
        the number of the one that `context` runs on, if it does."""
        self._gpu = gpu
        self._context = context
        self._gpus = gpus
        context.open_gpu = gpus if gpus.has_code else None
        self._manifest = manifest
        self._parts = parts
        self._compiles = compiles
        self._names = [record["name"] for record in arguments_of(manifest)]
        self._caches = CacheInputs(arguments_of(manifest), {record["position"] for record in manifest.get("fixed", [])})
        self._hidden: HiddenValues | None = None
        self._call: Callable[[tuple[object, ...], object], object] = context.call
        context.single = manifest["single"]
        if "state" in manifest:
            self._hidden = HiddenValues(context, manifest["state"], manifest["inputs"], first or {})
            self._call = self._hidden.call
        self._flat_call = self._call
        if "structure" in manifest:
            self._call = _structured(self._call, manifest["structure"])

    @classmethod
    def from_parts(
        cls,
        manifest: Manifest,
        code: Mapping[str, bytes],
        weights: Sequence[NamedWeight] = (),
        stablehlo: bytes | None = None,
        targets: Mapping[str, TargetRecord] | None = None,
        *,
        threads: int | None = None,
        isa: str | None = None,
        compiles: int = 0,
        elsewhere: bool = False,
        graphs: int = 0,
    ) -> Executable:
        """Loads a program from memory; nothing is written to a file.

        manifest, code, weights, stablehlo, targets: as for `disc.artifact.file.write_artifact`. Contiguous weights are not copied and must
        not change.
        threads: per call; None = as `disc.Options` says. isa: the code to load, or the device ("cuda", "cuda@1" for the second GPU); None =
        the best this CPU runs, or a GPU where there is no code for CPUs. compiles: how often this process called the code generator for it,
        for `stats`. elsewhere: a program whose code this machine cannot run is no error: it can be read and saved, and a call raises
        TargetError. graphs: see `graphs`.
        """
        contiguous = [(name, dtype, np.ascontiguousarray(array).reshape(array.shape)) for name, dtype, array in weights]
        parts = _Parts(manifest, code, contiguous, stablehlo, targets)
        stored = artifact.stored_manifest(manifest, code, contiguous, targets)
        values = {name: array for name, _, array in contiguous}
        first = artifact.first_values(stored, lambda record: values[record["name"]].copy())
        arrays = [array for _, _, array in contiguous]
        try:
            context, described = from_sections(stored, code, lambda number: arrays[number], _threads(threads), isa)
        except TargetError as error:
            if not elsewhere:
                raise
            described = artifact.manifest_for(stored)
            stand_in = Elsewhere(described, stored["code"][-1], str(error), _threads(threads))
            return cls(cast("_ral.Context", stand_in), described, parts, compiles, NONE, first)
        made = cls(context, described, parts, compiles, programs_of(stored, code, arrays, _threads(threads)), first, gpu_number(isa))
        made.graphs = graphs
        return made

    if not TYPE_CHECKING:  # a type checker finds what is not there by itself

        def __getattr__(self, name: str) -> NoReturn:
            """What somebody looks for who takes it for a module. Raises AttributeError."""
            raise AttributeError(no_attribute(name), name=name, obj=self)

    def __repr__(self) -> str:
        """What it takes and gives, for which CPU, and with how many threads."""
        inputs, outputs = ", ".join(f"{each.name}: {each}" for each in self.inputs), ", ".join(map(str, self.outputs))
        return f"<disc.Executable ({inputs}) -> ({outputs}), {self.isa}, {counted(self.threads, 'thread')}>"

    def __call__(self, *inputs: object, out: object = None, **named: object) -> object:
        """Runs the model. `named`: inputs by name; one mapping of them by name, such as a tokenizer gives, does as well. `out`: a tensor
        or a tuple of tensors to write results to; returned as it is.

        `cast=True`, where the model has no input of that name: inputs of a narrower dtype are brought to the model's where no value changes
        (int32 to int64, bool to float32, bf16 to float32), by a copy. Other dtypes are an InputTypeError, as all are without it.

        Returns what the model does: one tensor, or its tuple, list, dict, named tuple or transformers' output of tensors and constants. A
        class of these that is not loaded in this process is replaced by one like it; for any other class comes a tuple of all tensors.

        `seed=` (an int), where the model draws random numbers and has no input of that name: the same seed and inputs give the same
        results, on any machine with any number of threads. Without it, each call draws other numbers.

        `stream=`, where the model has no input of that name: the CUDA stream (its handle, or a framework's object) that a call on tensors
        of a GPU runs on, and that lives as long as the results.

        An input that was a DynamicCache of transformers is given as one, or as [{"key": ..., "value": ...}, ...] by name, and is not
        written to; one in the result comes back likewise. Its tensors are inputs of their own, too: `past_key_values.0.key`.

        Arguments that were fixed at compile time, since they are no tensors, may be left out; another value is an InputTypeError.

        Ctrl+C ends a loop whose end depends on data; the call then raises KeyboardInterrupt.

        Raises InputRankError, InputTypeError, DeviceError, ShapeConstraintError, InputValueError (with SingularMatrixError), CustomOpError,
        AliasError, OutOfMemoryError, CancelledError (`stopping`), and ArtifactError when the weights of a loaded file turn out to be
        damaged.
        """
        if named:
            if "stream" in named and "stream" not in self._names:
                with _on_stream(stream_handle(named.pop("stream"))):
                    return self(*inputs, out=out, **named)
            widen = "cast" in named and "cast" not in self._names and named.pop("cast")
            inputs = self._arrange(inputs, named) if named else inputs
            if widen:
                inputs = widened(self._without_fixed(self._by_position(inputs)), arguments_of(self._manifest))
        if _profiler is None and "torch" in sys.modules:
            _seek_profiler()
        call = self._call
        if _profiler is not None and _profiler._is_profiler_enabled:  # pyright: ignore[reportPrivateUsage]
            call = self._observed
        try:
            return call(inputs, out)
        except ShapeConstraintError as error:
            raise self._with_reason(error) from error.__cause__
        except (InputRankError, InputTypeError) as error:
            tensors = self._without_fixed(self._by_position(self._caches.spread(inputs, {})[0]))
            if tensors is inputs:
                raise self._with_hint(error, inputs) from error.__cause__
        return self._explained(call, tensors, out)

    def _explained(self, call: Callable[[tuple[object, ...], object], object], inputs: tuple[object, ...], out: object) -> object:
        try:
            return call(inputs, out)
        except ShapeConstraintError as error:
            raise self._with_reason(error) from error.__cause__
        except (InputRankError, InputTypeError) as error:
            raise self._with_hint(error, inputs) from error.__cause__

    def _observed(self, inputs: tuple[object, ...], out: object) -> object:
        """A call under PyTorch's profiler."""
        with ranges([str(record.get("kernel", record["name"])) for record in self._manifest["kernels"]]):
            return self._call(inputs, out)

    def synchronize(self) -> None:
        """Waits until the GPUs have done what calls asked for. Raises what their kernels found: ShapeConstraintError, DeviceError."""
        for context in (self._context, *(context for context, _ in self._gpus.opened().values())):
            context.synchronize()

    def flat(self, *inputs: object) -> list[object]:
        """The results of a call one after the other, as `outputs` lists them. Raises as a call."""
        results = self._flat_call(inputs, None)
        return [results] if self._manifest["single"] else list(cast("tuple[object, ...]", results))

    def replace_inputs(self) -> list[int]:
        """From now on a result that may be computed in the memory of an input is, where this is PyTorch's, row-major and no other input's,
        and comes as that input itself; for callers who would copy it there. Such calls raise WrittenError where they fail later. Returns
        the numbers of these inputs."""
        replaced = [record.get("replaces", -1) for record in self._manifest["outputs"]]
        self._context.replaces = replaced if max(replaced, default=-1) >= 0 else []
        return [place for place in replaced if place >= 0]

    def batch(self, instances: Sequence[object]) -> list[object]:
        """The result of each instance, for a model over structures (`disc.batched`): all computed together.

        instances: mappings ({"word": 3}, {"left": {...}, "right": {...}}), or objects with such attributes. Results are NumPy arrays, or of
        the kind of `like`. Raises InputTypeError; CycleError, MissingFieldError, NodeIndexError, NodeKindError, TooManyNodesError;
        InstanceError where a model that decides by values fails for some.
        """
        from disc.ral.structured import StructuredProgram  # what runs structures is loaded with the first of them

        program = self._structured()
        results = program.batch(instances)
        if not isinstance(program, StructuredProgram):
            return results
        build = builder(self._manifest["structure"]) if "structure" in self._manifest else itemgetter(0)
        return [build(cast("Sequence[object]", each)) for each in results]

    @property
    def most_nodes(self) -> int:
        """How many nodes a call of a model over structures may have; more are a TooManyNodesError. May be set."""
        return self._structured().most_nodes

    @most_nodes.setter
    def most_nodes(self, count: int) -> None:
        self._structured().most_nodes = count

    def _structured(self) -> BlockPrograms:
        """Raises InputTypeError for a model of tensors."""
        from disc.ral.block_programs import BlockPrograms

        context = cast("object", self._context)
        if not isinstance(context, BlockPrograms):
            raise InputTypeError("this model takes tensors, not structures: call it with them")
        return context

    def _by_position(self, inputs: tuple[object, ...]) -> tuple[object, ...]:
        """The inputs of a call whose only argument is a mapping of them by name, or whose arguments hold them; others as they are."""
        if any(isinstance(each, Mapping | list | tuple) for each in inputs):
            spread = nested_inputs.spread(inputs, self._all_names())
            if spread is not None:
                return spread
        if len(inputs) != 1 or not isinstance(inputs[0], Mapping):
            return inputs
        wrong = [name for name in inputs[0] if not isinstance(name, str)]
        if wrong:
            raise InputTypeError(f"a mapping as the only argument has the inputs by name; {wrong[0]!r} is no name")
        return self._arrange((), dict(inputs[0]))

    def _all_names(self) -> list[str]:
        """Of the inputs, and of what was fixed at compile time, in the model's order."""
        names = list(self._names)
        for record in sorted(self._manifest.get("fixed", []), key=itemgetter("position")):
            names.insert(record["position"], record["name"])
        return names

    def _without_fixed(self, inputs: tuple[object, ...]) -> tuple[object, ...]:
        """The inputs without what was fixed at compile time, where this is a call that gives that, too; else the same object."""
        fixed = self._manifest.get("fixed", [])
        places = {record["position"] for record in fixed}
        if not fixed or len(inputs) != len(self._names) + len(fixed) or max(places) >= len(inputs):
            return inputs
        for record in fixed:
            _check_fixed(record, inputs[record["position"]])
        return tuple(value for place, value in enumerate(inputs) if place not in places)

    def _with_reason(self, error: ShapeConstraintError) -> ShapeConstraintError:
        """The error of a call; where it refuses another size than that which something fixed when it was compiled, it says what."""
        who = who_fixed(error, self._manifest.get("fixed_dims", ()))
        return error if who is None else ShapeConstraintError(f"{error} (fixed by {who})")

    def _with_hint(self, error: DiscError, inputs: tuple[object, ...]) -> DiscError:
        """The error of a call; where a dtype can be widened, the input is no dense tensor, or the program is for a server, it says how."""
        if "packed" in self._manifest and isinstance(error, InputRankError):
            return InputRankError(f"{error}; {PACKED}")
        tensors = widened(inputs, arguments_of(self._manifest))
        way = way_to_a_tensor(error, inputs)
        if way is not None:
            return InputTypeError(f"{error}; {way}")
        if not isinstance(error, InputTypeError) or all(new is old for new, old in zip(tensors, inputs, strict=True)):
            return error
        return InputTypeError(f"{error}; with cast=True the call widens it")

    def __dir__(self) -> list[str]:
        """What people call."""
        return sorted(set(super().__dir__()) - INNER)

    def _arrange(self, inputs: tuple[object, ...], named: dict[str, object]) -> tuple[object, ...]:
        """All inputs by position, and behind them the seed where one is given."""
        if self._hidden is not None and "seed" in named and "seed" not in self._names:
            seed = Seed(named["seed"])
            return (*self._arrange(inputs, {name: value for name, value in named.items() if name != "seed"}), seed)
        if any(isinstance(each, Mapping | list | tuple) for each in (*inputs, *named.values())):
            names = self._all_names()
            named = nested_inputs.spread_named(named, names)
            spread = dict(zip(names, nested_inputs.spread(inputs, names) or (), strict=False))
            if spread and not spread.keys() & named.keys():
                inputs, named = (), spread | named
        for record in self._manifest.get("fixed", []):
            if record["name"] in named:
                _check_fixed(record, named[record["name"]])
                named = {name: value for name, value in named.items() if name != record["name"]}
        inputs, named = self._caches.spread(inputs, named)
        expected = self._names[len(inputs) :]
        missing = [name for name in expected if name not in named]
        unknown = [name for name in named if name not in expected]
        if missing or unknown:
            what = [f"missing {', '.join(map(repr, missing))}"] if missing else []
            for kind, names in (("unknown", set(unknown) - set(self._names)), ("given twice", set(unknown) & set(self._names))):
                what += [f"{kind} {', '.join(repr(name) for name in unknown if name in names)}"] if names else []
            raise InputRankError(f"inputs by name: {'; '.join(what)}; the inputs are {', '.join(map(repr, self._names))}")
        return inputs + tuple(named[name] for name in expected)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the artifact in one step (temporary file, then rename)."""
        if self._parts is None:
            self._context.verify()
            artifact.write_bytes(path, self._context.file_view())
            return
        parts = self._parts
        artifact.write_artifact(path, parts.manifest, parts.code, parts.weights, parts.stablehlo, parts.targets)

    def contents(self) -> artifact.Contents:
        """What a file of it holds; for what is put into other files."""
        if self._parts is None:
            self._context.verify()
            return artifact.contents_of(self._context.file_view())
        parts = self._parts
        stored = artifact.stored_manifest(parts.manifest, parts.code, parts.weights, parts.targets)
        return artifact.Contents(stored, parts.code, parts.weights)

    def verify(self) -> None:
        """Waits for the check of a loaded file's weights. Raises ArtifactError."""
        self._context.verify()

    def remap(self, descriptor: int) -> None:
        """From now on the bytes of the loaded file are read from `descriptor`, a file of the same bytes that does not change; it may be
        closed. Calls may run meanwhile. Raises OutOfMemoryError; CompilerBug for another size."""
        self._context.verify()
        self._context.remap(descriptor)

    @property
    def context(self) -> _ral.Context:
        """The loaded program, for the other parts of the runtime."""
        return self._context

    @property
    def manifest(self) -> Manifest:
        """The manifest of the artifact (docs/artifact.md)."""
        return self._manifest

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Name, dtype and dims of each input, in the order of a call."""
        return tuple(Value(record["name"], record["dtype"], tuple(record["dims"])) for record in arguments_of(self._manifest))

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Name, dtype and dims of each result."""
        records = results_of(self._manifest)
        return tuple(Value(record["name"], record["dtype"], _sizes(record.get("dims", "?" * record["rank"]))) for record in records)

    @property
    def state(self) -> State:
        """The tensors that the model keeps from call to call, by name; most models have none. `state.reset()` brings back the first."""
        return self._hidden.state if self._hidden is not None else State([], [], ())

    def __reduce__(self) -> NoReturn:
        """Raises DiscError: it is neither pickled nor copied."""
        raise DiscError("an Executable is neither pickled nor copied: save() it to a file, and disc.load() that where it is needed")

    @property
    def isa(self) -> str:
        """The code section that runs on this CPU."""
        return self._context.isa()

    @property
    def threads(self) -> int:
        """Threads per call; may be set, None = the default. Raises DiscError for a number that is none of threads."""
        return self._context.threads

    @threads.setter
    def threads(self, count: int | None) -> None:
        self._context.threads = _threads(count)

    @property
    def graphs(self) -> int:
        """How many CUDA graphs are kept for each GPU; may be set. 0, the default: none.

        The second call with the same sizes is recorded; later ones are one launch of the graph, whose addresses of inputs and results are
        set before. A graph keeps the memory that its call needs besides. Calls that read sizes from the GPU are not recorded. What was
        recorded, replayed, given up for others (which waits for the GPU) and refused is counted in `stats()["graphs"]`. Raises DiscError
        for what is no such number.
        """
        return self._context.graphs

    @graphs.setter
    def graphs(self, most: int) -> None:
        check_graphs(most)
        self._context.graphs = most
        self._gpus.keep_graphs(most)

    @property
    def like(self) -> object:
        """A tensor whose kind the results of a call *without tensors* have (Python scalars only, or no input); None = NumPy. May be set."""
        return self._context.like

    @like.setter
    def like(self, tensor: object) -> None:
        self._context.like = tensor

    def force_schedule(self, number: int | None) -> None:
        """From now on every GEMM takes this one of the schedules that its kernel has, in the order of `explain`; None: the tree decides."""
        self._context.force_choice(-1 if number is None else number)

    def stats(self) -> dict[str, int | dict[str, int]]:
        """Counts since loading: compiles (how often this process called the code generator for it: 0 for what was loaded or came out of the
        cache), calls, copied_inputs, copied_bytes, arena_bytes (held), fetches and fetched_bytes (calls of a GPU waited to
        read sizes, or what a library function computes on the host), launches (kernels run), "kernels" (launches by kernel name),
        "counters" (by name: versions taken and the like) and "graphs" (calls as CUDA graphs: records, replays, evictions, refusals)."""
        programs = [(self._context, self._manifest), *self._gpus.opened().values()]
        launches = _summed(chain(*(zip(_kernel_names(about), own.kernels()[0], strict=True) for own, about in programs)))
        return {
            "compiles": self._compiles,
            **_summed(chain(*(own.stats().items() for own, _ in programs))),
            **_summed(chain(*(own.fetches().items() for own, _ in programs))),
            "launches": sum(launches.values()),
            "kernels": launches,
            "counters": _summed(chain(*(zip(about["counters"], own.counters(), strict=True) for own, about in programs))),
            "graphs": _summed(chain(*(own.graph_stats().items() for own, _ in programs))),
        }

    def profile(self, *inputs: object, **named: object) -> list[tuple[str, int, float]]:
        """Runs one call; returns (kernel name, launches, seconds) of the kernels it ran, in the order of the manifest. On a GPU the seconds
        are those between events around each launch.

        Calls that other threads make meanwhile are counted too.
        """
        found = self._profiled(inputs, named)
        return [(name, runs, seconds) for name, (runs, seconds) in zip(_kernel_names(found.manifest), found.kernels, strict=True) if runs]

    def trace(self, *inputs: object, **named: object) -> list[TraceEvent]:
        """Runs one call, after one to warm up; returns which thread did which tasks of which launch, and when. On CPUs.

        Calls that other threads make meanwhile are in it, too.
        """
        arranged = self._arrange(inputs, named)
        self(*arranged)
        self._context.take_trace()  # what an earlier trace left
        if self._profiled(arranged, {}, TRACE).gpu is not None:
            raise DiscError("the call ran on a GPU, of whose launches there is no trace: explain has their times")
        return sorted((TraceEvent(*event) for event in self._context.take_trace()), key=lambda event: event.start_ns)

    def explain(self, *inputs: object, **named: object) -> Explanation:
        """Per kernel: source ops and lines, versions, guards, the version that ran. With inputs, of a profiled call on them, with times
        (medians of up to 25 calls after one to warm up; of a single one where calls change the model's state) and the share of the
        machine's limit; without, of the calls since loading."""
        explainer = _explainer()
        if not inputs and not named and self._names:
            return explainer.explain(self)
        arranged = self._arrange(inputs, named)
        return explainer.explain_call(self, arranged, lambda: self._profiled(arranged, {}))

    def sweep(self, symbol: str, sizes: Sequence[int], /, *inputs: object, **named: object) -> Sweep:
        """How long a call takes at each size of one symbol ("S1", or "x.1" for dim 1 of input 'x'; "S0,S2": of several that have the same
        size), in seconds, and which versions of the kernels run there. The inputs are repeated or cut to each size; dims of other symbols
        keep theirs.

        Sizes that a call refuses are in the result with the reason. Raises ShapeConstraintError for a symbol that is not there, and where
        every size is refused.
        """
        return _explainer().sweep(self, symbol, sizes, self._arrange(inputs, named), lambda given: self._profiled(tuple(given), {}))

    def _profiled(self, inputs: tuple[object, ...], named: dict[str, object], how: int = TIMES) -> Profiled:
        """Runs one call. Where it is the first on a GPU, which opens the program there, another one."""
        arranged = self._arrange(inputs, named) if named else inputs
        for _ in range(2):
            watched = [_Watched(self._context, self._manifest, self._gpu if self.isa.startswith("cuda:") else None, how)]
            watched += [_Watched(context, about, number, how) for number, (context, about) in self._gpus.opened().items()]
            try:
                self(*arranged)
            finally:
                found = [each.stop() for each in watched]
            for each in found:
                if each is not None:
                    return each
        raise CompilerBug("a profiled call ran no program")


def _seek_profiler() -> None:
    global _profiler
    _profiler = find_profiler()


def _explainer() -> Explainer:
    if _find_explainer is None:
        raise DiscError("nothing is registered that explains executables: import disc")
    return _find_explainer()


class _Watched:
    """A program while it is profiled."""

    def __init__(self, context: _ral.Context, manifest: Manifest, gpu: int | None, how: int) -> None:
        self._context, self._manifest, self._gpu = context, manifest, gpu
        self._calls, self._kernels, self._counters = context.stats()["calls"], context.kernels(), context.counters()
        context.set_profile(how)

    def stop(self) -> Profiled | None:
        """What it did since; None where no call ran it."""
        self._context.set_profile(0)
        if self._context.stats()["calls"] == self._calls:
            return None
        times = zip(*self._kernels, *self._context.kernels(), strict=True)
        kernels = [(runs - runs0, (time - time0) * 1e-9) for runs0, time0, runs, time in times]
        counters = [now - before for before, now in zip(self._counters, self._context.counters(), strict=True)]
        return Profiled(self._manifest, self._context.isa(), self._gpu, kernels, counters)


@contextmanager
def _on_stream(handle: int) -> Iterator[None]:
    _ral.set_stream(handle)
    try:
        yield
    finally:
        _ral.set_stream(None)


@contextmanager
def stopping(when: Callable[[], bool]) -> Iterator[None]:
    """Calls that this thread makes within ask `when`, some 50 times a second as long as they run a loop whose end depends on data, and end
    with CancelledError when it says True."""
    _ral.set_stop(when)
    try:
        yield
    finally:
        _ral.set_stop(None)


def load(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    isa: str | None = None,
    key: str | os.PathLike[str] | bytes | None = None,
    graphs: int = 0,
) -> Executable:
    """Loads an artifact; neither torch nor MLIR is needed. `threads` and `isa` as in `Executable.from_parts`; graphs: how many CUDA graphs
    are kept (`Executable.graphs`).

    key: the ed25519 public key whose owner must have signed the file (a PEM file or 32 bytes), checked before any of its code is mapped;
    None = anyone may have made it. Weights are mapped, and checked in the background; the first call waits for that.

    Raises ArtifactError for a damaged file, one that is not signed or signed otherwise,
    and TargetError when this CPU lacks what the code needs.
    """
    digest = None
    if key is not None:
        from disc.artifact.signing import check_signature  # needs the package `cryptography`, which only signed artifacts do

        digest = check_signature(path, key)
    try:
        context = _ral.load_file(artifact.system_path(path), _threads(threads), isa, digest)
    except ArtifactError as error:
        if os.path.isdir(path):
            raise ArtifactError(f"'{artifact.shown_path(path)}': {artifact.FOLDER}") from error
        if hint := artifact.hint(path):
            raise ArtifactError(f"{error}{hint}") from None
        raise
    except TargetError:
        from disc.ral.block_files import has_blocks, load_blocks

        if not has_blocks(artifact.read_manifest(path)):
            raise
        program, manifest = load_blocks(path, _threads(threads), isa, digest)
        return Executable(cast("_ral.Context", program), manifest, None, 0, NONE)
    view = context.file_view()
    try:
        manifest = artifact.parse_manifest(artifact.text_sections(view), context.isa())
    except ArtifactError as error:
        raise ArtifactError(f"'{artifact.shown_path(path)}': {error}") from None
    gpus = programs_in(view, _threads(threads))
    first = artifact.stored_first_values(view) if "state" in manifest else None
    loaded = Executable(context, manifest, None, 0, gpus, first, gpu_number(isa))
    loaded.graphs = graphs
    return loaded


def describe(path: str | os.PathLike[str], isa: str | None = None, reason: str = "it was opened to be read, not to be run") -> Executable:
    """The program of a file without loading its code: it can be read, explained and saved, and a call raises TargetError for this reason.
    isa: the code section that is described; None: the best. Raises ArtifactError for a damaged file, and for one without such code."""
    manifest, view = artifact.read_manifest(path, isa), artifact.file_view(path)
    chosen = isa or manifest.get("code", [""])[-1]
    stand_in = Elsewhere(manifest, chosen, reason, 0, view, lambda: artifact.verify(path))
    first = artifact.stored_first_values(view) if "state" in manifest else None
    return Executable(cast("_ral.Context", stand_in), manifest, None, 0, NONE, first)


def _structured(call: Callable[[tuple[object, ...], object], object], structure: object) -> Callable[[tuple[object, ...], object], object]:
    """The call with its results within the model's value."""
    build = builder(structure)

    def run(inputs: tuple[object, ...], out: object) -> object:
        results = call(inputs, out)
        return build(cast("tuple[object, ...]", results)) if out is None else results

    return run


def called_by_position(executable: Executable, inputs: Sequence[object]) -> object:
    """A call with the program's inputs by position, for code of ours that calls often: no profiler sees its kernels. Raises as a call."""
    return executable._explained(executable._call, tuple(inputs), None)


def _check_fixed(record: FixedRecord, value: object) -> None:
    """Raises InputTypeError where the value is another one than at compile time."""
    name, fixed = record["name"], record["value"]
    given = repr(value) if isinstance(value, bool | int | float | str | None) else f"a {type(value).__name__}"
    if given != fixed:
        raise InputTypeError(f"{name} was fixed to {fixed} when the model was compiled, got {given}: compile it again for another value")


def _threads(threads: int | None) -> int:
    """The runtime's number: 0 = all cores it may use. Raises DiscError."""
    check_threads(threads)
    return threads or threads_of_environment() or 0


def _kernel_names(manifest: Manifest) -> list[str]:
    return [str(record["name"]) for record in manifest["kernels"]]


def _summed(values: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Values by name; equal names are added up."""
    total: dict[str, int] = {}
    for name, value in values:
        total[name] = total.get(name, 0) + value
    return total
