"""What instances may be and how code may ask them, in the process that learnt it and saved: optional attributes, dicts, named tuples, methods,
patterns, keys to sort by. Each program is beside eager, and runs without Python."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import disc
from disc.errors import InstanceError, SaveError

OPTIONS = disc.Options(cache=False, threads=1)
HIDDEN = 8


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.join, self.score = nn.Embedding(20, HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN), nn.Linear(HIDDEN, 1)

    def joined(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.tanh(self.join(torch.cat([left, right])))


class Optional(Words):
    def forward(self, tree: Any) -> Tensor:
        h = self.words.weight[tree.word] * getattr(self, "factor", 1.5)
        left = getattr(tree, "left", None)
        if left is not None:
            h = self.joined(h, self(left))
        if hasattr(tree, "right") and not hasattr(tree, "nowhere"):
            h = self.joined(self(tree.right), h)
        return h * getattr(tree, "scale", 1.0)


def optional(draw: random.Random, depth: int = 3) -> Any:
    node = SimpleNamespace(word=draw.randrange(20))
    for name in ("left", "right"):
        if depth and draw.random() < 0.5:
            setattr(node, name, optional(draw, depth - 1))
    if draw.random() < 0.3:
        node.scale = draw.random()
    return node


class Dicts(Words):
    def forward(self, tree: Any) -> Tensor:
        if "word" in tree:
            return self.words.weight[tree["word"]]
        h = self.joined(self(tree["left"]), self(tree["right"])) * tree.get("scale", 2.0)
        return h if tree.get("negative") is None else -h


def dicts(draw: random.Random, depth: int = 3) -> dict[str, Any]:
    if not depth or draw.random() < 0.3:
        return {"word": draw.randrange(20), "unread": object()}
    node = {"left": dicts(draw, depth - 1), "right": dicts(draw, depth - 1)}
    return node | ({"scale": draw.random()} if draw.random() < 0.4 else {}) | ({"negative": 1} if draw.random() < 0.4 else {})


class Pair(NamedTuple):
    word: int
    below: list[Pair]


class Named(Words):
    def forward(self, pair: Pair) -> tuple[Tensor, int]:
        word, below = pair
        h = self.words.weight[word]
        for each in below:
            h = self.joined(h, self(each)[0]) if each.word != pair[0] else h
        return h * len(pair), (len(below) if pair == (word, []) else -1)


def named(draw: random.Random, depth: int = 3) -> Pair:
    return Pair(draw.randrange(20), [named(draw, depth - 1) for _ in range(draw.randrange(3) if depth else 0)])


@dataclass
class Leaf:
    word: int

    def below(self) -> list[Any]:
        return []


@dataclass
class Unary:
    op: str
    of: Any

    def below(self) -> list[Any]:
        return [self.of]


@dataclass
class Binary:
    op: str
    left: Any
    right: Any

    def below(self) -> list[Any]:
        return [self.left, self.right]


class Matching(Words):
    def size(self, node: Any) -> int:
        return 1 + sum([self.size(each) for each in node.below()])

    def forward(self, node: Any) -> Any:
        return self.value(node), self.size(node)

    def value(self, node: Any) -> Tensor:
        match node:
            case Leaf(word=word) if word > 9:
                return self.words.weight[word] * 2
            case Leaf(word):
                return self.words.weight[word]
            case Unary("negative" | "minus", of):
                return -self.value(of)
            case Unary(of=of):
                return torch.tanh(self.value(of))
            case Binary(op="add", left=left, right=Leaf() as right):
                return self.value(left) - self.value(right)
            case Binary(_, left, right):
                return self.joined(self.value(left), self.value(right))
            case _:
                raise ValueError(f"no expression: {node}")


def expression(draw: random.Random, depth: int = 3) -> Any:
    kind = draw.random()
    if not depth or kind < 0.3:
        return Leaf(draw.randrange(20))
    if kind < 0.6:
        return Unary(draw.choice(["negative", "minus", "tanh"]), expression(draw, depth - 1))
    return Binary(draw.choice(["add", "join"]), expression(draw, depth - 1), expression(draw, depth - 1))


class Forms(Words):
    """Patterns of dicts, lists and constants."""

    def forward(self, node: Any) -> Any:
        match node:
            case {"kind": "leaf", "word": word}:
                return self.words.weight[word]
            case {"pair": [first, second]}:
                return self.joined(self(first), self(second))
            case {"pair": [only]}:
                return -self(only)
        return self.words.weight[0] * 3


def forms(draw: random.Random, depth: int = 3) -> dict[str, Any]:
    if not depth or draw.random() < 0.3:
        return {"kind": draw.choice(["leaf", "other"]), "word": draw.randrange(20)}
    return {"kind": "inner", "pair": [forms(draw, depth - 1) for _ in range(draw.randrange(1, 4))]}


class Beam(Words):
    def forward(self, words: list[int]) -> Any:
        beam: list[tuple[float, Tensor, list[int]]] = [(0.0, self.words.weight[words[0]], [])]
        for word in sorted(words, reverse=True):
            grown: list[tuple[float, Tensor, list[int]]] = []
            for score, h, path in beam:
                for step in range(2):
                    next_h = self.joined(h, self.words.weight[(word + step) % 20])
                    grown.append((score + float(self.score(next_h)), next_h, [*path, step]))
            grown.sort(key=lambda each: each[0], reverse=True)
            beam = grown[:2]
        best = max(beam, key=lambda each: each[0])
        while (count := len(words)) > 9:
            break
        else:
            count = -count
        return best[1], best[2], count, max([each for each in words if each > 15], default=-1), sorted(words) == words


class Made(Words):
    """Dicts that the model makes: counts, a memory, and results."""

    def forward(self, words: list[int]) -> dict[str, Any]:
        counts: dict[Any, int] = {}
        for place, word in enumerate(words):
            for key in (word, float(word), (word % 2, "parity"), word > 9, "last"):
                counts[key] = counts.get(key, 0) + 1 + (place if key == "last" else 0)
        known: dict[int, Tensor] = {word: self.words.weight[word] for word in words}
        known.setdefault(words[0], self.words.weight[0])
        h = self.words.weight[0] * len(counts)
        for word, each in known.items():
            h = self.joined(h, each * counts[word])
        pair = {"first": h, "score": self.score(h)}
        return {
            "h": h,
            "pair": pair,
            "count": sum(counts.values()),
            "pairs": len([each for each in counts if isinstance(each, tuple)]),
            "some": 3 in known,
        }


class Growing(Words):
    def forward(self, words: list[int]) -> Any:
        known = {words[0]: self.words.weight[words[0]]}
        for word in known:
            if len(words) > 1:
                known[words[1]] = self.joined(known[word], known[word])
        return known.keys() if len(words) > 2 else known[words[-1]]


def words(draw: random.Random) -> list[int]:
    return [draw.randrange(20) for _ in range(draw.randrange(1, 5))]


PROGRAMS: dict[str, tuple[type[Words], Callable[[random.Random], Any]]] = {
    "optional": (Optional, optional),
    "dicts": (Dicts, dicts),
    "named": (Named, named),
    "match": (Matching, expression),
    "forms": (Forms, forms),
    "beam": (Beam, words),
    "made": (Made, words),
}


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        torch.testing.assert_close(torch.as_tensor(found), expected, rtol=1e-4, atol=1e-4)
    elif isinstance(expected, dict):
        assert type(found) is dict and [*found] == [*expected]
        same([*found.values()], [*expected.values()])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found == expected


def drawn(make: Callable[[random.Random], Any], seed: int, count: int) -> list[Any]:
    draw = random.Random(seed)
    return [make(draw) for _ in range(count)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path) -> None:
    kind, make = PROGRAMS[name]
    torch.manual_seed(0)
    module = kind().eval()
    model: Any = disc.batched(module, options=OPTIONS)
    for seed in range(3):
        model.batch(drawn(make, seed, 16))
    before, cases = model.stats()["interpreted"], [(10, 8), (11, 1), (12, 0)]
    model.save(tmp_path / "model.disc", drawn(make, 0, 16))
    saved: Any = disc.load(tmp_path / "model.disc")
    for seed, count in cases:
        instances = drawn(make, seed, count)
        with torch.no_grad():
            expected = [module(each) for each in instances]
        same(model.batch(instances), expected)
        same(saved.batch(instances), expected)
    assert model.stats()["interpreted"] >= before + 2, model.explain()


def test_attributes_that_no_example_had() -> None:
    """What the code asks for by a default, and no instance had, is looked for in each one."""
    torch.manual_seed(0)
    module = Optional().eval()
    model: Any = disc.batched(module, options=OPTIONS)
    for seed in range(3):
        model.batch(drawn(optional, seed, 16))
    instances = drawn(optional, 10, 8)
    instances[3].nowhere = 1
    instances[3].right = SimpleNamespace(word=3)
    with torch.no_grad():
        same(model.batch(instances), [module(each) for each in instances])
        module.factor = 0.5  # pyright: ignore[reportArgumentType]
        same(model.batch(instances), [module(each) for each in instances])


def test_another_method_of_one_node() -> None:
    torch.manual_seed(0)
    module = Matching().eval()
    model: Any = disc.batched(module, options=OPTIONS)
    for seed in range(3):
        model.batch(drawn(expression, seed, 16))
    instances = drawn(expression, 10, 8)
    instances[2].below = lambda: [Leaf(1), Leaf(2)]
    with torch.no_grad():
        same(model.batch(instances), [module(each) for each in instances])


def test_dicts_that_grow_while_they_are_read() -> None:
    """Python's error, and Python's views."""
    module = Growing().eval()
    model: Any = disc.batched(module, options=OPTIONS)
    for _ in range(4):
        with torch.no_grad():
            same(model.batch([[3, 3], [4, 4]]), [module([3, 3]), module([4, 4])])
        with pytest.raises(InstanceError, match="dictionary changed size during iteration"):
            model.batch([[3, 3], [4, 5]])
        assert [*model.batch([[3, 3], [4, 4, 4]])[1]] == [4]
    assert model.stats()["interpreted"], model.explain()


class Equal(Words):
    def forward(self, node: Any) -> Tensor:
        h = self.words.weight[node.word]
        return h if node.left is None else -self(node.left) if node.left == node.right else self.joined(h, self(node.right))


@dataclass
class Twins:
    word: int
    left: Any = None
    right: Any = None


def test_what_fails_without_python_is_not_saved(tmp_path: Path) -> None:
    """Dataclasses are compared by their fields, which the skeleton does not do."""

    def twins(draw: random.Random, depth: int = 2) -> Twins:
        return Twins(draw.randrange(2), *([twins(draw, depth - 1), twins(draw, depth - 1)] if depth else []))

    module = Equal().eval()
    model: Any = disc.batched(module, options=OPTIONS)
    instances: list[Twins] = []
    for seed in range(4):
        instances = drawn(twins, seed, 8)
        with torch.no_grad():
            same(model.batch(instances), [module(each) for each in instances])
    assert re.search(r"skeleton: native, and Python where test_instance_forms.py:\d+: == of a node ", model.explain())
    with pytest.raises(SaveError, match=r"without Python, instance 0 fails: TypeError: == of a node .*test_instance_forms.py:\d+\)"):
        model.save(tmp_path / "model.disc", instances)
    assert not [*tmp_path.iterdir()]
    with pytest.raises(InstanceError):
        model.batch([SimpleNamespace()])
