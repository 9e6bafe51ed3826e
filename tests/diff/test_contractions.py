"""Matrix products: ranks, layouts, element types, weights and epilogues, at sizes around the tiles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import module_program, randn, text_program
from torch import nn

pytestmark = pytest.mark.sampled(2)

# (m, k, n): ones, primes, around the tile (6 rows, 16 or 64 columns) and the row block (120).
SIZES = [(1, 1, 1), (1, 7, 16), (5, 1, 17), (6, 16, 64), (7, 17, 1), (13, 31, 63), (2, 64, 65), (121, 5, 15), (3, 130, 129)]
EMPTY = [(0, 3, 5), (3, 0, 5), (3, 5, 0)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul(dtype: torch.dtype) -> None:
    """Both operands as they are and transposed; a vector on either side; nothing to sum over."""

    def forward(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x @ y, (y.t() @ x.t()) * 2, x.t().contiguous().t() @ y + 1, x[0] @ y, x @ y[:, 0], x[0] @ y[:, 0]]

    program = module_program(forward, randn(3, 4, dtype=dtype), randn(4, 5, dtype=dtype))
    for m, k, n in [*SIZES, *EMPTY[1:2]]:
        program.check(randn(m, k, dtype=dtype), randn(k, n, dtype=dtype), tolerance=0.03 if dtype == torch.bfloat16 else None)


@pytest.mark.parametrize("count", [None, 1300])
def test_sums_over_rows(count: int | None) -> None:
    """The product that the gradient of a weight is, with a piece of its rows at a time (512)."""
    example = randn(count or 5, 3), randn(count or 5, 4)
    program = module_program(lambda x, y: [x.t() @ y, (y.t() @ x) * 2 + 1], *example, dynamic=[[0, 1] if count is None else [1]] * 2)
    for rows in (1, 511, 512, 513, 1300) if count is None else (count,):
        for m, n in ((1, 17), (7, 64), (13, 130)):
            program.check(randn(rows, m), randn(rows, n))


def test_sums_over_rows_that_change_places() -> None:
    """The gradient of a weight where gradients have batches first, and what it reads sequences; the rows themselves are read as well."""

    def forward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        rows = gradient.transpose(0, 1).reshape(-1, gradient.shape[2])
        return [rows.t() @ x.flatten(0, 1), rows @ weight, gradient.sum((0, 1))]

    program = module_program(forward, randn(2, 3, 4), randn(3, 2, 5), randn(4, 6), dynamic=[[0, 1], [0, 1, 2], []])
    for batch, length, n in ((1, 1, 1), (1, 7, 17), (5, 1, 16), (4, 13, 65), (3, 175, 33), (0, 3, 5)):
        program.check(randn(batch, length, 4), randn(length, batch, n), randn(4, 6))


def test_empty() -> None:
    program = module_program(lambda x, y: [x @ y, F.relu(x @ y + 1), (x @ y).t()], randn(3, 4), randn(4, 5))
    for m, k, n in EMPTY:
        program.check(randn(m, k), randn(k, n))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches(dtype: torch.dtype) -> None:
    def forward(x: torch.Tensor, y: torch.Tensor, one: torch.Tensor) -> list[torch.Tensor]:
        return [
            x @ y, x.transpose(-1, -2) @ x, y @ y.transpose(-1, -2), x @ one, torch.einsum("bij,bjk->bki", x, y), torch.einsum("bij,bjk->ik", x, y),
            torch.einsum("bij,bij->b", x, x), torch.einsum("bij,bkj->bik", x, x) * 0.5, torch.bmm(x, y).sum(1), (x[:, None] @ y[:, None]).squeeze(1),
        ]  # fmt: skip

    program = module_program(forward, randn(2, 3, 4, dtype=dtype), randn(2, 4, 5, dtype=dtype), randn(4, 5, dtype=dtype))
    for batch in (1, 3):
        for m, k, n in SIZES[:8]:
            inputs = randn(batch, m, k, dtype=dtype), randn(batch, k, n, dtype=dtype), randn(k, n, dtype=dtype)
            program.check(*inputs, tolerance=0.05 if dtype == torch.bfloat16 else None)


class Attention(nn.Module):
    """Heads of a static size: reshaped and transposed operands and results, a mask, a softmax, several contracting dims."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        batch, length, _ = x.shape
        q, k, v = (layer(x).reshape(batch, length, 4, 8).transpose(1, 2) for layer in (self.query, self.key, self.value))
        scores = (q @ k.transpose(-1, -2)) / 8**0.5
        masked = torch.where(mask[:, None, None, :] > 0, scores, torch.tensor(-1e9))
        context = (masked.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, 32)
        fused = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return [
            self.out(context) + x,
            scores,
            fused,
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :] > 0),
            torch.einsum("bhid,bhjd->bij", q, k),
        ]


