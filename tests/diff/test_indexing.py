"""Gathers, scatters and selections by index, and what feeds and follows them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import module_program, randn, text_program
from torch import nn

from disc.errors import DiscError

SHAPES = [(1, 1), (1, 16), (3, 7), (5, 17), (8, 9), (17, 33), (2, 130)]


def indices(*shape: int, high: int, seed: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=dtype)


class Embeddings(nn.Module):
    """Token, position and type embeddings summed, and reads of the same table from other places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.tokens, self.positions = nn.Embedding(50, 24), nn.Embedding(160, 24)

    def forward(self, ids: torch.Tensor) -> list[torch.Tensor]:
        tokens = self.tokens(ids)
        places = self.positions(torch.arange(ids.shape[1]))
        return [
            tokens + places,
            tokens * 2,
            F.layer_norm(tokens + places, (24,)),
            tokens.sum(1),
            self.tokens.weight[ids].mean(2),
            tokens.transpose(1, 2) + 1,
        ]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_embeddings(dtype: torch.dtype) -> None:
    program = module_program(Embeddings(), indices(3, 4, high=50, dtype=dtype))
    for shape in [*SHAPES, (0, 3), (3, 0)]:
        program.check(indices(*shape, high=50, dtype=dtype))


def test_selections() -> None:
    """x by rows, by columns, element by element; indices computed from data and from sizes."""

    def forward(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, cells: torch.Tensor) -> list[torch.Tensor]:
        return [
            x[rows], x[:, columns], x.index_select(0, rows) * 2, x.index_select(1, columns).sum(1), x.gather(1, cells).exp(),
            x[rows][:, columns], (x * 2)[rows], x.exp()[rows].sum(0), x[x.argmax(0)], x.gather(1, x.argmax(1, keepdim=True)), x[:, columns].transpose(0, 1) + 1,
            torch.cat([x[rows], x], 0), x[rows] + x[rows.flip(0)], F.one_hot(rows, 160), x[rows // 2], x[rows, rows % x.shape[1]], x[rows[:, None], columns[None, :]],
        ]  # fmt: skip

    example = randn(5, 6), indices(4, high=5), indices(7, high=6), indices(5, 3, high=6)
    program = module_program(forward, *example)
    for height, width in SHAPES:
        for count in (1, 5, 16, 17):
            program.check(
                randn(height, width), indices(count, high=height), indices(count + 1, high=width), indices(height, count, high=width)
            )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.int8, torch.bool])
