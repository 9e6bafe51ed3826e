"""Fits the tree of schedules to what was measured, and measures how good its choices are (paper 002, §5.2.2)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from disc.speculation.quality import Quality, RuleQuality, judge, judge_rules, losses, quality, speeds
from disc.speculation.records import Record
from disc.speculation.schedules import FAMILY, LIBRARY, Schedule
from disc.speculation.sizes import Point
from disc.speculation.tree import LEAF, Tree

FOLDS = 5  # parts of the sizes, each held out from one tree
LEAVES = 48  # of a tree, at most


def best_schedules(records: Iterable[Record], count: int, schedules: Sequence[Schedule] = FAMILY) -> tuple[Schedule, ...]:
    """The `count` schedules of which the best one at each size is, on average, nearest to the best of all ("top-N", §5.2.2)."""
    return tuple(schedules[number] for number in best_columns(losses(list(records), schedules), count))


def best_columns(table: npt.NDArray[np.float64], count: int, taken: Sequence[int] = ()) -> list[int]:
    """Of [size, schedule] losses: the `count` schedules of which the least loss at each size is least on average, found greedily.
    taken: those that are among them anyway."""
    chosen = list(taken)
    current = table[:, chosen].min(axis=1, initial=np.inf)
    while len(chosen) < min(count, table.shape[1]):
        gains = [float(np.minimum(current, table[:, number]).mean()) for number in range(table.shape[1])]
        number = int(np.argmin(gains))
        if number in chosen:
            break
        chosen.append(number)
        current = np.minimum(current, table[:, number])
    return chosen


@dataclass(frozen=True)
class Fitted:
    """A tree, its quality on the sizes it was fitted to, and that of trees fitted in the same way on sizes that were held out from them;
    rules: what these sizes say of each rule that overrules the tree."""

    tree: Tree
    fitted: Quality
    held_out: Quality
    rules: tuple[RuleQuality, ...]

    def describe(self) -> str:
        """The lines of a report."""
        return "\n".join([f"fitted    {self.fitted}", f"held out  {self.held_out}", *(f"rule {rule}" for rule in self.rules)])


def fit(
    records: Sequence[Record], schedules: Sequence[Schedule], *, ruled: Sequence[Record] = (), leaves: int = LEAVES, seed: int = 0
) -> Fitted:
    """Fits a tree to all sizes; five others, each to four fifths of the sizes, are judged on the fifth that they have not seen.

    ruled: more sizes, to which no tree is fitted, at which the rules that overrule it are judged.
    The tree predicts the loss of every schedule and takes the least: a wrong choice counts by what it costs.
    """
    order = _shuffled(records, seed)
    folds = enumerate(_fold_trees(order, schedules, leaves))
    held = [(tree, record) for fold, tree in folds for record in order[fold::FOLDS]]
    unseen = [speed for tree, record in held for speed in speeds(tree, [record])]
    tree = _fit_tree(order, schedules, leaves)
    return Fitted(tree, quality(tree, order), judge(unseen), judge_rules([*held, *((tree, record) for record in ruled)]))


def least_certain(records: Sequence[Record], schedules: Sequence[Schedule], *, leaves: int = LEAVES, seed: int = 0) -> list[Point]:
    """All sizes, those first at which the trees of `fit` differ most in the time of what they choose: candidates for another
    measurement."""
    order = _shuffled(records, seed)
    found = np.array([speeds(tree, order) for tree in _fold_trees(order, schedules, leaves)])
    spread = found.max(axis=0) - found.min(axis=0)
    return [order[number].point for number in np.argsort(-spread, kind="stable")]


def _shuffled(records: Sequence[Record], seed: int) -> list[Record]:
    order = list(records)
    random.Random(seed).shuffle(order)
    return order


def _fold_trees(order: Sequence[Record], schedules: Sequence[Schedule], leaves: int) -> Iterator[Tree]:
    """Tree number i has not seen order[i::FOLDS]."""
    for fold in range(FOLDS):
        yield _fit_tree([record for number, record in enumerate(order) if number % FOLDS != fold], schedules, leaves)


def _fit_tree(records: Sequence[Record], schedules: Sequence[Schedule], leaves: int) -> Tree:
    return Tree(tuple(schedules), grow([record.point for record in records], losses(records, schedules), leaves)).prune({})


def grow(
    points: Sequence[Point], table: npt.NDArray[np.float64], leaves: int, library: int | None = None
) -> tuple[tuple[int, int, int, int], ...]:
    """The nodes of the tree that predicts the [size, schedule] losses at these sizes and takes the least. library: the number of the
    schedule that a machine may lack: where it is the least, that is asked, and the least of the others stands beside it."""
    from sklearn.tree import DecisionTreeRegressor

    features = np.array([point.features for point in points])
    model = DecisionTreeRegressor(max_leaf_nodes=leaves, min_samples_leaf=2, random_state=0).fit(features, table)
    inner = model.tree_
    nodes, predicted = list[tuple[int, int, int, int]](), list[npt.NDArray[np.float64]]()
    for number in range(inner.node_count):
        left, right = int(inner.children_left[number]), int(inner.children_right[number])
        predicted.append(inner.value[number].reshape(-1))
        if left < 0:
            nodes.append((LEAF, int(np.argmin(predicted[-1])), 0, 0))
        else:
            nodes.append((int(inner.feature[number]), int(np.floor(inner.threshold[number])), left, right))
    for number in [place for place, node in enumerate(nodes) if node[0] == LEAF and node[1] == library]:
        others = np.where(np.arange(table.shape[1]) == library, np.inf, predicted[number])
        nodes += [(LEAF, int(np.argmin(others)), 0, 0), nodes[number]]
        nodes[number] = (LIBRARY, 0, len(nodes) - 2, len(nodes) - 1)
    return tuple(nodes)
