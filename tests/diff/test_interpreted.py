"""Models that decide by values, in the process that learnt them: the runtime's interpreter gives what the model's code gives, and where it
cannot tell, the code runs."""

from __future__ import annotations

import json
import threading
from enum import Enum, IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dynamic_models import CASES, WORDS, Tree
from torch import nn

import disc
from disc.cli.main import main
from disc.config import Options
from disc.errors import InstanceError, NodeKindError, SaveError, StructureError
from disc.ral.flat_values import flat_instances
from disc.ral.skeletal import native_skeleton

HIDDEN = 8
OPTIONS = Options(cache=False, threads=1)
LIMITS = SimpleNamespace(deep=SimpleNamespace(deeper=SimpleNamespace(most=4)))


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found == (pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected)


class Part:
    """A node of another class than `Tree`: its attributes lie elsewhere, and it tells more."""

    def __init__(self, word: int, parts: list[Any], pair: tuple[int, float], at: torch.Tensor) -> None:
        self.word, self.parts, self.pair, self.at = word, parts, pair, at
        self.own = True


class Deciding(nn.Module):
    """Reads, loops, properties, results of all kinds, and errors."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.cell = nn.Embedding(WORDS, HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)

    def node(self, part, found):
        h = torch.tanh(self.cell(torch.cat([self.emb.weight[part.word], part.at])))
        score = float(h.sum())
        found.append((h, score))
        below = []
        for each in part.parts:
            below.append(self.node(each, found))
            if len(below) >= LIMITS.deep.deeper.most:
                break
        if part.pair[0] < 0:
            raise ValueError("a negative count")
        return h, part, below

    def forward(self, part):
        found = []
        h, again, below = self.node(part, found)
        numbers = [score > 0.5 for _, score in found]
        kind = "large" if sum(numbers) > 1 else "small"
        if part.pair[1] > 1.0:
            return h, h, again, part.at, below, kind
        return found, numbers, found, len(numbers), part.pair[1] / 2, kind


def parts(count: int, seed: int, depth: int = 2) -> list[Part]:
    draw = torch.Generator().manual_seed(seed)

    def number(most: int) -> int:
        return int(torch.randint(most, (), generator=draw))

    def part(depth: int) -> Part:
        below = [part(depth - 1) for _ in range(number(4) if depth else 0)]
        return Part(number(WORDS), below, (number(9), number(40) / 16), torch.randn(HIDDEN, generator=draw))

    return [part(depth) for _ in range(count)]


class Learnt(SimpleNamespace):
    """A model that ran until its skeleton is interpreted."""

    module: Deciding
    batched: Any

    def interpreted(self) -> int:
        return self.batched.stats()["interpreted"]


@pytest.fixture(scope="module")
def model() -> Learnt:
    torch.manual_seed(0)
    module = Deciding().eval()
    batched: Any = disc.batched(module, options=OPTIONS)
    for seed in range(4):
        batched.batch(parts(12, seed))
    made = Learnt(module=module, batched=batched)
    assert made.interpreted(), batched.explain()
    return made


def eager(module: nn.Module, instances: list[Any]) -> list[Any]:
    with torch.no_grad():
        return [module(each) for each in instances]


@pytest.mark.parametrize("count", [0, 1, 7, 64])
def test_results_are_those_of_the_code(model: Learnt, count: int) -> None:
    before, instances = model.interpreted(), parts(count, 100 + count)
    same(model.batched.batch(instances), eager(model.module, instances))
    assert model.interpreted() == before + (count > 0)
    assert "skeleton: native; " in model.batched.explain()


def test_results_are_objects_of_their_own(model: Learnt) -> None:
    instances = parts(12, 7)
    for instance, result in zip(instances, model.batched.batch(instances), strict=True):
        if instance.pair[1] > 1.0:
            h, again, node, at, _, _ = result
            assert node is instance and at is instance.at and h is not again and torch.equal(h, again)
            again.add_(1)
            assert not torch.equal(h, again)
        else:
            assert result[0] is result[2]


def test_errors_are_those_of_the_code(model: Learnt) -> None:
    instances = parts(6, 3)
    instances[4].pair = (-1, 2.0)
    with pytest.raises(InstanceError) as info:
        model.batched.batch(instances)
    assert [*info.value.failures] == [4] and isinstance(info.value.failures[4], ValueError)
    assert str(info.value).startswith("instance 4 failed at ") and "test_interpreted.py:" in str(info.value)
    good = [each for each in range(6) if each != 4]
    same([info.value.results[each] for each in good], eager(model.module, [instances[each] for each in good]))


def test_threads(model: Learnt) -> None:
    """Several call one model, in turns; the batch of one of them fails."""
    given = [parts(8, 50 + number) for number in range(4)]
    given[1][3].pair = (-1, 2.0)
    expected = [eager(model.module, each) if number != 1 else None for number, each in enumerate(given)]
    wrong: list[object] = []

    def run(number: int) -> None:
        try:
            for _ in range(4):
                try:
                    same(model.batched.batch(given[number]), expected[number])
                except InstanceError as error:
                    assert number == 1 and [*error.failures] == [3]
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(given))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


@pytest.mark.parametrize("wrong", ["text", "shape"])
def test_an_instance_of_another_form_that_fails(model: Learnt, wrong: str, capfd: pytest.CaptureFixture[str]) -> None:
    """It has Python's error; the others are interpreted, in this batch and in those after it."""
    before = model.interpreted()
    for seed in range(3):
        instances = parts(6, 30 + seed)
        if wrong == "text":
            instances[2].word = "word"  # pyright: ignore
        else:
            instances[2].at = torch.randn(3 * HIDDEN)
        with pytest.raises(InstanceError) as info:
            model.batched.batch(instances)
        assert [*info.value.failures] == [2]
        good = [0, 1, 3, 4, 5]
        same([info.value.results[each] for each in good], eager(model.module, [instances[each] for each in good]))
    instances = parts(6, 40)
    same(model.batched.batch(instances), eager(model.module, instances))
    assert model.interpreted() == before + 4, model.batched.explain()
    assert "failed while attempting" not in capfd.readouterr().err


