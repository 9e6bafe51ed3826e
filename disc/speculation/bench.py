"""Measures schedules on this machine.

Every size is measured with weights out of the caches, as a model's are when they are used: as many layers as fill 96 MB follow each other.
Each takes an argument of its own, though the same tensor is passed for all: layers of one argument would be merged into one wide product
(`merge-dots`), and measured would be that. The schedules of a size follow each other, each after calls that are not timed: a prefetching
schedule needs a few calls until the CPU's own prefetchers have settled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from disc.ral.executable import Executable
from disc.speculation.records import Record
from disc.speculation.schedules import Schedule
from disc.speculation.sizes import Point, effective
from disc.speculation.tree import Tree, every_schedule
from disc.speculation.tune import Measure, Round

COLD_BYTES = 96_000_000  # of weights: three times the largest cache of the machines this was made on


def _copies(point: Point) -> int:
    """How many weights follow each other. With many rows it matters little where a weight comes from."""
    cold = max(2, min(64, COLD_BYTES // (4 * point.n * point.k) + 1))
    return cold if point.m < 200 else max(2, cold // 8)


CompileWith = Callable[[nn.Module, tuple[torch.Tensor, ...], tuple[object, ...], Tree], Executable]


class _Linears(nn.Module):
    def __init__(self, n: int, k: int, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(k, n, bias=False) for _ in range(count))

    def forward(self, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(x) for layer, x in zip(self.layers, xs, strict=True))


class _Product(nn.Module):
    def __init__(self, transposed: bool, strided: bool) -> None:
        super().__init__()
        self.transposed, self.strided = transposed, strided

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x.mT if self.strided else x, y.mT if self.transposed else y)


def on_this_machine(compile_with: CompileWith, library: bool = False) -> Measure:
    """Measures one size after the other, here. The arguments are those of `Bench`."""

    def measure(round_: Round, points: Sequence[Point]) -> Iterator[Record]:
        bench = Bench(compile_with, round_.schedules, library)
        for point in points:
            yield bench.measure(point)

    return measure


class Bench:
    """Measures points; keeps the program of the last one, which the next one may share.

    compile_with: `disc.api.compile_with_tree`, which lies on a floor above. library: torch's own product is measured too.
    """

    def __init__(self, compile_with: CompileWith, schedules: Sequence[Schedule], library: bool = False) -> None:
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
            seconds[schedule] = time_call(lambda: executable(*inputs, out=out)) / count
        for schedule, number in reversed(kept.items()):  # a second time in the other order, against drifts of the machine
            executable.force_schedule(number)
            seconds[schedule] = min(seconds[schedule], time_call(lambda: executable(*inputs, out=out)) / count)
        executable.force_schedule(None)
        return Record(point, seconds, self._library(model, inputs, point.threads) / count if self.library else None)

    def _compiled(self, point: Point) -> tuple[nn.Module, Executable]:
        key = (point.n, point.k, _copies(point)) if point.weights else (int(point.transposed), int(point.strided))
        if self._program is None or key != self._key:
            self._program = None  # its memory goes before the next one's comes
            self._key, self._program = key, self._compile(point)
        return self._program

    def _compile(self, point: Point) -> tuple[nn.Module, Executable]:
        torch.manual_seed(0)
        auto = torch.export.Dim.AUTO
        if point.weights:
            model: nn.Module = _Linears(point.n, point.k, _copies(point))
            dynamic: tuple[object, ...] = (({0: auto},) * _copies(point),)
            example = (torch.zeros(7, point.k),) * _copies(point)
        else:
            model, dynamic = _Product(point.transposed, point.strided), ({0: auto, 1: auto, 2: auto}, {0: auto, 1: auto, 2: auto})
            left = torch.zeros(3, 11, 7) if point.strided else torch.zeros(3, 7, 11)
            example = (left, torch.zeros(3, 13, 11) if point.transposed else torch.zeros(3, 11, 13))
        return model, self.compile_with(model.eval(), example, dynamic, every_schedule(self.schedules))

    def _inputs(self, point: Point) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(point.m)
        if point.weights:
            return (torch.randn(point.m, point.k, generator=generator),) * _copies(point)
        left = torch.randn(point.batch, point.m, point.k, generator=generator)
        right = torch.randn(point.batch, point.k, point.n, generator=generator)
        return left.mT.contiguous() if point.strided else left, right.mT.contiguous() if point.transposed else right

    def _library(self, model: nn.Module, inputs: tuple[torch.Tensor, ...], threads: int) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with torch.inference_mode():
                return time_call(lambda: model(*inputs))
        finally:
            torch.set_num_threads(before)


def time_call(call: Callable[[], object]) -> float:
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
