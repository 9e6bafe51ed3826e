"""Decompositions whose results lie in memory as those of the op itself do: what eager promises of strides, later ops build upon."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils import _pytree as pytree

from disc.frontend.memory_layouts import memory_layout

Decomposition = Callable[..., object]


def keep_strides(op: torch._ops.OpOverload, decomposition: Decomposition) -> Decomposition:
    """`decomposition`, with results laid out like those of `op`. For tracing with fake tensors."""

    @functools.wraps(decomposition)
    def kept(*args: object, **kwargs: object) -> object:
        result = decomposition(*args, **kwargs)
        if result is NotImplemented or all(_is_row_major(leaf) for leaf in pytree.tree_leaves((args, kwargs))):
            return result  # so are the results of the op and of its decomposition
        with disable_proxy_modes_tracing():
            try:
                wanted = op(*args, **kwargs)
            except Exception:  # there is nothing but the decomposition
                return result
        if not isinstance(result, tuple | list):
            return _laid_out(result, wanted)
        parts = list(map(_laid_out, result, wanted))  # pyright: ignore[reportArgumentType, reportCallIssue]
        return parts if isinstance(result, list) else tuple(parts)  # what has names is a tuple, too

    return kept


def _is_row_major(value: object) -> bool:
    if not isinstance(value, torch.Tensor):
        return True
    layout = memory_layout(value)
    return layout is not None and layout.row_major


def _laid_out(result: object, wanted: object) -> object:
    """`result` in the memory order of `wanted`."""
    if not isinstance(result, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return result
    layout = memory_layout(wanted)
    if layout is None or layout == memory_layout(result):
        return result
    inverse = [layout.order.index(dim) for dim in range(len(layout.order))]
    return result.permute(layout.order).clone(memory_format=torch.contiguous_format).permute(inverse)
