"""Models over structures, saved and loaded: tensors, objects and nested mappings give what eager does; what cannot be, by its own error."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from dynamic_models import CASES, WORDS, Node, Tree, TreeLSTM, trees
from torch import nn

import disc
from disc.cli.main import main
from disc.config import Options
from disc.errors import (
    ArtifactError,
    CycleError,
    InputRankError,
    InputTypeError,
    MissingFieldError,
    NodeIndexError,
    NodeKindError,
    SaveError,
    ShapeConstraintError,
    TooManyNodesError,
)
from disc.ral.executable import Executable

HIDDEN = 8
OPTIONS = Options(cache=False, threads=1)
STRUCTURAL = ["TreeFC", "TreeGRU", "MV-RNN"]


def flat(instances: list[Any], columns: tuple[str, ...], fields: tuple[str, ...]) -> list[np.ndarray]:
    """The arrays of objects, by identity, parents first; None and what is missing are -1."""
    nodes: list[Any] = []
    numbers: dict[int, int] = {}

    def visit(node: Any) -> int:
        if id(node) not in numbers:
            numbers[id(node)] = len(nodes)
            nodes.append(node)
            for name in fields:
                if getattr(node, name, None) is not None:
                    visit(getattr(node, name))
        return numbers[id(node)]

    roots = [visit(each) for each in instances]
    values = [[-1 if getattr(node, name, None) is None else int(getattr(node, name)) for node in nodes] for name in columns]
    children = [[-1 if getattr(node, name, None) is None else visit(getattr(node, name)) for node in nodes] for name in fields]
    return [np.array(each, np.int64) for each in (*values, *children, roots)]


def nested(tree: Tree) -> dict[str, Any]:
    return {"word": tree.word} if tree.is_leaf else {"left": nested(tree.left), "right": nested(tree.right)}  # pyright: ignore


def saved(module: nn.Module, instances: list[Any], path: Path) -> Executable:
    model: Any = disc.batched(module.eval(), options=OPTIONS)
    model.save(path, instances)
    return disc.load(path)


def close(found: Any, expected: Any) -> None:
    """found: NumPy arrays, or tuples of them."""
    if isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    else:
        np.testing.assert_allclose(np.asarray(found), expected.detach().numpy(), rtol=1e-4, atol=1e-5)


def eager(module: nn.Module, instances: list[Any]) -> list[Any]:
    with torch.no_grad():
        return [module(each) for each in instances]


@dataclass(frozen=True)
class Saved:
    module: TreeLSTM
    path: Path
    program: Executable


@pytest.fixture(scope="module")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    torch.manual_seed(0)
    module = TreeLSTM(HIDDEN)
    path = tmp_path_factory.mktemp("saved") / "tree.disc"
    return Saved(module, path, saved(module, trees(8), path))


COLUMNS, FIELDS = ("word",), ("left", "right")


def test_integers_of_numpy(lstm: Saved) -> None:
    (tree,) = trees(1, 5)
    expected = eager(lstm.module, [tree])

    def changed(each: Tree) -> Any:
        if each.is_leaf:
            return SimpleNamespace(is_leaf=True, word=np.int64(each.word))  # pyright: ignore
        return SimpleNamespace(is_leaf=False, left=changed(each.left), right=changed(each.right))  # pyright: ignore

    close(lstm.program.batch([changed(tree)])[0], expected[0])
    with pytest.raises(NodeKindError, match="not an integer"):
        lstm.program.batch([SimpleNamespace(is_leaf=True, word=torch.tensor(1))])


@pytest.mark.parametrize("count", [0, 1, 8, 10, 64])
def test_tensors_objects_and_mappings(lstm: Saved, count: int) -> None:
    instances = trees(count, count, most=9)
    expected = eager(lstm.module, instances)
    assert [each.name for each in lstm.program.inputs] == ["tree.word", "tree.left", "tree.right", "tree.root"]
    arrays = flat(instances, COLUMNS, FIELDS)
    h, c = lstm.program(*arrays)  # pyright: ignore[reportGeneralTypeIssues]
    assert h.shape == c.shape == (count, HIDDEN)
    tensors = lstm.program(*map(torch.from_numpy, arrays))
    assert all(isinstance(each, torch.Tensor) for each in tensors)  # pyright: ignore[reportGeneralTypeIssues]
    for number, each in enumerate(expected):
        close((h[number], c[number]), each)
        close((tensors[0][number], tensors[1][number]), each)  # pyright: ignore[reportIndexIssue]
    for given in (instances, [nested(each) for each in instances]):
        found = lstm.program.batch(given)
        assert len(found) == count
        for one, other in zip(found, expected, strict=True):
            close(one, other)


def test_any_order_of_nodes_and_nodes_that_are_shared(lstm: Saved) -> None:
    leaf = Tree(3)
    shared = Tree(0, leaf, Tree(4))
    top = Tree(0, shared, Tree(0, shared, leaf))
    arrays = flat([top, shared], COLUMNS, FIELDS)
    assert len(arrays[0]) == 5
    order = np.random.default_rng(1).permutation(5)
    place = np.argsort(order)
    moved = [arrays[0][order], *(np.where(each[order] < 0, -1, place[each[order]]) for each in arrays[1:3]), place[arrays[3]]]
    for given in (arrays, moved):
        h, c = lstm.program(*given)  # pyright: ignore[reportGeneralTypeIssues]
        for number, each in enumerate(eager(lstm.module, [top, shared])):
            close((h[number], c[number]), each)
    before = lstm.program.stats()["launches"]
    out = tuple(np.empty((2, HIDDEN), np.float32) for _ in range(2))
    assert lstm.program(*arrays, out=out) is out
    np.testing.assert_array_equal(out[0], h)
    assert lstm.program.stats()["launches"] != before


def test_a_comb(lstm: Saved) -> None:
    comb = Tree(1)
    for _ in range(5000):
        comb = Tree(0, comb, Tree(2))
    (h, _c), *_ = lstm.program.batch([comb])  # pyright: ignore[reportGeneralTypeIssues]
    assert np.isfinite(h).all()
    count = 10_001  # the same as arrays: node i has the children i - 2 and i - 1
    word = np.where(np.arange(count) % 2 == 0, 2, -1)
    word[:2] = (1, 2)
    left, right = np.full(count, -1), np.full(count, -1)
    places = np.arange(2, count, 2)
    word[places], word[places - 1] = -1, 2
    left[places], right[places] = places - 2, places - 1
    found, _ = lstm.program(word, left, right, np.array([count - 1]))  # pyright: ignore[reportGeneralTypeIssues]
    np.testing.assert_allclose(found[0], h, rtol=1e-5, atol=1e-6)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


GOOD = (numbers(-1, 1, 2), numbers(1, -1, -1), numbers(2, -1, -1), numbers(0))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({1: numbers(1, 0, -1), 2: numbers(2, 2, -1)}, CycleError, "a cycle: nodes 0 -> 1 -> 0"),
        ({1: numbers(3, -1, -1)}, NodeIndexError, "node 0, left: 3 is no node; there are 3"),
        ({1: numbers(-2, -1, -1)}, NodeIndexError, "node 0, left: -2 is no node"),
        ({3: numbers(0, 3)}, NodeIndexError, "root 1: 3 is no node"),
        ({2: numbers(-1, -1, -1)}, MissingFieldError, "node 0, right: a node of this kind needs a child there"),
        ({0: numbers(-1, 1, -1)}, MissingFieldError, "node 2, word: a node of this kind needs a number there"),
        ({2: numbers(2, 2, -1)}, NodeKindError, "node 1, right: a node of this kind has no child there, but it is 2"),
        ({0: numbers(-1, 1)}, ShapeConstraintError, "'tree.left' has 3 nodes, input 'tree.word' has 2"),
        ({0: np.zeros(3, np.int32)}, InputTypeError, "'tree.word' must be i64, got int32"),
        ({0: np.zeros((3, 1), np.int64)}, InputRankError, "'tree.word' must have 1 dim, got 2"),
        ({0: "text"}, InputTypeError, "'tree.word' is no tensor but a str"),
        (
            {0: numbers(-1, 1, WORDS)},
            ShapeConstraintError,
            "input 'tree.word': index 20 is out of range for a dim of size 20 at dynamic_models.py:",
        ),
    ],
)
def test_bad_tensors(lstm: Saved, change: dict[int, Any], error: type[Exception], message: str) -> None:
    lstm.program(*GOOD)
    with pytest.raises(error) as caught:
        lstm.program(*(change.get(place, each) for place, each in enumerate(GOOD)))
    assert message in str(caught.value)
    assert type(caught.value) is error
    assert "disc/frontend" not in str(caught.value)
    lstm.program(*GOOD)


@pytest.mark.parametrize(
    ("instance", "error", "message"),
    [
        ({"left": {"word": 1}}, MissingFieldError, "right: a node of this kind needs a child"),
        ({"left": {"word": 1}, "right": {"word": "two"}}, NodeKindError, "tree[0].right: word is 'two', not an integer"),
        ({"left": {"word": 1}, "right": {"word": 1.5}}, NodeKindError, "tree[0].right: word is '1.5'"),
        ({"left": {"word": 1}, "right": [1]}, NodeKindError, "tree[0]: right is a list, not a node"),
        ({"left": {"word": 1}, "rihgt": {"word": 1}}, NodeKindError, "tree[0]: it has 'rihgt'; nodes have left, right, word"),
        ({}, MissingFieldError, "node 0, word: a node of this kind needs a number there"),
        (Node(1), InputTypeError, "an instance is no structure of this model ('Node' object has no attribute"),
        (3, InputTypeError, "an instance is no structure of this model (int finds"),
    ],
)
def test_bad_instances(lstm: Saved, instance: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        lstm.program.batch([instance])
    assert message in str(caught.value)


def test_other_misuse(lstm: Saved) -> None:
    cycle = Tree(0, Tree(1))
    cycle.right = Tree(0, Tree(1), cycle)
    with pytest.raises(CycleError, match=r"Tree\.right\.right"):
        lstm.program.batch([cycle])
    with pytest.raises(InputTypeError, match="a list of instances, not a int"):
        lstm.program.batch(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputRankError, match=r"expected 4 inputs \(tree.word, tree.left, tree.right, tree.root\), got 1"):
        lstm.program(numbers(1))
    with pytest.raises(InputTypeError, match="this model takes tensors, not structures"):
        disc.compile(nn.Linear(2, 2), (torch.ones(1, 2),)).batch([])
    program = disc.load(lstm.path)
    program.most_nodes = 2
    with pytest.raises(TooManyNodesError, match="3 nodes; at most 2"):
        program(*GOOD)
    with pytest.raises(TooManyNodesError, match="more than 2 nodes"):
        program.batch([{"left": {"word": 1}, "right": {"word": 2}}])


def test_it_is_saved_again_and_described(lstm: Saved, tmp_path: Path) -> None:
    copy = tmp_path / "copy.disc"
    lstm.program.save(copy)
    assert copy.read_bytes() == lstm.path.read_bytes()
    again = disc.load(copy, threads=1)
    assert again.threads == 1
    text = str(again.explain(*GOOD))
    assert "kind 0: TreeLSTM.forward" in text
    assert "dynamic_models.py" in text
    assert any(runs and seconds > 0 for _, runs, seconds in again.profile(*GOOD))
    calls: Any = again.stats()["calls"]
    assert 3 <= calls <= 27  # one to warm up, up to 25 that are explained, one for the profile


def test_a_damaged_file(lstm: Saved, tmp_path: Path) -> None:
    whole = bytearray(lstm.path.read_bytes())
    path = tmp_path / "damaged.disc"
    for place in (len(whole) - 5, 2 * 4096 + 17, len(whole) // 2):
        whole[place] ^= 1
        path.write_bytes(whole)
        whole[place] ^= 1
        with pytest.raises(ArtifactError, match="damaged"):
            disc.load(path)
    path.write_bytes(whole[:-3])
    with pytest.raises(ArtifactError, match="should have"):
        disc.load(path)


def test_commands(lstm: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    instances = trees(3, 2)
    given, result, path = tmp_path / "trees.json", tmp_path / "h.npy", str(lstm.path)
    given.write_text(json.dumps([nested(each) for each in instances]))
    assert main(["run", path, "--input", str(given), "--output", str(result)]) == 0
    for row, each in zip(np.load(result), eager(lstm.module, instances), strict=True):
        close(row, each[0])
    given.write_text(json.dumps(nested(instances[0])))
    capsys.readouterr()
    assert main(["run", path, "--input", f"tree={given}", "--json"]) == 0
    assert [each["type"] for each in json.loads(capsys.readouterr().out)["outputs"]] == ["f32[1, 8]"] * 2
    assert main(["inspect", path]) == 0
    text = capsys.readouterr().out
    assert "tree.word, tree.left, tree.right (-1 = none)" in text
    assert "kind 1: TreeLSTM.forward" in text
    assert " left (result 0), left (result 1), " in text or " right (result 0), " in text
    assert main(["explain", path, "--input", str(given)]) == 0
    assert "time" in capsys.readouterr().out
    given.write_text(json.dumps([nested(each) for each in trees(8)]))
    timeline = tmp_path / "trace.json"
    assert main(["explain", path, "--input", str(given), "--trace", str(timeline)]) == 0
    drawn = [row for row in json.loads(timeline.read_text())["traceEvents"] if row["ph"] == "X"]
    assert {row["args"]["kernel"].partition(".")[0] for row in drawn} == {"0", "1"}, "kernels of both kinds of nodes"
    assert main(["verify", path]) == 0
    for wrong, message in (
        ("{", "is no JSON: "),
        ("[1]", "neither a JSON object nor"),
        ('{"left": {"word": 1}}', "needs a child there"),
    ):
        given.write_text(wrong)
        assert main(["run", path, "--input", str(given)]) == 1
        assert message in capsys.readouterr().err
    assert main(["run", path, "--input", str(given), "--random", "3"]) == 1
    given.write_text('{"left":' * 100_000 + "{}" + "}" * 100_000)
    assert main(["run", path, "--input", str(given)]) == 1
    assert "nests deeper" in capsys.readouterr().err


ALONE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torch_mlir", "dynamic_models"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import numpy as np
import disc
program = disc.load(sys.argv[1])
h, c = program(*(np.array(each) for each in ([-1, 1, 2], [1, -1, -1], [2, -1, -1], [0])))
np.save(sys.argv[2], h)
assert np.array_equal(program.batch([{"left": {"word": 1}, "right": {"word": 2}}])[0][0], h[0])
assert "torch" not in sys.modules
"""


