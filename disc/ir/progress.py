"""Progress of a compile: reported to a callback, and as a warning when one step takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from disc.errors import warner

SLOW_SECONDS = 20.0
OnStep = Callable[[str, float], None]


class Steps:
    """Forwards steps, and warns once about each that has run for 20 seconds, by its name, while it runs. A context manager.

    One thread waits during the compile; it costs a lock per step.
    """

    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._changed = threading.Condition()
        self._name = ""
        self._until = float("inf")
        self._ended = False
        self._warn = warner()
        self._watch = threading.Thread(target=self._wait, name="disc-steps", daemon=True)

    def __call__(self, name: str, share: float) -> None:
        with self._changed:
            self._name, self._until = name, time.monotonic() + SLOW_SECONDS
            self._changed.notify()
        self._on_step(name, share)

    def __enter__(self) -> Steps:
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._watch.join()

    def _wait(self) -> None:
        while True:
            with self._changed:
                while not self._ended and time.monotonic() < self._until:
                    rest = self._until - time.monotonic()
                    self._changed.wait(rest if rest < threading.TIMEOUT_MAX else None)
                if self._ended:
                    return
                name, self._until = self._name, float("inf")
            self._warn(f"compiling: the step {name!r} has run for {SLOW_SECONDS:g} s, and goes on")
