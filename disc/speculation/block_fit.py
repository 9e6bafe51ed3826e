"""Fits the trees of schedules of GPUs to the models (`block_model.py`, `attention_model.py`), in the place of times, and says how good
their choices are by these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from disc.speculation.attention_model import attention_seconds
from disc.speculation.block_families import FAMILIES, attention_family
from disc.speculation.block_model import seconds
from disc.speculation.block_schedules import AttentionBlock, BlockSchedule
from disc.speculation.block_trees import KINDS, AttentionTree, BlockTree
from disc.speculation.fit import FOLDS, best_columns, grow
from disc.speculation.quality import Quality, judge
from disc.speculation.sizes import Point, attention_points, device_points
from disc.targets.thresholds import Gpu

TOP = 6  # schedules of a tree: each that a product can reach is compiled
LEAVES = 120  # of a tree, at most
ATTENTION_TOP, ATTENTION_LEAVES = 4, 40  # the same of attention
SHARES = (1.0, 0.55)  # of a GPU's SMs that the smaller ones of its kind have
IMPOSSIBLE = 5.0  # the loss of a schedule that does not run at a size: e to this times as long as the best one


_Schedule = TypeVar("_Schedule", BlockSchedule, AttentionBlock)
_Tree = TypeVar("_Tree", BlockTree, AttentionTree)


@dataclass(frozen=True)
class FittedBlocks(Generic[_Tree]):
    """A tree of one kind of product, its quality at the sizes that it was fitted to, and that of trees fitted in the same way at sizes that
    they have not seen."""

    kind: str
    tree: _Tree
    fitted: Quality
    held_out: Quality

    def describe(self) -> str:
        """The lines of a report."""
        return f"{self.kind:8} {len(self.tree.schedules)} schedules\n  fitted    {self.fitted}\n  held out  {self.held_out}"


def fit_to_model(gpu: Gpu, kinds: Sequence[str] = KINDS) -> Mapping[str, FittedBlocks[BlockTree]]:
    """The trees of products for GPUs of this architecture."""
    points = [point for share in SHARES for point in device_points(round(gpu.sms * share))]
    found: dict[str, FittedBlocks[BlockTree]] = {}
    for kind in kinds:
        family = tuple(FAMILIES[gpu.architecture][kind])
        times = [[seconds(each, point, gpu, kind) for each in family] for point in points]
        found[kind] = FittedBlocks(kind, *_fit(points, family, times, BlockTree, TOP, LEAVES))
    return found


def fit_attention(gpu: Gpu, kind: str, head: int) -> FittedBlocks[AttentionTree]:
    """The tree of attention for heads of so many elements."""
    points = [point for share in SHARES for point in attention_points(round(gpu.sms * share), head)]
    family = attention_family(gpu.architecture, kind, head)
    times = [[attention_seconds(each, point, gpu, kind) for each in family] for point in points]
    fitted = _fit(points, family, times, AttentionTree, ATTENTION_TOP, ATTENTION_LEAVES)
    return FittedBlocks(f"attention of heads of {head}, {kind}", *fitted)


def _fit(
    points: Sequence[Point],
    family: tuple[_Schedule, ...],
    times: Sequence[Sequence[float]],
    make: Callable[[tuple[_Schedule, ...], tuple[tuple[int, int, int, int], ...]], _Tree],
    top: int,
    leaves: int,
) -> tuple[_Tree, Quality, Quality]:
    """A tree of at most `top` schedules, and its quality at sizes that it has seen and at others. times: [size, schedule]."""
    every = _losses(times)
    chosen = best_columns(every, top)
    schedules, table = tuple(family[number] for number in chosen), every[:, chosen]
    tree = make(schedules, grow(points, table, leaves)).prune({})
    places = [schedules.index(each) for each in tree.schedules]
    seen = [float(np.exp(-row[places[tree.choose(point.features)]])) for point, row in zip(points, table, strict=True)]
    unseen: list[float] = []
    for fold in range(FOLDS):
        kept = [number for number in range(len(points)) if number % FOLDS != fold]
        own = make(schedules, grow([points[number] for number in kept], table[kept], leaves))
        held = [number for number in range(len(points)) if number % FOLDS == fold]
        unseen += [float(np.exp(-table[number, own.choose(points[number].features)])) for number in held]
    return tree, judge(seen), judge(unseen)


def _losses(times: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    """[size, schedule]: log of its time over the best one's of the whole family."""
    table = np.array(times)
    return np.minimum(np.log(table / table.min(axis=1, keepdims=True)), IMPOSSIBLE)
