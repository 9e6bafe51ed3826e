"""Tensors as an ONNX file stores them: in the message, or in a file beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper

from disc.errors import UnsupportedFormatError, printable
from disc.frontend.onnx.values import Constant, Narrow

DTYPES: dict[int, torch.dtype] = {
    TensorProto.FLOAT: torch.float32, TensorProto.DOUBLE: torch.float64, TensorProto.FLOAT16: torch.float16,
    TensorProto.BFLOAT16: torch.bfloat16, TensorProto.BOOL: torch.bool, TensorProto.INT8: torch.int8, TensorProto.INT16: torch.int16,
    TensorProto.INT32: torch.int32, TensorProto.INT64: torch.int64, TensorProto.UINT8: torch.uint8, TensorProto.UINT16: torch.uint16,
    TensorProto.UINT32: torch.uint32, TensorProto.UINT64: torch.uint64, TensorProto.COMPLEX64: torch.complex64,
    TensorProto.COMPLEX128: torch.complex128,
}  # fmt: skip
# Types without arithmetic, and what their tensors are stored in: integers as their values, floats as their codes (`narrow.py`).
NARROW: dict[int, torch.dtype] = {
    TensorProto.INT4: torch.int8, TensorProto.UINT4: torch.uint8, TensorProto.INT2: torch.int8, TensorProto.UINT2: torch.uint8,
    TensorProto.FLOAT8E4M3FN: torch.uint8, TensorProto.FLOAT8E4M3FNUZ: torch.uint8, TensorProto.FLOAT8E5M2: torch.uint8,
    TensorProto.FLOAT8E5M2FNUZ: torch.uint8, TensorProto.FLOAT8E8M0: torch.uint8, TensorProto.FLOAT4E2M1: torch.uint8,
}  # fmt: skip
_PER_BYTE: dict[int, int] = {
    TensorProto.INT4: 2, TensorProto.UINT4: 2, TensorProto.INT2: 4, TensorProto.UINT2: 4, TensorProto.FLOAT4E2M1: 2,
}  # fmt: skip
MAX_DIMS = 64


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file, its sizes checked against the bytes that are there. folder: of the model; name: of the model, for messages."""

    proto: TensorProto
    folder: Path
    name: str

    def read(self) -> torch.Tensor:
        """A tensor of its own storage, or of the file's pages, copied where they are written."""
        dtype = DTYPES.get(self.proto.data_type) or NARROW[self.proto.data_type]
        if is_external(self.proto):
            return self._mapped(dtype)
        array = np.array(numpy_helper.to_array(self.proto))
        if self.proto.data_type == TensorProto.BFLOAT16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        if is_float(self.proto.data_type):
            return torch.from_numpy(array.view(np.uint8))
        if self.proto.data_type in NARROW:
            return torch.from_numpy(array.astype(np.int8 if dtype == torch.int8 else np.uint8))
        return torch.from_numpy(array)

    def value(self) -> Constant | Narrow:
        kind, data = self.proto.data_type, Constant(self.read())
        return Narrow(data, kind) if kind in NARROW else data

    def _mapped(self, dtype: torch.dtype) -> torch.Tensor:
        offset, length = _extent(self.proto, external_path(self.proto, self.folder, self.name), self.name)
        if not length:
            return torch.empty(tuple(self.proto.dims), dtype=dtype)
        path = external_path(self.proto, self.folder, self.name)
        data = np.memmap(path, np.uint8, mode="c", offset=offset, shape=(length,))
        if self.proto.data_type in NARROW:
            packed = TensorProto(data_type=self.proto.data_type, dims=self.proto.dims, raw_data=data.tobytes())
            return StoredTensor(packed, self.folder, self.name).read()
        if dtype == torch.bool and bool((data > 1).any()):
            raise _bad(self.proto, self.name, "holds a bool that is neither 0 nor 1")
        if offset % dtype.itemsize:
            data = np.array(data)
        return torch.from_numpy(data).view(dtype).reshape(tuple(self.proto.dims))


def stored_tensor(proto: TensorProto, folder: Path, name: str) -> StoredTensor:
    """Raises: UnsupportedFormatError where its type is not supported, or its data are elsewhere, or not as many as its dims say."""
    kind = proto.data_type
    if kind not in DTYPES and kind not in NARROW:
        known = TensorProto.DataType.Name(kind) if kind in TensorProto.DataType.values() else str(kind)
        raise _bad(proto, name, f"has the type {known}, which is not supported")
    if len(proto.dims) > MAX_DIMS or any(dim < 0 for dim in proto.dims):
        raise _bad(proto, name, f"has the dims {list(proto.dims)[:MAX_DIMS]}")
    if proto.HasField("segment"):
        raise _bad(proto, name, "is stored in segments")
    expected = _byte_count(proto)
    if is_external(proto):
        _, have = _extent(proto, external_path(proto, folder, name), name)
    elif proto.HasField("raw_data"):
        have = len(proto.raw_data)
    else:
        have = expected if len(getattr(proto, onnx.helper.tensor_dtype_to_field(kind))) == _field_count(proto) else -1
    if have != expected:
        raise _bad(proto, name, f"does not have the data of its dims {list(proto.dims)}")
    if kind == TensorProto.BOOL and any(value > 1 for value in (proto.raw_data or ())):
        raise _bad(proto, name, "holds a bool that is neither 0 nor 1")
    return StoredTensor(proto, folder, name)


def is_float(kind: int) -> bool:
    """Of the narrow types."""
    return kind in NARROW and TensorProto.DataType.Name(kind).startswith("FLOAT")


def is_external(proto: TensorProto) -> bool:
    return proto.data_location == TensorProto.EXTERNAL


def external_path(proto: TensorProto, folder: Path, name: str) -> Path:
    """Raises: UnsupportedFormatError for a file outside of the folder, through a symbolic link too, or that is not there."""
    location = {each.key: each.value for each in proto.external_data}.get("location", "")
    home, path = folder.resolve(), (folder / location).resolve()
    if not location or "\0" in location or Path(location).is_absolute() or not path.is_relative_to(home):
        raise _bad(proto, name, f"has its data in '{printable(location)}', which is not a file in the model's folder")
    if not path.is_file():
        raise _bad(proto, name, f"has its data in '{printable(location)}', and there is no such file in the model's folder")
    return path


def _extent(proto: TensorProto, path: Path, name: str) -> tuple[int, int]:
    """The place of the data in its file, in bytes: (offset, length)."""
    entries = {each.key: each.value for each in proto.external_data}
    offset, length = entries.get("offset", "0"), entries.get("length", str(_byte_count(proto)))
    if not (offset.isdecimal() and length.isdecimal()) or len(offset) > 18 or len(length) > 18:
        raise _bad(proto, name, f"has its data at '{printable(offset)}' with length '{printable(length)}'")
    if int(offset) + int(length) > path.stat().st_size:
        raise _bad(proto, name, f"has its data behind the end of '{printable(path.name)}'")
    return int(offset), int(length)


def _byte_count(proto: TensorProto) -> int:
    count = math.prod(proto.dims)
    if proto.data_type in _PER_BYTE:
        return -(-count // _PER_BYTE[proto.data_type])
    return count * (DTYPES.get(proto.data_type) or NARROW[proto.data_type]).itemsize


def _field_count(proto: TensorProto) -> int:
    """How many entries the repeated field has in which data are stored that are not raw."""
    count = math.prod(proto.dims)
    if proto.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        return 2 * count
    return -(-count // _PER_BYTE.get(proto.data_type, 1))


def _bad(proto: TensorProto, name: str, what: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(f"{name}: tensor '{printable(proto.name)}' {what}")
