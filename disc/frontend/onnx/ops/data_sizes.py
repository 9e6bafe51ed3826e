"""Operators whose results have as many elements as data says: forms for the operands that are no sizes known to the trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.values import NodeError, Number


def counted(number: Tensor) -> Number:
    """A number of elements; a call in which it is negative fails."""
    count = cast(Number, number.reshape([]).item())
    torch._check(count >= 0)
    return count


def _rank_of(sizes: Tensor) -> int:
    """Raises: NodeError where it depends on data, too."""
    if sizes.dim() != 1 or not isinstance(sizes.shape[0], int):
        raise NodeError("the number of its dims depends on data")
    return sizes.shape[0]


def dims_of(sizes: Tensor) -> list[Number]:
    """Raises: NodeError where their number depends on data."""
    return [counted(sizes[place]) for place in range(_rank_of(sizes))]


def dims(node: Node, place: int, what: str) -> list[Number]:
    """Those of an operand, of data too. what: they are, in messages."""
    return node.integers(place, what) if node.sizes(place) is not None else dims_of(node.tensor(place))


def reshaped(x: Tensor, sizes: Tensor, keeps_zeros: bool) -> Tensor:
    """keeps_zeros: whether a 0 is one, not the size that x has at that place."""
    rank = _rank_of(sizes)
    if not keeps_zeros and rank:
        own = torch.stack([torch.scalar_tensor(x.shape[i] if i < x.dim() else 0, dtype=sizes.dtype) for i in range(rank)])
        sizes = torch.where(sizes == 0, own, sizes)
    known = torch.where(sizes == -1, 1, sizes).prod().clamp(min=1)
    rest = torch.div(torch.scalar_tensor(x.numel(), dtype=sizes.dtype), known, rounding_mode="floor")
    return x.reshape(dims_of(torch.where(sizes == -1, rest, sizes)))


def _steps(first: Tensor, past: Tensor, step: Tensor) -> Number:
    """How many steps it takes, 0 where it goes the other way."""
    if step.is_floating_point():
        count = torch.ceil((past - first) / step).to(torch.int64)
    else:
        count = -torch.div(first - past, step, rounding_mode="floor")
    return counted(count.clamp(min=0))


def counted_range(first: Tensor, past: Tensor, step: Tensor) -> Tensor:
    first, past, step = (each.reshape([]) for each in (first, past, step))
    return first + torch.arange(_steps(first, past, step)).to(first.dtype) * step


def sliced(x: Tensor, axes: Sequence[int], starts: Tensor, ends: Tensor, steps: Tensor) -> Tensor:
    starts, ends, steps = (each.to(torch.int64) for each in (starts, ends, steps))
    for place, axis in enumerate(axes):
        step = steps[place]
        forward = step > 0
        size = torch.scalar_tensor(x.shape[axis], dtype=torch.int64)
        zero = torch.zeros_like(size)
        last = torch.where(forward, size, size - 1)
        first, past = (torch.where(each < 0, each + size, each) for each in (starts[place], ends[place]))
        first = torch.minimum(torch.maximum(first, zero), last)
        past = torch.minimum(torch.maximum(past, torch.where(forward, zero, zero - 1)), last)
        x = x.index_select(axis, counted_range(first, past, step))
    return x


def split(x: Tensor, sizes: Tensor, axis: int) -> tuple[Tensor, ...]:
    """Parts of sizes that data says; a call in which they are not the whole of x fails."""
    ends, parts = torch.cumsum(sizes.to(torch.int64), 0), dims_of(sizes)
    rest = cast(Number, (ends[-1] - torch.scalar_tensor(x.shape[axis], dtype=torch.int64)).item())
    torch._check(rest == 0, lambda: "the sizes of the parts must add up to that of the dim that is split")
    return tuple(x.index_select(axis, torch.arange(count) + (ends[i] - sizes[i])) for i, count in enumerate(parts))


def expanded(x: Tensor, sizes: Tensor) -> Tensor:
    """A dim of 1 takes the size that data says; one of another size keeps it, for which data says the same, or 1."""
    wanted = dims_of(sizes)
    rank = max(x.dim(), len(wanted))
    own = [1] * (rank - x.dim()) + list(x.shape)
    found: list[Number] = []
    for mine, size in zip(own, [1] * (rank - len(wanted)) + wanted, strict=True):
        is_one = isinstance(mine, int) and mine == 1
        if not is_one and not isinstance(size, int):
            torch._check((size - mine) * (size - 1) == 0)
        found.append(size if is_one else mine)
    return x.expand(found)
