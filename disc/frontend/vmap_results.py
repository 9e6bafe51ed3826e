"""What `torch.func.vmap` gives while a module is exported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor, maybe_get_bdim, maybe_get_level
from torch._functorch import predispatch, vmap

_original = predispatch._remove_batch_dim


@contextmanager
def moved_results() -> Iterator[None]:
    """Results get their batch where it lies, and it is moved behind that: PyTorch's own move is not traced."""
    vmap._remove_batch_dim = _remove_batch_dim  # pyright: ignore[reportPrivateImportUsage]
    try:
        yield
    finally:
        vmap._remove_batch_dim = _original  # pyright: ignore[reportPrivateImportUsage]


def _remove_batch_dim(x: Tensor, level: int, batch_size: int, out_dim: int) -> Tensor:
    if not is_batchedtensor(x) or maybe_get_level(x) != level:
        return _original(x, level, batch_size, out_dim)
    own = maybe_get_bdim(x)
    return torch.movedim(_original(x, level, batch_size, own), own, out_dim)
