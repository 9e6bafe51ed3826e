"""Trees and graphs by compiled blocks: linearized, run by one native call, equal to the recursion in eager PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from disc.api import compile_block
from disc.config import Options
from disc.errors import CompilerBug, CycleError, MissingFieldError, ShapeConstraintError, StructureError
from disc.frontend.batched.sweeps import ADDED, NUMBERS, ROWS
from disc.ral import _ral
from disc.ral.executable import Executable
from disc.ral.plain_objects import check_plain
from disc.ral.schedule import NodeKind, Question, Schedule, ScheduledBlock, Structures

HIDDEN, WORDS = 19, 11


@dataclass(eq=False)
class Tree:
    word: int = 0
    left: Tree | None = None
    right: Tree | None = None

    @property
    def is_leaf(self) -> bool:
        return self.left is None


class Leaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, HIDDEN)
        self.gates = nn.Linear(HIDDEN, 3 * HIDDEN)

    def forward(self, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, o, u = self.gates(self.embedding(word)).chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(c), c


class Node(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates, self.forget = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, hl: torch.Tensor, cl: torch.Tensor, hr: torch.Tensor, cr: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, o, u = self.gates(hl + hr).chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(self.forget(hl)) * cl + torch.sigmoid(self.forget(hr)) * cr
        return torch.sigmoid(o) * torch.tanh(c), c


class TreeLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.leaf, self.node = Leaf(), Node()

    def forward(self, tree: Tree) -> tuple[torch.Tensor, torch.Tensor]:
        if tree.left is None or tree.right is None:
            return self.leaf(torch.tensor(tree.word))
        return self.node(*self(tree.left), *self(tree.right))


@dataclass
class Compiled:
    model: TreeLSTM
    schedule: Schedule
    structures: Structures
    leaf: Executable


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    torch.manual_seed(0)
    model, options = TreeLSTM().eval(), Options(cache=False)
    row = torch.randn(HIDDEN)
    leaf = compile_block(model.leaf, (torch.tensor(3),), (None,), options)
    node = compile_block(model.node, (row, row + 1, row + 2, row + 3), (0, 0, 0, 0), options)
    schedule = Schedule([ScheduledBlock(leaf, (), 1, (0, 0)), ScheduledBlock(node, (0, 0, 0, 0), 0, (0, 0))])
    kinds = [
        NodeKind(0, {}, {"word": "word"}, (), ("word",)),
        NodeKind(1, {"left": "left", "right": "right"}, {}, (("left", 0), ("left", 1), ("right", 0), ("right", 1)), ()),
    ]
    return Compiled(model, schedule, Structures(schedule, kinds, 2, Question("is_leaf", False, 0, 1)), leaf)


def grown(rng: random.Random, leaves: int) -> Tree:
    if leaves == 1:
        return Tree(rng.randrange(WORDS))
    first = rng.randint(1, leaves - 1)
    return Tree(left=grown(rng, first), right=grown(rng, leaves - first))


def nodes_of(tree: Tree) -> list[Tree]:
    return [tree, *(node for child in (tree.left, tree.right) if child is not None for node in nodes_of(child))]


def run(compiled: Compiled, schedule: tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]) -> torch.Tensor:
    batches, indices, rows, used = schedule
    table = torch.full((used[0], HIDDEN), float("nan"))
    assert compiled.schedule.run((table,), [0], batches, indices) == used
    return table[torch.from_numpy(rows)]


@pytest.mark.parametrize("sizes", [(), (1,), (1, 1), (2, 7), (13, 1, 8, 20, 5, 3, 2, 17)])
def test_trees(compiled: Compiled, sizes: tuple[int, ...]) -> None:
    rng = random.Random(len(sizes))
    trees = [grown(rng, size) for size in sizes]
    results = run(compiled, compiled.structures.walk(trees, [0]))
    assert results.shape == (len(trees), 2, HIDDEN)
    with torch.no_grad():
        for tree, result in zip(trees, results, strict=True):
            torch.testing.assert_close(result, torch.stack(compiled.model(tree)), rtol=1e-4, atol=1e-5)


def arrays(
    trees: list[Tree], order: Callable[[list[Tree]], object]
) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray], list[int]]:
    """The nodes of trees as flat arrays, in an order of their own; and where the roots are."""
    nodes = [node for tree in trees for node in nodes_of(tree)]
    order(nodes)
    place = {id(node): number for number, node in enumerate(nodes)}
    children = {name: np.array([place.get(id(getattr(node, name)), -1) for node in nodes]) for name in ("left", "right")}
    kinds = np.array([0 if node.is_leaf else 1 for node in nodes])
    return kinds, children, {"word": np.array([node.word for node in nodes])}, [place[id(tree)] for tree in trees]


ORDERS: dict[str, Callable[[list[Tree]], object]] = {
    "parents first": lambda nodes: None, "children first": lambda nodes: nodes.reverse(), "any": random.Random(3).shuffle,
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_flat_arrays(compiled: Compiled, order: str) -> None:
    rng = random.Random(7)
    trees = [grown(rng, size) for size in (9, 1, 12)]
    kinds, children, columns, roots = arrays(trees, ORDERS[order])
    made = compiled.structures.linearize(kinds, children, columns, [0])
    wanted = run(compiled, compiled.structures.walk(trees, [0]))
    torch.testing.assert_close(run(compiled, made)[roots], wanted, rtol=1e-6, atol=1e-6)
    heights = made[0][:, 1]
    assert heights.sum() == len(kinds) and len(made[0]) == len(compiled.structures.walk(trees, [0])[0])


def test_a_shared_node_is_computed_once(compiled: Compiled) -> None:
    leaf = Tree(2)
    shared = Tree(left=leaf, right=leaf)
    top = Tree(left=shared, right=Tree(left=shared, right=leaf))
    made = compiled.structures.walk([top, shared], [0])
    assert made[0][:, 1].tolist() == [1, 1, 1, 1]
    with torch.no_grad():
        for tree, result in zip((top, shared), run(compiled, made), strict=True):
            torch.testing.assert_close(result, torch.stack(compiled.model(tree)), rtol=1e-4, atol=1e-5)


def test_a_comb_of_5000(compiled: Compiled) -> None:
    tree = Tree(1)
    for _ in range(5000):
        tree = Tree(left=tree, right=Tree(4))
    batches = compiled.structures.walk([tree], [0])[0]
    assert len(batches) == 5001 and batches[0, 1] == 5001
    while tree.left is not None:  # taken apart from the top: a chain of objects is freed by recursion
        tree = tree.left


def test_cycles_show_their_path(compiled: Compiled) -> None:
    top = Tree(left=Tree(left=Tree(1), right=Tree(1)), right=Tree(2))
    assert top.left is not None
    top.left.right = top
    with pytest.raises(StructureError, match=r"a cycle: Tree\.left\.right is the object itself"):
        compiled.structures.walk([top], [0])
    kinds, children = np.array([1, 1, 0]), {"left": np.array([1, 2, -1]), "right": np.array([2, 0, -1])}
    with pytest.raises(StructureError, match="a cycle: nodes 0 -> 1 -> 0"):
        compiled.structures.linearize(kinds, children, {"word": np.zeros(3, np.int64)}, [0])


FLAT = [
    ("node 1, left: 7 is no node; there are 3", [0, 1, 0], [-1, 7, -1], [-1, 2, -1]),
    ("node 1, right: -2 is no node", [0, 1, 0], [-1, 0, -1], [-1, -2, -1]),
    ("node 1, right: a node of this kind needs a child there", [0, 1, 0], [-1, 0, -1], [-1, -1, -1]),
    ("node 2, left: a node of this kind has no child there, but it is 1", [0, 1, 0], [-1, 0, 1], [-1, 2, -1]),
    ("node 1 is of kind 2; there are 2", [0, 2, 0], [-1, 0, -1], [-1, 2, -1]),
]


@pytest.mark.parametrize(("message", "kinds", "left", "right"), FLAT)
def test_arrays_that_are_no_structure(compiled: Compiled, message: str, kinds: list[int], left: list[int], right: list[int]) -> None:
    children = {"left": np.array(left), "right": np.array(right)}
    with pytest.raises(StructureError, match=message):
        compiled.structures.linearize(np.array(kinds), children, {"word": np.zeros(3, np.int64)}, [0])


def test_objects_that_are_no_structure(compiled: Compiled) -> None:
    with pytest.raises(StructureError, match=r"Tree\.right: it is None; a node of this kind needs a child there"):
        compiled.structures.walk([Tree(left=Tree(1))], [0])
    with pytest.raises(StructureError, match=r"Tree\.word: it is a str, not an integer"):
        compiled.structures.walk([Tree("one")], [0])  # pyright: ignore[reportArgumentType]
    with pytest.raises(AttributeError, match="is_leaf"):
        compiled.structures.walk([object()], [0])


def test_values_are_checked_and_rows_too(compiled: Compiled) -> None:
    table = torch.zeros(4, HIDDEN)
    with pytest.raises(ShapeConstraintError, match="11"):
        compiled.schedule.run((table,), [0], np.array([[0, 1, 0]]), np.array([WORDS]))
    for indices in ([0, 1, 2, 2], [0, 1, -1, 0]):
        with pytest.raises(CompilerBug, match="a row that is not there: table 0 has 2"):
            compiled.schedule.run((table,), [2], np.array([[1, 1, 0]]), np.array(indices))
    with pytest.raises(CompilerBug, match="is full"):
        compiled.schedule.run((table,), [3], np.array([[0, 1, 0]]), np.array([1]))
    with pytest.raises(CompilerBug, match="a batch of 2 rows at index 3 of 4"):
        compiled.schedule.run((table,), [0], np.array([[0, 2, 3]]), np.zeros(4, np.int64))


def test_sweeps(compiled: Compiled) -> None:
    """Launches with rows of their own, one after the other; results that are added to rows, and flags of these; what a sweep checks."""
    words, leaf = (NUMBERS, -1, 0, 0, 0), compiled.leaf.context
    plain = (leaf, [words], [(ROWS, 0, 0, 0, 0), (ROWS, 0, 1, 0, 0)], [], 1)
    added = (leaf, [words], [(ADDED, 0, 1, 1, 2), (ROWS, 3, 1, 0, 0)], [(ROWS, 2, 0, 0, 0)], 2)
    sweep = _ral.Sweep([plain, added])
    table, room, flags = torch.zeros(4, HIDDEN), torch.zeros(2, HIDDEN), torch.zeros(4, dtype=torch.bool)
    tables, numbers = (table, room, flags, room + 1), np.array([3, 5, 1, 1])

    def run(launches: list[list[int]], used: int = 4, begin: int = 0, *, backwards: bool = False) -> tuple[int, bytes]:
        return sweep.run(tables, [used, 2, 4, 2], np.array(launches), numbers, begin, backwards)

    assert run([[0, 1, 0, 0, 1], [0, 1, 1, 3, 2]], used=0) == (2, bytes([1, 1]))
    expected = torch.stack([each for word in (3, 5) for each in compiled.model.leaf(torch.tensor(word))]).detach()
    torch.testing.assert_close(table[[0, 1, 3, 2]], expected)
    launches = [[1, 2, 0, 0, 0], [-1, 2, 0, 0, 0], [1, 2, 0, 2, 0]]
    assert run(launches, begin=3, backwards=True) == (2, bytes(3))  # the last is not needed, the one in front of it the caller's
    flags[0] = True
    assert run(launches, begin=1, backwards=True) == (1, bytes(3))  # one of two is needed
    flags[3] = flags[2] = True
    before = table.clone()
    assert run(launches, begin=3, backwards=True) == (2, bytes([0, 0, 1]))
    before[1] += compiled.model.leaf(torch.tensor(3))[0].detach() + compiled.model.leaf(torch.tensor(5))[0].detach()
    torch.testing.assert_close(table, before)
    assert flags.tolist() == [True, True, True, True]
    for launch, used, message in (
        ([0, 2, 0, 0, 3], 4, "launch 0 has rows that are not there"),
        ([0, 2, 0, 0, -1], 4, "launch 0 has rows that are not there"),
        ([0, 2, 3, 0, 2], 4, "launch 0 has numbers that are not there"),
        ([0, 0, 0, 0, 2], 4, "launch 0 has numbers that are not there"),
        ([2, 1, 0, 0, 2], 4, "launch 0 is of a block that there is not"),
        ([1, 2, 0, 0, 0], 1, "launch 0 numbers a row that is not in use"),
    ):
        with pytest.raises(CompilerBug, match=message):
            run([launch], used)
    for values in (
        [(ROWS, 4, 0, 0, 0), words],
        [(ADDED, 0, 0, 0, 0), words],
        [(ROWS, 0, 2, 0, 0), words],
        [words, words],
        [(7, 0, 0, 0, 0), words],
    ):
        with pytest.raises(CompilerBug, match="a value of block 0 lies nowhere"):
            _ral.Sweep([(leaf, [words], values, [], 1)]).run(tables, [4, 2, 4, 2], np.array([[0, 1, 0, 0, 2]]), numbers, 0, False)
    with pytest.raises(CompilerBug, match="table 0 is not contiguous"):
        sweep.run((torch.zeros(HIDDEN, 4).t(), room, flags), [4, 2, 4], np.array([[0, 1, 0, 0, 2]]), numbers, 0, False)


def test_properties_that_ask_for_none(compiled: Compiled) -> None:
    """Such a property is answered without a call, for as long as its code and its class are what they were."""

    class Asked:
        def __init__(self, left: object = None, right: object = None) -> None:
            self.word, self.left, self.right = 1, left, right

        @property
        def is_leaf(self) -> bool:
            return self.left is None

    class Others:
        @property
        def without_right(self) -> bool:
            return self.right is None  # pyright: ignore[reportAttributeAccessIssue]

        @property
        def with_left(self) -> bool:
            return self.left is not None  # pyright: ignore[reportAttributeAccessIssue]

    names = {"is_leaf", "left", "right", "word"}
    kinds = [NodeKind(0, {}, {"word": "word"}, (), ("word",)), NodeKind(1, {"left": "left", "right": "right"}, {}, (("left", 0),) * 4, ())]
    known = Structures(compiled.schedule, kinds, 2, Question("is_leaf", False, 0, 1), lambda kind: check_plain(kind, names))

    def nodes(root: object) -> list[int]:
        return [int(count) for _, count, _ in known.walk([root], [0])[0]]

    leaf, whole = Asked(), Asked(Asked(), Asked())
    half = Asked(leaf)
    assert nodes(whole) == [2, 1] and nodes(Asked(leaf, leaf)) == [1, 1]
    with pytest.raises(MissingFieldError, match="right"):
        nodes(half)
    getter: Any = Asked.is_leaf.fget
    getter.__code__ = Others.without_right.fget.__code__  # pyright: ignore[reportOptionalMemberAccess]
    assert nodes(half) == [1] and nodes(whole) == [2, 1]
    Asked.is_leaf = Others.with_left  # pyright: ignore[reportAttributeAccessIssue]
    assert nodes(half) == nodes(whole) == [1]


def test_a_cycle_of_one_owner(compiled: Compiled) -> None:
    """Only its class holds the object that is its own child."""

    class Endless:
        word, right, is_leaf = 1, None, False
        left: Any

    Endless.left = Endless()
    Endless.right = Endless.left
    with pytest.raises(CycleError, match="left"):
        compiled.structures.walk([Endless()], [0])
