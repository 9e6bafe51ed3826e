"""`disc.lazy`: what PyTorch code computes is recorded, and runs compiled once it has come before."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from disc.errors import DiscError
from disc.frontend.dynamo import checked_settings
from disc.frontend.lazy.recorder import Recorder
from disc.frontend.lazy.statistics import LazyStatistics
from disc.frontend.lazy.tensors import LazyTensor


class _Thread(threading.local):
    """recorders: by their options; active: the one that records, or None."""

    def __init__(self) -> None:
        self.recorders: dict[tuple[tuple[str, object], ...], Recorder] = {}
        self.active: Recorder | None = None
        self.statistics = LazyStatistics()


class Lazy:
    """Records PyTorch code of the thread, without export or decorator: operators, `backward()` and optimizers.

        with disc.lazy():
            for x, y in batches:
                loss = loss_of(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    What has been recorded is computed when a value is read (`item`, `print`, `numpy`, a branch), at `flush()`, and at the end. A
    sequence of calls that comes a second time is compiled, for all sizes; calls that disc lacks, and those whose sizes depend on data,
    are PyTorch's. Memory that others than PyTorch write too (an array of NumPy) must not be written while what reads it is pending:
    `flush()` before that.

    options: those of `torch.compile(backend="disc", options=...)`.
    """

    @contextmanager
    def __call__(self, **options: object) -> Iterator[None]:
        """Records within. Raises: DiscError for options that are not there."""
        if _thread.active is not None:
            yield
            return
        self.enable(**options)
        try:
            yield
        finally:
            self.disable()

    def enable(self, **options: object) -> None:
        """From now on, in this thread. Raises: DiscError for options that are not there, or if it is on already."""
        if _thread.active is not None:
            raise DiscError("disc.lazy.enable: it is on already in this thread")
        key = tuple(sorted(options.items()))
        recorder = _thread.recorders.get(key)
        if recorder is None:
            settings = checked_settings(options)
            settings = dataclasses.replace(settings, targets=settings.targets or ("native",))
            recorder = _thread.recorders[key] = Recorder(settings, _thread.statistics)
        _take_optimizers()
        _take_functions()
        _take_groups()
        recorder.__enter__()
        recorder.active, _thread.active = True, recorder

    def disable(self) -> None:
        """Computes what has been recorded, and records no more."""
        recorder, _thread.active = _thread.active, None
        if recorder is not None:
            recorder.__exit__(None, None, None)
            recorder.active = False
            recorder.settle()

    def flush(self) -> None:
        """Computes what has been recorded in this thread."""
        if _thread.active is not None:
            _thread.active.settle()

    def stats(self) -> LazyStatistics:
        """The live counters of this thread."""
        return _thread.statistics


_thread = _Thread()
lazy = Lazy()


# --- optimizers: numbers of their own that change in every step are tensors, as under torch.compile ------------------------------------


def _take_optimizers() -> None:
    """Optimizers that count their steps read the counts as Python numbers, unless they are told that a compiler is looking."""
    pending = list(torch.optim.Optimizer.__subclasses__())
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        step = vars(kind).get("step")
        if callable(step) and not getattr(step, "taken_by_disc", False):
            kind.step = _taken(step)  # pyright: ignore[reportAttributeAccessIssue]


def _taken(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def taken(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        counting = [group for group in optimizer.param_groups if group.get("capturable") is False]
        if _thread.active is None or not counting:
            return step(optimizer, *args, **kwargs)
        for group in counting:
            group["capturable"] = True
        kept, torch.compiler._is_compiling_flag = torch.compiler._is_compiling_flag, True
        try:
            return step(optimizer, *args, **kwargs)
        finally:
            torch.compiler._is_compiling_flag = kept
            for group in counting:
                group["capturable"] = False

    taken.taken_by_disc = True  # pyright: ignore[reportFunctionMemberAccess]
    return taken


def _take_functions() -> None:
    """Functions with a backward of their own run Python code: on tensors, and at once."""
    original: Any = vars(torch.autograd.Function)["apply"].__func__
    if getattr(original, "taken_by_disc", False):
        return

    @functools.wraps(original)
    def apply(kind: type, *args: Any, **kwargs: Any) -> Any:
        if _thread.active is None:
            return original(kind, *args, **kwargs)
        return _thread.active.run_now(functools.partial(original, kind), args, kwargs)

    apply.taken_by_disc = True  # pyright: ignore[reportFunctionMemberAccess]
    torch.autograd.Function.apply = classmethod(apply)  # pyright: ignore[reportAttributeAccessIssue]


def _take_groups() -> None:
    """Gradients are clipped in groups of one device and dtype, which native code makes of tensors alone."""
    original: Any = torch._C._group_tensors_by_device_and_dtype
    if getattr(original, "taken_by_disc", False):
        return

    @functools.wraps(original)
    def group(tensors: list[list[Any]], with_indices: bool = False) -> dict[Any, Any]:
        if not any(type(each) is LazyTensor for row in tensors for each in row):
            return original(tensors, with_indices)
        found: dict[Any, Any] = {}
        for number, first in enumerate(tensors[0]):
            rows, numbers = found.setdefault((first.device, first.dtype), ([[] for _ in tensors], []))
            for row, mine in zip(rows, tensors, strict=True):
                row.append(mine[number])
            numbers.append(number)
        return found

    group.taken_by_disc = True  # pyright: ignore[reportFunctionMemberAccess]
    torch._C._group_tensors_by_device_and_dtype = group
