"""Convolutions with a channels-last result: rows are the output positions of all images, columns the output channels; no patch is copied.

For every tile of rows and every tap of the window a table holds the address of a run of the source: its channels, or, of an image with
channels first, a line of the window. Where the window lies outside it is the address of zeros ("The Indirect Convolution Algorithm",
Dukhan 2019). The weights are packed ahead of time in panels of (tap, element of the run) rows. Loops: tasks are (panel, row block), row
blocks fastest unless all panels together stay in L2; within a task chunks of taps whose part of the panel stays in L2, then tiles of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...ir.costs import node_cost
from ...ir.graph import Body, Node
from ...ir.weights import ELEMENT_BYTES
from ...shapes import Dim
from ..contraction import WindowAxis, forward_indices, read_contraction
from ..index import ONE, Index, IndexSpace
from ..kernel import Kernel, PackedWeight, Version
from .emit import Predicate
from .function import Frame, body_symbols, emit_function, kernel_lines, kernel_ops, store_roots, traffic
from .gemm_plan import PANEL, VECTORS, declare
from .memory import Buffer, address
from .micro import call_of_size
from .patches import Patches, read_patches
from .taps import TABLE_ROWS, UNROLLED, Taps

ROW_BLOCK = 120  # rows of a task, a multiple of the rows of a tile
CHUNK_BYTES = 448 * 1024  # of a panel: with the source rows of a block it stays in an L2 of 1 MiB


@dataclass(frozen=True)
class TapAxis:
    """An axis of the window, and elements from one source position to the next. guarded: the window can leave the source along it;
    merged: its taps are part of a run."""

    window: WindowAxis
    step: Dim
    guarded: bool
    merged: bool = False


@dataclass(frozen=True)
class Runs:
    """The axes of a window; inner: how many elements of the source lie side by side for one tap."""

    axes: tuple[TapAxis, ...]
    inner: int


@dataclass(frozen=True, eq=False)
class Indirect:
    """A convolution whose source has its channels innermost.

    base: where (image gb, position 0) starts, in elements; columns: output channels; positions: outputs of one image.
    """

    node: Node
    leaf: Node
    base: Dim
    runs: Runs
    columns: int
    images: Dim
    positions: Dim
    result: Callable[[Dim, Dim, Dim], Index]
    packed: PackedWeight
    lanes: int

    @property
    def inner(self) -> int:
        return self.runs.inner

    @property
    def loops(self) -> list[TapAxis]:
        """The axes with a loop over taps."""
        return [axis for axis in self.runs.axes if not axis.merged]

    @property
    def taps(self) -> int:
        count = 1
        for axis in self.loops:
            count *= axis.window.window
        return count

    @property
    def element(self) -> str:
        return self.node.element

    @property
    def size(self) -> int:
        return ELEMENT_BYTES[self.element]

    @property
    def rows(self) -> Dim:
        return self.images * self.positions

    @property
    def panel_step(self) -> int:
        """Bytes of a row of a panel."""
        return self.packed.columns * self.size

    @property
    def width(self) -> int:
        """Columns of a tile."""
        return min(VECTORS[self.lanes] * self.lanes, self.packed.columns)

    @property
    def chunk(self) -> int:
        """Taps of a chunk; the chunks are about equal."""
        most = max(CHUNK_BYTES // (self.inner * self.panel_step), 1)
        count = -(-self.taps // most)
        return -(-self.taps // count)

    @property
    def chunks(self) -> int:
        return -(-self.taps // self.chunk)

    @property
    def tile_rows(self) -> int:
        """Rows whose sums are kept: a tile, or the whole row block where chunks are added up."""
        return ROW_BLOCK if self.chunks > 1 else TABLE_ROWS

    @property
    def table_offset(self) -> int:
        return self.tile_rows * PANEL * self.size

    @property
    def zeros_offset(self) -> int:
        return self.table_offset + self.chunk * TABLE_ROWS * 8

    @property
    def scratch(self) -> int:
        """Bytes: sums, table, zeros."""
        return self.zeros_offset + self.inner * self.size + 64

    @property
    def panels_first(self) -> bool:
        """Do the panels of one row block follow each other? Then the source and the result are gone through once."""
        return self.packed.k * self.panel_step * _panels(self) <= CHUNK_BYTES

    def micro(self, rows: int, vectors: int) -> Taps:
        """The micro-kernel of a tile."""
        run = self.inner if self.inner <= UNROLLED else 0
        return Taps(self.element, rows, vectors, self.lanes, self.packed.columns, run)

    def vector_counts(self) -> tuple[int, ...]:
        """The widths of tiles, in vectors."""
        widths = {min(self.width, self.columns - start) for start in range(0, self.columns, self.width)}
        return tuple(sorted({-(-width // self.lanes) for width in widths}))


def read_indirect(space: IndexSpace, body: Body, lanes: int, weights: frozenset[Node]) -> Indirect | None:
    """The convolution of a compute fusion, where it is channels last throughout with a constant kernel; None otherwise."""
    node = next((each for each in body.nodes if each.op == "stablehlo.convolution"), None)
    if node is None or node.element not in ("f32", "f64") or any(each.element != node.element for each in node.operands):
        return None
    kernel = node.operands[1]
    if kernel not in weights or len(set(kernel.uses)) != 1 or not _has_order(node):
        return None
    contraction = read_contraction(space, node)
    declare(space, contraction)
    patches = read_patches(space, contraction)
    if patches is None or not patches.channels.is_const or not contraction.m.is_const or not contraction.k.is_const:
        return None
    runs = _runs(node, patches)
    if runs is None or not contraction.m.const or not contraction.k.const:
        return None
    columns = contraction.m.const
    panel = PANEL if columns >= PANEL else (columns + 15) // 16 * 16
    packed = PackedWeight(body.arguments.index(kernel), contraction.k.const, columns, columns, 1, 0, panel)
    return Indirect(
        node, patches.leaf, patches.base, runs, columns, contraction.batch, contraction.n, contraction.result, packed, lanes
    )  # fmt: skip


def _has_order(node: Node) -> bool:
    """Channels last in the result, taps and channels outermost in the kernel, in the order in which the source has them."""
    numbers = node.attrs["dimension_numbers"]
    assert isinstance(numbers, dict)
    rank = len(node.dims)
    places = (numbers["output_feature"], numbers["kernel_output"])
    plain = node.integer("feature_group_count", 1) == 1 and not any(node.ints("window_reversal"))
    if not plain or places != (rank - 1, rank - 1):
        return False
    if numbers["input_feature"] == rank - 1:
        return numbers["kernel_input"] == rank - 2 and numbers["kernel_spatial"] == tuple(range(rank - 2))
    return numbers["input_feature"] == 1 and numbers["kernel_input"] == 0 and numbers["kernel_spatial"] == tuple(range(1, rank - 1))


def _runs(node: Node, patches: Patches) -> Runs | None:
    """Channels innermost in the source are a run, all positions of a last axis that the window never leaves included. With channels
    outermost the run is the window along the last axis, and the channels are one more axis of taps."""
    numbers, padding = node.attrs["dimension_numbers"], node.attrs.get("padding")
    assert isinstance(numbers, dict)
    spatial = len(node.dims) - 2
    pads = [(int(low), int(high)) for low, high in padding] if padding is not None else [(0, 0)] * spatial  # pyright: ignore[reportGeneralTypeIssues]
    if len(patches.axes) != spatial:
        pads = [*pads[: len(patches.axes) - 1], (0, 0)]  # the last ones are joined: windows of 1, nothing padded
    axes = [TapAxis(axis.window, axis.step, low != 0 or high > 0) for axis, (low, high) in zip(patches.axes, pads, strict=True)]
    last = axes[-1]
    stays = not last.guarded and (last.window.dilation == 1 or last.window.window == 1)
    channels = patches.channels.const
    if numbers["input_feature"] == 1:
        if not stays or last.step != ONE:
            return None
        every = WindowAxis(patches.channels, ONE, channels, 1, 1, 0)
        axes = [TapAxis(every, patches.channel_step, False), *axes[:-1], replace(last, merged=True)]
        return Runs(tuple(axes), last.window.window)
    if patches.channel_step != ONE:
        return None
    if stays and last.step == Dim.of(channels):
        return Runs((*axes[:-1], replace(last, merged=True)), channels * last.window.window)
    return Runs(tuple(axes), channels)


def emit_indirect(name: str, body: Body, space: IndexSpace, plan: Indirect) -> Kernel:
    """The kernel of a fusion that `read_indirect` accepted."""
    symbols = body_symbols(space, body)
    source = emit_function(f"{name}_v0", body, body.yields, symbols, space, plan.lanes, lambda frame: _emit(frame, plan, body))
    macs = plan.rows * (plan.columns * plan.packed.k)
    kernels = [plan.micro(rows, vectors) for rows in range(1, TABLE_ROWS + 1) for vectors in plan.vector_counts()]
    functions = tuple((each.name, each.source()) for each in kernels)
    order = "panels" if plan.panels_first else "row blocks"
    work = sum(node_cost(root) for root in body.yields)
    notes = (
        f"schedule: {TABLE_ROWS} rows x {plan.width // plan.lanes} vectors of {plan.lanes}, panels of {plan.packed.columns} columns, "
        f"row blocks of {ROW_BLOCK}, {order} fastest, {plan.chunks} chunks of {plan.chunk} taps of {plan.inner}",
        f"channels last: A read through a table of addresses; B packed ahead of time; epilogue cost {work}",
    )
    return Kernel(
        name, "compute", (Version(f"{name}_v0", ""),), symbols, _row_blocks(plan) * _panels(plan),
        Dim.of(plan.packed.k * (ROW_BLOCK * plan.packed.columns // 32) + 64), Dim.of(plan.scratch), source,
        kernel_lines(body), kernel_ops(body), notes, flops=macs * 2, bytes=traffic(space, body), functions=functions, packed=(plan.packed,),
    )  # fmt: skip


def _row_blocks(plan: Indirect) -> Dim:
    return (plan.rows + (ROW_BLOCK - 1)) // ROW_BLOCK


def _panels(plan: Indirect) -> int:
    return -(-plan.columns // plan.packed.columns)


# --- emission -----------------------------------------------------------------------------------------------------------


def _emit(frame: Frame, plan: Indirect, body: Body) -> None:
    b, e = frame.b, frame.emitter
    e.space.variable("gm", plan.rows)
    e.space.variable("gn", Dim.of(plan.columns))
    _clear(frame, plan)
    blocks = b.scalar(_row_blocks(plan))
    with b.loop(frame.begin, frame.end, b.index(1)) as task:
        inner = b.index(_panels(plan)) if plan.panels_first else blocks
        slow = b.op(f"arith.divui {task.index}, {inner} : i64")
        fast = b.op(f"arith.subi {task.index}, {b.op(f'arith.muli {slow}, {inner} : i64')} : i64")
        block, panel = (slow, fast) if plan.panels_first else (fast, slow)
        low = b.op(f"arith.muli {block}, {b.index(ROW_BLOCK)} : i64")
        high = b.op(f"arith.minsi {b.op(f'arith.addi {low}, {b.index(ROW_BLOCK)} : i64')}, {b.scalar(plan.rows)} : i64")
        weight = e.leaves[frame.arguments[plan.packed.argument]]
        assert isinstance(weight, Buffer)
        start = b.op(f"arith.muli {panel}, {b.index(plan.panel_step * plan.packed.k)} : i64")
        pointer = address(b, Buffer(weight.pointer, (), "i8"), start)
        column = b.op(f"arith.muli {panel}, {b.index(plan.packed.columns)} : i64")
        end = b.op(f"arith.minsi {b.op(f'arith.addi {column}, {b.index(plan.packed.columns)} : i64')}, {b.index(plan.columns)} : i64")
        with b.loop(column, end, b.index(plan.width)) as strip:
            last = b.op(f"arith.minsi {b.op(f'arith.addi {strip.index}, {b.index(plan.width)} : i64')}, {end} : i64")
            shift = b.op(f"arith.muli {b.op(f'arith.subi {strip.index}, {column} : i64')}, {b.index(plan.size)} : i64")
            moved = address(b, Buffer(pointer, (), "i8"), shift)
            _emit_block(frame, plan, body, (low, high), (strip.index, last), moved)


def _clear(frame: Frame, plan: Indirect) -> None:
    """The zeros that a tap outside the source reads."""
    b = frame.b
    if not any(axis.guarded for axis in plan.loops):
        return
    zeros = Buffer(address(b, Buffer(frame.scratch, (), "i8"), b.index(plan.zeros_offset)), (), plan.element)
    with b.loop(b.index(0), b.index(plan.inner), b.index(1)) as each:
        b.statement(
            f"llvm.store {b.constant(f'arith.constant 0.0 : {plan.element}')}, {address(b, zeros, each.index)} : {plan.element}, !llvm.ptr"
        )


def _emit_block(frame: Frame, plan: Indirect, body: Body, rows: tuple[str, str], columns: tuple[str, str], pointer: str) -> None:
    """A block of rows of one strip of columns: chunk by chunk of taps, tile by tile."""
    b, e = frame.b, frame.emitter
    with (
        b.loop(b.index(0), b.index(plan.taps), b.index(plan.chunk)) as chunk,
        b.loop(rows[0], rows[1], b.index(TABLE_ROWS)) as tile,
    ):
        count = b.op(f"arith.minsi {b.op(f'arith.subi {rows[1]}, {tile.index} : i64')}, {b.index(TABLE_ROWS)} : i64")
        stop = b.op(f"arith.minsi {b.op(f'arith.addi {chunk.index}, {b.index(plan.chunk)} : i64')}, {b.index(plan.taps)} : i64")
        _fill_table(frame, plan, (tile.index, count), (chunk.index, stop))
        sums = frame.scratch
        if plan.chunks > 1:
            place = b.op(f"arith.muli {b.op(f'arith.subi {tile.index}, {rows[0]} : i64')}, {b.index(PANEL)} : i64")
            sums = address(b, Buffer(frame.scratch, (), plan.element), place)
        _call_taps(frame, plan, count, columns, (chunk.index, stop), pointer, sums)
        with (
            b.when(b.op(f"arith.cmpi eq, {stop}, {b.index(plan.taps)} : i64")),
            b.loop(b.index(0), count, b.index(1)) as row,
            e.bind("gm", b.op(f"arith.addi {tile.index}, {row.index} : i64")),
        ):
            _epilogue(frame, plan, body, (sums, row.index), columns)


def _fill_table(frame: Frame, plan: Indirect, rows: tuple[str, str], taps: tuple[str, str]) -> None:
    """table[tap - first tap][row]: the address of the tap's run for `rows` = (first, count); of zeros where it lies outside."""
    b, e = frame.b, frame.emitter
    leaf = e.leaves[plan.leaf]
    assert isinstance(leaf, Buffer)
    scratch = Buffer(frame.scratch, (), "i8")
    table, zeros = address(b, scratch, b.index(plan.table_offset)), address(b, scratch, b.index(plan.zeros_offset))
    with (
        b.loop(b.index(0), rows[1], b.index(1)) as row,
        e.bind("gm", b.op(f"arith.addi {rows[0]}, {row.index} : i64")),
    ):
        image = e.space.divide(Dim.symbol("gm"), plan.positions)
        axes = plan.runs.axes
        positions = e.space.delinear(Dim.symbol("gm") - image * plan.positions, [axis.window.out for axis in axes])
        moves = [position * axis.window.stride for position, axis in zip(positions, axes, strict=True)]
        with e.bind("gb", b.scalar(image)):
            origin = plan.base
            for move, axis in zip(moves, axes, strict=True):
                origin = origin + move * axis.step
            start = b.scalar(origin)
        starts = [b.scalar(move) for move, axis in zip(moves, axes, strict=True) if not axis.merged]
        with b.loop(taps[0], taps[1], b.index(1)) as tap:
            offset, inside = _tap(frame, plan, starts, start, tap.index)
            pointer = address(b, leaf, offset)
            if inside is not None:
                pointer = b.op(f"arith.select {inside}, {pointer}, {zeros} : i1, !llvm.ptr")
            slot = b.op(f"arith.muli {b.op(f'arith.subi {tap.index}, {taps[0]} : i64')}, {b.index(TABLE_ROWS)} : i64")
            slot = b.op(f"arith.addi {slot}, {row.index} : i64")
            b.statement(
                f"llvm.store {pointer}, {b.op(f'llvm.getelementptr {table}[{slot}] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr')} "
                ": !llvm.ptr, !llvm.ptr"
            )


