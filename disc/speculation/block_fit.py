"""Fits the trees of schedules of GPUs to the model (`block_model.py`), in the place of times, and says how good their choices are by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from disc.speculation.block_families import FAMILIES
from disc.speculation.block_model import seconds
from disc.speculation.block_schedules import BlockSchedule
from disc.speculation.block_trees import KINDS, BlockTree
from disc.speculation.fit import FOLDS, best_columns, grow
from disc.speculation.quality import Quality, judge
from disc.speculation.sizes import Point, device_points
from disc.targets.thresholds import Gpu

TOP = 6  # schedules of a tree: each that a product can reach is compiled
LEAVES = 120  # of a tree, at most
SHARES = (1.0, 0.55)  # of a GPU's SMs that the smaller ones of its kind have
IMPOSSIBLE = 5.0  # the loss of a schedule that does not run at a size: e to this times as long as the best one


@dataclass(frozen=True)
class FittedBlocks:
    """A tree of one kind of product, its quality at the sizes that it was fitted to, and that of trees fitted in the same way at sizes that
    they have not seen."""

    kind: str
    tree: BlockTree
    fitted: Quality
    held_out: Quality

    def describe(self) -> str:
        """The lines of a report."""
        return f"{self.kind:8} {len(self.tree.schedules)} schedules\n  fitted    {self.fitted}\n  held out  {self.held_out}"


def fit_to_model(gpu: Gpu, kinds: Sequence[str] = KINDS) -> Mapping[str, FittedBlocks]:
    """The trees for GPUs of this architecture."""
    points = [point for share in SHARES for point in device_points(round(gpu.sms * share))]
    return {kind: _fit(gpu, kind, points) for kind in kinds}


def _fit(gpu: Gpu, kind: str, points: Sequence[Point]) -> FittedBlocks:
    family = tuple(FAMILIES[gpu.architecture][kind])
    every = _losses(gpu, kind, points, family)
    chosen = best_columns(every, TOP)
    schedules, table = tuple(family[number] for number in chosen), every[:, chosen]
    tree = BlockTree(schedules, grow(points, table, LEAVES)).prune({})
    seen = _speeds(tree, points, schedules, table)
    unseen: list[float] = []
    for fold in range(FOLDS):
        kept = [number for number in range(len(points)) if number % FOLDS != fold]
        held = [number for number in range(len(points)) if number % FOLDS == fold]
        own = BlockTree(schedules, grow([points[number] for number in kept], table[kept], LEAVES))
        unseen += _speeds(own, [points[number] for number in held], schedules, table[held])
    return FittedBlocks(kind, tree, judge(seen), judge(unseen))


def _losses(gpu: Gpu, kind: str, points: Sequence[Point], schedules: Sequence[BlockSchedule]) -> npt.NDArray[np.float64]:
    """[size, schedule]: log of its time over the best one's of the whole family."""
    times = np.array([[seconds(each, point, gpu, kind) for each in schedules] for point in points])
    return np.minimum(np.log(times / times.min(axis=1, keepdims=True)), IMPOSSIBLE)


def _speeds(tree: BlockTree, points: Sequence[Point], schedules: Sequence[BlockSchedule], table: npt.NDArray[np.float64]) -> list[float]:
    """Of the best schedule's time over that of the one taken, for each size."""
    taken = [schedules.index(tree.schedules[tree.choose(point.features)]) for point in points]
    return [float(np.exp(-table[row, number])) for row, number in enumerate(taken)]
