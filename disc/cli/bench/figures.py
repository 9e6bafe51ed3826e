"""What is said of the calls of one runtime on one set of sizes, and whether its results are those of the others."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from disc.artifact.manifest import results_of
from disc.cli.bench.peers import Array
from disc.cli.bench.timing import CallTimes
from disc.ral.executable import Executable

CHECKED = 0.05  # a difference over it, of the largest value expected, is no rounding, in 8 bits neither


@dataclass(frozen=True)
class Figures:
    """Seconds of single calls: median, percentiles p10, p90, p95 and p99 of `calls` calls; first: the very first call of these sizes.
    per_second: calls of all callers together. difference: of the results, from eager's where it takes part, else from disc's. right: it is
    one of rounding. speed_up: of disc, by the medians of one caller, by calls per second of several; None where results are not right, and
    of disc itself."""

    shape: str
    model: str
    calls: int
    median: float
    p10: float
    p90: float
    p95: float
    p99: float
    first: float
    per_second: float
    difference: float
    speed_up: float | None = None

    @property
    def right(self) -> bool:
        return self.difference <= CHECKED

    def against(self, disc: Figures, callers: int) -> Figures:
        """The same with disc's speed-up."""
        if self is disc or not (self.right and disc.right):
            return self
        return dataclasses.replace(self, speed_up=self.median / disc.median if callers == 1 else disc.per_second / self.per_second)

    def record(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def figures_of(shape: str, model: str, turns: Sequence[CallTimes], first: float, differs: float) -> Figures:
    times = [each for turn in turns for each in turn.calls]
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    rate = len(times) / sum(turn.wall for turn in turns)
    median = statistics.median(times)
    return Figures(shape, model, len(times), median, cuts[9], cuts[89], cuts[94], cuts[98], first, rate, differs)


def numbers(executable: Executable, results: Sequence[object]) -> list[Array]:
    """disc's results as numbers: bf16 comes as its bits."""
    kinds = [record["dtype"] for record in results_of(executable.manifest)]
    return [_widened(np.asarray(each), kind) for each, kind in zip(results, kinds, strict=True)]


def _widened(array: Array, kind: str) -> Array:
    return np.asarray((array.astype(np.uint32) << 16).view(np.float32)) if kind == "bf16" else array


def difference(found: Sequence[Array], expected: Sequence[Array]) -> float:
    """The largest absolute difference of any result over its largest finite value expected, or over 1 where all are smaller.

    Infinite when there are other results, of other shapes, or only one of two values is NaN or infinite.
    """
    if len(found) != len(expected):
        return float("inf")
    return max(map(_difference, found, expected), default=0.0)


def _difference(found: Array, expected: Array) -> float:
    if found.shape != expected.shape:
        return float("inf")
    kind = np.complex128 if np.iscomplexobj(expected) or np.iscomplexobj(found) else np.float64
    one, other = found.astype(kind), expected.astype(kind)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    if same.all():
        return 0.0
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other)[~same]
    worst = float(np.where(np.isnan(apart), np.inf, apart).max())
    finite = np.abs(other[np.isfinite(other)])
    return worst / max(1.0, float(finite.max()) if finite.size else 0.0)
