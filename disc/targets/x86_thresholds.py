"""The thresholds of x86-64: one row per number, with where it comes from. `thresholds.py` has the meaning and the unit of each.

Derived: the arithmetic is next to the number. Measured: on Zen 4 or Zen 5 with AVX-512 when the kernel was made, and taken over for
AVX2 where no row says otherwise; figures are here where they were kept. Chosen: with the kernel, without figures; the first to measure.
"""

from __future__ import annotations

from disc.targets.thresholds import (
    AttentionThresholds,
    Caches,
    DeviceThresholds,
    ExpansionThresholds,
    FusionThresholds,
    GemmThresholds,
    GraphThresholds,
    IndirectThresholds,
    InputLimits,
    LoopRates,
    Rates,
    RowThresholds,
    RuleThresholds,
    Thresholds,
    VersionThresholds,
    WindowThresholds,
    WinogradThresholds,
    WinogradTile,
)

# Cores of servers since Skylake and Zen 2; last: no machine's last-level cache is smaller.
CACHES = Caches(l1=32 << 10, l2=1 << 20, last=1 << 20, line=64, l1_ways=8)


# --- for all levels: what is decided once for all targets of a program ----------------------------------------------------------

_RATES = Rates(
    gigahertz=4,  # chosen: cores of servers run at 3 to 5 GHz
    instructions_per_cycle=2,  # derived: two units for vectors, so that f32 has 32 multiply-adds per cycle with AVX-512
    near_cycles=2,  # chosen: as 4 instructions, which are repeated rather than loaded from L1
    shared_cycles=4,  # chosen: as 8 instructions, for which a reader waits as long for a value of another kernel
    memory_cycles=16,  # measured, figures not kept: with more than 32 instructions a core takes longer over a line than memory does
    kept_cycles=6,  # chosen: as 12 instructions
    # Measured: norms and softmaxes of sums of several rows, 16 to 2048 rows of 1024. Kept, a sum of 2 takes 1.1 of the time, of 3 1.03, of
    # 4 0.92, of 5 0.84, of 8 0.6.
    reload_cycles=1.6,
    transpose_cycles=0.7,  # measured: 0.1 (in cache) to 0.3 ns, by the same runs as last_gain
    scatter_cycles=10,  # measured, figures not kept: some 10 where a product stores its rows element by element
)
# Measured, but where a row says otherwise: fitted to 600 timings on one thread of a Zen 5 core (family 26), in cache: softmax, log-softmax,
# norms, norm and GELU, SiLU and RMS norm, the softmax of a norm of a sum of three, GELU, with rows of 16 to 1,024 elements, 1 to 8 rows or
# vectors side by side, values kept or not. How many times as fast as the rules a plan is comes out within 10 % (the root of the mean
# square), times within 1.4 times. Not measured on Zen 4, whose vectors of 16 take two steps, nor with AVX2.
_LOOP_RATES = LoopRates(
    instruction=0.23,
    join=1.7,
    join_wait=8.2,
    once_wait=0.74,
    masked=1.34,
    streams=0.2,
    apart=2048,
    # Measured: GELU, 16 to 8192 rows of 1024, takes 1.08 times as long with 8 vectors as with 4; of a norm in memory, whose rows end within
    # lines, 1.12 times.
    crowd=0.6,
    crowded=4,
    loop=0.57,
    first_load=1.45,
    again=0.07,
    keep=0.13,
    kept=0.39,
    store=0.96,
    memory_load=4.7,  # measured: GELU of 128 MB, half of what a vector takes
    memory_store=4.7,  # measured: the same
    allocate=4.7,  # derived: a line that is not written past the caches is read first
    latency=0.89,
    stall=0.41,
    math=14,  # derived: of the table of ops (disc/ir/op_table.py), exponentials and what is longer
    live=2,
    math_live=3,
    constants=4,
    spill=0.02,
    code=512,  # chosen: half of what a cache of decoded instructions holds
    fetch=1.25,  # chosen
)
_GRAPH = GraphThresholds(
    last_channels=8,  # chosen: with fewer most lanes of a vector of channels would be idle
    # Measured alone with both transposes, 1 to 8 images: with 288 multiply-adds per transposed element (3x3 over 64 channels) 0.84 to 0.97
    # of the time, with 230 and 192 (3x3 by strides of 2) 0.94 to 1.14. With these 9 % and 0.7 cycles the two ways are equal at 249.
    last_gain=0.09,
    image_channels=4,  # chosen: padded in memory they cost little, and a line of the window is longer than they are
    batch_bytes=CACHES.l2 // 4,  # chosen: a larger weight keeps the cores busy on its own, while stacking the other operands costs a copy
    quantize_least=32,  # chosen: with fewer there is too little work per element quantized
    turned_readers=3,  # chosen: one or two products may have rows enough to pack the matrix for themselves
    # Measured: [64, 128] times B of [128, 64] is 1.07 (B = 64) and 1.06 times as fast as one product whose result is transposed.
    lifted_columns=64,
    split_row=16,  # derived: a vector
)
_FUSION = FusionThresholds(
    most_ops=256,  # chosen: a larger region compiles slowly and gains nothing, for its values no longer fit registers
    # Measured: sums, gates and norms of 12 to 40 tensors, in and out of cache (suite fusion). Without a limit 1.2 times as long on
    # average, out of cache 2.3 and 3.6 times: large tensors start at equal places of a page, and L1 has 8 lines for each. With 6: 1.06.
    most_inputs=InputLimits(loop=12, stitch=12, compute=12, attention=12),
    tiled_channels=16,  # chosen: what channels are padded to
    tiled_bytes=3 << 20,  # chosen: as of constant kernels in tiles of 4x4 (below)
)
_VERSIONS = VersionThresholds(
    few_rows=4,  # chosen: there may be more threads than that
    long_row=131072,  # derived: a core reads them in 2 us at best, and sums of parts in the caches of two cores are joined in less
    least_line=64,  # chosen: with fewer too many lines are written by halves and have to be read first
)
_RULES = RuleThresholds(
    resident_bytes=CACHES.l2 * 7 // 16,  # chosen: it stays in L2 with the rows of A and of the result
    result_bytes=CACHES.l2,  # derived: a larger result does not stay there
    direct_rows=60,  # measured on one thread: with 64 rows as fast as by the tree, with 400 faster
    task_panels=4,  # measured on one thread of Zen 5: 1024 x 3200 x 256 at 208 GF/s with 1, 236 with 4, 230 with 8
    few_tasks=16,  # chosen: there may be more threads than that
    # Measured on two threads: with 8 and 16 rows slower than without, by 2 to 31 %, from 30 on 1.04 times as fast on average. Chosen:
    # beyond 96 there are blocks of rows enough.
    shared_rows=(16, 96),
    # Measured on two threads for K = 1024 to 16384. An even number of panels, or many, and more rows, are shared by two threads well
    # enough as they are. A narrower panel has fewer rows.
    split_rows=((1, 128), (3, 64), (5, 64)),
    split_columns=32,  # chosen: a tile of fewer waits for its own sums, split or not
    split_depth=1024,  # measured: a single panel is 1.0 to 1.2 times as fast from there on
    # Derived: two threads share such a product, as the runtime starts one for each 4 us = 16,000 cycles of 32 multiply-adds: f32 with
    # AVX-512. The same for all targets and elements, as their schedules are.
    split_macs=2 * 16_000 * 32,
    split_parts=16,  # chosen
)
CPU = DeviceThresholds(
    lanes=16,  # derived: AVX-512
    smallest_cache=CACHES.last,  # derived
    rates=_RATES,
    graph=_GRAPH,
    fusion=_FUSION,
    versions=_VERSIONS,
    rules=_RULES,
)


