"""The sizes of GEMMs at which schedules are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from disc.speculation.schedules import TILE_ROWS, Schedule

LINEAR = ((768, 768), (3072, 768), (768, 3072), (512, 512), (2048, 512), (512, 2048), (4096, 1024), (2048, 2048), (256, 64), (384, 1536),
          (200, 300), (96, 1200), (128, 3072), (1024, 4096))  # fmt: skip
# (N, K) of products of two activations, and how many of them at once
TRANSPOSED = ((64, 64, 12), (300, 64, 8), (64, 300, 8), (512, 512, 1), (2048, 512, 1))  # the same, B read along k
BATCHED = ((64, 64, 12), (128, 64, 12), (64, 300, 8), (32, 32, 128), (512, 512, 1), (1500, 64, 4))
ROWS = (*range(1, 10), 12, 13, 16, 18, 19, 24, 25, 30, 32, 37, 48, 60, 64, 66, 96, 100, 120, 128, 130, 160, 200, 240, 256, 264, 288, 320,
        384, 512, 1000, 2048)  # fmt: skip
COARSE_ROWS = (1, 8, 24, 64, 130, 512)
LARGEST = 12e9  # multiply-adds of one call: sizes beyond teach nothing and take seconds
# Layers of larger models, which a GPU multiplies in as little time, and their rows.
DEVICE_LINEAR = (*LINEAR, (1024, 1024), (3072, 1024), (1024, 4096), (2304, 768), (30522, 768), (4096, 4096), (6144, 4096), (11008, 4096),
                 (4096, 11008), (14336, 4096), (4096, 14336), (32000, 4096), (8192, 8192), (1000, 2048), (64, 4096))  # fmt: skip
DEVICE_BATCHED = (*BATCHED, (128, 64, 384), (64, 128, 384), (512, 64, 192), (64, 512, 192), (1024, 128, 32))
DEVICE_ROWS = (1, 2, 4, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 128, 129, 192, 256, 257, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
               6144, 8192, 16384)  # fmt: skip

# What is measured on a GPU, as this takes minutes of it: rows, and (N, K) of matrices.
MEASURED_ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096)
MEASURED_MATRICES = ((768, 768), (3072, 768), (768, 3072), (1024, 1024), (4096, 1024), (1024, 4096), (4096, 4096), (4096, 11008))

# Of attention: queries, keys beside few queries, heads of all sequences.
QUERIES = (1, 2, 4, 8, 16, 17, 32, 48, 64, 96, 128, 197, 256, 384, 512, 1024, 2048, 4096, 8192)
KEYS = (16, 64, 200, 512, 1024, 2048, 8192, 32768)
ATTENTION_BATCHES = (1, 4, 12, 32, 96, 192, 512, 1024)


@dataclass(frozen=True)
class Point:
    """One size of a GEMM: A is [batch, m, k], B [batch, k, n]. weights: B is a weight, packed ahead of time (batch is 1 then);
    transposed: B lies as [batch, n, k] in memory. threads: that share the product; of a GPU, its SMs. strided: A lies as [batch, k, m]."""

    m: int
    n: int
    k: int
    batch: int
    threads: int
    weights: bool
    transposed: bool = False
    strided: bool = False

    @property
    def features(self) -> tuple[int, int, int, int, int]:
        """As the tree takes them."""
        return (self.m, self.n, self.k, self.batch, self.threads)


def coarse_points(threads: int) -> list[Point]:
    """The sizes at which all schedules are measured, to find the few that are worth more."""
    return _points(LINEAR[::3], BATCHED[::3], [threads], COARSE_ROWS)


def fine_points(threads: Sequence[int]) -> list[Point]:
    """The sizes that the tree is fitted to: all with the first number of threads, every eighth with the others."""
    one, *more = threads
    transposed = [replace(point, transposed=True) for point in _points((), TRANSPOSED, threads, COARSE_ROWS)]
    return _points(LINEAR, BATCHED, [one], ROWS) + _points(LINEAR[::2], BATCHED[::2], more, ROWS[::2]) + transposed


def device_points(sms: int) -> list[Point]:
    """The sizes that the trees of a GPU are fitted to."""
    linear = [Point(m, n, k, 1, sms, False) for n, k in DEVICE_LINEAR for m in DEVICE_ROWS]
    return [*linear, *(Point(m, n, k, batch, sms, False) for n, k, batch in DEVICE_BATCHED for m in DEVICE_ROWS)]


def few_row_points(sms: int, most: int) -> list[Point]:
    """The sizes that the parts of these trees for at most so many rows are fitted to."""
    linear = [Point(m, n, k, 1, sms, False) for n, k in DEVICE_LINEAR for m in range(1, most + 1)]
    return [*linear, *(Point(m, n, k, batch, sms, False) for n, k, batch in DEVICE_BATCHED for m in range(1, most + 1))]


def measured_sizes() -> list[tuple[int, int, int]]:
    """(M, N, K) at which products are measured on a GPU."""
    return [(m, n, k) for n, k in MEASURED_MATRICES for m in MEASURED_ROWS]


def attention_points(sms: int, head: int) -> list[Point]:
    """The sizes that a tree of attention on a GPU is fitted to: as many keys as queries, and many behind few. head: its elements."""
    lengths = [*((each, each) for each in QUERIES), *((few, keys) for few in QUERIES if few <= 64 for keys in KEYS)]
    return [Point(queries, keys, head, batch, sms, False) for queries, keys in lengths for batch in ATTENTION_BATCHES]


def _points(
    linear_sizes: Sequence[tuple[int, int]], batched_sizes: Sequence[tuple[int, int, int]], threads: Sequence[int], rows: Sequence[int]
) -> list[Point]:
    """Sizes that share a compiled program stand next to each other."""
    linear = [Point(m, n, k, 1, count, True) for n, k in linear_sizes for count in threads for m in rows]
    batched = [Point(m, n, k, batch, count, False) for n, k, batch in batched_sizes for count in threads for m in rows]
    return [point for point in (*linear, *batched) if point.m * point.n * point.k * point.batch <= LARGEST]


def effective(schedule: Schedule, point: Point) -> Schedule:
    """What `schedule` comes to at this size; two that come to the same need only one measurement."""
    return replace(
        schedule,
        rows=min(schedule.rows, -(-point.m // TILE_ROWS) * TILE_ROWS),
        k=min(schedule.k, point.k),
        ahead=schedule.ahead if point.weights else 0,
        panels_first=schedule.panels_first if point.m > schedule.rows else 0,
    )
