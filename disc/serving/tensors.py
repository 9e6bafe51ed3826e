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
from disc.serving.shared_memory import SharedBytes
from disc.serving.signature import TensorSpec

Array = npt.NDArray[np.generic]
MAX_RANK = 32  # NumPy's arrays have at most 64 dims, StableHLO's models far fewer


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """An input of a request. shape: elements per dim; content: its raw bytes, here or in shared memory, or its elements (flat,
    row-major)."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    content: memoryview | SharedBytes | Sequence[object]


def bytes_of(given: GivenTensor, spec: TensorSpec, limits: Limits) -> int:
    """How many bytes the array of an input will have: that all fits is known before memory is taken for it. Raises RequestError."""
    if given.datatype not in DATATYPES:
        _refuse_datatype(given, spec)
    if given.datatype != spec.datatype.name:
        raise RequestError(f"input '{spec.name}' has datatype {given.datatype}, the model takes {spec.datatype.name}")
    size = elements(given.name, given.shape, limits) * spec.datatype.storage.itemsize
    if isinstance(given.content, memoryview | SharedBytes) and given.content.nbytes != size:
        expected = f"its shape {list(given.shape)} of {spec.datatype.name} needs {size}"
        raise RequestError(f"input '{spec.name}' has {given.content.nbytes} bytes, {expected}")
    return size


def array_of(given: GivenTensor, spec: TensorSpec) -> Array:
    """The array of an input that `bytes_of` accepts, a view of raw bytes that are aligned. Raises RequestError, OverloadedError."""
    content = given.content.read() if isinstance(given.content, SharedBytes) else given.content
    if isinstance(content, memoryview):
        return _from_raw(cast("memoryview", content), given.shape, spec)
    return _from_elements(content, given.shape, math.prod(given.shape), spec)


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
    # Dims next to a zero count as well: other tensors may have them without the zero.
    largest = max(math.prod(shape), *shape, 0) if shape else 1
    if largest > limits.elements:
        raise RequestError(f"input '{name}' has the shape {list(shape)}; at most {limits.elements} elements are accepted")
    return math.prod(shape)


def _from_raw(content: memoryview, shape: tuple[int, ...], spec: TensorSpec) -> Array:
    storage = spec.datatype.storage
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
