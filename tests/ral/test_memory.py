"""The memory of calls: one arena for each in progress, reused, and given back when only old calls needed as much."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import build, manifest

from disc.ral.executable import Executable

PAGE = 4096
MIB = 1 << 20
# Asks for an arena of in[0] bytes, writes to every page of it, waits (20 s at most) until in[1] calls are in progress.
ARENA = """
#define _GNU_SOURCE
#include <time.h>
#include <unistd.h>
#include "ral.h"
static _Atomic int64_t arrived;
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  const int64_t* wanted = (const int64_t*)in[0].data;
  int64_t* out = api->output(exec, 0, 0);
  char* arena = api->alloc(exec, wanted[0]);
  if (!out || !arena) return 1;
  for (int64_t i = 0; i < wanted[0]; i += 4096) arena[i] = 1;
  ++arrived;
  for (time_t start = time(0); arrived < wanted[1] && time(0) - start < 20;) usleep(100);
  *out = (int64_t)arena;
  return 0;
}
"""


def arenas() -> Executable:
    described = manifest([{"name": "wanted", "dtype": "i64", "dims": [2]}], [{"name": "address", "dtype": "i64", "rank": 0}])
    return Executable.from_parts(described, {"x86-64-v3": build(ARENA)}, threads=1)


def call(executable: Executable, size: int, callers: int = 0) -> int:
    """The address of the arena."""
    return int(executable(np.array([size, callers])))  # pyright: ignore[reportArgumentType]


def held(executable: Executable) -> int:
    found = executable.stats()["arena_bytes"]
    assert isinstance(found, int)
    return found


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_an_arena_is_reused() -> None:
    executable = arenas()
    first = call(executable, 3 * MIB)
    assert first % PAGE == 0
    assert all(call(executable, size) == first for size in (3 * MIB, 1, 0, 2 * MIB, 3 * MIB + MIB // 2))
    assert held(executable) == 3 * MIB + MIB // 2


def test_what_one_huge_call_needed_is_given_back() -> None:
    executable = arenas()
    call(executable, MIB)
    before = resident()
    call(executable, 256 * MIB)
    assert held(executable) == 256 * MIB
    assert resident() - before > 200 * MIB
    address = 0
    for _ in range(130):
        address = call(executable, MIB)
    assert held(executable) <= 2 * MIB
    assert resident() - before < 50 * MIB
    assert call(executable, 256 * MIB) == address  # the addresses were kept


def test_sizes_that_keep_coming_are_kept() -> None:
    executable = arenas()
    for number in range(500):
        call(executable, 64 * MIB if number % 50 == 0 else MIB)
    assert held(executable) == 64 * MIB


def test_random_sizes_leave_memory_flat() -> None:
    executable = arenas()
    sizes = np.random.default_rng(0).integers(1, 20 * MIB, 400).tolist()
    call(executable, 20 * MIB)
    before = resident()
    for size in sizes:
        call(executable, size)
    assert resident() - before < 4 * MIB


def test_the_memory_of_many_calls_at_once_is_freed_when_there_are_fewer() -> None:
    executable = arenas()
    callers = [threading.Thread(target=call, args=(executable, MIB, 8)) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert held(executable) == 8 * MIB  # one arena for each call in progress
    for _ in range(520):
        call(executable, MIB)
    assert held(executable) == MIB


def sharing() -> Executable:
    executable = arenas()
    executable.context.share_memory()
    return executable


@pytest.mark.parametrize("name", ["have_the_largest_arena", "give_back_with_the_last_program", "give_back_what_old_calls_needed"])
def test_programs_that_share_memory(name: str) -> None:
    """In a process of their own: others may share it here."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", f"import test_memory; test_memory.{name}()"], check=True, env=environment)


def have_the_largest_arena() -> None:
    first, second, alone = sharing(), sharing(), arenas()
    before = resident()
    address = call(first, 64 * MIB)
    assert all(call(each, size) == address for each in (first, second) for size in (64 * MIB, MIB, 0, 3 * MIB))
    assert call(second, 65 * MIB) == address != call(alone, MIB)
    assert resident() - before < 80 * MIB
    assert held(first) == 3 * MIB and held(second) == 65 * MIB  # what the last call of each had