class Word(int):
    """A number that is more than a number."""


def odd(change: str) -> list[Any]:
    instances = parts(4, 11)
    at = instances[2]
    if change == "class":
        instances[2] = SimpleNamespace(word=at.word, parts=at.parts, pair=at.pair, at=at.at)  # pyright: ignore
    elif change == "subclass":
        at.word = Word(3)
    elif change == "tuple":
        at.parts = tuple(at.parts)  # pyright: ignore
    elif change == "float":
        at.pair = (1.5, 2.0)  # pyright: ignore
    elif change == "strided":
        at.at = torch.randn(2 * HIDDEN)[::2]
    return instances


def test_what_became_a_constant_is_looked_at(model: Learnt, monkeypatch: pytest.MonkeyPatch) -> None:
    instances = parts(8, 21)
    monkeypatch.setattr(LIMITS.deep.deeper, "most", 1)
    same(model.batched.batch(instances), eager(model.module, instances))


def test_properties_that_change(model: Learnt, monkeypatch: pytest.MonkeyPatch) -> None:
    instances = parts(8, 22)
    monkeypatch.setattr(Part, "word", property(lambda self: 1, lambda self, value: None), raising=False)
    same(model.batched.batch(instances), eager(model.module, instances))


@pytest.mark.parametrize("change", ["class", "tuple", "strided", "float", "subclass"])
def test_other_forms_of_instances(model: Learnt, change: str) -> None:
    """The last test of this model: forms that are learnt stay."""
    before = model.interpreted()
    for _ in range(4):
        instances = odd(change)
        same(model.batched.batch(instances), eager(model.module, instances))
    assert model.interpreted() > before or change == "subclass", model.batched.explain()  # each of whose values is a block of its own


