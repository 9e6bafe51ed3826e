"""The OpenMP library that PyTorch computes with, for programs whose launches run on its threads (`ral_use_team`)."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch


@cache
def parallel_regions() -> tuple[int, int] | None:
    """The addresses of GOMP_parallel_start and GOMP_parallel_end, as PyTorch's own library finds them. None where PyTorch has threads of
    another kind, or is linked in another way."""
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        start, end = (ctypes.cast(function, ctypes.c_void_p).value for function in (library.GOMP_parallel_start, library.GOMP_parallel_end))
    except (OSError, AttributeError):
        return None
    return (start, end) if start and end else None
