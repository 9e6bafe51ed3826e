"""Operators that memory alone limits, in and out of cache: (rows, columns)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from bench.cases.case import Case, Shape, random_tensor

WIDTH = 1024
SHAPES: tuple[Shape, ...] = ((1024, WIDTH), (32768, WIDTH))
ODD: tuple[Shape, ...] = (*SHAPES, (16381, 1021))  # where the columns are dynamic too


class Elementwise(nn.Module):
    """`function` of the inputs."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (WIDTH,), self.weight, 1e-6)


class GeluBiasResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return F.gelu(x + self.bias) + residual


def _norm(name: str, title: str, build: Callable[[], nn.Module], inputs: int = 1) -> Case:
    """The columns are those of the weights."""
    return Case(name, title, build, lambda shape: tuple(random_tensor(*shape) for _ in range(inputs)), SHAPES, (0,), (5, WIDTH))


def _function(name: str, title: str, function: Callable[..., torch.Tensor]) -> Case:
    return Case(name, title, lambda: Elementwise(function), lambda shape: (random_tensor(*shape),), ODD, (0, 1), (5, 35))


def _layer_norm() -> nn.Module:
    return nn.LayerNorm(WIDTH)


MEMORY_CASES = (
    _norm("layer-norm", "LayerNorm", _layer_norm),
    _norm("rms-norm", "RMSNorm", RmsNorm),
    _function("softmax", "Softmax of rows", lambda x: F.softmax(x, -1)),
    _function("gelu", "GELU", F.gelu),
    _norm("gelu-bias-residual", "GELU of input and bias, plus residual", GeluBiasResidual, 2),
    _function("transpose", "Transpose", lambda x: x.transpose(0, 1).contiguous()),
    _function("column-sum", "Sums of columns", lambda x: x.sum(0)),
)
