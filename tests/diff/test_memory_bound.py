"""What memory-bound kernels choose by size: rows side by side, columns side by side, transposed blocks, results past the caches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from compiled import both_targets, module_program, randn
from torch import nn

from disc.ral.executable import Executable

pytestmark = pytest.mark.sampled(2)

LENGTHS = (1, 15, 16, 17, 64, 100, 255, 256, 257, 300)  # of rows; up to 256 f32 four of them go together


def row_kernels(x: torch.Tensor) -> list[torch.Tensor]:
    return [F.softmax(x, -1), F.layer_norm(x, x.shape[1:]), x / x.norm(dim=-1, keepdim=True).clamp(min=1), x.amax(1), x.sum(1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_side_by_side(dtype: torch.dtype) -> None:
    """Every remainder of the rows that go together, rows short and long."""
    program = module_program(row_kernels, randn(3, 4, dtype=dtype))
    for number, length in enumerate(LENGTHS):
        for rows in (0, 1, 4, 5 + number % 3, 8):
            program.check(randn(rows, length, dtype=dtype))


LONG = 131072  # elements from which on few rows are cut into parts; 32 parts of 16384 at least


def long_kernels(x: torch.Tensor) -> list[torch.Tensor]:
    results = [F.softmax(x, -1), F.layer_norm(x, x.shape[1:]), x - x.amax(-1, keepdim=True), x.amin(1), x.argmax(1), x.sum(1) / x.shape[1]]
    return [*results, (x > 3).any(-1), torch.logsumexp(x, 1), x.mean(), *x.max(1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float64, marks=pytest.mark.long)])
def test_few_long_rows(dtype: torch.dtype) -> None:
    """Guards both ways, the last part full, one element and one vector long; any number of threads gives the same bits."""
    program = module_program(long_kernels, randn(3, 4, dtype=dtype))
    for rows, length in ((3, 5), (1, LONG - 1), (1, LONG), (4, LONG + 1), (5, LONG), (2, LONG + 16384 + 17), (1, 32 * 16384), (1, 600011)):
        x = randn(rows, length, dtype=dtype)
        program.check(x)
        for executable in program.executables:
            results = []
            for executable.threads in (1, 2, 3):
                results.append(executable(x))
            assert all(torch.equal(ours, theirs) for other in results[1:] for ours, theirs in zip(results[0], other, strict=True))
    for executable in program.executables:
        counters = executable.stats()["counters"]
        assert isinstance(counters, dict)
        cut = {name: count for name, count in counters.items() if "at_least" in name}
        assert cut and all(count >= 5 * 4 for count in cut.values()), counters


def test_a_sum_of_everything_in_parts() -> None:
    """Dims that are reduced together are one row; a broadcast that expands takes the version for all shapes."""

    def forward(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [(x + y).sum(), x.exp().sum((1, 2)), (x * y).amax((0, 1, 2))]

    program = module_program(forward, randn(2, 3, 4), randn(2, 1, 4))
    for batch, rows, columns in ((2, 3, 4), (2, 1000, 131), (1, 7, 131072), (4, 400, 401)):
        program.check(randn(batch, rows, columns), randn(batch, 1, columns))


def test_rows_of_a_mask() -> None:
    """Rows whose number is split over several loops, and a row that all of them share."""

    def forward(x: torch.Tensor, mask: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
        return [F.softmax(x + mask, -1), F.softmax(x * bias.softmax(-1), -1), (x + mask).sum(-1)]

    program = module_program(forward, randn(2, 3, 4, 5), randn(2, 1, 1, 5), randn(5))
    for batch, heads, length, width in ((1, 1, 1, 1), (2, 3, 5, 16), (3, 2, 3, 33), (1, 5, 7, 300)):
        program.check(randn(batch, heads, length, width), randn(batch, 1, 1, width), randn(width))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_columns_side_by_side(dtype: torch.dtype) -> None:
    """Every remainder of the vectors of columns that go together."""

    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.sum(0), x.amax(0), x.sum(0) + x.amin(0), x.argmax(0), (x + 1).sum(0) * 2]

    program = module_program(forward, randn(3, 4, dtype=dtype))
    for columns in (1, 15, 16, 17, 63, 64, 127, 128, 129, 143, 250, 256, 257, 271, 500):
        for rows in (1, 2, 9):
            program.check(randn(rows, columns, dtype=dtype))
    program.check(randn(9, 0, dtype=dtype))


def test_columns_of_groups() -> None:
    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.mean(1), x.var(1, correction=0), x.sum((0, 1)), F.softmax(x, 1)]

    program = module_program(forward, randn(2, 3, 4))
    for shape in ((1, 1, 1), (2, 7, 16), (3, 5, 130), (1, 17, 257), (0, 2, 3)):
        program.check(randn(*shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bfloat16, torch.float64, torch.bool])
def test_transposed_blocks(dtype: torch.dtype) -> None:
    """Blocks cut on one side, on both and on none; an input that is read both ways."""

    def forward(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        moved = x.transpose(0, 1).contiguous()
        return [moved, x.transpose(0, 1) == y, x.reshape(1, *x.shape).permute(2, 0, 1).contiguous()]

    program = module_program(forward, randn(3, 4, dtype=dtype), randn(4, 3, dtype=dtype))
    for rows, columns in ((0, 3), (3, 0), (1, 1), (15, 65), (16, 64), (17, 63), (64, 16), (80, 130), (272, 17), (300, 64)):
        program.check(randn(rows, columns, dtype=dtype), randn(columns, rows, dtype=dtype, seed=1))


def test_transposed_both_ways() -> None:
    program = module_program(lambda x: x + x.transpose(1, 2), randn(2, 4, 4), dynamic=[(0,)])
    program.check(randn(3, 4, 4))
    square = module_program(lambda x: (x + x.transpose(1, 2)).relu(), randn(2, 80, 80), dynamic=[(0,)])
    for batch in (0, 1, 3):
        square.check(randn(batch, 80, 80))


def test_permutations() -> None:
    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        orders = ((0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1, 3), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1))
        return [x.permute(order).contiguous() for order in orders]

    program = module_program(forward, randn(2, 3, 4, 5))
    for shape in ((1, 1, 1, 1), (2, 17, 5, 33), (3, 16, 8, 16), (1, 65, 3, 20), (2, 0, 3, 4)):
        program.check(randn(*shape))


def test_results_beyond_the_cache() -> None:
    """A result that is larger than the last-level cache and begins on a cache line is written past it; any other is not."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[1:]) + 1

    program = module_program(forward, randn(3, 32))
    elements = 2 * cache_bytes() // 4
    large = randn(64, 32).repeat(elements // 4096, 2)
    place = torch.empty(large.numel() + 1)
    aligned, shifted = place[:-1].view(large.shape), place[1:].view(large.shape)
    wanted = forward(large)
    for executable in program.executables:
        for x, out, streams in ((large, aligned, 1), (large, shifted, 0), (large[:4], None, 0)):
            before = streamed(executable)
            result = executable(x, out=out)
            assert isinstance(result, torch.Tensor)
            torch.testing.assert_close(result, wanted[: len(x)], rtol=1e-4, atol=1e-4)
            assert streamed(executable) - before == streams


def shifted_rows(x: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
    return [(x + bias).relu(), x - bias]


def kept_rows(x: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
    return [F.softmax(x + bias, -1)]


@pytest.mark.usefixtures("every_level")  # the vectors of each are shifted by other instructions
@pytest.mark.parametrize("forward", [shifted_rows, kept_rows])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.long)])
def test_rows_that_end_within_a_line_beyond_the_cache(dtype: torch.dtype, forward: Callable[..., list[torch.Tensor]]) -> None:
    """Rows from 64 elements on begin anywhere in a line; what goes past the caches is whole lines, the ends are masked."""
    program = module_program(forward, randn(3, 32, dtype=dtype), randn(32, dtype=dtype))
    for columns, streams in ((64, True), (65, True), (127, True), (1001, True), (63, False), (17, False), (48, True)):
        x = randn(40, columns, dtype=dtype).repeat(cache_bytes() // x_bytes(dtype) // (40 * columns) + 1, 1)
        bias = randn(columns, dtype=dtype, seed=1)
        wanted = forward(x, bias)
        before = sum(map(streamed, program.executables))
        for executable in program.executables:
            results = executable(x, bias)
            assert isinstance(results, list | tuple)
            for ours, theirs in zip(results, wanted, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-5 if dtype is torch.float32 else 1e-2, atol=1e-7)
        assert (sum(map(streamed, program.executables)) > before) == streams
    program.check(randn(5, 65, dtype=dtype), randn(65, dtype=dtype))


def x_bytes(dtype: torch.dtype) -> int:
    return torch.empty((), dtype=dtype).element_size()


def cache_bytes() -> int:
    """Of the largest cache that the system knows of, 32 MiB if of none."""
    files = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(file.read_text().strip().removesuffix("K")) << 10 for file in files), default=32 << 20)


def streamed(executable: Executable) -> int:
    """Launches that wrote past the caches."""
    counters = executable.stats()["counters"]
    assert isinstance(counters, dict)
    return sum(count for name, count in counters.items() if "beyond_cache" in name)


class NarrowWidths(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.softmax(x, -1), x.transpose(1, 2).contiguous().transpose(1, 2) * 2, (x + x.amax(-1, keepdim=True)).bfloat16()


def test_every_isa_counts_the_same_versions() -> None:
    """520 is a multiple of 8 lanes, not of 16: the kernels of one ISA level had a version more, counted past the end of the counters."""
    for x, dims in (
        (torch.randn(3, 7, 520), {0: torch.export.Dim.AUTO}),
        (torch.randn(3, 520, 7), dict.fromkeys((0, 2), torch.export.Dim.AUTO)),
    ):
        for executable in both_targets(NarrowWidths().eval(), (x,), (dims,)):
            torch.testing.assert_close(executable(x), NarrowWidths()(x), rtol=1e-5, atol=1e-6)
