"""Random graphs through the whole compiler, on many shapes and both ISA levels, against the interpreter.

A failure is shrunk at once, and the message holds the seed and the smallest module that fails in the same way. Each check runs in a
process of its own, so that generated code that crashes or hangs is a failure like any other. More seeds, without pytest:

    python tests/fuzz/test_end_to_end.py 100 400
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from graphs import random_module  # noqa: E402
from oracle import Failure, check  # noqa: E402
from seeds import seeds  # noqa: E402

from disc.cli.debug.reduce import shrink  # noqa: E402

SEEDS = 25
LONG_SEEDS = 400
SECONDS_PER_CHECK = 60.0
SECONDS_TO_SHRINK = 60.0
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["disc.api", "disc.speculation.versions"])  # each check is then a fork away


def checked(text: str, seed: int) -> Failure | None:
    """`oracle.check` in another process."""
    receiver, sender = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_send_check, args=(sender, text, seed))
    process.start()
    sender.close()
    try:
        if not receiver.poll(SECONDS_PER_CHECK):
            return Failure("no answer", f"nothing came back within {SECONDS_PER_CHECK:.0f} s")
        return receiver.recv()
    except EOFError:
        process.join()
        return Failure(f"exit status {process.exitcode}", "the process died")
    finally:
        process.kill()
        process.join()


def _send_check(sender: Connection, text: str, seed: int) -> None:
    sender.send(check(text, seed))


def run_seed(seed: int) -> str:
    """ "" when the module of this seed is right; else what fails and the smallest module that fails so."""
    text = random_module(seed)
    failure = checked(text, seed)
    if failure is None:
        return ""
    kind = failure.kind

    def fails(candidate: str) -> bool:
        found = checked(candidate, seed)
        return found is not None and found.kind == kind

    smallest = text if kind == "invalid module" else shrink(text, fails, SECONDS_TO_SHRINK)
    last = checked(smallest, seed) or failure
    return f"seed {seed}: {kind}\n{last.text[-3000:]}\n{smallest}"


@pytest.mark.parametrize("seed", seeds(12, SEEDS))
def test_random_graph(seed: int) -> None:
    message = run_seed(seed)
    assert not message, message


@pytest.mark.long
def test_more_random_graphs() -> None:
    messages = [message for message in map(run_seed, range(SEEDS, LONG_SEEDS)) if message]
    assert not messages, "\n\n".join(messages)


if __name__ == "__main__":
    wrong = 0
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        report = run_seed(number)
        wrong += bool(report)
        print(report or f"seed {number}: right", flush=True)
    os._exit(1 if wrong else 0)
