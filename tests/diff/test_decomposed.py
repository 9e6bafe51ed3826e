"""Composite ops against eager where their decompositions could differ: ties, NaN, padding, dims of every size, elements that are missing."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from compiled import module_program, randn

from disc.errors import DiscError

Pools = tuple[torch.Tensor, ...]


def ties(*shape: int) -> torch.Tensor:
    """Few values, so that maxima are met twice, among them infinities and NaN."""
    values = torch.tensor([0.0, 1.0, 1.0, 2.0, -math.inf, math.nan])
    return values[torch.randint(0, 5 + (shape[0] % 2), shape)]


class Scans(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Pools:
        return (*x.cummax(1), *x.cummin(0))


class Pooled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Pools:
        return F.max_pool2d(x, 3, 2, 1, return_indices=True)


class PooledInAllWays(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Pools:
        return (
            *F.max_pool2d(x, 3, 2, 1, return_indices=True),
            *F.max_pool2d(x, 2, 2, 0, 2, ceil_mode=True, return_indices=True),
            *F.adaptive_max_pool2d(x, (3, 2), return_indices=True),
        )


def test_places_of_extremes() -> None:
    torch.manual_seed(0)
    scans = module_program(Scans(), ties(4, 5))
    for shape in ((1, 1), (3, 17), (8, 2), (0, 3)):
        scans.check(ties(*shape))


@pytest.mark.parametrize("kind", [Pooled, pytest.param(PooledInAllWays, marks=pytest.mark.long)])
def test_places_of_extremes_of_windows(kind: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    pooled = module_program(kind(), ties(2, 3, 7, 8))
    for shape in ((1, 1, 5, 5), (2, 1, 9, 6), (3, 2, 16, 17)):
        pooled.check(ties(*shape))


def test_distances_and_average_pools() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, image: torch.Tensor) -> Pools:
            distances = [torch.cdist(x, y, p) for p in (0.0, 1.0, 2.0, 3.5, math.inf)]
            return (*distances, torch.pdist(x), F.adaptive_avg_pool3d(image, (2, 1, 3)))

    program = module_program(Model(), randn(5, 3), randn(4, 3), randn(2, 7, 8, 9))
    for rows, columns, size in ((1, 2, 3), (9, 1, 1), (2, 7, 0), (17, 5, 6)):
        program.check(randn(rows, size), randn(columns, size), randn(2, 1 + rows, columns, rows + 1))


def test_masked_scatter() -> None:
    program = module_program(lambda x, mask, source: x.masked_scatter(mask, source), randn(3, 4), randn(3, 4) > 0, randn(12))
    for rows in (0, 1, 9):
        program.check(randn(rows, 7), randn(rows, 7) > 0, randn(rows * 7))
    program.check(randn(3, 4), torch.zeros(3, 4, dtype=torch.bool), randn(0))
    with pytest.raises((DiscError, IndexError)):
        program.executables[0](randn(2, 2), torch.ones(2, 2, dtype=torch.bool), randn(3))


def test_bags_of_embeddings() -> None:
    class Bags(torch.nn.Module):
        def forward(self, weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> Pools:
            return tuple(F.embedding_bag(indices, weight, offsets, mode=mode) for mode in ("sum", "mean"))

    program = module_program(Bags(), randn(10, 4), torch.arange(6), torch.tensor([0, 4]))
    for offsets in ([0], [0, 0, 5], [0, 3, 3, 9]):
        program.check(randn(11, 3), torch.randint(0, 11, (9,)), torch.tensor(offsets))
    for executable in program.executables:
        with pytest.raises((DiscError, IndexError)):
            executable(randn(11, 3), torch.arange(6), torch.tensor([1, 4]))
