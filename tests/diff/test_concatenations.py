"""Concatenations: the loops of each part, whatever the part is, wherever the parts meet and whatever reads them."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F
from compiled import ModuleProgram, between_unmapped_memory, module_program, plans_of, randn

from disc.codegen.x86.plans import RegionPlan, RowsPlan
from disc.errors import ShapeConstraintError

pytestmark = pytest.mark.sampled(2)

PARTS = ((0, 0), (0, 5), (5, 0), (1, 1), (2, 13), (15, 17), (16, 16), (17, 31), (64, 65), (3, 1031))
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)


def regions(program: ModuleProgram) -> list[RegionPlan]:
    """Of all its loop and stitch kernels."""
    return [region for plan in plans_of(program.executables[0]) if isinstance(plan, RowsPlan) for region in plan.regions]


def sized(dim: int, size: int, rest: tuple[int, int]) -> list[int]:
    return [*rest[:dim], size, *rest[dim:]]


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_of_every_kind(dim: int, dtype: torch.dtype) -> None:
    """Plain, computed, transposed, broadcast, sliced and reversed parts, all in one; every dim dynamic."""

    def join(a: torch.Tensor, b: torch.Tensor, row: torch.Tensor) -> list[torch.Tensor]:
        computed = ~a if a.dtype == torch.bool else a * 3 + 1
        turned = b.permute(2, 0, 1)
        wide = row.expand(turned.shape)
        return [torch.cat([a, turned], dim), torch.cat([turned, computed, wide, a.flip(dim), a.narrow(dim, 0, 1)], dim)]

    def inputs(first: int, second: int, rest: tuple[int, int]) -> list[torch.Tensor]:
        turned = sized(dim, second, rest)
        row = [1, 1, 1]
        row[2] = turned[2]
        return [randn(*sized(dim, max(first, 1), rest), dtype=dtype), randn(*turned[1:], turned[0], dtype=dtype), randn(*row, dtype=dtype)]

    program = module_program(join, *inputs(4, 5, (3, 6)), dynamic=((0, 1, 2), (0, 1, 2), (2,)))
    for first, second in PARTS[: 10 if dtype == torch.float32 else 7]:
        for rest in ((3, 17), (1, 1), (2, 64)):
            program.check(*inputs(first, second, rest))


@pytest.mark.parametrize("dim", [0, 1])
def test_what_reads_a_concatenation(dim: int) -> None:
    """Element-wise ops, slices, reversals, sums along and across the parts, and rows of softmaxes and norms."""

    def read(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        joined = torch.cat([a.exp(), b * 2], dim)
        results = [joined.tanh() + 1, joined[1:, 1:] * 2, joined.flip(0, 1), joined.sum(0), joined.sum(1), joined.amax(1, keepdim=True)]
        results += [torch.softmax(joined, -1), F.layer_norm(joined, joined.shape[1:]), joined.t().contiguous() + 1, joined.reshape(-1) + 1]
        return [*results, joined.unsqueeze(1) + joined.unsqueeze(0), torch.cat([joined, joined.sin()], 1 - dim)]

    def inputs(first: int, second: int, rest: int) -> list[torch.Tensor]:
        return [randn(first, rest), randn(second, rest)] if dim == 0 else [randn(rest, first), randn(rest, second)]

    program = module_program(read, *inputs(4, 5, 7), dynamic=((0, 1), (0, 1)))
    for first, second in PARTS[1:8]:
        for rest in (1, 33):
            program.check(*inputs(first, second, rest))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, past: torch.Tensor) -> list[torch.Tensor]:
    heads = x.reshape(x.shape[0], x.shape[1], 3, 24).transpose(1, 2)
    halves = torch.cat([-heads[..., 12:], heads[..., :12]], -1)
    interleaved = torch.stack([-heads[..., 1::2], heads[..., ::2]], -1).flatten(-2)
    first = torch.cat([heads[..., :8] * 2, heads[..., 8:]], -1).transpose(1, 2).reshape(x.shape)
    return [torch.cat([past, heads * cos + halves * sin], 2), heads * cos + interleaved * sin, first + 1]


def test_rotated_keys_behind_a_cache() -> None:
    """Concatenations within one another; halves of a head that is merged with the others; the loops are those of the parts."""
    example = randn(2, 3, 72), randn(3, 24), randn(3, 24), randn(2, 3, 5, 24)
    program = module_program(rotated, *example, dynamic=((0, 1), (0,), (0,), (0, 2)))
    for batch, tokens, past in ((1, 1, 0), (1, 1, 1), (2, 7, 0), (2, 0, 3), (3, 1, 500), (1, 16, 15), (0, 2, 2)):
        program.check(randn(batch, tokens, 72), randn(tokens, 24), randn(tokens, 24), randn(batch, 3, past, 24))
    assert {(region.form, region.tiles) for region in regions(program)} == {
        ("groups", 2),
        ("groups", 1),
    }  # rows of 12 + 12, and of whole tokens


def test_many_and_narrow_parts() -> None:
    """More parts than become loops of their own, parts of one column each, and static sizes that no vector divides."""

    def join(x: torch.Tensor) -> list[torch.Tensor]:
        columns = [x[:, number] * number for number in range(4)]
        return [
            torch.stack(columns, -1), torch.stack(columns, 0), torch.cat([x[:, :3] * 2, x[:, 3:], x[:, 1:2]], 1),
            torch.cat([x + number for number in range(80)], 0), torch.cat([x.sum(1)[number : number + 1] for number in range(2)]),
        ]  # fmt: skip

    program = module_program(join, randn(5, 4), dynamic=((0,),))
    for rows in (2, 3, 16, 17, 67):
        program.check(randn(rows, 4))


def test_borders_that_only_the_call_knows() -> None:
    """Two concatenations whose parts meet in different places, added; a slice that begins in either part."""

    def join(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> list[torch.Tensor]:
        left, right = torch.cat([a * 2, b], 1), torch.cat([c, d * 3], 1)
        return [left + right, left[:, 3:] * 2]

    program = module_program(join, *(randn(3, size) for size in (9, 5, 7, 7)), dynamic=((1,), (1,), (1,), (1,)))
    for sizes in ((9, 5, 7, 7), (3, 17, 17, 3), (40, 1, 1, 40), (16, 16, 31, 1), (1, 5, 4, 2), (2, 3, 2, 3)):
        program.check(*(randn(3, size) for size in sizes))


def test_beyond_the_caches() -> None:
    """Results that bypass the caches, in rows that begin within a line."""
    program = module_program(lambda a, b: torch.cat([a, b * 2], 1), randn(3, 5), randn(3, 4), dynamic=((0, 1), (0, 1)))
    for rows, first, second in ((6001, 1021, 1009), (3000, 2048, 4096)):
        program.check(randn(rows, first), randn(rows, second))


def test_nothing_is_read_far_from_an_operand() -> None:
    """What a mask hides is not looked for before the operand: the CPU would take some 100 times as long where nothing is mapped."""

    def pads(x: torch.Tensor) -> list[torch.Tensor]:
        before = F.pad(x, (0, 0, 2000, 0))
        return [before * 2, before.flip(1) + 1, F.pad(x, (900, 0)) * 2]

    program = module_program(pads, randn(3, 64), dynamic=((0,),))
    x = randn(100, 64)
    far = between_unmapped_memory(x, 64 << 20, first=True)
    for executable in program.executables:
        times: dict[int, list[float]] = {0: [], 1: []}
        for _ in range(7):
            for number, each in enumerate((x, far)):
                start = time.thread_time()
                executable(each)
                times[number].append(time.thread_time() - start)
        assert min(times[1]) < 5 * min(times[0]), times
    program.check(far)


@pytest.mark.parametrize(("first", "second"), [(1, 1), (7, 7), (1, 6), (3, 3)])
def test_rows_of_parts_of_equal_size(first: int, second: int) -> None:
    """The loops over the rows of either part are equal, their reductions are not."""

    def read(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        joined = torch.cat([a, b.tanh()], 1)
        return [torch.softmax(joined, -1), F.layer_norm(joined * 2, joined.shape[-1:])]

    program = module_program(read, randn(2, first, 64), randn(2, second, 64), dynamic=((0,), (0,)))
    for batch in (1, 3, 5):
        program.check(randn(batch, first, 64), randn(batch, second, 64))


@pytest.mark.parametrize("padding", [0, 7, 2000])
def test_a_part_without_elements_looks_nothing_up(padding: int) -> None:
    """A part of one looked-up row or none, whose index is the same for all of its elements: of none, no index is out of range."""

    def join(table: torch.Tensor, indices: torch.Tensor, keep: torch.Tensor, tail: torch.Tensor) -> torch.Tensor:
        return F.pad(torch.cat([table[indices[:, keep]].flatten(1), tail.clamp(min=0.0)], 1), (0, padding), value=-1.0)

    def inputs(table: int, batch: int, kept: bool, tail: int) -> list[torch.Tensor]:
        return [randn(table, 16), torch.zeros(batch, 1, dtype=torch.int64), torch.tensor([kept]), randn(batch, tail)]

    program = module_program(join, *inputs(3, 4, True, 5), dynamic=((0,), (0,), (), (0, 1)))
    for table, batch, kept, tail in (
        (0, 2, False, 3),
        (0, 4, False, 0),
        (1, 3, True, 9),
        (5, 2, True, 17),
        (0, 1, False, 1),
        (2, 5, False, 33),
    ):
        program.check(*inputs(table, batch, kept, tail))
    for executable in program.executables:
        with pytest.raises(ShapeConstraintError, match="index 0 is out of range for a dim of size 0"):
            executable(*inputs(0, 2, True, 3))