def _tap(frame: Frame, plan: Indirect, starts: list[str], start: str, tap: str) -> tuple[str, str | None]:
    """(offset of a tap's run in the source, whether it lies inside; None = always)."""
    b = frame.b
    inside: str | None = None
    offset, rest = start, tap
    loops = plan.loops
    for number, axis in reversed(list(enumerate(loops))):
        window = axis.window
        if number:
            quotient = b.op(f"arith.divui {rest}, {b.index(window.window)} : i64")
            at = b.op(f"arith.subi {rest}, {b.op(f'arith.muli {quotient}, {b.index(window.window)} : i64')} : i64")
            rest = quotient
        else:
            at = rest
        at = b.op(f"arith.muli {at}, {b.index(window.dilation)} : i64")
        at = b.op(f"arith.subi {at}, {b.index(window.low)} : i64")
        offset = b.op(f"arith.addi {offset}, {b.op(f'arith.muli {at}, {b.scalar(axis.step)} : i64')} : i64")
        if axis.guarded:
            valid = b.op(f"arith.cmpi ult, {b.op(f'arith.addi {starts[number]}, {at} : i64')}, {b.scalar(window.size)} : i64")
            inside = valid if inside is None else b.op(f"arith.andi {inside}, {valid} : i1")
    return offset, inside


