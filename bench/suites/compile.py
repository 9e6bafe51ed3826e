"""How long compiling takes, cold and from the cache, and how long an artifact takes to save and load."""

from __future__ import annotations

import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from torch import nn
from torch._inductor import config as inductor_config

import disc
from bench.cases import CASES, Case, build
from bench.checks import error_of
from bench.job import Job, Result
from bench.peers import VARIANTS, Workbench, as_tensor
from disc.api import compile_imported
from disc.frontend.exported import export_module, import_exported
from disc.ir.dialect import make_context
from disc.speculation.session import open_session


def run(job: Job) -> list[Result]:
    """Seconds of every step, each in this one process."""
    return [_case(job, CASES[name]) for name in job.cases]


def _case(job: Job, case: Case) -> Result:
    model = build(case)
    inputs = case.inputs(case.example)
    with tempfile.TemporaryDirectory(prefix="disc-bench-") as name:
        folder = Path(name)
        stages, exe = cold_stages(case, model, job.threads)
        again = [cold_stages(case, model, job.threads)[0]["total"] for _ in range(job.repeats)]
        result: Result = {
            "case": case.name,
            "title": case.title,
            "threads": job.threads,
            "cold_s": {**stages, "total, in a process that has compiled (median)": statistics.median(again)},
            "cached_s": cached_seconds(case, model, job, folder),
            "artifact": artifact_figures(exe, case, folder / "model.disc", job),
            "error": error_of(as_tensor(disc.load(folder / "model.disc")(*inputs)), model(*inputs)),
        }
        result["setup_s"] = setup_seconds(case, model, job, folder)
    return result


def cold_stages(case: Case, model: nn.Module, threads: int) -> tuple[dict[str, float], disc.Executable]:
    """Seconds per stage of one compile without the cache."""
    options = disc.Options(threads=threads, cache=False)
    marks = [time.perf_counter()]
    program = export_module(model, case.inputs(case.example), case.dynamic_shapes)
    marks.append(time.perf_counter())
    imported = import_exported(program, make_context())
    marks.append(time.perf_counter())
    exe = compile_imported(imported, open_session(options=options))
    marks.append(time.perf_counter())
    names = ("torch.export", "import to StableHLO", "passes, code, link, load")
    stages = {name: after - before for name, before, after in zip(names, marks, marks[1:], strict=False)}
    return {**stages, "total": marks[-1] - marks[0]}, exe


def cached_seconds(case: Case, model: nn.Module, job: Job, folder: Path) -> dict[str, float]:
    """The compile that fills an empty cache, then the median of `repeats` compiles that find everything there."""
    os.environ["DISC_CACHE_DIR"] = str(folder / "cache")
    os.environ.pop("DISC_CACHE", None)
    options = disc.Options(threads=job.threads, cache=True)
    inputs, shapes = case.inputs(case.example), case.dynamic_shapes
    program = export_module(model, inputs, shapes)

    def from_module() -> None:
        disc.compile(model, inputs, shapes, options=options)

    def from_program() -> None:
        disc.compile(program, options=options)

    seconds = {"compile that fills the cache": _seconds(from_module)}
    from_program()  # the cache may know it by another key
    for name, work in (("cached: from the module", from_module), ("cached: from the exported program", from_program)):
        seconds[name] = statistics.median(_seconds(work) for _ in range(job.repeats))
    return seconds


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def artifact_figures(exe: disc.Executable, case: Case, path: Path, job: Job) -> dict[str, float]:
    """Save, load (median, the file in the page cache), the first call after a load, with the check of the weights, and the second."""
    start = time.perf_counter()
    exe.save(path)
    saved = time.perf_counter() - start
    inputs = case.inputs(case.example)
    loads: list[float] = []
    firsts: list[float] = []
    seconds: list[float] = []
    for _ in range(job.repeats):
        marks = [time.perf_counter()]
        loaded = disc.load(path, threads=job.threads)
        marks.append(time.perf_counter())
        loaded(*inputs)
        marks.append(time.perf_counter())
        loaded(*inputs)
        marks.append(time.perf_counter())
        for times, before, after in zip((loads, firsts, seconds), marks, marks[1:], strict=False):
            times.append(after - before)
    return {
        "bytes": float(path.stat().st_size),
        "save_s": saved,
        "load_s": statistics.median(loads),
        "first_call_s": statistics.median(firsts),
        "second_call_s": statistics.median(seconds),
    }


def setup_seconds(case: Case, model: nn.Module, job: Job, folder: Path) -> dict[str, float]:
    """Until each peer could make its first call, those that are installed: of inductor once, its caches off and the first call included;
    of the others the median time of making a session from the model file; making that does not count."""
    bench = Workbench(case, model, job.threads, folder)
    found: dict[str, float] = {}
    for name in job.peers:
        variant = VARIANTS[name]
        times = job.repeats if variant.file else 1
        if name != "eager" and all(map(importlib.util.find_spec, variant.needs)):
            with inductor_config.patch(force_disable_caches=True):
                found[name] = statistics.median(variant.build(bench).setup for _ in range(times))
    return found
