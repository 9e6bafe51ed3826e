"""A model of the time of a product on a GPU by a schedule, to rank schedules where nothing was measured: waves of programs over the SMs,
the rate of the tensor cores, loads from L2 and from memory, how long the pipeline takes to fill.
"""

from __future__ import annotations

from math import ceil

from disc.speculation.block_families import FEW_ROWS
from disc.speculation.block_schedules import SPLIT_PROGRAMS, BlockSchedule
from disc.speculation.block_trees import BASE, FAST, HALF, SINGLE
from disc.speculation.sizes import Point
from disc.targets.gpu_model_thresholds import MODEL
from disc.targets.thresholds import Gpu

BYTES = 16  # that an instruction loads for a thread


def seconds(schedule: BlockSchedule, point: Point, gpu: Gpu, kind: str) -> float:
    """Of one product, its launch included; infinite where the schedule does not run, or is for fewer rows. point.threads: SMs, of which a
    GPU of the same kind may have another number than `gpu`: what they share grows with it."""
    if schedule.streams and point.m > FEW_ROWS:
        return float("inf")
    programs = ceil(point.m / schedule.rows) * ceil(point.n / schedule.columns) * point.batch * schedule.parts
    if schedule.parts > 1 and programs > SPLIT_PROGRAMS:
        return float("inf")
    resident = _resident(schedule, gpu, kind)
    full, rest = divmod(programs, point.threads * resident)
    busy = full * _wave(schedule, point, gpu, kind, resident)
    if rest:
        busy += _wave(schedule, point, gpu, kind, ceil(rest / point.threads))
    if schedule.mapped:  # each program makes its maps before it loads anything
        busy += MODEL.map_us * 1e-6 * (1 if schedule.persistent else full + (rest > 0))
    memory = _memory(schedule, point, gpu, kind, min(programs, point.threads * resident))
    together = max(busy, memory) + (1 - MODEL.overlap) * min(busy, memory)
    return MODEL.launch_us * 1e-6 + together + _join(schedule, point, gpu)


def element_bytes(kind: str) -> int:
    """Of a factor."""
    return 2 if kind == HALF else 4


def _resident(schedule: BlockSchedule, gpu: Gpu, kind: str) -> int:
    """Programs that an SM runs at a time."""
    threads, sums, besides = 32 * schedule.warps, schedule.rows * schedule.columns, MODEL.single_registers
    shared = (schedule.stages if schedule.stages > 1 else 0) * _step_bytes(schedule, kind) or 1
    if schedule.streams:  # a sum for each value of k of a step, and what is loaded of one
        sums = (schedule.rows + 1) * schedule.columns * schedule.depth
    if schedule.streams or kind == HALF:
        besides = MODEL.registers
    registers = min(MODEL.most_registers, sums // threads + besides)
    return max(1, min(gpu.shared_sm // shared, gpu.threads // threads, gpu.registers // (registers * threads)))


def _step_bytes(schedule: BlockSchedule, kind: str) -> int:
    return (schedule.rows + schedule.columns) * schedule.depth * element_bytes(kind)


def _wave(schedule: BlockSchedule, point: Point, gpu: Gpu, kind: str, count: int) -> float:
    """Of `count` programs that share an SM."""
    steps = ceil(ceil(point.k / schedule.depth) / schedule.parts)
    sums = schedule.rows * schedule.columns
    store = count * sums * element_bytes(kind) / l2_rate(gpu)
    if schedule.streams:  # the right factor comes from memory, most of it
        latency = MODEL.memory_ns * 1e-9
        step = max(
            count * sums * schedule.depth * MODEL.multiply_ns * 1e-9,
            count * _step_bytes(schedule, kind) / l2_rate(gpu),
            latency / max(schedule.stages - 1, 1),
        )
        return latency + steps * step + store
    rate = tensor_rate(gpu, kind) / gpu.sms * min(1.0, count * sums / MODEL.full_block) ** MODEL.idle_power
    if gpu.architecture >= 90 and schedule.rows < MODEL.small_rows:
        rate *= MODEL.small_share
    latency = MODEL.l2_ns * 1e-9
    step = max(
        count * 2 * sums * schedule.depth / rate,
        count * _step_bytes(schedule, kind) / l2_rate(gpu),
        count * _shared_bytes(schedule, gpu, kind) / (MODEL.shared_rate * 1e9),
        latency / max(schedule.stages - 1, 1),
    )
    if schedule.mapped:  # without the part of the warps' own instructions that other schedules do not hide
        step -= (1 - MODEL.overlap) * count * _step_bytes(schedule, kind) / BYTES * MODEL.address_ns * 1e-9
    return latency + MODEL.memory_ns * 1e-9 + steps * step + store


def tensor_rate(gpu: Gpu, kind: str) -> float:
    """Operations of the tensor cores in a second."""
    if kind == HALF:
        return 1e12 * gpu.tensor_rate("bf16")
    return 1e12 * gpu.tensor_rate("tf32") / {FAST: 1, SINGLE: 3}[BASE[kind]]


def l2_rate(gpu: Gpu) -> float:
    """Bytes that an SM loads from L2 in a second."""
    return 1e9 * dict(MODEL.l2_rates)[gpu.architecture]


def _shared_bytes(schedule: BlockSchedule, gpu: Gpu, kind: str) -> int:
    """What the warps of a program read from shared memory in a step: each its rows and columns, or, on Hopper and later, the tensor cores
    theirs for 64 rows at a time."""
    size = schedule.depth * element_bytes(kind)
    if gpu.architecture >= 90 and schedule.rows >= MODEL.small_rows:
        return (schedule.rows + schedule.columns * (schedule.rows // MODEL.small_rows)) * size
    down = max(1, min(schedule.warps, schedule.rows // 16, 2 if schedule.warps <= 4 else 4))
    return (schedule.rows * (schedule.warps // down) + schedule.columns * down) * size


def _memory(schedule: BlockSchedule, point: Point, gpu: Gpu, kind: str, active: int) -> float:
    """Of loading each factor and storing the result once, with as many bytes on the way as `active` programs ask for ahead."""
    rate = gpu.bandwidth * 1e9 * point.threads / gpu.sms
    moved = point.batch * (point.m * point.k + point.k * point.n + point.m * point.n) * element_bytes(kind)
    ahead = active * max(schedule.stages - 1, 1) * _step_bytes(schedule, kind)
    return moved / (rate * min(1.0, ahead / (rate * MODEL.memory_ns * 1e-9)))


def _join(schedule: BlockSchedule, point: Point, gpu: Gpu) -> float:
    """Of adding the parts of k."""
    if schedule.parts == 1:
        return 0.0
    sums = ceil(point.m / schedule.rows) * schedule.rows * point.n * point.batch * 4
    all_sms = l2_rate(gpu) * point.threads
    last = (schedule.parts + 1) * schedule.rows * schedule.columns * 4 / l2_rate(gpu)
    return MODEL.join_us * 1e-6 + schedule.parts * sums / all_sms + last
