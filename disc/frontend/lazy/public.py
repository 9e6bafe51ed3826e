"""`disc.lazy`: what PyTorch code computes is recorded, and runs compiled once it has come before."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from operator import is_
from typing import Any

import torch
from torch.utils import _pytree as pytree

from disc.errors import DiscError
from disc.frontend.dynamo import checked_settings
from disc.frontend.lazy.recorder import Recorder
from disc.frontend.lazy.statistics import LazyStatistics
from disc.frontend.lazy.taken_over import give_back, take_over
from disc.frontend.lazy.tensors import LazyTensor, real
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

    What has been recorded is computed when a value is read (`item`, `print`, `numpy`, a branch), at `flush()`, and at the end. A
    sequence of calls that comes a second time is compiled, for all sizes; calls that disc lacks, and those whose sizes depend on data,
    are PyTorch's. Memory that others than PyTorch write too (an array of NumPy) must not be written while what reads it is pending:
    `flush()` before that.

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
            _threads[threading.get_ident()] = recorder
            take_over(lambda: _thread.active)
        if not recorder.follower.stopped:
            recorder.__enter__()
            recorder.entered = True
        _thread.active = recorder
        recorder.look_around()
        set_following(recorder.follower)

    def disable(self) -> None:
        """Computes what has been recorded, and records no more."""
        recorder, _thread.active = _thread.active, None
        if recorder is not None:
            set_following(None)
            if recorder.entered:
                recorder.__exit__(None, None, None)
                recorder.entered = False
            recorder.follower.active = False
            try:
                recorder.settle()
            finally:
                _thread.statistics.follow(recorder.follower)
                with _recording:
                    _threads.pop(threading.get_ident(), None)
                    if not _threads:
                        give_back()

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
    """The function, what it calls being recorded: computed when it ends, and given as PyTorch's own tensors, in lists and dicts that it was
    given too, unless what calls it is recorded itself."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with lazy(**options):
            result = function(*args, **kwargs)
        if _thread.active is not None:
            return result
        _computed((args, kwargs))
        return _computed(result)

    return call


def _computed(value: Any) -> Any:
    """With tensors where there are lazy ones. Lists and dicts get them in place: others may hold these too."""
    if type(value) is LazyTensor:
        return real(value)
    if pytree.tree_is_leaf(value):
        return value
    parts, form = pytree.tree_flatten(value, is_leaf=lambda each: each is not value)
    computed = list(map(_computed, parts))
    if all(map(is_, computed, parts)):
        return value
    if isinstance(value, list):
        value[:] = computed
        return value
    if isinstance(value, dict):
        value.update(pytree.tree_unflatten(computed, form))
        return value
    return pytree.tree_unflatten(computed, form)


_thread = _Thread()
_recording = threading.Lock()
_threads: dict[int, Recorder] = {}  # that record, by their numbers
lazy = Lazy()
