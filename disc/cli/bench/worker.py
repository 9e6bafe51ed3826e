"""One peer of `disc bench --against` in a process of its own: `python -m disc.cli.bench.worker ANSWERS`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from disc.cli.bench.peers import PEERS, Bench, Call, Opened
from disc.cli.bench.process import Message, answer_commands
from disc.cli.bench.timing import time_callers

if TYPE_CHECKING:
    from disc.artifact.manifest import InputRecord

WARM_UP_CALLS = 3


class Worker:
    """The state between commands: the peer, and a call of the bound inputs for each caller."""

    def __init__(self) -> None:
        self._callers = 1
        self._opened: Opened | None = None
        self._calls: list[Call] = []

    def open(self, peer: str, records: Sequence[InputRecord], folder: str, **settings: Any) -> Message:
        """settings: the others of `Bench`. Answers setup: seconds."""
        bench = Bench(records=records, folder=Path(folder), **settings)
        torch.set_num_threads(bench.threads)
        torch.set_num_interop_threads(1)
        self._callers = bench.callers
        start = time.perf_counter()
        self._opened = PEERS[peer].open(bench)
        return {"setup": time.perf_counter() - start}

    def bind(self, inputs: str, outputs: str) -> Message:
        """Makes the first calls with the arrays of `inputs` and writes the results to `outputs` (both .npz). Answers first: seconds."""
        assert self._opened is not None
        with np.load(inputs, allow_pickle=False) as archive:
            arrays = [archive[f"arr_{number}"] for number in range(len(archive.files))]
        self._calls = [self._opened.bind(arrays) for _ in range(self._callers)]
        start = time.perf_counter()
        result = self._calls[0]()
        first = time.perf_counter() - start
        np.savez(outputs, *self._opened.arrays(result))
        for call in self._calls * WARM_UP_CALLS:
            call()
        return {"first": first}

    def turn(self, seconds: float) -> Message:
        """One turn of all callers. Answers wall, and calls: the seconds of each."""
        times = time_callers(self._calls, seconds)
        return {"wall": times.wall, "calls": times.calls}


def main(answers: str) -> None:
    """Serves until the input ends, without gradients."""
    worker = Worker()
    commands: Mapping[str, Any] = {"open": worker.open, "bind": worker.bind, "turn": worker.turn}
    torch.set_grad_enabled(False)
    answer_commands(answers, commands)


if __name__ == "__main__":
    main(*sys.argv[1:])
