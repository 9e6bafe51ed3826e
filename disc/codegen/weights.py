"""The weights that code reads: which, in which order, and the form of each (row-major, or panels for a GEMM)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from disc.codegen.plan.kernel import PackedWeight
from disc.codegen.plan.winograd import transform_weights
from disc.ir.weights import Weight, WeightTable


class WeightStore:
    """The weights that code reads, each once for all targets: plain, or in panels where a kernel needs them."""

    def __init__(self, table: WeightTable) -> None:
        self.table = table
        self.entries: list[tuple[str, Weight]] = []
        self._numbers: dict[object, int] = {}

    def plain(self, name: str) -> int:
        """The number of a weight as it is, row-major."""
        key = ("plain", self._identity(name))
        if key not in self._numbers:
            weight = self.table[name]
            self._add(key, name, Weight(np.ascontiguousarray(weight.array).reshape(weight.array.shape), weight.dtype))
        return self._numbers[key]

    def packed(self, name: str, pack: PackedWeight, scales: str | None) -> int:
        """The number of a weight in panels, with the weight `scales` between their rows where the panels have blocks."""
        form = (pack.k, pack.n, pack.k_step, pack.n_step, pack.start, pack.columns, pack.group, pack.block, pack.tile)
        key = ("packed", self._identity(name), form, self._identity(scales) if scales is not None else None)
        if key not in self._numbers:
            weight = self.table[name]
            panels = pack_panels(weight.array, pack)
            if scales is not None:
                panels = with_scales(panels, self.table[scales].array, pack)
            self._add(key, f"{name}.panels{pack.columns}", Weight(panels, weight.dtype))
        return self._numbers[key]

    def _add(self, key: object, name: str, weight: Weight) -> None:
        self._numbers[key] = len(self.entries)
        self.entries.append((name, weight))

    def _identity(self, name: str) -> object:
        array = self.table[name].array
        return (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str) if array.size else name


class WeightSlots:
    """Counts the weights that the code for one target reads, in the order in which it first does."""

    def __init__(self, store: WeightStore) -> None:
        self._store = store
        self.numbers: list[int] = []

    def plain(self, name: str) -> int:
        """The slot of a weight as it is."""
        return self._slot(self._store.plain(name))

    def packed(self, name: str, pack: PackedWeight, scales: str | None) -> int:
        """The slot of a weight in panels."""
        return self._slot(self._store.packed(name, pack, scales))

    def _slot(self, number: int) -> int:
        if number not in self.numbers:
            self.numbers.append(number)
        return self.numbers.index(number)


def pack_panels(array: npt.NDArray[np.generic], pack: PackedWeight) -> npt.NDArray[np.generic]:
    """(panels, k / group, columns * group): element (k, n) at [n // columns, k // group, n % columns * group + k % group], else zero.

    With a tile: flat, the panels of the transformed weights, then these.
    """
    flat = _flat_view(array, pack)
    if not pack.tile:
        return _panels(flat, pack)
    transformed = transform_weights(flat.reshape(3, 3, -1, pack.n), pack.tile).reshape(-1, pack.n)
    return np.concatenate([_panels(each, pack).reshape(-1) for each in (transformed, flat)])


def _panels(flat: npt.NDArray[np.generic], pack: PackedWeight) -> npt.NDArray[np.generic]:
    panels, rows = -(-pack.n // pack.columns), -(-flat.shape[0] // pack.group)
    result = np.zeros((panels, rows, pack.columns, pack.group), dtype=flat.dtype)
    for panel in range(panels):
        part = flat[:, panel * pack.columns : (panel + 1) * pack.columns]
        for side in range(pack.group):
            own = part[side :: pack.group]
            result[panel, : own.shape[0], : part.shape[1], side] = own
    return result.reshape(panels, rows, pack.columns * pack.group)


def with_scales(panels: npt.NDArray[np.generic], scales: npt.NDArray[np.generic], pack: PackedWeight) -> npt.NDArray[np.generic]:
    """(panels, rows, columns * group) → the same with a row of scales, f32 as bytes, after the rows of every block of k."""
    count, rows, width = panels.shape
    blocks, length = -(-pack.k // pack.block), pack.block // pack.group
    table = np.zeros((count * pack.columns, blocks), np.float32)
    table[: pack.n] = scales.reshape(pack.n, blocks)
    lines = np.ascontiguousarray(table.reshape(count, pack.columns, blocks).swapaxes(1, 2)).view(panels.dtype)
    result = np.empty((count, rows + blocks, width), panels.dtype)
    for block in range(blocks):
        own = panels[:, block * length : (block + 1) * length]
        start = block * (length + 1)
        result[:, start : start + own.shape[1]] = own
        result[:, start + own.shape[1]] = lines[:, block]
    return result


def _flat_view(array: npt.NDArray[np.generic], pack: PackedWeight) -> npt.NDArray[np.generic]:
    """The (k, n) matrix that the row-major positions describe; without a copy for a contiguous or a transposed weight."""
    if array.ndim == 2 and pack.start == 0:
        if array.shape == (pack.k, pack.n) and (pack.k_step, pack.n_step) == (array.shape[1], 1):
            return array
        if array.shape == (pack.n, pack.k) and (pack.k_step, pack.n_step) == (1, array.shape[1]):
            return array.T
    flat = np.ascontiguousarray(array).reshape(-1)
    step = flat.itemsize
    return np.lib.stride_tricks.as_strided(flat[pack.start :], (pack.k, pack.n), (pack.k_step * step, pack.n_step * step), writeable=False)
