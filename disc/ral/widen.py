"""Inputs of a narrower dtype than a program takes, brought to it where no value changes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

if TYPE_CHECKING:
    import torch

DTYPES = {  # as manifests write it → as torch names it; NumPy's name is the same but for bool
    "i1": "bool", "i8": "int8", "ui8": "uint8", "i16": "int16", "ui16": "uint16", "i32": "int32", "ui32": "uint32", "i64": "int64",
    "ui64": "uint64", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128",
}  # fmt: skip


def is_exact(given: str, wanted: str) -> bool:
    """Whether every value of dtype `given` is one of `wanted` ("int32" → "int64"; "int64" → "float64" is not)."""
    if given == "bfloat16":
        return wanted in ("float32", "float64", "complex64", "complex128")
    if wanted == "bfloat16":
        return given in ("bool", "int8", "uint8")  # 8 bits of mantissa
    return np.can_cast(given, wanted, casting="safe") and not (given in ("int64", "uint64") and wanted.startswith(("float", "complex")))


def widened(inputs: Sequence[object], arguments: Sequence[Mapping[str, object]]) -> tuple[object, ...]:
    """The inputs, each torch tensor or NumPy array brought to its argument's dtype where that changes no value. Others stay, and are
    refused or taken by the call itself.

    arguments: their records in the manifest.
    """
    return tuple(_widened(value, str(record["dtype"])) for value, record in zip(inputs, arguments, strict=False)) + tuple(
        inputs[len(arguments) :]
    )


def _widened(value: object, dtype: str) -> object:
    given, wanted = _dtype_of(value), DTYPES.get(dtype)
    if given is None or wanted is None or given == wanted or not is_exact(given, wanted):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value if wanted == "bfloat16" else np.asarray(value).astype(wanted)
    return cast("torch.Tensor", value).to(getattr(sys.modules["torch"], wanted))


def _dtype_of(value: object) -> str | None:
    """ "int32" of a torch tensor or a NumPy array; None: it is neither, or has another kind of dtype."""
    if isinstance(value, np.ndarray | np.generic):
        name = value.dtype.name
    elif type(value).__module__.partition(".")[0] == "torch":
        name = str(getattr(value, "dtype", "")).removeprefix("torch.")
    else:
        return None
    return name if name in DTYPES.values() else None
