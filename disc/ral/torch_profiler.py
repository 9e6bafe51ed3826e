"""Ranges of calls and of their kernels for PyTorch's profiler. Nothing here imports PyTorch: who profiles has done so.

The profiler takes no events of the past, so its ranges are entered and left around each launch, by the thread of the call. On a GPU that is
the request: the profiler's own record of what ran there names the range that asked for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

from disc.ral import _ral

CALL = "disc.Executable"  # the range of a call


class _Range(Protocol):
    def __enter__(self) -> object: ...
    def __exit__(self, *error: object) -> object: ...


class Profiler(Protocol):
    """The module torch.autograd.profiler, as far as it is asked here."""

    _is_profiler_enabled: bool


def find_profiler() -> Profiler | None:
    """PyTorch's, where PyTorch is imported and as its ranges are known."""
    found = sys.modules.get("torch.autograd.profiler")
    return cast("Profiler", found) if hasattr(found, "_is_profiler_enabled") and _range_type() is not None else None


def _range_type() -> Callable[[str], _Range] | None:
    """The ranges that PyTorch's own compiled code enters: those of `record_function` take longer than most kernels."""
    return getattr(sys.modules.get("torch._C._profiler"), "_RecordFunctionFast", None)


@contextmanager
def ranges(kernels: Sequence[str]) -> Iterator[None]:
    """The body is a range, and each launch of a call in it is one within. kernels: what the launches are called by their numbers; those of
    other programs have the names that the runtime knows. Only where `find_profiler` finds one."""
    range_type = _range_type()
    assert range_type is not None
    opened: list[_Range] = []

    def observe(name: str | None, number: int) -> None:
        if name is not None:
            own = number < len(kernels) and kernels[number].startswith(name)
            opened.append(range_type(kernels[number] if own else name))
            opened[-1].__enter__()
        elif opened:  # else a signal came when it should have been entered
            opened.pop().__exit__(None, None, None)

    with range_type(CALL):
        before = _ral.set_observer(observe)
        try:
            yield
        finally:
            _ral.set_observer(before)
