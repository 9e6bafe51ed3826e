"""Compute kernels: a dot or convolution with everything fused into its operands' packing and its epilogue.

Loops: tasks are (batch, column panel, row block), row blocks fastest, so that consecutive tasks share a packed panel; within a
task, tiles of ROWS rows call a shared micro-kernel and the epilogue reads the tile from L1.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import CompilerBug
from ...ir.costs import node_cost
from ...ir.graph import Body, Node
from ...shapes import Dim, Truth
from ..contraction import forward_indices, read_contraction
from ..index import ONE, Index, IndexSpace
from ..kernel import Kernel, PackedWeight, Version
from ..plan import check_single_dot
from .emit import Predicate
from .function import Frame, body_symbols, emit_function, kernel_lines, kernel_ops, traffic
from .gemm_plan import PANEL, ROW_BLOCK, ROWS, Gemm, declare, micro_kernels, notes, panels, plan_gemm, row_blocks, row_counts, vector_counts
from .isa import Isa
from .memory import Buffer, address
from .micro import micro_name
from .packing import right_panel, row_pointers


def emit_compute(name: str, body: Body, space: IndexSpace, isa: Isa, weights: frozenset[Node]) -> Kernel:
    """The kernel of a compute fusion; `weights` are the arguments known to be weights, which are packed ahead of time."""
    node = check_single_dot(body)
    contraction = read_contraction(space, node)
    declare(space, contraction)
    gemm, packed = plan_gemm(space, body, contraction, isa, weights)
    symbols = body_symbols(space, body)
    source = emit_function(f"{name}_v0", body, body.yields, symbols, space, isa.lanes, lambda frame: _emit(frame, gemm, body, packed))
    tasks = contraction.batch * panels(gemm) * row_blocks(gemm)
    macs = contraction.batch * contraction.m * contraction.n * contraction.k
    work = sum(node_cost(root) for root in body.yields)
    return Kernel(
        name, "compute", (Version(f"{name}_v0", ""),), symbols, tasks,
        contraction.k * (ROW_BLOCK * gemm.panel // 32) + 64, gemm.scratch(), source,
        kernel_lines(body), kernel_ops(body), notes(gemm, packed, work), flops=macs * 2, bytes=traffic(space, body),
        micro_kernels=micro_kernels(gemm), packed=(packed,) if packed else (),
    )  # fmt: skip


# --- emission -----------------------------------------------------------------------------------------------------------


def _emit(frame: Frame, gemm: Gemm, body: Body, packed: PackedWeight | None) -> None:
    b, e = frame.b, frame.emitter
    c = gemm.contraction
    with b.loop(frame.begin, frame.end, b.index(1)) as task:
        position = e.space.variable("gtask", c.batch * panels(gemm) * row_blocks(gemm))
        with e.bind("gtask", task.index):
            blocks = row_blocks(gemm)
            outer = e.space.divide(position, blocks)
            panel = outer - e.space.divide(outer, panels(gemm)) * panels(gemm)
            ssa = [b.scalar(each) for each in (position - outer * blocks, panel, e.space.divide(outer, panels(gemm)))]
            first = b.op(f"arith.cmpi eq, {task.index}, {frame.begin} : i64")
            start = b.op(f"arith.cmpi eq, {ssa[0]}, {b.index(0)} : i64")
            fresh = b.op(f"arith.ori {first}, {start} : i1")
            with e.bind("gb", ssa[2]):
                _emit_panel(frame, gemm, body, ssa[0], ssa[1], fresh, packed)


def _emit_panel(frame: Frame, gemm: Gemm, body: Body, block: str, panel: str, fresh: str, packed: PackedWeight | None) -> None:
    b, c = frame.b, gemm.contraction
    low = b.op(f"arith.muli {block}, {b.index(ROW_BLOCK)} : i64")
    high = b.op(f"arith.minsi {b.op(f'arith.addi {low}, {b.index(ROW_BLOCK)} : i64')}, {b.scalar(c.m)} : i64")
    _emit_strips(frame, gemm, body, (low, high), panel, fresh, packed)


def emit_columns(frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], fresh: str) -> None:
    """All columns of the given rows, for a batch bound to gb; `fresh`: whether the panels of B must be packed."""
    b = frame.b
    with b.loop(b.index(0), b.scalar(panels(gemm)), b.index(1)) as panel:
        _emit_strips(frame, gemm, body, rows, panel.index, fresh, None)


def _emit_strips(frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], panel: str, fresh: str, packed: PackedWeight | None) -> None:
    """One panel: as many columns at a time as the accumulators hold."""
    b, c = frame.b, gemm.contraction
    column = b.op(f"arith.muli {panel}, {b.index(gemm.panel)} : i64")
    column_end = b.op(f"arith.minsi {b.op(f'arith.addi {column}, {b.index(gemm.panel)} : i64')}, {b.scalar(c.n)} : i64")
    pointer, step = right_panel(frame, gemm, panel, column, column_end, fresh, packed)
    width = gemm.lanes * min(gemm.vectors, gemm.panel // gemm.lanes)
    if width == gemm.panel:
        _emit_rows(frame, gemm, body, rows, (column, column_end), pointer, step)
        return
    with b.loop(column, column_end, b.index(width)) as strip:
        end = b.op(f"arith.minsi {b.op(f'arith.addi {strip.index}, {b.index(width)} : i64')}, {column_end} : i64")
        shift = b.op(f"arith.subi {strip.index}, {column} : i64")
        shift = b.op(f"arith.muli {shift}, {b.index(gemm.form.unit)} : i64")
        moved = address(b, Buffer(pointer, (), "i8"), shift)
        _emit_rows(frame, gemm, body, rows, (strip.index, end), moved, step)


def _emit_rows(frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], columns: tuple[str, str], pointer: str, step: str) -> None:
    b, e = frame.b, frame.emitter
    with b.loop(rows[0], rows[1], b.index(ROWS)) as tile:
        left = b.op(f"arith.subi {rows[1]}, {tile.index} : i64")
        count = b.op(f"arith.minsi {left}, {b.index(ROWS)} : i64")
        k_step = row_pointers(frame, gemm, tile.index, count)
        width = b.op(f"arith.subi {columns[1]}, {columns[0]} : i64")
        _call_micro(frame, gemm, count, width, k_step, pointer, step)
        with b.loop(b.index(0), count, b.index(1)) as row:
            m = b.op(f"arith.addi {tile.index}, {row.index} : i64")
            with e.bind("gm", m):
                _epilogue(frame, gemm, body, row.index, columns)


def _call_micro(frame: Frame, gemm: Gemm, count: str, width: str, k_step: str, pointer: str, step: str) -> None:
    """Calls the micro-kernel of this tile's number of rows and vectors."""
    b = frame.b
    array = address(b, Buffer(frame.scratch, (), "i8"), b.index(gemm.tile_bytes))
    tile_rows, tile_vectors = row_counts(gemm), vector_counts(gemm)
    k = b.scalar(gemm.contraction.k)
    operands = f"{array}, {k_step}, {pointer}, {step}, {k}, {frame.scratch}, {b.index(PANEL)}"
    types = "(!llvm.ptr, i64, !llvm.ptr, i64, i64, !llvm.ptr, i64) -> ()"
    vectors = b.op(f"arith.divui {b.op(f'arith.addi {width}, {b.index(gemm.lanes - 1)} : i64')}, {b.index(gemm.lanes)} : i64")
    for vector_count in tile_vectors:
        for rows in tile_rows:
            call = f"func.call @{micro_name(gemm.form.name, rows, vector_count, gemm.lanes)}({operands}) : {types}"
            checks = []
            if len(tile_rows) > 1:
                checks.append(b.op(f"arith.cmpi eq, {count}, {b.index(rows)} : i64"))
            if len(tile_vectors) > 1:
                checks.append(b.op(f"arith.cmpi eq, {vectors}, {b.index(vector_count)} : i64"))
            if not checks:
                b.statement(call)
                continue
            with b.when(checks[0] if len(checks) == 1 else b.op(f"arith.andi {checks[0]}, {checks[1]} : i1")):
                b.statement(call)


