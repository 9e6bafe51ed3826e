"""What happened in the last minute: requests per second, percentiles of their time, errors, and what the process uses.

Percentiles are those of an HDR or DD sketch: buckets of equal ratio, counted exactly, and added over the seconds of the window. That is a
Counter and a logarithm: a package (ddsketch, hdrhistogram) would still need the window around it.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

WINDOW_S = 60
STEPS = 8  # buckets of a factor of two: a percentile is at most 9 % too high
ERRORS_KEPT = 10
TEXT_KEPT = 300  # characters of an error
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Recent:
    """The answers of the last minute, counted by second and by bucket of their time. Its user holds a lock."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._seconds: deque[tuple[int, Counter[int]]] = deque()

    def add(self, ns: int) -> None:
        second = int(time.monotonic())
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, Counter()))
            self._forget(second)
        self._seconds[-1][1][int(math.log2(max(ns, 1)) * STEPS)] += 1

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - WINDOW_S:
            self._seconds.popleft()

    def figures(self, shares: Sequence[int] = (50, 90, 99)) -> dict[str, object]:
        """requests; per_second; ms: by "p50" and so on, None without requests."""
        now = time.monotonic()
        self._forget(int(now))
        total: Counter[int] = Counter()
        for _, counts in self._seconds:
            total.update(counts)
        span = min(float(WINDOW_S), max(now - self._start, 1.0))
        return {
            "requests": total.total(),
            "per_second": total.total() / span,
            "ms": {f"p{share}": _quantile_ms(total, share / 100) for share in shares},
        }


def _quantile_ms(counts: Counter[int], share: float) -> float | None:
    """The upper end of the bucket that holds it."""
    wanted, seen = share * counts.total(), 0
    for bucket, count in sorted(counts.items()):
        seen += count
        if seen >= wanted:
            return 2 ** ((bucket + 1) / STEPS) / 1e6
    return None


class Usage:
    """CPU and memory of this process. CPU is measured between readings, those of the last minute."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, float]] = deque([(time.monotonic(), _cpu_seconds())])

    def figures(self) -> dict[str, float]:
        """cores: busy on average since the oldest reading of the last minute; memory_bytes: resident."""
        now, cpu = time.monotonic(), _cpu_seconds()
        while len(self._readings) > 1 and self._readings[1][0] < now - WINDOW_S:
            self._readings.popleft()
        since, before = self._readings[0]
        if now - self._readings[-1][0] > 1:
            self._readings.append((now, cpu))
        return {"cores": (cpu - before) / max(now - since, 1e-3), "memory_bytes": _resident_bytes()}


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
