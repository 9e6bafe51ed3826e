"""Checks kernels on an NVIDIA GPU: `python gpu_check.py [--folder build/gpu] [--only PROGRAM...] [--out FOLDER]`. One table last.

Needs what `gpu_prepare.py` made, NumPy and a driver: every launch runs with memory that is poisoned before and guarded on both sides. Its
results are compared with those in the folder: |found - wanted| <= bound * |wanted|, as vectors, and NaN and infinities where they belong.
`--fake LIBRARY` runs it on the stand-in driver of tests/cuda, which executes the kernels' texts in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from ctypes import byref, c_char_p, c_float, c_int32, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
# Relative to the norm of what is wanted: f32 goes through three products of tf32, sums in another order, and libdevice's functions.
BOUNDS = {"bf16": 1e-2, "f16": 2e-3, "f32": 1e-4, "f64": 1e-6}
GUARD, POISON = 256, 0xA5  # bytes on both sides of a buffer, and what they hold
MAJOR, MINOR, SHARED = 75, 76, 8  # numbers of device attributes in the driver's interface
Array = npt.NDArray[Any]


class DriverError(Exception):
    """A call of the driver failed."""


class _Attribute(ctypes.Structure):
    _fields_ = [("id", c_uint), ("padding", c_uint), ("value", c_uint * 16)]


class _Launch(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = [
        ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint), ("stream", c_void_p), ("attributes", ctypes.POINTER(_Attribute)),
        ("count", c_uint),
    ]  # fmt: skip


class Gpu:
    """The first GPU of a driver, and its default stream."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.functions, self.images = library, dict[str, tuple[c_void_p, Mapping[str, Any]]](), list[bytes]()
        context, device, major, minor = c_void_p(), c_int32(), c_int32(), c_int32()
        self.call("cuInit", c_uint(0))
        self.call("cuDeviceGet", byref(device), c_int32(0))
        self.call("cuDeviceGetAttribute", byref(major), c_int32(MAJOR), device)
        self.call("cuDeviceGetAttribute", byref(minor), c_int32(MINOR), device)
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, c_int32(256), device)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)
        self.architecture, self.name = 10 * major.value + minor.value, name.value.decode()

    def call(self, name: str, *arguments: object) -> None:
        """Raises DriverError with the driver's own name of what failed."""
        status = getattr(self.library, name)(*arguments)
        if status:
            text = c_char_p()
            self.library.cuGetErrorName(c_int32(status), byref(text))
            raise DriverError(f"{name}: {(text.value or b'').decode()} ({status})")

    def load(self, key: str, kernel: Mapping[str, Any], folder: Path) -> tuple[c_void_p, Mapping[str, Any]]:
        """The function of a kernel's code for this GPU, and what a launch of it needs."""
        if key not in self.functions:
            facts = kernel["code"].get(str(self.architecture))
            if facts is None:
                raise DriverError(f"the folder has no code for sm_{self.architecture}: gpu_prepare.py --architectures {self.architecture}")
            module, function = c_void_p(), c_void_p()
            self.images.append((folder / facts["file"]).read_bytes())  # the stand-in makes no copy
            self.call("cuModuleLoadDataEx", byref(module), self.images[-1], c_uint(0), None, None)
            self.call("cuModuleGetFunction", byref(function), module, b"kernel")
            if facts["shared"] > 48 << 10:
                self.call("cuFuncSetAttribute", function, c_int32(SHARED), c_int32(facts["shared"]))
            self.functions[key] = function, facts
        return self.functions[key]

    def launch(self, function: c_void_p, facts: Mapping[str, Any], grid: Sequence[int], values: Sequence[Any]) -> float:
        """Runs a kernel to its end. Returns microseconds between events around it."""
        slots = (c_void_p * len(values))(*(ctypes.addressof(each) for each in values))
        x, y, z = (*grid, *[1] * (3 - len(grid)))
        config = _Launch((x, y, z), (facts["threads"], 1, 1), facts["shared"], None, None, 0)
        begin, end, passed = c_void_p(), c_void_p(), c_float()
        for event in (begin, end):
            self.call("cuEventCreate", byref(event), c_uint(0))
        self.call("cuEventRecord", begin, None)
        self.call("cuLaunchKernelEx", byref(config), function, slots, None)
        self.call("cuEventRecord", end, None)
        self.call("cuCtxSynchronize")
        self.call("cuEventElapsedTime", byref(passed), begin, end)
        for event in (begin, end):
            self.call("cuEventDestroy_v2", event)
        return passed.value * 1e3


