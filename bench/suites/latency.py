"""Latency of one case over its shapes, disc and the peers in turns, every result compared with eager's, every time with the roofline."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn

from bench.cases import CASES, Case, Inputs, Shape, TrainingStep, build, parse_shapes, shape_name
from bench.checks import error_of, first_tensor, work_of
from bench.dtypes import DTYPES
from bench.figures import peer_of
from bench.files import file_path
from bench.freezer import frozen
from bench.job import Job, Result
from bench.limits import HOW, Limits, Work, bound, higher, measure_limits
from bench.machine import others_running
from bench.memory import runtime_memory
from bench.peer_process import PeerProcess
from bench.peers import VARIANTS, file_kind
from disc.cli.bench.process import PeerFailed
from disc.cli.bench.runtimes import OPEN
from disc.cli.bench.timing import interleave

LOOK_SECONDS = 0.1  # at who else wants to run, behind the turns of every shape


@dataclass
class Run:
    """What the measurement of one case needs. peers: the processes that could build it; skipped: the others, with the reason."""

    job: Job
    case: Case
    model: nn.Module
    folder: Path
    peers: dict[str, PeerProcess] = field(default_factory=dict)
    setup: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def run(job: Job) -> list[Result]:
    """One result per case. Every peer has one process for all of them."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(PeerProcess(name)) for name in peer_names(job)]
        limits = _limits(job)
        results: list[Result] = []
        for name in job.cases:
            with tempfile.TemporaryDirectory(prefix="disc-bench-") as folder:
                results.append(_case(_opened(job, CASES[name], processes, Path(folder))))
            again = _limits(job)
            limits = higher(limits, again) if limits is not None and again is not None else None
    return [_with_limits(result, limits) for result in results]


def peer_names(job: Job) -> list[str]:
    """disc first; where eager takes part, so do the other ways it has for the dtype."""
    extra = DTYPES[job.dtype].extra_peers if "eager" in job.peers else ()
    return list(dict.fromkeys(["disc", *job.peers, *extra]))


def _opened(job: Job, case: Case, processes: list[PeerProcess], folder: Path) -> Run:
    """Peers that read model files are built one after the other, since they share the files; the others beside them."""
    this = Run(job, case, build(case), folder)
    lanes = [[each for each in processes if bool(VARIANTS[each.name].file) is reads] for reads in (False, True)]
    with ThreadPoolExecutor(len(lanes)) as pool:
        found = dict(pair for lane in pool.map(lambda lane: [_open(this, each) for each in lane], lanes) for pair in lane)
    for process in processes:
        outcome = found[process.name]
        if isinstance(outcome, str):
            this.skipped[process.name] = outcome
        else:
            this.setup[process.name], this.peers[process.name] = outcome, process
    return this


def _open(this: Run, process: PeerProcess) -> tuple[str, float | str]:
    """The peer's name; how long its set-up took, or why there is none."""
    try:
        return process.name, process.seconds("open", "setup", peer=process.name, **_opening(this.job, this.case, this.folder))
    except PeerFailed as error:
        return process.name, str(error)


def _opening(job: Job, case: Case, folder: Path) -> dict[str, object]:
    return {"case": case.name, "threads": job.threads, "dtype": job.dtype, "folder": str(folder)}


def _case(this: Run) -> Result:
    """One row per shape."""
    shapes = parse_shapes(this.job.shapes, this.case)
    rows = [_row(this, shape) for shape in shapes]
    return {
        "case": this.case.name,
        "title": this.case.title,
        "threads": this.job.threads,
        "dtype": this.job.dtype,
        "setup_s": this.setup,
        "skipped": this.skipped,
        "rows": rows,
        "launches": {name: process.ask("launches").get("count") for name, process in this.peers.items()},
        "memory": _memory(this, max(shapes, key=math.prod)) if this.case.network else None,
        **({"compiling": _compiling(this)} if this.case.network and isinstance(this.model, TrainingStep) else {}),
    }


def _row(this: Run, shape: Shape) -> dict[str, object]:
    inputs = this.case.inputs(shape)
    expected = first_tensor(this.model(*inputs))
    firsts: dict[str, float] = {}
    errors: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, process in this.peers.items():
        if peer_of(name) == "inductor" and this.job.inductor_shapes and shape not in parse_shapes(this.job.inductor_shapes, this.case):
            continue
        output = this.folder / "result.npy"
        try:
            firsts[name] = process.seconds("bind", "first", shape=shape, output=str(output))
            errors[name] = error_of(torch.from_numpy(np.load(output)), expected)
        except PeerFailed as error:
            failed[name] = str(error)
    turns: dict[str, Callable[[], float]] = {name: _turn(this.peers[name]) for name in firsts}
    with frozen(this.job.freeze):
        timings = interleave(turns, this.job.repeats)
        recording = {name: cost for name in firsts if (cost := this.peers[name].ask("recording"))}
        load = others_running(LOOK_SECONDS)
    line = ", ".join(f"{name} {timing.median:.3f} ms" for name, timing in timings.items())
    print(f"  {this.case.name} {shape_name(shape)}: {line}", file=sys.stderr, flush=True)
    dtype = DTYPES[this.job.dtype]
    tolerance = this.case.tolerance or dtype.tolerance
    return {
        "shape": shape_name(shape),
        "held_out": None if this.case.tuned is None else not this.case.tuned(shape),
        "work": dataclasses.asdict(work_of(this.model, inputs, expected, dtype)),
        "first_s": firsts,
        "ms": {name: dataclasses.asdict(timing) for name, timing in timings.items()},
        "error": errors,
        "wrong": [name for name, error in errors.items() if not error <= tolerance],
        "failed": failed,
        "load": load,
        **({"recording": recording} if recording else {}),
    }


