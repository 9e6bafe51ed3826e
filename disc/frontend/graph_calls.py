"""Calls of the program of a graph as PyTorch makes them: on its threads, with its random numbers, and over inputs that a call may spoil
only where nobody else holds them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch.autograd import profiler

from disc.errors import DiscError, WrittenError
from disc.frontend.graph_parts import Executable
from disc.frontend.openmp import parallel_regions
from disc.frontend.output_views import Turn
from disc.ral._ral import Context
from disc.ral.executable import Executable as NativeExecutable
from disc.ral.executable import called_by_position


def called_as_graph(executable: NativeExecutable, single: bool, label: str, turn: Turn | None) -> Executable:
    """The program of a graph as PyTorch calls that. single: it returns one tensor; label: of the range that a profiler of PyTorch shows for
    each call; turn: what makes its inputs of others. Whoever calls it copies results into inputs that these may replace,
    and has no use for inputs that are spoiled."""
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
