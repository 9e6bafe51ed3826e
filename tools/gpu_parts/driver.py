"""NVIDIA's driver through ctypes: a GPU, its memory between guards, launches of code. Needs NumPy and `libcuda.so.1` alone."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import byref, c_char_p, c_float, c_int32, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

GUARD, POISON = 256, 0xA5  # bytes on both sides of a buffer, and what they hold
LONG = 256 << 20  # bytes that take longer to set than the launches of a measurement to be queued
MAJOR, MINOR, SHARED, PROCESSORS = 75, 76, 8, 16  # numbers of device attributes in the driver's interface
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
        self._long_memory = c_uint64()
        context, device, major, minor, processors = c_void_p(), c_int32(), c_int32(), c_int32(), c_int32()
        self.call("cuInit", c_uint(0))
        self.call("cuDeviceGet", byref(device), c_int32(0))
        self.call("cuDeviceGetAttribute", byref(major), c_int32(MAJOR), device)
        self.call("cuDeviceGetAttribute", byref(minor), c_int32(MINOR), device)
        self.call("cuDeviceGetAttribute", byref(processors), c_int32(PROCESSORS), device)
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, c_int32(256), device)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)
        self.architecture, self.name, self.sms = 10 * major.value + minor.value, name.value.decode(), processors.value

    def call(self, name: str, *arguments: object) -> None:
        """Raises DriverError with the driver's own name of what failed."""
        status = getattr(self.library, name)(*arguments)
        if status:
            text = c_char_p()
            self.library.cuGetErrorName(c_int32(status), byref(text))
            raise DriverError(f"{name}: {(text.value or b'').decode()} ({status})")

    def free_memory(self) -> int:
        """Bytes of the GPU's memory that nobody holds."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def load(self, key: str, code: Mapping[str, Any], folder: Path) -> tuple[c_void_p, Mapping[str, Any]]:
        """The function of a kernel's code for this GPU, and what a launch of it needs. code: both by architecture."""
        if key not in self.functions:
            facts = code.get(str(self.architecture))
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

    def _long(self) -> c_uint64:
        """Memory of LONG bytes, kept."""
        if not self._long_memory.value:
            self.call("cuMemAlloc_v2", byref(self._long_memory), c_size_t(LONG))
        return self._long_memory

    def launch(
        self,
        function: c_void_p,
        facts: Mapping[str, Any],
        grid: Sequence[int],
        values: Sequence[Any],
        times: int = 1,
        zeroed: tuple[int, int] = (0, 0),
        before: int = 0,
    ) -> float:
        """Runs a kernel so many times, to the end. Returns microseconds between events around them, of one. zeroed: address and bytes of
        memory that is 0 before the first, and that each leaves so. before: launches that are not timed, ahead of the others; the GPU does
        something long before them, so that it never waits for the host."""
        slots = (c_void_p * len(values))(*(ctypes.addressof(each) for each in values))
        x, y, z = (*grid, *[1] * (3 - len(grid)))
        config = _Launch((x, y, z), (facts["threads"], 1, 1), facts["shared"], None, None, 0)
        begin, end, passed = c_void_p(), c_void_p(), c_float()
        for event in (begin, end):
            self.call("cuEventCreate", byref(event), c_uint(0))
        if zeroed[1]:
            self.call("cuMemsetD8Async", c_uint64(zeroed[0]), ctypes.c_ubyte(0), c_size_t(zeroed[1]), None)
        if before:
            self.call("cuMemsetD8Async", self._long(), ctypes.c_ubyte(0), c_size_t(LONG), None)
        for number in range(-before, times):
            if number == 0:
                self.call("cuEventRecord", begin, None)
            self.call("cuLaunchKernelEx", byref(config), function, slots, None)
        self.call("cuEventRecord", end, None)
        self.call("cuCtxSynchronize")
        self.call("cuEventElapsedTime", byref(passed), begin, end)
        for event in (begin, end):
            self.call("cuEventDestroy_v2", event)
        return passed.value * 1e3 / times


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
