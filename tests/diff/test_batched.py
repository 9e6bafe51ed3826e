"""`disc.batched` against the model run instance by instance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from batched_blocks import by_pytorch
from dynamic_models import CASES, WORDS, Node, Tree, TreeFC, TreeLSTM, sentences, shapes, trees
from torch import nn

import disc
from disc.errors import InputTypeError, InstanceError, StructureError, UnsupportedFormatError
from disc.frontend.batched.recorder import Recorder

HIDDEN = 8
COMPILED = ("TreeLSTM", "GraphRNN")


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found == expected


def check(model: nn.Module, batched: Any, instances: list[Any]) -> None:
    with torch.no_grad():
        expected = [model(each) for each in instances]
    same(batched.batch(instances), expected)


def check_model(name: str, batch: Callable[[nn.Module], Any]) -> tuple[nn.Module, Any]:
    """Batches of 0, 1, 8 and 10, the same blocks for all; nothing but what is rare runs one by one."""
    torch.manual_seed(0)
    make, instances = CASES[name]
    model = make(HIDDEN).eval()
    batched = batch(model)
    for count in (0, 1, 8, 10):
        check(model, batched, instances(count))
    stats = batched.stats()
    assert stats["launches"] > 0, batched.explain()
    assert stats["recaptures"] == 0
    before = stats["compiles"]
    check(model, batched, instances(10)[::-1])
    assert batched.stats()["compiles"] == before
    assert batched.stats()["eager"] == stats["eager"], batched.explain()
    return model, batched


@pytest.mark.parametrize("name", CASES)
def test_models(name: str) -> None:
    check_model(name, by_pytorch)


@pytest.mark.parametrize("name", [each if each in COMPILED else pytest.param(each, marks=pytest.mark.long) for each in CASES])
def test_compiled_models(name: str) -> None:
    model, batched = check_model(name, disc.batched)
    if name == "GraphRNN":  # many launches in one call, one of which fails
        good = shapes(6)
        with pytest.raises(InstanceError, match="instance 2 failed") as caught:
            batched.batch([*good[:2], Node(1, [Node(2), Node(WORDS + 5)]), *good[2:]])
        assert list(caught.value.failures) == [2]
        with torch.no_grad():
            same(caught.value.results[:2] + caught.value.results[3:], [model(each) for each in good])


def test_launches() -> None:
    """A batch of trees takes a launch for each depth and block, not for each node."""
    model = TreeLSTM(HIDDEN)
    batched = by_pytorch(model)
    many = trees(16)
    batched.batch(many)
    before = batched.stats()
    batched.batch(many)
    after = batched.stats()
    assert after["rows"] - before["rows"] > 3 * (after["launches"] - before["launches"])
    assert "side by side" in batched.explain(many)


def test_a_class() -> None:
    """`@disc.batched` on a class: its modules stay modules."""

    @disc.batched
    class Model(TreeFC):
        pass

    model: Any = Model(HIDDEN)
    tree = trees(1, most=4)[0]
    found = model.batch([tree, tree])
    same(found[0], model(tree))
    assert len(list(model.parameters())) == 3


class Decoder(nn.Module):
    """Two arguments, and sizes that weights have; what is decided by values ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.cell, self.out = nn.Embedding(12, HIDDEN), nn.GRUCell(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 12)

    def forward(self, token: int, most: int) -> tuple[list[int], torch.Tensor]:
        h, found = torch.zeros(1, self.emb.weight.shape[1]), []
        while len(found) < most:
            h = self.cell(self.emb.weight[token].unsqueeze(0), h)
            token = int(self.out(h).argmax())
            found.append(token)
            if token == 0:
                break
        return found, h


def _depths(tree: Any, depth: int, weight: torch.Tensor) -> torch.Tensor:
    return torch.tanh(weight) * depth if tree is None else _depths(tree[0], depth + 1, weight) + _depths(tree[1], depth + 1, weight)