class Buffer:
    """Device memory between two guards."""

    def __init__(self, gpu: Gpu, content: Array | None, size: int) -> None:
        self.gpu, self.size, self.place = gpu, size, c_uint64()
        gpu.call("cuMemAlloc_v2", byref(self.place), c_size_t(size + 2 * GUARD))
        gpu.call("cuMemsetD8Async", self.place, ctypes.c_ubyte(POISON), c_size_t(size + 2 * GUARD), None)
        self.address = self.place.value + GUARD
        if content is not None and size:
            gpu.call("cuMemcpyAsync", c_uint64(self.address), c_uint64(content.ctypes.data), c_size_t(size), None)
        gpu.call("cuCtxSynchronize")

    def read(self) -> tuple[bytes, bool]:
        """What it holds, and whether the guards are as they were."""
        whole = np.empty(self.size + 2 * GUARD, np.uint8)
        self.gpu.call("cuMemcpyAsync", c_uint64(whole.ctypes.data), self.place, c_size_t(whole.nbytes), None)
        self.gpu.call("cuCtxSynchronize")
        guards = np.concatenate([whole[:GUARD], whole[GUARD + self.size :]])
        return whole[GUARD : GUARD + self.size].tobytes(), bool((guards == POISON).all())

    def free(self) -> None:
        """Gives it back."""
        self.gpu.call("cuMemFree_v2", self.place)


def wide(array: Array, element: str) -> Array:
    """Stored values as numbers."""
    if element == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64).reshape(array.shape)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def difference(found: Array, wanted: Array, element: str) -> float:
    """The distance relative to the norm of what is wanted; of integers, how many differ; infinite where NaN or infinities do."""
    found, wanted = wide(found, element), wide(wanted, element)
    if element not in BOUNDS:
        return float((found != wanted).sum())
    finite = np.isfinite(wanted)
    if (
        not np.array_equal(np.nan_to_num(found[~finite], nan=7.0), np.nan_to_num(wanted[~finite], nan=7.0))
        or not np.isfinite(found[finite]).all()
    ):
        return float("inf")
    norm = float(np.linalg.norm(wanted[finite]))
    return float(np.linalg.norm(found[finite] - wanted[finite])) / (norm or 1.0)


@dataclass
class Row:
    """Of the table: a program. worst: the largest difference, as a share of what is allowed."""

    launches: int = 0
    worst: float = 0.0
    microseconds: float = 0.0
    failed: int = 0


def run(gpu: Gpu, folder: Path, case: Mapping[str, Any], kernel: Mapping[str, Any], arrays: Mapping[str, Array], row: Row) -> list[str]:
    """Launches a case once. Returns what is wrong with it."""
    function, facts = gpu.load(case["key"], kernel, folder)
    values, results, buffers = list[Any](), list[tuple[Mapping[str, Any], Buffer]](), list[Buffer]()
    fault: Buffer | None = None

    def place(content: Array | None, size: int) -> Buffer:
        buffers.append(Buffer(gpu, content, size))
        values.append(c_uint64(buffers[-1].address))
        return buffers[-1]

    for each in case["parameters"]:
        if each["kind"] == "argument":
            place(arrays[each["array"]], arrays[each["array"]].nbytes)
        elif each["kind"] == "result":
            results.append((each, place(None, arrays[each["array"]].nbytes)))
        elif each["kind"] == "fault":
            fault = place(np.zeros(3, np.int64), 24)
        elif each["kind"] == "scratch":
            content = np.full(each["bytes"], POISON, np.uint8)
            content[: each["zeroed"]] = 0
            place(content, each["bytes"])
        else:
            values.append((c_uint64 if each["bytes"] == 8 else c_uint32)(each["value"] % (1 << 8 * each["bytes"])))
    if facts["scratch"]:
        place(None, facts["scratch"] * int(np.prod(case["grid"])))
        values.append(c_uint64(0))
    else:
        values += [c_uint64(0), c_uint64(0)]
    if all(case["grid"]):
        row.microseconds += gpu.launch(function, facts, case["grid"], values)
    wrong = [f"{each['array']}: {text}" for each, buffer in results for text in _compared(each, buffer, arrays[each["array"]], row)]
    if fault is not None and any(fault.read()[0]):
        wrong.append(f"reports a fault {np.frombuffer(fault.read()[0], np.int64)}")
    wrong += ["a buffer was left" for buffer in buffers if not buffer.read()[1]]
    for buffer in buffers:
        buffer.free()
    row.launches += 1
    row.failed += bool(wrong)
    return wrong


def _compared(parameter: Mapping[str, Any], buffer: Buffer, wanted: Array, row: Row) -> list[str]:
    element = parameter["element"]
    found = np.frombuffer(buffer.read()[0], wanted.dtype).reshape(wanted.shape)
    share = difference(found, wanted, element) / BOUNDS.get(element, 0.5)
    row.worst = max(row.worst, share)
    return [f"differs by {share:.3g} of what is allowed ({element} {wanted.shape})"] if not share <= 1 else []


_KEPT: list[object] = []  # functions that C calls, as long as the process


