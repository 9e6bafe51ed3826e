"""Functions of rows of a table that are tables themselves (`fold-tables`): results are those of eager, whatever becomes of the weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dynamic_models import CASES, WORDS, Tree, TreeLSTM, sentences, trees
from test_batched import check, same
from torch import nn

import disc
from disc.config import Options
from disc.errors import DiscError, InstanceError

HIDDEN = 8
OPTIONS = Options(cache=False, threads=1)
FOLDED = "functions of rows of"


def run(model: nn.Module, make: Any, options: Options = OPTIONS) -> Any:
    """The batched model, after batches of all sizes."""
    batched: Any = disc.batched(model.eval(), options=options)
    for count in (10, 0, 1, 8, 64, 64, 10):
        check(model, batched, make(count))
    return batched


class Words(nn.Module):
    """What the tests differ in is what is made of a word."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.other = nn.Embedding(WORDS, HIDDEN), nn.Embedding(WORDS, HIDDEN)
        self.w, self.u, self.norm = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)

    def forward(self, words: list[int]) -> torch.Tensor:
        h = torch.zeros(HIDDEN)
        for word in words:
            h = torch.tanh(self.u(h) + self.word(word))
        return h

    def word(self, word: int) -> torch.Tensor:
        raise NotImplementedError


class Product(Words):
    def word(self, word: int) -> torch.Tensor:
        i, o, u = self.w(self.emb.weight[word]).chunk(3, -1)
        return torch.sigmoid(i) * torch.tanh(u) + o


class TwoTables(Words):
    """Of one word: one function of rows of both."""

    def word(self, word: int) -> torch.Tensor:
        return self.u(self.emb.weight[word] * self.other.weight[word])


class TwoWords(Words):
    """Of two words: a function of each, and the sum of both is computed."""

    def forward(self, words: list[int]) -> torch.Tensor:
        h = torch.zeros(HIDDEN)
        for place, word in enumerate(words):
            h = torch.tanh(self.u(self.emb.weight[word]) + self.w(self.emb.weight[words[place - 1]])[:HIDDEN]) + h
        return h


