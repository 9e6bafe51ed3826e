"""Products of few rows with a matrix that nobody packed, and of a matrix with one column: B is read where it lies. Products of more rows,
for which it is packed first."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import Wrapped, assert_close, both_targets, module_program, randn
from torch import nn

import disc

pytestmark = pytest.mark.sampled(2)

# (k, n): nothing, ones, primes, around a vector (8, 16), two of them, a panel (64), the columns of a call (64, 128, 256)
SIZES = [(0, 3), (3, 0), (1, 1), (1, 17), (2, 15), (13, 31), (15, 16), (16, 64), (17, 65), (31, 7), (32, 63), (33, 127), (34, 129), (64, 257),
         (100, 256), (257, 600), (5, 255)]  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.long)]  # f16 differs in its conversions alone


def products(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
    """x [batch, rows, k], y [batch, k, n], z [batch, n, k]: B contiguous in n and in k; A in place, computed, and across its rows."""
    flipped = x.transpose(1, 2).contiguous()
    return [x @ y, x @ z.transpose(1, 2), torch.relu(x) @ y * 2 + 1, torch.relu(x) @ z.mT, flipped.mT @ y, flipped.mT @ z.mT]


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_layouts(dtype: torch.dtype) -> None:
    """Up to 6 rows are few, and up to an eighth of k where all lies along k; more are tiles whose B is packed."""
    program = module_program(products, randn(2, 3, 4, dtype=dtype), randn(2, 4, 5, dtype=dtype), randn(2, 5, 4, dtype=dtype))
    for k, n in SIZES:
        for batch, rows in ((1, 0), (1, 1), (3, 1), (1, 2), (2, 3), (1, 4), (1, 5), (3, 6), (2, 7), (1, 13), (2, 32), (1, 33), (0, 1)):
            x, y, z = randn(batch, rows, k, dtype=dtype), randn(batch, k, n, dtype=dtype), randn(batch, n, k, dtype=dtype)
            program.check(x, y, z, tolerance=None if dtype == torch.float32 else 0.03)


@pytest.mark.parametrize("rows", [1, 2, 5, 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_static_number_of_rows(dtype: torch.dtype, rows: int) -> None:
    """Few rows need no other code, seven never take it where k is open."""
    program = module_program(
        lambda x, y, z: [F.gelu(x @ y), x @ z.t() + z[:, 0]],
        randn(rows, 4, dtype=dtype), randn(4, 5, dtype=dtype), randn(5, 4, dtype=dtype), dynamic=[(1,), (0, 1), (0, 1)],
    )  # fmt: skip
    for k, n in [(1, 1), (17, 65), (33, 127), (257, 300)]:
        inputs = randn(rows, k, dtype=dtype), randn(k, n, dtype=dtype), randn(n, k, dtype=dtype)
        program.check(*inputs, tolerance=None if dtype == torch.float32 else 0.03)


@pytest.mark.parametrize("k", [1, 32, 33, 98])
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_a_static_k(dtype: torch.dtype, k: int) -> None:
    """Even and odd, whole vectors and not: the last value of 16 bits has no partner, or lies in a part of a vector."""
    program = module_program(
        lambda x, y, z: [x @ y, x @ z.t()], randn(4, k, dtype=dtype), randn(k, 5, dtype=dtype), randn(5, k, dtype=dtype),
        dynamic=[(0,), (1,), (0,)],
    )  # fmt: skip
    for rows in (1, 3, 7, 12, 13, 40):
        for n in (1, 16, 63, 65, 200):
            program.check(randn(rows, k, dtype=dtype), randn(k, n, dtype=dtype), randn(n, k, dtype=dtype), tolerance=0.03)


@pytest.mark.parametrize("rows", [7, 13, 96, 97])
def test_rows_of_several_tiles(rows: int) -> None:
    """All sizes of A are known: tiles of equal and of unequal height, the most rows that are few, and one more."""
    program = module_program(lambda x, z: F.gelu(x @ z.t()) + z[:, 0], randn(rows, 769), randn(5, 769), dynamic=[(), (0,)])
    for n in (0, 1, 3, 64, 129):
        program.check(randn(rows, 769), randn(n, 769))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_beyond_the_matrices_is_read(dtype: torch.dtype) -> None:
    """What lies before and after them in memory is NaN."""
    program = module_program(
        lambda x, y, z: [x @ y, x @ z.t()], randn(3, 4, dtype=dtype), randn(4, 5, dtype=dtype), randn(5, 4, dtype=dtype)
    )  # fmt: skip

    def amid_nan(*sizes: int) -> torch.Tensor:
        count = int(np.prod(sizes))
        memory = torch.full((count + 128,), float("nan"), dtype=dtype)
        memory[64 : 64 + count] = randn(count, dtype=dtype)
        return memory[64 : 64 + count].view(sizes)

    for rows in (1, 2, 3, 4, 6, 7):
        for k, n in [(1, 1), (3, 5), (33, 7), (31, 65), (65, 130)]:
            program.check(amid_nan(rows, k), amid_nan(k, n), amid_nan(n, k), tolerance=None if dtype == torch.float32 else 0.03)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_infinity_and_nan(dtype: torch.dtype, rows: int) -> None:
    """They reach the columns, and the rows, that they belong to, and no other."""
    program = module_program(
        lambda x, y, z: [x @ y, x @ z.t()], randn(3, 4, dtype=dtype), randn(4, 5, dtype=dtype), randn(5, 4, dtype=dtype)
    )  # fmt: skip
    x, y, z = randn(rows, 35, dtype=dtype), randn(35, 70, dtype=dtype), randn(70, 35, dtype=dtype)
    x[-1, 34] = float("nan")
    y[34, 3] = z[3, 34] = float("inf")
    y[33, 69] = z[69, 33] = float("-inf")
    program.check(x, y, z, tolerance=None if dtype == torch.float32 else 0.03)


class Columns(nn.Module):
    """Products with one column: a weight, with an epilogue and over several dims; an activation; of a matrix that lies transposed."""

    def __init__(self, features: int) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.head = nn.Linear(features, 1)
        self.plain = nn.Linear(features, 1, bias=False)

    def forward(self, x: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        gate = torch.sigmoid(self.head(x))
        return [gate, x * gate, self.plain(torch.relu(x))[..., 0], torch.einsum("bsk,bk->bs", x, v), torch.einsum("bks,bk->bs", x.mT, v)]


@pytest.mark.parametrize("dtype", [None, "bf16"])
@pytest.mark.parametrize("features", [1, 16, 31, 33, 300])
def test_one_column(features: int, dtype: str | None) -> None:
    model = Columns(features).eval()
    auto = torch.export.Dim.AUTO
    options = disc.Options(threads=2) if dtype is None else disc.Options(threads=2, dtype=dtype)
    example, shapes = (randn(3, 4, features), randn(3, features)), ({0: auto, 1: auto}, {0: auto})
    executables = both_targets(model, example, shapes, options=options)  # which share the weights of one artifact
    for batch, length in [(1, 1), (1, 2), (2, 1), (3, 7), (2, 63), (1, 257), (5, 300), (0, 3)]:
        x, v = randn(batch, length, features), randn(batch, features)
        with torch.no_grad():
            wanted = model(x, v)
        for executable in executables:
            for number, (ours, theirs) in enumerate(zip(executable(x, v), wanted, strict=True)):
                assert_close(ours, theirs, None if dtype is None else 0.05, f"{executable.isa}: result {number} at {batch} x {length}")


@pytest.mark.parametrize("rows", [1, 3, 6, 29])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_do_not_depend_on_threads(dtype: torch.dtype, rows: int) -> None:
    """Which columns go together differs with the tasks of a thread; the order of a sum does not."""
    model = Wrapped(lambda x, y: torch.cat([x @ y, x @ y.view(y.size(0), y.size(2), y.size(1)).mT], -1))
    auto = torch.export.Dim.AUTO
    shapes = (({0: auto, 1: auto, 2: auto}, {0: auto, 1: auto, 2: auto}),)
    example = (randn(3, 4, 5, dtype=dtype), randn(3, 5, 6, dtype=dtype))
    one, two = (disc.compile(model, example, shapes, options=disc.Options(threads=threads)) for threads in (1, 2))
    for k, n in [(700, 777), (64, 5000)]:
        x, y = randn(3, rows, k, dtype=dtype), randn(3, k, n, dtype=dtype)
        assert torch.equal(one(x, y), two(x, y))  # pyright: ignore[reportArgumentType]
