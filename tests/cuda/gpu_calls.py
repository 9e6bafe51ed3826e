"""Calls with arrays that lie on GPUs of the stand-in driver: `python gpu_calls.py LIBRARY`. Prints "passed".

The arrays are those of gpu_arrays.py, a framework with `from_dlpack`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import sys
import tempfile
from collections.abc import Callable
from ctypes import c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from gpu_arrays import Array, Counts, Lender, counts, on, start, wait

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import disc.errors
from disc.cli.main import main as command
from disc.errors import DiscError
from disc.ral import _ral
from disc.ral.executable import Executable, load
from disc.serving.model import load_model
from disc.serving.request import GivenTensor, Request
from disc.serving.settings import ModelSettings, ServerSettings
from tests.ral.programs import ADD, add_manifest, build

GPU = "cuda:x86-64-v3+sm_90"
CALLS_PER_TRIM = 64  # kCallsPerTrim of exec.cc
NOT_PERMITTED = 800  # of the driver: an error that does not end a context

# ADD of tests/ral/programs.py for a GPU. A block of the grid is a row; kernels of the stand-in are functions.
GPU_ADD = """
#include "ral.h"
#include "fake_driver.h"
static void rows(const uint64_t* values, const uint32_t* grid) {
  const float *a = (const float*)values[0], *b = (const float*)values[1], *bias = (const float*)values[3];
  for (int64_t i = 0; i < (int64_t)grid[0] * 4; ++i) ((float*)values[2])[i] = a[i] + b[i] + *bias;
}
static const uint8_t sizes[] = {8, 8, 8, 8, 8, 8};
static const fake_kernel own = {"kernel", rows, 6, sizes};
static const fake_image image = {FAKE_MAGIC, 1, &own};
static const ral_gpu_image images[] = {{90, 0, &image, sizeof image}};
static const uint8_t kinds[] = {8 + RAL_GPU_ADDRESS, 8 + RAL_GPU_ADDRESS, 8 + RAL_GPU_ADDRESS, 8 + RAL_GPU_ADDRESS};
static const ral_gpu_kernel kernel = {2, 128, 0, 1, 0, -1, 1, 4, "kernel", images, kinds};
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  if (in[1].dims[0] != in[0].dims[0]) return api->fail(exec, 0, in[1].dims[0], in[0].dims[0]);
  int64_t dims[2] = {in[0].dims[0], 4};
  float* c = api->output(exec, 0, dims);
  if (!c) return 1;
  counters[dims[0] % 2 == 0] += 1;
  int64_t args[7] = {(int64_t)in[0].data, (int64_t)in[1].data, (int64_t)c, (int64_t)weights[0], dims[0], 1, 1};
  return api->launch(exec, 0, (ral_kernel)&kernel, args, dims[0], 0, 0);
}
"""


def refused(error: type[DiscError], message: str, call: Callable[[], object]) -> None:
    """The call raises this."""
    try:
        call()
    except DiscError as found:
        assert isinstance(found, error) and message in str(found), repr(found)
    else:
        raise AssertionError(f"was not refused: {message}")


def compiled() -> Executable:
    source = GPU_ADD.replace("fake_driver.h", str(Path(__file__).parent / "fake_driver.h"))
    code = {"x86-64-v3": build(ADD), GPU: build(source)}
    return Executable.from_parts(add_manifest(), code, [("bias", "f32", np.array(0.5, np.float32))])


def check_calls(exe: Any) -> None:
    """On two GPUs, on the default stream and on others, late, in place; and on the CPU."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(exe(x, x), x + x + 0.5)
    for gpu in (0, 1, 0):
        stream = c_void_p()
        on(gpu, "cuStreamCreate", ctypes.byref(stream), 1)
        a, b = Array(x, gpu), Array(3 * x, gpu)
        assert np.array_equal(exe(a, b).numpy(), 4 * x + 0.5) and a.streams == [1]
        before = counts()
        y = exe(a, b, stream=stream.value)
        after = counts()
        assert type(y) is Array and y.gpu == gpu and y.shape == (3, 4) and a.streams == [1, stream.value]
        changed = [name for name in Counts.NAMES if getattr(after, name) != getattr(before, name)]
        assert changed == ["calls", "launches", "allocated", "live_blocks", "live_bytes"], (
            changed
        )  # neither copied, nor waited for, nor run
        assert np.array_equal(y.numpy(stream), 4 * x + 0.5)
        into = Array(x, gpu)
        assert exe(a, b, out=into) is into
        exe.synchronize()
        assert np.array_equal(into.numpy(), 4 * x + 0.5)
        del y
        on(gpu, "cuStreamSynchronize", stream)
        on(gpu, "cuStreamDestroy_v2", stream)
    ((name, launches, seconds),) = exe.profile(Array(x), Array(x))
    assert (name, launches) == ("add_rows", 1) and 0 <= seconds < 60, (name, launches, seconds)
    empty = Array(x[:0])
    assert exe(empty, empty).numpy().shape == (0, 4)