def test_gather_of_every_type(dtype: torch.dtype) -> None:
    program = module_program(
        lambda x, rows, cells: [x[rows], x.gather(1, cells), x[:, rows // 2]],
        randn(8, 8, dtype=dtype),
        indices(4, high=8),
        indices(8, 3, high=8),
    )
    for height, width in [(9, 9), (17, 33)]:
        program.check(randn(height, width, dtype=dtype), indices(7, high=height), indices(height, 17, high=width))


def test_out_of_range() -> None:
    """An index out of range is an error, as in eager; the executable works on afterwards."""
    program = module_program(lambda x, rows: x[rows] + 1, randn(5, 6), indices(4, high=5))
    for executable in program.executables:
        for bad in (5, -6, 1 << 40):
            with pytest.raises((DiscError, IndexError)):
                executable(randn(5, 6), torch.tensor([0, 1, bad, 2]))
    program.check(randn(5, 6), torch.tensor([0, 1, -1, -5]))


def test_scatters() -> None:
    def forward(x: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, cells: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.index_add(0, rows, values), x.index_copy(0, rows, values * 0 + 1), x.scatter_add(1, cells, x.exp()), x.scatter(1, cells, 3.0),
            (x * 2).index_add(0, rows, values * 2) + 1, torch.zeros_like(x).scatter_add(1, cells, x).sum(1), x.index_put((rows,), values, accumulate=True), x.scatter_reduce(1, cells, x, "amax"),
        ]  # fmt: skip

    program = module_program(forward, randn(5, 6), indices(4, high=5), randn(4, 6), indices(5, 6, high=6))
    for height, width in SHAPES:
        for count in (1, 5, 17):
            program.check(
                randn(height, width), indices(count, high=height), randn(count, width), indices(height, width, high=width), tolerance=1e-4
            )


def test_slice_assignments() -> None:
    def forward(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        first, second, third = x.clone(), x * 2, x.clone()
        first[:, 1:3] = 7.0
        second[1:] = y[1:]
        third[:, 0] = y[:, 1]
        return [
            first,
            second,
            third,
            x.select_scatter(y[0], 0, 1),
            x.slice_scatter(y[:, :2], 1, 0, 2),
            torch.where(x > y, x, y),
            x.masked_fill(y > 0, 9.0),
            x.clone().copy_(y),
        ]

    program = module_program(forward, randn(5, 6), randn(5, 6, seed=1))
    for height, width in [(3, 4), (5, 16), (17, 7), (2, 33)]:
        program.check(randn(height, width), randn(height, width, seed=1))


SCATTER = """func.func @main(%x: tensor<?x?xf32>, %i: tensor<?x1xi32>, %u: tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>) {
  %0 = "stablehlo.scatter"(%x, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
    scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) : (tensor<?x?xf32>, tensor<?x1xi32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "stablehlo.scatter"(%x, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
    scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      stablehlo.return %b : tensor<f32>
  }) : (tensor<?x?xf32>, tensor<?x1xi32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = stablehlo.add %0, %1 : tensor<?x?xf32>
  return %0, %1, %2 : tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>
}"""


def test_scatter_skips_what_is_out_of_bounds() -> None:
    program = text_program(SCATTER)
    for height, width, count in ((1, 1, 1), (3, 17, 5), (7, 8, 9), (4, 3, 0), (16, 33, 31)):
        generator = np.random.default_rng(count)
        x, u = (generator.integers(-9, 9, size).astype(np.float32) for size in ((height, width), (count, width)))
        program.check([x, generator.integers(-2, height + 2, (count, 1)).astype(np.int32), u])


GATHER = """func.func @main(%x: tensor<?x?xf32>, %i: tensor<?x2xi64>) -> (tensor<?xf32>, tensor<?x2x3xf32>) {
  %0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 1>}> : (tensor<?x?xf32>, tensor<?x2xi64>) -> tensor<?xf32>
  %1 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1, 2], start_index_map = [1, 0], index_vector_dim = 1>,
    slice_sizes = array<i64: 2, 3>}> : (tensor<?x?xf32>, tensor<?x2xi64>) -> tensor<?x2x3xf32>
  return %0, %1 : tensor<?xf32>, tensor<?x2x3xf32>
}"""


def test_gather_of_windows() -> None:
    """Several start dims, mapped out of order, with windows."""
    program = text_program(GATHER)
    for height, width, count in ((3, 3, 1), (3, 17, 5), (17, 8, 9), (5, 5, 0), (16, 33, 31)):
        generator = np.random.default_rng(count)
        high = min(height - 2, width - 3) + 1
        program.check([generator.standard_normal((height, width)).astype(np.float32), generator.integers(0, high, (count, 2))])


def test_scatters_that_reduce() -> None:
    """Every kind, with what stands there and without; several elements on one place, places that none is written to."""

    def forward(x: torch.Tensor, cells: torch.Tensor, source: torch.Tensor) -> list[torch.Tensor]:
        kinds = [(kind, included) for kind in ("sum", "mean", "prod", "amax", "amin") for included in (False, True)]
        whole = [x.long().scatter_reduce(1, cells, source.long(), "amin", include_self=False)]
        return whole + [x.scatter_reduce(1, cells, source, kind, include_self=included) for kind, included in kinds]

    program = module_program(forward, randn(5, 6), indices(5, 4, high=6), randn(5, 4))
    for height, width, count in ((1, 1, 1), (3, 7, 2), (5, 17, 33), (2, 3, 0)):
        program.check(randn(height, width), indices(height, count, high=width), randn(height, count) * 3)