def give_back_with_the_last_program() -> None:
    first, second = sharing(), sharing()
    call(second, MIB)
    before = resident()
    call(first, 64 * MIB)
    del first
    assert resident() - before > 60 * MIB
    del second
    assert resident() - before < 10 * MIB


def give_back_what_old_calls_needed() -> None:
    """Once any program has made so many calls; what one needs again and again stays."""
    large, small = sharing(), sharing()
    call(large, MIB)
    call(small, MIB)
    before = resident()
    call(large, 256 * MIB)
    for _ in range(60):
        call(small, MIB)
        call(large, 64 * MIB)
    assert resident() - before > 60 * MIB
    for _ in range(130):
        call(small, MIB)
        call(large, MIB)
    assert resident() - before < 50 * MIB


def test_calls_at_once_have_arenas_of_their_own_where_these_are_shared() -> None:
    executable, found = sharing(), list[int]()
    callers = [threading.Thread(target=lambda: found.append(call(executable, MIB, 8))) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(set(found)) == 8


# The result has in[0] bytes, each of which is in[0] / 2 MiB.
RESULT = """
#include <string.h>
#include "ral.h"
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  int64_t dims[1] = {*(const int64_t*)in[0].data};
  void* out = api->output(exec, 0, dims);
  if (!out) return 1;
  memset(out, (int)(dims[0] >> 21), dims[0]);
  return 0;
}
"""


def results() -> Executable:
    described = manifest([{"name": "wanted", "dtype": "i64", "dims": []}], [{"name": "bytes", "dtype": "ui8", "rank": 1}])
    return Executable.from_parts(described, {"x86-64-v3": build(RESULT)}, threads=1)


def result(executable: Executable, size: int) -> np.ndarray:
    found = executable(np.array(size))  # pyright: ignore[reportArgumentType]
    assert isinstance(found, np.ndarray) and found.shape == (size,)
    return found


def test_the_memory_of_a_large_result_goes_to_the_next() -> None:
    executable = results()
    first = result(executable, 8 * MIB).ctypes.data
    assert result(executable, 8 * MIB).ctypes.data == first
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for size in (8, 6, 5, 7, 8, 6, 8, 8):
        assert result(executable, size * MIB).ctypes.data == first
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100


def test_the_memory_of_a_result_that_cannot_be_handed_over_goes_to_the_next() -> None:
    executable = results()
    first = result(executable, 8 * MIB).ctypes.data
    x: Any = np.array(8 * MIB)
    methods = {"__dlpack__": lambda _, **how: x.__dlpack__(**how), "__dlpack_device__": lambda _: x.__dlpack_device__()}
    for _ in range(2):
        with pytest.raises(Exception, match="bad_cast"):
            executable(type("Odd", (), {"__module__": 3, **methods})())
        assert result(executable, 8 * MIB).ctypes.data == first


def test_large_results_that_live_share_nothing() -> None:
    executable = results()
    order = np.random.default_rng(0)
    alive: list[np.ndarray] = []
    for size in order.integers(2, 60, 150).tolist():
        alive.append(result(executable, 2 * size * MIB // 3))
        if len(alive) > 5:
            del alive[int(order.integers(0, 6))]
        for each in alive:
            assert each[0] == each[-1] == each.size >> 21


def test_the_memory_of_large_results_goes_back_to_the_system() -> None:
    """When as many calls went by without one, and at once where it is more than 256 MiB."""
    executable = results()
    result(executable, MIB)
    before = resident()
    several = [result(executable, 60 * MIB) for _ in range(6)]
    assert resident() - before > 300 * MIB
    del several
    assert resident() - before < 270 * MIB
    result(executable, 300 * MIB)
    assert resident() - before < 270 * MIB
    for _ in range(130):
        result(executable, MIB)
    assert resident() - before < 20 * MIB
