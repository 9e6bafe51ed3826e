"""The weight table: name → array, with shared storage kept shared and nothing copied until a pass asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from disc.artifact.manifest import STORAGE

# MLIR element type → bytes of one element in memory.
ELEMENT_BYTES: dict[str, int] = {element: np.dtype(dtype).itemsize for element, dtype in STORAGE.items()}

# Values of k of a weight in bytes that share a scale (`disc.scaled_dot`): scaling costs some 4 instructions for 32 `vpdpbusd`.
SCALED_BLOCK = 128


@dataclass(frozen=True, eq=False)
class Weight:
    """One tensor of constant data.

    array: any shape and strides, of the NumPy dtype `STORAGE[dtype]`; dtype: the MLIR element type ("f32", "bf16", ...).
    """

    array: npt.NDArray[np.generic]
    dtype: str

    def __post_init__(self) -> None:
        if self.array.dtype != np.dtype(STORAGE[self.dtype]):
            raise TypeError(f"weight of type {self.dtype} must be stored as {np.dtype(STORAGE[self.dtype])}, not {self.array.dtype}")

    def bytes(self) -> memoryview:
        """The elements in row-major order; without a copy where they lie so."""
        return np.ascontiguousarray(self.array).reshape(-1).view(np.uint8).data if self.array.size else memoryview(b"")


@dataclass
class WeightTable:
    """Name → `Weight`. Names are unique; two names may share one storage."""

    entries: dict[str, Weight] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def __getitem__(self, name: str) -> Weight:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def add(self, hint: str, weight: Weight) -> str:
        """Adds `weight` under `hint`, or under `hint.1`, `hint.2`, ... if taken; returns the name used."""
        name, n = hint, 0
        while name in self.entries:
            n += 1
            name = f"{hint}.{n}"
        self.entries[name] = weight
        return name
