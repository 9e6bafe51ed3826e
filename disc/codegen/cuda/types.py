"""Element types in Triton: in memory, and in registers, where f16 and bf16 are f32 that hold their values exactly."""

from __future__ import annotations

import math

import numpy as np

from disc.ir.graph import Node

MEMORY = {
    "f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "i1": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64",
    "ui8": "u8", "ui16": "u16", "ui32": "u32", "ui64": "u64",
}  # fmt: skip
_LANGUAGE = {
    "f64": "tl.float64", "f32": "tl.float32", "f16": "tl.float16", "bf16": "tl.bfloat16", "i1": "tl.int1", "i8": "tl.int8",
    "i16": "tl.int16", "i32": "tl.int32", "i64": "tl.int64", "ui8": "tl.uint8", "ui16": "tl.uint16", "ui32": "tl.uint32",
    "ui64": "tl.uint64",
}  # fmt: skip
FLOATS = ("f64", "f32", "f16", "bf16")
NARROW = ("f16", "bf16")


def in_memory(element: str) -> str:
    """Triton's name of the type of a stored element."""
    return _LANGUAGE[element]


def in_register(element: str) -> str:
    """Triton's name of the type of a computed element."""
    return _LANGUAGE["f32" if element in NARROW else element]


def bits_of(element: str) -> int:
    """Bits of an element in memory; of i1, of its value."""
    return int(element.lstrip("uibf"))


def rounded(value: str, element: str) -> str:
    """A computed value with the precision of its type."""
    return f"{value}.to({in_memory(element)}).to(tl.float32)" if element in NARROW else value


def literal(value: float, element: str) -> str:
    """A scalar of the register's type."""
    if element == "i1":
        return f"tl.full([], {int(bool(value))}, tl.int1)"
    if element in FLOATS:
        value = float(value)
        text = repr(value) if math.isfinite(value) else f"float('{value}')"
        return f"tl.full([], {text}, {in_register(element)})"
    return f"tl.full([], {int(value)}, {in_register(element)})"


def constant(node: Node) -> str:
    """The value of a constant that is the same everywhere."""
    array = node.attrs["value"]
    assert isinstance(array, np.ndarray)
    scalar = array.reshape(-1)[0] if array.size else np.zeros((), array.dtype)[()]
    if node.element == "bf16":
        scalar = (np.uint32(scalar) << np.uint32(16)).view(np.float32)
    return literal(scalar.item(), node.element)
