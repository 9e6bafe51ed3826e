"""Compute kernels: a dot or convolution with everything fused into its operands' packing and its epilogue.

Loops: tasks are (batch, panel of columns, block of rows); within a task come the parts of k, then tiles of up to ROWS rows, each a call
of a shared micro-kernel, whose tile the epilogue reads from L1. The sizes and the order are numbers that the host passes with every
call, chosen by a tree (`disc/schedules.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.costs import node_cost
from ...ir.graph import Body, Node
from ...ir.weights import ELEMENT_BYTES
from ...schedules import Tree
from ...shapes import Dim, Truth
from ..contraction import forward_indices, read_contraction
from ..index import ONE, Index, IndexSpace
from ..kernel import Choice, Kernel, PackedWeight, Version
from ..plan import check_single_dot
from .builder import Builder
from .emit import Predicate
from .function import Frame, body_symbols, emit_function, kernel_lines, kernel_ops, store_roots, traffic
from .gemm_plan import PANEL, ROWS, SCHEDULE_SYMBOLS, Gemm, declare, micro_kernels, notes, panels, plan_gemm, row_counts, vector_counts
from .isa import Isa
from .memory import Buffer, address
from .micro import call_micro, prefetch
from .packing import right_panel, row_pointers, strips


def emit_compute(name: str, body: Body, space: IndexSpace, isa: Isa, weights: frozenset[Node], tree: Tree) -> Kernel:
    """The kernel of a compute fusion; `weights` are the arguments known to be weights, which are packed ahead of time."""
    node = check_single_dot(body)
    contraction = read_contraction(space, node)
    declare(space, contraction)
    gemm, packed = plan_gemm(space, body, contraction, isa, weights)
    choice = _choice(gemm, tree)
    if choice.splits:
        gemm.tile_rows = max(schedule.rows for schedule in choice.tree.schedules)
    symbols = (*body_symbols(space, body), *SCHEDULE_SYMBOLS)
    source = emit_function(f"{name}_v0", body, body.yields, symbols, space, isa.lanes, lambda frame: _emit(frame, gemm, body, packed))
    rows, blocks = Dim.symbol(SCHEDULE_SYMBOLS[0]), Dim.symbol(SCHEDULE_SYMBOLS[1])
    macs = contraction.batch * contraction.m * contraction.n * contraction.k
    work = sum(node_cost(root) for root in body.yields)
    return Kernel(
        name, "compute", tuple(Version(f"{name}_v0", schedule.describe()) for schedule in choice.tree.schedules), symbols,
        contraction.batch * panels(gemm) * blocks, contraction.k * rows * gemm.panel // 32 + 64, gemm.scratch(), source,
        kernel_lines(body), kernel_ops(body), notes(gemm, packed, work), flops=macs * 2, bytes=traffic(space, body),
        micro_kernels=micro_kernels(gemm), packed=(packed,) if packed else (), choice=choice,
    )  # fmt: skip


def _choice(gemm: Gemm, tree: Tree) -> Choice:
    """The part of the tree that these sizes leave open."""
    features = (gemm.contraction.m, gemm.contraction.n, gemm.panel_rows(), gemm.contraction.batch)
    pruned = tree.prune({number: size.const for number, size in enumerate(features) if size.is_const})
    depth = features[2].const if features[2].is_const else None
    splits = gemm.left is not None and any(depth is None or schedule.k < depth for schedule in pruned.schedules)
    return Choice(pruned, features, ROWS, splits)


# --- emission -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Walk:
    """How a task goes through k, as SSA values.

    depth: rows of the panel at a time; ahead: whether the next part of B is prefetched, i1; last: whether no task of this panel
    follows; splits: whether there may be several parts.
    """

    depth: str
    ahead: str
    last: str
    splits: bool


def _emit(frame: Frame, gemm: Gemm, body: Body, packed: PackedWeight | None) -> None:
    """Tasks are (batch, panel of columns, block of rows), the last two in the order of the schedule."""
    b = frame.b
    c = gemm.contraction
    _, blocks, _, _, panels_first = (b.variables[name].ssa for name in SCHEDULE_SYMBOLS)
    across, panel_count = _condition(b, "ne", panels_first, b.index(0)), b.scalar(panels(gemm))
    inner, outer = (b.op(f"arith.select {across}, {pair} : i64") for pair in (f"{panel_count}, {blocks}", f"{blocks}, {panel_count}"))
    with b.loop(frame.begin, frame.end, b.index(1)) as task:
        rest, fast = _divide(b, task.index, inner)
        batch, slow = (b.index(0), rest) if c.batch == ONE else _divide(b, rest, outer)
        block, panel = (b.op(f"arith.select {across}, {pair} : i64") for pair in (f"{slow}, {fast}", f"{fast}, {slow}"))
        fresh = b.op(f"arith.ori {across}, {_condition(b, 'eq', task.index, frame.begin)} : i1")
        fresh = b.op(f"arith.ori {fresh}, {_condition(b, 'eq', block, b.index(0))} : i1")
        with b.variable("gb", batch):
            _emit_panel(frame, gemm, body, block, panel, fresh, packed)


def _condition(b: Builder, comparison: str, left: str, right: str) -> str:
    return b.op(f"arith.cmpi {comparison}, {left}, {right} : i64")


def _divide(b: Builder, value: str, divisor: str) -> tuple[str, str]:
    """(quotient, remainder) of non-negative numbers."""
    quotient = b.op(f"arith.divui {value}, {divisor} : i64")
    return quotient, b.op(f"arith.subi {value}, {b.op(f'arith.muli {quotient}, {divisor} : i64')} : i64")


def _emit_panel(frame: Frame, gemm: Gemm, body: Body, block: str, panel: str, fresh: str, packed: PackedWeight | None) -> None:
    b, c = frame.b, gemm.contraction
    rows, blocks, depth, ahead, _ = (b.variables[name].ssa for name in SCHEDULE_SYMBOLS)
    low = b.op(f"arith.muli {block}, {rows} : i64")
    high = b.op(f"arith.minsi {b.op(f'arith.addi {low}, {rows} : i64')}, {b.scalar(c.m)} : i64")
    last = _condition(b, "eq", b.op(f"arith.addi {block}, {b.index(1)} : i64"), blocks)
    walk = _Walk(depth, _condition(b, "ne", ahead, b.index(0)), last, gemm.tile_rows > ROWS)
    _emit_strips(frame, gemm, body, (low, high), panel, fresh, packed, walk)


def emit_columns(frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], fresh: str) -> None:
    """All columns of the given rows, for a batch bound to gb; `fresh`: whether the panels of B must be packed."""
    b = frame.b
    never = b.constant("arith.constant false")
    walk = _Walk(b.scalar(gemm.panel_rows()), never, never, False)
    with b.loop(b.index(0), b.scalar(panels(gemm)), b.index(1)) as panel:
        _emit_strips(frame, gemm, body, rows, panel.index, fresh, None, walk)


def _emit_strips(
    frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], panel: str, fresh: str, packed: PackedWeight | None, walk: _Walk
) -> None:
    """One panel: as many columns at a time as the accumulators hold."""
    b, c = frame.b, gemm.contraction
    column = b.op(f"arith.muli {panel}, {b.index(gemm.panel)} : i64")
    column_end = b.op(f"arith.minsi {b.op(f'arith.addi {column}, {b.index(gemm.panel)} : i64')}, {b.scalar(c.n)} : i64")
    pointer, step = right_panel(frame, gemm, panel, column, column_end, fresh, packed)
    with strips(b, gemm, (column, column_end), pointer) as (strip, moved):
        _emit_parts(frame, gemm, body, rows, strip, moved, step, walk)


def _emit_parts(
    frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], columns: tuple[str, str], pointer: str, step: str, walk: _Walk
) -> None:
    """The parts of k one after the other; the sums of all rows stay in scratch from part to part."""
    b = frame.b
    k = b.scalar(gemm.contraction.k)
    if not walk.splits:
        always = b.constant("arith.constant true")
        never = b.constant("arith.constant false")
        _emit_tiles(frame, gemm, body, rows, columns, _Part(b.index(0), k, pointer, step, never, always, b.index(0)), walk)
        return
    length = b.op(f"arith.muli {walk.depth}, {b.index(gemm.form.group)} : i64")
    end = b.op(f"arith.maxsi {k}, {b.index(1)} : i64")  # without values of k the sums are zeros, which must still be stored
    whole = _condition(b, "sge", length, k)
    tile_step = b.op(f"arith.select {whole}, {b.index(0)}, {b.index(PANEL * ELEMENT_BYTES[gemm.element])} : i64")
    with b.loop(b.index(0), end, length) as part:
        stop = b.op(f"arith.addi {part.index}, {length} : i64")
        count = b.op(f"arith.subi {b.op(f'arith.minsi {stop}, {k} : i64')}, {part.index} : i64")
        row, _ = _divide(b, part.index, b.index(gemm.form.group))
        moved = address(b, Buffer(pointer, (), "i8"), b.op(f"arith.muli {row}, {step} : i64"))
        later, final = _condition(b, "ne", part.index, b.index(0)), _condition(b, "sge", stop, k)
        _emit_tiles(frame, gemm, body, rows, columns, _Part(part.index, count, moved, step, later, final, tile_step), walk)


@dataclass(frozen=True)
class _Part:
    """A part of k, as SSA values.

    start, count: which values; pointer, step: its rows of the panel; later: whether it is added to a tile that earlier parts left;
    final: whether results are stored after it; tile_step: bytes of scratch from the tile of one row to that of the next.
    """

    start: str
    count: str
    pointer: str
    step: str
    later: str
    final: str
    tile_step: str


def _emit_tiles(frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], columns: tuple[str, str], part: _Part, walk: _Walk) -> None:
    """Tiles of as equal a number of rows as can be: 8 rows are 4 and 4, not 6 and 2, which would wait for memory."""
    b, e = frame.b, frame.emitter
    total = b.op(f"arith.subi {rows[1]}, {rows[0]} : i64")
    passes = b.op(f"arith.divui {b.op(f'arith.addi {total}, {b.index(ROWS - 1)} : i64')}, {b.index(ROWS)} : i64")
    passes = b.op(f"arith.maxsi {passes}, {b.index(1)} : i64")
    height = b.op(f"arith.subi {b.op(f'arith.addi {total}, {passes} : i64')}, {b.index(1)} : i64")
    height = b.op(f"arith.maxsi {b.op(f'arith.divui {height}, {passes} : i64')}, {b.index(1)} : i64")
    ahead = _Ahead(frame, gemm, part, walk, passes)
    with b.loop(rows[0], rows[1], height) as tile:
        left = b.op(f"arith.subi {rows[1]}, {tile.index} : i64")
        count = b.op(f"arith.minsi {left}, {height} : i64")
        done = b.op(f"arith.subi {tile.index}, {rows[0]} : i64")
        place = address(b, Buffer(frame.scratch, (), "i8"), b.op(f"arith.muli {done}, {part.tile_step} : i64"))
        k_step = row_pointers(frame, gemm, tile.index, count)
        with b.when(part.final):
            _prefetch_results(frame, gemm, body, tile.index, count, columns[0])
        width = b.op(f"arith.subi {columns[1]}, {columns[0]} : i64")
        _call_micro(frame, gemm, count, width, k_step, part, place, ahead.at(b.op(f"arith.divui {done}, {height} : i64")))
        with b.when(part.final), b.loop(b.index(0), count, b.index(1)) as row:
            m = b.op(f"arith.addi {tile.index}, {row.index} : i64")
            with e.bind("gm", m):
                _epilogue(frame, gemm, body, place, row.index, columns)


class _Ahead:
    """Where the tiles of one part prefetch: each its share of the next part of a packed B, which follows this one in memory."""

    def __init__(self, frame: Frame, gemm: Gemm, part: _Part, walk: _Walk, passes: str) -> None:
        self.frame = frame
        self.possible = gemm.packed and gemm.width == gemm.panel
        if not self.possible:
            return
        b = frame.b
        size = b.op(f"arith.muli {_divide(b, part.count, b.index(gemm.form.group))[0]}, {b.index(gemm.panel_step)} : i64")
        self.start = address(b, Buffer(part.pointer, (), "i8"), size)
        self.share = b.op(f"arith.divui {size}, {passes} : i64")
        not_final = b.op(f"arith.xori {part.final}, {b.constant('arith.constant true')} : i1")
        wanted = b.op(f"arith.andi {walk.ahead}, {b.op(f'arith.ori {walk.last}, {not_final} : i1')} : i1")
        step = b.op(f"arith.divui {b.index(gemm.panel_step)}, {passes} : i64")
        self.wanted = wanted
        self.step = b.op(f"arith.select {wanted}, {step}, {b.index(0)} : i64")

    def at(self, number: str) -> tuple[str, str]:
        """(address, bytes per row of B) for tile `number` of the part."""
        b = self.frame.b
        if not self.possible:
            return self.frame.scratch, b.index(0)
        own = address(b, Buffer(self.start, (), "i8"), b.op(f"arith.muli {number}, {self.share} : i64"))
        return b.op(f"arith.select {self.wanted}, {own}, {self.frame.scratch} : i1, !llvm.ptr"), self.step


def _prefetch_results(frame: Frame, gemm: Gemm, body: Body, start: str, count: str, column: str) -> None:
    """Fetches the lines that the epilogue will write, while the micro-kernel computes (stores that miss cost 6 % at 512 x 3072)."""
    b, e, c = frame.b, frame.emitter, gemm.contraction
    indices = forward_indices(e.space, body, c.node, c.result(Dim.symbol("gb"), Dim.symbol("gm"), Dim.symbol("gn")))
    with b.loop(b.index(0), count, b.index(1)) as row, e.bind("gm", b.op(f"arith.addi {start}, {row.index} : i64")):
        for vector in range(gemm.width // gemm.lanes):
            with e.bind("gn", b.op(f"arith.addi {column}, {b.index(vector * gemm.lanes)} : i64")):
                for root, output in zip(frame.roots, frame.outputs, strict=True):
                    if root in indices:
                        place = address(b, output, b.scalar(e.space.linear(indices[root], root.dims)))
                        b.statement(prefetch(place, write=True))


def _call_micro(frame: Frame, gemm: Gemm, count: str, width: str, k_step: str, part: _Part, tile: str, ahead: tuple[str, str]) -> None:
    """Calls the micro-kernel of this tile's number of rows and vectors."""
    b = frame.b
    array = address(b, Buffer(frame.scratch, (), "i8"), b.index(gemm.tile_bytes))
    skip = b.op(f"arith.muli {part.start}, {k_step} : i64")
    right = f"{part.pointer}, {part.step}, {part.count}"
    operands = f"{array}, {skip}, {k_step}, {right}, {tile}, {b.index(PANEL)}, {part.later}, {ahead[0]}, {ahead[1]}"
    call_micro(b, gemm.form, gemm.lanes, row_counts(gemm), vector_counts(gemm), (count, width), operands)


def _epilogue(frame: Frame, gemm: Gemm, body: Body, place: str, row: str, columns: tuple[str, str]) -> None:
    """Stores one row of every root, the dot's values taken from the tile."""
    e = frame.emitter
    c = gemm.contraction
    name_row, name_start = e.name("row"), e.name("start")
    e.space.variable(name_row, Dim.of(ROWS))
    e.space.variable(name_start, c.n)
    with e.bind(name_row, row), e.bind(name_start, columns[0]):
        tile = Buffer(place, (), gemm.element)
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
    whole = e.space.env.divides(gemm.width, gemm.contraction.n) is Truth.YES

    def store(names: list[str], carried: list[str]) -> list[str]:
        del names, carried
        store_roots(frame, indices, "dot")
        return []

    e.lane_loop("gn", columns[0], columns[1], Dim.of(gemm.width) if whole else Dim.symbol("gn"), 1, [], store)
