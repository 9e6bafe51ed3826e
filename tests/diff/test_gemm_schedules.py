"""Every schedule of a GEMM gives the right result, whatever the size; the tree in the runtime chooses as the one in Python does."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import disc
from disc.api import compile_imported
from disc.frontend.models import import_model
from disc.ir.dialect import make_context
from disc.ral.executable import Executable
from disc.speculation.policy import SHARED
from disc.speculation.schedules import FAMILY, Schedule
from disc.speculation.session import open_session
from disc.speculation.tree import LEAF, Tree, every_schedule

ROWS = (0, 1, 2, 5, 6, 7, 8, 13, 29, 30, 31, 59, 61, 119, 121, 241, 245)
# Small blocks, so that small matrices already take several; the prefetch reads past the end of a weight.
SHORT = tuple(Schedule(rows, k, ahead, order) for rows in (6, 12) for k in (16, 64) for ahead in (0, 1) for order in (0, 1))
# k split over tasks, in more parts than there are whole blocks of it too, with tasks of several tiles, several pieces of k, both orders.
SPLIT = tuple(Schedule(rows, k, 1, order, parts) for rows in (6, 12, 240) for k in (16, 4096) for order in (0, 1) for parts in (2, 3, 7))
AUTO = torch.export.Dim.AUTO


class Layers(nn.Module):
    """Epilogues, K beyond a part and odd, N below, at and above a panel; a product of two activations."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.third = nn.Linear(300, 130), nn.Linear(131, 64), nn.Linear(131, 7)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = F.gelu(self.first(x))
        tall = torch.cat([wide, x[:, :1]], 1)
        return wide, self.second(tall) + tall[:, :64], torch.tanh(self.third(tall)).T, wide @ wide.T


def compiled(tree: Tree, dtype: str = "f32", target: str = "native") -> tuple[nn.Module, Executable]:
    model = Layers().eval()
    imported = import_model(model, (torch.randn(3, 300),), ({0: AUTO},), make_context())
    return model, compile_imported(imported, open_session(target, disc.Options(threads=2, dtype=dtype), tree))


