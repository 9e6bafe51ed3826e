"""Measures the schedules of products on a GPU of this machine, the GPU's own library among them where there is one.

Every kind of product is compiled with all schedules of its family; the runtime is told which one to take, and events around the kernel say
how long it took. One record per line of a file, so that a run that was ended goes on where it stopped.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from disc.errors import TargetError
from disc.ral.executable import Executable, load
from disc.speculation.block_families import FAMILIES
from disc.speculation.block_fit import Measured, fit_to_model
from disc.speculation.block_model import seconds
from disc.speculation.block_schedules import CUBLASLT, BlockSchedule, LibrarySchedule, ProductSchedule
from disc.speculation.block_trees import ALONG_K, BASE, FAST, HALF, BlockTree, every_leaf
from disc.speculation.gpus import Device
from disc.speculation.quality import Quality
from disc.speculation.records import make_ready, whole_lines
from disc.speculation.sizes import Point
from disc.targets.thresholds import Gpu

WARM, MEASURED = 1, 4  # launches
LEAST = 0.1  # microseconds: events tell no less
Size = tuple[int, int, int]  # M, N, K
CompileFor = Callable[[nn.Module, tuple[torch.Tensor, ...], tuple[object, ...], Gpu, Mapping[str, BlockTree], bool], Executable]
"""`disc.api.compile_with_blocks`, which lies on a floor above."""


def measure_products(
    compile_for: CompileFor, device: Device, store: Path, sizes: Sequence[Size], most: int | None = None
) -> Iterator[Mapping[str, Any]]:
    """Measures the sizes that the store does not hold yet, for all kinds of products, and yields each record when it is kept: kind, m, n,
    k, and times, microseconds of each schedule that runs at that size. most: schedules of a family, for tests. Raises OutputError."""
    make_ready(store)
    known = _known(store)
    for kind, family in FAMILIES[device.gpu.architecture].items():
        left = [size for size in sizes if (kind, *size) not in known]
        if not left:
            continue
        bench = _Bench(compile_for, device, kind, (*family[:most], CUBLASLT))
        for size in left:
            record = {"kind": kind, **dict(zip("mnk", size, strict=True)), "times": bench.measure(size)}
            with store.open("a") as file:
                file.write(json.dumps(record) + "\n")
            yield record


def store_of(folder: Path, device: Device) -> Path:
    """Where times of a GPU are kept: those of one with other SMs, or another memory, say nothing of it."""
    product = re.sub(r"[^a-z0-9]+", "-", device.product.lower())
    return folder / f"products-sm_{device.gpu.architecture}-{product}.jsonl"


def read_products(store: Path) -> list[dict[str, Any]]:
    """The records of a store."""
    return [json.loads(line) for line in whole_lines(store)] if store.exists() else []


def missing_products(store: Path, architecture: int, sizes: Sequence[Size]) -> int:
    """How many sizes are not measured yet."""
    return len({(kind, *size) for kind in FAMILIES[architecture] for size in sizes} - _known(store))


def _known(store: Path) -> set[tuple[str, int, int, int]]:
    """The kinds and sizes that it holds."""
    return {(each["kind"], each["m"], each["n"], each["k"]) for each in read_products(store)}


@dataclass(frozen=True)
class TunedProducts:
    """The trees that were fitted, by the kind of product, and how good the choices of each are by the times, without the library and, where
    one was measured, beside it."""

    trees: Mapping[str, BlockTree]
    quality: Mapping[str, tuple[Quality, Quality | None]]

    def describe(self) -> str:
        """The lines of a report."""
        lines: list[str] = []
        for kind, (own, beside) in self.quality.items():
            lines += [f"{kind:14} {own}", *([f"{'':14} with {CUBLASLT.describe()} {beside}"] if beside is not None else [])]
        return "\n".join(lines)


def fit_products(device: Device, records: Sequence[Mapping[str, Any]]) -> TunedProducts:
    """Trees fitted to these records, which correct the model."""
    measured = {"gpu": device.product, "architecture": device.gpu.architecture, "points": records}
    trees = {kind: each.tree for kind, each in fit_to_model(device.gpu, measured=measured).items()}
    found: dict[str, tuple[Quality, Quality | None]] = {}
    for kind, tree in trees.items():
        own, family = Measured(measured, device.gpu, kind), tuple(FAMILIES[device.gpu.architecture][kind])
        found[kind] = own.judge(tree, family), own.beside_library(tree, family)
    return TunedProducts(trees, found)


class _Product(nn.Module):
    """along: the right factor lies as the weight of a linear layer."""

    def __init__(self, along: bool) -> None:
        super().__init__()
        self.along = along

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ (y.mT if self.along else y)


class _Bench:
    """One kind of product, compiled by all schedules."""

    def __init__(self, compile_for: CompileFor, device: Device, kind: str, schedules: tuple[ProductSchedule, ...]) -> None:
        self.device, self.kind, self.schedules = device, kind, schedules
        self.along = kind in ALONG_K.values()
        self.element = torch.bfloat16 if kind == HALF else torch.float32
        dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
        example = tuple(torch.zeros(shape, dtype=self.element) for shape in self._shapes((5, 24, 16)))
        trees = {kind: every_leaf(schedules)}
        made = compile_for(_Product(self.along).eval(), example, (dynamic, dynamic), device.gpu, trees, BASE[kind] == FAST)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "product.disc"
            made.save(path)
            self.program = load(path, isa=f"cuda@{device.number}")

    def _shapes(self, size: Size) -> tuple[tuple[int, int], tuple[int, int]]:
        m, n, k = size
        return (m, k), ((n, k) if self.along else (k, n))

    def measure(self, size: Size) -> dict[str, float]:
        """Microseconds of each schedule that runs at this size."""
        generator = torch.Generator().manual_seed(size[0])
        inputs = tuple(torch.randn(shape, generator=generator).to(self.element) for shape in self._shapes(size))
        if torch.cuda.is_available():  # else they are copied there in every call, beside what is timed
            inputs = tuple(each.to(f"cuda:{self.device.number}") for each in inputs)
        found: dict[str, float] = {}
        for number, schedule in enumerate(self.schedules):
            time = self._time(number, schedule, size, inputs)
            if time is not None:
                found[str(schedule)] = time
        self.program.force_schedule(None)
        return found

    def _time(self, number: int, schedule: ProductSchedule, size: Size, inputs: tuple[torch.Tensor, ...]) -> float | None:
        """The least of some launches; None where the schedule does not run at the size, or there is no library."""
        point = Point(*size, 1, self.device.gpu.sms, weights=True)
        if isinstance(schedule, BlockSchedule) and math.isinf(seconds(schedule, point, self.device.gpu, self.kind)):
            return None
        self.program.force_schedule(number)
        try:
            times = [sum(each[2] for each in self.program.profile(*inputs)) for _ in range(WARM + MEASURED)]
        except TargetError:
            if isinstance(schedule, LibrarySchedule):
                return None
            raise
        return max(min(times[WARM:]) * 1e6, LEAST)