@torch.no_grad()
def test_several_arguments(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, pairs = Decoder(), [(1 + each % 11, 1 + each % 7) for each in range(20)]
    expected = [module(*each) for each in pairs]
    model: Any = disc.batched(module)
    for _ in range(4):
        assert [each[0] for each in model.batch(pairs)] == [each[0] for each in expected]
    torch.testing.assert_close(model(*pairs[3])[1], expected[3][1])
    model.save(tmp_path / "model.disc", pairs)
    for found, (tokens, h) in zip(disc.load(tmp_path / "model.disc").batch(pairs), expected, strict=True):
        assert list(found[0]) == tokens  # pyright: ignore[reportIndexIssue]
        torch.testing.assert_close(torch.as_tensor(found[1]), h)  # pyright: ignore[reportIndexIssue]
    with pytest.raises(InputTypeError, match=r"instance 1 is a list of 1; the model takes \(token, most\): give a tuple of 2"):
        model.batch([pairs[0], [3]])
    trees = [((None, (None, None)), each, torch.randn(4)) for each in range(6)]
    function: Any = disc.batched(_depths)
    for _ in range(3):
        for found, each in zip(function.batch(trees), trees, strict=True):
            torch.testing.assert_close(found, _depths(*each))


def test_shared_nodes_are_computed_once() -> None:
    shared = Node(1)
    for _ in range(60):  # 2 ** 60 paths
        shared = Node(2, [shared, shared])
    make, _ = CASES["GraphRNN"]
    batched = by_pytorch(make(HIDDEN))
    batched.batch([Node(1), Node(2, [Node(1)])])
    batched.batch([Node(2, [Node(1), Node(3)])])
    assert batched.batch([shared])[0].shape == (HIDDEN,)


def test_a_comb() -> None:
    """5,000 nodes below each other; eager ends at Python's limit."""
    comb = Tree(0)
    for _ in range(2500):
        comb = Tree(0, Tree(1), comb)
    batched = by_pytorch(TreeFC(HIDDEN))
    batched.batch(trees(4))
    assert bool(batched.batch([comb])[0].isfinite().all())


def test_a_cycle() -> None:
    tree = Tree(0, Tree(1))
    tree.right = Tree(0, Tree(2), tree)
    batched = by_pytorch(TreeFC(HIDDEN))
    with pytest.raises(StructureError, match=r"Tree\.right\.right"):
        batched(tree)


def test_an_instance_that_fails() -> None:
    """The others have results; the line is the user's."""
    model = TreeFC(HIDDEN)
    batched = by_pytorch(model)
    good = trees(8)
    batched.batch(good)
    for bad in (Tree(0, Tree(1), None), Tree(WORDS + 5)):
        with pytest.raises(InstanceError, match="instance 3 failed") as caught:
            batched.batch([*good[:3], bad, *good[3:]])
        assert list(caught.value.failures) == [3]
        with torch.no_grad():
            same(caught.value.results[:3] + caught.value.results[4:], [model(each) for each in good])
    with pytest.raises(InstanceError, match=r"dynamic_models\.py:\d+"):
        batched.batch([Tree(0, Tree(1), None)])


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="cannot batch an object of the class int"):
        disc.batched(3)
    batched = by_pytorch(TreeFC(HIDDEN))
    with pytest.raises(InputTypeError, match="a list of instances, not a Tree"):
        batched.batch(trees(1)[0])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputTypeError, match="a list of instances, not a str"):
        batched.batch("text")
    with pytest.raises(InputTypeError, match="a list of instances, not a int"):
        batched.explain(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InstanceError, match="AttributeError: 'int' object has no attribute 'is_leaf'"):
        batched.batch([3])
    with pytest.raises(AttributeError, match="is_leaf"):
        batched(None)


class Counting(nn.Module):
    """Does what a batch may not reorder."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.seen = nn.Linear(HIDDEN, HIDDEN), []

    def note(self, word):
        self.seen.append(word)
        return len(self.seen)

    def forward(self, words):
        h = torch.ones(HIDDEN)
        for word in words:
            h = torch.tanh(self.w(h) + self.note(word))
        return h


def test_side_effects_keep_their_order() -> None:
    model, other = Counting(), Counting()
    other.load_state_dict(model.state_dict())
    batched = by_pytorch(model)
    words = sentences(6)
    for _ in range(2):
        found = batched.batch(words)
        with torch.no_grad():
            same(found, [other(each) for each in words])
    assert model.seen == other.seen
    assert "self.seen.append" in batched.explain()


class Noise(nn.Module):
    def forward(self, words):
        h = torch.zeros(HIDDEN)
        for _ in words:
            h = torch.tanh(h + torch.randn(HIDDEN))
        return h


def test_random_numbers_are_those_of_eager() -> None:
    model = Noise()
    batched = by_pytorch(model)
    words = sentences(4)
    for seed in (0, 1):
        torch.manual_seed(seed)
        found = batched.batch(words)
        torch.manual_seed(seed)
        same(found, [model(each) for each in words])
    assert "random" in batched.explain()


SCALE = 1.0


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.shift = nn.Linear(HIDDEN, HIDDEN), 0.5

    def step(self, h):
        return self.w(h) * SCALE + self.shift

    def forward(self, words):
        h = torch.ones(HIDDEN)
        for _ in words:
            h = self.step(h) * SCALE
        return h


def test_what_blocks_were_made_with_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A global, an attribute and a weight that change between batches."""
    model = Scaled()
    batched = by_pytorch(model)
    words = sentences(6)
    check(model, batched, words)
    monkeypatch.setitem(globals(), "SCALE", 0.5)
    check(model, batched, words)
    model.shift = 0.25
    check(model, batched, words)
    with torch.no_grad():
        model.w.weight.mul_(0.5)
    check(model, batched, words)
    assert batched.stats()["recaptures"] == 3


