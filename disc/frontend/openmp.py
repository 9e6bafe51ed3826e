"""The OpenMP library that PyTorch computes with, for programs whose launches run on its threads (`ral_use_team`)."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import torch

FUNCTIONS = ("GOMP_parallel_start", "GOMP_parallel_end", "omp_get_max_threads")
FORKED = 0x40  # of the flags of a process: it runs what it was forked with (PF_FORKNOEXEC of the kernel)


@cache
def parallel_regions() -> tuple[int, ...] | None:
    """The addresses of FUNCTIONS in the library that PyTorch calls. None where PyTorch has threads of another kind, or is linked in another
    way, and in a forked child: there the library waits for the threads that it had before, if it had any."""
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info() or _is_forked():
        return None
    for path in (None, str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")):  # what is preloaded comes first, as for the linker
        try:
            library = ctypes.CDLL(path)
            found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in FUNCTIONS]
        except (OSError, AttributeError):
            continue
        return tuple(each for each in found if each)
    return None


def _is_forked() -> bool:
    try:
        fields = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return bool(int(fields[6]) & FORKED)
