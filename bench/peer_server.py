"""One peer in a process of its own: `python -m bench.peer_server ANSWERS`, started by `bench.peer_process`.

It answers commands as `disc.cli.bench.process` says; what libraries print goes to standard error.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

from bench.cases import CASES, Inputs, build
from bench.dtypes import DTYPES
from bench.memory import peak_of
from bench.peers import Call, Peer, Skipped, Workbench, as_tensor, build_peer
from disc.cli.bench.process import Message, answer_commands
from disc.cli.bench.timing import calls_per_turn, time_turn
from disc.codegen.compiles import process_compiles


class Server:
    """The state between commands: the peer of the open case, and the call of the bound shape."""

    def __init__(self) -> None:
        self.bench: Workbench | None = None
        self.peer: Peer | None = None
        self.call: Call | None = None
        self.inputs: Inputs | None = None  # of the bound shape
        self.count = 1

    def open(self, peer: str, case: str, threads: int, dtype: str, folder: str) -> Message:
        """Builds the peer for a case, in the place of the one before. Answers setup: seconds."""
        self.peer = self.call = self.bench = None
        bench = self.bench = Workbench(CASES[case], build(CASES[case]), threads, Path(folder), DTYPES[dtype])
        made = build_peer(peer, bench)
        if isinstance(made, Skipped):
            return {"reason": made.reason}
        self.peer = made
        return {"setup": made.setup}

    def bind(self, shape: list[int], output: str) -> Message:
        """Makes the first call with a shape, recompiles included, and writes its result to `output` (.npy). Answers first: seconds."""
        assert self.peer is not None and self.bench is not None
        self.inputs = self.bench.case.inputs(tuple(shape))
        self.call = self.peer.bind(self.inputs)
        start = time.perf_counter()
        result = self.call()
        first = time.perf_counter() - start
        np.save(output, as_tensor(result).numpy())
        self.call()
        self.count = calls_per_turn(self.call)
        return {"first": first}

    def turn(self) -> Message:
        """One turn of calls, after one that brings weights and code back into the caches. Answers ms: per call."""
        assert self.call is not None
        self.call()
        return {"ms": time_turn(self.call, self.count)}

    def peak(self) -> Message:
        """Answers bytes: the highest resident memory during calls of the bound shape."""
        assert self.call is not None
        call = self.call
        return {"bytes": peak_of(lambda: [call() for _ in range(3)])}

    def sizes(self, shapes: list[list[int]]) -> Message:
        """Calls with each of the shapes. Answers compiles: how often disc's code generator ran for them."""
        assert self.peer is not None and self.bench is not None
        before = process_compiles()
        for shape in shapes:
            self.peer.bind(self.bench.case.inputs(tuple(shape)))()
        return {"compiles": process_compiles() - before}

    def launches(self) -> Message:
        """Answers count: kernels that one call of the bound shape runs; none where no executable tells."""
        assert self.call is not None and self.peer is not None
        if self.peer.executable is None:
            return {}
        before = self.peer.executable.stats()["launches"]
        self.call()
        return {"count": self.peer.executable.stats()["launches"] - before}  # pyright: ignore[reportOperatorIssue]

    def recording(self) -> Message:
        """Answers what recording a call of the bound shape costs (`Peer.recording`); nothing where none is recorded."""
        assert self.peer is not None and self.inputs is not None
        return {} if self.peer.recording is None else {**self.peer.recording(self.inputs)}

    def save(self, path: str) -> Message:
        """Writes disc's artifact."""
        assert self.peer is not None and self.peer.executable is not None
        self.peer.executable.save(path)
        return {}


def main(answers: str) -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.set_num_interop_threads(1)
    server = Server()
    commands = {
        "open": server.open,
        "bind": server.bind,
        "turn": server.turn,
        "peak": server.peak,
        "sizes": server.sizes,
        "launches": server.launches,
        "recording": server.recording,
        "save": server.save,
    }
    with torch.no_grad():
        answer_commands(answers, commands)


if __name__ == "__main__":
    main(*sys.argv[1:])
