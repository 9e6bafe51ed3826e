"""The decision tree that chooses the schedule of a GEMM for every call (paper 002, §5.2.2).

It is fitted to measured times over (M, N, K, batch, threads) by `disc tune`. Where the compiler knows N, K or the batch it prunes the
tree to what is left, M alone as a rule; the runtime walks the rest in some 10 ns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Generic, Self, TypeVar

from disc.speculation.kept import keep, read_kept
from disc.speculation.schedules import FAMILY, FEATURES, Schedule

PACKAGED = Path(__file__).parent / "data" / "x86.json"  # the tree that comes with disc
LEAF = -1  # in the place of a feature: the node's threshold is then the number of a schedule
_Schedule = TypeVar("_Schedule")


@dataclass(frozen=True)
class DecisionTree(Generic[_Schedule]):
    """A decision tree as rows (nodes) of (feature, threshold, left, right): left when features[feature] <= threshold. The root is row 0.

    schedules: what the leaves number.
    """

    schedules: tuple[_Schedule, ...]
    nodes: tuple[tuple[int, int, int, int], ...]

    def choose(self, features: Sequence[int]) -> int:
        """The number of the schedule for (M, N, K, batch, threads)."""
        node = self.nodes[0]
        while node[0] != LEAF:
            node = self.nodes[node[2] if features[node[0]] <= node[1] else node[3]]
        return node[1]

    def below(self, feature: int, threshold: int, other: Self) -> Self:
        """The tree that chooses as `other` where features[feature] <= threshold, and elsewhere as this one."""
        schedules = tuple(dict.fromkeys((*self.schedules, *other.schedules)))

        def moved(tree: Self, first: int) -> list[tuple[int, int, int, int]]:
            places = [schedules.index(each) for each in tree.schedules]
            return [
                (LEAF, places[limit], 0, 0) if number == LEAF else (number, limit, left + first, right + first)
                for number, limit, left, right in tree.nodes
            ]

        above = 1 + len(other.nodes)
        return replace(self, schedules=schedules, nodes=((feature, threshold, 1, above), *moved(other, 1), *moved(self, above)))

    def prune(self, known: Mapping[int, int]) -> Self:
        """The tree for features of which those in `known` (number → value) have that value; schedules out of reach are dropped."""
        nodes: list[tuple[int, int, int, int]] = []
        schedules: dict[int, int] = {}

        def visit(number: int) -> int:
            feature, threshold, left, right = self.nodes[number]
            if feature == LEAF:
                place = len(nodes)
                nodes.append((LEAF, schedules.setdefault(threshold, len(schedules)), 0, 0))
                return place
            if feature in known:
                return visit(left if known[feature] <= threshold else right)
            place = len(nodes)
            nodes.append((feature, threshold, 0, 0))
            below, above = visit(left), visit(right)
            if nodes[below] == nodes[above] and nodes[below][0] == LEAF:
                leaf = nodes[below]
                del nodes[place:]
                nodes.append(leaf)
                return place
            nodes[place] = (feature, threshold, below, above)
            return place

        visit(0)
        return replace(self, schedules=tuple(self.schedules[number] for number in schedules), nodes=tuple(nodes))


@dataclass(frozen=True)
class Tree(DecisionTree[Schedule]):
    """That of the CPU."""

    def with_above(self, feature: int, threshold: int, schedule: Schedule) -> Tree:
        """The tree that chooses `schedule` where features[feature] > threshold, and elsewhere as this one does."""
        moved = [(number, limit, *((0, 0) if number == LEAF else (left + 1, right + 1))) for number, limit, left, right in self.nodes]
        nodes = ((feature, threshold, 1, len(moved) + 1), *moved, (LEAF, len(self.schedules), 0, 0))
        return Tree((*self.schedules, schedule), nodes)

    def with_between(self, feature: int, low: int, high: int | None, other: int, threshold: int, schedule: Schedule) -> Tree:
        """The tree that chooses `schedule` where low < features[feature] <= high (None: without end) and features[other] > threshold, and
        elsewhere as this one does."""
        own = 2 if high is None else 3  # where the nodes of this tree begin
        moved = [(number, limit, *((0, 0) if number == LEAF else (left + own, right + own))) for number, limit, left, right in self.nodes]
        last = len(moved) + own
        below = () if high is None else ((feature, high, last, own),)
        first = ((other, threshold, own, 1), (feature, low, own, last if high is None else 2), *below)
        nodes = (*first, *moved, (LEAF, len(self.schedules), 0, 0))
        return Tree((*self.schedules, schedule), nodes)

    def digest(self) -> str:
        """A text that differs when the tree does: part of the key of the compile cache."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Read back by `read_tree`."""
        return json.dumps({"schedules": [astuple(each) for each in self.schedules], "nodes": self.nodes}, separators=(",", ":"))


def read_tree(text: str) -> Tree:
    """The tree of `Tree.to_json`. Raises ValueError for a text that is none."""
    try:
        record = json.loads(text)
        schedules = tuple(Schedule(*map(int, each)) for each in record["schedules"])
        nodes = tuple((int(a), int(b), int(c), int(d)) for a, b, c, d in record["nodes"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no tree of schedules: {error}") from error
    for place, (feature, threshold, left, right) in enumerate(nodes):
        good = 0 <= threshold < len(schedules) if feature == LEAF else place < left < len(nodes) and place < right < len(nodes)
        if not good or feature >= len(FEATURES):
            raise ValueError(f"node {place} of the tree of schedules points outside")
    if not nodes or any(min(each.rows, each.k, each.parts) <= 0 for each in schedules):
        raise ValueError("the tree of schedules is empty or has a schedule without rows")
    return Tree(schedules, nodes)


def every_schedule(schedules: Sequence[Schedule] = FAMILY) -> Tree:
    """A tree that keeps all schedules whatever is known, for `ral_force_choice` to choose among: what is measured by `disc tune`."""
    threads, nodes = FEATURES.index("threads"), []
    for number in range(len(schedules) - 1):
        nodes += [(threads, number, 2 * number + 1, 2 * number + 2), (LEAF, number, 0, 0)]
    return Tree(tuple(schedules), (*nodes, (LEAF, len(schedules) - 1, 0, 0)))


def tree_path(folder: Path) -> Path:
    """Where a folder keeps a tree: the cache folder that of this machine."""
    return folder / "schedules.json"


def write_tree(folder: Path, tree: Tree) -> Path:
    """Keeps the tree in the folder; programs compiled from now on choose by that of the cache folder. Returns the file.

    Raises OutputError.
    """
    return keep(tree_path(folder), tree.to_json())


def packaged_tree() -> Tree:
    """The tree that comes with disc."""
    return read_tree(PACKAGED.read_text())


def find_tree(folder: Path) -> Tree:
    """The tree that `disc tune` made for this machine, kept in `folder`, or the one that comes with disc."""
    return read_kept(tree_path(folder), read_tree, "schedules") or packaged_tree()