def test_attention() -> None:
    program = module_program(Attention(), randn(2, 3, 32), torch.ones(2, 3, dtype=torch.int64), dynamic=[(0, 1), (0, 1)])
    for batch, length in ((1, 1), (1, 2), (2, 7), (3, 16), (1, 17), (2, 33), (1, 130)):
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[-1, length // 2 + 1 :] = 0
        program.check(randn(batch, length, 32), mask)


class Epilogues(nn.Module):
    """What may follow a product with a weight (of n columns): biases, activations, residuals, scales, selections, views."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        torch.manual_seed(k + n)
        self.layer, self.bare = nn.Linear(k, n), nn.Linear(k, n, bias=False)
        self.scale = nn.Parameter(torch.randn(n))

    def forward(self, x: torch.Tensor, residual: torch.Tensor, mask: torch.Tensor, factor: torch.Tensor) -> list[torch.Tensor]:
        y, z = self.layer(x), self.bare(x)
        return [
            F.gelu(y), F.gelu(y, approximate="tanh") + residual, F.relu(z) * self.scale, z * factor, torch.where(mask[:, :, None], y, residual), z.transpose(1, 2), F.silu(y) * z,
            y.reshape(-1, y.shape[2]).tanh(), z.sum(1), z.softmax(-1), y + z, (z + residual).amax(-1), z.masked_fill(mask[:, :, None], 0.0), residual - y, z[:, 0], z.bfloat16() * 2,
        ]  # fmt: skip


@pytest.mark.parametrize(("k", "n"), [(1, 1), (7, 16), (33, 64), (20, 131)])
def test_epilogues(k: int, n: int) -> None:
    example = randn(2, 3, k), randn(2, 3, n), randn(2, 3, dtype=torch.bool), torch.tensor(0.5)
    program = module_program(Epilogues(k, n), *example, dynamic=[(0, 1), (0, 1), (0, 1), ()])
    for batch, length in ((1, 1), (2, 7), (3, 41), (1, 130)):
        program.check(randn(batch, length, k), randn(batch, length, n, seed=1), randn(batch, length, dtype=torch.bool), torch.tensor(-1.5))
    for executable in program.executables:
        results = executable(randn(0, 3, k), randn(0, 3, n), randn(0, 3, dtype=torch.bool), torch.tensor(1.0))
        assert isinstance(results, tuple | list) and tuple(results[0].shape) == (0, 3, n)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_of_every_type(dtype: torch.dtype) -> None:
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 70), nn.LayerNorm(70)).to(dtype)
    program = module_program(model, randn(3, 4, 24, dtype=dtype), dynamic=[(0, 1)])
    for batch, length in ((1, 1), (2, 7), (1, 17)):
        program.check(
            randn(batch, length, 24, dtype=dtype), tolerance={torch.float64: 1e-10, torch.float16: 0.01, torch.bfloat16: 0.06}[dtype]
        )


class Shared(nn.Module):
    """One weight read twice, transposed, in part, by both sides and outside of products."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.weight = nn.Parameter(torch.randn(24, 24))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        w = self.weight
        return [
            x @ w,
            x @ w.t(),
            F.linear(x, w[:7]),
            x @ w[:, 3:20],
            x[..., :5] @ w[2:7],
            (x @ w) @ w,
            x + w[0],
            w @ x.transpose(-1, -2),
            x @ (w * 2 + 1),
            x @ (w + x[0, 0]),
        ]


def test_weights_in_many_roles() -> None:
    program = module_program(Shared(), randn(2, 3, 24), dynamic=[(0, 1)])
    for batch, length in ((1, 1), (2, 7), (3, 17), (1, 130)):
        program.check(randn(batch, length, 24))


def test_operands_that_are_computed() -> None:
    """Producers on both sides: element-wise ops, views, joins, gathers, reductions."""

    def forward(x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.exp() @ y, x @ y.tanh(), (x + 1) @ (y * 2), x.softmax(-1) @ y, F.layer_norm(x, (x.shape[1],)) @ y, x[rows] @ y, x @ y[:, 1:], x.flip(1) @ y, x[::2] @ y,
            torch.cat([x, x * 2]) @ y, F.pad(x, (0, 0, 1, 1)) @ y, x @ torch.cat([y, y], 1), (x @ y) @ (x @ y).t(), x @ (y - y.mean(0)), x.relu() @ y.relu() + (x @ y), x.double() @ y.double(),
        ]  # fmt: skip

    program = module_program(forward, randn(4, 5), randn(5, 6), torch.tensor([0, 1, 2]))
    for m, k, n in [(2, 2, 2), *SIZES[3:4], *SIZES[5:]]:
        program.check(randn(m, k), randn(k, n, seed=1) / k**0.5, torch.arange(m - 1), tolerance=1e-4)


DOT = """func.func @main(%x: tensor<?x?x?xf32>, %y: tensor<?x?x?xf32>) -> (tensor<?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?x?xf32>, tensor<f32>, tensor<?x?x?xf32>) {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [0, 2] x [2, 0] : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?xf32>
  %1 = stablehlo.dot_general %x, %x, batching_dims = [1] x [1], contracting_dims = [2] x [2] : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %2 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %3 = stablehlo.dot_general %x, %x, contracting_dims = [0, 1, 2] x [0, 1, 2] : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<f32>
  %4 = stablehlo.dot_general %x, %x, batching_dims = [2, 0] x [2, 0], contracting_dims = [] x [] : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [3] : (tensor<?x?x?x?xf32>, tensor<f32>) -> tensor<?x?x?xf32>
  return %0, %1, %2, %3, %5 : tensor<?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?x?xf32>, tensor<f32>, tensor<?x?x?xf32>
}"""


def test_dot_general() -> None:
    """Several contracting dims in another order, batches in the middle, no free dim, nothing to contract."""
    program = text_program(DOT)
    for a, b, c, d in ((1, 1, 1, 1), (2, 3, 5, 7), (3, 16, 4, 17), (5, 7, 17, 2), (0, 2, 3, 4), (2, 9, 0, 3)):
        generator = np.random.default_rng(a)
        x, y = (generator.integers(-4, 5, size).astype(np.float32) for size in ((a, b, c), (c, d, a)))
        program.check([x, y])


WIDE = """func.func @main(%x: tensor<?x?xi8>, %y: tensor<?x?xi8>, %h: tensor<?x?xbf16>, %g: tensor<?x?xbf16>) -> (tensor<?x?xi32>, tensor<?x?xf32>) {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<?x?xi8>, tensor<?x?xi8>) -> tensor<?x?xi32>
  %1 = stablehlo.dot_general %h, %g, contracting_dims = [1] x [0] : (tensor<?x?xbf16>, tensor<?x?xbf16>) -> tensor<?x?xf32>
  return %0, %1 : tensor<?x?xi32>, tensor<?x?xf32>
}"""


def test_results_wider_than_operands() -> None:
    program = text_program(WIDE)
    for m, k, n in SIZES:
        generator = np.random.default_rng(m)
        x, y = (generator.integers(-128, 128, size).astype(np.int8) for size in ((m, k), (k, n)))
        h, g = ((each.astype(np.float32) / 2).view(np.uint32) >> 16 for each in (x, y))
        program.check([x, y, h.astype(np.uint16), g.astype(np.uint16)], ulps=4, absolute=1.0)
