"""Threads that compile at once: PyTorch traces for one of them at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import disc


def compiled(number: int) -> list[float]:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, number + 1)).eval()
    executable: Any = disc.compile(model, (torch.zeros(4, 8),), options=disc.Options(cache=False, threads=1))
    x = torch.randn(7, 8)
    return [float((executable(x) - model(x)).detach().abs().max())]


def trained(number: int) -> list[float]:
    """Gradients of a batched model, each batch of which shows more of it."""
    torch.manual_seed(number)
    table, inner = nn.Embedding(20, 8), nn.Linear(16, 8)
    model = Chain(table, inner)
    batched: Any = disc.batched(model, options=disc.Options(cache=False, threads=1))
    found: list[float] = []
    for round in range(4):
        lists = [[(3 * each + place) % 20 for place in range(1 + (each + round) % 4)] for each in range(6)]
        gradients = []
        for run in (lambda lists=lists: batched.batch(lists, gradients=True), lambda lists=lists: [model(each) for each in lists]):
            loss = torch.stack(list(run())).sum()
            gradients.append(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))
        found += [float((a - b).abs().max()) for a, b in zip(*gradients, strict=True) if a is not None and b is not None]
    return found


class Chain(nn.Module):
    def __init__(self, table: nn.Embedding, inner: nn.Linear) -> None:
        super().__init__()
        self.table, self.inner = table, inner

    def forward(self, words: list[int]) -> torch.Tensor:
        h = self.table.weight[words[0]]
        for word in words[1:]:
            h = torch.tanh(self.inner(torch.cat([h, self.table.weight[word]])))
        return h


@pytest.mark.parametrize("work", [compiled, trained])
def test_threads(work: Callable[[int], list[float]]) -> None:
    call = nn.Module.__call__
    differences: dict[int, list[float]] = {}
    together = threading.Barrier(3)

    def run(number: int) -> None:
        together.wait()
        differences[number] = work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(differences) == [0, 1, 2], "a thread failed"
    assert all(each and max(each) < 1e-4 for each in differences.values()), differences
    assert nn.Module.__call__ is call, "PyTorch's tracer is left in the modules"
