"""What launches and calls take and what they should give, small enough to be taken along: each array once, arguments that seeds make by
their names, and of large results a sketch.

A sketch of numbers is a sum over each of some pieces, with random signs (Alon, Matias, Szegedy: "The space complexity of approximating
the frequency moments", 1999). The norm of a difference of sketches estimates that of the difference of what they are of, within some
5 %, and every element counts in full. Of integers it is a checksum of each piece.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpu_parts.driver import Array
from gpu_parts.report import BOUNDS, Row, difference, enter_share, wide
from gpu_parts.weights import drawn, to_bf16

LARGE = 1 << 14  # bytes: larger arguments come from seeds, larger results are sketched
PIECES = 512


def sketch(array: Array, element: str) -> Array:
    """Of an array of finite numbers as it is stored, or of integers: f64 or ui32[PIECES]."""
    flat = array.reshape(-1)
    starts = np.arange(PIECES) * flat.size // PIECES
    if element not in BOUNDS:
        ends = [*starts[1:], flat.size]
        return np.array([zlib.crc32(flat[start:end].tobytes()) for start, end in zip(starts, ends, strict=True)], np.uint32)
    bits = np.random.PCG64(flat.size).random_raw(-(-flat.size // 64)).view(np.uint8)
    signs = np.unpackbits(bits)[: flat.size].astype(np.int8) * np.int8(2) - np.int8(1)
    return np.add.reduceat(wide(flat, element) * signs, starts)


@dataclass
class Stored:
    """The arrays of a program while they are collected. about: by the name of each, how it is made; plain: those that are stored."""

    plain: dict[str, Array] = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    _seeds: dict[str, dict[str, Any]] = field(default_factory=dict)

    def draw(self, values: Array, name: str, bf16: bool) -> Array:
        """Values that a seed makes, with the deviation of `values`, f32 or bf16 ones. What equals them later is not stored."""
        made = _values(name, values.shape)
        rounded = to_bf16(made)
        self._seeds[_name(rounded, ())] = {"kind": "drawn", "seed": name, "bf16": True}
        if bf16:
            return (rounded.astype(np.uint32) << 16).view(np.float32).reshape(values.shape)
        self._seeds[_name(made, ())] = {"kind": "drawn", "seed": name, "bf16": False}
        return made

    def argument(self, array: Array) -> str:
        """The name of an array as it lies in memory."""
        name = _name(array, array.shape)
        seed = self._seeds.get(_name(array, ()))
        self.about[name] = {**(seed or {"kind": "plain"}), "shape": array.shape}
        if seed is None:
            self.plain[name] = array
        return name

    def result(self, array: Array, element: str) -> str:
        """The name of what something should give."""
        if array.nbytes <= LARGE or not (element not in BOUNDS or np.isfinite(wide(array, element)).all()):
            return self.argument(array)
        name = _name(array, array.shape) + ".sketch"
        norm = float(np.linalg.norm(wide(array, element))) if element in BOUNDS else 0.0
        self.plain[name] = sketch(array, element)
        self.about[name] = {"kind": "sketch", "shape": array.shape, "dtype": array.dtype.name, "norm": norm}
        return name


def _name(array: Array, shape: tuple[int, ...]) -> str:
    return hashlib.sha256(f"{array.dtype}{shape}".encode() + np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


class Arrays:
    """Those of a file, by the names that `Stored` gave them."""

    def __init__(self, file: Path, about: Mapping[str, Mapping[str, Any]]) -> None:
        self._stored, self._about, self._made = np.load(file), about, dict[str, Array]()

    def layout(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape, and type of the elements as they lie in memory."""
        about = self._about[name]
        dtype = np.dtype(about["dtype"]) if about["kind"] == "sketch" else self.argument(name).dtype
        return tuple(about["shape"]), dtype

    def argument(self, name: str) -> Array:
        """The whole array. It stays, since launches share it."""
        if name not in self._made:
            about = self._about[name]
            self._made[name] = self._stored[name] if about["kind"] == "plain" else _drawn(about)
        return self._made[name]

    def judge(self, row: Row, found: Array, name: str, element: str, bound: float | None = None) -> str:
        """Enters a result into a row. Returns what is wrong with it, or ""; bound: as of `report.judge`."""
        about = self._about[name]
        if about["kind"] != "sketch":
            away = difference(found, self.argument(name), element)
        elif list(found.shape) != list(about["shape"]):
            away = float("inf")
        elif element not in BOUNDS:
            away = float((sketch(found, element) != self._stored[name]).sum())
        elif np.isfinite(wide(found, element)).all():
            away = float(np.linalg.norm(sketch(found, element) - self._stored[name])) / (about["norm"] or 1.0)
        else:
            away = float("inf")
        return enter_share(row, away, tuple(about["shape"]), element, bound)


def _drawn(about: Mapping[str, Any]) -> Array:
    values = _values(about["seed"], about["shape"])
    return to_bf16(values) if about["bf16"] else values


def _values(seed: str, shape: Sequence[int]) -> Array:
    """With the deviation of normal numbers."""
    return np.asarray(drawn(seed, shape) * np.float32(np.sqrt(3.0)))