def _epilogue(frame: Frame, gemm: Gemm, body: Body, row: str, columns: tuple[str, str]) -> None:
    """Stores one row of every root, the dot's values taken from the tile."""
    e = frame.emitter
    c = gemm.contraction
    name_row, name_start = e.name("row"), e.name("start")
    e.space.variable(name_row, Dim.of(ROWS))
    e.space.variable(name_start, c.n)
    with e.bind(name_row, row), e.bind(name_start, columns[0]):
        tile = Buffer(frame.scratch, (), gemm.element)
        offset = Dim.symbol(name_row) * PANEL
        if c.n == ONE:  # the index of a value names no column then, so it would be taken for one that all rows share
            e.floor = frame.b.scope
        else:
            offset += Dim.symbol("gn") - Dim.symbol(name_start)

        def dot_value(index: Index, predicate: Predicate | None) -> str:
            del index
            return e.load(tile, offset, predicate)

        at = c.result(Dim.symbol("gb"), Dim.symbol("gm"), Dim.symbol("gn"))
        indices = forward_indices(e.space, body, c.node, at)
        e.leaves[c.node] = dot_value
        _store_columns(frame, gemm, indices, columns)
        del e.leaves[c.node]
        e.floor = None


def _store_columns(frame: Frame, gemm: Gemm, indices: dict[Node, Index], columns: Sequence[str]) -> None:
    e = frame.emitter
    n = gemm.contraction.n
    width = gemm.lanes * min(gemm.vectors, gemm.panel // gemm.lanes)
    whole = e.space.env.divides(width, n) is Truth.YES

    def store(names: list[str], carried: list[str]) -> list[str]:
        del names, carried
        for root, output in zip(frame.roots, frame.outputs, strict=True):
            if root not in indices:
                raise CompilerBug(f"{root.op} (line {root.line}) is not reached from the dot of its fusion")
            e.store(output, e.space.linear(indices[root], root.dims), e.value(root, indices[root]))
        return []

    e.lane_loop("gn", columns[0], columns[1], Dim.of(width) if whole else Dim.symbol("gn"), 1, [], store)
