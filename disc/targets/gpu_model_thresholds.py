"""What the model of a GPU's products reckons with besides the table of devices: one row per number, with where it comes from.

The model ranks schedules (`speculation/block_model.py`); it does not predict times. Derived: the arithmetic is next to the number. Chosen:
from what is published of these GPUs; none was measured.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelThresholds:
    """launch_us: of a kernel, from the end of the one before. join_us: what counting and the last program's wait add where k is
    split. memory_ns, l2_ns: until a load from memory, or from L2, comes. l2_rates: (architecture, GB/s that an SM loads from L2);
    shared_rate: GB/s from its shared memory. full_block: results of the programs on an SM that keep its tensor cores busy; with fewer, the
    rate falls by the power `idle_power` of the share. small_rows: of a block, below which Hopper's and later tensor cores are reached by
    older instructions, at small_share of their rate. registers, single_registers: of a thread, besides its sums, for operands of 16 bits
    and of f32. most_registers: of a thread. overlap: the share of computing, or of loading from memory, that
    the longer one of them hides; of what else warps do in a step, too. map_us: until a program's tensor maps may be used; address_ns: of an
    SM, for the instructions of loading 16 bytes without one. score_ns, multiply_ns: of an SM, for an element of attention's scores, and for
    a product outside of tensor cores.
    """

    launch_us: float
    join_us: float
    memory_ns: float
    l2_ns: float
    l2_rates: tuple[tuple[int, float], ...]
    shared_rate: float
    full_block: int
    idle_power: float
    small_rows: int
    small_share: float
    registers: int
    single_registers: int
    most_registers: int
    overlap: float
    map_us: float
    address_ns: float
    score_ns: float
    multiply_ns: float


MODEL = ModelThresholds(
    launch_us=3,  # chosen: an empty kernel behind another one takes 2 to 4 us
    # Measured on an H200: 1.2 us less (median) than with counters that were cleared before each launch, which was taken as 2.5.
    join_us=1.3,
    memory_ns=700,  # chosen: published latencies are 500 to 800 ns
    l2_ns=250,  # chosen: published latencies are 200 to 300 ns
    # Derived for 90: 5.5 TB/s, as published for an H100, over 132 SMs. Chosen: as much for the other GPUs of data centers, and less for
    # those that have less shared memory, whose best schedules in the paper (§5.2.2, table 3: an A10) have blocks of 128 x 128 and more.
    l2_rates=((80, 42), (86, 24), (89, 30), (90, 42), (100, 42), (120, 30)),
    shared_rate=218,  # derived: 128 bytes a cycle at 1.7 GHz
    full_block=128 * 128,  # chosen: kernels that reach the peak have blocks of that many results
    idle_power=0.35,  # chosen: one block of 64 x 64 then has 0.6 of the peak
    small_rows=64,  # derived: an instruction of a warp group multiplies 64 rows
    small_share=0.6,  # chosen: published peaks of the older instructions on an H100
    registers=64,  # derived: of kernels that were compiled: 250 for 128 x 128 by 4 warps, 182 by 8
    single_registers=120,  # derived: of kernels that were compiled: 205 for 128 x 128 by 8 warps
    most_registers=255,  # derived: the instruction set
    overlap=0.9,  # chosen: of two schedules that wait for memory alike, the one that computes less is taken
    # Chosen, as nobody has measured it: of two maps a dozen writes to shared memory each, a copy to L2, and a fence that waits for it, each
    # one way or both through L2.
    map_us=1.0,
    address_ns=0.028,  # derived: some six instructions (place, mask, copy) of 128 lanes at 1.7 GHz
    multiply_ns=0.0046,  # derived: 128 lanes of an SM at 1.7 GHz
    score_ns=0.055,  # derived: some 12 instructions of 128 lanes at 1.7 GHz
)
