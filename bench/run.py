"""Measures disc against its peers: `python -m bench.run --suite models --peers eager,ort --threads 1,2 --dtype fp32,bf16`.

Suites: models, gemm, memory, conv, families, recurrent, library, blocks (a mixture of experts), dynamic (batches of trees and grids),
training (a step, forward to SGD;
in bf16 and fp16 by autocast beside weights of f32, for every peer), lazy (PyTorch
code that is recorded), fusion (by how many inputs a kernel may read), forms (ONNX against the exported module) and overhead
time calls; stream sends a thousand shapes through one process; compile times the compiler.
Every variant of every peer runs in a process of its own, whose environment says how many threads there are, for every library alike; they
take turns, and whose turn it is not is stopped. A whole suite on an idle machine is kept in bench/results (`bench.store`); what ran on a
busy one, or only in part, is smoke.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from bench.cases import CASES, MOST_INPUTS, SUITE_CASES, parse_shapes
from bench.dtypes import DTYPES
from bench.freezer import frozen
from bench.job import Job
from bench.machine import ROOT, others_running, wait_until_idle
from bench.peers import PEERS, VARIANTS
from bench.report import markdown
from bench.store import RESULTS, busy, command_line, keep, new_record, stem_of, updated

FRAMEWORKS = ("eager", "inductor", "ort", "openvino")
DEFAULT_PEERS = {
    "gemm": ("eager", "onednn-packed", "mkl-packed"), "memory": ("eager", "inductor"), "recurrent": ("eager", "ort/plain", "openvino"),
    "library": ("eager",), "blocks": ("eager", "inductor/plain"), "training": ("disc-lazy", "disc-recomputing", "eager", "inductor/plain"),
    "lazy": ("disc-lazy", "eager", "torch-lazy"),
    "dynamic": ("disc-folded", "eager", "by-hand", "dynet/depth", "dynet/agenda"),
    "fusion": tuple(f"disc-f{count}" for count in MOST_INPUTS), "forms": ("disc-onnx",), "stream": (),
}  # others: FRAMEWORKS  # fmt: skip
DEFAULT_REPEATS = {"gemm": 5, "recurrent": 5}  # others: 7. 154 sizes take some four minutes then
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "DISC_THREADS")
WORKER_SECONDS = 7200


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 when a worker failed or a result was wrong."""
    chosen = _parse(arguments)
    fine = True
    for dtype in chosen.dtype:
        for threads in chosen.threads:
            record = _measured(chosen, dtype, threads, sys.argv[1:] if arguments is None else arguments)
            stem = stem_of(chosen.suite, dtype, threads)
            if chosen.update:
                record = updated(record, stem, chosen.output)
            text = markdown(record)
            print(text)
            keep(record, text, stem, chosen.output)
            fine &= not record["failed"] and not any(row["wrong"] for result in record["results"] for row in result.get("rows", []))
    return 0 if fine else 1


def _measured(chosen: argparse.Namespace, dtype: str, threads: int, arguments: Sequence[str]) -> dict[str, Any]:
    """The record of one suite in one dtype with so many threads. The load that it states is the highest seen before, between and within
    jobs. Where other work is frozen, the load before the run is no matter: it is that work's."""
    if not chosen.smoke and not chosen.freeze:
        wait_until_idle()
    record = {**new_record(chosen.suite, command_line("python -m bench.run", arguments), []), "froze": bool(chosen.freeze)}
    with frozen(chosen.freeze):
        load = others_running()
    if not chosen.freeze:
        load = max(load, record["machine"]["load"])
    failed: list[dict[str, object]] = []
    for job in jobs(chosen, dtype, threads):
        print(f"{job.suite}: {', '.join(job.cases)}; {job.threads} threads, {job.dtype}", file=sys.stderr, flush=True)
        outcome = run_job(job)
        if isinstance(outcome, str):
            failed.append({"cases": list(job.cases), "threads": job.threads, "dtype": job.dtype, "reason": outcome})
        else:
            record["results"] += outcome
            load = max([load, *(row["load"] for result in outcome for row in result.get("rows", []))])
        with frozen(chosen.freeze):
            load = max(load, others_running())
    record["machine"]["load"] = round(load, 2)
    names = dict.fromkeys(["disc", *chosen.peers, *DTYPES[dtype].extra_peers])
    settings = {name: VARIANTS[name].settings for name in names}
    smoke = [*busy(load), *_partial(chosen), *(["a part of it failed"] if failed else [])]
    return {**record, "smoke": smoke, "peers": settings, "failed": failed}


def _partial(chosen: argparse.Namespace) -> list[str]:
    """Why this is not the whole suite: it would replace one that is."""
    whole = {
        "--smoke": not chosen.smoke,
        "--cases": chosen.update or {case.name for case in SUITE_CASES[chosen.suite]} <= set(chosen.cases),
        "--shapes": not chosen.shapes,
        "--peers": set(_variants(None, chosen.suite)) <= set(chosen.peers),
    }
    return [f"{option} leaves it incomplete" for option, holds in whole.items() if not holds]


