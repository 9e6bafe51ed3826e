"""Code of one version for one GPU, what its file says of it, and its form on disk."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from disc.codegen.cuda.names import NAME
from disc.errors import ArtifactError

_HEAD = struct.Struct("<32sII")  # SHA-256 of all that follows, bytes of the facts and of the code


@dataclass(frozen=True)
class Cubin:
    """code: the ELF file; ptx: the same as portable text, "" where there is none. threads of a block; cluster: blocks of a cluster. Bytes:
    shared, of a block; scratch, of global memory for each block; stack, of a thread (what spills lies there). registers of a thread.
    parameters: (offset, size) in bytes of each, the last two Triton's own scratch pointers.
    """

    code: bytes
    ptx: str
    threads: int
    cluster: int
    shared: int
    scratch: int
    registers: int
    stack: int
    parameters: tuple[tuple[int, int], ...]

    @property
    def abi(self) -> int:
        """The version of the ELF file's ABI, which a driver must know: 7 since CUDA 9, 8 since CUDA 13."""
        return self.code[8]


# --- the file of a GPU's code ---------------------------------------------------------------------------------------------


def parameters(cubin: bytes) -> list[tuple[int, int]]:
    """(offset, size) of every parameter: attribute 0x17, KPARAM_INFO, of the section .nv.info.<function>."""
    found: dict[int, tuple[int, int]] = {}
    for kind, value in _attributes(_sections(cubin)[f".nv.info.{NAME}"]):
        if kind == 0x17:
            _, ordinal, offset, word = struct.unpack_from("<IHHI", value)
            found[ordinal] = (offset, word >> 18)
    return [found[ordinal] for ordinal in sorted(found)]


def resources(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack) of a thread: attributes 0x2f, REGCOUNT, and 0x11, FRAME_SIZE, of .nv.info, each (function, number)."""
    found = _attributes(_sections(cubin)[".nv.info"])
    registers, stack = ([struct.unpack_from("<II", value)[1] for kind, value in found if kind == wanted] for wanted in (0x2F, 0x11))
    return max(registers, default=0), max(stack, default=0)


def _attributes(info: bytes) -> list[tuple[int, bytes]]:
    """(number, value) of the attributes that have a value of their own size."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(info):
        sized = info[at] == 4
        length = struct.unpack_from("<H", info, at + 2)[0] if sized else 0
        if sized:
            found.append((info[at + 1], info[at + 4 : at + 4 + length]))
        at += 4 + length
    return found


def _sections(elf: bytes) -> Mapping[str, bytes]:
    """The contents of the sections of an ELF file by name."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", elf, table + number * size) for number in range(count)]
    label = heads[names][4]
    return {elf[label + head[0] :].split(b"\0", 1)[0].decode(): elf[head[4] : head[4] + head[5]] for head in heads}


# --- on disk --------------------------------------------------------------------------------------------------------------


def to_bytes(cubin: Cubin) -> bytes:
    """For the cache."""
    numbers = (cubin.threads, cubin.cluster, cubin.shared, cubin.scratch, cubin.registers, cubin.stack)
    facts = json.dumps([numbers, cubin.parameters]).encode()
    rest = facts + cubin.code + cubin.ptx.encode()
    sizes = struct.pack("<II", len(facts), len(cubin.code))
    return hashlib.sha256(sizes + rest).digest() + sizes + rest


def from_bytes(data: bytes) -> Cubin:
    """Raises ArtifactError for what `to_bytes` did not make."""
    if len(data) < _HEAD.size or hashlib.sha256(data[32:]).digest() != data[:32]:
        raise ArtifactError("a kernel in the cache is damaged")
    _, length, code = _HEAD.unpack_from(data)
    numbers, pairs = json.loads(data[_HEAD.size : _HEAD.size + length])
    start = _HEAD.size + length
    threads, cluster, shared, scratch, registers, stack = numbers
    return Cubin(
        data[start : start + code], data[start + code :].decode(), threads, cluster, shared, scratch, registers, stack,
        tuple((offset, size) for offset, size in pairs),
    )  # fmt: skip