class RowToo(Words):
    """The row itself is read, too; and what is made of a row is an index."""

    def word(self, word: int) -> torch.Tensor:
        x = self.emb.weight[word]
        return self.norm(self.u(x)) + x[:2].repeat(HIDDEN // 2) + self.other.weight[x.argmax()]


class Scores(Words):
    """A softmax over products with a matrix that the row itself makes."""

    def word(self, word: int) -> torch.Tensor:
        x = self.norm(self.emb.weight[word])
        return torch.softmax(torch.outer(x, x) @ self.other.weight[:HIDDEN].sum(0), 0).flip(0)


@pytest.mark.parametrize(("name", "tables"), [("TreeLSTM", 1), ("TreeGRU", 1), ("DAG-RNN", 1), ("TreeFC", 0), ("MV-RNN", 0)])
def test_models(name: str, tables: int) -> None:
    make, instances = CASES[name]
    torch.manual_seed(0)
    batched = run(make(HIDDEN), instances)
    assert batched.explain().count(FOLDED) == tables, batched.explain()


@pytest.mark.parametrize(("make", "tables"), [(Product, 1), (TwoTables, 1), (TwoWords, 2), (RowToo, 1), (Scores, 1)])
def test_what_is_folded(make: type[Words], tables: int) -> None:
    torch.manual_seed(0)
    model = make()
    batched = run(model, lambda count: [each or [1] for each in sentences(count)])
    assert batched.explain().count(FOLDED) == tables, batched.explain()
    assert f"{WORDS} rows, {4 * WORDS * HIDDEN:,} bytes" in batched.explain()
    check(model, batched, [[-1, -2], [0], [WORDS - 1, -WORDS]])


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_dtypes(dtype: str) -> None:
    """Tables are made before what is computed in fewer bits is rounded."""
    torch.manual_seed(0)
    model = TreeLSTM(HIDDEN).eval()
    batched: Any = disc.batched(model, options=Options(cache=False, threads=1, dtype=dtype))
    batched.batch(trees(20))
    batched.batch(trees(20))
    found = batched.batch(trees(20))
    assert FOLDED in batched.explain()
    with torch.no_grad():
        expected = [model(each) for each in trees(20)]
    for one, other in zip(found, expected, strict=True):
        for mine, own in zip(one, other, strict=True):
            torch.testing.assert_close(mine, own, rtol=0.05, atol=0.05)


def test_a_budget() -> None:
    """A table of TreeLSTM's leaves takes 2 x 4 x 20 x 8 bytes."""
    size = 2 * 4 * WORDS * HIDDEN
    for budget, text in (
        (0, ""),
        (size - 1, "not folded, 1,280 bytes are more than the 1,279 that `fold_tables` leaves"),
        (size, "20 rows, 1,280 bytes"),
    ):
        torch.manual_seed(0)
        batched = run(TreeLSTM(HIDDEN), trees, Options(cache=False, threads=1, fold_tables=budget))
        assert (FOLDED in batched.explain()) == bool(text)
        assert text in batched.explain()
    for wrong in (-1, True, 1.5):
        with pytest.raises(DiscError, match="fold_tables="):
            Options(fold_tables=wrong)  # pyright: ignore[reportArgumentType]


def test_weights_that_change() -> None:
    """A table, or what its rows go through: in place, by an optimizer, as another parameter, as other data."""
    torch.manual_seed(0)
    model = TreeLSTM(HIDDEN).eval()
    batched = run(model, trees)
    for change in (
        lambda: model.emb.weight[3].mul_(2), lambda: model.w_iou.bias.add_(1), lambda: setattr(model, "emb", nn.Embedding(WORDS, HIDDEN)),
        lambda: setattr(model.w_iou.weight, "data", torch.randn(3 * HIDDEN, HIDDEN)),
    ):  # fmt: skip
        with torch.no_grad():
            change()
        for _ in range(5):
            check(model, batched, trees(10))
        assert FOLDED in batched.explain()


def test_training_between_batches() -> None:
    """Blocks that give gradients take weights as inputs; the next batch without gradients has the new ones."""
    torch.manual_seed(0)
    model = TreeLSTM(HIDDEN)
    batched: Any = disc.batched(model, options=OPTIONS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(4):
        loss = torch.stack([h for h, _ in batched.batch(trees(10), gradients=True)]).square().sum()
        optimizer.zero_grad()
        loss.backward()
        wanted = torch.autograd.grad(torch.stack([model(each)[0] for each in trees(10)]).square().sum(), [*model.parameters()])
        same([each.grad for each in model.parameters()], [*wanted])
        optimizer.step()
        for _ in range(2):
            check(model, batched, trees(10))
    assert FOLDED in batched.explain()


def test_words_out_of_range() -> None:
    torch.manual_seed(0)
    model = TreeLSTM(HIDDEN).eval()
    batched = run(model, trees)
    for word in (WORDS, -WORDS - 1, 2**62):
        with pytest.raises(InstanceError, match="instance 1 failed") as caught:
            batched.batch([Tree(1), Tree(word), Tree(2)])
        assert f"for a dim of size {WORDS} at dynamic_models.py:" in str(caught.value.failures[1])
        with torch.no_grad():
            same([caught.value.results[0], caught.value.results[2]], [model(Tree(1)), model(Tree(2))])


@pytest.mark.parametrize("name", ["TreeLSTM", "DAG-RNN"])
def test_saved(name: str, tmp_path: Path) -> None:
    """The file has the folded table in place of the embedding and of what its rows went through."""
    make, instances = CASES[name]
    torch.manual_seed(0)
    model = make(HIDDEN).eval()
    for number, budget in enumerate((0, 1 << 20)):
        batched: Any = disc.batched(model, options=Options(cache=False, threads=1, fold_tables=budget))
        batched.save(tmp_path / f"{number}.disc", instances(10))
        program = disc.load(tmp_path / f"{number}.disc")
        for count in (0, 1, 8, 64):
            found = program.batch(instances(count))
            with torch.no_grad():
                expected = [model(each) for each in instances(count)]
            for one, other in zip(found, expected, strict=True):
                for mine, own in zip(
                    one if isinstance(one, tuple) else (one,), other if isinstance(other, tuple) else (other,), strict=True
                ):
                    np.testing.assert_allclose(np.asarray(mine), own.numpy(), rtol=1e-4, atol=1e-5)
    names = [{*re.findall(rb'"([\w.]*emb\.weight)"', (tmp_path / f"{number}.disc").read_bytes())} for number in (0, 1)]
    assert names == [{b"owner1.emb.weight"}, {b"folded.owner1.emb.weight"}]