SEEN: list[torch.Tensor] = []


class Keeping(nn.Module):
    """Puts tensors into a list that is not the instance's own, and hands one of its own on."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(HIDDEN, HIDDEN)

    def step(self, h, found):
        found.append(torch.tanh(self.w(h)))
        return found[-1]

    def forward(self, words):
        h, found = torch.ones(HIDDEN), []
        for word in words:
            h = self.step(h, found) * word
        if SEEN is not None:
            SEEN.append(h)
        return found


def test_lists_of_others_hold_tensors_in_the_order_of_instances() -> None:
    torch.manual_seed(0)
    model = Keeping()
    batched = by_pytorch(model)
    for seed in (0, 1):
        SEEN.clear()
        check(model, batched, sentences(6, seed))
        assert all(type(each) is torch.Tensor for each in SEEN)
        same(SEEN[6:], SEEN[:6])
    assert "a list that it did not make" in batched.explain()


class Accumulating(nn.Module):
    """Changes tensors in place: one of its own, and one that a list holds too."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, words):
        total, kept = torch.zeros(HIDDEN), []
        h = torch.ones(HIDDEN)
        for word in words:
            h = torch.tanh(self.w(h) * word)
            kept.append(h)
            total += h
        if kept:
            first = kept[0]
            first += total
        return total, kept


def test_changes_in_place() -> None:
    torch.manual_seed(0)
    model = Accumulating()
    batched = by_pytorch(model)
    for seed in (0, 1, 2):
        check(model, batched, sentences(6, seed))


def test_calls_that_are_known_are_recorded_in_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python describes a call only where none like it was seen; other constants, lengths of lists and modules are other calls."""
    described: list[str] = []
    record = Recorder.record

    def counted(self: Recorder, region: Any, arguments: tuple[object, ...]) -> tuple[object, ...]:
        described.append(region.name)
        return record(self, region, arguments)

    monkeypatch.setattr(Recorder, "record", counted)
    for name in ("BiRNN", "GraphRNN", "StackRNN", "TreeGRU"):
        make, instances = CASES[name]
        model = make(HIDDEN).eval()
        batched = by_pytorch(model)
        for _ in range(2):
            check(model, batched, instances(10))
        described.clear()
        check(model, batched, instances(10))
        assert not described, batched.explain()


class Constants(nn.Module):
    """A region that is called with constants and lists of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(2))

    def forward(self, node):
        x = self.emb.weight[node.word]
        for step, scale in enumerate((1, 1.0, True, 2, -0.0, 0.0)):
            x = self.mixed(x, [x] * (1 + step % 2), scale, self.layers[step % 2])
        return x

    def mixed(self, x, many, scale, layer):
        return layer(sum(many) * scale) + torch.full((HIDDEN,), scale) / 8 + x


def test_calls_with_constants() -> None:
    torch.manual_seed(0)
    model = Constants()
    batched = by_pytorch(model)
    for seed in range(4):
        check(model, batched, shapes(6, seed))


def test_generators_that_are_taken_whole() -> None:
    """Their items are computed where the generator stands; a name that they bind is their own."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))

        def forward(self, x):
            layer = 2.0
            q, k, *v = (layer(x) for layer in (self.q, self.k, self.v))
            return torch.cat([q * k, *(torch.tanh(each) for each in v)]) * layer

    model = Heads().eval()
    batched = by_pytorch(model)
    for _ in range(3):
        check(model, batched, [torch.randn(HIDDEN) for _ in range(6)])
    assert "side by side" in batched.explain()