@pytest.mark.parametrize("target", ["x86-64-v3", "native"])
@pytest.mark.parametrize("schedules", [SHORT, FAMILY[::3], SPLIT], ids=["short", "family", "split"])
def test_every_schedule(schedules: tuple[Schedule, ...], target: str) -> None:
    model, executable = compiled(every_schedule(schedules), target=target)
    for rows in ROWS:
        x = torch.randn(rows, 300)
        expected = model(x)
        for number in range(len(schedules)):
            executable.force_schedule(number)
            for ours, theirs in zip(executable(x), expected, strict=True):  # pyright: ignore[reportArgumentType]
                torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("schedules", [SHORT, SPLIT[::3]], ids=["short", "split"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_schedule_in_reduced_precision(dtype: str, schedules: tuple[Schedule, ...]) -> None:
    """The schedules differ only in the order of sums, so they must agree much better than with f32."""
    model, executable = compiled(every_schedule(schedules), dtype)
    for rows in ROWS[::3]:
        x = torch.randn(rows, 300)
        expected = model(x)
        for number in range(len(schedules)):
            executable.force_schedule(number)
            for ours, theirs in zip(executable(x), expected, strict=True):  # pyright: ignore[reportArgumentType]
                torch.testing.assert_close(ours, theirs, atol=0.15, rtol=0.02)


class Gradients(nn.Module):
    """Products whose left factor has its rows side by side in memory: as it lies, converted, of a batch."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        narrow = x.to(y.dtype)
        return narrow.t() @ y, (x * 2).to(y.dtype).t() @ y + 1, torch.stack([narrow, narrow + 1]).mT @ y


@pytest.mark.parametrize("target", ["x86-64-v3", "native"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("schedules", [(*SHORT[::3], *FAMILY[::13]), (Schedule(6, 256, 0, 0),)], ids=["any rows", "rows of a tile"])
def test_sums_over_rows_by_every_schedule(dtype: torch.dtype, target: str, schedules: tuple[Schedule, ...]) -> None:
    """Blocks of rows of A packed in columns: k of one, odd, of several parts (512 of 256 pairs), rows and columns around vectors, tiles,
    blocks, tasks and panels. The products are the same whatever the schedule, but for the order of sums."""
    model, example = Gradients(), (torch.randn(5, 3), torch.randn(5, 4).to(dtype))
    imported = import_model(model, example, ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}), make_context())
    executable = compile_imported(imported, open_session(target, disc.Options(threads=2), every_schedule(schedules)))
    assert "columns per task" in str(executable.explain())
    for k, m, n in ((0, 3, 5), (1, 1, 1), (2, 7, 16), (3, 17, 65), (97, 241, 33), (513, 31, 130), (1300, 16, 64), (41, 0, 3)):
        x, y = torch.randn(k, m), torch.randn(k, n).to(dtype)
        expected = [each.double() for each in Gradients()(x.to(dtype).double(), y.double())]
        for number in range(len(schedules)):
            executable.force_schedule(number)
            for ours, theirs in zip(executable(x, y), expected, strict=True):  # pyright: ignore[reportArgumentType]
                torch.testing.assert_close(ours.double(), theirs, atol=0.02 * max(k, 1) ** 0.5, rtol=0.02)


class WeightGradients(nn.Module):
    """Gradients of weights, of a linear layer and with an epilogue, whose tasks are groups of panels."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.t() @ y, 1 - torch.relu(x[:, 1:].t() @ y)


@pytest.mark.parametrize("target", ["x86-64-v3", "native"])
@pytest.mark.parametrize(("m", "n"), [(64, 65), (65, 128), (241, 256), (100, 257), (128, 300), (70, 513)])
def test_groups_of_panels_by_every_schedule(m: int, n: int, target: str) -> None:
    """Panels, groups of them and rows around their ends; k of none, one, and around pieces of 256."""
    schedules = (*SHORT[::3], *FAMILY[::17], Schedule(240, 4096, 0, 1), Schedule(60, 4096, 0, 1), Schedule(6, 256, 0, 0))
    imported = import_model(WeightGradients(), (torch.randn(5, m), torch.randn(5, n)), ({0: AUTO}, {0: AUTO}), make_context())
    executable = compile_imported(imported, open_session(target, disc.Options(threads=2), every_schedule(schedules)))
    assert str(executable.explain()).count("A packed in columns per task; B read in place") == 1 + (m > 64)
    for k in (0, 1, 2, 255, 256, 257, 521):
        x, y = torch.randn(k, m), torch.randn(k, n)
        expected = WeightGradients()(x.double(), y.double())
        for number in range(len(schedules)):
            executable.force_schedule(number)
            for ours, theirs in zip(executable(x, y), expected, strict=True):  # pyright: ignore[reportArgumentType]
                torch.testing.assert_close(ours.double(), theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_the_runtime_walks_the_tree_as_python_does(seed: int) -> None:
    """Counts which schedule each launch takes, over sizes on both sides of every threshold."""
    generator = random.Random(seed)
    cuts = sorted(generator.sample(range(1, 40), 5))
    nodes: list[tuple[int, int, int, int]] = []

    def grow(low: int, high: int) -> int:
        place = len(nodes)
        if low == high:
            nodes.append((LEAF, low, 0, 0))
            return place
        middle = (low + high) // 2
        nodes.append((0, 0, 0, 0))
        nodes[place] = (0, cuts[middle], grow(low, middle), grow(middle + 1, high))
        return place

    grow(0, 5)
    tree = Tree(FAMILY[:6], tuple(nodes))
    model = nn.Linear(20, 70).eval()
    imported = import_model(model, (torch.randn(3, 20),), ({0: AUTO},), make_context())
    executable = compile_imported(imported, open_session(options=disc.Options(threads=1), tree=tree))
    versions = [version.guard for version in executable.explain().kernels[0].versions]
    for rows in (1, *cuts, *(cut + 1 for cut in cuts), 100):
        x = torch.randn(rows, 20)
        before = [version.runs for version in executable.explain().kernels[0].versions]
        torch.testing.assert_close(executable(x), model(x), atol=1e-5, rtol=1e-5)
        after = [version.runs for version in executable.explain().kernels[0].versions]
        taken = [name for name, old, new in zip(versions, before, after, strict=True) if new == old + 1]
        assert taken == [tree.schedules[tree.choose((rows, 70, 20, 1, 1))].describe()]


def test_few_columns_are_shared_by_threads() -> None:
    """One block of columns: with more threads than that its rows become tasks of a tile each, as long as there are few."""
    torch.manual_seed(1)
    model = nn.Linear(530, 50).eval()
    executables = [disc.compile(model, (torch.randn(3, 530),), ({0: AUTO},), options=disc.Options(threads=threads)) for threads in (1, 2)]
    taken: list[set[str]] = []
    for executable in executables:
        for rows in (0, 1, 5, 6, 7, 13, 30, 95, 96, 97, 200):
            x = torch.randn(rows, 530)
            torch.testing.assert_close(executable(x), model(x), atol=2e-5, rtol=2e-5)
        taken.append({version.guard for version in executable.explain().kernels[0].versions if version.runs})
    assert SHARED.describe() in taken[1] - taken[0] and len(taken[1]) > 1
