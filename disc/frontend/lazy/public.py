"""`disc.lazy`: what PyTorch code computes is recorded, and runs compiled once it has come before."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from disc.errors import DiscError
from disc.frontend.backend_settings import checked_settings
from disc.frontend.lazy.recorder import Recorder
from disc.frontend.lazy.statistics import LazyStatistics
from disc.frontend.lazy.taken_over import take_over
from disc.frontend.lazy.tensors import become_plain
from disc.ral._ral import set_following


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

    What has been recorded is computed when a value is read (`item`, `print`, `numpy`, a branch), at `flush()`, behind an optimizer's
    step, and at the end. A sequence of calls that comes a second time is compiled, for all sizes; calls that disc lacks, and those whose
    sizes depend on data, are PyTorch's. Memory that others than PyTorch write too (an array of NumPy) must not be written while what reads
    it is pending: `flush()` before that. Gradients of a value that another one has been computed of in the same program can be asked for
    within; behind the end, as of the results of a compiled function, only where `flush()` has come between both.

    options: those of `torch.compile(backend="disc", options=...)`.
    """

    def __call__(self, function: object = None, /, **options: object) -> Any:
        """What records within; or, as a decorator, the function that does. Raises: DiscError for options that are not there."""
        within = self._within(**options)
        if function is None:
            return within
        if not callable(function):
            raise DiscError("disc.lazy takes options by name: with disc.lazy(threads=2): ..., or stands over a function as @disc.lazy")
        return within(function)

    @contextmanager
    def _within(self, **options: object) -> Iterator[None]:
        if _thread.active is not None:
            yield
            return
        gradients = torch.is_grad_enabled()  # inference tensors do not tell what is written: none are made here
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext(), torch.set_grad_enabled(gradients):
            self.enable(**options)
            try:
                yield
            finally:
                self.disable()

    def enable(self, **options: object) -> None:
        """From now on, in this thread. Raises: DiscError for options that are not there, or if it is on already."""
        if _thread.active is not None:
            raise DiscError("disc.lazy.enable: it is on already in this thread")
        if torch.is_inference_mode_enabled():
            raise DiscError("disc.lazy.enable: in inference mode, use `with disc.lazy():`, or torch.no_grad()")
        key = tuple(sorted((name, tuple(value) if isinstance(value, list) else value) for name, value in options.items()))
        recorder = _thread.recorders.get(key)
        if recorder is None:
            settings = checked_settings(options)
            settings = dataclasses.replace(settings, targets=settings.targets or ("native",))
            recorder = _thread.recorders[key] = Recorder(settings, _thread.statistics)
        with _recording:
            take_over(lambda: _thread.active)
        if not recorder.follower.stopped:
            recorder.join()
        _thread.active = recorder
        recorder.look_around()
        set_following(recorder.follower)

    def disable(self) -> None:
        """Computes what has been recorded, and records no more. Lazy tensors become PyTorch's own, as the same objects."""
        recorder, _thread.active = _thread.active, None
        if recorder is not None:
            set_following(None)
            if recorder.entered:
                recorder.leave()
            recorder.follower.active = False
            try:
                recorder.settle()
            finally:
                for each in recorder.follower.outliving():
                    become_plain(each)
                _thread.statistics.follow(recorder.follower)

    def flush(self) -> None:
        """Computes what has been recorded in this thread."""
        if _thread.active is not None:
            _thread.active.settle()

    def stats(self) -> LazyStatistics:
        """The live counters of this thread, up to now."""
        if _thread.active is not None:
            _thread.statistics.follow(_thread.active.follower)
        return _thread.statistics


def recorded(function: Callable[..., Any], options: Mapping[str, object]) -> Callable[..., Any]:
    """The function, what it calls being recorded and computed when it ends: then all that it leaves, wherever that is, is PyTorch's own
    tensors, unless what calls it is recorded itself."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with lazy(**options):
            return function(*args, **kwargs)

    return call


_thread = _Thread()
_recording = threading.Lock()
lazy = Lazy()
