"""Kernels of which the host code launches another number of programs, or several one after the other, on GPUs of the stand-in driver:
`python gpu_schedules.py LIBRARY`. Prints "passed"."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from gpu_arrays import counts, start
from gpu_models import check_graphs, eager, same, settle, there
from stand_in_kernels import Executor, Kernel, texts
from torch import nn

import disc
from disc.ral.executable import load
from disc.speculation.block_families import ANY_PRODUCT
from disc.speculation.block_schedules import read_schedule
from disc.speculation.block_trees import BASE, BlockTree, write_trees
from disc.speculation.tree import LEAF

DYNAMIC = torch.export.Dim.DYNAMIC
SMS = 132  # of the stand-in
FEW, PERSISTENT = read_schedule("4x32x64+w4+s3+g8/2"), read_schedule("16x16x32+w4+s3+g8+p")
MAPPED, ALL = read_schedule("32x64x32+w4+s3+g8+t"), read_schedule("16x16x32+w4+s3+g8+t+p")
TREE = BlockTree(
    (ANY_PRODUCT, FEW, PERSISTENT, MAPPED, ALL),
    (
        (0, 5, 1, 2), (LEAF, 1, 0, 0), (0, 40, 3, 4), (LEAF, 2, 0, 0), (0, 60, 5, 6), (LEAF, 3, 0, 0), (0, 100, 7, 8), (LEAF, 4, 0, 0),
        (LEAF, 0, 0, 0),
    ),
)  # fmt: skip


class Both(nn.Module):
    """A layer, and rows of it that several programs share: two rounds of reductions, whose second is a result, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 1024)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.relu(self.layer(x)), torch.softmax(y, -1), torch.logsumexp(y, -1)


class Watched(Executor):
    """Notes the grids of launches of kernels whose text has some words."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.grids: list[tuple[str, int]] = []
        self.scratch: list[int] = []  # addresses

    def _use_scratch(self, address: int, size: int) -> None:
        super()._use_scratch(address, size)
        self.scratch += [address] * (size > 0)

    def _launch(self, kernel: Kernel, grid: tuple[int, ...], values: Sequence[int]) -> None:
        self.grids.append((kernel.text, grid[0]))
        super()._launch(kernel, grid, values)

    def taken(self) -> dict[str, list[int]]:
        """Programs of launches since it was asked last, by what they are: persistent, of few rows, by tensor maps, of rows
        that programs share."""
        found, self.grids = self.grids, []
        words = {
            "persistent": ("tl.num_programs(0)",), "few": ("num_stages=",), "maps": ("make_tensor_descriptor",),
            "shared": ("scratch + ", "for begin"),
        }  # fmt: skip
        return {kind: [programs for text, programs in found if all(each in text for each in own)] for kind, own in words.items()}


def given(rows: int, count: int, length: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 32, generator=generator), 3 * torch.randn(count, length, generator=generator)


def check(path: Path, executor: Watched) -> None:
    before = counts()
    torch.manual_seed(0)
    module = Both().eval()
    with texts():
        disc.compile(
            module, given(6, 3, 40), ({0: DYNAMIC}, {0: DYNAMIC, 1: DYNAMIC}), ["x86-64-v3", "sm_90"], disc.Options(cache=False)
        ).save(path)
    exe: Any = load(path)
    # 40 rows have 192 blocks of 16 x 16. A row of 32,772 has 16 programs, in each of three launches; a short one lies in registers.
    cases = (
        (40, 8, {"persistent": [SMS], "few": [], "maps": [], "shared": []}),
        (5, 40, {"persistent": [], "few": [128], "maps": [], "shared": []}),
        (50, 8, {"persistent": [], "few": [], "maps": [32], "shared": []}),
        (70, 8, {"persistent": [SMS], "few": [], "maps": [SMS], "shared": []}),
        (1, 32772, {"persistent": [], "few": [64], "maps": [], "shared": [32, 32, 32]}),
    )
    for rows, length, expected in cases:
        inputs = given(rows, 2, length)
        executor.taken()
        same([each.numpy() for each in exe.flat(*there(inputs))], eager(module, inputs))
        taken = executor.taken()
        assert taken == expected, (rows, length, taken)
    check_graphs(exe, module, [given(5, 2, 32772), given(50, 2, 8), given(70, 2, 8), given(1, 1, 32772)], False)
    del exe
    check_forced(path, module)
    check_scratch(path, executor)
    settle(before)
    assert not executor.errors


def check_forced(path: Path, module: nn.Module) -> None:
    """As for measuring: who forces a persistent schedule gets as many programs."""
    inputs = given(3, 2, 40)
    exe: Any = load(path, isa="cuda")
    exe.force_schedule(TREE.schedules.index(PERSISTENT))
    same([np.asarray(each) for each in exe.flat(*(each.numpy() for each in inputs))], eager(module, inputs))


def check_scratch(path: Path, executor: Watched) -> None:
    """Tensor maps of launches of a call lie in one block, which grows: 2 programs, 32, 2 of the same memory."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64)).eval()
    x = torch.randn(50, 32)
    with texts():
        disc.compile(module, (x,), ({0: DYNAMIC},), ["x86-64-v3", "sm_90"], disc.Options(cache=False)).save(path)
    exe: Any = load(path)
    for _ in range(2):
        executor.taken()
        executor.scratch.clear()
        same([each.numpy() for each in exe.flat(*there((x,)))], eager(module, (x,)))
        assert executor.taken()["maps"] == [2, 32, 2]
        first, grown, last = executor.scratch
        assert first != grown == last, executor.scratch


def main(driver: str) -> None:
    stand_in = start(driver)
    executor = Watched(stand_in)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DISC_CACHE_DIR"] = folder
        write_trees(Path(folder), 90, dict.fromkeys(BASE, TREE), "NVIDIA H200")
        stand_in.fake_set_seed(1, 30)
        check(Path(folder) / "both.disc", executor)
    print("passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
