"""Products by the stand-in for cuBLASLt: `python gpu_products.py DRIVER [PRODUCTS]`. Prints "passed".

Trees that choose it lie in the cache folder, as `disc tune --device cuda:0` leaves them. Where it is there, products that it has are its own;
elsewhere, and for products and sizes that it does not have, disc's kernels run, which Triton's interpreter executes.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from ctypes import c_int64
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from gpu_arrays import counts, start
from gpu_models import check_graphs, eager, same, settle, there
from stand_in_kernels import Executor, texts
from torch import nn

import disc
from disc.api import compile_with_blocks
from disc.errors import DeviceError, TargetError
from disc.ral.executable import load
from disc.speculation.block_bench import measure_products, missing_products, read_products, store_of
from disc.speculation.block_families import ANY_PRODUCT, FAMILIES
from disc.speculation.block_schedules import CUBLASLT
from disc.speculation.block_trees import BASE, BlockTree, write_trees
from disc.speculation.gpus import find_device
from disc.speculation.schedules import LIBRARY
from disc.speculation.tree import LEAF

DYNAMIC = torch.export.Dim.DYNAMIC
# The library, where there is one, for 3 rows and more.
TREE = BlockTree((ANY_PRODUCT, CUBLASLT), ((0, 2, 3, 1), (LIBRARY, 0, 3, 2), (LEAF, 1, 0, 0), (LEAF, 0, 0, 0)))


class Several(nn.Module):
    """Products that the library has, with a bias, of two inputs, of batches, turned; and two that it has not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(16, 8), nn.Linear(8, 12)
        self.matrix = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.layer(x)
        return found, found @ y, y.mT @ found.mT, nn.functional.gelu(self.last(found)), (y.mT @ self.matrix).double()


def given(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(2, rows, 16, generator=generator), torch.randn(2, 8, columns, generator=generator)


def compiled(path: Path, options: disc.Options) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    module = Several().eval()
    with texts():
        disc.compile(module, given(5, 4), ({1: DYNAMIC}, {2: DYNAMIC}), ["x86-64-v3", "sm_90"], options).save(path)
    return module, load(path)


def products_made() -> int:
    return int(counts().calls_made)


def check(folder: Path, executor: Executor, library: ctypes.CDLL | None) -> None:
    before = counts()
    module, exe = compiled(folder / "several.disc", disc.Options(cache=False))
    for rows, columns, expected in ((4, 4, 3), (4, 8, 3), (3, 8, 2), (5, 4, 2), (1, 8, 0), (4, 3, 1), (0, 4, 0)):
        # 3 and 5 rows, or 3 columns, are no multiples of 16 bytes.
        inputs, made = given(rows, columns), products_made()
        same([each.numpy() for each in exe.flat(*there(inputs))], eager(module, inputs))
        assert products_made() - made == (expected if library is not None else 0), (rows, columns, products_made() - made)
    check_graphs(exe, module, [given(5, 4), given(4, 8)], False)
    said = str(exe.explain(*there(given(5, 4))))
    assert "cuBLASLt, by a model and times of an NVIDIA H200" in said, said
    if library is not None:
        library.fake_fail_products(c_int64(0), 13)
        for size in (40, 5):
            try:
                exe.flat(*there(given(size, 4)))
            except DeviceError as error:
                assert size == 40 and "by cuBLASLt failed: CUBLAS_STATUS_OTHER" in str(error), error
                continue
            assert size == 5
        library.fake_fail_products(c_int64(-1), 0)
    check_forced(folder / "several.disc", module, library is not None)
    del exe
    settle(before)
    assert not executor.errors


def check_forced(path: Path, module: nn.Module, there_is_one: bool) -> None:
    """As for measuring: who forces the library where there is none is told so."""
    inputs = given(5, 4)
    exe: Any = load(path, isa="cuda")
    exe.force_schedule(1)
    try:
        same([np.asarray(each) for each in exe.flat(*(each.numpy() for each in inputs))], eager(module, inputs))
        assert there_is_one
    except TargetError as error:
        assert not there_is_one and "by cuBLASLt was asked for, and there is no such library" in str(error), error
    exe.force_schedule(None)
    same([np.asarray(each) for each in exe.flat(*(each.numpy() for each in inputs))], eager(module, inputs))


def check_tuning(folder: Path, there_is_one: bool) -> None:
    """`disc tune --device cuda:1`, of one size and two schedules of each family: times, trees of them, and what was measured is kept."""
    device = find_device("cuda:1")
    store = store_of(folder / "tune", device)
    assert store.name == "products-sm_90-stand-in-1.jsonl"
    assert (device.number, device.product, device.gpu.sms) == (1, "Stand-in 1", 132)
    sizes = [(8, 16, 16)]
    with texts():
        first = list(measure_products(compile_with_blocks, device, store, sizes, most=2))
    assert [each["kind"] for each in first] == list(FAMILIES[90]) and not missing_products(store, 90, sizes)
    for each in first:
        assert all(time > 0 for time in each["times"].values())
        assert set(each["times"]) == {*map(str, FAMILIES[90][each["kind"]][:2]), *([str(CUBLASLT)] if there_is_one else [])}
    assert list(measure_products(compile_with_blocks, device, store, sizes)) == [] and read_products(store) == first


def check_tf32(folder: Path) -> None:
    """Rounded factors, which the stand-in rounds where it is asked to."""
    module, exe = compiled(folder / "fast.disc", disc.Options(cache=False, tf32=True))
    inputs = given(5, 4)
    found, wanted = exe.flat(*there(inputs))[0].numpy(), eager(module, inputs)[0]
    assert 1e-5 < np.abs(found - wanted).max() / np.abs(wanted).max() < 5e-3


def main(driver: str, products: str = "") -> None:
    library = None
    stand_in = start(driver)
    if products:
        library = ctypes.CDLL(products)
    executor = Executor(stand_in)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DISC_CACHE_DIR"] = folder
        write_trees(Path(folder), 90, dict.fromkeys(BASE, TREE), "NVIDIA H200")
        for seed in range(2):
            stand_in.fake_set_seed(seed, 30 * seed)
            check(Path(folder), executor, library)
        if library is not None:
            check_tf32(Path(folder))
        check_tuning(Path(folder), library is not None)
    print("passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
