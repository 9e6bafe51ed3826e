"""What the machine can do at most, measured in the run that is judged by it, and the roofline of a call.

The C programs next to this file are compiled for the machine with gcc; without one there is no limit, and no share of it.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass

from bench.machine import ROOT, cpu_flags, output_of

SIZES = tuple(1 << power for power in (18, 19, 20, 21, 22, 23, 24, 25, 26, 28))  # working sets: 256 KiB to 256 MiB
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-mprefer-vector-width=512", "-pthread")
DOT_PRODUCTS = (("bf16", "avx512_bf16", 16), ("int8", "avx512_vnni", 8))  # dtype, CPU flag, bits of an element
HOW = (
    "FMA limit: bench/fma.c, accumulators in registers; bandwidth: bench/bandwidth.c, reads and memcpy over working sets of the size of "
    "the call's data, so that what fits a cache is judged by the cache; gcc -O3 -march=native"
)


@dataclass(frozen=True)
class Limits:
    """flops: per second, 2 per multiply-add of the dtype. reads, copies: size of the working set → bytes per second (a copied byte counts
    twice: read and written)."""

    flops: float
    reads: dict[int, float]
    copies: dict[int, float]


@dataclass(frozen=True)
class Work:
    """What a call must do at least: flops of its matrix products, bytes of weights and inputs it reads, bytes of outputs it writes."""

    flops: int
    read: int
    written: int


@dataclass(frozen=True)
class Bound:
    """The milliseconds that a call must take for its multiply-adds, and for its bytes."""

    compute_ms: float
    memory_ms: float

    @property
    def ms(self) -> float:
        """The roofline: whichever takes longer."""
        return max(self.compute_ms, self.memory_ms)


def bound(work: Work, limits: Limits) -> Bound:
    """The roofline of one call. Bytes written are paired with bytes read, at the rate of a copy; the rest is read, or written, alone.

    The caches may hold less than the working set of a call, never more, so the rate is that of the largest measured set that is not larger.
    """
    total = work.read + work.written
    paired = 2 * min(work.read, work.written)
    seconds = paired / rate_at(limits.copies, total) + (total - paired) / rate_at(limits.reads, total)
    return Bound(work.flops / limits.flops * 1e3, seconds * 1e3)


def rate_at(rates: dict[int, float], size: int) -> float:
    """The rate of the largest measured working set that is no larger than `size`; of the smallest where all are larger."""
    return rates[max((each for each in rates if each <= size), default=min(rates))]


def measure_limits(threads: int, dtype: str, seconds: float = 0.2) -> Limits:
    """Both limits with this many threads. dtype: "bf16" and "int8" measure dot products of such pairs, and quadruples, where the CPU has
    them, "fp32" f32 multiply-adds.

    Raises OSError or subprocess.CalledProcessError where the programs cannot be built.
    """
    lanes = 16 if "avx512f" in cpu_flags() else 8
    bits = next((bits for name, flag, bits in DOT_PRODUCTS if name == dtype and flag in cpu_flags()), 32)
    with tempfile.TemporaryDirectory(prefix="disc-bench-") as folder:
        flops = float(_run(folder, "fma", [f"-DDISC_LANES={lanes}", f"-DDISC_BITS={bits}"], [str(threads), str(seconds)]))
        arguments = [str(threads), str(seconds / len(SIZES)), *map(str, SIZES)]
        lines = [list(map(float, line.split())) for line in _run(folder, "bandwidth", [f"-DDISC_LANES={lanes}"], arguments).splitlines()]
    return Limits(flops, {int(size): rate for size, rate, _ in lines}, {int(size): rate for size, _, rate in lines})


def _run(folder: str, name: str, defines: list[str], arguments: list[str]) -> str:
    program = f"{folder}/{name}"
    try:
        output_of(["gcc", *FLAGS, *defines, str(ROOT / "bench" / f"{name}.c"), "-o", program])
    except subprocess.CalledProcessError as error:
        raise OSError(f"gcc could not compile bench/{name}.c: {error.stderr}") from error
    return output_of([program, *arguments])


def higher(one: Limits, other: Limits) -> Limits:
    """The higher of two measurements: a busy machine only ever lowers one."""

    def best(left: dict[int, float], right: dict[int, float]) -> dict[int, float]:
        return {size: max(left[size], right[size]) for size in left}

    return Limits(max(one.flops, other.flops), best(one.reads, other.reads), best(one.copies, other.copies))
