"""What goes wrong with GPUs, and that it is told apart: `python gpu_errors.py CASE FILE [LIBRARY]`. Prints "passed".

FILE is a program for a CPU and for GPUs of two generations, which `python gpu_errors.py make FILE` writes. LIBRARY is the stand-in driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys
from ctypes import byref, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from gpu_arrays import Array, on, start
from gpu_calls import GPU_ADD, refused

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from disc.cli.main import main as command
from disc.errors import DeviceError, OutOfMemoryError, TargetError
from disc.ral.executable import Executable, load
from disc.serving.model import load_model
from disc.serving.request import GivenTensor, Request
from disc.serving.settings import ModelSettings, ServerSettings
from tests.ral.programs import ADD, add_manifest, build

X = np.arange(8, dtype=np.float32).reshape(2, 4)
SMALL = 1 << 20  # bytes of a GPU
ABSENT: dict[str, tuple[tuple[int, int, int] | None, str]] = {  # GPUs, architecture and version of the driver
    "no_driver": (None, "there is no NVIDIA driver: libcuda.so.1: cannot open shared object file"),
    "too_old": ((1, 90, 11080), "the NVIDIA driver is one of CUDA 11.8, code for GPUs needs 12.0 or later"),
    "no_gpu": ((0, 90, 13000), "the NVIDIA driver finds no GPU"),
    "other_gpu": ((1, 75, 13000), "needs another GPU than cuda:0, which is sm_75"),
}


def make(path: str) -> None:
    source = GPU_ADD.replace("fake_driver.h", str(Path(__file__).parent / "fake_driver.h"))
    code = {"x86-64-v3": build(ADD)} | {f"cuda:x86-64-v3+sm_{each}": build(source) for each in (80, 90)}
    Executable.from_parts(add_manifest(), code, [("bias", "f32", np.array(0.5, np.float32))]).save(path)


def said(*arguments: str) -> tuple[int, str]:
    """Status of a command, and what it says."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        status = command(list(arguments))
    return status, " ".join(out.getvalue().split())


def served(path: str, settings: ModelSettings) -> Any:
    """What a server's model answers."""
    whole = ServerSettings(defaults=settings)
    model = load_model("add", "1", Path(path), whole.for_model("add"), whole.limits)
    given = [GivenTensor(name, "FP32", (2, 4), memoryview(X.tobytes())) for name in "ab"]
    return model.infer(Request("add", "", "", {}, given, [])).outputs[0][2]


def absent(path: str, message: str) -> None:
    """Code for a GPU is refused, and who does not ask for one gets the CPU's."""
    for isa in ("cuda", "cuda@0"):
        refused(TargetError, message, lambda isa=isa: load(path, isa=isa))
    exe: Any = load(path)
    assert exe.isa == "x86-64-v3" and np.array_equal(exe(X, X), 2 * X + 0.5)
    for words in (message, f"'{path}'"):  # a server loads a file by a number, which nobody knows it by
        refused(TargetError, words, lambda: served(path, ModelSettings(device="cuda")))
    assert np.array_equal(served(path, ModelSettings()), 2 * X + 0.5)
    random = ("--random", "a=2x4,b=2x4")
    status, text = said("run", path, *random)
    assert status == 0 and "first call" in text, text
    for arguments in (("run", path, *random), ("bench", path, "--shape", random[1])):
        status, text = said(*arguments, "--device", "cuda")
        assert status != 0 and message in text, text
    status, text = said("tune", "--device", "cuda:0")
    assert status != 0 and ("compute capability 7.5" if "sm_75" in message else message) in text, text
    _, text = said("doctor")
    assert ("runs code for no target" if "sm_75" in message else f"GPUs none: {message}") in text, text


def devices(exe: Any) -> None:
    """Tensors of several devices, and a stream of another one."""
    a, b = Array(X), Array(X, 1)
    refused(DeviceError, "input 'b' (argument 1): is on cuda:1, the loaded code is for cuda:0", lambda: exe(a, b))
    stream = c_void_p()
    on(1, "cuStreamCreate", byref(stream), 1)
    refused(DeviceError, "the stream that was given belongs to another device than cuda:0", lambda: exe(a, a, stream=stream.value))
    assert np.array_equal(exe(b, b, stream=stream.value).numpy(stream), 2 * X + 0.5)
    on(1, "cuStreamDestroy_v2", stream)


def memory(exe: Any, path: str) -> None:
    """What a call lacks is told, and the next call lives."""
    x = np.zeros((SMALL // 40, 4), np.float32)  # two inputs fit, a result beside them does not
    given = [Array(x), Array(x)]
    refused(OutOfMemoryError, f"output 'c' (0): cannot allocate {x.nbytes} bytes on cuda:0 for [{len(x)}, 4]", lambda: exe(*given))
    given.clear()
    assert np.array_equal(exe(Array(X), Array(X)).numpy(), 2 * X + 0.5)
    staged: Any = load(path, isa="cuda")
    refused(OutOfMemoryError, "cuda:0", lambda: staged(np.zeros((SMALL, 4), np.float32), np.zeros((SMALL, 4), np.float32)))
    assert np.array_equal(staged(X, X), 2 * X + 0.5)


def fork(exe: Any, path: str) -> None:
    """A child cannot use GPUs, and says so; the CPU's program works there, and the parent goes on."""
    a = Array(X)
    child = os.fork()
    if child == 0:
        try:
            message = "this process was forked off after a GPU had been used"
            refused(DeviceError, message, lambda: exe(a, a))
            refused(TargetError, message, lambda: load(path, isa="cuda"))
            plain: Any = load(path)
            os._exit(0 if np.array_equal(plain(X, X), 2 * X + 0.5) else 2)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(exe(a, a).numpy(), 2 * X + 0.5)


def tuned() -> None:
    """`disc tune` of a GPU that there is not."""
    for device, message in (("cuda:7", "there is no GPU cuda:7: the NVIDIA driver finds 2"), ("gpu", "it is cpu, cuda, or cuda:N")):
        status, text = said("tune", "--device", device)
        assert status == 1 and message in text, text


def crash(exe: Any, driver: ctypes.CDLL) -> None:
    """An illegal address: which launch, with which sizes, and that the process is to be started again."""
    driver.fake_crash(c_int64(0))
    x = np.ones((3, 4), np.float32)
    try:
        exe(x, x)
    except DeviceError as error:
        for words in ("CUDA_ERROR_ILLEGAL_ADDRESS", "'add_rows' (grid 3 x 1 x 1)", "the inputs were a [3, 4], b [3, 4]"):
            assert words in str(error), error
    else:
        raise AssertionError("it ran")
    refused(DeviceError, "the GPU is lost to this process since an earlier call", lambda: exe(x, x))


def main(case: str, path: str, library: str = "") -> None:
    if case == "make":
        make(path)
        return
    if case in ABSENT:
        gpus, message = ABSENT[case]
        if gpus is not None:
            ctypes.CDLL(library).fake_configure(*gpus, c_int64(SMALL))
        absent(path, message)
    else:
        driver = start(library, SMALL)
        exe = load(path)
        devices(exe)
        memory(exe, path)
        fork(exe, path)
        tuned()
        crash(load(path, isa="cuda"), driver)
    print("passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
