"""Fits the trees of schedules of GPUs to the models (`block_model.py`, `attention_model.py`), corrected by times where a GPU of the kind
was measured, and says how good their choices are by these."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from disc.speculation.attention_model import attention_seconds
from disc.speculation.block_families import FAMILIES, FEW_ROWS, attention_family
from disc.speculation.block_model import seconds
from disc.speculation.block_schedules import CUBLASLT, AttentionBlock, BlockSchedule, LibrarySchedule
from disc.speculation.block_trees import AttentionTree, BlockTree
from disc.speculation.fit import FOLDS, best_columns, grow
from disc.speculation.quality import Quality, judge
from disc.speculation.sizes import Point, attention_points, device_points, few_row_points
from disc.speculation.tree import LEAF
from disc.targets.cuda_thresholds import bandwidth_of
from disc.targets.thresholds import Gpu

# Of a tree, at most, by the model alone, and where times correct it and regions are smaller: schedules (each that a product can reach is
# compiled) and leaves.
TOP, CORRECTED_TOP = 6, 8
LEAVES, CORRECTED_LEAVES = 120, 600
FEW_TOP, FEW_LEAVES = 3, 160  # further ones for few rows, and leaves there
ATTENTION_TOP, ATTENTION_LEAVES = 4, 40  # the same of attention
SHARES = (1.0, 0.55)  # of a GPU's SMs that the smaller ones of its kind have
# How far a measured size tells of others (in factors of 2), and how much the mean of all counts beside them: these held out best on an
# H200, of widths from 0.7 to 2.5.
NEAR, MEAN_WEIGHT = 1.0, 0.3
UNSURE = 1.1  # a schedule of a form that no GPU has run must be so much faster, by the model, than others
DIGITS = 6  # of a correction: the last bits of exp and of sums differ from CPU to CPU, and with them trees would
IMPOSSIBLE = 5.0  # the loss of a schedule that does not run at a size: e to this times as long as the best one


_Schedule = TypeVar("_Schedule", BlockSchedule, AttentionBlock)
_Tree = TypeVar("_Tree", BlockTree, AttentionTree)


@dataclass(frozen=True)
class FittedBlocks(Generic[_Tree]):
    """A tree of one kind of product, its quality at the sizes that it was fitted to, and that of trees fitted in the same way at sizes that
    they have not seen. few: of its part for few rows, which has schedules that are for these alone."""

    kind: str
    tree: _Tree
    fitted: Quality
    held_out: Quality
    few: Quality | None = None

    def describe(self) -> str:
        """The lines of a report."""
        few = f"\n  few rows  {self.few}" if self.few is not None else ""
        return f"{self.kind:8} {len(self.tree.schedules)} schedules\n  fitted    {self.fitted}\n  held out  {self.held_out}{few}"


class Measured:
    """Times of products on a GPU, as `tools/gpu_check.sh` leaves them: what the model is corrected by. Near a size that was measured its
    times are the measured ones; far from all, each schedule is off by its mean. Between them, errors are weighed by how far sizes are."""

    def __init__(self, record: Mapping[str, Any], gpu: Gpu, kind: str) -> None:
        family = tuple(FAMILIES[gpu.architecture][kind])
        own = [each for each in record["points"] if each["kind"] == kind]
        self.points = [Point(each["m"], each["n"], each["k"], 1, gpu.sms, weights=True) for each in own]
        self.times = np.array([[each["times"].get(str(schedule), np.inf) for schedule in family] for each in own]) * 1e-6
        self.model = np.array([[seconds(each, point, gpu, kind) for each in family] for point in self.points])
        both = np.isfinite(self.times) & np.isfinite(self.model)
        self._known = both.astype(np.float64)
        self._errors = np.log(np.where(both, self.times, 1.0) / np.where(both, self.model, 1.0))
        self._places = np.array([_place(point) for point in self.points])
        self._library = np.array([each["times"].get(str(CUBLASLT), np.inf) for each in own]) * 1e-6
        self._family, self._gpu, self._product, self._kind = family, gpu, replace(gpu, bandwidth=bandwidth_of(gpu, record["gpu"])), kind

    def corrections(self, points: Sequence[Point], without: Sequence[tuple[int, int]] = ()) -> npt.NDArray[np.float64]:
        """[size, schedule]: what the model's times are multiplied by. without: (N, K) of matrices whose times are left out."""
        kept = np.array([(point.n, point.k) not in without for point in self.points])
        known, errors, places = self._known[kept], self._errors[kept], self._places[kept]
        mean = (known * errors).sum(axis=0) / np.maximum(known.sum(axis=0), 1.0)
        apart = ((np.array([_place(point) for point in points])[:, None, :] - places[None, :, :]) ** 2).sum(axis=2)
        near = np.exp(-apart / (2 * NEAR**2))
        factors = np.exp((near @ (known * errors) + MEAN_WEIGHT * mean) / (near @ known + MEAN_WEIGHT))
        for number in np.flatnonzero(~self.measured):  # as it is new: what the model says of the GPU that was measured, with a margin
            own, schedule = self._product, self._family[number]
            plain = replace(schedule, mapped=False)
            if schedule.mapped and plain in self._family and self.measured[self._family.index(plain)]:  # is off by as much
                factors[:, number] = UNSURE * factors[:, self._family.index(plain)]
                continue
            factors[:, number] = [
                UNSURE * _ratio(seconds(schedule, each, own, self._kind), seconds(schedule, each, self._gpu, self._kind)) for each in points
            ]
        return np.round(factors, DIGITS)

    @property
    def measured(self) -> npt.NDArray[np.bool_]:
        """[schedule]: whether there are times of it."""
        return self._known.sum(axis=0) > 0

    def library(self, points: Sequence[Point], best: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
        """[size]: seconds of the library, as many times those of the best schedule, `best`, as at the sizes near it that were measured;
        infinite where none was, and of batches. None where there was no library."""
        known = np.isfinite(self._library) & np.isfinite(self.times).any(axis=1)
        if not known.any():
            return None
        ratios = np.log(self._library[known] / self.times[known].min(axis=1))
        apart = ((np.array([_place(point) for point in points])[:, None, :] - self._places[known][None, :, :]) ** 2).sum(axis=2)
        near = np.exp(-apart / (2 * NEAR**2))
        seconds = best * np.exp(near @ ratios / near.sum(axis=1))
        told = (apart.min(axis=1) <= NEAR**2) & np.array([point.batch == 1 for point in points])
        return np.where(told, seconds, np.inf)

    def held_out(self) -> Quality:
        """Of the schedule that the corrected model takes, at each size without the times of its matrix (N, K), by the times."""
        shares: list[float] = []
        for number, point in enumerate(self.points):
            times = np.where(self.measured, self.model[number], np.inf) * self.corrections([point], [(point.n, point.k)])[0]
            shares.append(float(self.times[number].min() / self.times[number][times.argmin()]))
        return judge(shares)

    def judge(self, tree: BlockTree, family: Sequence[BlockSchedule]) -> Quality:
        """Of the tree's choices of disc's own schedules at the sizes that were measured, by the times; without those of schedules that were
        not."""
        tree = tree.without_library()
        chosen = [family.index(tree.blocks[tree.choose(point.features)]) for point in self.points]
        pairs = [(times, number) for times, number in zip(self.times, chosen, strict=True) if self.measured[number]]
        return judge([float(times.min() / times[number]) for times, number in pairs])

    def beside_library(self, tree: BlockTree, family: Sequence[BlockSchedule]) -> Quality | None:
        """Of the tree's choices where there is the library, by the times of all; None where none was measured."""
        if not np.isfinite(self._library).any():
            return None
        shares: list[float] = []
        for point, times, library in zip(self.points, self.times, self._library, strict=True):
            chosen = tree.schedules[tree.choose((*point.features, 1))]
            if isinstance(chosen, BlockSchedule) and not self.measured[family.index(chosen)]:
                continue
            taken = library if isinstance(chosen, LibrarySchedule) else times[family.index(chosen)]
            shares.append(float(min(times.min(), library) / taken))
        return judge(shares)


def read_times(folder: Path, architecture: int) -> Mapping[str, Any] | None:
    """What part `tune` of `tools/gpu_check.sh` measured on a GPU of this architecture, packed; None where none was measured."""
    file = folder / f"gemm-times-sm_{architecture}.json.gz"
    return json.loads(gzip.decompress(file.read_bytes())) if file.exists() else None


def write_times(folder: Path, product: str, architecture: int, points: Sequence[Mapping[str, Any]]) -> None:
    """Writes what `read_times` reads."""
    content = json.dumps({"gpu": product, "architecture": architecture, "points": points}, separators=(",", ":"))
    (folder / f"gemm-times-sm_{architecture}.json.gz").write_bytes(gzip.compress(content.encode(), mtime=0))


def _ratio(time: float, other: float) -> float:
    return 1.0 if np.isinf(other) else time / other


def _place(point: Point) -> tuple[float, float, float]:
    """Of a size among others: factors of 2."""
    return float(np.log2(point.m * point.batch)), float(np.log2(point.n)), float(np.log2(point.k))


def fit_to_model(gpu: Gpu, kinds: Sequence[str] = (), measured: Mapping[str, Any] | None = None) -> Mapping[str, FittedBlocks[BlockTree]]:
    """The trees of products for GPUs of this architecture. kinds: none = all; measured: times of a GPU, which correct the model."""
    points = [point for share in SHARES for point in device_points(round(gpu.sms * share))]
    found: dict[str, FittedBlocks[BlockTree]] = {}
    for kind in kinds or FAMILIES[gpu.architecture]:
        own = None if measured is None else Measured(measured, gpu, kind)
        family = tuple(FAMILIES[gpu.architecture][kind])
        table, library = _times(own, family, points, gpu, kind), None
        if own is not None:
            library = own.library(points, table.min(axis=1))
        # The model cannot tell what persistent programs and tensor maps gain: only times may say so, as of the library.
        common = [
            number
            for number, each in enumerate(family)
            if not each.streams and (not (each.persistent or each.mapped) or (own is not None and own.measured[number]))
        ]
        tiled = tuple(family[number] for number in common)
        most = (TOP, LEAVES) if measured is None else (CORRECTED_TOP, CORRECTED_LEAVES)
        tree, *quality = _fit(points, tiled, table[:, common].tolist(), BlockTree, *most, library=library)
        found[kind] = FittedBlocks(kind, *_with_few_rows(tree, quality, own, gpu, kind))
    return found


def _times(own: Measured | None, family: Sequence[BlockSchedule], points: Sequence[Point], gpu: Gpu, kind: str) -> npt.NDArray[np.float64]:
    """[size, schedule]: seconds, by the model and what corrects it."""
    times = np.array([[seconds(each, point, gpu, kind) for each in family] for point in points])
    if own is None:
        return times * np.array([UNSURE if each.streams or each.mapped else 1.0 for each in family])
    return times * own.corrections(points)


def _with_few_rows(
    tree: BlockTree, quality: Sequence[Quality], own: Measured | None, gpu: Gpu, kind: str
) -> tuple[BlockTree, Quality, Quality, Quality | None]:
    """A tree that asks for few rows first, where it has schedules for these beside those of `tree`, and goes on as `tree` for others.
    `tree` itself where none of these is worth it. The qualities follow."""
    family = tuple(FAMILIES[gpu.architecture][kind])
    points = [point for share in SHARES for point in few_row_points(round(gpu.sms * share), FEW_ROWS)]
    times = _times(own, family, points, gpu, kind)
    common = [family.index(each) for each in tree.blocks]
    candidates = [*common, *(number for number, each in enumerate(family) if each.streams)]
    every = _losses(times[:, candidates].tolist())
    columns = best_columns(every, len(common) + FEW_TOP, range(len(common)))
    blocks = tuple(family[candidates[number]] for number in columns)
    library = None if own is None or CUBLASLT not in tree.schedules else own.library(points, times.min(axis=1))
    schedules, table = blocks, times[:, [candidates[number] for number in columns]]
    if library is not None:
        schedules, table = (*schedules, CUBLASLT), np.column_stack([table, library])
    losses = _losses(table.tolist())
    few = BlockTree(schedules, grow(points, losses, FEW_LEAVES, len(blocks) if library is not None else None))
    if not any(blocks[place].streams for feature, place, _, _ in few.nodes if feature == LEAF and place < len(blocks)):
        return tree, quality[0], quality[1], None
    shares = [float(np.exp(-row[few.choose((*point.features, 1))])) for point, row in zip(points, losses, strict=True)]
    return tree.below(0, FEW_ROWS, few).prune({}), quality[0], quality[1], judge(shares)


def fit_attention(gpu: Gpu, kind: str, head: int) -> FittedBlocks[AttentionTree]:
    """The tree of attention for heads of so many elements."""
    points = [point for share in SHARES for point in attention_points(round(gpu.sms * share), head)]
    family = attention_family(gpu.architecture, kind, head)
    times = [[attention_seconds(each, point, gpu, kind) for each in family] for point in points]
    fitted = _fit(points, family, times, AttentionTree, ATTENTION_TOP, ATTENTION_LEAVES)
    return FittedBlocks(f"attention of heads of {head}, {kind}", *fitted)


def _fit(
    sizes: Sequence[Point],
    family: tuple[_Schedule, ...],
    times: Sequence[Sequence[float]],
    make: Callable[..., _Tree],
    top: int,
    leaves: int,
    library: npt.NDArray[np.float64] | None = None,
) -> tuple[_Tree, Quality, Quality]:
    """A tree of at most `top` schedules, and its quality at sizes that it has seen and at others. make: of schedules and nodes. times:
    [size, schedule]; library: [size] of the library, which the tree takes where it is there and is the fastest."""
    every = _losses(times)
    chosen = best_columns(every, top)
    schedules, table, number_of_library = tuple(family[number] for number in chosen), every[:, chosen], None
    if library is not None:
        number_of_library, schedules = len(schedules), (*schedules, CUBLASLT)
        table = _losses(np.column_stack([np.array(times)[:, chosen], library]).tolist())
    points = [(*point.features, 1) for point in sizes]
    tree = make(schedules, grow(sizes, table, leaves, number_of_library)).prune({})
    places = [schedules.index(each) for each in tree.schedules]
    seen = [float(np.exp(-row[places[tree.choose(point)]])) for point, row in zip(points, table, strict=True)]
    unseen: list[float] = []
    for fold in range(FOLDS):
        kept = [number for number in range(len(points)) if number % FOLDS != fold]
        own = make(schedules, grow([sizes[number] for number in kept], table[kept], leaves, number_of_library))
        held = [number for number in range(len(points)) if number % FOLDS == fold]
        unseen += [float(np.exp(-table[number, own.choose(points[number])])) for number in held]
    return tree, judge(seen), judge(unseen)


def _losses(times: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    """[size, schedule]: log of its time over the best one's of the whole family."""
    table = np.array(times)
    return np.minimum(np.log(table / table.min(axis=1, keepdims=True)), IMPOSSIBLE)
