"""The pool of threads: which launches are split, who runs them, and that nobody runs when there is nothing to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from programs import build, manifest

from disc.ral import _ral
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


def test_a_worker_leaves_the_core_of_its_caller(who: Executable) -> None:
    """A kernel that knows of no cache that cores share wakes a thread where it ran last, be that where its caller is."""
    here = threading.get_native_id()
    (worker,) = set(ids(who, 64, 1000 * MICROSECOND, True)) - {here}
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("one core")
    both = set(sorted(cores)[:2])
    try:
        os.sched_setaffinity(here, {min(both)})
        os.sched_setaffinity(worker, {min(both)})
        time.sleep(0.05)
        ids(who, 64, 1000 * MICROSECOND, True)
        os.sched_setaffinity(worker, both)
        time.sleep(0.05)
        deadline = time.monotonic() + 30  # on a busy machine the kernel has reasons of its own
        while True:
            ids(who, 64, 1000 * MICROSECOND, True)
            processor = int(Path(f"/proc/self/task/{worker}/stat").read_text().rpartition(")")[2].split()[36])
            if processor == max(both) or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        assert processor == max(both)
        assert os.sched_getaffinity(worker) == both
    finally:
        os.sched_setaffinity(worker, cores)
        os.sched_setaffinity(here, cores)


TEAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from disc.frontend.openmp import parallel_regions
from test_threads import MICROSECOND, WHO, build, ids, manifest
from disc.ral.executable import Executable

torch.set_num_threads(2)
threads = lambda: {int(path.name) for path in Path("/proc/self/task").iterdir()}
before = threads()
torch.ones(1 << 20).exp()
of_torch = threads() - before
described = manifest([{"name": "wanted", "dtype": "i64", "dims": [3]}], [{"name": "ids", "dtype": "i64", "rank": 1}], kernels=("who",))
executable = Executable.from_parts(described, {"x86-64-v3": build(WHO)}, threads=2)
executable.context.use_team(*parallel_regions())
for _ in range(3):
    found = set(ids(executable, 64, 1000 * MICROSECOND, True))
    assert len(found) == 2 and len(found & of_torch) == 1, (found, of_torch)
    assert set(ids(executable, 64, MICROSECOND // 1000, False)) <= found
    torch.ones(1 << 20).exp()
assert threads() == before | of_torch
torch.set_num_threads(1)  # its teams are too small
found = set(ids(executable, 64, 1000 * MICROSECOND, True))
assert len(found) == 2 and not found & of_torch, (found, of_torch)
"""


def test_launches_run_on_the_threads_of_pytorch() -> None:
    subprocess.run([sys.executable, "-c", TEAM, str(Path(__file__).parent)], check=True, timeout=120)


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
exe(a, a)
deadline = time.monotonic() + 20  # a thread is joined a moment before the kernel has taken it away
while tasks() - before > 2 and time.monotonic() < deadline: time.sleep(0.01)
print(json.dumps({"new": max(during) - before, "left": tasks() - before}))
"""


def test_many_callers_share_the_same_few_workers() -> None:
    """Eight threads that call with three threads each make two workers altogether, not two each."""
    done = subprocess.run([sys.executable, "-c", CALLERS, str(Path(__file__).parent)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["left"] == 2
    assert found["new"] <= 8 + 2


# As WHO, but every call waits (20 s at most) until `callers` calls are in progress, and each of 16 tasks takes a millisecond.
TOGETHER = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "ral.h"
static _Atomic int64_t arrived;
static void who(const int64_t* args, int64_t begin, int64_t end, void* scratch) {
  for (int64_t i = begin; i < end; ++i) {
    usleep(1000);
    ((int64_t*)args[0])[i] = syscall(SYS_gettid);
  }
}
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  int64_t dims[1] = {16}, callers = *(const int64_t*)in[0].data;
  int64_t* out = api->output(exec, 0, dims);
  if (!out) return 1;
  ++arrived;
  for (time_t start = time(0); arrived < callers && time(0) - start < 20;) usleep(100);
  int64_t args[1] = {(int64_t)out};
  return api->launch(exec, 0, who, args, 16, 16 * 1000 * 1000, 0);
}
"""


def test_calls_at_once_share_the_cores() -> None:
    """As many calls at once as there are cores: each has one, and no worker runs beside them."""
    described = manifest([{"name": "callers", "dtype": "i64", "dims": []}], [{"name": "ids", "dtype": "i64", "rank": 1}], kernels=("who",))
    count = _ral.find_cores("")["threads"]
    executable = Executable.from_parts(described, {"x86-64-v3": build(TOGETHER)}, threads=min(2, count))
    found: dict[int, set[int]] = {}

    def call() -> None:
        result = executable(count)
        assert isinstance(result, np.ndarray)
        found[threading.get_native_id()] = set(result.tolist())

    callers = [threading.Thread(target=call) for _ in range(count)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == {caller: {caller} for caller in found}
    assert len(found) == count


# y[i] counts how often task i ran; the tasks of the first eighth take 20 us each, the others nothing.
UNEVEN = """
#define _GNU_SOURCE
#include <time.h>
#include "ral.h"
static void count(const int64_t* args, int64_t begin, int64_t end, void* scratch) {
  for (int64_t i = begin; i < end; ++i) {
    struct timespec now, start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while (i < args[1] / 8 && (now.tv_sec - start.tv_sec) * 1000000000 + now.tv_nsec - start.tv_nsec < 20000);
    ++((int64_t*)args[0])[i];
    if (scratch) *(int64_t*)scratch = i;
  }
}
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  int64_t dims[1] = {*(const int64_t*)in[0].data};
  int64_t* out = api->output(exec, 0, dims);
  if (!out) return 1;
  for (int64_t i = 0; i < dims[0]; ++i) out[i] = 0;
  int64_t args[2] = {(int64_t)out, dims[0]};
  return api->launch(exec, 0, count, args, dims[0], 16 * 1000 * 1000, 8);
}
"""


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_task_runs_once_whoever_takes_it(threads: int) -> None:
    described = manifest([{"name": "n", "dtype": "i64", "dims": []}], [{"name": "runs", "dtype": "i64", "rank": 1}], kernels=("count",))
    executable = Executable.from_parts(described, {"x86-64-v3": build(UNEVEN)}, threads=threads)
    for tasks in (0, 1, 2, 3, 7, 8, 13, 64, 509, 4096):
        runs = executable(tasks)
        assert isinstance(runs, np.ndarray)
        assert runs.tolist() == [1] * tasks


def test_a_task_number_beyond_32_bits() -> None:
    """The shares of a launch count units of several tasks where there are more tasks than 32 bits can count."""
    source = """
    #include "ral.h"
    static void add(const int64_t* args, int64_t begin, int64_t end, void* scratch) {
      __atomic_fetch_add((int64_t*)args[0], end - begin, __ATOMIC_RELAXED);
    }
    int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
      int64_t* out = api->output(exec, 0, 0);
      if (!out) return 1;
      *out = 0;
      int64_t args[1] = {(int64_t)out};
      return api->launch(exec, 0, add, args, *(const int64_t*)in[0].data, 1 << 20, 0);
    }
    """
    described = manifest([{"name": "n", "dtype": "i64", "dims": []}], [{"name": "sum", "dtype": "i64", "rank": 0}], kernels=("add",))
    executable = Executable.from_parts(described, {"x86-64-v3": build(source)}, threads=3)
    for tasks in (2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1, 7 * 2**40 + 5):
        assert int(executable(tasks)) == tasks  # pyright: ignore[reportArgumentType]
