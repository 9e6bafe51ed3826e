"""Composite ops against eager where their decompositions could differ: ties, NaN, padding, dims of every size, elements that are missing."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from compiled import assert_close, module_program, randn

from disc.errors import DiscError, DiscWarning
from disc.frontend import dynamo

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
            *F.max_pool2d(x, 9, 5, 4, return_indices=True),
            *F.max_pool3d(x, (2, 3, 2), 1, (1, 1, 0), ceil_mode=True, return_indices=True),
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


class Resampled(torch.nn.Module):
    """Without aliasing, to a size; `wanted` has it. Also of an image of a fixed size, which shrinks along one dim."""

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> Pools:
        image = torch.arange(77.0).reshape(1, 1, 7, 11).sin() + wanted.sum()
        return (
            F.interpolate(x, wanted.shape, mode="bilinear", antialias=True), F.interpolate(x, (3, 5), mode="lanczos", antialias=True),
            F.interpolate(image, (3, 13), mode="bilinear", antialias=True), F.interpolate(image, (9, 4), mode="bicubic", antialias=True),
        )  # fmt: skip


class ResampledCubic(torch.nn.Module):
    """The same, and by factors, from more of the image."""

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> Pools:
        return (
            F.interpolate(x, wanted.shape, mode="bicubic", antialias=True, align_corners=True),
            F.interpolate(x, scale_factor=(0.5, 1.5), mode="bicubic", antialias=True),
        )


@pytest.mark.parametrize("kind", [Resampled, pytest.param(ResampledCubic, marks=pytest.mark.long)])
def test_resampling_without_aliasing(kind: type[torch.nn.Module]) -> None:
    """Smaller and larger images, rows and columns apart; NaN and infinities reach what has them in its window, and nothing else."""
    program = module_program(kind(), randn(2, 3, 8, 12), torch.ones(4, 6))
    for shape, size in (((1, 1, 5, 7), (5, 7)), ((2, 2, 23, 4), (3, 9)), ((1, 3, 7, 5), (1, 4)), ((2, 1, 64, 33), (31, 32))):
        program.check(randn(*shape), torch.ones(*size))
    for x, size in ((randn(1, 3, 4, 40), (9, 1)), (randn(2, 3, 8, 5), (3, 1))):
        # Eager fills a single column with its first row's value where the rows change too, but not where the channels are the last dim.
        wanted = program.model(x.contiguous(memory_format=torch.channels_last), torch.ones(*size))
        for executable in program.executables:
            for number, (ours, theirs) in enumerate(zip(executable(x, torch.ones(*size)), wanted, strict=True)):
                assert_close(ours, theirs, None, f"result {number} on {executable.isa} for {tuple(x.shape)} to {size}")
    x = randn(1, 1, 16, 16)
    x[0, 0, 3, 4], x[0, 0, 12, 9] = math.nan, math.inf
    program.check(x, torch.ones(5, 6))


def test_distances_and_average_pools() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, image: torch.Tensor) -> Pools:
            distances = [torch.cdist(x, y, p) for p in (0.0, 1.0, 2.0, 3.5, math.inf)]
            plane = torch.arange(70.0).reshape(1, 7, 10) * image.sum()  # of fixed sizes
            pools = [F.adaptive_avg_pool2d(plane, size) for size in ((3, 4), (7, 3), (8, 13), (1, 6))]
            return (*distances, torch.pdist(x), F.adaptive_avg_pool3d(image, (2, 1, 3)), *pools)

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


def test_gradients_of_bags() -> None:
    class Gradients(torch.nn.Module):
        @torch.enable_grad()
        def forward(self, weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, shares: torch.Tensor) -> Pools:
            weight, shares = weight.detach().requires_grad_(), shares.detach().requires_grad_()
            means, maxima = (F.embedding_bag(indices, weight, offsets, mode=mode, padding_idx=2).sin().sum() for mode in ("mean", "max"))
            sums = F.embedding_bag(indices, weight, offsets, mode="sum", per_sample_weights=shares).cos().sum()
            of = (torch.autograd.grad(each, weight, retain_graph=True)[0] for each in (means, maxima))
            return (*of, *torch.autograd.grad(sums, (weight, shares)))

    with pytest.warns(DiscWarning, match="'weight' is fixed to 10"):  # PyTorch's gradient takes the number of rows for an int
        program = module_program(Gradients(), randn(10, 4), torch.arange(6), torch.tensor([0, 4]), randn(6))
    for offsets in ([0], [0, 0, 5], [0, 3, 3, 9]):
        program.check(randn(10, 4), torch.randint(0, 10, (9,)), torch.tensor(offsets), randn(9))


def test_maxima_of_bags_where_a_nan_comes_first_and_where_it_does_not() -> None:
    op = torch.ops.aten._embedding_bag.default
    program = module_program(lambda *given: op(*given, mode=2, padding_idx=3), randn(6, 2), torch.arange(5), torch.tensor([0, 3]))
    weight = randn(6, 2)
    weight[1, 0] = weight[2, 1] = math.nan
    program.check(weight, torch.tensor([1, 2, 0, 3, 4, 2]), torch.tensor([0, 2, 2, 3]))
    program.check(randn(7, 3), torch.randint(0, 7, (9,)), torch.tensor([0]))


def test_small_calls() -> None:
    """Dims that are missing, an index that is a scalar, memory seen as another type or shape, lists that a decomposition writes."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, line: torch.Tensor, one: torch.Tensor) -> list[torch.Tensor]:
            first, prims = torch.tensor(1), torch.ops.prims
            return [
                *(torch.var(one, correction=0), torch.std(one, -1), torch.cov(x), torch.cov(line, correction=0), torch.corrcoef(x)),
                *(
                    line.index_copy(0, first, one),
                    line.index_add(0, first, one[None], alpha=3),
                    one.index_copy(0, first[None] - 1, line[:1]),
                ),
                *((x * 2).as_strided([2, 3], [1, 2], 1), (x + 1).as_strided([x.shape[0]], [2])),
                *(x.view(torch.int32) >> 1, x.to(torch.bfloat16).view(torch.int16), line.to(torch.uint8).view(torch.int8)),
                torch.ops.aten.embedding_dense_backward(x, torch.arange(x.shape[0]) % 3, 4, 2, True),
                x * (one > 1).item(),
                *(prims.add(x, x), prims.sum(x, [0]), prims.transpose(x, [1, 0]), prims.rev(x, [1])),
            ]

    program = module_program(Model(), randn(3, 4), randn(5), torch.tensor(2.0))
    for rows, columns, length in ((2, 7, 2), (9, 3, 17)):
        program.check(randn(rows, columns), randn(length), torch.tensor(0.5))


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_of_the_fast_path(norm_first: bool) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, activation="gelu").eval()
    compiled = torch.compile(layer, backend="disc", dynamic=True, options={"strict": True})
    dynamo.reset_statistics()
    with torch.no_grad():
        for batch, length in ((2, 5), (3, 7)):
            x, padding = randn(batch, length, 8), torch.arange(length) > torch.tensor([[length - 2]] * batch)
            torch.testing.assert_close(compiled(x, src_key_padding_mask=padding), layer(x, src_key_padding_mask=padding))
    assert not dynamo.statistics().eager
