"""Part `shapes`: calls of models with random sizes. Memory stays what it is; some results are compared with those of the CPU's code. Calls
with new sizes are timed beside later ones with the same."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpu_parts.devices import Host, resident_bytes
from gpu_parts.driver import Array
from gpu_parts.job import Job
from gpu_parts.models import listed
from gpu_parts.report import Report, Row, judge

CALLS = 10_000  # of all models together
SMALL = 5  # how much larger than the least the sizes of the stand-in's one call of a model are at most
NEW, AGAIN = 100, 5  # sizes whose first calls are timed, and later calls of each
COMPARED = 100  # one call of so many, and the first ones
GROWTH = 32 << 20  # bytes that the GPU's and the process's memory may change by


def check(job: Job, report: Report) -> None:
    """The models that have ranges of sizes take turns of equal length."""
    device = job.device()
    models = [each for each in listed(job) if each["sizes"]]
    calls = 1 if job.fake else CALLS // len(models)
    for number, model in enumerate(models):
        row = Row(f"{model['name']}, {calls} shapes")
        if job.fake:
            if job.is_late(report, ", ".join(each["name"] for each in models[number:])):
                return
            model["sizes"] = {name: (low, min(high, low + SMALL), dim) for name, (low, high, dim) in model["sizes"].items()}
        try:
            _check(device, job, model, row, report, calls, job.left / (len(models) - number))
        except Exception as error:  # the other models may still run
            row.wrong += 1
            report.wrong(f"{row.name}: after {row.count} calls: {type(error).__name__}: {error}")
        report.row(row)


def _check(device: Host, job: Job, model: Mapping[str, Any], row: Row, report: Report, calls: int, seconds: float) -> None:
    path, random, end = job.folder / model["file"], np.random.default_rng(0), job.left - seconds
    program, reference = device.load(path), device.load_for(path, model["cpu"])
    biggest = {name: high for name, (_, high, _) in model["sizes"].items()}
    if not job.fake:
        program.flat(*(device.place(array, element) for array, element in _inputs(program, biggest, random, model["high"])))
        program.synchronize()
        report.row(_new_sizes(device, program, model, random))
    program.synchronize()
    seen, before = set[tuple[int, ...]](), (device.gpu.free_memory(), resident_bytes())
    while row.count < calls and job.left > end:
        sizes = _drawn(model, random)
        seen.add(tuple(sizes.values()))
        given = _inputs(program, sizes, random, model["high"])
        results = program.flat(*(device.place(*each) for each in given))
        if row.count % COMPARED == 0:
            wanted = reference.flat(*(array for array, _ in given))
            for found, plain, about in zip(results, wanted, program.outputs, strict=True):
                text = judge(row, device.read(found), np.asarray(plain), about.dtype, model["bound"])
                if text:
                    report.wrong(f"{row.name}: {sizes}: {text}")
                    row.wrong += 1
        row.count += 1
    program.synchronize()
    compiles = program.stats()["compiles"]
    taken, grown = before[0] - device.gpu.free_memory(), resident_bytes() - before[1]
    row.note = f"{len(seen)} sizes, {compiles} compiles, GPU memory {taken / 2**20:+.0f} MiB, process {grown / 2**20:+.0f} MiB"
    if row.count < calls:
        row.note += f", {row.count} calls in {seconds:.0f} s"
    if not job.fake and (taken > GROWTH or grown > GROWTH):
        report.wrong(f"{row.name}: memory grows: {row.note}")
        row.wrong += 1


def _drawn(model: Mapping[str, Any], random: np.random.Generator) -> dict[str, int]:
    """A size of each symbol; those of one dim are equal."""
    drawn = {dim: int(random.integers(low, high + 1)) for low, high, dim in model["sizes"].values()}
    return {name: drawn[dim] for name, (_, _, dim) in model["sizes"].items()}


def _new_sizes(device: Host, program: Any, model: Mapping[str, Any], random: np.random.Generator) -> Row:
    """First calls, each to its end, and the medians of later ones. The row has the mean of the first."""
    drawn = [_inputs(program, _drawn(model, random), random, model["high"]) for _ in range(NEW)]
    placed = [[device.place(*each) for each in given] for given in drawn]
    device.wait()
    first = [_seconds(device, program, given) for given in placed]
    steady = [statistics.median(_seconds(device, program, given) for _ in range(AGAIN)) for given in placed]
    note = f"{sum(first) / sum(steady):.2f} of later calls with the same sizes"
    return Row(f"{model['name']}, {NEW} new sizes", NEW, microseconds=1e6 * sum(first) / NEW, note=note)


def _seconds(device: Host, program: Any, given: Sequence[Any]) -> float:
    begin = time.perf_counter()
    results = program.flat(*given)
    device.wait()
    del results
    return time.perf_counter() - begin


def _inputs(program: Any, sizes: Mapping[str, int], random: np.random.Generator, high: int) -> list[tuple[Array, str]]:
    """Tensors of these sizes, with their elements: integers below `high`, masks of ones, normal numbers."""
    from disc.shapes import parse_dim

    made: list[tuple[Array, str]] = []
    for each in program.inputs:
        shape = tuple(dim if isinstance(dim, int) else parse_dim(dim).evaluate(sizes) for dim in each.dims)
        if each.dtype == "f32":
            made.append((random.standard_normal(shape, np.float32), each.dtype))
        elif "mask" in each.name:
            made.append((np.ones(shape, np.int64), each.dtype))
        else:
            made.append((random.integers(0, high, shape), each.dtype))
    return made
