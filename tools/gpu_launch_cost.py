"""What a launch on a GPU costs the host beside the driver: `python tools/gpu_launch_cost.py [--launches 64] [--json]`. Needs no GPU.

On the stand-in driver of tests/cuda, which notes launches and runs them when somebody waits. A program of linear layers, each a launch with
guards, a decision of its schedule and scratch from an arena, is called at two lengths: the difference is that of the launches, whatever a
call costs by itself. From it goes what the driver takes for the same launches, asked for by a loop in C. Another process's work on the same
core counts, so the least of some rounds is taken.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from ctypes import c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "cuda")]

ROUNDS, SHORT = 200, 8  # calls of each program; launches of the short one
SIZE = 64  # features of a layer
# Asks for `count` launches of a kernel with as many parameters as a layer has, and drops them.
LOOP = """
#include <stdint.h>
#include <time.h>
#include "fake_driver.h"
static void nothing(const uint64_t* values, const uint32_t* grid) { (void)values, (void)grid; }
static const uint8_t sizes[] = {8, 8, 8, 8, 4, 8, 8};
static const fake_kernel own = {"kernel", nothing, 7, sizes};
static const fake_image image = {FAKE_MAGIC, 1, &own};
typedef struct { unsigned grid[3], block[3], shared; void* stream; void* attributes; unsigned count; } Config;
typedef int (*Load)(void**, const void*, unsigned, void*, void*);
typedef int (*Find)(void**, void*, const char*);
typedef int (*Launch)(const Config*, void*, void**, void**);
double nanoseconds(int64_t count, void* stream, Load load, Find find, Launch launch) {
  void *module = 0, *function = 0, *slots[7];
  uint64_t values[7] = {0};
  for (int i = 0; i < 7; ++i) slots[i] = values + i;
  if (load(&module, &image, 0, 0, 0) || find(&function, module, "kernel")) return -1;
  struct timespec begin, end;
  Config config = {{4, 1, 1}, {128, 1, 1}, 0, stream, 0, 0};
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int64_t i = 0; i < count; ++i) if (launch(&config, function, slots, 0)) return -1;
  clock_gettime(CLOCK_MONOTONIC, &end);
  return 1e9 * (end.tv_sec - begin.tv_sec) + (end.tv_nsec - begin.tv_nsec);
}
"""


def _build(source: str, target: Path, *options: str) -> str:
    file = target.with_suffix(".c")
    file.write_text(source)
    command = ["gcc", "-O2", "-shared", "-fPIC", f"-I{ROOT / 'tests' / 'cuda'}", *options, str(file), "-o", str(target), "-pthread", "-ldl"]
    subprocess.run(command, check=True)
    return str(target)


def _program(layers: int, folder: Path) -> Path:
    import torch
    from torch import nn

    import disc

    path = folder / f"{layers}.disc"
    model = nn.Sequential(*(each for _ in range(layers) for each in (nn.Linear(SIZE, SIZE), nn.ReLU()))).eval()
    disc.compile(model, (torch.ones(3, SIZE),), ({0: torch.export.Dim.DYNAMIC},), ["sm_90"]).save(path)
    return path


def _least(call: Callable[[], float]) -> float:
    return min(call() for _ in range(ROUNDS))


def measure(launches: int, folder: Path) -> dict[str, float]:
    """Nanoseconds of a launch: of all, of the driver, of ours. folder: for what is made."""
    import numpy as np

    library = _build((ROOT / "tests" / "cuda" / "fake_driver.c").read_text(), folder / "libcuda.so.1", "-Wl,-soname,libcuda.so.1")
    gpu_arrays: Any = importlib.import_module("gpu_arrays")  # of tests/cuda

    from disc.ral.executable import load

    driver: Any = gpu_arrays.start(library)  # before disc looks for a driver
    paths = {count: _program(count, folder) for count in (SHORT, SHORT + launches)}
    executor = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int32)(lambda *_: 0)
    driver.fake_set_executor(executor)
    driver.fake_set_seed(0, 0)
    loop = ctypes.CDLL(_build(LOOP, folder / "loop.so"))
    loop.nanoseconds.restype, loop.nanoseconds.argtypes = ctypes.c_double, (c_int64, *[c_void_p] * 4)
    functions = [ctypes.cast(getattr(driver, name), c_void_p) for name in ("cuModuleLoadDataEx", "cuModuleGetFunction", "cuLaunchKernelEx")]
    stream = c_void_p()
    gpu_arrays.on(0, "cuStreamCreate", ctypes.byref(stream), 1)
    x = gpu_arrays.Array(np.ones((5, SIZE), np.float32))

    def called(program: Any) -> float:
        begin = time.perf_counter_ns()
        program(x, stream=stream.value)
        spent = time.perf_counter_ns() - begin
        gpu_arrays.on(0, "cuStreamSynchronize", stream)
        return spent

    def asked() -> float:
        driver.cuCtxPushCurrent_v2(gpu_arrays.context(0))
        found = float(loop.nanoseconds(launches, stream, *functions))
        driver.cuCtxPopCurrent_v2(ctypes.byref(c_void_p()))
        gpu_arrays.on(0, "cuStreamSynchronize", stream)
        return found

    times = {}
    for count, path in paths.items():
        program = load(path)
        made = program.profile(x)
        assert sum(number for _, number, _ in made) == count, made
        times[count] = _least(lambda program=program: called(program))
    both = (times[SHORT + launches] - times[SHORT]) / launches
    plain = _least(asked) / launches
    return {"launch": both, "driver": plain, "own": both - plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(chosen.launches, Path(folder))
    if chosen.json:
        print(json.dumps(found))
        return
    print(", ".join(f"{name} {value:.0f} ns" for name, value in found.items()))


if __name__ == "__main__":
    main()
