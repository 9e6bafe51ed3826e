"""Models whose recursion instances alone decide, by a native walk, against the model run instance by instance; and those that are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from batched_blocks import OneByOne, by_pytorch
from dynamic_models import CASES, WORDS, Tree, TreeLSTM, trees
from torch import nn

import disc
from disc.config import Options
from disc.errors import InstanceError, StructureError
from disc.frontend.batched.public import Batched
from disc.ral.plain_objects import NotPlain, check_plain
from tests.diff.test_batched import check

HIDDEN = 8


@pytest.fixture(scope="module")
def lstm() -> Any:
    """A TreeLSTM that has run often enough to be walked."""
    torch.manual_seed(0)
    model = TreeLSTM(HIDDEN).eval()
    batched: Any = disc.batched(model, options=Options(cache=False, threads=1))
    batched.batch(trees(8))
    batched.batch(trees(8))
    assert batched.stats()["walked"] == 1, batched.explain()
    return model, batched


def walked(batched: Any) -> int:
    return batched.stats()["walked"]


def test_batches(lstm: Any) -> None:
    """One leaf, many trees, roots that are parts of others, and the same one twice."""
    model, batched = lstm
    several = trees(10, 3, most=17)
    before = walked(batched)
    batches = [[Tree(3)], several, [Tree(0, several[0], Tree(0, several[0], several[1])), several[0], several[0]]]
    for instances in batches:
        check(model, batched, instances)
    assert walked(batched) == before + len(batches)
    assert "by a native walk" in batched.explain()
    first, second = batched.batch([several[0], several[0]])
    first[0].zero_()
    assert second[0].abs().sum() > 0
    assert batched.batch([]) == []
    comb = Tree(1)
    for _ in range(3000):
        comb = Tree(0, comb, Tree(2))
    before = batched.stats()["launches"]
    assert bool(batched(comb)[0].isfinite().all())
    assert batched.stats()["launches"] == before + 3001


class Odd(Tree):
    """A node that is a leaf by what it counts."""

    asked = 0

    @property
    def is_leaf(self) -> bool:
        Odd.asked += 1
        return self.left is None


def test_instances_that_the_walk_does_not_know(lstm: Any) -> None:
    """The model's code runs, as it would without a walk."""
    model, batched = lstm
    before = walked(batched)
    Odd.asked = 0
    check(model, batched, [Tree(0, Odd(1), Tree(2))])
    assert Odd.asked == 2  # once by eager, once by the batch
    good = trees(8)
    for bad in (Tree(0, Tree(1), None), Tree(WORDS + 5), Tree(True), Tree("one")):  # pyright: ignore[reportArgumentType]
        with pytest.raises(InstanceError, match="instance 3 failed") as caught:
            batched.batch([*good[:3], bad, *good[3:]])
        assert list(caught.value.failures) == [3]
    loop = Tree(0, Tree(1))
    loop.right = Tree(0, Tree(2), loop)
    with pytest.raises(StructureError, match=r"Tree\.right\.right"):
        batched(loop)
    assert walked(batched) == before
    check(model, batched, good)
    assert walked(batched) == before + 1


def test_a_weight_that_changes(lstm: Any) -> None:
    model, batched = lstm
    with torch.no_grad():
        model.u_f.bias.add_(1.0)
    for _ in range(3):
        check(model, batched, trees(8))
    assert batched.stats()["recaptures"] == 1
    before = walked(batched)
    check(model, batched, trees(8, 1))
    assert walked(batched) == before + 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["TreeFC", "TreeGRU", "MV-RNN"])
def test_models(name: str) -> None:
    torch.manual_seed(0)
    make, instances = CASES[name]
    model = make(HIDDEN).eval()
    batched: Any = disc.batched(model, options=Options(cache=False, threads=1))
    for count in (8, 8, 1, 10, 64):
        check(model, batched, instances(count))
    assert walked(batched) >= 3, batched.explain()


# --- models that are not walked ---------------------------------------------------------------------------------------------------


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.fc, self.deep = nn.Embedding(WORDS, HIDDEN), nn.Linear(HIDDEN, HIDDEN), True


