"""What the passes, speculation and code generation decide by: sizes of tiles and tasks, limits, rates.

`Thresholds` are those of a target's kernels. `DeviceThresholds` are those of what is decided once for all targets of a device, whose
passes run once.

Here is what each number means, and its unit; the numbers, with where they come from, are in one table per target
(`x86_thresholds.py`). A number of a layout that code, weights and runtime agree on is no threshold: it is where the layout is defined.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caches:
    """What code may reckon with, in bytes. l1, l2: of a core; last: of the smallest last-level cache, which cores share; line: of a cache
    line. l1_ways: lines of a set of the L1."""

    l1: int
    l2: int
    last: int
    line: int
    l1_ways: int


@dataclass(frozen=True)
class Gpu:
    """What a generation of GPUs has, by the numbers of one product of it.

    architecture: of `sm_...`; product: whose numbers these are. sms: streaming multiprocessors. Bytes: shared_block, shared_sm: of shared
    memory that a block may have, and that the blocks of an SM share; l2: of the L2 cache. Of an SM: registers of 32 bits; threads, and
    blocks, at a time. bandwidth: of memory, in GB/s. tensor: dense multiply-adds on tensor cores, by element of the operands, in TFLOP/s
    (an add and a multiply each).
    """

    architecture: int
    product: str
    sms: int
    shared_block: int
    shared_sm: int
    l2: int
    registers: int
    threads: int
    blocks: int
    bandwidth: int
    tensor: tuple[tuple[str, int], ...]

    def tensor_rate(self, element: str) -> int:
        """TFLOP/s for operands of this element; of "tf32" for f32, which is multiplied as such. Raises KeyError for others."""
        return dict(self.tensor)[element]


@dataclass(frozen=True)
class Rates:
    """What a core takes, by which `disc/ir/costs.py` counts the cost of two ways to do something. A vector is one of the device's `lanes`.

    gigahertz: cycles of a nanosecond. instructions_per_cycle: vector instructions; multiply-adds are such.
    In cycles: near_cycles: to load a vector of a small value that is read again and again; shared_cycles: of a value that another kernel
    made; memory_cycles: until a vector of a result larger than the caches is written, and what it is made of is read; kept_cycles: to store
    a vector in a row of scratch and load it again; reload_cycles: to load a vector of a row once more, beside others. transpose_cycles: for
    an element of a value that a kernel transposes; scatter_cycles: for an element that is loaded or stored alone.
    """

    gigahertz: int
    instructions_per_cycle: int
    near_cycles: float
    shared_cycles: float
    memory_cycles: float
    kept_cycles: float
    reload_cycles: float
    transpose_cycles: float
    scatter_cycles: float


@dataclass(frozen=True)
class RowThresholds:
    """Loop and stitch kernels.

    chunk: elements of a flat loop per task. task_cycles: cycles that a task costs besides its elements.
    block_cost: vector instructions per element up to which a transposed block's copies of them, one per lane, are worth their code.
    turn_cost, most_turn_cost: vector instructions per element beyond which several vectors are computed side by side, and up to which
    that is worth its code; turns: so many vectors.
    columns: vectors of columns that are reduced at once. columns_ahead: rows by which a loop down several columns prefetches.
    chains: accumulators of a reduction that hide the latency of an addition.
    rows: short rows worked on at once; rows_bytes: bytes of them together up to which they are short.
    ahead: elements, at most, by which a later pass over a row prefetches the next row.
    strip: elements of the input's rows in a task of transposed blocks; reach: lanes of one column of blocks.
    part: elements of a part of a long row, at least; parts: parts of a row, at most.
    nests: loop nests of one kernel, at most. repeats: lanes in a row, at most, that one load gives the same element.
    searched_rows: lengths of rows, in elements, at which plans are compared where the length is not known; rates: what they
    cost; least_gain: the share of the rules' time that each departure from them must gain.
    """

    chunk: int
    task_cycles: int
    block_cost: int
    turn_cost: int
    most_turn_cost: int
    turns: int
    columns: int
    columns_ahead: int
    chains: int
    rows: int
    rows_bytes: int
    ahead: int
    strip: int
    reach: int
    part: int
    parts: int
    nests: int
    repeats: int
    searched_rows: tuple[int, ...]
    rates: LoopRates
    least_gain: float


@dataclass(frozen=True)
class LoopRates:
    """What the loops of row kernels take, by which plans are searched (`codegen/plan/search/`), in cycles of a core. A vector is one of the
    device's `lanes`.

    instruction: a vector instruction of a loop, as `disc/ir/op_table.py` counts them; join: the sum across the lanes of a vector, and
    join_wait: what a row waits for it, which rows side by side share; once_wait: what a row waits for an instruction of what is computed
    once per row; loop: what a loop costs before its first vector; masked: how many times as long a vector takes that is left over.
    Besides, of a vector of inputs that are first read: streams: for each row side by side, where these rows together have more than `apart`
    bytes. crowd: of such a vector, or one of results, where more than `crowded` vectors of a row are side by side.
    Of a vector: first_load: of an input that another kernel made, when it is first read; again: when a later pass reads it; keep, kept: to
    store it in a row of scratch, and to load it from there; store: of a result, in cache; memory_load, memory_store: from and to memory,
    past the caches; allocate: besides memory_store, where it goes through the caches.
    latency: of an addition in a chain of sums. stall: the share of its instructions for which a vector that is computed alone waits.
    math: instructions of an op from which on it is a function with constants. live, math_live, constants: registers that a vector of cheap
    values has, of values with functions, and that a function's constants have; spill: what a register that there is not costs, per vector.
    code: vector instructions of a loop, beyond which each takes `fetch` times as long.
    """

    instruction: float
    join: float
    join_wait: float
    once_wait: float
    masked: float
    streams: float
    apart: int
    crowd: float
    crowded: int
    loop: float
    first_load: float
    again: float
    keep: float
    kept: float
    store: float
    memory_load: float
    memory_store: float
    allocate: float
    latency: float
    stall: float
    math: int
    live: int
    math_live: int
    constants: int
    spill: float
    code: int
    fetch: float


@dataclass(frozen=True)
class GemmThresholds:
    """Products of matrices A and B.

    vectors: vectors of columns in a tile. dot_rows: rows of A, at most, whose products with rows of B are computed as dot products;
    dot_length: values of k of these, at most; dot_ahead: rows of B by which they prefetch.
    few_sums: vectors of sums, at most, of the kernel for few rows; few_chains: vectors of sums, at least, that hide the latency of a
    multiply-add; few_ahead: rows of B by which it prefetches; few_columns: columns of B, at most, that it reads side by side along k;
    along_rows: rows of A, at most, that are multiplied so, tile by tile, by a B of f32 (half as many by one of 16 bits); along_depth:
    values of k, of f32, that there must be for each of them.
    strided_depth: values of k at a time, at most, where the columns of A are contiguous.
    """

    vectors: int
    dot_rows: int
    dot_length: int
    dot_ahead: int
    few_sums: int
    few_chains: int
    few_ahead: int
    few_columns: int
    along_rows: int
    along_depth: int
    strided_depth: int


@dataclass(frozen=True)
class WindowThresholds:
    """Pools and depthwise convolutions.

    most_taps: taps of a window, at most, which are unrolled.
    Lanes along the columns: bands: output rows of a task, the smallest first; least_part: how many times the source rows that the next
    band copies again a band must see to be taken before a larger one; rows: output rows whose sums are in registers; pool_rows: output
    rows of a pool at a time; steps_per_cycle: vectors that are combined per cycle.
    Lanes along the channels: last_channels: channels, at least; last_band: output rows of a task; last_strip: output columns that are
    copied at a time; last_rows, last_columns: output rows and columns whose sums are in registers; last_steps_per_cycle: vectors that are
    combined per cycle.
    """

    most_taps: int
    bands: tuple[int, ...]
    least_part: int
    rows: int
    pool_rows: int
    steps_per_cycle: int
    last_channels: int
    last_band: int
    last_strip: int
    last_rows: int
    last_columns: int
    last_steps_per_cycle: int


@dataclass(frozen=True)
class IndirectThresholds:
    """Channels-last convolutions through a table of addresses.

    block: rows of a task, at most, a multiple of those of a tile; chunked_block: the same where a panel is read in chunks.
    panel_bytes: bytes of a panel up to which it is read whole; chunk_bytes: bytes of a chunk of a larger one, at most.
    group_lanes: lanes, at least, of a vector of columns of one group. unrolled: elements of a run, at most, that is unrolled.
    """

    block: int
    chunked_block: int
    panel_bytes: int
    chunk_bytes: int
    group_lanes: int
    unrolled: int


@dataclass(frozen=True)
class WinogradTile:
    """When tiles of `size` x `size` outputs are computed.

    bytes: bytes of transformed weights, at most. least: outputs that a tile must have to be worth its products; enough: outputs beyond
    them that are worth the weights read.
    """

    size: int
    bytes: int
    least: int
    enough: int


@dataclass(frozen=True)
class WinogradThresholds:
    """Winograd convolutions.

    tiles: the better ones first. channels: channels in and out, at least. block_bytes: bytes of a task's transformed patches and products.
    resident_bytes: bytes of transformed weights up to which a task has only resident_block tiles.
    """

    tiles: tuple[WinogradTile, ...]
    channels: int
    block_bytes: int
    resident_bytes: int
    resident_block: int


@dataclass(frozen=True)
class ExpansionThresholds:
    """A product of matrices and the depthwise convolution that reads it, in one kernel.

    tile_bytes: bytes of the product's rows for one band. tasks: tasks, at least, where bands of shared_rows output rows give as many.
    least_rows: output rows of a band, at least. tap_cycles: cycles of a tap at one position, all channels of a panel.
    """

    tile_bytes: int
    tasks: int
    shared_rows: int
    least_rows: int
    tap_cycles: int


@dataclass(frozen=True)
class AttentionThresholds:
    """Attention kernels.

    block: rows of a task, a multiple of those of a tile. keys: keys of a block of the running softmax. unrolled: vectors of a row at a
    time.
    """

    block: int
    keys: int
    unrolled: int


@dataclass(frozen=True)
class GraphThresholds:
    """Passes over stage `named`.

    last_channels: output channels, at least, of a convolution that is converted to channels last, and of a group of one. last_gain: the
    share of its multiply-adds' time that a convolution gains by it.
    image_channels: channels of a channels-first source, at most, that is read as it is.
    batch_bytes: bytes of a weight up to which it is stacked with others into a batched dot.
    quantize_least: elements, at least, that a dot contracts, and columns that it has, to be quantized.
    turned_readers: products, at least, that read one matrix along its rows, for it to be transposed once for all of them.
    lifted_columns: columns, at least, that a factor has in each instance, for a shared left factor to be multiplied by each on its own.
    split_row: elements that the last reduced dims may have, at least, to be reduced before those in front of a dim that stays.
    """

    last_channels: int
    last_gain: float
    image_channels: int
    batch_bytes: int
    quantize_least: int
    turned_readers: int
    lifted_columns: int
    split_row: int


@dataclass(frozen=True)
class InputLimits:
    """F_max of Dali (paper 004 §2.2); `disc tune` measures it for this machine.

    loop, stitch, compute, attention: values that a fusion of the kind reads from memory, at most; those of one element are not counted.
    """

    loop: int
    stitch: int
    compute: int
    attention: int


@dataclass(frozen=True)
class FusionThresholds:
    """Fusion passes.

    most_ops: ops of a fusion, at most. most_inputs: values that it reads from memory, at most. tiled_channels: of a convolution whose
    kernel is no constant, at least, for the runtime to compute it by Winograd's method, and bytes of its transformed kernels, at most.
    """

    most_ops: int
    most_inputs: InputLimits
    tiled_channels: int
    tiled_bytes: int


@dataclass(frozen=True)
class VersionThresholds:
    """Versions of loop and stitch fusions.

    few_rows: rows, at most, and long_row: elements, at least, of rows that are cut into parts. least_line: elements, at least, of a row
    that ends within a cache line, for results to bypass the caches.
    """

    few_rows: int
    long_row: int
    least_line: int


@dataclass(frozen=True)
class RuleThresholds:
    """The rules of `speculation/policy.py`, which overrule the tree of schedules.

    resident_bytes: bytes of a packed B, at most, that stays in L2; result_bytes: bytes of a result, beyond which it does not.
    direct_rows: rows beyond which parts of a deep B that is read in place are kept in L2.
    task_panels: panels, at most, of a B that is read in place in a task whose rows of A are packed, piece by piece of k, for all of them.
    few_tasks: panels of all batches up to which, and shared_rows: rows beyond and up to which, a tile is a task where there are more
    threads than panels.
    split_rows: (panels of a product whose k is split, rows up to which it is, of panels of full width). split_columns: columns of a panel,
    split_depth: rows of a panel in a part, split_macs: multiply-adds of a product, each at least, to be split; split_parts: parts, at most.
    """

    resident_bytes: int
    result_bytes: int
    direct_rows: int
    task_panels: int
    few_tasks: int
    shared_rows: tuple[int, int]
    split_rows: tuple[tuple[int, int], ...]
    split_columns: int
    split_depth: int
    split_macs: int
    split_parts: int


@dataclass(frozen=True)
class DeviceThresholds:
    """What is the same for all targets of a device.

    lanes: f32 in the widest vector register of any, which those of the others divide. smallest_cache: bytes of the last-level cache that
    every machine has.
    """

    lanes: int
    smallest_cache: int
    rates: Rates
    graph: GraphThresholds
    fusion: FusionThresholds
    versions: VersionThresholds
    rules: RuleThresholds


@dataclass(frozen=True)
class Thresholds:
    """Those of a target's kernels, and of its device. task_cycles: cycles that a task costs besides its arithmetic; scan_cycles: cycles of
    a step of a scan."""

    device: DeviceThresholds
    rows: RowThresholds
    gemm: GemmThresholds
    window: WindowThresholds
    indirect: IndirectThresholds
    winograd: WinogradThresholds
    expansion: ExpansionThresholds
    attention: AttentionThresholds
    task_cycles: int
    scan_cycles: int


@dataclass(frozen=True)
class GpuThresholds:
    """What the kernels of a GPU are planned by, as tuples in the order of the fields of the plans (`codegen/cuda/plans.py`).

    loop: elements and warps of a block of a loop kernel. rows: columns, rows and warps of the blocks in which rows lie whole, the shortest
    first; wide_row: the columns of the longest of these where positions have 64 bits; looped: of that of longer rows; row_parts: programs
    that share one of those. columns: columns of a result in a block of a loop kernel that reduces columns, elements of each that are loaded
    at once, warps; column_parts: programs that share those; column_steps: blocks of rows of each part, at least; column_sums: sums that a
    loop over rows makes, at most. wide_product: rows, columns, steps of k, warps and stages of a block of a product whose positions have 64
    bits; wide_attention: queries, keys, warps and stages of one of attention; scored_rows: of a block of attention with a number beside
    every score, at most; plain_rows: of one in which keys that need no masks have a loop of their own, at least. joined_registers: of a
    thread, that take what others have left of a block, at once. scans: columns, rows and warps of a block of short lines, of long ones, and
    of lines side by side. scatter: updates that a program looks through at once, warps, programs among which what is updated is dealt out,
    at most. ranks: elements of a program that sorts or counts, those that they are compared with at once, warps. search: values of a
    program, warps. grouped: rows, columns, steps of k and warps of a block of a product of groups. segments: rows of a segment that are
    loaded at once, columns of a program, warps.
    """

    loop: tuple[int, int]
    rows: tuple[tuple[int, int, int], ...]
    wide_row: int
    looped: tuple[int, int, int]
    row_parts: tuple[int, ...]
    columns: tuple[int, int, int]
    column_parts: tuple[int, ...]
    column_steps: int
    column_sums: int
    wide_product: tuple[int, int, int, int, int]
    wide_attention: tuple[int, int, int, int]
    scored_rows: int
    plain_rows: int
    joined_registers: int
    scans: tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]]
    scatter: tuple[int, int, int]
    ranks: tuple[int, int, int]
    search: tuple[int, int]
    grouped: tuple[int, int, int, int]
    segments: tuple[int, int, int]
