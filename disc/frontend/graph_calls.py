"""Programs as PyTorch calls compiled graphs: inputs by position, results that lie where the graph's would, PyTorch where one refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch.autograd import profiler

from disc.errors import CustomOpError, DiscError, WrittenError
from disc.frontend.backend_counts import statistics, warn_once
from disc.frontend.backend_settings import Settings
from disc.frontend.graph_parts import Executable
from disc.frontend.kept_programs import kept_graph
from disc.frontend.kept_traces import EagerGraph, Record
from disc.frontend.openmp import parallel_regions
from disc.frontend.output_views import Assembly, Turn
from disc.ral._ral import Context
from disc.ral.executable import Executable as NativeExecutable
from disc.ral.executable import called_by_position

if TYPE_CHECKING:
    from disc.frontend.imported import Imported

Compiler = Callable[["Imported"], Executable]
_compiler: Compiler | None = None


def set_compiler(compiler: Compiler | None) -> None:
    """How an `Imported` becomes callable: `compiler(imported)(inputs)` → results. None: the public compile for the tensors' device."""
    global _compiler
    _compiler = compiler


def own_compiler() -> Compiler | None:
    """What was set."""
    return _compiler


def or_eager(run: Executable, eager: EagerGraph, settings: Settings, place: str) -> Executable:
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
            statistics().refused_calls[type(error).__name__] += 1
            warn_once(f"disc: compiled code ({place}) refused a call, which ran in PyTorch: {type(error).__name__}: {error}")
            return results
        raise own

    guarded.plain = plain_executable(run)  # pyright: ignore[reportFunctionMemberAccess]
    return guarded


def kept_program(record: Record, settings: Settings) -> Executable | None:
    """What a record is, run; None where the compile cache does not have its program any more."""
    if record.entry is None:
        run = around(nothing, record.turn, record.assemble, {})
    else:
        executable = kept_graph(record.entry, settings.options, settings.targets)
        if executable is None:
            return None
        run = called_program(executable, record.single, f"disc: {record.place}", record.turn)
        run = around(run, record.turn, record.assemble, record.numbers)
    return or_eager(run, record.eager, settings, record.place)


def plain_executable(program: Executable) -> NativeExecutable | None:
    """What calls the program may have run instead, on the same inputs by position: where it does nothing else, unless that fails."""
    return getattr(program, "plain", None)


def around(
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


def nothing(inputs: list[object]) -> Sequence[object]:
    return []


def called_program(executable: NativeExecutable, single: bool, label: str, turn: Turn | None) -> Executable:
    """single: it returns one tensor; label: of the range that a profiler of PyTorch shows for each call; turn: what makes its inputs of
    others. Whoever calls it copies results into inputs that these may replace, and has no use for inputs that are spoiled."""
    written = executable.replace_inputs()
    spoiled = [place for place, record in enumerate(executable.manifest["inputs"]) if record.get("spoiled")]
    executable.like = torch.empty(0)  # a graph of sizes alone takes no tensor
    alone = _holders([torch.empty(1, device="cpu")], 0)
    if isinstance(executable.context, Context):
        executable.context.share_memory()  # as a rule a call of one graph begins when that of another has ended
        if regions := parallel_regions():
            executable.context.use_team(*regions)
    state = executable.manifest.get("state")
    seeded = state is not None and state["seeded"]

    def run(inputs: list[object]) -> Sequence[object]:
        if written:
            _check_writable(cast("torch.Tensor", inputs[place]) for place in written)
        if spoiled:
            return spoiling(_donated(inputs, spoiled, alone, lists=1 if turn is None else 2), inputs)
        return called(inputs)

    def spoiling(given: list[object], inputs: list[object]) -> Sequence[object]:
        try:
            return called(given)
        except WrittenError as error:
            if all(given[place] is not inputs[place] for place in spoiled):  # copies
                raise DiscError(str(error)) from error
            raise

    def called(inputs: list[object]) -> Sequence[object]:
        if seeded or profiler._is_profiler_enabled:  # pyright: ignore[reportPrivateUsage]
            with profiler.record_function(label):
                results = executable(*inputs, seed=_drawn_seed()) if seeded else executable(*inputs)
        else:
            results = called_by_position(executable, inputs)
        return [results] if single else cast("Sequence[object]", results)

    run.writes = bool(written or spoiled)  # pyright: ignore[reportFunctionMemberAccess]
    plain = state is None and not spoiled and isinstance(executable.context, Context)
    run.plain = executable if plain else None  # pyright: ignore[reportFunctionMemberAccess]
    return run


def _holders(tensors: list[object], place: int) -> tuple[int, int, int, int]:
    """How many hold a tensor: its object, what that stands for, its storage's object, the memory. What asks counts, too."""
    references = sys.getrefcount(tensors[place])
    tensor = cast("torch.Tensor", tensors[place])
    storage = tensor.untyped_storage()  # one object for all who ask
    return (
        references,
        tensor._use_count(),  # pyright: ignore[reportAttributeAccessIssue]
        sys.getrefcount(storage),
        torch._C._storage_Use_Count(storage._cdata),  # pyright: ignore[reportAttributeAccessIssue]
    )


def _donated(inputs: list[object], spoiled: Sequence[int], alone: tuple[int, int, int, int], lists: int) -> list[object]:
    """The inputs with copies of those, of the numbers `spoiled`, that somebody else holds, or whose memory (a graph that is retained does,
    and a hook may), or that do not lie row by row. alone: of a tensor that is in one list; lists: in how many of ours each input is."""
    copies: dict[int, object] = {}
    for place in spoiled:
        references, *others = _holders(inputs, place)
        tensor = cast("torch.Tensor", inputs[place])
        if (references - lists + 1, *others) != alone or not tensor.is_contiguous():
            copies[place] = tensor.clone(memory_format=torch.contiguous_format)
    return [copies.get(place, each) for place, each in enumerate(inputs)] if copies else inputs


def _check_writable(tensors: Iterable[torch.Tensor]) -> None:
    """Raises PyTorch's error where it would not let one be written: the program does not ask it."""
    if not torch.is_inference_mode_enabled():
        for each in tensors:
            if each.is_inference():
                each.as_strided((0,), (1,)).zero_()


def _drawn_seed() -> int:
    """A seed from PyTorch's generator, which goes on by one number per call: `torch.manual_seed` repeats what follows it."""
    limits = torch.iinfo(torch.int64)
    return int(torch.randint(limits.min, limits.max, (), dtype=torch.int64))
