"""Decompositions of padding by reflection and by the edge: the few elements beside a dim are slices of it. Shapes stay symbolic.

PyTorch has one of the gradient of the former, none of that of the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.eager_strides import Decomposition
from disc.frontend.layer_formulas import wide

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


def replication_pad_backward(gradient: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
    """padding: as of `_padded`. An edge has the gradients of all that repeats it; what was cut off has none."""
    if not all(isinstance(each, int) for each in padding):
        return NotImplemented
    found = wide(gradient)
    for number, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True), 1):
        dim, behind = x.dim() - number, [0, 0] * (number - 1)
        first, last = max(before, 0), max(after, 0)
        count = found.shape[dim] - first - last
        inner = found.narrow(dim, first, count) if first or last else found
        if first:
            inner = inner + F.pad(found.narrow(dim, 0, first).sum(dim, keepdim=True), [*behind, 0, count - 1])
        if last:
            inner = inner + F.pad(found.narrow(dim, first + count, last).sum(dim, keepdim=True), [*behind, count - 1, 0])
        cut = [max(-before, 0), max(-after, 0)]
        found = F.pad(inner, [*behind, *cut]) if any(cut) else inner
    return found.to(gradient.dtype)


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    **dict.fromkeys((aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default), reflection_pad),
    **dict.fromkeys((aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default), replication_pad),
    aten.replication_pad1d_backward.default: replication_pad_backward,
    aten.replication_pad2d_backward.default: replication_pad_backward,
    aten.replication_pad3d_backward.default: replication_pad_backward,
}
