"""`disc tune`: measures the schedules of GEMMs on this machine and fits the tree that chooses among them (paper 002, §5.2.2).

Every size is measured with weights out of the caches, as a model's are when their turn comes: the same input goes through as many
weights as fill 96 MB. The schedules of a size follow each other, each after calls that are not timed: a prefetching schedule needs a few
calls until the CPU's own prefetchers have settled.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from disc.ral.executable import Executable
from disc.speculation.schedules import FAMILY, LEAF, Schedule, Tree, every_schedule

COLD_BYTES = 96_000_000  # of weights: three times the largest cache of the machines this was made on
LINEAR = ((768, 768), (3072, 768), (768, 3072), (512, 512), (2048, 512), (512, 2048), (4096, 1024), (2048, 2048), (256, 64), (384, 1536),
          (200, 300), (96, 1200), (128, 3072), (1024, 4096))  # fmt: skip
# (N, K) of products of two activations, and how many of them at once
TRANSPOSED = ((64, 64, 12), (300, 64, 8), (64, 300, 8), (512, 512, 1), (2048, 512, 1))  # the same, B read along k
BATCHED = ((64, 64, 12), (128, 64, 12), (64, 300, 8), (32, 32, 128), (512, 512, 1), (1500, 64, 4))
ROWS = (*range(1, 10), 12, 13, 16, 18, 19, 24, 25, 30, 32, 37, 48, 60, 64, 66, 96, 100, 120, 128, 130, 160, 200, 240, 256, 264, 288, 320,
        384, 512, 1000, 2048)  # fmt: skip
COARSE_ROWS = (1, 8, 24, 64, 130, 512)
FOLDS = 5
LARGEST = 12e9  # multiply-adds of one call: sizes beyond teach nothing and take seconds


@dataclass(frozen=True)
class Point:
    """One size of a GEMM: A is [batch, m, k], B [batch, k, n]. weights: B is a weight, packed ahead of time (batch is 1 then);
    transposed: B lies as [batch, n, k] in memory."""

    m: int
    n: int
    k: int
    batch: int
    threads: int
    weights: bool
    transposed: bool = False

    @property
    def features(self) -> tuple[int, int, int, int, int]:
        """As the tree takes them."""
        return (self.m, self.n, self.k, self.batch, self.threads)


@dataclass(frozen=True)
class Record:
    """What was measured of a point: seconds per GEMM of each schedule; library: those of torch's own product (MKL, oneDNN)."""

    point: Point
    seconds: dict[Schedule, float]
    library: float | None = None

    def to_json(self) -> str:
        """One line."""
        times = [[*asdict(schedule).values(), round(seconds * 1e9)] for schedule, seconds in self.seconds.items()]
        return json.dumps({**asdict(self.point), "ns": times, "library_ns": round(self.library * 1e9) if self.library else None})


def read_record(line: str) -> Record:
    """The record of `Record.to_json`."""
    fields = json.loads(line)
    times = {Schedule(*row[:-1]): row[-1] * 1e-9 for row in fields.pop("ns")}
    library = fields.pop("library_ns")
    return Record(Point(**fields), times, library * 1e-9 if library else None)


# --- which sizes -----------------------------------------------------------------------------------------------------------


def coarse_points(threads: int) -> list[Point]:
    """The sizes at which all schedules are measured, to find the few that are worth more."""
    return _points(LINEAR[::3], BATCHED[::3], [threads], COARSE_ROWS)


def fine_points(threads: Sequence[int]) -> list[Point]:
    """The sizes that the tree is fitted to: all with the first number of threads, every eighth with the others."""
    one, *more = threads
    transposed = [replace(point, transposed=True) for point in _points((), TRANSPOSED, threads, COARSE_ROWS)]
    return _points(LINEAR, BATCHED, [one], ROWS) + _points(LINEAR[::2], BATCHED[::2], more, ROWS[::2]) + transposed


def _points(
    linear_sizes: Sequence[tuple[int, int]], batched_sizes: Sequence[tuple[int, int, int]], threads: Sequence[int], rows: Sequence[int]
) -> list[Point]:
    """Sizes that share a compiled program stand next to each other."""
    linear = [Point(m, n, k, 1, count, True) for n, k in linear_sizes for count in threads for m in rows]
    batched = [Point(m, n, k, batch, count, False) for n, k, batch in batched_sizes for count in threads for m in rows]
    return [point for point in (*linear, *batched) if point.m * point.n * point.k * point.batch <= LARGEST]


