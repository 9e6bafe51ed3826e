"""Gradients of distances between rows (`torch.cdist`, `torch.pdist`), by the differences of all pairs, as eager computes them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from disc.frontend.eager_strides import Decomposition

aten = torch.ops.aten


def _slope(difference: Tensor, distance: Tensor, p: float) -> Tensor:
    """By how much a distance grows with each difference that it is of. Of rows that are alike it is 0."""
    sign = difference.sign()
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return sign
    if p == math.inf:
        return torch.where(difference.abs() == distance, sign, 0.0)
    apart = torch.where(distance == 0, 1.0, distance)
    if p == 2:
        slope = difference / apart
    else:
        size = torch.where(difference == 0, 1.0, difference.abs()) if p < 1 else difference.abs()
        slope = sign * size ** (p - 1) / apart ** (p - 1)
    return torch.where(distance == 0, 0.0, slope)


def cdist_backward(gradient: Tensor, x1: Tensor, x2: Tensor, p: float, distances: Tensor) -> Tensor:
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return (gradient.unsqueeze(-1) * _slope(difference, distances.unsqueeze(-1), p)).sum(-2)


def pdist_backward(gradient: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    """Each pair of rows is there once: (0, 1), (0, 2), ... (1, 2), ...; a row with itself takes what is put behind them, a 0."""
    count, rows = x.shape[0], torch.arange(x.shape[0])
    one, other = rows.unsqueeze(1), rows.unsqueeze(0)
    low, high = torch.minimum(one, other), torch.maximum(one, other)
    pair = torch.where(one == other, gradient.shape[0], low * (2 * count - low - 1) // 2 + high - low - 1)

    def of_pairs(values: Tensor) -> Tensor:
        return torch.cat([values, values.new_zeros([1])])[pair].unsqueeze(-1)

    difference = x.unsqueeze(1) - x.unsqueeze(0)
    return (of_pairs(gradient) * _slope(difference, of_pairs(distances), p)).sum(1)


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    aten._cdist_backward.default: cdist_backward,
    aten._pdist_backward.default: pdist_backward,
}
