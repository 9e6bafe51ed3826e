"""What `torch.func.vmap` gives while a module is exported, and what it makes of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, fx
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


def make_numbers_tensors(module: fx.GraphModule) -> None:
    """Numbers that a trace of functions of `torch.func` converts as if they were tensors, `x / 20` of one element, become such."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten._to_copy.default):
        if isinstance(node.args[0], int | float):
            node.target, node.kwargs = torch.ops.aten.scalar_tensor.default, {"dtype": node.meta["val"].dtype}
    module.recompile()


def _remove_batch_dim(x: Tensor, level: int, batch_size: int, out_dim: int) -> Tensor:
    if not is_batchedtensor(x) or maybe_get_level(x) != level:
        return _original(x, level, batch_size, out_dim)
    own = maybe_get_bdim(x)
    return torch.movedim(_original(x, level, batch_size, own), own, out_dim)
