"""bf16 in NumPy, which has no such type: values held as float32, and their bits. Needs NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def round_to_bf16(array: Array) -> Array:
    """float32 → the nearest bf16 value (ties to even), still held as float32."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    quiet = (bits | np.uint32(0x00400000)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(array), quiet, rounded).astype(np.uint32).view(np.float32).reshape(array.shape)


def bf16_bits(array: Array) -> npt.NDArray[np.uint16]:
    """The 16 bits of each value of a float32 array that holds bf16."""
    return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16).reshape(array.shape)


def bf16_values(bits: Array) -> Array:
    """The inverse of `bf16_bits`."""
    return (np.ascontiguousarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(bits.shape)
