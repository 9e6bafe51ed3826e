"""Ends gRPC calls whose messages do not arrive, or whose answers are not read: each holds a thread, and idle clients would hold all."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from disc.serving.logs import log

LOOK_S = 0.25


class Call(Protocol):
    """What of a call's context is used."""

    def cancel(self) -> object: ...


@dataclass(frozen=True)
class Patience:
    """least_s: what every call has for its message to come. most_s: what it has while no more than `waiting` calls wait for theirs.
    idle_s: between the messages of a stream, and for each of its answers to be taken."""

    least_s: float
    most_s: float
    idle_s: float
    waiting: int


class Arrivals:
    """The calls that wait for their client. Streams have a time of their own."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._numbers = itertools.count()
        self._messages: dict[int, tuple[float, Call]] = {}  # since when
        self._streams: dict[int, tuple[float, Call]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="disc-arrivals", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def begin(self, call: Call, *, stream: bool = False) -> int:
        """From now on the call waits: for its message, or, as a stream, for the next one, or for its answer to be taken."""
        number = next(self._numbers)
        (self._streams if stream else self._messages)[number] = (time.monotonic(), call)
        return number

    def end(self, number: int) -> None:
        """It waits no longer."""
        if self._messages.pop(number, None) is None:
            self._streams.pop(number, None)

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_S):
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        patience = self._patience
        waiting = sorted(self._messages.copy().items())  # the longest first
        excess = len(waiting) - patience.waiting
        for place, (number, (since, call)) in enumerate(waiting):
            if now - since > (patience.least_s if place < excess else patience.most_s):
                self._give_up(number, call, now - since)
        for number, (since, call) in self._streams.copy().items():
            if now - since > patience.idle_s:
                self._give_up(number, call, now - since)

    def _give_up(self, number: int, call: Call, seconds: float) -> None:
        self.end(number)
        log("client_stalled", seconds=round(seconds, 1))
        call.cancel()
