"""Forks a process whose threads call, load and verify: no child may hang, fail or give a wrong number.

forks.py --children N [--output FILE.json]: prints what became of the children as JSON, or writes it with the machine it ran on.

Four threads call (small and large results, one and two threads a call), a fifth loads an artifact from a file, verifies and drops it. Each
child calls three times: a small result, a large one, and the artifact whose weights were being hashed when it was forked; every eighth
forks a child of its own, which does the same.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import select
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "ral")]

from programs import build, manifest  # noqa: E402

from bench.store import finding  # noqa: E402
from disc.ral import executable  # noqa: E402
from disc.ral.executable import Executable  # noqa: E402

HANGS_AFTER = 60.0  # seconds
AT_ONCE = 8  # children that run side by side
GRANDCHILDREN = 8  # of so many children one forks another
SMALL, LARGE = 16, 1 << 20  # elements of f32: a result from the allocator, one of 4 MiB from blocks that are reused
MIDDLE = 1 << 16  # elements: 256 KiB
LOADED = 17 << 20  # bytes of weights: two chunks to hash

# y = 2 x + weight[0], threads over elements.
TWICE = """
#include "ral.h"
static void twice(const int64_t* args, int64_t begin, int64_t end, void* scratch) {
  const float *x = (const float*)args[0], *weight = (const float*)args[2];
  float* y = (float*)args[1];
  for (int64_t i = begin; i < end; ++i) y[i] = 2 * x[i] + *weight;
}
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  float* y = api->output(exec, 0, in[0].dims);
  if (!y || !api->alloc(exec, 4096)) return 1;
  int64_t args[3] = {(int64_t)in[0].data, (int64_t)y, (int64_t)weights[0]};
  return api->launch(exec, 0, twice, args, in[0].dims[0], 16, 0);
}
"""


def twice(weight: np.ndarray, threads: int) -> Executable:
    described = manifest([{"name": "x", "dtype": "f32", "dims": ["S0"]}], [{"name": "y", "dtype": "f32", "rank": 1}], kernels=("twice",))
    return Executable.from_parts(described, {"x86-64-v3": build(TWICE)}, [("w", "f32", weight)], threads=threads)


class Load:
    """The executables, and the threads that use them until `stop`."""

    def __init__(self, folder: Path) -> None:
        one = np.ones(1, np.float32)
        self.alone, self.shared = twice(one, 1), twice(one, 2)
        self.file = folder / "loaded.disc"
        twice(np.ones(LOADED // 4, np.float32), 2).save(self.file)
        self.loaded = executable.load(self.file, threads=2)
        self.inputs = {size: np.ones(size, np.float32) for size in (SMALL, MIDDLE, LARGE)}
        self.calls = 0
        self._done = False
        callers = [(self.alone, SMALL), (self.shared, LARGE), (self.shared, MIDDLE), (self.shared, SMALL)]
        self._threads = [threading.Thread(target=self._call, args=each, daemon=True) for each in callers]
        self._threads.append(threading.Thread(target=self._load, daemon=True))
        for thread in self._threads:
            thread.start()

    def _call(self, called: Executable, size: int) -> None:
        while not self._done:
            called(self.inputs[size])
            self.calls += 1

    def _load(self) -> None:
        while not self._done:
            self.loaded = executable.load(self.file, threads=2)
            time.sleep(0.004)
            self.loaded.verify()

    def stop(self) -> None:
        self._done = True
        for thread in self._threads:
            thread.join()

    def right(self) -> bool:
        """Three calls; what a child does."""
        calls = ((self.alone, SMALL), (self.shared, LARGE), (self.loaded, SMALL))
        return all(np.array_equal(np.asarray(called(self.inputs[size])), 3 * self.inputs[size]) for called, size in calls)


def child(load: Load, forks: bool) -> int:
    """The exit code: 0 right, 3 wrong numbers, 4 an error, 5 the grandchild failed."""
    try:
        if forks:
            grandchild = os.fork()
            if grandchild == 0:
                return child(load, False)
            if os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) != 0:
                return 5
        return 0 if load.right() else 3
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 4


@dataclasses.dataclass(frozen=True)
class Child:
    pid: int
    descriptor: int
    deadline: float

    def ending(self) -> str | None:
        """ "exit 0", "signal 11" or "hang"; None while it runs."""
        ended = select.select([self.descriptor], [], [], 0)[0]
        if not ended and time.monotonic() < self.deadline:
            return None
        os.close(self.descriptor)
        if not ended:
            os.kill(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return "hang" if not ended else f"exit {code}" if code >= 0 else f"signal {-code}"


def forked(load: Load, number: int) -> Child:
    pid = os.fork()
    if pid == 0:
        os._exit(child(load, number % GRANDCHILDREN == 0))
    return Child(pid, os.pidfd_open(pid), time.monotonic() + HANGS_AFTER)


def run(children: int) -> dict[str, object]:
    endings: collections.Counter[str] = collections.Counter()
    running: list[Child] = []
    start = time.monotonic()
    sys.setswitchinterval(2e-4)  # seconds: this thread is one of six that want the GIL
    with tempfile.TemporaryDirectory() as folder:
        load = Load(Path(folder))
        for number in range(1, children + 1):
            running.append(forked(load, number))
            while len(running) == AT_ONCE or (running and number == children):
                select.select([each.descriptor for each in running], [], [], 1)
                found = {each: ending for each in running if (ending := each.ending()) is not None}
                endings.update(found.values())
                running = [each for each in running if each not in found]
        load.stop()
        right = load.right()
    return {
        "children": children, "grandchildren": children // GRANDCHILDREN, "endings": dict(endings), "hangs": endings["hang"],
        "parent_right": right, "parent_calls": load.calls, "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--children", type=int, required=True)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    found = run(arguments.children)
    finding("forks", "python tests/faults/forks.py", found, arguments.output)


if __name__ == "__main__":
    main()
