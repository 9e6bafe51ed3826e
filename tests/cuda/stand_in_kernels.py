"""Kernels on the stand-in driver: a launch runs the version's text in Triton's interpreter, on the memory that the driver has.

`texts` takes the place of `assemble` in a compile: the code of a version is then its text, behind the parameters as PTX declares them, which
is all that the driver reads of it. `noted` lets real code be made, and notes which text it is of.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from disc.codegen.cuda import backend
from disc.codegen.cuda.assemble import assemble
from disc.codegen.cuda.cubin import Cubin
from disc.codegen.cuda.kernel import DeviceVersion
from disc.codegen.cuda.maps import MAP_BYTES

ROOT = Path(__file__).resolve().parents[2]
ILLEGAL_ADDRESS = 700
WORDS = {"i1": "bool", "fp32": "float32", "fp64": "float64", "fp16": "float16", "bf16": "bfloat16"}  # torch's names; others are its own


@dataclass(frozen=True)
class Kernel:
    """types: of the parameters; hints: (number of a parameter, what divides it); maps: tensor maps that a program makes."""

    text: str
    types: tuple[str, ...]
    hints: tuple[tuple[int, int], ...]
    maps: int = 0

    @classmethod
    def of(cls, version: DeviceVersion) -> Kernel:
        places = {each.name: number for number, each in enumerate(version.parameters)}
        hints = tuple((places[name], number) for name, number in version.hints)
        return cls(version.text, tuple(each.type for each in version.parameters), hints, version.maps)

    def code(self) -> bytes:
        """As the driver reads it, with the rest behind."""
        sizes = [*(".u32" if each == "i32" else ".u64" for each in self.types), ".u64", ".u64"]
        head = f".visible .entry kernel({', '.join(f'.param {each} p{number}' for number, each in enumerate(sizes))})\n"
        return (head + json.dumps([self.text, self.types, self.hints, self.maps])).encode() + b"\0"

    @classmethod
    def read(cls, code: bytes) -> Kernel:
        text, types, hints, maps = json.loads(code.partition(b"\n")[2])
        return cls(text, tuple(types), tuple((place, number) for place, number in hints), maps)


@cache
def copies() -> Mapping[bytes, Kernel]:
    """The kernels that the runtime has as PTX, by that."""
    sys.path.append(str(ROOT / "tools"))
    tool: Any = importlib.import_module("make_copy_kernels")
    made = [part.partition(')ptx"')[0].encode() for part in tool.TARGET.read_text().split('R"ptx(')[1:]]
    return dict(zip(made, (Kernel.of(tool.version(bits)) for bits in tool.SIZES), strict=True))


@contextmanager
def texts() -> Iterator[None]:
    """Compiles within give texts as the code of GPUs."""

    def made(versions: Sequence[DeviceVersion], gpu: object, threads: int = 1, stored: object = None) -> Mapping[str, Cubin]:
        del gpu, threads, stored
        return {each.key: Cubin(Kernel.of(each).code(), "", 32 * each.warps, 1, 0, MAP_BYTES * each.maps, 0, 0, ()) for each in versions}

    with _in_place_of_assemble(made):
        yield


@contextmanager
def noted() -> Iterator[list[tuple[bytes, Kernel]]]:
    """Yields what compiles within add to: code of a GPU, and what it is of."""
    found: list[tuple[bytes, Kernel]] = []

    def made(versions: Sequence[DeviceVersion], *rest: Any) -> Mapping[str, Cubin]:
        cubins = assemble(versions, *rest)
        found.extend((cubins[each.key].code, Kernel.of(each)) for each in versions)
        return cubins

    with _in_place_of_assemble(made):
        yield found


@contextmanager
def _in_place_of_assemble(made: Callable[..., Mapping[str, Cubin]]) -> Iterator[None]:
    itself: Any = backend
    itself.assemble = made
    try:
        yield
    finally:
        itself.assemble = assemble


class Executor:
    """What runs launches. The process interprets: interpreted.py is imported here."""

    def __init__(self, driver: ctypes.CDLL, known: Sequence[tuple[bytes, Kernel]] = ()) -> None:
        """known: what machine code is of."""
        import interpreted
        import torch

        self.driver, self.known, self.interpreted, self.torch = driver, known, interpreted, torch
        self.errors: list[str] = []
        self.launched = 0
        form = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int64, c_char_p, ctypes.POINTER(c_uint32), ctypes.POINTER(c_uint64), c_int32)
        self.run = form(self._run)  # as long as the driver may call it
        driver.fake_set_executor(self.run)

    def _run(self, image: int, size: int, name: bytes, grid: Any, values: Any, count: int) -> int:
        try:
            kernel = self._kernel(ctypes.string_at(image, size))
            assert (name, count) == (b"kernel", len(kernel.types) + 2)
            programs = tuple(grid[axis] for axis in range(3))
            self._use_scratch(values[count - 2], MAP_BYTES * kernel.maps * math.prod(programs))
            assert not values[count - 1], "nothing is profiled"
            self._launch(kernel, programs, values[: len(kernel.types)])
            self.launched += 1
        except Exception as error:  # through C there is no other way to tell
            self.errors.append(repr(error))
            print(f"the stand-in: {error!r:.4000}", file=sys.stderr)
            return ILLEGAL_ADDRESS
        return 0

    def _kernel(self, code: bytes) -> Kernel:
        if code in copies():
            return copies()[code]
        if not code.startswith(b"\x7fELF"):
            return Kernel.read(code)
        return next(kernel for known, kernel in self.known if known[: len(code)] == code)

    def _use_scratch(self, address: int, size: int) -> None:
        """Writes to what a launch has for its tensor maps, as its programs do."""
        assert (address != 0) == (size > 0) and address % MAP_BYTES == 0, f"{size} bytes of scratch at {address:#x}"
        first, whole = c_uint64(), c_int64()
        if size:
            assert self.driver.fake_find(c_uint64(address), ctypes.byref(first), ctypes.byref(whole)), f"no scratch at {address:#x}"
            assert address + size <= first.value + whole.value, f"{size} bytes of scratch at {address:#x}, in a block of {whole.value}"
            ctypes.memset(address, 0xA5, size)

    def _launch(self, kernel: Kernel, grid: tuple[int, ...], values: Sequence[int]) -> None:
        for place, number in kernel.hints:
            assert values[place] % number == 0, f"parameter {place} is {values[place]:#x}, which {number} does not divide\n{kernel.text}"
        buffers: dict[str, Any] = {}
        given = [
            self._tensor(value, type_[1:], buffers) if type_[0] == "*" else ctypes.c_int64(value).value if type_ == "i64" else value
            for value, type_ in zip(values, kernel.types, strict=True)
        ]
        with self.interpreted.Checked(buffers, [], list(buffers), kernel.maps):
            self.interpreted.load(kernel.text)[grid](*given)

    def _tensor(self, address: int, type_: str, buffers: dict[str, Any]) -> Any:
        """The memory from an address to the end of its block, which may be touched; nothing where there is none."""
        torch, first, size = self.torch, c_uint64(), c_int64()
        element = getattr(torch, WORDS.get(type_, type_.replace("i", "int").replace("u", "uint")))
        if not self.driver.fake_find(c_uint64(address), ctypes.byref(first), ctypes.byref(size)):
            return torch.empty(0, dtype=element)
        block = torch.frombuffer((ctypes.c_ubyte * size.value).from_address(first.value), dtype=torch.uint8)
        buffers[hex(first.value)] = block
        rest = block[address - first.value :]
        return (
            rest[: len(rest) // element.itemsize * element.itemsize].view(element)
            if len(rest) >= element.itemsize
            else rest[:0].view(element)
        )
