"""Ops with several results, and those that PyTorch composes of such, against eager: their decompositions return named tuples."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import disc

X, LABELS = torch.randn(3, 5), torch.tensor([1, 4, 0])

CALLS: dict[str, tuple[Callable[..., object], tuple[torch.Tensor, ...]]] = {
    "log_sigmoid": (F.logsigmoid, (X,)),
    "cross_entropy": (F.cross_entropy, (X, LABELS)),
    "cross_entropy with smoothing": (lambda x, y: F.cross_entropy(x, y, reduction="none", label_smoothing=0.1), (X, LABELS)),
    "nll_loss of images": (lambda x, y: F.nll_loss(x, y, ignore_index=1), (torch.randn(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4)))),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, (X, torch.rand(3, 5))),
    "aminmax": (torch.aminmax, (X,)),
    "aminmax of a dim": (lambda x: torch.aminmax(x, dim=1, keepdim=True), (X,)),
    "std_mean": (lambda x: torch.std_mean(x, 1), (X,)),
    "var_mean": (lambda x: torch.var_mean(x, 0, correction=0), (X,)),
}


class Calls(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.function(*inputs)


@pytest.mark.parametrize("name", CALLS)
def test_as_in_eager(name: str) -> None:
    function, example = CALLS[name]
    executable = disc.compile(Calls(function).eval(), example, options=disc.Options(cache=False, threads=1))
    for repeats in (1, 3):
        inputs = [torch.cat([x] * repeats) for x in example]
        for ours, theirs in zip(pytree.tree_leaves(executable(*inputs)), pytree.tree_leaves(function(*inputs)), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
