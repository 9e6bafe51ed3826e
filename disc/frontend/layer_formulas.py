"""Layers of which both decompositions and forms consist: in f32 (never f64), in few passes over the data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """Normalizations and softmax are computed in f32 for 16-bit floats."""
    return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def statistic(value: Tensor, x: Tensor, weight: Tensor | None) -> Tensor:
    """A mean or deviation in the type that eager stores it in: the input's, or f32 where the weights have another type."""
    return value.to(x.dtype) if weight is None or weight.dtype == x.dtype else value


def native_layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    values = wide(x)
    mean = values.mean(dims, keepdim=True)
    centered = values - mean
    rstd = torch.rsqrt((centered * centered).mean(dims, keepdim=True) + eps)
    result = centered * rstd
    if weight is not None:
        result = result * weight
    if bias is not None:
        result = result + bias
    return result.to(x.dtype), statistic(mean, x, weight), statistic(rstd, x, weight)


def native_group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, space: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    grouped = wide(x).reshape(batch, group, channels // group, space)
    mean = grouped.mean([2, 3], keepdim=True)
    centered = grouped - mean
    rstd = torch.rsqrt((centered * centered).mean([2, 3], keepdim=True) + eps)
    result = (centered * rstd).reshape(x.shape)
    per_channel = [1, channels, *[1] * (x.dim() - 2)]
    if weight is not None:
        result = result * weight.reshape(per_channel)
    if bias is not None:
        result = result + bias.reshape(per_channel)
    return result.to(x.dtype), statistic(mean, x, weight).reshape(batch, group), statistic(rstd, x, weight).reshape(batch, group)


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    values = wide(x)
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (values + 0.044715 * values * values * values)
        return (0.5 * values * (1 + torch.tanh(inner))).to(x.dtype)
    return (0.5 * values * (1 + torch.erf(values * math.sqrt(0.5)))).to(x.dtype)
