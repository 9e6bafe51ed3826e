"""Random calls of PyTorch's ops through `disc.compile` and through `torch.compile`: a right result or a `DiscError`, nothing else.

    python -m tests.fuzz.ops --programs 100000 --out bench/results/2026-11-22-op-fuzz.json
    python -m tests.fuzz.ops --only 4711                # one program again, with all that is known of it

A program is a call of an op with its inputs. Each is compiled once and called with several sets of inputs (other memory layouts, other
sizes), each of which counts as a program; `compiled` says how many compiles there were. Programs run in processes of their own with a limit
of time and memory, so that a crash or a hang is a failure with a number like any other.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

SECONDS, GIGABYTES = 60.0, 6  # of CPU time per program
WALL_SECONDS = 900.0  # a process that waits for ever
BACKEND_SHARE = 8  # every so many programs go through torch.compile
STAGES = ("begin", "make", "eager", "compile", "call", "torch.compile")
STAGES_OF_PYTORCH = ("begin", "make", "eager")
PER_PROCESS = 150  # compiles; memory that PyTorch keeps per traced op goes with the process


@dataclass
class Summary:
    """counts: outcome → calls. failures: what must not be."""

    compiled: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, object]] = field(default_factory=list)

    def add(self, record: dict[str, Any]) -> None:
        from tests.fuzz.op_check import FINE

        self.compiled += 1
        for kind, text, where in record["outcomes"]:
            self.counts[kind] += 1
            if kind in ("refused", "both refuse") and text:
                self.refusals[text.split(":")[0]] += 1
            if kind not in FINE:
                self.failures.append(
                    {
                        "number": record["number"],
                        "through": record["through"],
                        "program": record["program"],
                        "kind": kind,
                        "where": where,
                        "text": text,
                    }
                )

    def calls(self) -> int:
        return sum(self.counts.values())

    def as_json(self) -> dict[str, object]:
        classes = Counter(f"{each['kind']}: {each['where']}" for each in self.failures)
        return {"programs": self.calls(), "compiled": self.compiled, "outcomes": dict(self.counts.most_common()), "refused by": dict(self.refusals.most_common()),
                "classes of failures": dict(classes.most_common()), "failures": self.failures}  # fmt: skip


def through(number: int) -> str:
    return "backend" if number % BACKEND_SHARE == BACKEND_SHARE - 1 else "compile"


def prepare() -> None:
    """Loads what every process needs, once, before they are forked; starts no thread."""
    os.environ |= {"DISC_CACHE": "0", "DISC_THREADS": "1"}
    import torch

    torch.set_num_threads(1)
    import disc.api
    import disc.frontend.dynamo  # noqa: F401
    from tests.fuzz.op_programs import overloads, samples_table

    samples_table(), overloads()


def _work(numbers: list[int], calls: int, sender: Connection, state: mmap.mmap) -> None:
    """Runs the programs; what PyTorch prints goes nowhere."""
    resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES << 30, GIGABYTES << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    for number in numbers:
        sender.send(run_one(number, calls, state))
    sender.close()
    os._exit(0)


def run_one(number: int, calls: int, state: mmap.mmap | None = None) -> dict[str, object]:
    from tests.fuzz.op_check import check
    from tests.fuzz.op_programs import make_program

    def mark(stage: str) -> None:
        if state is not None:
            state[0] = STAGES.index(stage)

    mark("make")
    program = make_program(number)
    if state is not None:
        text = str(program).encode()[:4000]
        state[1 : 1 + len(text) + 1] = text + b"\0"
    outcomes = check(program, through(number), mark, calls)
    mark("begin")
    return {
        "number": number,
        "program": str(program),
        "through": through(number),
        "outcomes": [(o.kind, o.text, o.where) for o in outcomes],
    }


@dataclass
class _Worker:
    numbers: list[int]
    state: mmap.mmap
    receiver: Connection
    process: Any
    since: float
    cpu: float = 0.0
    done: int = 0


def records(numbers: list[int], calls: int, workers: int) -> Iterator[dict[str, Any]]:
    """A record per program, in any order."""
    context = multiprocessing.get_context("fork")
    pending = [numbers[i : i + PER_PROCESS] for i in range(0, len(numbers), PER_PROCESS)][::-1]
    running: list[_Worker] = []
    while pending or running:
        while pending and len(running) < workers:
            chunk, state = pending.pop(), mmap.mmap(-1, 8192)
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(chunk, calls, sender, state))
            process.start()
            sender.close()
            running.append(_Worker(chunk, state, receiver, process, time.monotonic()))
        wait([worker.receiver for worker in running], timeout=1.0)
        for worker in list(running):
            ended = ""
            try:
                while worker.receiver.poll():
                    yield worker.receiver.recv()
                    worker.done, worker.since, worker.cpu = worker.done + 1, time.monotonic(), _cpu_seconds(worker.process.pid)
            except EOFError:
                worker.process.join()
                ended = "" if worker.done == len(worker.numbers) else f"exit status {worker.process.exitcode}"
            else:
                if _cpu_seconds(worker.process.pid) - worker.cpu < SECONDS and time.monotonic() - worker.since < WALL_SECONDS:
                    continue
                ended = f"no answer within {SECONDS:.0f} s"
                worker.process.kill()
                worker.process.join()
            running.remove(worker)
            if ended:
                yield _broken(worker, ended)
            if worker.numbers[worker.done + 1 :]:
                pending.append(worker.numbers[worker.done + 1 :])


def _cpu_seconds(pid: int) -> float:
    """What the process has used; 0 where it has gone."""
    try:
        used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0.0
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


def _broken(worker: _Worker, ended: str) -> dict[str, Any]:
    """The record of a program that ended its process."""
    stage, number = STAGES[worker.state[0]], worker.numbers[worker.done]
    kind = "eager fails" if stage in STAGES_OF_PYTORCH else "hang" if "no answer" in ended else "crash"
    program = worker.state[1:4100].split(b"\0")[0].decode(errors="replace")
    outcome = (kind, f"{ended} in stage {stage}", f"{ended} in stage {stage}")
    return {"number": number, "program": program, "through": through(number), "outcomes": [outcome]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000, help="stop after this many calls")
    parser.add_argument("--first", type=int, default=0, help="number of the first program to compile")
    parser.add_argument("--calls", type=int, default=10, help="calls per compiled program")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=None, help="stop after this time, too")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--only", type=int, default=None, help="run this one program, in this process")
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args()
    prepare()
    if given.only is not None:
        print(json.dumps(run_one(given.only, given.calls), indent=1).replace("\\n", "\n"))
        return
    summary, begun = Summary(), time.monotonic()
    found = records(list(range(given.first, given.first + given.programs)), given.calls, given.workers)
    for record in found:
        before = len(summary.failures)
        summary.add(record)
        for failure in summary.failures[before:] if not given.quiet else []:
            print(
                f"{failure['number']} {failure['through']} {failure['kind']}: {failure['program'][:200]}\n    {failure['where']}: {str(failure['text']).splitlines()[0][:250]}",
                file=sys.stderr,
                flush=True,
            )
        if summary.calls() >= given.programs or (given.seconds is not None and time.monotonic() - begun > given.seconds):
            break
    found.close()
    for child in multiprocessing.active_children():
        child.kill()
    report = {"first": given.first, "calls per compile": given.calls, "seconds": round(time.monotonic() - begun, 1), **summary.as_json()}
    if given.out is not None:
        given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: value for name, value in report.items() if name != "failures"}, indent=1))
    os._exit(1 if summary.failures else 0)


if __name__ == "__main__":
    main()
