"""Calls of a GPU's code section without a runtime: its host code gets memory of this process, and launches are noted, not made."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, c_int32, c_int64, c_void_p
from dataclasses import dataclass, field

from disc.codegen.cuda.descriptors import ADDRESS
from disc.codegen.host.abi import API_OFFSETS
from disc.speculation.schedules import FEATURES
from disc.speculation.tree import LEAF

SMS = 132


class Image(ctypes.Structure):
    """`ral_gpu_image`."""

    _fields_ = [("architecture", c_int32), ("ptx", c_int32), ("data", c_void_p), ("size", c_int64)]


class Descriptor(ctypes.Structure):
    """`ral_gpu_kernel`."""

    _fields_ = [
        *((name, c_int32) for name in ("abi", "threads", "shared", "cluster", "scratch", "fault", "image_count", "parameter_count")),
        ("function", ctypes.c_char_p), ("images", POINTER(Image)), ("parameter_sizes", POINTER(ctypes.c_uint8)),
    ]  # fmt: skip


class Tensor(ctypes.Structure):
    """`ral_tensor`."""

    _fields_ = [
        ("data", c_void_p), ("dims", POINTER(c_int64)), ("strides", c_void_p), ("rank", c_int32), ("dtype", ctypes.c_uint16),
        ("device", ctypes.c_uint8), ("device_id", ctypes.c_uint8),
    ]  # fmt: skip


@dataclass(frozen=True)
class Launched:
    """One launch: which kernel of the manifest, the description of its version, the slots of its arguments, and the grid."""

    kernel: int
    descriptor: Descriptor
    address: int
    arguments: tuple[int, ...]
    grid: tuple[int, int, int]
    tasks: int

    @property
    def images(self) -> list[tuple[int, int, bytes]]:
        """(architecture, whether it is text, the code)."""
        every = (self.descriptor.images[number] for number in range(self.descriptor.image_count))
        return [(each.architecture, each.ptx, ctypes.string_at(each.data, each.size)) for each in every]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each parameter."""
        return [each & ~ADDRESS for each in self.descriptor.parameter_sizes[: self.descriptor.parameter_count]]


@dataclass
class Seen:
    """What a call asked for. chosen: (features, number of the schedule, how many there are) of each tree that was walked; filled: (address,
    bytes) of memory that was zeroed."""

    launches: list[Launched] = field(default_factory=list)
    chosen: list[tuple[tuple[int, ...], int, int]] = field(default_factory=list)
    watched: list[int] = field(default_factory=list)
    failed: list[tuple[int, int, int]] = field(default_factory=list)
    filled: list[tuple[int, int]] = field(default_factory=list)
    outputs: dict[int, tuple[int, ...]] = field(default_factory=dict)


class Section:
    """A code section, loaded."""

    def __init__(self, code: bytes) -> None:
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(code)
            file.flush()
            self.library = ctypes.CDLL(file.name)

    def call(self, shapes: Sequence[Sequence[int]], ranks: Sequence[int], weights: int = 0, counters: int = 256) -> tuple[int, Seen]:
        """Runs the entry on inputs of these shapes; ranks: of the outputs. Returns what it returned, and what it asked for."""
        seen, held = Seen(), list[object]()

        def memory(count: int) -> int:
            block = ctypes.create_string_buffer(max(count, 1) + 256)
            held.append(block)
            return (ctypes.addressof(block) + 255) // 256 * 256

        def output(_: int, index: int, dims: int) -> int:
            seen.outputs[index] = tuple(ctypes.cast(dims, POINTER(c_int64))[: ranks[index]])
            return memory(1 << 16)

        def launch(_: int, kernel: int, address: int, arguments: int, tasks: int, cost: int, scratch: int) -> int:
            del cost, scratch
            descriptor = Descriptor.from_address(address)
            slots = ctypes.cast(arguments, POINTER(c_int64))[: descriptor.parameter_count + 3]
            x, y, z = slots[-3:]
            seen.launches.append(Launched(kernel, descriptor, address, tuple(slots[:-3]), (x, y, z), tasks))
            return 0

        def choose(_: int, nodes: int, features: int, count: int) -> int:
            node, sizes = ctypes.cast(nodes, POINTER(c_int64)), ctypes.cast(features, POINTER(c_int64))
            sizes[FEATURES.index("threads")], place = SMS, 0
            while (feature := node[4 * place]) != LEAF:
                place = node[4 * place + (2 if sizes[feature] <= node[4 * place + 1] else 3)]
            seen.chosen.append((tuple(sizes[: len(FEATURES)]), node[4 * place + 1], count))
            return node[4 * place + 1]

        def watch(_: int, check: int) -> int:
            seen.watched.append(check)
            return 0

        def fail(_: int, check: int, actual: int, expected: int) -> int:
            seen.failed.append((check, actual, expected))
            return 1

        def fill(_: int, to: int, count: int, value: int) -> int:
            assert value == 0
            seen.filled.append((to, count))
            return 0

        functions = {
            "alloc": CFUNCTYPE(c_void_p, c_void_p, c_int64)(lambda _, count: memory(count)),
            "output": CFUNCTYPE(c_void_p, c_void_p, c_int64, c_void_p)(output),
            "launch": CFUNCTYPE(c_int32, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int64, c_int64)(launch),
            "choose": CFUNCTYPE(c_int64, c_void_p, c_void_p, c_void_p, c_int64)(choose),
            "fail": CFUNCTYPE(c_int32, c_void_p, c_int64, c_int64, c_int64)(fail),
            "free": CFUNCTYPE(c_int32, c_void_p, c_void_p)(lambda _, block: 0),
            "copy": CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_int64)(lambda _, to, source, count: 0),
            "fill": CFUNCTYPE(c_int32, c_void_p, c_void_p, c_int64, c_int32)(fill),
            "watch": CFUNCTYPE(c_int32, c_void_p, c_int64)(watch),
        }
        table = (c_void_p * (max(API_OFFSETS.values()) // 8 + 1))()
        for name, function in functions.items():
            table[API_OFFSETS[name] // 8] = ctypes.cast(function, c_void_p).value
        inputs = (Tensor * len(shapes))()
        for tensor, shape in zip(inputs, shapes, strict=True):
            dims = (c_int64 * len(shape))(*shape)
            held.append(dims)
            tensor.data, tensor.dims, tensor.rank = memory(1 << 16), dims, len(shape)
        places = (c_void_p * max(weights, 1))(*(memory(64) for _ in range(weights)))
        counts = (c_int64 * counters)()
        return self.library.disc_entry(None, table, inputs, places, counts), seen
