"""The other end of `bench.peer_server`: a peer's process, stopped (SIGSTOP) whenever it is not its turn.

So the threads of an idle peer neither spin nor wake, whatever its library does with them, and everybody keeps the wait policy it likes
best: eager on two threads takes 10 to 40 % longer with OMP_WAIT_POLICY=passive (T5 encoder, LayerNorm).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import cast

from bench.machine import ROOT

# The allocator keeps what is freed. By default it gives large results back to the system, and every call faults their pages in anew: on
# results of 128 MiB eager's LayerNorm then takes 66 ms, not 11, and disc's 16, not 12.
TIMED = {"MALLOC_MMAP_THRESHOLD_": str(1 << 33), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


class PeerFailed(Exception):
    """The peer's process gave a reason instead of an answer, or died."""


class PeerProcess:
    """Sends commands and waits for the answers. A context manager: the process ends with it."""

    def __init__(self, name: str, environment: Mapping[str, str] = TIMED) -> None:
        """environment: of the process, over ours; `TIMED` for one whose calls are timed, nothing where its memory is measured."""
        self.name = name
        reading, writing = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.peer_server", str(writing)],
            cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=sys.stderr, pass_fds=[writing], text=True,
        )  # fmt: skip
        os.close(writing)
        self._answers = os.fdopen(reading)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, do: str, **arguments: object) -> dict[str, object]:
        """The answer to one command; the process is stopped afterwards. Raises PeerFailed."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            print(json.dumps({"do": do, **arguments}), file=self._process.stdin, flush=True)
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerFailed(f"the process of {self.name} ended with status {self._process.wait()}; its messages are above")
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # until it does stand still
        answer = json.loads(line)
        if "reason" in answer:
            raise PeerFailed(answer["reason"])
        return answer

    def seconds(self, do: str, key: str, **arguments: object) -> float:
        """One number of an answer."""
        return cast("float", self.ask(do, **arguments)[key])

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()  # works on a stopped process too
        self._process.wait()
        self._answers.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