def _call_taps(frame: Frame, plan: Indirect, count: str, columns: tuple[str, str], taps: tuple[str, str], pointer: str, sums: str) -> None:
    """Calls the micro-kernel of this tile's number of rows and vectors."""
    b = frame.b
    table = address(b, Buffer(frame.scratch, (), "i8"), b.index(plan.table_offset))
    number = b.op(f"arith.subi {taps[1]}, {taps[0]} : i64")
    panel = address(b, Buffer(pointer, (), "i8"), b.op(f"arith.muli {taps[0]}, {b.index(plan.inner * plan.panel_step)} : i64"))
    fresh = b.op(f"arith.cmpi eq, {taps[0]}, {b.index(0)} : i64")
    operands = f"{table}, {number}, {b.index(plan.inner)}, {panel}, {sums}, {b.index(PANEL)}, {fresh}"
    types = "(!llvm.ptr, i64, i64, !llvm.ptr, !llvm.ptr, i64, i1) -> ()"
    width = b.op(f"arith.subi {columns[1]}, {columns[0]} : i64")
    names = {(rows, vectors): plan.micro(rows, vectors).name for vectors in plan.vector_counts() for rows in range(1, TABLE_ROWS + 1)}
    call_of_size(b, plan.lanes, names, (count, width), f"({operands}) : {types}")