def test_without_torch_and_without_source(lstm: Saved, tmp_path: Path) -> None:
    result = tmp_path / "h.npy"
    subprocess.run([sys.executable, "-c", ALONE, lstm.path, result], check=True, timeout=100)
    close(np.load(result)[0], eager(lstm.module, [Tree(0, Tree(1), Tree(2))])[0][0])


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) for name in STRUCTURAL])
def test_models(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, instances = CASES[name]
    module = make(HIDDEN)
    program = saved(module, instances(8), tmp_path / "model.disc")
    for given in (instances(10), instances(1)):
        expected = eager(module, given)
        found = program(*flat(given, COLUMNS, FIELDS))
        columns = found if isinstance(found, tuple) else (found,)
        for number, each in enumerate(expected):
            rows = tuple(column[number] for column in columns)  # pyright: ignore[reportIndexIssue]
            close(rows if isinstance(each, tuple) else rows[0], each)


def term(first: object = None, *, negative: bool = False, value: int | None = None) -> SimpleNamespace:
    """`negative` tells what neither children nor numbers do."""
    return SimpleNamespace(value=value) if first is None else SimpleNamespace(value=None, negative=negative, first=first)


class Terms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Embedding(WORDS, HIDDEN)

    def forward(self, term):  # what ends comes second
        if term.value is not None:
            return self.values.weight[term.value]
        if term.negative:
            return -self(term.first)
        return torch.tanh(self(term.first))


def test_what_only_an_attribute_tells_is_a_column(tmp_path: Path) -> None:
    module = Terms()
    terms = [term(term(term(value=place), negative=place % 2 == 0), negative=place % 3 == 0) for place in range(6)]
    program = saved(module, terms, tmp_path / "terms.disc")
    assert [each.name for each in program.inputs] == ["term.value", "term.negative", "term.first", "term.root"]
    expected = eager(module, terms)
    for number, each in enumerate(np.asarray(program(*flat(terms, ("value", "negative"), ("first",))))):
        close(each, expected[number])
    for found, each in zip(program.batch(terms), expected, strict=True):
        close(found, each)
    found = program.batch([{"first": {"value": 3}, "negative": True}, {"first": {"value": 3}, "negative": False}])
    close(found[0], eager(module, [term(term(value=3), negative=True)])[0])
    close(found[1], eager(module, [term(term(value=3))])[0])


def test_what_has_not_run_is_named(tmp_path: Path) -> None:
    fresh: Any = disc.batched(TreeLSTM(HIDDEN), options=OPTIONS)
    with pytest.raises(SaveError, match=r"dynamic_models\.py:\d+.* has not run; give `save` instances that come there"):
        fresh.save(tmp_path / "model.disc")
    fresh.batch([Tree(1)])
    with pytest.raises(SaveError, match="has not run"):
        fresh.save(tmp_path / "model.disc")
    assert not (tmp_path / "model.disc").exists()