def check_lent(exe: Any) -> None:
    """Results of a framework with an allocator of its own lie in its memory, but where the caller gives a stream that is not its current one."""
    stream, other = c_void_p(), c_void_p()
    for each in (stream, other):
        on(0, "cuStreamCreate", ctypes.byref(each), 1)
    Lender.current = stream
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    a, before = Lender(x), Lender.made
    for number in range(1, 4):
        y = exe(a, a)
        assert type(y) is Lender and (Lender.made, Lender.live) == (before + number, 1), (Lender.made, Lender.live)
        assert np.array_equal(y.numpy(stream), 2 * x + 0.5)
        del y
        gc.collect()
        assert Lender.live == 0
    y = exe(a, a, stream=other.value)
    assert Lender.made == before + 3 and np.array_equal(y.numpy(other), 2 * x + 0.5)
    del y
    Lender.fails = True
    refused(disc.errors.OutOfMemoryError, "output 'c' (0): cannot allocate 32 bytes on cuda:0 for [2, 4]", lambda: exe(a, a))
    Lender.fails = False
    assert np.array_equal(exe(a, a).numpy(stream), 2 * x + 0.5)
    gc.collect()
    for each in (stream, other):
        on(0, "cuStreamSynchronize", each)
        on(0, "cuStreamDestroy_v2", each)
    Lender.current = c_void_p()


def check_errors(exe: Executable) -> None:
    x = np.ones((2, 4), np.float32)
    a, b = Array(x), Array(x, 1)
    refused(disc.errors.DeviceError, "input 'b' (argument 1): is on cuda:1, the loaded code is for cuda:0", lambda: exe(a, b))
    refused(disc.errors.DeviceError, "input 'a' (argument 0): is on cpu:0, the loaded code is for cuda:1", lambda: exe(x, b))
    refused(disc.errors.ShapeConstraintError, "3", lambda: exe(a, Array(np.ones((3, 4), np.float32))))
    refused(disc.errors.InputTypeError, "give the handle of a CUDA stream", lambda: exe(a, a, stream="first"))
    plain = Executable.from_parts(add_manifest(), {"x86-64-v3": build(ADD)}, [("bias", "f32", np.array(0.5, np.float32))])
    refused(disc.errors.DeviceError, "input 'b' (argument 1): is on cuda:1, the artifact has code for the CPU only", lambda: plain(x, b))
    for text in ("cuda@2", "cuda@x"):
        refused(disc.errors.TargetError, "there is no GPU", lambda text=text: Executable.from_parts(add_manifest(), {GPU: b""}, isa=text))


def check_staged(path: str) -> None:
    """A program that was loaded for a GPU takes arrays of the host."""
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for isa in ("cuda", "cuda@1", GPU):
        exe: Any = load(path, isa=isa)
        assert exe.isa == GPU
        y = exe(x, x[::-1])
        assert isinstance(y, np.ndarray) and np.array_equal(y, x + x[::-1] + 0.5)
        assert [launches for _, launches, _ in exe.profile(x, x)] == [1]
    for rows, all_pinned in ((100_000, True), (3_000_000, False)):  # 1.6 MB, and more than a call has of pinned memory
        x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
        before = counts().plain_copies
        assert np.array_equal(exe(x, x[::-1]), x + x[::-1] + 0.5) and np.array_equal(exe(x, x), x + x + 0.5)
        assert (counts().plain_copies == before) == all_pinned


