"""What changes more than the results of an instance, in code whose own result nobody reads: batches leave behind what eager does."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import disc
from disc.config import Options

WIDE = 4
OPTIONS = Options(cache=False, threads=1)


@dataclass(eq=False)
class Item:
    steps: int
    x: torch.Tensor


class Changing(nn.Module):
    kept: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(WIDE, WIDE)
        self.register_buffer("kept", torch.zeros(WIDE))

    def run(self, item):
        h = item.x
        for _ in range(item.steps):
            h = torch.tanh(self.w(h))
            if float(h[0]) > 0.9:
                break
        return h


class ChangesWeight(Changing):
    def forward(self, item):
        h = self.run(item)
        self.w.bias.mul_(0.5)
        return h


class ChangesBuffer(Changing):
    def forward(self, item):
        h = self.run(item)
        self.kept.copy_(h)
        return h


class AddsToBuffer(Changing):
    def forward(self, item):
        h = self.run(item)
        self.kept += h.sum()
        return h


class SetsElement(Changing):
    def forward(self, item):
        h = self.run(item)
        self.kept[item.steps] = h[0]
        return h


class ChangesInstance(Changing):
    def forward(self, item):
        h = self.run(item)
        item.x.mul_(0.5)
        return h


class ChangesView(Changing):
    def forward(self, item):
        h = self.run(item)
        self.w.weight[0].mul_(0.5)
        return h


class WritesOut(Changing):
    def forward(self, item):
        h = self.run(item)
        torch.add(h, 1.0, out=self.kept)
        return h


class Initializes(Changing):
    def forward(self, item):
        h = self.run(item)
        nn.init.constant_(self.kept, 3.0)
        return h


class DrawsInVain(Changing):
    def forward(self, item):
        h = self.run(item)
        torch.rand(WIDE)
        return h


class DropsInVain(Changing):
    def forward(self, item):
        h = self.run(item)
        nn.functional.dropout(h, 0.5, training=True)
        return h


class ComputesInVain(Changing):
    def forward(self, item):
        h = self.run(item)
        torch.exp(h)
        return h


class ChangesAndComputes(Changing):
    """What is changed is read by what comes next, beside a row that the instances share."""

    def forward(self, item):
        h = self.run(item)
        self.w.bias.mul_(0.5)
        g = torch.tanh(h) * 2
        self.kept.add_(1.0)
        return g + self.kept


class WritesWhatItComputes(Changing):
    def forward(self, item):
        h = self.run(item)
        torch.add(h * 1.0, 1.0, out=self.kept)
        return h + self.kept


class InitializesAndAdds(Changing):
    def forward(self, item):
        h = self.run(item)
        nn.init.zeros_(self.w.bias)
        self.kept.add_(h.sum())
        return h


KINDS = (
    ChangesWeight, ChangesBuffer, AddsToBuffer, SetsElement, ChangesInstance, ChangesView, WritesOut, Initializes, DrawsInVain, DropsInVain,
    ComputesInVain, ChangesAndComputes, WritesWhatItComputes, InitializesAndAdds,
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_what_is_changed_without_a_result(kind: type[Changing]) -> None:
    torch.manual_seed(0)
    eager = kind().eval()
    model: Any = disc.batched(copy.deepcopy(eager), options=OPTIONS)
    given = [Item(count % 3, torch.randn(WIDE)) for count in range(6)]
    for seed in range(5):
        items, others = copy.deepcopy(given), copy.deepcopy(given)
        torch.manual_seed(seed)
        expected, drawn = [eager(each) for each in items], torch.rand(1)
        torch.manual_seed(seed)
        found = model.batch(others)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.rand(1), drawn)
        torch.testing.assert_close([each.x for each in others], [each.x for each in items])
        torch.testing.assert_close(model.state_dict(), eager.state_dict())


class Inner(nn.Module):
    """Functions of a function that are more than called: handing them what they capture would be something else."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(WIDE, WIDE)

    def forward(self, item):
        return getattr(self, item.way)(item.x)

    def binds(self, x):
        count = 0

        def once(y):
            nonlocal count
            count += 1
            return torch.tanh(self.w(y)) * count

        return once(once(x))

    def shadows(self, x):
        scale = 2.0

        def scaled(y):
            return self.w(y) * scale

        return [scaled(x) for scale in (0.5, 4.0)][1]

    def is_given(self, x):
        def doubled(y):
            return self.w(y) * 2.0

        return sum(map(doubled, [x]))

    def is_early(self, x):
        if x.sum() > 0:
            return later(x)  # noqa: F821  # pyright: ignore[reportUnboundVariable]

        def later(y):
            return self.w(y)

        return later(x)

    def is_unbound(self, x):
        def shifted(y, more):
            return self.w(y) + offset if more else self.w(y)

        if x.sum() > 0:
            offset = 1.0
        return shifted(x, x.sum() > 0)


@dataclass(eq=False)
class Way:
    way: str
    x: torch.Tensor


@pytest.mark.parametrize("way", ["binds", "shadows", "is_given", "is_unbound", "is_early"])
def test_functions_of_a_function_that_are_more_than_called(way: str) -> None:
    model = Inner().eval()
    batched: Any = disc.batched(model, options=OPTIONS)
    ways = [Way(way, torch.full((WIDE,), -1.0)), Way(way, torch.zeros(WIDE))] + [Way(way, torch.ones(WIDE))] * (way != "is_early")
    for _ in range(2):
        for found, each in zip(batched.batch(ways), ways, strict=True):
            torch.testing.assert_close(found, model(each).detach())
    if way == "is_early":
        with pytest.raises(UnboundLocalError):
            batched(Way(way, torch.ones(WIDE)))


class Encodes(nn.Module):
    """A helper that reads numbers out of a list that it is given: no constants of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(30, WIDE), nn.Linear(WIDE, WIDE)

    def encode(self, words):
        h = torch.zeros(WIDE)
        for word in words:
            h = torch.tanh(self.cell(h) + self.first([word, 0]))
        return h

    def first(self, words):
        return self.words.weight[words[0]]

    def forward(self, text):
        return torch.stack([self.encode(text[0]), self.encode(text[1])]).sum(0)


def test_a_helper_reads_numbers_of_its_list() -> None:
    model = Encodes().eval()
    batched: Any = disc.batched(model, options=OPTIONS)
    texts = [([each, each + 1], [each + 2] * (1 + each % 3)) for each in range(12)]
    for _ in range(4):
        for found, each in zip(batched.batch(texts), texts, strict=True):
            torch.testing.assert_close(found, model(each).detach())
    assert batched.stats()["eager"] == 0 and batched.stats()["interpreted"]


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(WIDE, WIDE)

    def forward(self, count):
        seen = []

        def visit(left, h):
            seen.append(left)
            return torch.tanh(self.w(visit(left - 1, h))) if left else h

        return visit(count, torch.ones(WIDE)), len(seen)


def test_deep_calls_that_are_given_one_list_are_no_cycle() -> None:
    """Which it was, from 1,024 calls inside of each other on."""
    batched: Any = disc.batched(Deep().eval(), options=OPTIONS)
    assert [each[1] for each in batched.batch([3, 1500])] == [4, 1501]
