"""The thresholds of NVIDIA GPUs, and the table of their generations: one row per number, with where it comes from.

`thresholds.py` has the meaning and the unit of each. Vendor: the maker's data sheet or architecture paper. Derived, measured, chosen: as in
`x86_thresholds.py`; nothing here was measured on a GPU yet.
"""

from __future__ import annotations

from disc.targets.thresholds import DeviceThresholds, FusionThresholds, Gpu, GpuThresholds, InputLimits, Rates
from disc.targets.x86_thresholds import CPU

KIB, MIB = 1 << 10, 1 << 20

# Every generation that code is made for, the least first. CUDA C++ Programming Guide, "Compute Capabilities", has the limits of blocks and
# SMs; a block may have 1 KiB less shared memory than the guide's figure for an SM, which the system keeps.
GPUS = (
    Gpu(
        architecture=80,
        product="A100 SXM 80 GB",
        sms=108,  # vendor
        shared_block=163 * KIB,  # vendor
        shared_sm=164 * KIB,  # vendor
        l2=40 * MIB,  # vendor
        registers=1 << 16,  # vendor
        threads=2048,  # vendor
        blocks=32,  # vendor
        bandwidth=2039,  # vendor
        tensor=(("bf16", 312), ("f16", 312), ("tf32", 156)),  # vendor
    ),
    Gpu(
        architecture=86,
        product="A10",
        sms=72,  # vendor
        shared_block=99 * KIB,  # vendor
        shared_sm=100 * KIB,  # vendor
        l2=6 * MIB,  # vendor
        registers=1 << 16,  # vendor
        threads=1536,  # vendor
        blocks=16,  # vendor
        bandwidth=600,  # vendor
        tensor=(("bf16", 125), ("f16", 125), ("tf32", 62)),  # vendor
    ),
    Gpu(
        architecture=89,
        product="L40S",
        sms=142,  # vendor
        shared_block=99 * KIB,  # vendor
        shared_sm=100 * KIB,  # vendor
        l2=96 * MIB,  # vendor
        registers=1 << 16,  # vendor
        threads=1536,  # vendor
        blocks=24,  # vendor
        bandwidth=864,  # vendor
        tensor=(("bf16", 362), ("f16", 362), ("tf32", 183)),  # vendor
    ),
    Gpu(
        architecture=90,
        product="H100 SXM",
        sms=132,  # vendor
        shared_block=227 * KIB,  # vendor
        shared_sm=228 * KIB,  # vendor
        l2=50 * MIB,  # vendor
        registers=1 << 16,  # vendor
        threads=2048,  # vendor
        blocks=32,  # vendor
        bandwidth=3350,  # vendor
        tensor=(("bf16", 989), ("f16", 989), ("tf32", 495)),  # vendor
    ),
    Gpu(
        architecture=100,
        product="B200",
        sms=148,  # vendor
        shared_block=227 * KIB,  # vendor
        shared_sm=228 * KIB,  # vendor
        l2=126 * MIB,  # vendor
        registers=1 << 16,  # vendor
        threads=2048,  # vendor
        blocks=32,  # vendor
        bandwidth=8000,  # vendor
        tensor=(("bf16", 2250), ("f16", 2250), ("tf32", 1125)),  # vendor
    ),
    Gpu(
        architecture=120,
        product="GeForce RTX 5090",
        sms=170,  # vendor
        shared_block=99 * KIB,  # vendor
        shared_sm=100 * KIB,  # vendor
        l2=96 * MIB,  # vendor
        registers=1 << 16,  # vendor
        threads=1536,  # vendor
        blocks=24,  # vendor
        bandwidth=1792,  # vendor
        tensor=(("bf16", 210), ("f16", 210), ("tf32", 105)),  # vendor
    ),
)

# Memory of other products than those of the table, in GB/s, by a part of the name that the driver has for them.
BANDWIDTHS = (
    ("H200", 4800),  # vendor
    ("H100 PCIe", 2000),  # vendor
    ("A100-SXM4-40GB", 1555),  # vendor
)


def bandwidth_of(known: Gpu, product: str) -> float:
    """GB/s of the memory of a product of a generation, of which `known` is the table's."""
    return next((rate for words, rate in BANDWIDTHS if words in product), known.bandwidth)


