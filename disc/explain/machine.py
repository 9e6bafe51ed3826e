"""What this machine can do at best, measured once per process: the limits that `explain` compares kernels with."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from disc.errors import counted
from disc.ral import _ral


@dataclass(frozen=True)
class MachineLimits:
    """gflops: f32 multiply-adds counted as two, 1e9 per second; gbytes: bytes read and written, 1e9 per second; source: how measured.
    products: the former of products on a GPU's tensor cores, by their arithmetic ("bf16", "tf32x3")."""

    gflops: float
    gbytes: float
    source: str
    products: Mapping[str, float] = field(default_factory=dict)

    def of(self, arithmetic: object) -> MachineLimits:
        """The limits of a kernel whose products have this arithmetic, as its record says; "": without any on tensor cores."""
        rate = self.products.get(str(arithmetic))
        return self if rate is None else replace(self, gflops=rate)

    def least_seconds(self, flops: int, moved: int) -> float:
        """The time that neither limit lets a kernel beat."""
        return max(flops / self.gflops, moved / self.gbytes) * 1e-9


@functools.cache
def machine_limits(threads: int) -> MachineLimits:
    """Measures both limits on this many threads at once, in about 0.3 s."""
    with ThreadPoolExecutor(threads) as pool:
        measured = list(pool.map(lambda _: _ral.measure_limits(), range(threads)))
    flops, moved = (sum(each) for each in zip(*measured, strict=True))
    source = f"f32 multiply-adds in registers, and a copy outside the caches (caches are faster), on {counted(threads, 'thread')}"
    return MachineLimits(flops * 1e-9, moved * 1e-9, source)
