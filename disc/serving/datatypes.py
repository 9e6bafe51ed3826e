"""The element types of the Open Inference Protocol, with disc's and NumPy's names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Datatype:
    """One of the 14 types. dtype: disc's name. storage: NumPy's type of one element (bf16 as its bits). contents: the field of
    InferTensorContents that holds typed elements, None where the protocol has raw bytes only."""

    name: str
    dtype: str
    storage: np.dtype[np.generic]
    contents: str | None


def _datatype(name: str, dtype: str, storage: type[np.generic], contents: str | None) -> Datatype:
    return Datatype(name, dtype, np.dtype(storage).newbyteorder("<"), contents)


DATATYPES: dict[str, Datatype] = {
    each.name: each
    for each in (
        _datatype("BOOL", "i1", np.bool_, "bool_contents"),
        _datatype("UINT8", "ui8", np.uint8, "uint_contents"),
        _datatype("UINT16", "ui16", np.uint16, "uint_contents"),
        _datatype("UINT32", "ui32", np.uint32, "uint_contents"),
        _datatype("UINT64", "ui64", np.uint64, "uint64_contents"),
        _datatype("INT8", "i8", np.int8, "int_contents"),
        _datatype("INT16", "i16", np.int16, "int_contents"),
        _datatype("INT32", "i32", np.int32, "int_contents"),
        _datatype("INT64", "i64", np.int64, "int64_contents"),
        _datatype("FP16", "f16", np.float16, None),
        _datatype("FP32", "f32", np.float32, "fp32_contents"),
        _datatype("FP64", "f64", np.float64, "fp64_contents"),
        _datatype("BF16", "bf16", np.uint16, None),
    )
}
BYTES = "BYTES"  # strings of any length; no compiled model has one, but the step before it may
# The field of InferTensorContents that has typed elements, by datatype; None: raw bytes only.
CONTENTS: dict[str, str | None] = {**{name: each.contents for name, each in DATATYPES.items()}, BYTES: "bytes_contents"}
NESTED = "JSON"  # over HTTP alone: structures as nested objects, for a model over structures
OF_DTYPE: dict[str, Datatype] = {each.dtype: each for each in DATATYPES.values()}
