"""The model of products on GPUs ranks schedules as anyone would in clear cases."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from disc.speculation.block_families import FAMILIES, FEW_ROWS
from disc.speculation.block_model import element_bytes, seconds
from disc.speculation.block_schedules import BlockSchedule
from disc.speculation.block_trees import HALF, KINDS
from disc.speculation.sizes import Point
from disc.targets.cuda_thresholds import GPUS


def best(gpu_number: int, m: int, n: int, k: int) -> BlockSchedule:
    gpu = GPUS[gpu_number]
    point = Point(m, n, k, 1, gpu.sms, False)
    return min(FAMILIES[gpu.architecture][HALF], key=lambda each: seconds(each, point, gpu, HALF))


@pytest.mark.parametrize("number", range(len(GPUS)))
def test_one_row_takes_short_blocks_and_many_take_large_ones(number: int) -> None:
    assert best(number, 1, 4096, 4096).rows <= 16 and best(number, FEW_ROWS + 1, 4096, 4096).rows >= 16
    large = best(number, 8192, 8192, 8192)
    assert large.rows * large.columns >= 64 * 128 and large.parts == 1


@pytest.mark.parametrize("number", range(len(GPUS)))
def test_few_blocks_of_a_long_k_are_split(number: int) -> None:
    assert best(number, 1, 256, 16384).parts > 1


@pytest.mark.parametrize("number", range(len(GPUS)))
def test_every_time_is_positive_and_grows_with_the_product(number: int) -> None:
    gpu = GPUS[number]
    for kind in KINDS:
        for schedule in FAMILIES[gpu.architecture][kind]:
            rows = schedule.rows if schedule.streams else 16
            small, large = (seconds(schedule, Point(rows, 1024, size, 1, gpu.sms, False), gpu, kind) for size in (4096, 65536))
            assert 0 < small < large < math.inf
            assert math.isinf(seconds(schedule, Point(FEW_ROWS + 1, 64, 64, 1, gpu.sms, False), gpu, kind)) == schedule.streams


def test_k_is_split_where_the_parts_have_scratch() -> None:
    split = BlockSchedule(16, 64, 128, 4, 4, parts=4)
    times = [seconds(split, Point(16, 64, 512, batch, 132, False), GPUS[0], HALF) for batch in (256, 257)]
    assert times[0] < math.inf == times[1]


def test_maps_take_time_to_make_and_spare_instructions() -> None:
    """Where k is long they are the faster ones, where a program has a step or two the slower; persistent programs make them once."""
    gpu = next(gpu for gpu in GPUS if gpu.architecture == 90)
    plain = BlockSchedule(128, 128, 64, 8, 4)
    for each in (plain, replace(plain, persistent=True)):
        short, long = (Point(8192, 8192, k, 1, gpu.sms, False) for k in (64, 16384))
        mapped = replace(each, mapped=True)
        assert seconds(mapped, short, gpu, HALF) > seconds(each, short, gpu, HALF)
        assert 0.95 * seconds(each, long, gpu, HALF) < seconds(mapped, long, gpu, HALF) < seconds(each, long, gpu, HALF)
    assert seconds(mapped, short, gpu, HALF) < seconds(replace(mapped, persistent=False), short, gpu, HALF)


@pytest.mark.parametrize("number", range(len(GPUS)))
def test_every_schedule_fits_into_shared_memory(number: int) -> None:
    gpu = GPUS[number]
    for kind in KINDS:
        for each in FAMILIES[gpu.architecture][kind]:
            assert each.stages * (each.rows + each.columns) * each.depth * element_bytes(kind) <= gpu.shared_block, (kind, str(each))