# --- by level -------------------------------------------------------------------------------------------------------------------


def x86_thresholds(registers: int, caches: Caches) -> Thresholds:
    """The table for CPUs with so many vector registers."""
    return Thresholds(
        device=CPU,
        rows=_rows(caches),
        gemm=_gemm(registers, caches),
        window=_window(registers),
        indirect=_indirect(caches),
        winograd=_winograd(caches),
        expansion=_expansion(caches),
        attention=_attention(),
        task_cycles=64,  # chosen
        scan_cycles=4,  # derived: the latency of an addition of floats
    )


def _rows(caches: Caches) -> RowThresholds:
    return RowThresholds(
        chunk=caches.l1 // 2 // 4,  # derived: half of an L1 in f32
        task_cycles=16,  # chosen: a task is an iteration of a loop
        block_cost=12,  # chosen
        turn_cost=8,  # chosen: from there on the loop does enough else to hide an addition
        most_turn_cost=100,  # chosen
        turns=4,  # measured, figures not kept
        columns=16,  # measured, figures not kept
        columns_ahead=8,  # chosen
        chains=4,  # chosen: as many cycles as an addition takes at most
        rows=4,  # chosen: sums across the lanes of four rows overlap
        rows_bytes=4096,  # chosen: longer rows hide their latencies, and many streams defeat the hardware's prefetching
        ahead=caches.l1 // 2 // 4,  # derived: half of an L1 in f32
        strip=caches.line,  # derived: whole lines of any element, down to bytes
        reach=256,  # chosen: so many lines of the input stay close until the strip's other lines are read
        part=caches.l1 // 2,  # derived: twice an L1 in f32, so that joining parts costs little in comparison
        parts=32,  # chosen: joining them stays little
        nests=64,  # chosen: each is code of its own
        repeats=8,  # derived: the lanes of AVX2
        searched_rows=(32, 64, 128, 256, 512, 2048),  # chosen: from rows of two vectors to rows of half an L1
        rates=_LOOP_RATES,
        # Derived: what the rates are wrong by (above). Measured, of 16 kernels with rows of 100 to 4,096: with 0.03 in caches, plans that
        # were to gain 3 to 10 % (rows of 250, two side by side) lost up to 23 %; of 13 % or more, plans gained 10 to 70 %.
        least_gain=0.1,
    )


