"""Timing several ways to do the same thing, in turns, so that other load on the machine affects all of them equally."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

TURN_SECONDS = 0.02  # a turn of a short call is this long
MOST_CALLS = 20_000  # per turn


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


def interleave(turns: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Timing]:
    """Takes `repeats` turns of each; a turn answers milliseconds per call.

    The order rotates, so none always follows the same neighbor.
    """
    names = list(turns)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(repeats):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(turns[name]())
    return {name: summarize(values) for name, values in samples.items()}


def calls_per_turn(call: Callable[[], object]) -> int:
    """As many as fit into a turn; the call was warmed up before."""
    seconds = time_turn(call, 1) * 1e-3
    if seconds < TURN_SECONDS:
        seconds = time_turn(call, 3) * 1e-3
    return max(1, min(MOST_CALLS, int(TURN_SECONDS / seconds)))


def time_turn(call: Callable[[], object], count: int) -> float:
    """Milliseconds per call."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) * 1e3 / count
