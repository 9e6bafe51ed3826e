"""What generated host code knows of the runtime's structures. Generated from ral.h by tools/make_abi.py."""

from __future__ import annotations

TENSOR_BYTES = 32  # of a ral_tensor
TENSOR_OFFSETS = {"data": 0, "dims": 8, "strides": 16, "rank": 24, "dtype": 28, "device": 30, "device_id": 31}  # bytes, in a ral_tensor
API_OFFSETS = {  # bytes, in the ral_host_api
    "alloc": 0,
    "output": 8,
    "launch": 16,
    "fail": 24,
    "choose": 32,
    "cache_bytes": 40,
    "free": 48,
    "copy": 56,
    "fill": 64,
    "read": 72,
    "library": 80,
    "watch": 88,
}
FEATURES = ("m", "n", "k", "batch", "threads")  # the order of ral_feature