def _turn(process: PeerProcess) -> Callable[[], float]:
    return lambda: process.seconds("turn", "ms")


# --- limits ---------------------------------------------------------------------------------------------------------------------


def _limits(job: Job) -> Limits | None:
    """None where the machine's limits cannot be measured."""
    try:
        with frozen(job.freeze):
            return measure_limits(job.threads, DTYPES[job.dtype].limit)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no limits: {error}", file=sys.stderr, flush=True)
        return None


def _with_limits(result: Result, limits: Limits | None) -> Result:
    """The result with the limits, and with the milliseconds that the multiply-adds and the bytes of every row must take."""
    rows = cast("list[dict[str, object]]", result["rows"])
    if limits is None:
        return {**result, "limits": None, "rows": [{**row, "bound": None} for row in rows]}
    bounds = [bound(Work(**cast("dict[str, int]", row["work"])), limits) for row in rows]
    judged = [{**row, "bound": dataclasses.asdict(each)} for row, each in zip(rows, bounds, strict=True)]
    return {**result, "limits": {**dataclasses.asdict(limits), "how": HOW}, "rows": judged}


# --- compiling ------------------------------------------------------------------------------------------------------------------

SIZES, LENGTHS = 50, 10  # that one compile is for; so many of the second dim, where that may change


def _compiling(this: Run) -> dict[str, object]:
    """Of disc's step of training: `seconds` until the first step has ended, without the compile cache, and with it in a process that finds
    it filled; `compiles` when SIZES others come in a process of their own."""
    try:
        with tempfile.TemporaryDirectory(prefix="disc-bench-cache-") as folder:
            seconds = [_cached_seconds(this, folder) for _ in ("cold", "cached")]
        with PeerProcess("disc", {}) as process:
            process.ask("open", peer="disc", **_opening(this.job, this.case, this.folder))
            compiles = process.ask("sizes", shapes=sizes_of(this.case))["compiles"]
    except PeerFailed as error:
        return {"failed": str(error)}
    return {"seconds": dict(zip(("cold", "cached"), seconds, strict=True)), "sizes": SIZES, "compiles": compiles}


def _cached_seconds(this: Run, folder: str) -> float:
    with PeerProcess("disc-cached", {"DISC_CACHE_DIR": folder, "DISC_CACHE": "1"}) as process:
        return process.seconds("open", "setup", peer="disc-cached", **_opening(this.job, this.case, this.folder))


def sizes_of(case: Case) -> list[Shape]:
    """SIZES shapes that differ from the example's in the dims that may change."""
    if len(case.dynamic) == 1:
        (dim,) = case.dynamic
        return [(*case.example[:dim], case.example[dim] + number, *case.example[dim + 1 :]) for number in range(1, SIZES + 1)]
    batch, length = case.example
    return [(batch + 1 + number // LENGTHS, length + 1 + number % LENGTHS) for number in range(SIZES)]


# --- memory ---------------------------------------------------------------------------------------------------------------------


def _memory(this: Run, shape: Shape) -> dict[str, object]:
    """Peak resident MiB during calls of the largest shape. Runtimes with a model file are measured alone with it; those inside PyTorch in
    a fresh process that holds PyTorch and the model, as it must; of a step of training also what it takes beyond one at the example's
    shape: activations and gradients of them, without weights and compilers."""
    mib: dict[str, dict[str, float]] = {}
    failed: dict[str, str] = {}
    for name in this.peers:
        try:
            in_file = peer_of(name) in OPEN and not isinstance(this.model, TrainingStep)
            mib[name] = _file_memory(this, name, shape) if in_file else _torch_memory(this, name, shape)
        except (PeerFailed, subprocess.CalledProcessError) as error:
            failed[name] = str(error)
    return {"shape": shape_name(shape), "mib": mib, "failed": failed}


def _torch_memory(this: Run, name: str, shape: Shape) -> dict[str, float]:
    with PeerProcess(name, {}) as process:
        process.ask("open", peer=name, **_opening(this.job, this.case, this.folder))
        output = str(this.folder / "result.npy")
        small = None
        if isinstance(this.model, TrainingStep):
            process.ask("bind", shape=this.case.example, output=output)
            small = process.seconds("peak", "bytes")
        process.ask("bind", shape=shape, output=output)
        peak = process.seconds("peak", "bytes")
        figures = {"calls": peak} if small is None else {"calls": peak, "step": peak - small}
        return {part: round(value / 2**20, 1) for part, value in figures.items()}


def _file_memory(this: Run, name: str, shape: Shape) -> dict[str, float]:
    dtype, runtime = DTYPES[this.job.dtype], peer_of(name)
    file = this.folder / f"{this.case.name}.disc"
    if name == "disc":
        this.peers[name].ask("save", path=str(file))
    else:
        file = file_path(this.folder, this.case.name, file_kind(runtime, VARIANTS[name].file, dtype))
    inputs = _saved(this.case.inputs(shape), this.folder)
    figures = runtime_memory(runtime, file, this.job.threads, dtype.openvino, inputs)
    return {key: round(value / 2**20, 1) for key, value in figures.items()}


def _saved(inputs: Inputs, folder: Path) -> list[Path]:
    paths = [folder / f"input{number}.npy" for number in range(len(inputs))]
    for path, tensor in zip(paths, inputs, strict=True):
        np.save(path, tensor.numpy())
    return paths
