"""Floats of instances in tensor code: one block takes them all, in Python, by the interpreter, and from a file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import disc
from disc.errors import InstanceError

WIDTH = 6


@dataclass
class Item:
    v: Tensor
    weight: float


@dataclass
class Document:
    items: list[Item]


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, document: Document) -> Tensor:
        h = torch.zeros(WIDTH)
        for item in document.items:
            h = h + torch.tanh(self.inside(item.v)) * item.weight
        return self.head(h)


def _scaled(item: Item) -> Tensor:
    return item.v.sum() * item.weight  # no dims on both sides: f32 with a float, f64 with a tensor in its place


def _filled(item: Item) -> Tensor:
    return item.v + torch.full((WIDTH,), item.weight)  # needs a number


def _rooted(item: Item) -> Tensor:
    return item.v * math.sqrt(item.weight)


def _powers(item: Item) -> Tensor:
    return (item.v.abs() ** item.weight).clamp(max=item.weight) - item.weight / 3


def _integers(item: Item) -> Tensor:
    return item.v.long() * item.weight


def _items(count: int, seed: int) -> list[Item]:
    generator = torch.Generator().manual_seed(seed)
    return [Item(torch.randn(WIDTH, generator=generator), torch.rand((), generator=generator).item()) for _ in range(count)]


def _documents(count: int, seed: int) -> list[Document]:
    return [Document(_items(1 + number % 5, seed + number)) for number in range(count)]


def test_one_block_for_all_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: Any = Weighted()
    batched: Any = disc.batched(model)
    documents: list[Document] = []
    for seed in range(4):
        documents = _documents(12, 100 * seed)
        for found, each in zip(batched.batch(documents), documents, strict=True):
            torch.testing.assert_close(found, model(each))
    assert str(batched.explain(documents)).count("4 operations") == 1
    batched.save(tmp_path / "model.disc", _documents(4, 7))
    loaded: Any = disc.load(tmp_path / "model.disc")
    documents = _documents(9, 1000)
    for found, each in zip(loaded.batch(documents), documents, strict=True):
        torch.testing.assert_close(torch.as_tensor(found), model(each))


@pytest.mark.parametrize("function", [_scaled, _filled, _rooted, _powers, _integers])
def test_what_it_computes_is_what_numbers_give(function: Callable[[Item], Tensor]) -> None:
    batched: Any = disc.batched(cast(Any, function))
    for seed in range(4):
        items = _items(8, seed)
        for found, each in zip(batched.batch(items), items, strict=True):
            torch.testing.assert_close(found, function(each))


def test_gradients_beside_numbers() -> None:
    torch.manual_seed(0)
    model: Any = Weighted()
    batched: Any = disc.batched(model)
    for seed in range(3):  # block by block in PyTorch first, then compiled
        documents = _documents(8, 50 * seed)
        found, expected = [], []
        for results, into in ((batched.batch(documents, gradients=True), found), ([model(each) for each in documents], expected)):
            model.zero_grad()
            torch.stack([each.square().sum() for each in results]).sum().backward()
            into += [weight.grad for weight in model.parameters()]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


@dataclass
class Word:
    word: int
    left: Any = None
    right: Any = None


class Words(nn.Module):
    """Numbers of instances that become tensors, as embeddings are mostly called."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.join = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, tree: Word) -> Tensor:
        index = torch.tensor(tree.word)
        x = self.emb(index) + self.emb(torch.tensor([tree.word, 8 - tree.word])).sum(0) * torch.tensor(0.5)
        x = x * torch.tensor(tree.word, dtype=torch.float32) + nn.functional.one_hot(index, 9).float() @ self.emb.weight
        if tree.left is None:
            return x
        return torch.tanh(self.join(self(tree.left) + self(tree.right)) + x)


def test_numbers_that_become_tensors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Words()
    trees = [Word(each % 9, Word((each * 5) % 9), Word(3, Word(each % 4), Word(8))) for each in range(20)]
    expected = torch.stack([module(each) for each in trees])
    model: Any = disc.batched(module)
    for _ in range(3):
        torch.testing.assert_close(torch.stack(model.batch(trees)), expected.detach())
    assert model.stats()["compiles"] == 2
    assert "skeleton: native" in model.explain()
    with pytest.raises(InstanceError, match="got 11 of 9"):
        model.batch([trees[0], Word(11)])
    torch.stack(model.batch(trees, gradients=True)).sum().backward()
    found, module.emb.weight.grad = module.emb.weight.grad, None
    expected.sum().backward()
    torch.testing.assert_close(found, module.emb.weight.grad)
    model.save(tmp_path / "words.disc")
    program: Any = disc.load(tmp_path / "words.disc")
    torch.testing.assert_close(torch.stack([torch.as_tensor(each) for each in program.batch(trees)]), expected.detach())


def test_instances_that_failed_teach_nothing(tmp_path: Path) -> None:
    batched: Any = disc.batched(Weighted())
    good, bad = _documents(6, 3), Document([Item(torch.randn(WIDTH + 1), 0.5)])
    with pytest.raises(InstanceError):
        batched.batch([*good, bad])
    batched.batch(good)
    batched.save(tmp_path / "model.disc", good)
