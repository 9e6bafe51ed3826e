"""Models and programs of library kernels: scans, scatters, sorting and its kin, grouped products. Loads no Triton."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

DYNAMIC = torch.export.Dim.DYNAMIC
HALF = torch.export.Dim("half", min=1)


class Scans(nn.Module):
    """Along the last dim, the first and one in between, of several types, with views and arithmetic around them."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cube = x.unflatten(1, (2, -1))
        return (x * 2).cumsum(1), x.cumsum(0), ids.cumsum(0), torch.cumprod(x.bfloat16(), 1), cube.mT.cumsum(1), (ids > 4).cumsum(0)

    @staticmethod
    def example() -> tuple[torch.Tensor, ...]:
        return torch.randn(5, 6), torch.zeros(5, dtype=torch.int64)

    @staticmethod
    def dims() -> Any:
        return {0: DYNAMIC, 1: 2 * HALF}, {0: DYNAMIC}


class Scatters(nn.Module):
    """Rows of a table, elements along a dim, single places, with several updates of one place. width: of a row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, table: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            table.index_add(0, ids, rows),
            table.scatter_add(1, at, rows[: at.shape[0], : at.shape[1]]),
            table.scatter_reduce(1, at, rows[: at.shape[0], : at.shape[1]], "amax"),
            table.index_put((ids,), rows * 2),
            table.index_put((ids, ids), rows[:, 0], accumulate=True),
            table.bfloat16().index_add(0, ids, rows.bfloat16()),
        )

    def example(self) -> tuple[torch.Tensor, ...]:
        ids, at = torch.zeros(5, dtype=torch.int64), torch.zeros(5, 4, dtype=torch.int64)
        return torch.randn(9, self.width), ids, torch.randn(5, self.width), at

    @staticmethod
    def dims() -> Any:
        return None, {0: DYNAMIC}, {0: DYNAMIC}, {0: DYNAMIC, 1: DYNAMIC}


class Sorts(nn.Module):
    """Both ways, along the first and the last dim, of every kind of type; the first few; places in sorted lines; counts."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        lines = x.sort(1).values
        return (
            *x.sort(1, descending=True), x.argsort(0), *ids.sort(0), *(ids > 3).sort(0), *x.bfloat16().topk(2, 1), *ids.topk(3, largest=False),
            torch.searchsorted(lines, values), torch.searchsorted(lines, values, right=True), torch.histc(x, 5, -1, 1),
        )  # fmt: skip

    @staticmethod
    def example() -> tuple[torch.Tensor, ...]:
        return torch.randn(5, 6), torch.zeros(7, dtype=torch.int64), torch.randn(5, 3)

    @staticmethod
    def dims() -> Any:
        return {0: DYNAMIC, 1: DYNAMIC}, {0: DYNAMIC}, {0: DYNAMIC, 1: DYNAMIC}


class Pools(nn.Module):
    """What a packed program pools over the tokens of a sequence, of several types and ranks."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = (x * 8).to(torch.int64)
        return (x * 2).sum(1), x.amax(1), x.bfloat16().mean(1), whole.sum(1), x.unflatten(2, (10, -1)).sum(1)

    @staticmethod
    def example() -> tuple[torch.Tensor, ...]:
        return (torch.randn(5, 6, 140),)

    @staticmethod
    def dims() -> Any:
        return ({0: DYNAMIC, 1: DYNAMIC},)


GROUPS = """func.func @main(%rows: tensor<?x20x{element}>, %matrices: tensor<3x20x70x{element}>, %ends: tensor<3xi32>) -> tensor<?x70x{element}> {{
  %size = "stablehlo.get_dimension_size"(%rows) {{dimension = 0 : i64}} : (tensor<?x20x{element}>) -> tensor<i32>
  %0 = stablehlo.reshape %size : (tensor<i32>) -> tensor<1xi32>
  %1 = stablehlo.constant dense<70> : tensor<1xi32>
  %shape = stablehlo.concatenate %0, %1, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %r = "disc.dynamic_grouped_dot"(%rows, %matrices, %ends, %shape) : (tensor<?x20x{element}>, tensor<3x20x70x{element}>, tensor<3xi32>, tensor<2xi32>) -> tensor<?x70x{element}>
  return %r : tensor<?x70x{element}>
}}"""
