"""A program whose code this machine cannot run: for a GPU that it lacks, or for a larger CPU. It can be read, explained and saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from disc.artifact.manifest import Manifest
from disc.errors import TargetError


class Elsewhere:
    """Stands in place of the loaded program (`_ral.Context`): nothing has been counted, and a call raises TargetError.

    isa: the code section that is described; reason: why it does not run here. view: the file, where it is one; verify: checks it.
    """

    single = False
    like: object = None
    open_gpu: object = None
    kept: int = 0
    graphs: int = 0
    written: Sequence[int] = ()
    replaces: Sequence[int] = ()

    def __init__(
        self,
        manifest: Manifest,
        isa: str,
        reason: str,
        threads: int,
        view: memoryview | None = None,
        verify: Callable[[], None] = lambda: None,
    ) -> None:
        self._kernels, self._counters = len(manifest["kernels"]), len(manifest["counters"])
        self._isa, self._reason, self._view = isa, reason, view
        self.threads = threads
        self.verify = verify

    def synchronize(self) -> None:
        """Nothing runs."""

    def isa(self) -> str:
        return self._isa

    def file_view(self) -> memoryview:
        """The file's bytes."""
        assert self._view is not None
        return self._view

    def stats(self) -> dict[str, int]:
        return dict.fromkeys(("calls", "copied_inputs", "copied_bytes", "arena_bytes"), 0)

    def fetches(self) -> dict[str, int]:
        return dict.fromkeys(("fetches", "fetched_bytes"), 0)

    def graph_stats(self) -> dict[str, int]:
        return dict.fromkeys(("records", "replays", "evictions", "refusals"), 0)

    def counters(self) -> list[int]:
        return [0] * self._counters

    def kernels(self) -> tuple[list[int], list[int]]:
        return [0] * self._kernels, [0] * self._kernels

    def call(self, inputs: tuple[object, ...], out: object) -> NoReturn:
        raise TargetError(self._reason)

    def call_keeping(self, inputs: tuple[object, ...]) -> NoReturn:
        raise TargetError(self._reason)

    def set_profile(self, on: int) -> None:
        """Nothing runs."""

    def take_trace(self) -> list[list[int]]:
        return []

    def handle(self) -> NoReturn:
        raise TargetError(self._reason)

    def remap(self, descriptor: int) -> NoReturn:
        raise TargetError(self._reason)

    def force_choice(self, number: int) -> NoReturn:
        raise TargetError(self._reason)
