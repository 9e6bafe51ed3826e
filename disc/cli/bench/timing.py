"""Timing several ways to do the same thing, in turns, so that other load on the machine affects all of them equally."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import TypeVar

Turn = TypeVar("Turn")
Span = tuple[float, float, list[float]]  # begin and end on the clock, seconds of each call
TURN_SECONDS = 0.02  # a turn of a short call is this long
MOST_CALLS = 20_000  # per turn


@dataclass(frozen=True)
class Timing:
    """Milliseconds per call over `turns` turns: median, low (the least), high (the greatest). spread: (the third quartile minus the first)
    / median."""

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


def in_turns(turns: Mapping[str, Callable[[], Turn]], repeats: int) -> dict[str, list[Turn]]:
    """What `repeats` turns of each answer. The order rotates, so none always follows the same neighbor."""
    names = list(turns)
    answers: dict[str, list[Turn]] = {name: [] for name in names}
    for number in range(repeats):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            answers[name].append(turns[name]())
    return answers


def interleave(turns: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Timing]:
    """The figures of `repeats` turns of each; a turn answers milliseconds per call."""
    return {name: summarize(values) for name, values in in_turns(turns, repeats).items()}


@dataclass(frozen=True)
class CallTimes:
    """One turn of callers, in seconds: wall, from the first call to the last; calls, of every call."""

    wall: float
    calls: list[float]


def time_callers(calls: Sequence[Callable[[], object]], seconds: float) -> CallTimes:
    """One thread for each of `calls`, which makes it again and again for `seconds`, at least once; before, each makes it once more, so that
    weights, code and threads are there. A single caller is this thread. Raises what a call raises."""
    if len(calls) == 1:
        calls[0]()
        spans = [_call_until(calls[0], seconds)]
    else:
        ready = Barrier(len(calls))
        with ThreadPoolExecutor(len(calls)) as pool:
            spans = list(pool.map(lambda call: _warm_caller(call, seconds, ready), calls))
    wall = max(end for _, end, _ in spans) - min(start for start, _, _ in spans)
    return CallTimes(wall, [each for _, _, own in spans for each in own])


def _warm_caller(call: Callable[[], object], seconds: float, ready: Barrier) -> Span:
    """Raises what the call raises; then no other caller waits for this one."""
    try:
        call()
    except BaseException:
        ready.abort()
        raise
    ready.wait()
    return _call_until(call, seconds)


def _call_until(call: Callable[[], object], seconds: float) -> Span:
    times: list[float] = []
    begun = now = time.perf_counter()
    while not times or now < begun + seconds:
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        times.append(now - start)
    return begun, now, times


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