class ByType(Base):
    def forward(self, tree):
        if isinstance(tree.left, Tree):
            return torch.tanh(self.fc(self(tree.left) + self(tree.right)))
        return torch.tanh(self.emb.weight[tree.word])


class BySetting(Base):
    def forward(self, tree):
        if tree.left is None or not self.deep:
            return torch.tanh(self.emb.weight[tree.word])
        return torch.tanh(self.fc(self(tree.left) + self(tree.right)))


class ByValue(Base):
    def forward(self, tree):
        if tree.left is None:
            return torch.tanh(self.emb.weight[tree.word])
        h = self(tree.left)
        if h.sum() > 0:
            return torch.tanh(h)
        return torch.tanh(self.fc(self(tree.right)))


class ByItself(Base):
    def forward(self, tree):
        if tree is None:
            return torch.zeros(HIDDEN)
        return torch.tanh(self.fc(self(tree.left) + self(tree.right)) + self.emb.weight[tree.word])


class TwoBlocks(Base):
    def forward(self, tree):
        x = torch.tanh(self.emb.weight[tree.word])
        if tree.left is None:
            return x
        return torch.tanh(self.fc(self(tree.left) + self(tree.right)) + x)


class Counted(Base):
    def forward(self, tree):
        if tree.word > 3:
            return torch.tanh(self.emb.weight[tree.word])
        return torch.tanh(self.fc(self.emb.weight[tree.word]))


class Renamed(Base):
    def forward(self, tree):
        if tree.left is not None:
            tree = tree.left
        return torch.tanh(self.fc(self.emb.weight[tree.word]))


class Nothing(Base):
    def forward(self, tree):
        if tree.left is None:
            return torch.tanh(self.emb.weight[tree.word])
        return self(tree.left)


TABLE, LAYER = torch.randn(WORDS, HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)


def embedded(tree: Tree) -> torch.Tensor:
    if tree.left is not None and tree.right is not None:
        return torch.tanh(LAYER(torch.cat([embedded(tree.left), embedded(tree.right)])))
    return torch.tanh(TABLE[tree.word])


def test_a_function_that_calls_itself() -> None:
    """By its name, which is the user's function."""
    batched = Batched(embedded, OneByOne)
    for seed in range(3):
        check(embedded, batched, trees(8, seed))  # pyright: ignore[reportArgumentType]
    assert batched.stats()["launches"] > 0
    assert "takes more than results" in batched.explain(), batched.explain()  # the table is a tensor that may change


LOOKS = "does more than to look at attributes"
REFUSED: dict[type[nn.Module], str] = {
    ByType: LOOKS, BySetting: LOOKS, ByValue: LOOKS, ByItself: LOOKS, Counted: LOOKS, Renamed: LOOKS,
    TwoBlocks: "more than one block", Nothing: "computes nothing",
}  # fmt: skip


@pytest.mark.parametrize("make", REFUSED, ids=lambda each: each.__name__)
def test_models_that_are_not_walked(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    batched = by_pytorch(model)
    for seed in range(3):
        check(model, batched, trees(8, seed))
    assert REFUSED[make] in batched.explain(), batched.explain()  # pyright: ignore[reportArgumentType]
    assert batched.stats()["walked"] == 0


def test_attributes_that_only_hold() -> None:
    class Calls(Tree):
        @property
        def is_leaf(self) -> bool:
            return bool(id(self))

    class Chain(Tree):
        @property
        def is_leaf(self) -> bool:
            return self.left.word is None  # pyright: ignore[reportOptionalMemberAccess]

    class Finds(Tree):
        def __getattr__(self, name: str) -> object:
            return None

    @dataclass(slots=True)
    class Slots:
        left: object = None
        is_leaf: bool = True

    names = {"is_leaf", "left", "right", "word"}
    for kind in (Tree, Slots, SimpleNamespace):
        getters = check_plain(kind, names)
    assert getters == {} and check_plain(Tree, names)["is_leaf"][2:] == ("left", False)
    for kind in (Calls, Chain, Finds):
        with pytest.raises(NotPlain):
            check_plain(kind, names)
    with pytest.raises(NotPlain):
        check_plain(Tree, {"__repr__"})
