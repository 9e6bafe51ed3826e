"""Convolutions with a channels-last result: rows are the output positions of all images, columns the output channels; no patch is copied.

For every tile of rows and every tap of the window a table holds the address of a run of the source: its channels, or, of an image with
channels first, a line of the window. Where the window lies outside it is the address of zeros ("The Indirect Convolution Algorithm",
Dukhan 2019), and where it does for all rows of a tile, the tap is left out. The weights are packed ahead of time in panels of (tap,
element of the run) rows. Loops: tasks are (panel, row block), row blocks fastest unless all panels together stay in L2; within a task
chunks of taps whose part of the panel stays in L2, then tiles of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from disc.codegen.mlir.builder import Builder
from disc.codegen.plan.index import IndexSpace
from disc.codegen.plan.kernel import Kernel, Version
from disc.codegen.plan.summary import kernel_ops, traffic
from disc.codegen.plan.symbols import body_symbols
from disc.codegen.x86.conv.indirect_plan import Indirect
from disc.codegen.x86.conv.taps import ENTRY, TABLE_ROWS
from disc.codegen.x86.function import Frame, emit_function, product_cost
from disc.codegen.x86.gemm.epilogue import Epilogue
from disc.codegen.x86.gemm.micro import call_of_size
from disc.codegen.x86.gemm.plan import PANEL, share
from disc.codegen.x86.memory import Buffer, address
from disc.ir.graph import Body
from disc.shapes import Dim

ROWS_TYPE = f"vector<{ENTRY}xi64>"  # a number for each row of a tile
MASK_TYPE = f"vector<{ENTRY}xi1>"


def emit_indirect(name: str, body: Body, space: IndexSpace, plan: Indirect) -> Kernel:
    """The kernel of a fusion that `read_indirect` accepted."""
    symbols = body_symbols(space, body)
    source = emit_function(f"{name}_v0", body, body.yields, symbols, space, plan.target, lambda frame: emit_tasks(frame, plan, body))
    macs = plan.rows * (plan.columns * plan.packed.k)
    of_task = Dim.of(plan.packed.k * plan.row_block * plan.packed.columns)
    return Kernel(
        name, "compute", (Version(f"{name}_v0"),), symbols, plan.tasks,
        product_cost(plan.target, (plan.form.left, of_task)), Dim.of(plan.scratch), source,
        body.lines(), kernel_ops(body), flops=macs * 2, bytes=traffic(space, body),
        functions=plan.functions(), packed=(plan.packed,),
    )  # fmt: skip


# --- emission -----------------------------------------------------------------------------------------------------------


def emit_tasks(frame: Frame, plan: Indirect, body: Body) -> None:
    """The loop over the tasks of a kernel."""
    b, e = frame.b, frame.emitter
    e.space.variable("gm", plan.rows)
    e.space.variable("gn", Dim.of(plan.columns))
    if plan.guards:
        clear_zeros(frame, address(b, Buffer(frame.scratch, (), "i8"), b.index(plan.zeros_offset)), plan.zeros, plan.source_element)
    blocks, panels = b.scalar(plan.row_blocks), b.index(plan.panels)
    rows, some = b.scalar(plan.rows), b.op(f"arith.maxsi {blocks}, {b.index(1)} : i64")
    tiles = b.op(f"arith.ceildivui {b.op(f'arith.ceildivui {rows}, {some} : i64')}, {b.index(TABLE_ROWS)} : i64")
    block_rows = b.op(f"arith.muli {tiles}, {b.index(TABLE_ROWS)} : i64")
    with b.loop(frame.begin, frame.end, b.index(1)) as task:
        inner = panels if plan.panels_first else blocks
        slow = b.op(f"arith.divui {task.index}, {inner} : i64")
        fast = b.op(f"arith.subi {task.index}, {b.op(f'arith.muli {slow}, {inner} : i64')} : i64")
        block, panel = (slow, fast) if plan.panels_first else (fast, slow)
        if plan.panels_first:
            last = b.op(f"arith.cmpi ult, {b.op(f'arith.subi {task.index}, {frame.begin} : i64')}, {panels} : i64")
        else:
            last = b.op(f"arith.cmpi eq, {b.op(f'arith.addi {block}, {b.index(1)} : i64')}, {blocks} : i64")
        low = b.op(f"arith.muli {block}, {block_rows} : i64")
        high = b.op(f"arith.minsi {b.op(f'arith.addi {low}, {block_rows} : i64')}, {rows} : i64")
        weight = e.leaves[frame.arguments[plan.packed.argument]]
        assert isinstance(weight, Buffer)
        start = b.op(f"arith.muli {panel}, {b.index(plan.taps * plan.tap_bytes)} : i64")
        start = b.op(f"arith.addi {start}, {b.index(plan.offset)} : i64")
        pointer = address(b, Buffer(weight.pointer, (), "i8"), start)
        column = b.op(f"arith.muli {panel}, {b.index(plan.packed.columns)} : i64")
        end = b.op(f"arith.minsi {b.op(f'arith.addi {column}, {b.index(plan.packed.columns)} : i64')}, {b.index(plan.columns)} : i64")
        with b.loop(column, end, b.index(plan.width)) as strip:
            stop = b.op(f"arith.minsi {b.op(f'arith.addi {strip.index}, {b.index(plan.width)} : i64')}, {end} : i64")
            shift = b.op(f"arith.muli {b.op(f'arith.subi {strip.index}, {column} : i64')}, {b.index(plan.form.unit)} : i64")
            moved = address(b, Buffer(pointer, (), "i8"), shift)
            _emit_block(frame, plan, epilogue_of(frame, plan, body), (low, high), _Strip((strip.index, stop), moved, last))


@dataclass(frozen=True)
class _Strip:
    """Columns [begin, end) whose part of the panel starts at `pointer`. last: i1, whether what follows the panel in memory is the next to
    be read; otherwise it is this panel again."""

    columns: tuple[str, str]
    pointer: str
    last: str


def epilogue_of(frame: Frame, plan: Indirect, body: Body) -> Epilogue:
    """What follows the sums of row gm, which is a position of an image."""
    image = frame.emitter.space.divide(Dim.symbol("gm"), plan.positions)
    at = plan.result(image, Dim.symbol("gn"), Dim.symbol("gm") - image * plan.positions)
    return Epilogue(body, plan.node, at, Dim.of(plan.columns), plan.width, plan.element, "convolution")


def clear_zeros(frame: Frame, pointer: str, count: int, element: str) -> None:
    """Writes the `count` zeros that replace a run outside the source."""
    b = frame.b
    with b.loop(b.index(0), b.index(count), b.index(1)) as each:
        place = address(b, Buffer(pointer, (), element), each.index)
        b.statement(f"llvm.store {b.constant(f'arith.constant 0.0 : {element}')}, {place} : {element}, !llvm.ptr")


def _emit_block(frame: Frame, plan: Indirect, epilogue: Epilogue, rows: tuple[str, str], strip: _Strip) -> None:
    """A block of rows of one strip of columns: chunk by chunk of taps, tile by tile, tiles as equal in height as can be."""
    b, e = frame.b, frame.emitter
    total = b.op(f"arith.subi {rows[1]}, {rows[0]} : i64")
    passes = b.op(f"arith.ceildivui {total}, {b.index(TABLE_ROWS)} : i64")
    with (
        b.loop(b.index(0), b.index(plan.taps), b.index(plan.chunk)) as chunk,
        b.loop(b.index(0), passes, b.index(1)) as tile,
    ):
        done, end = (share(b, number, total, passes) for number in (tile.index, b.op(f"arith.addi {tile.index}, {b.index(1)} : i64")))
        start, count = b.op(f"arith.addi {rows[0]}, {done} : i64"), b.op(f"arith.subi {end}, {done} : i64")
        stop = b.op(f"arith.minsi {b.op(f'arith.addi {chunk.index}, {b.index(plan.chunk)} : i64')}, {b.index(plan.taps)} : i64")
        final = b.op(f"arith.cmpi eq, {stop}, {b.index(plan.taps)} : i64")
        live = _fill_table(frame, plan, (start, count), (chunk.index, stop), strip)
        sums = frame.scratch
        if plan.chunks > 1:
            sums = address(b, Buffer(frame.scratch, (), plan.element), b.op(f"arith.muli {done}, {b.index(PANEL)} : i64"))
        with b.when(final):
            epilogue.prefetch(frame, start, count, strip.columns[0])
        ahead = _ahead(frame, plan, strip, (chunk.index, stop), (tile.index, passes))
        fresh = b.op(f"arith.cmpi eq, {chunk.index}, {b.index(0)} : i64")
        _call_taps(frame, plan, (count, strip), live, (sums, fresh), ahead)
        with (
            b.when(final),
            b.loop(b.index(0), count, b.index(1)) as row,
            e.bind("gm", b.op(f"arith.addi {start}, {row.index} : i64")),
        ):
            epilogue.store_row(frame, sums, row.index, strip.columns)


def _fill_table(frame: Frame, plan: Indirect, rows: tuple[str, str], taps: tuple[str, str], strip: _Strip) -> str:
    """The entries of the taps of which a run lies in the source for one of `rows` = (first, count), of zeros for the others; how many.

    Where the windows of the rows start takes divisions, once per row; the taps are then added to all rows at a time. What stands in
    place of rows beyond `count` is never read.
    """
    b = frame.b
    leaf = frame.emitter.leaves[plan.leaf]
    assert isinstance(leaf, Buffer)
    scratch = Buffer(frame.scratch, (), "i8")
    table, starts, zeros = (address(b, scratch, b.index(place)) for place in (plan.table_offset, plan.starts_offset, plan.zeros_offset))
    group = b.op(f"arith.divui {strip.columns[0]}, {b.index(plan.group)} : i64") if plan.group else b.index(0)
    with frame.emitter.bind("gg", group):
        _fill_starts(frame, plan, rows, starts)
    source, nothing = (spread(b, b.op(f"llvm.ptrtoint {pointer} : !llvm.ptr to i64")) for pointer in (leaf.pointer, zeros))
    vectors = [b.op(f"llvm.load {_entry(b, starts, b.index(number))} : !llvm.ptr -> {ROWS_TYPE}") for number in range(1 + len(plan.guards))]
    origins = b.op(f"arith.muli {vectors[0]}, {spread(b, b.index(plan.source_size))} : {ROWS_TYPE}")
    origins = b.op(f"arith.addi {origins}, {source} : {ROWS_TYPE}")
    numbers = b.constant(f"arith.constant dense<{list(range(ENTRY))}> : {ROWS_TYPE}")
    exist = b.op(f"arith.cmpi ult, {numbers}, {spread(b, rows[1])} : {ROWS_TYPE}")
    with b.loop(taps[0], taps[1], b.index(1), [(b.index(0), "i64")]) as tap:
        offset, moves = _tap(frame, plan, tap.index)
        moved = b.op(f"arith.muli {offset}, {b.index(plan.source_size)} : i64")
        addresses = b.op(f"arith.addi {origins}, {spread(b, moved)} : {ROWS_TYPE}")
        inside = exist
        for axis, positions, move in zip(plan.guards, vectors[1:], moves, strict=True):
            at = b.op(f"arith.addi {positions}, {spread(b, move)} : {ROWS_TYPE}")
            within = b.op(f"arith.cmpi ult, {at}, {spread(b, b.scalar(axis.window.size))} : {ROWS_TYPE}")
            inside = b.op(f"arith.andi {inside}, {within} : {MASK_TYPE}")
        some = b.op(f"vector.reduction <or>, {inside} : {MASK_TYPE} into i1")
        addresses = b.op(f"arith.select {inside}, {addresses}, {nothing} : {MASK_TYPE}, {ROWS_TYPE}")
        entry = _entry(b, table, tap.carried[0])
        b.statement(f"llvm.store {addresses}, {entry} {{alignment = 8 : i64}} : {ROWS_TYPE}, !llvm.ptr")
        right = address(b, Buffer(strip.pointer, (), "i8"), b.op(f"arith.muli {tap.index}, {b.index(plan.tap_bytes)} : i64"))
        slot = b.op(f"llvm.getelementptr {entry}[{TABLE_ROWS}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
        b.statement(f"llvm.store {right}, {slot} : !llvm.ptr, !llvm.ptr")
        tap.yields.append(b.op(f"arith.addi {tap.carried[0]}, {b.op(f'arith.extui {some} : i1 to i64')} : i64"))
    return tap.results[0]


def _fill_starts(frame: Frame, plan: Indirect, rows: tuple[str, str], starts: str) -> None:
    """Vectors of ENTRY numbers, one per row: where its window starts in the source, and the positions along every guarded axis."""
    b, e = frame.b, frame.emitter
    axes = plan.runs.axes
    with b.loop(b.index(0), rows[1], b.index(1)) as row, e.bind("gm", b.op(f"arith.addi {rows[0]}, {row.index} : i64")):
        image = e.space.divide(Dim.symbol("gm"), plan.positions)
        positions = e.space.delinear(Dim.symbol("gm") - image * plan.positions, [axis.window.out for axis in axes])
        moves = [position * axis.window.stride for position, axis in zip(positions, axes, strict=True)]
        with e.bind("gb", b.scalar(image)):
            origin = plan.base
            for move, axis in zip(moves, axes, strict=True):
                origin = origin + move * axis.step
            values = [b.scalar(origin), *(b.scalar(move) for move, axis in zip(moves, axes, strict=True) if axis in plan.guards)]
        for number, value in enumerate(values):
            slot = b.op(f"arith.addi {b.index(number * ENTRY)}, {row.index} : i64")
            b.statement(
                f"llvm.store {value}, {b.op(f'llvm.getelementptr {starts}[{slot}] : (!llvm.ptr, i64) -> !llvm.ptr, i64')} : i64, !llvm.ptr"
            )


def _entry(b: Builder, pointer: str, number: str) -> str:
    """Where vector `number` of ENTRY 64-bit values lies."""
    offset = b.op(f"arith.muli {number}, {b.index(ENTRY)} : i64")
    return b.op(f"llvm.getelementptr {pointer}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, i64")


def spread(b: Builder, value: str) -> str:
    """A number in all places of a vector of ENTRY."""
    return b.op(f"vector.broadcast {value} : i64 to {ROWS_TYPE}")


def _tap(frame: Frame, plan: Indirect, tap: str) -> tuple[str, list[str]]:
    """(elements from where a window starts to a tap's run, positions from there along each guarded axis)."""
    b = frame.b
    moves: list[str] = []
    offset, rest = b.index(0), tap
    for number, axis in reversed(list(enumerate(plan.loops))):
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
            moves.append(at)
    return offset, moves[::-1]


def _ahead(frame: Frame, plan: Indirect, strip: _Strip, taps: tuple[str, str], tile: tuple[str, str]) -> tuple[str, str]:
    """(address, bytes per row of the panel) of what a tile = (number, of how many) prefetches: its share of the next chunk."""
    b = frame.b
    if plan.width != plan.packed.columns:
        return frame.scratch, b.index(0)
    following = b.op(f"arith.muli {taps[1]}, {b.index(plan.tap_bytes)} : i64")
    wanted = strip.last
    if not plan.panels_first:
        again = b.op(f"arith.cmpi eq, {taps[1]}, {b.index(plan.taps)} : i64")
        again = b.op(f"arith.select {again}, {b.index(0)}, {following} : i64")
        following = b.op(f"arith.select {strip.last}, {following}, {again} : i64")
    if not plan.panels_first and plan.chunks > 1:
        wanted = b.constant("arith.constant true")
    size = b.op(f"arith.muli {b.op(f'arith.subi {taps[1]}, {taps[0]} : i64')}, {b.index(plan.tap_bytes)} : i64")
    place = b.op(f"arith.addi {following}, {share(b, tile[0], size, tile[1])} : i64")
    own = address(b, Buffer(strip.pointer, (), "i8"), place)
    step = b.op(f"arith.divui {b.index(plan.panel_step)}, {tile[1]} : i64")
    step = b.op(f"arith.select {wanted}, {step}, {b.index(0)} : i64")
    return b.op(f"arith.select {wanted}, {own}, {frame.scratch} : i1, !llvm.ptr"), step


def _call_taps(frame: Frame, plan: Indirect, tile: tuple[str, _Strip], taps: str, sums: tuple[str, str], ahead: tuple[str, str]) -> None:
    """Calls the micro-kernel of this tile = (rows, columns) for the first `taps` entries of the table. sums: where, are they to start."""
    b = frame.b
    count, strip = tile
    table = address(b, Buffer(frame.scratch, (), "i8"), b.index(plan.table_offset))
    operands = f"{table}, {taps}, {b.index(plan.steps)}, {sums[0]}, {b.index(PANEL)}, {sums[1]}, {ahead[0]}, {ahead[1]}"
    types = "(!llvm.ptr, i64, i64, !llvm.ptr, i64, i1, !llvm.ptr, i64) -> ()"
    width = b.op(f"arith.subi {strip.columns[1]}, {strip.columns[0]} : i64")
    names = {(rows, vectors): plan.micro(rows, vectors).name for vectors in plan.vector_counts() for rows in range(1, TABLE_ROWS + 1)}
    call_of_size(b, plan.lanes, names, (count, width), f"({operands}) : {types}")
