"""Types that PyTorch has no arithmetic for: integers of fewer than 8 bits, floats of 8 and of 4.

Their tensors are stored one element to a byte: an integer as its value (i8, u8), a float as its code (u8). What the codes stand for, and
where one code ends and the next begins, is asked of the standard's own casts, so that no format is described here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from disc.frontend.onnx.tensors import is_float
from disc.frontend.onnx.values import Constant, NodeError, constant_of

INTEGER_BITS: dict[int, int] = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.INT2: 2, TensorProto.UINT2: 2}
SIGNED = (TensorProto.INT4, TensorProto.INT2)
UNSIGNED_FLOATS = (TensorProto.FLOAT8E8M0,)
_INFINITY = 0x7F800000  # bits of an f32


def arrived(stored: Tensor, kind: int) -> Tensor:
    """What a caller passes: bits beyond the type's are left out, so that no value is one that the type does not have."""
    if kind in INTEGER_BITS:
        return wrapped(stored, kind)
    return stored & 15 if kind == TensorProto.FLOAT4E2M1 else stored


def wrapped(x: Tensor, kind: int) -> Tensor:
    """Integers modulo the type's range, stored."""
    bits = INTEGER_BITS[kind]
    low = x & (2**bits - 1)
    if kind not in SIGNED:
        return low.to(torch.uint8)
    return ((low ^ 2 ** (bits - 1)) - 2 ** (bits - 1)).to(torch.int8)


def limits(kind: int) -> tuple[int, int]:
    """The smallest and the largest integer."""
    bits = INTEGER_BITS[kind]
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if kind in SIGNED else (0, 2**bits - 1)


def decoded(stored: Tensor, kind: int) -> Tensor:
    """Integers as they are stored, floats as f32."""
    if not is_float(kind):
        return stored
    return torch.index_select(_meanings(kind).data, 0, stored.reshape(-1).to(torch.int64)).reshape(stored.shape)


def encoded(x: Tensor, kind: int, *, saturate: bool = True, rounding: str = "up") -> Tensor:
    """The nearest values of the type, stored. saturate: what is too large becomes the largest, of types that have infinities or NaN.
    rounding: of e8m0. Integers are cut toward zero and wrapped."""
    if not is_float(kind):
        return wrapped(x.to(torch.int32), kind)
    wide = x.to(torch.float32)
    code = torch.bucketize(wide.abs(), _borders(kind, saturate, rounding).data, right=True)
    if kind in UNSIGNED_FLOATS:
        return torch.where(torch.isnan(wide), 255, code).to(torch.uint8)
    sign, negative_zero, nan = _sign_of(kind)
    signed = torch.where(torch.signbit(wide) & ((code != 0) | negative_zero) & (code < sign), code + sign, code)
    return torch.where(torch.isnan(wide), nan, signed).to(torch.uint8)


# --- asked of the standard's casts ------------------------------------------------------------------------------------------------


@cache
def _meanings(kind: int) -> Constant:
    """Code → value."""
    count = 16 if kind == TensorProto.FLOAT4E2M1 else 256
    codes = np.arange(count, dtype=np.uint8).view(helper.tensor_dtype_to_np_dtype(kind))
    return constant_of(lambda: torch.from_numpy(codes.astype(np.float32)))


def _cast(kind: int, saturate: bool, rounding: str) -> Callable[[np.ndarray], np.ndarray]:
    """f32 → code."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    if kind == TensorProto.FLOAT8E8M0:
        return lambda x: numpy_helper.to_float8e8m0(x, saturate, rounding).view(np.uint8)
    if saturate and kind != TensorProto.FLOAT4E2M1:
        return lambda x: numpy_helper.saturate_cast(x, dtype).view(np.uint8)
    return lambda x: x.astype(dtype).view(np.uint8)


@cache
def _borders(kind: int, saturate: bool, rounding: str) -> Constant:
    """The smallest f32 of each code but the first, of those that are not negative: found by bisection, as codes grow with values."""
    if rounding not in ("up", "down", "nearest"):
        raise NodeError(f"rounding '{rounding}'", unsupported=False)
    cast = _cast(kind, saturate, rounding)
    with np.errstate(all="ignore"):
        last = int(cast(np.array([np.inf], np.float32))[0])
        wanted = np.arange(1, last + 1)
        low, high = np.full(last, -1, np.int64), np.full(last, _INFINITY, np.int64)  # bits of too small and of sufficient ones
        while (high - low > 1).any():
            middle = (low + high) // 2
            enough = cast(middle.astype(np.int32).view(np.float32)) >= wanted
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return constant_of(lambda: torch.from_numpy(high.astype(np.int32).view(np.float32).copy()))


@cache
def _sign_of(kind: int) -> tuple[int, bool, int]:
    """What the sign adds to a code, whether there is a negative zero, and the code of NaN."""
    cast = _cast(kind, False, "up")
    with np.errstate(all="ignore"):
        one, negative, zero, nan = (int(each) for each in cast(np.array([1.0, -1.0, -0.0, np.nan], np.float32)))
    return negative - one, zero != 0, nan
