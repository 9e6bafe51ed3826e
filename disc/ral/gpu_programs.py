"""The programs that a file has for GPUs: each is loaded when tensors on its GPU come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from disc.artifact import file as artifact
from disc.artifact.manifest import Manifest, StoredManifest
from disc.errors import CompilerBug, InputTypeError, TargetError, printable
from disc.ral import _ral

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Program = tuple[_ral.Context, Manifest]


class GpuPrograms:
    """What `_ral.Context.open_gpu` calls. It refers to no context that refers to it."""

    def __init__(self, has_code: bool, open_program: Callable[[str], Program]) -> None:
        """has_code: whether there is any for GPUs. open_program: the program for a device ("cuda@1" is the second GPU)."""
        self.has_code = has_code
        self._open = open_program
        self._lock = threading.Lock()
        self._opened: dict[int, Program] = {}
        self._graphs = 0

    def __call__(self, gpu: int) -> _ral.Context:
        """The program on a GPU. Raises TargetError and what loading raises."""
        with self._lock:
            if gpu not in self._opened:
                self._opened[gpu] = self._open(f"cuda@{gpu}")
                self._opened[gpu][0].graphs = self._graphs
            return self._opened[gpu][0]

    def keep_graphs(self, most: int) -> None:
        """How many CUDA graphs each program keeps, now and when it is opened later."""
        with self._lock:
            self._graphs = most
            for context, _ in self._opened.values():
                context.graphs = most

    def opened(self) -> dict[int, Program]:
        """Those that calls needed so far, by the number of the GPU."""
        with self._lock:
            return dict(self._opened)


def _no_program(_: str) -> Program:
    raise CompilerBug("a program without code for GPUs is opened on one")


NONE = GpuPrograms(False, _no_program)


def from_sections(
    stored: StoredManifest, code: Mapping[str, bytes | memoryview], weights: Callable[[int], object], threads: int, wanted: str | None
) -> Program:
    """Loads a program from memory. weights: the buffer of a weight by its number. wanted: as `isa` of `disc.load`."""
    chosen = _ral.choose_code(stored["code"], wanted)
    described = artifact.manifest_for(stored, chosen)
    context = _ral.load_memory(
        artifact.manifest_bytes(stored),
        artifact.signature_bytes(described),
        [(chosen, bytes(code[chosen]))],
        [weights(number) for number in stored["targets"][chosen]["weights"]],
        threads,
        chosen + (wanted or "")[len((wanted or "").partition("@")[0]) :],
    )
    context.single = described["single"]
    return context, described


def programs_of(
    stored: StoredManifest, code: Mapping[str, bytes | memoryview], weights: Sequence[npt.NDArray[np.generic]], threads: int
) -> GpuPrograms:
    """Of a program in memory."""
    return GpuPrograms(_for_gpus(stored), lambda wanted: from_sections(stored, code, lambda number: weights[number], threads, wanted))


def programs_in(file: memoryview, threads: int) -> GpuPrograms:
    """Of a whole file that the runtime has mapped and checked; nothing of it is read before a GPU's tensors come."""

    def open_program(wanted: str) -> Program:
        stored = cast("StoredManifest", artifact.stored_manifests(artifact.text_sections(file))[0])
        sections = artifact.sections(file)

        def weight(number: int) -> memoryview:
            record = stored["weights"][number]
            return sections["weights"][record["offset"] : record["offset"] + record["size"]]

        code = {name.removeprefix("code/"): bytes_ for name, bytes_ in sections.items() if name.startswith("code/")}
        return from_sections(stored, code, weight, threads, wanted)

    return GpuPrograms(any(name.startswith("code/cuda:") for name in artifact.sections(file)), open_program)


def _for_gpus(stored: StoredManifest) -> bool:
    return any(name.startswith("cuda:") for name in stored["code"])


def device_code(device: str | None) -> str | None:
    """What `disc.load` takes as `isa` for a device as users write it ("cpu", "cuda", "cuda:1"). Raises TargetError for another name."""
    if device is None:
        return None
    name, colon, number = device.partition(":")
    if name not in ("cpu", "cuda") or (colon and (name == "cpu" or not number.isdecimal())):
        raise TargetError(f"device {printable(device)}: there are cpu, cuda, and cuda:N for one of several GPUs")
    return f"{name}@{number or 0}"


def gpu_number(wanted: str | None) -> int:
    """Of an `isa` as `disc.load` takes it: "cuda@1" is the second GPU."""
    _, _, number = (wanted or "").partition("@")
    return int(number or 0)


def stream_handle(stream: object) -> int:
    """The driver's handle of a stream: an int, or a framework's object that has one (torch.cuda.Stream, `__cuda_stream__`).

    Raises InputTypeError.
    """
    protocol = getattr(stream, "__cuda_stream__", None)
    found = cast("tuple[int, int]", protocol())[1] if callable(protocol) else getattr(stream, "cuda_stream", stream)
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise InputTypeError(f"stream={stream!r}: give the handle of a CUDA stream, or an object that has one")
    return found
