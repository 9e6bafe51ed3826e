"""What this machine can do at best, measured once per process: the limits that `explain` compares kernels with."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

COPY_BYTES = 64 << 20  # per array: beyond the last-level cache of most machines
GEMM_SIZES = (256, 384, 512, 768)  # short runs: other programs on the machine spoil long ones
REPEATS = 20


@dataclass(frozen=True)
class Limits:
    """gflops: f32 multiply-adds counted as two, 1e9 per second; gbytes: bytes read and written, 1e9 per second; source: how measured."""

    gflops: float
    gbytes: float
    source: str

    def least_seconds(self, flops: int, moved: int) -> float:
        """The time that neither limit lets a kernel beat."""
        return max(flops / self.gflops, moved / self.gbytes) * 1e-9


@functools.cache
def machine_limits(threads: int) -> Limits:
    """Measures both limits (about half a second). threads: of the copy; the matrix product uses as many as NumPy's library does."""
    source = (
        f"the best sgemm of NumPy's BLAS at sizes {', '.join(map(str, GEMM_SIZES))} on its own threads; "
        f"copy of {COPY_BYTES >> 20} MiB outside the caches on {threads} thread{'' if threads == 1 else 's'} (caches are faster)"
    )
    return Limits(max(_gemm_gflops(size) for size in GEMM_SIZES), _copy_gbytes(threads), source)


def _gemm_gflops(size: int) -> float:
    left = np.ones((size, size), np.float32)
    right, result = left.copy(), np.empty_like(left)
    return 2 * size**3 / _best(lambda: np.matmul(left, right, out=result)) * 1e-9


def _copy_gbytes(threads: int) -> float:
    source = np.ones(COPY_BYTES, np.uint8)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return 2 * COPY_BYTES / _best(lambda: list(pool.map(lambda part: np.copyto(*part), parts))) * 1e-9


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs."""
    times: list[float] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
