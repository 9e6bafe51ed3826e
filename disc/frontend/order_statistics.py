"""Decompositions of medians, modes and the like into a stable sort: of equal elements the indices may be others than eager's."""

from __future__ import annotations

import torch
from torch import Tensor

from disc.frontend.eager_strides import Decomposition

aten = torch.ops.aten
Pair = tuple[Tensor, Tensor]


def _at(x: Tensor, position: Tensor, dim: int, keepdim: bool) -> Pair:
    """The element of each line of `x` that is in its sorted line at `position`, and where it is. position: with dim `dim` of size 1."""
    values, indices = torch.sort(x, stable=True, dim=dim)
    found = torch.gather(values, dim, position), torch.gather(indices, dim, position)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


def _of_no_dims(x: Tensor) -> Pair:
    return x.clone(), torch.zeros([], dtype=torch.int64)


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    if not x.dim():
        return _of_no_dims(x)
    values, indices = torch.sort(x, stable=True, dim=dim)
    found = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


def _numbers(x: Tensor, dim: int) -> Tensor:
    """How many elements of each line are not NaN."""
    return torch.isnan(x).logical_not().sum(dim, keepdim=True)


def _lower_middle(x: Tensor, dim: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] = 1
    return torch.full(shape, 0, dtype=torch.int64) + (x.shape[dim] - 1) // 2


def median_dim(x: Tensor, dim: int, keepdim: bool = False) -> Pair:
    """The lower of two in the middle; of a line with NaN the first NaN."""
    if not x.dim():
        return _of_no_dims(x)
    middle = _lower_middle(x, dim)
    if x.dtype.is_floating_point:
        numbers = _numbers(x, dim)
        middle = torch.where(numbers < x.shape[dim], numbers, middle)
    return _at(x, middle, dim, keepdim)


def nanmedian_dim(x: Tensor, dim: int, keepdim: bool = False) -> Pair:
    """The median of what is not NaN."""
    if not x.dim() or not x.dtype.is_floating_point:
        return median_dim(x, dim, keepdim)
    return _at(x, (_numbers(x, dim) - 1).clamp_min(0) // 2, dim, keepdim)


def median(x: Tensor) -> Tensor:
    return median_dim(x.reshape(-1), 0)[0]


def nanmedian(x: Tensor) -> Tensor:
    return nanmedian_dim(x.reshape(-1), 0)[0]


def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> Pair:
    """The most frequent element, the least of several such, and its last place: where the longest run of the sorted line ends."""
    if not x.dim():
        return _of_no_dims(x)
    dim %= x.dim()
    values, indices = torch.sort(x, stable=True, dim=dim)
    shape = [1] * x.dim()
    shape[dim] = -1
    place = torch.arange(x.shape[dim]).reshape(shape)
    before = torch.roll(values, 1, dim)
    starts = torch.where((values != before) | (place == 0), place, torch.zeros_like(place))
    lengths = place - torch.cummax(starts, dim).values
    end = lengths.argmax(dim, keepdim=True)
    found = torch.gather(values, dim, end), torch.gather(indices, dim, end)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


DECOMPOSITIONS: dict[torch._ops.OperatorBase, Decomposition] = {
    aten.kthvalue.default: kthvalue, aten.median.default: median, aten.median.dim: median_dim, aten.nanmedian.default: nanmedian,
    aten.nanmedian.dim: nanmedian_dim, aten.mode.default: mode,
}  # fmt: skip