def _gemm(registers: int, caches: Caches) -> GemmThresholds:
    return GemmThresholds(
        # Derived: 6 x 4 sums, 4 columns and a row are 29 of 32 registers (112-116 GF/s of as many on Zen 4); with 6 x 2, 15 of 16.
        vectors=registers // 8,
        dot_rows=4,  # measured: 1.9 times as fast at 16384 keys
        dot_length=256,  # chosen: the products of a group of rows are straight-line code
        dot_ahead=32,  # measured, figures not kept: so little is computed that the product waits for memory alone
        few_sums=registers * 3 // 4,  # derived: the other registers hold values of A and B
        few_chains=16,  # derived: twice the 8 multiply-adds that two per cycle of 4 cycles each need
        few_ahead=4,  # chosen
        few_columns=caches.l1_ways,  # derived: rows of B that lie a multiple of 4096 bytes apart share a set of an L1
        # Measured, 768 to 3072 from memory, one thread of Zen 4, packed per panel and along, ms: 12 rows 6.9, 5.3; 48 19.5, 18.0; 96 35.5,
        # 34.2; 128 46.6, 46.5; 3072 to 768: 12 rows 6.8, 5.6; 48 19.0, 17.5; 128 45.0, 45.3. bf16, 768 to
        # 3072: 12 rows 3.06, 2.51; 36 7.50, 6.98; 48 9.11, 9.22; 96 17.2, 17.9.
        along_rows=96,
        along_depth=8,  # derived: the lanes of a sum take 3 cycles, transposing a value of B half of one
        # Measured: 1300 x 768 times 1300 x 256, A by its columns, 159 GF/s in one piece, 231 by 512; 2472 x 256 x 256 163 and 230. Half of
        # it where the next part is prefetched: 1536 x 3200 times 3200 x 512, from memory, 87 GF/s by 512, 101 by 256 and by 128.
        strided_depth=512,
    )