def check_failed_wait(path: str, library: Any) -> None:
    """Pinned memory of a call whose wait has failed is kept as long as copies from it may be under way, and given back by later calls, here
    such that are refused."""
    exe: Any = load(path, isa="cuda")
    x = np.arange(800_000, dtype=np.float32).reshape(200_000, 4)
    none = counts().live_host
    exe(x, x)
    held = counts().live_host - none
    library.fake_set_seed(1, 0)  # work is done when somebody waits for it
    library.fake_fail(c_int64(-1), 0)
    exe(x, x)
    failed = ""
    for number in reversed(range(counts().calls)):  # a wait comes last but for what ends the call
        library.fake_fail(c_int64(number), NOT_PERMITTED)
        try:
            exe(x, x)
        except disc.errors.DeviceError as error:
            failed = str(error)
            break
    library.fake_fail(c_int64(-1), 0)
    executed, waits = counts().executed, counts().waits
    assert "waiting for kernels" in failed, failed
    for _ in range(2 * CALLS_PER_TRIM):
        refused(DiscError, "input 'b'", lambda: exe(x, x[0]))  # before anything is asked of the GPU
    assert held > 6 and counts().live_host == none, (none, held, counts().live_host)
    assert (counts().executed, counts().waits) == (executed + 1, waits + 1), "the launch of that call has run, which nobody had waited for"
    library.fake_set_seed(1, 30)
    for each in (x, x[:2]):
        assert np.array_equal(exe(each, each[::-1]), each + each[::-1] + 0.5)


def check_ranges(exe: Any) -> None:
    """Who profiles is told of each request for a launch, as on a CPU."""
    told: list[str | None] = []
    a = Array(np.ones((2, 4), np.float32))
    _ral.set_observer(lambda name, _: told.append(name))
    try:
        exe(a, a)
    finally:
        _ral.set_observer(None)
    exe(a, a)
    assert told == ["add_rows", None], told


def check_commands(path: str) -> None:
    """`disc bench --graphs`, and a server whose settings ask for a GPU and graphs, replay calls of equal sizes."""
    before = counts().graph_launches
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert command(["bench", path, "--shape", "a=2x4,b=2x4", "--device", "cuda:1", "--graphs", "2", "--seconds", "0.05"]) == 0
    assert counts().graph_launches > before and "a=2x4,b=2x4" in printed.getvalue(), printed.getvalue()
    settings = ServerSettings(defaults=ModelSettings(device="cuda:1", graphs=2))
    model = load_model("add", "1", Path(path), settings.for_model("add"), settings.limits)
    assert model.executable.isa == GPU
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for number in range(3):
        request = Request("add", "", "", {}, [GivenTensor(name, "FP32", (2, 4), memoryview((number + x).tobytes())) for name in "ab"], [])
        assert np.array_equal(model.infer(request).outputs[0][2], 2 * (number + x) + 0.5)
    executable: Any = model.executable
    assert executable.stats()["graphs"]["replays"] == 1


def main() -> None:
    library = start(sys.argv[1])
    found = _ral.find_gpus()
    assert found["driver"] == 13000 and [each[:3] for each in found["gpus"]] == [("Stand-in 0", 90, 132), ("Stand-in 1", 90, 132)]
    before = counts()
    exe = compiled()
    assert counts().live_modules == 0, "nothing of a GPU is opened before its tensors come"
    check_calls(exe)
    check_lent(exe)
    check_errors(exe)
    check_ranges(exe)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "add.disc")
        exe.save(path)
        loaded = load(path)
        check_calls(loaded)
        assert loaded.stats()["calls"] == loaded.stats()["launches"] == 12, loaded.stats()
        check_staged(path)
        check_failed_wait(path, library)
        check_commands(path)
    del exe, loaded
    gc.collect()
    wait()
    end = counts()
    assert (end.live_blocks, end.live_modules, end.live_host) == (before.live_blocks, 0, 0), (end.live_blocks, end.live_modules)
    print("passed")


if __name__ == "__main__":
    main()
