"""Runs one job in a process of its own: `python -m bench.worker JOB.json RESULT.json`, started by `bench.run`."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

import torch

from bench.cases import SUITE_CASES
from bench.freezer import frozen
from bench.job import Job

# The module of each suite: the suites of calls differ in their cases alone.
MODULES = dict.fromkeys(SUITE_CASES, "latency") | {"compile": "compile", "stream": "stream"}


def main(job_path: str, result_path: str) -> None:
    """Reads the job, runs its suite without gradients, writes the results."""
    fields = json.loads(Path(job_path).read_text())
    job = Job(**{**fields, "cases": tuple(fields["cases"]), "peers": tuple(fields["peers"])})
    torch.set_num_threads(job.threads)
    torch.set_num_interop_threads(1)
    suite = importlib.import_module(f"bench.suites.{MODULES[job.suite]}")
    start = time.perf_counter()
    with torch.no_grad(), frozen(job.freeze if MODULES[job.suite] != "latency" else None):  # calls are timed shape by shape
        results = suite.run(job)
    Path(result_path).write_text(json.dumps({"results": results, "wall_s": time.perf_counter() - start}))


if __name__ == "__main__":
    main(*sys.argv[1:])
