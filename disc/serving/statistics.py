"""What a model has done: counts and times, for ModelStatistics, the metrics and the status page."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from disc.serving.batcher import BatchRecord
from disc.serving.recent import ERRORS_KEPT, TEXT_KEPT, Recent

View = TypeVar("View")
SHAPES_KEPT = 256  # distinct sets of sizes; those after are counted as one
BUCKETS_MS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")


@dataclass
class Duration:
    """count: how often; ns: nanoseconds together."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        self.count += count
        self.ns += ns


@dataclass
class BatchDurations:
    """Of the calls with one number of rows."""

    join: Duration = field(default_factory=Duration)
    run: Duration = field(default_factory=Duration)
    split: Duration = field(default_factory=Duration)


@dataclass
class Totals:
    """success, queue, join, run, split: per request (of a joined call, each counts the whole of it). rows, calls: executed.
    buckets: requests by time, upper ends BUCKETS_MS and one more. last_ms: of the last request, since 1970. errors: the last different
    ones, by reason and what clients were told, the latest behind: seconds since 1970, and how often since it stands here."""

    success: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    join: Duration = field(default_factory=Duration)
    run: Duration = field(default_factory=Duration)
    split: Duration = field(default_factory=Duration)
    failures: dict[str, Duration] = field(default_factory=lambda: {reason: Duration() for reason in REASONS})
    rows: int = 0
    calls: int = 0
    last_ms: int = 0
    batches: dict[int, BatchDurations] = field(default_factory=dict)
    jobs: Counter[int] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_MS) + 1))
    errors: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)

    @property
    def fail(self) -> Duration:
        return Duration(sum(each.count for each in self.failures.values()), sum(each.ns for each in self.failures.values()))


class Statistics:
    """Totals that many threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = Totals()
        self._recent = Recent()

    def batch(self, record: BatchRecord) -> None:
        with self._lock:
            total = self._totals
            total.calls += 1
            total.rows += record.rows
            total.jobs[record.jobs] += 1
            total.queue.add(sum(record.queue_ns), record.jobs)
            total.join.add(record.join_ns * record.jobs, record.jobs)
            total.run.add(record.run_ns * record.jobs, record.jobs)
            total.split.add(record.split_ns * record.jobs, record.jobs)
            own = total.batches.setdefault(record.rows, BatchDurations())
            own.join.add(record.join_ns)
            own.run.add(record.run_ns)
            own.split.add(record.split_ns)

    def success(self, ns: int, shape: str) -> None:
        with self._lock:
            total = self._totals
            total.success.add(ns)
            total.buckets[bisect_left(BUCKETS_MS, ns / 1e6)] += 1
            known = shape in total.shapes or len(total.shapes) < SHAPES_KEPT
            total.shapes[shape if known else "others"] += 1
            total.last_ms = int(time.time() * 1000)
            self._recent.add(ns)

    def failure(self, ns: int, reason: str, text: str) -> None:
        with self._lock:
            self._totals.failures[reason].add(ns)
            errors, key = self._totals.errors, (reason, text[:TEXT_KEPT])
            _, count = errors.pop(key, (0.0, 0))
            errors[key] = time.time(), count + 1
            if len(errors) > ERRORS_KEPT:
                del errors[next(iter(errors))]

    def recent(self) -> dict[str, object]:
        """As of `Recent.figures`."""
        with self._lock:
            return self._recent.figures()

    def read(self, view: Callable[[Totals], View]) -> View:
        """What `view` makes of the totals; nothing is added meanwhile."""
        with self._lock:
            return view(self._totals)
