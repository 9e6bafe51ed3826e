"""GPUs as `explain` sees them: their limits by their maker's figures, and how many blocks of a kernel an SM runs at a time."""

from __future__ import annotations

from disc.explain.machine import MachineLimits
from disc.ral import _ral
from disc.targets.cuda_thresholds import GPU, GPUS, bandwidth_of
from disc.targets.thresholds import Gpu

WARP = 32
REGISTER_UNIT, WARP_UNIT = 256, 4  # registers are given to warps in such pieces, and to so many warps at a time (an SM has four parts)
OWN_SHARED = 1 << 10  # bytes of shared memory of a block that the system keeps


def gpu_of(isa: str) -> Gpu | None:
    """The generation of a GPU that code is for ("cuda:x86-64-v3+sm_90"); None for a CPU's."""
    _, _, name = isa.partition("+sm_")
    return next((gpu for gpu in GPUS if isa.startswith("cuda:") and name == str(gpu.architecture)), None)


def resident_blocks(gpu: Gpu, threads: int, registers: int, shared: int) -> int:
    """Blocks that an SM runs at a time. threads of a block, registers of a thread, bytes of shared memory of a block."""
    warps = -(-threads // WARP)
    of_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT or REGISTER_UNIT
    by_registers = gpu.registers // of_warp // WARP_UNIT * WARP_UNIT // warps
    return min(gpu.blocks, gpu.threads // (warps * WARP), by_registers, gpu.shared_sm // (shared + OWN_SHARED))


def gpu_limits(number: int) -> MachineLimits:
    """Of the GPU of this number: its maker's figures for a product of its generation, for as many SMs as it has."""
    name, architecture, processors, _ = _ral.find_gpus()["gpus"][number]
    known = next((gpu for gpu in reversed(GPUS) if gpu.architecture <= architecture), GPUS[0])
    share = 1000 * processors / known.sms  # TFLOP/s of the table's product to GFLOP/s of this one
    tf32 = share * known.tensor_rate("tf32")
    products = {"bf16": share * known.tensor_rate("bf16"), "f16": share * known.tensor_rate("f16"), "tf32": tf32, "tf32x3": tf32 / 3}
    rates = GPU.rates
    plain = 2.0 * GPU.lanes * rates.instructions_per_cycle * rates.gigahertz * processors
    fast = f"{products['bf16']:.0f} GFLOP/s of products in bf16"
    source = f"the maker's figures of an {known.product}, for the {processors} SMs of this {name}; {fast}"
    return MachineLimits(plain, bandwidth_of(known, name), source, products)
