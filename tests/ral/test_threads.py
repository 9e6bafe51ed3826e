"""The pool of threads: which launches are split, who runs them, and that nobody runs when there is nothing to do."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from programs import build, manifest

from disc.ral.executable import Executable

# y = for each of n tasks of the given cost the id of the thread that ran it. With `meet` 1 no task ends before another thread has begun
# one, or 20 seconds have gone by.
WHO = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "ral.h"
static _Thread_local int64_t self;
static void who(const int64_t* args, int64_t begin, int64_t end, void* scratch) {
  int64_t* out = (int64_t*)args[0];
  _Atomic int64_t* first = (_Atomic int64_t*)args[2];
  _Atomic int64_t* second = first + 1;
  if (!self) self = syscall(SYS_gettid);
  int64_t nobody = 0;
  if (!__atomic_compare_exchange_n(first, &nobody, self, 0, 5, 5) && nobody != self) *second = self;
  time_t start = time(0);
  while (args[1] && !*second && time(0) - start < 20) usleep(100);
  for (int64_t i = begin; i < end; ++i) out[i] = self;
}
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  const int64_t* wanted = (const int64_t*)in[0].data;  // tasks, cost, meet
  _Atomic int64_t seen[2] = {0, 0};
  int64_t* out = api->output(exec, 0, wanted);
  if (!out) return 1;
  int64_t args[3] = {(int64_t)out, wanted[2], (int64_t)seen};
  return api->launch(exec, 0, who, args, wanted[0], wanted[1], 0);
}
"""

MICROSECOND = 16 * 1000  # of cost


@pytest.fixture
def who() -> Executable:
    described = manifest([{"name": "wanted", "dtype": "i64", "dims": [3]}], [{"name": "ids", "dtype": "i64", "rank": 1}], kernels=("who",))
    return Executable.from_parts(described, {"x86-64-v3": build(WHO)}, threads=2)


def ids(executable: Executable, tasks: int, cost: int, meet: bool) -> list[int]:
    result = executable(np.array([tasks, cost, meet]))
    assert isinstance(result, np.ndarray)
    return result.tolist()


@pytest.mark.parametrize(("tasks", "cost"), [(100, MICROSECOND // 1000), (1, 1000 * MICROSECOND), (0, MICROSECOND), (5, 0)])
def test_little_work_stays_on_the_calling_thread(who: Executable, tasks: int, cost: int) -> None:
    assert ids(who, tasks, cost, False) == [threading.get_native_id()] * tasks


def test_much_work_runs_on_as_many_threads_as_were_asked_for(who: Executable) -> None:
    for tasks in (2, 3, 64):
        found = ids(who, tasks, 1000 * MICROSECOND, True)
        assert threading.get_native_id() in found
        assert len(set(found)) == 2
    who.threads = 1
    assert ids(who, 64, 1000 * MICROSECOND, False) == [threading.get_native_id()] * 64


def test_idle_threads_are_parked(who: Executable) -> None:
    """0.5 s after calls on two threads cost next to no processor time; one thread that spins would cost 0.5 s."""
    assert len(set(ids(who, 64, 1000 * MICROSECOND, True))) == 2
    start = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - start < 0.15


CALLERS = """
import json, sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy as np
from programs import ADD, add_manifest, build
from disc.ral.executable import Executable

exe = Executable.from_parts(add_manifest(), {"x86-64-v3": build(ADD)}, [("bias", "f32", np.array(0.5, np.float32))], threads=3)
a = np.ones((1000, 4), np.float32)
tasks = lambda: len(list(Path("/proc/self/task").iterdir()))
before, during = tasks(), []
def call():
    for _ in range(50):
        assert np.array_equal(exe(a, a), 2 * a + 0.5)
    during.append(tasks())
    barrier.wait(60)
barrier = threading.Barrier(8)
callers = [threading.Thread(target=call) for _ in range(8)]
for caller in callers: caller.start()
for caller in callers: caller.join()
deadline = time.monotonic() + 20  # a thread is joined a moment before the kernel has taken it away
while tasks() - before > 2 and time.monotonic() < deadline: time.sleep(0.01)
print(json.dumps({"callers": 8, "new": max(during) - before, "left": tasks() - before}))
"""


def test_many_callers_share_the_same_few_workers() -> None:
    """Eight threads that call with three threads each make two workers altogether, not two each."""
    done = subprocess.run([sys.executable, "-c", CALLERS, str(Path(__file__).parent)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["left"] == 2
    assert found["new"] <= 8 + 2