class Same(nn.Module):
    """Asks whether objects are one object."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, HIDDEN)

    def forward(self, node):
        h = self.emb.weight[node.word] * 2
        if float(h[0]) > 9:
            h = h * 2
        count = node.word + 1000
        return h, node.left is node.right, node.left is not None, count is node.word


def test_identity() -> None:
    torch.manual_seed(0)
    module = Same().eval()
    batched: Any = disc.batched(module, options=OPTIONS)
    for _ in range(4):
        leaf = Tree(2, None, None)  # pyright: ignore
        instances = [Tree(1, leaf, leaf), Tree(1, leaf, Tree(3, None, None)), leaf] * 3  # pyright: ignore
        same(batched.batch(instances), eager(module, instances))
    assert batched.stats()["interpreted"], batched.explain()


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("TreeFC", "TreeLSTM", "TreeGRU", "MV-RNN")])
def test_models(name: str) -> None:
    make, instances = CASES[name]
    torch.manual_seed(0)
    module = make(HIDDEN).eval()
    batched: Any = disc.batched(module, options=OPTIONS)
    for count in (9, 9, 9, 0, 1, 64):
        given = instances(count)
        same(batched.batch(given), eager(module, given))
    assert batched.stats()["interpreted"] > 1, batched.explain()


class Searching(nn.Module):
    """`any`, `all` and `next` of generators: items behind the one that decides are not asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.cell = nn.Embedding(WORDS, HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)

    def score(self, h, word):
        return float(self.cell(torch.cat([h, self.emb.weight[word]])).sum().detach())

    def forward(self, words):
        word = words[0]
        h = self.emb.weight[word]
        checked = []
        if any(self.score(h, word) > 0.2 for word in words[1:] if word != 3):
            h = torch.tanh(h)
        if all([checked.append(other), other < 18][1] for other in words):
            h = torch.relu(self.cell(torch.cat([h, h])))
        first = next((other * 2 for other in words if 10 // (other - 5) > 0), word)  # 5 is an error, unless one before decides
        found = next((h * other for other in words if other > 15), h)
        return h, word, first, len(checked), found, any(each for each in words), all(each for each in words[1:])


def test_generators_that_are_searched(tmp_path: Path) -> None:
    module = Searching().eval()
    with pytest.raises(ZeroDivisionError):
        module([5, 9])
    draw = torch.Generator().manual_seed(3)
    instances = [torch.randint(6, WORDS, (1 + count % 6,), generator=draw).tolist() for count in range(30)]
    instances += [[7, 5, 5], [0], [2, 19, 3, 6]]
    batched: Any = disc.batched(module, options=OPTIONS)
    for given in (instances, instances, [], instances[:1], instances[:8], instances[::-1]):
        same(batched.batch(given), eager(module, given))
    assert batched.stats()["interpreted"] > 1, batched.explain()
    with pytest.raises(InstanceError) as failed:
        batched.batch([*instances[:2], [5, 9]])
    assert [*failed.value.failures] == [2]
    batched.save(tmp_path / "searching.disc", instances)
    saved = disc.load(tmp_path / "searching.disc")
    for given in (instances, [], instances[:1], instances[:8]):
        results: Any = saved.batch(given)
        same([tuple(torch.from_numpy(part) if hasattr(part, "dtype") else part for part in each) for each in results], eager(module, given))


class Kind(Enum):
    LEAF = "leaf"
    INNER = "inner"


BY_KIND = {Kind.LEAF: 1.0, Kind.INNER: 0.5}


class Phrase:
    def __init__(self, kind: Kind, label: str | None, parts: list[Any], word: int = 0) -> None:
        self.kind, self.label, self.parts, self.word = kind, label, parts, word


class Labeled(nn.Module):
    """Compares texts and members of enums, and calls a block by a text."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.joins = nn.Embedding(WORDS, HIDDEN), nn.ModuleDict({each: nn.Linear(HIDDEN, HIDDEN) for each in ("sum", "max")})
        self.factors = {"sum": 1, "max": 3}

    def forward(self, tree):
        if tree.kind is Kind.LEAF:
            h = self.emb.weight[tree.word]
            if tree.label in (None, "", "né") and len(tree.label or "") == 2:
                return h * 3
            return h * 2 if tree.label == "NP" else h
        h = self(tree.parts[0])
        for part in tree.parts[1:]:
            h = torch.tanh(h + self(part))
        if tree.label in self.factors and (float(h[0]) > 0 or self.factors[tree.label] < 2):
            h = self.joins[tree.label](h) * self.factors.get(tree.label, 0) * BY_KIND[tree.kind]
        elif tree.label is not None and tree.label < "b":
            h = torch.relu(h)
        if tree.kind != Kind.INNER or not tree.label or float(h.sum()) > 9:
            return h * 0.5
        return h


def phrases(count: int, seed: int) -> list[Phrase]:
    draw = torch.Generator().manual_seed(seed)

    def phrase(depth: int) -> Phrase:
        word = int(torch.randint(WORDS, (), generator=draw))
        if depth == 0 or word % 5 == 0:
            return Phrase(Kind.LEAF, ("NP", "né", None, "")[word % 4], [], word)
        return Phrase(Kind.INNER, ("sum", "max", "alpha", None, "")[word % 5], [phrase(depth - 1) for _ in range(1 + word % 3)])

    return [phrase(3) for _ in range(count)]


def nested(tree: Phrase) -> dict[str, Any]:
    return {"kind": tree.kind.name, "label": tree.label, "parts": [nested(each) for each in tree.parts], "word": tree.word}


def test_texts_and_members_of_enums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    module = Labeled().eval()
    batched: Any = disc.batched(module, options=OPTIONS)
    for seed in range(4):
        batched.batch(phrases(16, seed))
    before, instances = batched.stats()["interpreted"], phrases(20, 9)
    assert before, batched.explain()
    instances.append(Phrase(Kind.LEAF, "VP", [], 3))  # compared with what it is not alone
    same(batched.batch(instances), eager(module, instances))
    assert batched.stats()["interpreted"] == before + 1
    unknown = [*instances, Phrase(Kind.INNER, "beta", instances[:2])]  # its order is not known
    same(batched.batch(unknown), eager(module, unknown))

    module.factors["max"] = 2
    same(batched.batch(instances), eager(module, instances))
    path = str(tmp_path / "labeled.disc")
    batched.save(path, phrases(16, 1))
    saved = disc.load(path)
    for given in (instances, [nested(each) for each in instances]):
        for found, expected in zip(saved.batch(given), eager(module, instances), strict=True):
            torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(
        InstanceError, match=r"a text depends on that, and the model was not made for this text.*test_interpreted.py:\d+"
    ) as failed:
        saved.batch(unknown)
    assert [*failed.value.failures] == [len(instances)]
    with pytest.raises(NodeKindError, match=r"tree\[0\].kind: it is 'ROOT', not one of Kind.LEAF, Kind.INNER"):
        saved.batch([{**nested(instances[0]), "kind": "ROOT"}])
    with pytest.raises(NodeKindError, match=r"tree\[0\].label: it is '3', not a text"):
        saved.batch([{**nested(instances[0]), "label": 3}])
    (tmp_path / "given.json").write_text(json.dumps([nested(each) for each in instances[:2]]))
    assert main(["run", path, "--input", str(tmp_path / "given.json"), "--json"]) == 0
    assert main(["inspect", path]) == 0
    assert "tree.kind: 0 Kind.LEAF, 1 Kind.INNER" in capsys.readouterr().out

    record: Any = saved.manifest["skeleton"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    arrays: Any = flat_instances(record, instances, 1 << 20)
    arrays[[each.name for each in saved.inputs].index("tree.label")][2] = -3
    with pytest.raises(StructureError, match=r"input 'tree.label' \[2\]: -3 is no choice; there are "):
        saved(*arrays)
    for slot in record["slots"]:
        if slot["name"] == "tree.label":
            slot["choices"].pop()
    with pytest.raises(ValueError, match="the choices of slot"):  # a text of the code could be another one
        native_skeleton(record)


class Asks(nn.Module):
    """Asks for the class of one of its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, HIDDEN)

    def forward(self, words):
        h = self.emb.weight[words[0]]
        for word in words:
            h = h + self.emb.weight[word] if isinstance(self.emb, nn.Embedding) else h
        return h


def test_the_class_of_a_constant() -> None:
    """It was no instance of any class."""
    module = Asks().eval()
    batched: Any = disc.batched(module, options=OPTIONS)
    given = [[1, 2, 3], [4], [5, 6]] * 3
    for _ in range(4):
        same(batched.batch(given), eager(module, given))


class Level(IntEnum):
    LOW = 0
    HIGH = 1


def test_enums_that_equal_numbers_run_in_python() -> None:
    weight = torch.randn(WORDS, HIDDEN)

    def model(part):
        return weight[part.word] * (2 if part.level == 1 else 3)

    batched: Any = disc.batched(model, options=OPTIONS)
    given = [SimpleNamespace(word=number, level=Level(number % 2)) for number in range(8)]
    for _ in range(3):
        same(batched.batch(given), [model(each) for each in given])
    assert "part.level is a Level, an enum whose members are more than names" in batched.explain()


def any_of(values: Any) -> bool:
    """Another `any`: takes all."""
    return sum(map(bool, [*values])) > 1


def test_a_name_that_hides_a_builtin(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(WORDS, HIDDEN)

    def model(words):
        any = any_of
        return weight[words[0]] * (2 if any(word > 3 for word in words) else 3)

    batched: Any = disc.batched(model, options=OPTIONS)
    given = [[1, 5, 2], [4, 5], [1]]
    for _ in range(3):
        same(batched.batch(given), [model(words) for words in given])

    def later(words):
        return weight[words[0]] * (2 if all(word > 3 for word in words) else 3)

    batched = disc.batched(later, options=OPTIONS)
    for _ in range(3):
        same(batched.batch(given), [later(words) for words in given])
    monkeypatch.setitem(globals(), "all", any_of)
    for _ in range(2):
        same(batched.batch([*given, [4, 5, 2]]), [later(words) for words in [*given, [4, 5, 2]]])


@pytest.mark.parametrize("takes", ["any arguments", "what is not followed"])
def test_a_model_whose_own_function_is_not_read(takes: str, tmp_path: Path) -> None:
    class Any_(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(WORDS, HIDDEN)

        def scale(self, word):
            return self.emb.weight[word] * 2

    def any_arguments(self: Any, *given: Any) -> torch.Tensor:
        return self.scale(given[0])

    def unread(self: Any, word: int) -> torch.Tensor:
        try:
            return self.scale(word)
        finally:
            pass

    Any_.forward = any_arguments if takes == "any arguments" else unread  # pyright: ignore[reportAttributeAccessIssue]
    module = Any_().eval()
    batched: Any = disc.batched(module, options=OPTIONS)
    for count in (8, 8, 8, 0, 1):
        same(batched.batch([*range(count)]), eager(module, [*range(count)]))
    assert "skeleton: Python, because " in batched.explain()
    with pytest.raises(SaveError, match="names no parameter" if takes == "any arguments" else "`try` is not followed"):
        batched.save(tmp_path / "no.disc")


@pytest.mark.long
def test_why_python_runs() -> None:
    class WithDict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(WORDS, HIDDEN)

        def forward(self, part):
            found = {}
            found["h"] = self.emb.weight[part.word] * 2
            return found["h"]

    batched: Any = disc.batched(WithDict().eval(), options=OPTIONS)
    for seed in range(3):
        batched.batch(parts(6, seed))
    assert "skeleton: Python, because " in batched.explain() and "test_interpreted.py:" in batched.explain()
