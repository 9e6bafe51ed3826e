"""A thousand different shapes through one process: compiles, memory, and what a shape costs the first time it comes."""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

from bench.cases import CASES, Case, Shape, build
from bench.checks import error_of
from bench.dtypes import DTYPES
from bench.job import Job, Result
from bench.memory import resident_bytes
from bench.peers import Call, Workbench, as_tensor, build_disc

COUNT = 1000
BATCHES = range(1, 17)
LENGTHS = range(1, 129)
CHECKED = 50  # every so many shapes, the result is compared with eager's


def run(job: Job) -> list[Result]:
    """The stream once, then every shape again for its steady time, then the resident memory of both passes."""
    return [_case(job, CASES[name]) for name in job.cases]


def _case(job: Job, case: Case) -> Result:
    model, dtype = build(case), DTYPES[job.dtype]
    with tempfile.TemporaryDirectory(prefix="disc-bench-") as folder:
        peer = build_disc(Workbench(case, model, job.threads, Path(folder), dtype))
    assert peer.executable is not None
    shapes = stream_shapes(COUNT)
    calls = [peer.bind(case.inputs(shape)) for shape in shapes]
    peer.bind(case.inputs(max(shapes, key=lambda shape: shape[0] * shape[1])))()  # the largest buffers there will be
    error = max(error_of(as_tensor(peer.executable(*inputs)), model(*inputs)) for inputs in map(case.inputs, shapes[::CHECKED]))
    resident = [resident_bytes()]
    first: list[float] = []
    for number, call in enumerate(calls, 1):
        first.append(_seconds(call))
        if number % (COUNT // 4) == 0:
            resident.append(resident_bytes())
    print(f"  stream: {sum(first):.1f} s", file=sys.stderr, flush=True)
    steady = [statistics.median(_seconds(call) for _ in range(3)) for call in calls]
    resident.append(resident_bytes())
    stats = peer.executable.stats()
    return {
        "case": case.name,
        "title": case.title,
        "threads": job.threads,
        "dtype": job.dtype,
        "shapes": len(set(shapes)),
        "compiles": stats["compiles"],
        "first_s": sum(first),
        "steady_s": sum(steady),
        "ratio": sum(first) / sum(steady),
        "quantiles": quantiles([one / other for one, other in zip(first, steady, strict=True)]),
        "resident_mib": [round(value / 2**20, 1) for value in resident],
        "arena_mib": round(cast("int", stats["arena_bytes"]) / 2**20, 1),
        "error": error,
    }


def quantiles(ratios: list[float]) -> dict[str, float]:
    """Of the first time of a shape over its steady time: "p50", "p90", "p99" (linear between neighbours) and "max"."""
    cuts = statistics.quantiles(ratios, n=100, method="inclusive")
    return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(ratios)}


def stream_shapes(count: int) -> list[Shape]:
    """Different (batch, length) pairs in a random order that is always the same."""
    every = [(batch, length) for batch in BATCHES for length in LENGTHS]
    return random.Random(0).sample(every, count)


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
