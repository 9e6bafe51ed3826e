"""Random calls of PyTorch's ops through `disc.compile` and through `torch.compile`: a right result or a `DiscError`, nothing else.

    python -m tests.fuzz.ops --programs 100000 --out FILE     # stopped and begun again, it goes on where FILE ends
    python -m tests.fuzz.ops --programs 100000 --out FILE --named 'linalg|special'
    python -m tests.fuzz.ops --again --out FILE               # what failed, once more, after it was mended
    python -m tests.fuzz.ops --only 4711                      # one program, with all that is known of it

A program is a call of an op with its inputs. Each is compiled once and called with several sets of inputs (other memory layouts, other
sizes), each of which counts as a program; `compiled` says how many compiles there were. Programs run in processes of their own with a limit
of time and memory, so that a crash or a hang is a failure with a number like any other.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import json
import mmap
import multiprocessing
import os
import pkgutil
import re
import resource
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.fuzz.op_report import Chunk, Report, failures_of, revision, show

SECONDS, GIGABYTES = 60.0, 6  # of CPU time per program
WALL_SECONDS = 900.0  # a process that waits for ever
SAVE_SECONDS = 30.0
BACKEND_SHARE = 16  # every so many programs go through torch.compile
STAGES = ("begin", "make", "eager", "compile", "call", "torch.compile")
STAGES_OF_PYTORCH = ("begin", "make", "eager")
Run = Callable[[int, int, mmap.mmap | None], dict[str, Any]]  # number of a program, calls → its record
PER_PROCESS = 150  # compiles; memory that PyTorch keeps per traced op goes with the process


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

    _import_compiler()
    samples_table(), overloads()
    _materialize_once()
    gc.collect()
    gc.freeze()  # some 500,000 objects, which each full collection in a child would go through


def _import_compiler() -> None:
    """All of it: what a process imports later may have changed by then."""
    for part in ("frontend", "ir", "passes", "shapes", "codegen", "targets", "speculation", "artifact"):
        package = importlib.import_module(f"disc.{part}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def _materialize_once() -> None:
    """torch.export registers all composite ops anew in each of the several traces of a compile, an eighth of a small program's time."""
    from torch._export import utils

    utils._materialize_cpp_cia_ops()
    utils._materialize_cpp_cia_ops = lambda: None


def _work(numbers: list[int], calls: int, sender: Connection, state: mmap.mmap, run: Run) -> None:
    """Runs the programs; what PyTorch prints goes nowhere."""
    resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES << 30, GIGABYTES << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    for number in numbers:
        sender.send(run(number, calls, state))
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


def records(
    numbers: list[int], calls: int, workers: int, run: Run = run_one, per_process: int = PER_PROCESS, seconds: float = SECONDS
) -> Generator[dict[str, Any]]:
    """A record per program, in any order: what `run` makes of its number. seconds: of CPU time that one may take."""
    context = multiprocessing.get_context("fork")
    pending = [numbers[i : i + per_process] for i in range(0, len(numbers), per_process)][::-1]
    running: list[_Worker] = []
    try:
        while pending or running:
            while pending and len(running) < workers:
                chunk, state = pending.pop(), mmap.mmap(-1, 8192)
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(chunk, calls, sender, state, run))
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
                    if _cpu_seconds(worker.process.pid) - worker.cpu < seconds and time.monotonic() - worker.since < WALL_SECONDS:
                        continue
                    ended = f"no answer within {seconds:.0f} s"
                    worker.process.kill()
                    worker.process.join()
                running.remove(worker)
                if ended:
                    yield _broken(worker, ended)
                if worker.numbers[worker.done + 1 :]:
                    pending.append(worker.numbers[worker.done + 1 :])
    finally:
        for worker in running:
            worker.process.kill()
            worker.process.join()


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
    parser.add_argument("--programs", type=int, default=1000, help="stop when the file holds this many calls")
    parser.add_argument("--first", type=int, default=None, help="number of the first program to compile (where the file ends)")
    parser.add_argument("--calls", type=int, default=100, help="calls per compiled program")
    parser.add_argument("--named", default="", help="only ops whose name this regular expression finds: 'linalg|special|window'")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=None, help="stop after this time, too")
    parser.add_argument("--out", type=Path, required="--only" not in sys.argv)
    parser.add_argument("--again", action="store_true", help="run only what failed and has not been right since")
    parser.add_argument("--only", type=int, default=None, help="run this one program, in this process")
    given = parser.parse_args()
    prepare()
    if given.only is not None:
        print(json.dumps(run_one(given.only, given.calls), indent=1).replace("\\n", "\n"))
        return
    report = Report.read(given.out) if given.out.exists() else Report()
    (_run_again if given.again else _run_more)(report, given)
    report.write(given.out)
    print(json.dumps(report.summary(), indent=1))
    sys.stdout.flush()
    os._exit(1 if report.open_failures() else 0)


def _run_more(report: Report, given: argparse.Namespace) -> None:
    first = report.next_number() if given.first is None else given.first
    chunk, begun, saved = Chunk(revision(), first, given.calls, named=given.named), time.monotonic(), time.monotonic()
    report.chunks.append(chunk)
    found = records(_numbers(first, given.programs, given.named), given.calls, given.workers)
    for record in found:
        print(show(report.add(record)), end="\n" * bool(failures_of(record, "")), file=sys.stderr, flush=True)
        chunk.cpu_seconds = round(_cpu_seconds_of_children(), 1)
        if time.monotonic() - saved > SAVE_SECONDS:
            report.write(given.out)
            saved = time.monotonic()
        if report.calls() >= given.programs or (given.seconds is not None and time.monotonic() - begun > given.seconds):
            break
    found.close()


def _numbers(first: int, count: int, named: str) -> list[int]:
    """The first so many from `first` on whose programs have such a name."""
    from tests.fuzz.op_programs import first_name

    numbers = itertools.count(first)
    return list(itertools.islice((each for each in numbers if not named or re.search(named, first_name(each))), count))


def _run_again(report: Report, given: argparse.Namespace) -> None:
    numbers = sorted({failure.number for failure in report.open_failures()})
    now = revision()
    for record in records(numbers, given.calls, given.workers):
        still = report.note_again(record, now)
        print(show(still), end="\n" * bool(still), file=sys.stderr, flush=True)


def _cpu_seconds_of_children() -> float:
    """Of those that have ended and those that run."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + sum(_cpu_seconds(child.pid or 0) for child in multiprocessing.active_children())


if __name__ == "__main__":
    main()
