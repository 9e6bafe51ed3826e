"""PyTorch code that is recorded as it runs: a network, training steps in reduced sizes, and small calls, where recording is what counts."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.cases.case import Case, Inputs, Shape, random_tensor
from bench.cases.models import MODEL_CASES
from bench.cases.training import TRAINING_CASES

CHAIN = 96  # calls


class NineOps(nn.Module):
    """Nine calls on [rows, 8]: operators, methods and functions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x @ self.weight + self.bias)
        z = F.relu(torch.sigmoid(y) * y - x)
        return (z + y).sum()


class Chain(nn.Module):
    """So many calls on [rows, 8], two that PyTorch's C++ hands over and two methods in turns: what recording a call costs shows here."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(CHAIN // 4):
            x = torch.tanh(torch.add(x, x.abs()) * 0.5)
        return x


def _rows(shape: Shape) -> Inputs:
    return (random_tensor(*shape, 8),)


def _reduced(name: str, shapes: tuple[Shape, ...]) -> Case:
    """A step of the suite `training`, without its largest sizes."""
    (case,) = [each for each in TRAINING_CASES if each.name == name]
    return dataclasses.replace(case, name=name.replace("training", "lazy"), shapes=shapes, network=False)


LAZY_CASES = (
    Case("lazy-nine", "nine ops on tiny tensors", NineOps, _rows, ((4,), (16,)), (0,), (5,)),
    Case("lazy-chain", f"a chain of {CHAIN} ops on tiny tensors", Chain, _rows, ((4,),), (0,), (5,)),
    dataclasses.replace(MODEL_CASES[0], name="lazy-bert", shapes=((1, 16), (1, 128), (4, 64)), network=False, tuned=None),
    _reduced("training-cnn", ((16,), (64,))),
    _reduced("training-transformer", ((2, 50), (4, 100))),
    _reduced("training-mlstm", ((8, 16), (16, 16))),
)