# A core is an SM of an H100, a vector what a warp computes with one instruction: 32 elements, 128 bytes of f32.
_RATES = Rates(
    gigahertz=2,  # vendor: 1.98 at most
    instructions_per_cycle=4,  # vendor: four schedulers, each of which starts an instruction of a warp per cycle
    near_cycles=1,  # vendor: L1 and shared memory give 128 bytes per cycle
    shared_cycles=5,  # derived: some 5.5 TB/s of L2, shared by 132 SMs, are 21 to 25 bytes per cycle of each
    memory_cycles=20,  # derived: 3.35 TB/s are 13 bytes per cycle of an SM, and of each vector another one is read
    kept_cycles=2,  # derived: twice near_cycles
    reload_cycles=1,  # vendor: as near_cycles
    transpose_cycles=0.4,  # derived: 8 bytes per element, half of them written, at the rate of L2
    scatter_cycles=1.3,  # derived: a sector of 32 bytes per element, at the rate of L2
)
GPU = DeviceThresholds(
    lanes=32,  # vendor: a warp
    smallest_cache=6 * MIB,  # derived: the least L2 of the table
    rates=_RATES,
    graph=CPU.graph,  # chosen: as on CPUs, so that both read the same weights; 8 channels of bf16 are 16 bytes, as wide as a load
    fusion=FusionThresholds(
        most_ops=256,  # chosen: as on CPUs
        # Chosen: no GPU has measured it; a launch may have some 500 arguments of 8 bytes.
        most_inputs=InputLimits(loop=64, stitch=64, compute=64, attention=64),
        tiled_channels=0,  # chosen: with no bytes there are none, as the runtime has no function for GPUs
        tiled_bytes=0,  # chosen: as above
    ),
    versions=CPU.versions,  # chosen: nothing reads them, since a GPU's kernels have the versions that their emitters give them
    rules=CPU.rules,  # chosen: nothing reads them, since a GPU's schedules come from a tree of its own
)
KERNELS = GpuThresholds(
    loop=(1024, 4),  # chosen: 8 elements of a thread, which are two loads of 16 bytes of f32
    # Chosen: the rows of a short block fill the threads of four warps, with at most 16 elements of each: with four rows of 1,024, a softmax
    # beside a norm spilled. A row of up to 16,384 elements lies in the registers of 16 warps, 32 of each thread, and longer ones spilled
    # (98 registers at 16,384, spills at 32,768).
    rows=((32, 16, 4), (128, 8, 4), (1024, 2, 4), (4096, 1, 8), (16384, 1, 16)),
    wide_row=4096,  # derived: with 16,384 elements of a row in registers, code for positions of 64 bits spilled
    looped=(2048, 1, 8),  # chosen: 8 elements of a thread
    row_parts=(128, 16),  # chosen: about a program of each SM of an H100 for one row; for up to 64 rows, several
    columns=(64, 32, 8),  # chosen: 8 loads of a thread under way; with 16, of 4 warps, two sums spilled on sm_100 and sm_120
    column_parts=(32, 8),  # chosen: 2,048 columns of 32 parts, 8,192 of 8, are all the programs that may share: some 8 of each SM
    column_steps=4,  # chosen: rounds of a part, at least, so that joining takes less than reducing
    column_sums=4,  # chosen: 32 registers of a thread
    wide_product=(64, 32, 16, 4, 3),  # chosen: at most 128 registers; with 64 columns and 8 warps GELU spilled on sm_80
    wide_attention=(16, 16, 4, 2),  # chosen: with 64 keys, addresses of heads of 128 spilled
    scored_rows=64,  # measured on an H200: 190 instead of 132 TFLOP/s with 128, heads of 64
    plain_rows=32,  # chosen: with fewer, keys and values are waited for, and code for sm_80 spilled
    joined_registers=128,  # chosen: half of what a thread has, beside the sums
    scans=((64, 8, 2), (1024, 1, 4), (1, 128, 4)),  # chosen: 8 elements of a thread; side by side, one line of a thread
    scatter=(128, 4, 256),  # chosen: one element of a thread; two programs of each SM
    ranks=(32, 64, 4),  # chosen: 16 comparisons of a thread; with 32 of 64-bit positions, code for sm_80 spilled
    search=(256, 4),  # chosen: two searches of a thread, whose loads overlap
    grouped=(32, 64, 32, 4),  # chosen: groups of few rows waste at most 31 rows of a block
    segments=(8, 128, 4),  # chosen: 8 loads of a thread under way, and the programs of a batch of 8 at widths of 768 are 48
)
