"""A process that is stopped (SIGSTOP) whenever it is not its turn, and its other end, which answers commands.

So the threads of an idle peer neither spin nor wake, whatever its library does with them, and everybody keeps the wait policy it likes
best: eager on two threads takes 10 to 40 % longer with OMP_WAIT_POLICY=passive (T5 encoder, LayerNorm).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from disc.config import child_environment

Message = Mapping[str, object]
PR_SET_PDEATHSIG = 1  # prctl(2)
# The allocator keeps what is freed. By default it gives large results back to the system, and every call faults their pages in anew: on
# results of 128 MiB eager's LayerNorm then takes 66 ms, not 11, and disc's 16, not 12.
TIMED = {"MALLOC_MMAP_THRESHOLD_": str(1 << 33), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


class PeerFailed(Exception):
    """The peer's process gave a reason instead of an answer, or died."""


class StoppedProcess:
    """Sends commands and waits for the answers. A context manager: the process ends with it."""

    def __init__(self, name: str, module: str, environment: Mapping[str, str] = TIMED, folder: Path | None = None) -> None:
        """name: for messages. module: run with `-m`; it ends in `answer_commands` of its only argument. environment: of the process, over
        ours; `TIMED` for one whose calls are timed, nothing where its memory is measured. folder: where it runs; None: here."""
        self.name = name
        reading, writing = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(writing)],
            cwd=folder, env=child_environment(environment), stdin=subprocess.PIPE, stdout=2, pass_fds=[writing], text=True,
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()  # works on a stopped process too
        self._process.wait()
        self._answers.close()
        if self._process.stdin is not None:
            self._process.stdin.close()


def answer_commands(answers: str, commands: Mapping[str, Callable[..., Message]]) -> None:
    """The other end: reads one JSON command per line from standard input and writes one JSON answer per line to the file descriptor
    `answers`, until the input ends; dies with its parent, stopped or not. An answer with "reason" says why there is no other."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # A parent that ended before that, while this process loaded its modules, reads no answer.
    with contextlib.suppress(BrokenPipeError), os.fdopen(int(answers), "w") as out:
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer = commands[command.pop("do")](**command)
            except Exception as error:
                answer = {"reason": f"{type(error).__name__}: {str(error).strip()[:300]}"}
            print(json.dumps(answer), file=out, flush=True)