# --- the stand-in ------------------------------------------------------------------------------------------------------------


def stand_in(path: str, folder: Path, kernels: Mapping[str, Any]) -> ctypes.CDLL:
    """The stand-in driver as an sm_90, whose kernels run in Triton's interpreter. Needs Triton and PyTorch."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "cuda")]
    import torch

    interpreted: Any = importlib.import_module("interpreted")  # of tests/cuda
    library = ctypes.CDLL(path)
    library.fake_configure(c_int32(1), c_int32(90), c_int32(13000), c_size_t(1 << 30))
    codes = [((folder / each["code"]["90"]["file"]).read_bytes(), each) for each in kernels.values()]
    types = {
        **{
            name: getattr(torch, f"{'u' if name[0] == 'u' else ''}int{name[1:]}")
            for name in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
        },
        **{"fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16, "i1": torch.bool},
    }

    def tensor(address: int, type_: str) -> torch.Tensor:
        first, size = c_uint64(), ctypes.c_int64()
        if not library.fake_find(c_uint64(address), byref(first), byref(size)):
            raise DriverError(f"{address:#x} lies in no memory of the GPU")
        count = first.value + size.value - address
        element = types[type_[1:]]
        memory = (ctypes.c_ubyte * (count - count % element.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=element)

    def execute(image: int, size: int, name: bytes, grid: Any, values: Any, count: int) -> int:
        try:
            loaded = ctypes.string_at(image, size)
            kernel = next(each for code, each in codes if code[:size] == loaded)
            signed = [
                ctypes.c_int32(values[at] & 0xFFFFFFFF).value if type_ == "i32" else values[at] for at, type_ in enumerate(kernel["types"])
            ]
            given = [tensor(each, type_) if type_[0] == "*" else each for each, type_ in zip(signed, kernel["types"], strict=True)]
            buffers = {str(at): each for at, each in enumerate(given) if isinstance(each, torch.Tensor)}
            with interpreted.Checked(buffers, [], list(buffers)):
                interpreted.load(kernel["text"])[tuple(grid[axis] for axis in range(3))](*given)
        except Exception as error:  # through C there is no other way to tell
            print(f"the stand-in: {error!r:.2000}", file=sys.stderr)
            return 700
        return 0

    form = ctypes.CFUNCTYPE(
        c_int32, c_void_p, ctypes.c_int64, c_char_p, ctypes.POINTER(c_uint32), ctypes.POINTER(c_uint64), c_int32
    )  # fmt: skip
    _KEPT.append(form(execute))
    library.fake_set_executor(_KEPT[-1])
    return library


def check(gpu: Gpu, folder: Path, listing: Mapping[str, Any], only: Sequence[str]) -> tuple[dict[str, Row], list[str]]:
    """Runs the cases of these programs, or all. Returns the table, and what is wrong. Nothing runs after the GPU has refused to go on."""
    rows, wrong, arrays = dict[str, Row](), list[str](), dict[str, Array]()
    for case in listing["cases"]:
        program = case["program"]
        if only and program not in only:
            continue
        if program not in rows:
            rows[program], arrays = Row(), dict(np.load(folder / f"{program}.npz"))
        name = f"{program} {case['launch']} {case['kernel']} {case['key'][:24]}"
        try:
            wrong += [f"{name}: {each}" for each in run(gpu, folder, case, listing["kernels"][case["key"]], arrays, rows[program])]
        except DriverError as error:
            rows[program].failed += 1
            return rows, [*wrong, f"{name}: {error}; the cases behind it were not run"]
    return rows, wrong


def main() -> int:
    """Runs the cases that are asked for. Returns 1 where one is wrong, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path(os.environ["OUT"]) if "OUT" in os.environ else None)
    parser.add_argument("--fake", default="")
    chosen = parser.parse_args()
    listing = json.loads((chosen.folder / "cases.json").read_text())
    try:
        gpu = Gpu(stand_in(chosen.fake, chosen.folder, listing["kernels"]) if chosen.fake else ctypes.CDLL("libcuda.so.1"))
    except (OSError, DriverError) as error:
        print(f"no GPU: {error}", file=sys.stderr)
        return 2
    begin = time.monotonic()
    rows, wrong = check(gpu, chosen.folder, listing, chosen.only)
    lines = [*wrong, f"{gpu.name}, sm_{gpu.architecture}, {time.monotonic() - begin:.0f} s"]
    lines.append(f"{'program':<20} {'launches':>8} {'wrong':>6} {'worst':>8} {'us':>10}")
    lines += [f"{name:<20} {row.launches:>8} {row.failed:>6} {row.worst:>8.3f} {row.microseconds:>10.0f}" for name, row in rows.items()]
    print("\n".join(lines))
    if chosen.out:
        (chosen.out / "gpu_check.txt").write_text("\n".join(lines) + "\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
