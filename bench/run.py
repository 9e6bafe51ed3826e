"""Measures disc against its peers: `python -m bench.run --suite models --peers eager,ort --threads 1,2`.

Every model and thread count runs in a process of its own, whose environment says how many threads there are, for every library alike.
Inside, disc and the peers take turns. Writes bench/results/<date>-<suite>.json and a Markdown report beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.cases import CASES, MEASURED, parse_shapes
from bench.job import Job
from bench.machine import ROOT, describe
from bench.peers import PEERS
from bench.report import markdown

SUITES = ("models", "overhead", "compile", "stream")
DEFAULT_MODELS = {"models": MEASURED, "overhead": ("add-one",), "compile": ("bert",), "stream": ("bert-small",)}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "DISC_THREADS")
WORKER_SECONDS = 7200


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 when a worker failed or a result was wrong."""
    chosen = _parse(arguments)
    machine = describe()
    results: list[dict[str, object]] = []
    failed: list[dict[str, object]] = []
    for threads in chosen.threads:
        for model in chosen.models:
            job = Job(chosen.suite, model, threads, chosen.peers, chosen.shapes, chosen.repeats)
            print(f"{job.suite}: {model}, {threads} threads", file=sys.stderr, flush=True)
            outcome = run_job(job)
            if isinstance(outcome, str):
                failed.append({"model": model, "threads": threads, "reason": outcome})
            else:
                results.append(outcome)
    now = datetime.datetime.now(datetime.UTC)
    date = now.strftime("%Y-%m-%d %H:%M UTC")
    record = {"suite": chosen.suite, "date": date, "machine": machine, "command": _command(arguments), "results": results, "failed": failed}
    report = markdown(record)
    print(report)
    folder = chosen.output
    folder.mkdir(parents=True, exist_ok=True)
    path = free_path(folder, f"{now:%Y-%m-%d}-{chosen.suite}")
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(report)
    print(f"written: {path} and {path.with_suffix('.md').name}", file=sys.stderr)
    return 1 if failed or any(row["wrong"] for result in results for row in _rows(result)) else 0


def _rows(result: dict[str, object]) -> list[dict[str, object]]:
    rows = result.get("rows", [])
    assert isinstance(rows, list)
    return rows


def _command(arguments: Sequence[str] | None) -> str:
    return " ".join(["python -m bench.run", *(sys.argv[1:] if arguments is None else arguments)])


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--suite", choices=SUITES, default="models")
    parser.add_argument("--peers", default="eager,inductor,ort,openvino", help=f"of {', '.join(PEERS)}; empty = disc alone")
    parser.add_argument("--threads", default="1", help="such as 1 or 1,2")
    parser.add_argument("--models", help=f"of {', '.join(CASES)}; default: those of the suite")
    parser.add_argument("--shapes", help="such as 1x16,4x50; default: those of the model")
    parser.add_argument("--repeats", type=int, default=7, help="turns per figure")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results", help="folder of the results")
    chosen = parser.parse_args(arguments)
    chosen.peers = tuple(name for name in chosen.peers.split(",") if name)
    unknown = set(chosen.peers) - set(PEERS)
    if unknown:
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    chosen.models = chosen.models.split(",") if chosen.models else list(DEFAULT_MODELS[chosen.suite])
    unknown = set(chosen.models) - set(CASES) - set(DEFAULT_MODELS[chosen.suite])
    if unknown:
        parser.error(f"unknown models: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    try:
        chosen.threads = [int(count) for count in chosen.threads.split(",")]
        parse_shapes(chosen.shapes, CASES["bert"])
    except ValueError as error:
        parser.error(str(error))
    return chosen


def run_job(job: Job) -> dict[str, object] | str:
    """The worker's result, or why there is none."""
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
        return json.loads(result_path.read_text())


def free_path(folder: Path, stem: str) -> Path:
    """`<stem>.json`, or with -2, -3, ... where earlier runs of the day already are."""
    path, number = folder / f"{stem}.json", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.json"
    return path


if __name__ == "__main__":
    sys.exit(main())
