"""Weights of large models, made from seeds: the folder holds how to make them, not their values.

Values are integers of a generator whose bits NumPy fixes, scaled by one multiplication: any machine makes the same ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_parts.driver import Array

if TYPE_CHECKING:
    from torch import nn

SCALE = 0.035  # from -SCALE to SCALE: a deviation of 0.02
SMALL = 1 << 12  # bytes: smaller weights are stored as they are
Piece = tuple[str, bool]  # a parameter, and whether it is transposed


def drawn(name: str, shape: Sequence[int]) -> Array:
    """f32 values from -1 to 1, by a name."""
    count = int(np.prod(shape))
    bits = np.random.PCG64(zlib.crc32(name.encode())).random_raw(-(-count // 2)).view(np.uint32)[:count]
    return ((bits >> np.uint32(8)).astype(np.float32) * np.float32(2**-23) - np.float32(1)).reshape(shape)


def seeded(name: str, shape: Sequence[int]) -> Array:
    """f32 values of a parameter; of vectors called weight, which scale, around 1."""
    values = np.asarray(drawn(name, shape) * np.float32(SCALE))
    if len(shape) == 1 and name.endswith("weight"):
        values += np.float32(1)
    return values


def seed_module(module: nn.Module) -> dict[str, Array]:
    """Gives all f32 parameters of a module their values; returns these by name."""
    import torch

    made: dict[str, Array] = {}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dtype == torch.float32:
                made[name] = seeded(name, tuple(parameter.shape))
                parameter.copy_(torch.from_numpy(made[name]))
    return made


def to_bf16(array: Array) -> Array:
    """f32 rounded to nearest, ties to even, as bits. No NaN."""
    bits = array.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


class Recipes:
    """Finds how stored weights come of parameters."""

    def __init__(self, parameters: Mapping[str, Array]) -> None:
        self._candidates: dict[np.dtype[Any], list[tuple[Piece, Array]]] = {np.dtype(np.float32): list(_forms(parameters))}
        self._candidates[np.dtype(np.uint16)] = list(_forms({name: to_bf16(array) for name, array in parameters.items()}))

    def find(self, weight: Array) -> dict[str, Any] | None:
        """The recipe of a weight in f32, or in bf16 as its bits: pieces side by side along an axis; None where it is none of these."""
        candidates = self._candidates.get(weight.dtype, [])
        recipe = {"bf16": weight.dtype == np.uint16, "shape": list(weight.shape)}
        for axis in range(min(weight.ndim, 2)):
            pieces = _pieces(weight, axis, [each for each in candidates if each[1].ndim == weight.ndim])
            if pieces is not None:
                return {**recipe, "axis": axis, "pieces": pieces}
        for piece, array in candidates:  # in another shape
            if array.size == weight.size and np.array_equal(array.reshape(-1), weight.reshape(-1)):
                return {**recipe, "axis": 0, "pieces": [piece]}
        return None


def _forms(parameters: Mapping[str, Array]) -> Iterator[tuple[Piece, Array]]:
    for name, array in parameters.items():
        yield (name, False), array
        if array.ndim == 2:
            yield (name, True), array.T


def _pieces(weight: Array, axis: int, candidates: Sequence[tuple[Piece, Array]]) -> list[Piece] | None:
    found, place = list[Piece](), 0
    while place < weight.shape[axis]:
        rest = weight[place:] if axis == 0 else weight[:, place:]
        for piece, array in candidates:
            own = rest[: array.shape[axis]] if axis == 0 else rest[:, : array.shape[axis]]
            if own.shape == array.shape and own.size and own.flat[0] == array.flat[0] and np.array_equal(own, array):
                found.append(piece)
                place += array.shape[axis]
                break
        else:
            return None
    return found or None


def follow_recipe(recipe: Mapping[str, Any], parameters: Mapping[str, Array]) -> Array:
    """The weight of a recipe."""
    pieces = [parameters[name].T if transposed else parameters[name] for name, transposed in recipe["pieces"]]
    whole = np.concatenate(pieces, recipe["axis"]) if len(pieces) > 1 else pieces[0]
    whole = np.ascontiguousarray(whole).reshape(recipe["shape"])
    return to_bf16(whole) if recipe["bf16"] else whole