def _window(registers: int) -> WindowThresholds:
    return WindowThresholds(
        most_taps=128,  # chosen: past this the unrolled code no longer fits the instruction cache
        bands=(8, 16, 32),  # chosen: multiples of `rows`; with 32, the copy of 224 columns is 38 KiB for a 7x7 window
        least_part=8,  # chosen: an eighth of the rows is copied twice
        rows=registers // 4,  # derived: sums, which with one weight per window row must fit the registers
        pool_rows=4,  # chosen: their sums and a source row stay in registers, their rows of scratch in L1
        steps_per_cycle=1,  # chosen: every tap loads a vector that crosses a line
        last_channels=8,  # chosen: with fewer most lanes would be idle
        last_band=14,  # chosen: a multiple of `last_rows`
        last_strip=28,  # chosen: a multiple of `last_columns`: 20 x 34 source positions of a 7x7 window are 43 KiB
        last_rows=registers // 16,  # derived: times 7 sums, with a row of 7 weights and a source vector they fit the registers
        last_columns=7,  # chosen: small images have sides of 7, 14, 28 and 56
        last_steps_per_cycle=2,  # derived: multiply-adds of vectors that start per cycle
    )


def _indirect(caches: Caches) -> IndirectThresholds:
    return IndirectThresholds(
        block=120,  # chosen: 20 tiles; 120 rows of 768 values are a third of an L2
        chunked_block=240,  # chosen: twice as many, as each chunk is read once for every block
        panel_bytes=caches.l2 * 7 // 16,  # chosen: it stays in L2 with the source rows of a block
        chunk_bytes=caches.l2 // 4,  # chosen: it stays there with the next one, which is prefetched meanwhile, and more rows
        group_lanes=8,  # chosen: where CPUs split vectors of 16 in two, as Zen 4 does, these multiply as fast
        unrolled=16,  # measured: a loop around so few steps costs a tenth of them
    )


def _winograd(caches: Caches) -> WinogradThresholds:
    return WinogradThresholds(
        # Measured; times are those of the direct kernel's, one image. Weights: 4x4 takes 0.32 to 0.45 at 64 channels of 56x56, 128 of 28x28
        # and of 14x14, 0.51 at 256 of 14x14 (9.4 MB), where 2x2 takes 0.48 (4.2 MB); at 512 of 7x7, 2x2 takes 1.27 (17 MB). A call reads
        # all of them, and they are kept in addition to the plain ones. Outputs: 4x4 takes 1.3 to 1.5 at one plane of 4x4 or 5x5, 0.55 to
        # 0.75 at one of 7x7 or eight of 3x3; 2x2 1.05 at one of 3x3, 0.7 at one of 4x4.
        tiles=(WinogradTile(size=4, bytes=3 << 20, least=5, enough=20), WinogradTile(size=2, bytes=6 << 20, least=1, enough=10)),
        channels=16,  # measured: 0.56 at 16 channels of 56x56
        block_bytes=caches.l2 * 5 // 8,  # chosen: they stay in L2 with the weights of a panel
        resident_bytes=caches.l2 * 5 // 8,  # chosen: they stay in L2
        resident_block=12,  # chosen: two tiles of a product
    )


def _expansion(caches: Caches) -> ExpansionThresholds:
    return ExpansionThresholds(
        tile_bytes=caches.l2 // 2,  # chosen: together with its source and the results in L2
        tasks=6,  # chosen: some for each of a few threads
        shared_rows=8,  # chosen: with a window of 3 lines a quarter of the product is computed twice
        least_rows=4,  # chosen: with fewer most rows of the product would be computed twice
        tap_cycles=3,  # chosen: four vectors of channels take two cycles, and their loads
    )


def _attention() -> AttentionThresholds:
    return AttentionThresholds(
        block=96,  # chosen: a packed panel of keys serves all of them; 96 rows of 1024 scores are 384 KiB, within an L2
        keys=512,  # chosen: with 96 rows: 192 KiB of scores, and 128 KiB of values of 64 columns, within an L2
        unrolled=4,  # chosen: they share the constants, and their sums hide each other's latency
    )