def effective(schedule: Schedule, point: Point) -> Schedule:
    """What `schedule` comes to at this size; two that come to the same need only one measurement."""
    rows = min(schedule.rows, -(-point.m // 6) * 6)
    return Schedule(
        rows, min(schedule.k, point.k), schedule.ahead if point.weights else 0, schedule.panels_first if point.m > schedule.rows else 0
    )


# --- measuring -------------------------------------------------------------------------------------------------------------


def _copies(point: Point) -> int:
    """How many weights follow each other. With many rows it matters little where a weight comes from."""
    cold = max(2, min(64, COLD_BYTES // (4 * point.n * point.k) + 1))
    return cold if point.m < 200 else max(2, cold // 8)


CompileWith = Callable[[nn.Module, tuple[torch.Tensor, ...], tuple[dict[int, object], ...], Tree], Executable]


class _Linears(nn.Module):
    def __init__(self, n: int, k: int, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(k, n, bias=False) for _ in range(count))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(x) for layer in self.layers)


class _Product(nn.Module):
    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x, y.mT if self.transposed else y)


class Bench:
    """Measures points; keeps the program of the last one, which the next one may share.

    compile_with: `disc.api.compile_with_tree`, which lies on a floor above. library: torch's own product is measured too.
    """

    def __init__(self, compile_with: CompileWith, schedules: Sequence[Schedule] = FAMILY, library: bool = False) -> None:
        self.compile_with, self.schedules, self.library = compile_with, schedules, library
        self._key: tuple[int, ...] | None = None
        self._program: tuple[nn.Module, Executable] | None = None

    def measure(self, point: Point) -> Record:
        """Times every schedule at this size. Raises CompilerBug or DiscError when the program cannot be made."""
        model, executable = self._compiled(point)
        executable.threads = point.threads
        inputs = self._inputs(point)
        out = executable(*inputs)
        count = len(out) if isinstance(out, tuple) else 1
        kept: dict[Schedule, int] = {}
        for number, schedule in enumerate(self.schedules):
            kept.setdefault(effective(schedule, point), number)
        seconds: dict[Schedule, float] = {}
        for schedule, number in kept.items():
            executable.force_schedule(number)
            seconds[schedule] = _time(lambda: executable(*inputs, out=out)) / count
        for schedule, number in reversed(kept.items()):  # a second time in the other order, against drifts of the machine
            executable.force_schedule(number)
            seconds[schedule] = min(seconds[schedule], _time(lambda: executable(*inputs, out=out)) / count)
        executable.force_schedule(None)
        return Record(point, seconds, self._library(model, inputs, point.threads) / count if self.library else None)

    def _compiled(self, point: Point) -> tuple[nn.Module, Executable]:
        key = (point.n, point.k, _copies(point)) if point.weights else (int(point.transposed),)
        if self._program is None or key != self._key:
            self._program = None  # its memory goes before the next one's comes
            self._key, self._program = key, self._compile(point)
        return self._program

    def _compile(self, point: Point) -> tuple[nn.Module, Executable]:
        torch.manual_seed(0)
        auto = torch.export.Dim.AUTO
        if point.weights:
            model: nn.Module = _Linears(point.n, point.k, _copies(point))
            dynamic: tuple[dict[int, object], ...] = ({0: auto},)
            example = (torch.zeros(7, point.k),)
        else:
            model, dynamic = _Product(point.transposed), ({0: auto, 1: auto, 2: auto}, {0: auto, 1: auto, 2: auto})
            example = (torch.zeros(3, 7, 11), torch.zeros(3, 13, 11) if point.transposed else torch.zeros(3, 11, 13))
        return model, self.compile_with(model.eval(), example, dynamic, every_schedule(self.schedules))

    def _inputs(self, point: Point) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(point.m)
        if point.weights:
            return (torch.randn(point.m, point.k, generator=generator),)
        left = torch.randn(point.batch, point.m, point.k, generator=generator)
        right = torch.randn(point.batch, point.k, point.n, generator=generator)
        return left, right.mT.contiguous() if point.transposed else right

    def _library(self, model: nn.Module, inputs: tuple[torch.Tensor, ...], threads: int) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with torch.inference_mode():
                return _time(lambda: model(*inputs))
        finally:
            torch.set_num_threads(before)


def _time(call: Callable[[], object]) -> float:
    """The least of the calls that fit 15 ms, one at least, after 10 ms of others: noise only adds."""
    start = time.perf_counter()
    call()
    while time.perf_counter() - start < 0.010:
        call()
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < 0.015:
        now = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - now)
    return best


def collect(wanted: Sequence[Point], store: Path, bench: Bench) -> Iterator[tuple[int, Record]]:
    """Measures what `store` (one record per line) does not hold yet and appends it; yields (points done, record) as it goes.

    Interrupted, it goes on where it stopped. Raises OSError when the file cannot be written.
    """
    known = resume(store)
    done = sum(point in known for point in wanted)
    for point in wanted:
        if point in known:
            continue
        record = bench.measure(point)
        with store.open("a") as file:
            file.write(record.to_json() + "\n")
        done += 1
        yield done, record


def resume(store: Path) -> set[Point]:
    """The sizes that `store` holds. Makes it ready for more: its folder is there, and the part of a line that was being written is gone."""
    store.parent.mkdir(parents=True, exist_ok=True)
    if not store.exists():
        return set()
    known = {record.point for record in read_records(store)}
    whole, newline, _ = store.read_text().rpartition("\n")
    store.write_text(whole + newline)
    return known


def read_records(store: Path) -> list[Record]:
    """All whole lines of a file of records: the last one may have been cut off."""
    return [read_record(line) for line in store.read_text().splitlines(keepends=True) if line.endswith("\n")]


# --- fitting ---------------------------------------------------------------------------------------------------------------


def best_schedules(records: Iterable[Record], count: int, schedules: Sequence[Schedule] = FAMILY) -> tuple[Schedule, ...]:
    """The `count` schedules of which the best one at each size is, on average, nearest to the best of all ("top-N", §5.2.2): greedily."""
    table = losses(list(records), schedules)
    chosen: list[int] = []
    current = np.full(len(table), np.inf)
    while len(chosen) < min(count, len(schedules)):
        gains = [float(np.minimum(current, table[:, number]).mean()) for number in range(len(schedules))]
        number = int(np.argmin(gains))
        if number in chosen:
            break
        chosen.append(number)
        current = np.minimum(current, table[:, number])
    return tuple(schedules[number] for number in chosen)


def losses(records: Sequence[Record], schedules: Sequence[Schedule]) -> npt.NDArray[np.float64]:
    """[size, schedule]: log of its time over the best one's; schedules that were not measured count as the worst of the size."""
    rows: list[list[float]] = []
    for record in records:
        best, worst = min(record.seconds.values()), max(record.seconds.values())
        rows.append([float(np.log(record.seconds.get(effective(schedule, record.point), worst) / best)) for schedule in schedules])
    return np.array(rows)


@dataclass(frozen=True)
class Quality:
    """How good a tree's choices are. accuracy: share of sizes where it takes the best; mean: of best time over time taken; near: share of
    sizes with at least 0.95 of the best speed; worst: the least of best time over time taken."""

    sizes: int
    accuracy: float
    mean: float
    near: float
    worst: float

    def __str__(self) -> str:
        return (f"{self.sizes} sizes: best schedule taken at {self.accuracy:.1%}, {self.mean:.2%} of the best speed on average, "
                f"{self.near:.1%} of sizes within 95 %, worst {self.worst:.1%}")  # fmt: skip


def quality(tree: Tree, records: Sequence[Record]) -> Quality:
    """Judges the tree's choices by measured times. "Best" is what no schedule beats by more than 1 %, about what a repetition differs."""
    return _judge(_speeds(tree, records))


def _speeds(tree: Tree, records: Sequence[Record]) -> list[float]:
    """Of the best schedule's time over that of the one taken, for each record."""
    table = losses(records, tree.schedules)
    return [float(np.exp(-table[row, tree.choose(record.point.features)])) for row, record in enumerate(records)]


def _judge(speeds: Sequence[float]) -> Quality:
    values = np.array(speeds)
    return Quality(len(values), float((values >= 0.99).mean()), float(values.mean()), float((values >= 0.95).mean()), float(values.min()))


@dataclass(frozen=True)
class Fitted:
    """A tree, its quality on the sizes it was fitted to, and that of trees fitted alike on sizes that were held out from them."""

    tree: Tree
    fitted: Quality
    held_out: Quality


def fit(records: Sequence[Record], schedules: Sequence[Schedule], *, leaves: int = 48, seed: int = 0) -> Fitted:
    """Fits a tree to all sizes; five others, each to four fifths of the sizes, are judged on the fifth that they have not seen.

    The tree predicts the loss of every schedule and takes the least: a wrong choice counts by what it costs.
    """
    order = _shuffled(records, seed)
    unseen: list[float] = []
    for fold, tree in enumerate(_fold_trees(order, schedules, leaves)):
        unseen += _speeds(tree, order[fold::FOLDS])
    tree = _fit_tree(order, schedules, leaves)
    return Fitted(tree, quality(tree, order), _judge(unseen))


def least_certain(records: Sequence[Record], schedules: Sequence[Schedule], *, leaves: int = 48, seed: int = 0) -> list[Point]:
    """All sizes, those first at which the trees of `fit` differ most in the time of what they choose: worth measuring again."""
    order = _shuffled(records, seed)
    speeds = np.array([_speeds(tree, order) for tree in _fold_trees(order, schedules, leaves)])
    spread = speeds.max(axis=0) - speeds.min(axis=0)
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
    from sklearn.tree import DecisionTreeRegressor

    features = np.array([record.point.features for record in records])
    model = DecisionTreeRegressor(max_leaf_nodes=leaves, min_samples_leaf=2, random_state=0).fit(features, losses(records, schedules))
    inner = model.tree_
    nodes: list[tuple[int, int, int, int]] = []
    for number in range(inner.node_count):
        left, right = int(inner.children_left[number]), int(inner.children_right[number])
        if left < 0:
            nodes.append((LEAF, int(np.argmin(inner.value[number].reshape(-1))), 0, 0))
        else:
            nodes.append((int(inner.feature[number]), int(np.floor(inner.threshold[number])), left, right))
    return Tree(tuple(schedules), tuple(nodes)).prune({})
