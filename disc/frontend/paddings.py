"""Decompositions of padding by reflection and by the edge: the few elements beside a dim are slices of it. Shapes stay symbolic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from disc.frontend.eager_strides import Decomposition

aten = torch.ops.aten


def _padded(x: Tensor, padding: Sequence[int], edges: Callable[[Tensor, int, int, bool], Tensor]) -> Tensor:
    """padding: before and after each dim, the last one first; less than 0 cuts off. edges: the elements beside a dim, of
    (x, dim, count, end)."""
    if not all(isinstance(each, int) for each in padding):
        return NotImplemented
    for number, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True), 1):
        dim = x.dim() - number
        parts = [edges(x, dim, before, False)] if before > 0 else []
        first, last = max(-before, 0), max(-after, 0)
        parts.append(x.narrow(dim, first, x.shape[dim] - first - last) if first or last else x)
        parts += [edges(x, dim, after, True)] if after > 0 else []
        x = torch.cat(parts, dim) if len(parts) > 1 else parts[0]
    return x.clone() if all(each == 0 for each in padding) else x


def _reflected(x: Tensor, dim: int, count: int, end: bool) -> Tensor:
    return x.narrow(dim, x.shape[dim] - 1 - count if end else 1, count).flip(dim)


def _repeated(x: Tensor, dim: int, count: int, end: bool) -> Tensor:
    edge = x.narrow(dim, x.shape[dim] - 1 if end else 0, 1)
    return edge.expand([count if place == dim else -1 for place in range(x.dim())])


def reflection_pad(x: Tensor, padding: Sequence[int]) -> Tensor:
    return _padded(x, padding, _reflected)


def replication_pad(x: Tensor, padding: Sequence[int]) -> Tensor:
    return _padded(x, padding, _repeated)


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    **dict.fromkeys((aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default), reflection_pad),
    **dict.fromkeys((aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default), replication_pad),
}