def jobs(chosen: argparse.Namespace, dtype: str, threads: int) -> list[Job]:
    """One worker each: networks alone, what is smaller together."""
    groups = [(case,) for case in chosen.cases if CASES[case].network]
    rest = tuple(case for case in chosen.cases if not CASES[case].network)
    groups += [rest] if rest else []
    return [
        Job(chosen.suite, group, threads, chosen.peers, chosen.shapes, chosen.repeats, dtype, chosen.inductor_shapes, chosen.freeze)
        for group in groups
    ]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=list(SUITE_CASES), default="models")
    parser.add_argument("--cases", help="names of cases, or parts of names; default: all of the suite (compile, stream: any)")
    parser.add_argument("--peers", help=f"of {', '.join(PEERS)}, or variants of them such as openvino/onnx; empty = disc alone; default: "
                        f"{', '.join(FRAMEWORKS)} (gemm: packed ones)")  # fmt: skip
    parser.add_argument("--threads", default="1", help="such as 1 or 1,2")
    parser.add_argument("--dtype", default="fp32", help=f"of {', '.join(DTYPES)}")
    parser.add_argument("--shapes", help="such as 1x16,4x50; default: those of the case")
    parser.add_argument("--inductor-shapes", help="the shapes that inductor takes part in (it compiles for minutes); default: all")
    parser.add_argument("--freeze", metavar="FOLDER", help="a control group whose processes stand still while anything is timed")
    parser.add_argument("--repeats", type=int, help="turns per figure; default: 7 (gemm, which has the most figures: 5)")
    parser.add_argument("--update", action="store_true", help="these cases take the place of the same ones in the result that is kept")
    parser.add_argument("--smoke", action="store_true", help="on a busy machine: do not wait, keep nothing in bench/results")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    chosen = parser.parse_args(arguments)
    try:
        chosen.peers = _variants(chosen.peers, chosen.suite)
        chosen.repeats = chosen.repeats or DEFAULT_REPEATS.get(chosen.suite, 7)
        chosen.dtype = _names(chosen.dtype, DTYPES, "dtypes", ("fp32",))
        chosen.cases = _cases(chosen.suite, chosen.cases)
        chosen.threads = [int(count) for count in chosen.threads.split(",")]
        for name in chosen.cases:
            parse_shapes(chosen.shapes, CASES[name])
            parse_shapes(chosen.inductor_shapes, CASES[name])
    except ValueError as error:
        parser.error(str(error))
    return chosen


def _variants(text: str | None, suite: str) -> tuple[str, ...]:
    """The variants of the peers asked for. Raises ValueError for a name that is neither."""
    known = PEERS | {name: (name,) for name in VARIANTS if name != "disc"}
    chosen = _names(text, known, "peers", DEFAULT_PEERS.get(suite, FRAMEWORKS))
    return tuple(dict.fromkeys(variant for name in chosen for variant in known[name]))


def _names(text: str | None, known: Collection[str], what: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """A list with commas. Raises ValueError for a name that is not known."""
    names = default if text is None else tuple(name for name in text.split(",") if name)
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(f"unknown {what}: {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def _cases(suite: str, text: str | None) -> list[str]:
    """The cases of the suite, or any, whose names are or contain the parts asked for. Raises ValueError for a part that none contains."""
    own = [case.name for case in SUITE_CASES[suite]]
    if not text:
        return own
    candidates = list(CASES) if suite in ("compile", "stream", "models", "forms") else own
    found: dict[str, None] = {}
    for part in text.split(","):
        named = [part] if part in candidates else [name for name in candidates if part in name]
        if not named:
            raise ValueError(f"unknown cases: {part}; there are {', '.join(candidates)}")
        found |= dict.fromkeys(named)
    return list(found)


def run_job(job: Job) -> list[dict[str, Any]] | str:
    """The worker's results, or why there are none."""
    with tempfile.TemporaryDirectory(prefix="disc-bench-") as folder:
        job_path, result_path = Path(folder, "job.json"), Path(folder, "result.json")
        job_path.write_text(json.dumps(dataclasses.asdict(job)))
        environment = {**os.environ, **{name: str(job.threads) for name in THREAD_VARIABLES}}
        command = [sys.executable, "-m", "bench.worker", str(job_path), str(result_path)]
        try:
            status = subprocess.run(command, cwd=ROOT, env=environment, timeout=WORKER_SECONDS).returncode
        except subprocess.TimeoutExpired:
            return f"not done after {WORKER_SECONDS} s"
        if status:
            return f"the worker ended with status {status}; its messages are above"
        return json.loads(result_path.read_text())["results"]


if __name__ == "__main__":
    sys.exit(main())
