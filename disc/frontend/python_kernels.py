"""Kernels of PyTorch ops in Python while something is traced, in the place of PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch._C import DispatchKey

Kernels = Mapping[tuple[torch._ops.OperatorBase, DispatchKey], Callable[..., object] | None]


@contextmanager
def python_kernels(kernels: Kernels) -> Iterator[None]:
    """While it is entered, the ops are these functions. What traces holds a lock meanwhile."""
    kept = {(op, key): op.py_kernels.get(key) for op, key in kernels}
    _set(kernels)
    try:
        yield
    finally:
        _set(kept)


def _set(kernels: Kernels) -> None:
    for (op, key), kernel in kernels.items():
        if kernel is None:
            op.py_kernels.pop(key, None)
        else:
            op.py_kernels[key] = kernel  # pyright: ignore[reportArgumentType]
        op._dispatch_cache.clear()
