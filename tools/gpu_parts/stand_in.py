"""The stand-in driver as an sm_90, whose kernels run in Triton's interpreter. Needs Triton and PyTorch."""

from __future__ import annotations

import ctypes
import gzip
import hashlib
import importlib
import json
import struct
import sys
from collections.abc import Mapping
from ctypes import c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from gpu_parts.job import ROOT

ARCHITECTURE, MEMORY = 90, 1 << 30
TEXTS = "texts.json.gz"  # of a folder: what the stand-in executes for a kernel's code, by `code_name`
NO_BITS = 8  # type of an ELF section that takes no place in the file
FAILED = 700  # CUDA_ERROR_ILLEGAL_ADDRESS
_KEPT: list[object] = []  # functions that C calls, as long as the process


def code_name(code: bytes) -> str:
    """Of a cubin, however many bytes follow it."""
    headers, sections = struct.unpack_from("<QQ", code, 32)
    header_size, header_count, section_size, section_count = struct.unpack_from("<HHHH", code, 54)
    end = max(headers + header_size * header_count, sections + section_size * section_count)
    for number in range(section_count):
        kind, offset, size = struct.unpack_from("<4xI16xQQ", code, sections + number * section_size)
        end = max(end, offset + size if kind != NO_BITS else 0)
    return hashlib.sha256(code[:end]).hexdigest()


def write_texts(folder: Path, texts: Mapping[str, Mapping[str, object]]) -> None:
    """texts: by `code_name`, the "text" of a kernel, the "types" of its parameters, and the tensor "maps" of a program."""
    (folder / TEXTS).write_bytes(gzip.compress(json.dumps(texts).encode(), mtime=0))


def stand_in(path: str, folder: Path) -> ctypes.CDLL:
    """The library of the stand-in, started; it executes the texts of the folder."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "cuda")]
    interpreted: Any = importlib.import_module("interpreted")  # of tests/cuda
    texts = json.loads(gzip.decompress((folder / TEXTS).read_bytes()))
    library = ctypes.CDLL(path)
    library.fake_configure(c_int32(1), c_int32(ARCHITECTURE), c_int32(13000), c_size_t(MEMORY))

    def execute(image: int, size: int, name: bytes, grid: Any, values: Any, count: int) -> int:
        try:
            kernel = texts[code_name(ctypes.string_at(image, size))]
            blocks = dict[str, Any]()  # pointers of a call lie in one arena: what is checked is that an access stays in its block
            given = [_argument(library, values[at], type_, blocks) for at, type_ in enumerate(kernel["types"])]
            with interpreted.Checked(blocks, [], list(blocks), kernel["maps"]):
                interpreted.load(kernel["text"])[tuple(grid[axis] for axis in range(3))](*given)
        except Exception as error:  # through C there is no other way to tell
            print(f"the stand-in: {error!r:.2000}", file=sys.stderr)
            return FAILED
        return 0

    form = ctypes.CFUNCTYPE(
        c_int32, c_void_p, c_int64, c_char_p, ctypes.POINTER(c_uint32), ctypes.POINTER(c_uint64), c_int32
    )  # fmt: skip
    _KEPT.append(form(execute))
    library.fake_set_executor(_KEPT[-1])
    return library


def _argument(library: ctypes.CDLL, value: int, type_: str, blocks: dict[str, Any]) -> Any:
    """A parameter as Triton's interpreter takes it: an int, or the memory of the GPU that an address lies in, from there on. The bytes of
    the whole block go to `blocks`."""
    import torch

    if type_[0] != "*":
        return ctypes.c_int32(value & 0xFFFFFFFF).value if type_ == "i32" else ctypes.c_int64(value).value
    first, size = c_uint64(), c_int64()
    if not library.fake_find(c_uint64(value), ctypes.byref(first), ctypes.byref(size)):
        raise ValueError(f"{value:#x} lies in no memory of the GPU")
    names = {"fp32": "float32", "fp64": "float64", "fp16": "float16", "bf16": "bfloat16", "i1": "bool"}
    plain = f"{'u' if type_[1] == 'u' else ''}int{type_[2:]}"
    element: torch.dtype = getattr(torch, names.get(type_[1:], plain))
    count = first.value + size.value - value
    blocks[hex(first.value)] = _tensor(first.value, size.value, torch.uint8)
    return _tensor(value, count - count % element.itemsize, element)


def _tensor(address: int, size: int, element: Any) -> Any:
    """The memory there, which must stay."""
    import torch

    return torch.frombuffer((ctypes.c_ubyte * size).from_address(address), dtype=element)
