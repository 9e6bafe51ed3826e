"""A model of the time of attention on a GPU by a schedule, to rank schedules where nothing was measured: as that of products
(`block_model.py`), of two products for each block of keys and of the softmax between them.
"""

from __future__ import annotations

from math import ceil

from disc.speculation.block_model import element_bytes, l2_rate, tensor_rate
from disc.speculation.block_schedules import SPLIT_PROGRAMS, AttentionBlock
from disc.speculation.sizes import Point
from disc.targets.gpu_model_thresholds import MODEL
from disc.targets.thresholds import Gpu


def attention_seconds(block: AttentionBlock, point: Point, gpu: Gpu, kind: str) -> float:
    """Of one attention, its launch included; infinite where the schedule does not run. point: m queries, n keys, heads of k elements, batch
    of them all; threads: SMs."""
    programs = ceil(point.m / block.rows) * point.batch * block.parts
    if block.parts > 1 and programs > SPLIT_PROGRAMS:
        return float("inf")
    resident = _resident(block, point, gpu, kind)
    full, rest = divmod(programs, point.threads * resident)
    busy = full * _wave(block, point, gpu, kind, resident)
    if rest:
        busy += _wave(block, point, gpu, kind, ceil(rest / point.threads))
    moved = 2 * point.batch * (point.m + point.n) * point.k * element_bytes(kind)
    memory = moved / (gpu.bandwidth * 1e9 * point.threads / gpu.sms)
    together = max(busy, memory) + (1 - MODEL.overlap) * min(busy, memory)
    return MODEL.launch_us * 1e-6 + together + _join(block, point, gpu, programs)


def _step_bytes(block: AttentionBlock, point: Point, kind: str) -> int:
    """Of a block of keys and their values."""
    return 2 * block.keys * point.k * element_bytes(kind)


def _resident(block: AttentionBlock, point: Point, gpu: Gpu, kind: str) -> int:
    """Programs that an SM runs at a time."""
    threads = 32 * block.warps
    shared = block.stages * _step_bytes(block, point, kind) + block.rows * point.k * element_bytes(kind)
    besides = MODEL.registers if kind == "half" else MODEL.single_registers
    registers = min(MODEL.most_registers, block.rows * (point.k + block.keys) // threads + besides)
    return max(1, min(gpu.shared_sm // shared, gpu.threads // threads, gpu.registers // (registers * threads)))


def _wave(block: AttentionBlock, point: Point, gpu: Gpu, kind: str, count: int) -> float:
    """Of `count` programs that share an SM."""
    steps, scores = ceil(ceil(point.n / block.keys) / block.parts), block.rows * block.keys
    rate = tensor_rate(gpu, kind) / gpu.sms * min(1.0, count * block.rows * point.k / MODEL.full_block) ** MODEL.idle_power
    if gpu.architecture >= 90 and block.rows < MODEL.small_rows:
        rate *= MODEL.small_share
    latency = MODEL.l2_ns * 1e-9
    # The softmax waits for the first product and the second one for the softmax: other programs of the SM fill the gaps, if there are any.
    products, softmax = count * 4 * scores * point.k / rate, count * scores * MODEL.score_ns * 1e-9
    work = max(products, softmax) + min(products, softmax) / count
    step = max(work, count * _step_bytes(block, point, kind) / l2_rate(gpu), latency / max(block.stages - 1, 1))
    return 2 * latency + MODEL.memory_ns * 1e-9 + steps * step


def _join(block: AttentionBlock, point: Point, gpu: Gpu, programs: int) -> float:
    """Of joining what parts of the keys gave."""
    if block.parts == 1:
        return 0.0
    words = block.rows * (point.k + 2) * 4
    return MODEL.join_us * 1e-6 + programs * words / (l2_rate(gpu) * point.threads) + (block.parts + 1) * words / l2_rate(gpu)
