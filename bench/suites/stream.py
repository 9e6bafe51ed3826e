"""A thousand different shapes through one process: compiles, memory, and what a shape costs the first time it comes."""

from __future__ import annotations

import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from bench.cases import CASES, Case, Shape, build
from bench.checks import error_of
from bench.dtypes import DTYPES
from bench.job import Job, Result
from bench.memory import resident_bytes
from bench.peers import Call, Workbench, as_tensor, build_disc
from disc.codegen.compiles import process_compiles

COUNT = 1000
PROCESSES = 3
BATCHES = range(1, 17)
LENGTHS = range(1, 129)
CHECKED = 50  # every so many shapes, the result is compared with eager's


def run(job: Job) -> list[Result]:
    """The stream in fresh processes one after the other: what a shape costs the first time can be measured once in each."""
    return [_case(job, name) for name in job.cases]


def _case(job: Job, name: str) -> Result:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as processes:
        visits = list(processes.map(_visit, [job] * PROCESSES, [name] * PROCESSES))
    return {"case": name, "title": CASES[name].title, "threads": job.threads, "dtype": job.dtype, **summary(visits)}


@dataclass(frozen=True)
class Visit:
    """One process. Seconds per shape: first = when it came first; again = the same call in a second pass, after the same other shape;
    steady = the median of three calls right after the first."""

    first: list[float]
    again: list[float]
    steady: list[float]
    resident: list[int]  # bytes: at the start, after each quarter of the first pass, at the end
    arena: int  # bytes held for buffers at the end
    compiles: int  # of the whole process, from before the model was compiled
    error: float


def _visit(job: Job, name: str) -> Visit:
    """Runs in a process of its own."""
    torch.set_num_threads(job.threads)
    with torch.no_grad():
        return _stream(job, CASES[name])


def _stream(job: Job, case: Case) -> Visit:
    model, dtype, compiles = build(case), DTYPES[job.dtype], process_compiles()
    with tempfile.TemporaryDirectory(prefix="disc-bench-") as folder:
        peer = build_disc(Workbench(case, model, job.threads, Path(folder), dtype))
    assert peer.executable is not None
    shapes = stream_shapes(COUNT)
    calls = [peer.bind(case.inputs(shape)) for shape in shapes]
    peer.bind(case.inputs(max(shapes, key=lambda shape: shape[0] * shape[1])))()  # the largest buffers there will be
    error = max(error_of(as_tensor(peer.executable(*inputs)), model(*inputs)) for inputs in map(case.inputs, shapes[::CHECKED]))
    resident = [resident_bytes()]
    first: list[float] = []
    steady: list[float] = []
    for number, call in enumerate(calls, 1):
        first.append(_seconds(call))
        steady.append(statistics.median(_seconds(call) for _ in range(3)))
        if number % (COUNT // 4) == 0:
            resident.append(resident_bytes())
    print(f"  stream: {sum(first):.1f} s", file=sys.stderr, flush=True)
    again = [_seconds(call) for call in calls]
    resident.append(resident_bytes())
    arena = cast("int", peer.executable.stats()["arena_bytes"])
    return Visit(first, again, steady, resident, arena, process_compiles() - compiles, error)


def summary(visits: Sequence[Visit]) -> Result:
    """Of each shape, the median over the processes of a ratio of its times; memory is that of the first process."""
    return {
        "shapes": len(visits[0].first),
        "processes": len(visits),
        "compiles": max(visit.compiles for visit in visits),
        "first_s": statistics.median(sum(visit.first) for visit in visits),
        "steady_s": statistics.median(sum(visit.steady) for visit in visits),
        "ratio": statistics.median(sum(visit.first) / sum(visit.steady) for visit in visits),
        "quantiles": quantiles(medians([ratios(visit.first, visit.steady) for visit in visits])),
        "again": quantiles(medians([ratios(visit.first, visit.again) for visit in visits])),
        "resident_mib": [round(value / 2**20, 1) for value in visits[0].resident],
        "arena_mib": round(visits[0].arena / 2**20, 1),
        "error": max(visit.error for visit in visits),
    }


def ratios(times: Sequence[float], others: Sequence[float]) -> list[float]:
    """Shape by shape."""
    return [one / other for one, other in zip(times, others, strict=True)]


def medians(runs: Sequence[Sequence[float]]) -> list[float]:
    """Of each shape, over the runs."""
    return [statistics.median(values) for values in zip(*runs, strict=True)]


def quantiles(ratios: list[float]) -> dict[str, float]:
    """Of one ratio per shape: "p50", "p90", "p99" (linear between neighbors) and "max"."""
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
