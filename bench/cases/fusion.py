"""Fusions that could read many inputs, by which F_max is judged (Dali, paper 004 §2.2 and figure 2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.cases.case import Case, Inputs, Shape, random_tensor

WIDTH = 1024
MOST_INPUTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)  # of a fusion; disc's own limit is beside them
SHAPES: tuple[Shape, ...] = ((4, WIDTH), (64, WIDTH), (1024, WIDTH))  # 16 KiB, 256 KiB and 4 MiB of each input


class OfMany(nn.Module):
    """`function` of a list of tensors."""

    def __init__(self, function: Callable[[tuple[Tensor, ...]], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(inputs)


def total(inputs: tuple[Tensor, ...]) -> Tensor:
    """Memory alone limits it: one addition for each element read."""
    return sum(inputs[1:], inputs[0])


def gated(inputs: tuple[Tensor, ...]) -> Tensor:
    """Arithmetic limits it in cache."""
    return sum((torch.tanh(a) * b for a, b in zip(inputs[2::2], inputs[3::2], strict=True)), torch.tanh(inputs[0]) * inputs[1])


def normalized(inputs: tuple[Tensor, ...]) -> Tensor:
    """Row kernels that read several rows."""
    return F.softmax(F.layer_norm(total(inputs[:-1]), (WIDTH,)) * inputs[-1], -1)


def _case(name: str, title: str, function: Callable[[tuple[Tensor, ...]], Tensor], count: int) -> Case:
    def inputs(shape: Shape) -> Inputs:
        return tuple(random_tensor(*shape) + number for number in range(count))

    return Case(name, title, lambda: OfMany(function), inputs, SHAPES, (0,), (5, WIDTH), variadic=True)


FUSION_CASES = (
    _case("fusion-sum", "Sum of 40 tensors", total, 40),
    _case("fusion-gates", "Sum of 16 gated products", gated, 32),
    _case("fusion-rows", "Norm and softmax of 12 tensors", normalized, 12),
)
