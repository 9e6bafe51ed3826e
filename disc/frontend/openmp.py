"""The OpenMP library that PyTorch computes with, for programs whose launches run on its threads (`ral_use_team`)."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

FUNCTIONS = ("GOMP_parallel_start", "GOMP_parallel_end", "omp_get_max_threads")


@cache
def parallel_regions() -> tuple[int, ...] | None:
    """The addresses of FUNCTIONS, as PyTorch's own library finds them. None where PyTorch has threads of another kind, or is linked in
    another way."""
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in FUNCTIONS]
    except (OSError, AttributeError):
        return None
    return tuple(each for each in found if each)