def _epilogue(frame: Frame, plan: Indirect, body: Body, tile: tuple[str, str], columns: tuple[str, str]) -> None:
    """Stores one row, bound to gm, of every root, the convolution's values taken from row `tile[1]` of the sums at `tile[0]`."""
    e = frame.emitter
    row, start = e.name("row"), e.name("start")
    e.space.variable(row, Dim.of(TABLE_ROWS))
    e.space.variable(start, Dim.of(plan.columns))
    with e.bind(row, tile[1]), e.bind(start, columns[0]):
        sums = Buffer(tile[0], (), plan.element)
        offset = Dim.symbol(row) * PANEL + Dim.symbol("gn") - Dim.symbol(start)

        def value(index: Index, predicate: Predicate | None) -> str:
            del index
            return e.load(sums, offset, predicate)

        image = e.space.divide(Dim.symbol("gm"), plan.positions)
        at = plan.result(image, Dim.symbol("gn"), Dim.symbol("gm") - image * plan.positions)
        indices = forward_indices(e.space, body, plan.node, at)
        e.leaves[plan.node] = value

        def store(names: list[str], carried: list[str]) -> list[str]:
            del names, carried
            store_roots(frame, indices, "convolution")
            return []

        whole = plan.columns % plan.width == 0
        e.lane_loop("gn", columns[0], columns[1], Dim.of(plan.width) if whole else Dim.symbol("gn"), 1, [], store)
        del e.leaves[plan.node]
