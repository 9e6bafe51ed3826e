"""Timing several ways to do the same thing, in turns, so that what the machine does meanwhile hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

TURN_SECONDS = 0.02  # a turn of a short call is this long
MOST_CALLS = 200  # per turn


@dataclass(frozen=True)
class Timing:
    """Milliseconds per call over the turns. spread: (the third quartile minus the first) / median."""

    median: float
    low: float
    high: float
    spread: float
    turns: int


def summarize(milliseconds: list[float]) -> Timing:
    """The figures of one list of turns."""
    median = statistics.median(milliseconds)
    spread = 0.0
    if len(milliseconds) > 1:
        first, _, third = statistics.quantiles(milliseconds, n=4, method="inclusive")
        spread = (third - first) / median
    return Timing(median, min(milliseconds), max(milliseconds), spread, len(milliseconds))


def interleave(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Timing]:
    """Times every call in `repeats` turns. The calls were warmed up before.

    A turn begins with one untimed call: it brings the caller's weights and code back into the caches, and the threads of the one
    before have time to go to sleep. The order rotates, so nobody always follows the same neighbour.
    """
    names = list(calls)
    counts = {name: _calls_per_turn(calls[name]) for name in names}
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            calls[name]()
            samples[name].append(_turn(calls[name], counts[name]))
    return {name: summarize(values) for name, values in samples.items()}


def _calls_per_turn(call: Callable[[], object]) -> int:
    once = _turn(call, 1) * 1e-3
    return max(1, min(MOST_CALLS, int(TURN_SECONDS / once)))


def _turn(call: Callable[[], object], count: int) -> float:
    """Milliseconds per call."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) * 1e3 / count
