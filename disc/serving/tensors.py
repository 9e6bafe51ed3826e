"""Tensors as they come in requests → NumPy arrays, in place where that is possible; every size is checked before memory is taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from disc.errors import RequestError
from disc.serving.datatypes import BYTES, DATATYPES
from disc.serving.settings import Limits
from disc.serving.signature import TensorSpec

Array = npt.NDArray[np.generic]
MAX_RANK = 32  # NumPy's arrays have at most 64 dims, StableHLO's models far fewer


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """An input of a request. content: its raw bytes (a memoryview), or its elements (flat, row-major)."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    content: memoryview | Sequence[object]


def array_of(given: GivenTensor, spec: TensorSpec, limits: Limits) -> Array:
    """The array of an input, a view of the raw bytes where they are aligned. Raises RequestError."""
    if given.datatype not in DATATYPES:
        _refuse_datatype(given, spec)
    if given.datatype != spec.datatype.name:
        raise RequestError(f"input '{spec.name}' has datatype {given.datatype}, the model takes {spec.datatype.name}")
    count = elements(given.name, given.shape, limits)
    if isinstance(given.content, memoryview):
        return _from_raw(cast("memoryview", given.content), given.shape, count, spec)
    return _from_elements(given.content, given.shape, count, spec)


def _refuse_datatype(given: GivenTensor, spec: TensorSpec) -> None:
    if given.datatype == BYTES:
        raise RequestError(f"input '{spec.name}' has datatype BYTES; compiled models take numbers only, this one {spec.datatype.name}")
    raise RequestError(f"input '{spec.name}' has the unknown datatype {given.datatype[:20]!r}; there are {', '.join(DATATYPES)}")


def elements(name: str, shape: Sequence[int], limits: Limits) -> int:
    """The number of elements of a shape. Raises RequestError for a shape that is impossible or too large."""
    if len(shape) > MAX_RANK:
        raise RequestError(f"input '{name}' has {len(shape)} dims; at most {MAX_RANK} are accepted")
    if any(size < 0 for size in shape):
        raise RequestError(f"input '{name}' has a negative dim in its shape {list(shape)}")
    # Dims beside a zero count as well: other tensors may have them without the zero.
    largest = max(math.prod(shape), *shape, 0) if shape else 1
    if largest > limits.elements:
        raise RequestError(f"input '{name}' has the shape {list(shape)}; at most {limits.elements} elements are accepted")
    return math.prod(shape)


def _from_raw(content: memoryview, shape: tuple[int, ...], count: int, spec: TensorSpec) -> Array:
    storage = spec.datatype.storage
    if content.nbytes != count * storage.itemsize:
        expected = f"its shape {list(shape)} of {spec.datatype.name} needs {count * storage.itemsize}"
        raise RequestError(f"input '{spec.name}' has {content.nbytes} bytes, {expected}")
    if storage == np.bool_ and content.nbytes and int(np.frombuffer(content, np.uint8).max()) > 1:
        raise RequestError(f"input '{spec.name}' has a BOOL that is neither 0 nor 1")
    array = np.frombuffer(content, storage).reshape(shape)
    return array if array.flags.aligned else array.copy()  # generated code may rely on the alignment of an element


def _from_elements(content: Sequence[object], shape: tuple[int, ...], count: int, spec: TensorSpec) -> Array:
    storage = spec.datatype.storage
    if len(content) != count:
        raise RequestError(f"input '{spec.name}' has {len(content)} elements, its shape {list(shape)} needs {count}")
    try:
        with np.errstate(over="raise"):  # a JSON number beyond FP32 is no infinity
            array = np.array(content, _carrier(storage))
    except (TypeError, ValueError, OverflowError, FloatingPointError):
        raise RequestError(f"input '{spec.name}' has an element that is no {spec.datatype.name}") from None
    if array.shape != (count,):
        raise RequestError(f"input '{spec.name}' has an element that is no {spec.datatype.name}")
    if array.dtype != storage and storage.kind in "iu" and count:
        bounds = np.iinfo(storage.type)  # pyright: ignore[reportArgumentType, reportCallIssue] - the kind says it is one
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            raise RequestError(f"input '{spec.name}' has an element outside the range of {spec.datatype.name}")
    return array.astype(storage, copy=False).reshape(shape)


def _carrier(storage: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The type that elements are read as: wide enough that those out of range are seen."""
    if storage.kind in "iu" and storage.itemsize < 8:
        return np.dtype(np.int64)
    return storage
