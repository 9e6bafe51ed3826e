"""Models that are several programs: what stands in place of one loaded program (`_ral.Context`)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from itertools import chain
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from disc.errors import DeviceError, InputRankError, InputTypeError, TargetError
from disc.ral.gpu_programs import Program

Array = npt.NDArray[np.generic]
MOST_NODES = 1 << 24


class BlockPrograms:
    """The programs of a model's blocks; what calls them derives from it."""

    like: object = None
    open_gpu: object = None
    kept: int = 0
    graphs: int = 0
    written: Sequence[int] = ()
    replaces: Sequence[int] = ()
    single = False

    def __init__(self, programs: Sequence[Program], isa: str, view: memoryview) -> None:
        self.most_nodes = MOST_NODES
        self._view, self._isa = view, isa
        self._contexts = [context for context, _ in programs]
        self._lock = threading.Lock()
        self._calls = self._copied = self._copied_bytes = 0

    def call(self, inputs: tuple[object, ...], out: object) -> object:
        """As of `_ral.Context`."""
        raise NotImplementedError

    def batch(self, instances: Sequence[object]) -> list[object]:
        """The result of each instance."""
        raise NotImplementedError

    def table_bytes(self) -> int:
        """Of the tables that are kept from call to call."""
        raise NotImplementedError

    def contiguous(self, array: Array) -> Array:
        """The array row-major; a copy is counted."""
        if array.flags.c_contiguous:
            return array
        array = np.ascontiguousarray(array)
        with self._lock:
            self._copied, self._copied_bytes = self._copied + 1, self._copied_bytes + array.nbytes
        return array

    def like_given(self, array: Array, given: object) -> object:
        """A tensor of PyTorch where the caller has given some; else the array."""
        model = given if given is not None else self.like
        torch = sys.modules.get("torch")
        return torch.from_numpy(array) if torch is not None and isinstance(model, torch.Tensor) else array

    # --- what `_ral.Context` has besides ----------------------------------------------------------------------------------------

    @property
    def threads(self) -> int:
        return self._contexts[0].threads

    @threads.setter
    def threads(self, count: int) -> None:
        for each in self._contexts:
            each.threads = count

    def isa(self) -> str:
        return self._isa

    def file_view(self) -> memoryview:
        """The file's bytes."""
        return self._view

    def verify(self) -> None:
        """All was checked when it was loaded."""

    def remap(self, descriptor: int) -> None:
        """What it reads is memory of its own."""

    def synchronize(self) -> None:
        """Nothing runs on a GPU."""

    def stats(self) -> dict[str, int]:
        """As of `_ral.Context`; calls: of the whole."""
        blocks = [each.stats() for each in self._contexts]
        return {
            "calls": self._calls,
            "copied_inputs": self._copied,
            "copied_bytes": self._copied_bytes,
            "arena_bytes": self.table_bytes() + sum(each["arena_bytes"] for each in blocks),
        }

    def fetches(self) -> dict[str, int]:
        """None: all runs on the CPU."""
        return dict.fromkeys(("fetches", "fetched_bytes"), 0)

    def graph_stats(self) -> dict[str, int]:
        """None: all runs on the CPU."""
        return {}

    def counters(self) -> list[int]:
        return list(chain.from_iterable(each.counters() for each in self._contexts))

    def kernels(self) -> tuple[list[int], list[int]]:
        found = [each.kernels() for each in self._contexts]
        return [each for launches, _ in found for each in launches], [each for _, times in found for each in times]

    def set_profile(self, on: int) -> None:
        for each in self._contexts:
            each.set_profile(on)

    def take_trace(self) -> list[list[int]]:
        """As of `_ral.Context`, kernels numbered through all blocks."""
        found: list[list[int]] = []
        first = 0
        for each in self._contexts:
            found += [[event[0] + first, *event[1:]] for event in each.take_trace()]
            first += len(each.kernels()[0])
        return found

    def force_choice(self, number: int) -> None:
        for each in self._contexts:
            each.force_choice(number)

    def handle(self) -> NoReturn:
        raise TargetError("a model over structures is several programs, and none for ral.h")


def as_array(name: str, given: object) -> Array:
    """Raises InputTypeError, DeviceError."""
    if isinstance(given, np.ndarray):
        return cast("Array", given)
    device = getattr(given, "device", None)
    if str(device or "cpu").partition(":")[0].lower() not in ("cpu", "cpudevice") and hasattr(given, "__dlpack__"):
        raise DeviceError(f"input '{name}' lies on {device}: structures are read by the CPU")
    try:
        return np.from_dlpack(cast("Any", given)) if hasattr(given, "__dlpack__") else np.asarray(memoryview(cast("Any", given)))
    except (TypeError, BufferError, ValueError, RuntimeError) as error:
        raise InputTypeError(f"input '{name}' is no tensor but a {type(given).__name__}") from error


def given_out(out: object, count: int) -> list[Array]:
    """The arrays that results go to. Raises InputRankError."""
    buffers = out if isinstance(out, tuple | list) else (out,)
    if len(buffers) != count:
        raise InputRankError(f"out has {len(buffers)} buffers for {count} results")
    return [as_array(f"out[{place}]", each) for place, each in enumerate(buffers)]
