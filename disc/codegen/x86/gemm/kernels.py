"""Compute kernels: a dot or convolution with everything fused into its operands' packing and its epilogue.

Loops: tasks are (batch, panel of columns, block of rows, part of k where that is split: `split_k.py`); within a task come pieces of k, then
tiles of up to ROWS rows, each a call of a shared micro-kernel, whose tile the epilogue reads from L1. The sizes and the order are numbers
that the host passes with every call, chosen by a tree (`disc/speculation/schedules.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from disc.codegen.mlir.builder import Builder
from disc.codegen.plan.contraction import declare, read_contraction
from disc.codegen.plan.index import ONE, IndexSpace, split_linear
from disc.codegen.plan.kernel import Choice, Kernel, PackedWeight, Version
from disc.codegen.plan.rows import check_single_dot
from disc.codegen.plan.summary import kernel_ops, traffic
from disc.codegen.plan.symbols import body_symbols
from disc.codegen.x86.function import Frame, emit_function, product_cost
from disc.codegen.x86.gemm.dots import key_step
from disc.codegen.x86.gemm.epilogue import Epilogue
from disc.codegen.x86.gemm.few_rows import (
    directions,
    emit_few_rows,
    exchange_operands,
    few_rows_functions,
    may_be_few_rows,
    most_rows,
)
from disc.codegen.x86.gemm.micro import call_micro, half
from disc.codegen.x86.gemm.packing import block_pointers, pack_blocks, right_panel, row_pointers, strips
from disc.codegen.x86.gemm.plan import (
    LINE,
    PANEL,
    ROWS,
    Gemm,
    OperandAccess,
    is_transposed,
    micro_kernels,
    panel_groups,
    panels,
    plan_gemm,
    product_plan,
    row_counts,
    share,
    vector_counts,
)
from disc.codegen.x86.gemm.split_k import Share, plan_parts, share_of_task
from disc.codegen.x86.memory import Buffer, address
from disc.codegen.x86.plans import FewRowsPlan, GemmPlan, ProductPlan, check, read_schedules, tree_plan
from disc.ir.graph import Body, Node
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim
from disc.speculation.policy import Product, apply_rules, may_split, panels_of_task
from disc.speculation.schedules import SCHEDULE_SYMBOLS
from disc.speculation.tree import Tree
from disc.targets.target import Target

MOST_ROWS = 6000  # of a task: their sums may lie in scratch


def choose_compute(space: IndexSpace, body: Body, target: Target, weights: frozenset[Node], tree: Tree) -> GemmPlan:
    """The plan that the kernel of a dot or convolution should have; `weights`: the arguments known to be weights."""
    gemm, _ = _read(space, body, check_single_dot(body), target, weights)
    pruned = apply_rules(tree, product_of(gemm))
    few, turned = next(iter(directions(gemm)), "no"), gemm.contraction.turned
    kind = FewRowsPlan if few != "no" and gemm.contraction.m.is_const else GemmPlan
    return kind(product_plan(gemm), turned, few, tree_plan(pruned.tree, pruned.split_rows))


def may_compute(space: IndexSpace, body: Body, target: Target, weights: frozenset[Node], plan: GemmPlan) -> None:
    """Raises IllegalPlan for a plan that the dot or convolution cannot have."""
    gemm, _ = read_compute(space, body, target, weights, plan)
    ways, fixed = directions(gemm), gemm.contraction.m.is_const
    if isinstance(plan, FewRowsPlan):
        check(bool(ways) and fixed, "", "needs few rows, always, times a B whose rows or columns lie in memory one by one")
        check(plan.few in ways, "few", f"must be {' or '.join(ways)}")
    else:
        ways = ("no",) if fixed else ("no", *ways)
        check(plan.few in ways, "few", f"must be {' or '.join(ways)}")
    tree, product = read_schedules(plan.tree), product_of(gemm)
    for schedule in tree.schedules:
        check(0 < schedule.rows <= MOST_ROWS and schedule.rows % ROWS == 0, "schedules", f"rows are a multiple of {ROWS} up to {MOST_ROWS}")
        check(schedule.k > 0 and schedule.parts > 0, "schedules", "k and parts are at least 1")
        check(schedule.parts == 1 or may_split(product), "schedules", "k of this product cannot be split")


def read_compute(
    space: IndexSpace, body: Body, target: Target, weights: frozenset[Node], plan: GemmPlan
) -> tuple[Gemm, PackedWeight | None]:
    """The product of a plan. Raises IllegalPlan where its operands cannot be read so."""
    gemm, packed = _read(space, body, check_single_dot(body), target, weights, plan)
    gemm.few = plan.few
    return gemm, packed


def emit_compute(name: str, body: Body, space: IndexSpace, target: Target, weights: frozenset[Node], plan: GemmPlan) -> Kernel:
    """The kernel of a compute fusion; `weights` are the arguments known to be weights, which may be packed ahead of time."""
    gemm, packed = read_compute(space, body, target, weights, plan)
    contraction = gemm.contraction
    choice = _choice(gemm, plan)
    gemm.task_rows = max(schedule.rows for schedule in choice.tree.schedules)
    gemm.pieces = choice.splits and (gemm.columns or gemm.task_rows > ROWS)
    gemm.splits = choice.parts is not None
    if gemm.few == "no" and gemm.pieces and gemm.direct and gemm.columns and not gemm.splits:
        gemm.task_panels = panels_of_task(panels(gemm), target.thresholds.device.rules)
    symbols = (*body_symbols(space, body, *contraction.extents), *SCHEDULE_SYMBOLS)
    few, only = gemm.few != "no", isinstance(plan, FewRowsPlan)
    emit = lambda frame: _emit(frame, gemm, body, packed, only)  # noqa: E731
    source = emit_function(f"{name}_v0", body, body.yields, symbols, space, target, emit)
    rows, blocks, *_, span, parts = (Dim.symbol(name) for name in SCHEDULE_SYMBOLS)
    macs = contraction.batch * contraction.m * contraction.n * contraction.k
    return Kernel(
        name, "compute", tuple(Version(f"{name}_v0", schedule=schedule) for schedule in choice.tree.schedules), symbols,
        contraction.batch * panel_groups(gemm) * blocks * (parts if gemm.splits else 1),
        product_cost(target, (gemm.form.left, (span if gemm.splits else contraction.k) * rows * (gemm.task_panels * gemm.panel))),
        gemm.scratch(), source,
        body.lines(), kernel_ops(body),
        flops=macs * 2, bytes=traffic(space, body), micro_kernels=() if only else micro_kernels(gemm),
        functions=few_rows_functions(gemm) if few else (), packed=(packed,) if packed else (), choice=choice,
    )  # fmt: skip


def _read(
    space: IndexSpace, body: Body, node: Node, target: Target, weights: frozenset[Node], plan: GemmPlan | None = None
) -> tuple[Gemm, PackedWeight | None]:
    """How a dot is read. A matrix times a column should be done as a row times the matrix' transpose, where that is read in place."""
    contraction = read_contraction(space, node)
    other, product = exchange_operands(contraction), plan.product if plan is not None else None
    check(plan is None or not plan.turned or other.turned, "turned", "B is not a single column of several rows")
    if other.turned and (plan is None or plan.turned):
        declare(space, other)
        gemm, _ = plan_gemm(space, body, other, target, frozenset(), plan=product, tasks=True)
        if plan is not None or may_be_few_rows(gemm):
            return gemm, None
    declare(space, contraction)
    return plan_gemm(space, body, contraction, target, weights, plan=product, tasks=True)


def read_product(
    space: IndexSpace, body: Body, target: Target, weights: frozenset[Node], plan: ProductPlan | None = None
) -> tuple[Gemm, PackedWeight | None]:
    """A product as part of another kernel. plan: None = the one that it should have. Raises IllegalPlan."""
    contraction = read_contraction(space, check_single_dot(body))
    declare(space, contraction)
    return plan_gemm(space, body, contraction, target, weights, plan=plan)


def product_of(gemm: Gemm) -> Product:
    """What the choice of a schedule depends on."""
    c = gemm.contraction
    return Product(
        c.m, c.n, gemm.panel_rows(), c.batch, gemm.panel, gemm.panel_step, ELEMENT_BYTES[c.node.element], gemm.packed,
        gemm.target.thresholds.device.rules, gemm.direct, gemm.is_strided, gemm.columns,
    )  # fmt: skip


def _choice(gemm: Gemm, plan: GemmPlan) -> Choice:
    """How the host chooses among the schedules of a plan."""
    product, tree = product_of(gemm), read_schedules(plan.tree)
    schedules = tree.schedules
    depth = product.k.const if product.k.is_const else None
    most = gemm.most_depth if gemm.is_strided else None
    pieces = [schedule.k if most is None else min(schedule.k, most) for schedule in schedules]
    splits = (gemm.left is not None or gemm.columns) and any(depth is None or piece < depth for piece in pieces)
    parts = plan_parts(gemm, max(schedule.parts for schedule in schedules), plan.tree.split_rows)
    return Choice(tree, product.features, ROWS, splits, parts)


# --- emission -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Walk:
    """How a task goes through k, as SSA values.

    depth: rows of the panel at a time; ahead: whether the next piece of B is prefetched, i1; last: whether no other task
    prefetches the next piece; splits: whether there may be several pieces; share: the task's part of k where that may be split;
    blocks: whether its rows of A must be packed, where that is done in columns, i1: the task before has not left all of k.
    """

    depth: str
    ahead: str
    last: str
    splits: bool
    share: Share | None = None
    blocks: str = ""


def _emit(frame: Frame, gemm: Gemm, body: Body, packed: PackedWeight | None, only_few: bool) -> None:
    b, m = frame.b, gemm.contraction.m
    if gemm.few == "no":
        _emit_tasks(frame, gemm, body, packed)
    elif only_few:
        emit_few_rows(frame, gemm, _epilogue(gemm, body))
    else:
        few = _condition(b, "sle", b.scalar(m), b.scalar(most_rows(gemm)))
        with b.when(few):
            emit_few_rows(frame, gemm, _epilogue(gemm, body))
        with b.when(_not(b, few)):
            _emit_tasks(frame, gemm, body, packed)


def _emit_tasks(frame: Frame, gemm: Gemm, body: Body, packed: PackedWeight | None) -> None:
    """Tasks are (batch, panels of columns, block of rows), the last two in the order of the schedule."""
    b = frame.b
    c = gemm.contraction
    _, blocks, _, _, panels_first, _, parts = (b.variables[name].ssa for name in SCHEDULE_SYMBOLS)
    across, panel_count = _condition(b, "ne", panels_first, b.index(0)), b.scalar(panel_groups(gemm))
    inner, outer = (b.op(f"arith.select {across}, {pair} : i64") for pair in (f"{panel_count}, {blocks}", f"{blocks}, {panel_count}"))
    with b.loop(frame.begin, frame.end, b.index(1)) as task:
        number, part = divide(b, task.index, parts) if gemm.splits else (task.index, "")
        rest, fast = divide(b, number, inner)
        batch, slow = (b.index(0), rest) if c.batch == ONE else divide(b, rest, outer)
        block, panel = (b.op(f"arith.select {across}, {pair} : i64") for pair in (f"{slow}, {fast}", f"{fast}, {slow}"))
        fresh = b.op(f"arith.ori {across}, {_condition(b, 'eq', task.index, frame.begin)} : i1")
        fresh = b.op(f"arith.ori {fresh}, {_condition(b, 'eq', block, b.index(0))} : i1")
        early = _condition(b, "ult", b.op(f"arith.subi {task.index}, {frame.begin} : i64"), inner)
        final = _condition(b, "eq", b.op(f"arith.addi {block}, {b.index(1)} : i64"), blocks)
        last = b.op(f"arith.select {across}, {early}, {final} : i1")
        if gemm.splits:  # the next part lies behind this one, and is the next task
            split = _condition(b, "ne", parts, b.index(1))
            follows = _condition(b, "ult", b.op(f"arith.addi {task.index}, {b.index(1)} : i64"), frame.end)
            last = b.op(f"arith.select {split}, {follows}, {last} : i1")
        blocks_fresh = ""
        if gemm.columns:
            first = b.op(f"arith.ori {_condition(b, 'eq', panel, b.index(0))}, {_condition(b, 'eq', panels_first, b.index(0))} : i1")
            blocks_fresh = b.op(f"arith.ori {first}, {_condition(b, 'eq', task.index, frame.begin)} : i1")
        with b.variable("gb", batch):
            _emit_panel(frame, gemm, body, (block, panel, part), (fresh, last, blocks_fresh), packed)


def _condition(b: Builder, comparison: str, left: str, right: str) -> str:
    return b.op(f"arith.cmpi {comparison}, {left}, {right} : i64")


def divide(b: Builder, value: str, divisor: str) -> tuple[str, str]:
    """(quotient, remainder) of non-negative numbers."""
    quotient = b.op(f"arith.divui {value}, {divisor} : i64")
    return quotient, b.op(f"arith.subi {value}, {b.op(f'arith.muli {quotient}, {divisor} : i64')} : i64")


def _panel_rows(b: Builder, gemm: Gemm, k: str) -> str:
    """Whole rows of a packed panel for `k` values."""
    rows, _ = divide(b, k, b.index(gemm.form.group))
    if not gemm.form.block:
        return rows
    return b.op(f"arith.addi {rows}, {divide(b, k, b.index(gemm.form.block))[0]} : i64")


def _emit_panel(
    frame: Frame, gemm: Gemm, body: Body, place: tuple[str, str, str], flags: tuple[str, str, str], packed: PackedWeight | None
) -> None:
    """The task at place = (block, panel, part of k). flags: (must B be packed, is this the task to prefetch the next piece of B, must rows
    of A be packed in columns)."""
    b, c = frame.b, gemm.contraction
    rows, _, depth, ahead, *_ = (b.variables[name].ssa for name in SCHEDULE_SYMBOLS)
    low = b.op(f"arith.muli {place[0]}, {rows} : i64")
    high = b.op(f"arith.minsi {b.op(f'arith.addi {low}, {rows} : i64')}, {b.scalar(c.m)} : i64")
    if gemm.is_strided:
        depth = b.op(f"arith.minsi {depth}, {b.index(gemm.most_depth)} : i64")
    share = share_of_task(frame, gemm, place[2], place[1], low) if gemm.splits else None
    walk = _Walk(depth, _condition(b, "ne", ahead, b.index(0)), flags[1], gemm.splits or gemm.pieces, share, flags[2])
    if gemm.task_panels > 1:
        _emit_panels(frame, gemm, body, (low, high), place[1], flags[0], walk)
    else:
        _emit_strips(frame, gemm, body, (low, high), place[1], flags[0], packed, walk)


def emit_columns(frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], fresh: str) -> None:
    """All columns of the given rows, for a batch bound to gb; `fresh`: whether the panels of B must be packed."""
    b = frame.b
    never = b.constant("arith.constant false")
    walk = _Walk(b.scalar(gemm.panel_rows()), never, never, False)
    with b.loop(b.index(0), b.scalar(panels(gemm)), b.index(1)) as panel:
        _emit_strips(frame, gemm, body, rows, panel.index, fresh, None, walk)


def emit_panel_rows(frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], panel: str, packed: PackedWeight) -> None:
    """The given rows of one panel of a weight packed ahead of time, for a batch bound to gb."""
    b = frame.b
    never = b.constant("arith.constant false")
    _emit_strips(frame, gemm, body, rows, panel, never, packed, _Walk(b.scalar(gemm.panel_rows()), never, never, False))


def _emit_strips(
    frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], panel: str, fresh: str, packed: PackedWeight | None, walk: _Walk
) -> None:
    """One panel: as many columns at a time as the accumulators hold."""
    b, c = frame.b, gemm.contraction
    column = b.op(f"arith.muli {panel}, {b.index(gemm.panel)} : i64")
    column_end = b.op(f"arith.minsi {b.op(f'arith.addi {column}, {b.index(gemm.panel)} : i64')}, {b.scalar(c.n)} : i64")
    pointer, step = right_panel(frame, gemm, panel, column, column_end, fresh, packed)
    with strips(b, gemm, (column, column_end), pointer) as (strip, moved):
        if gemm.columns:
            walk = replace(walk, blocks=b.op(f"arith.andi {walk.blocks}, {_condition(b, 'eq', strip[0], column)} : i1"))
        _emit_strip(frame, gemm, body, rows, strip, moved, step, walk)


def _emit_strip(
    frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], columns: tuple[str, str], pointer: str, step: str, walk: _Walk
) -> None:
    """All values of k of the task for some columns, whose rows of the panel begin at `pointer`, `step` bytes apart."""
    b, first = frame.b, Buffer(pointer, (), "i8")
    tiles = frame.scratch if walk.share is None else walk.share.sums(columns)
    with _pieces(b, gemm, walk) as piece:
        if walk.splits:
            pointer = address(b, first, b.op(f"arith.muli {_panel_rows(b, gemm, piece.start)}, {step} : i64"))
        _emit_tiles(frame, gemm, body, rows, _Strip(columns, pointer, step, tiles), piece, walk)


def _emit_panels(frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], group: str, fresh: str, walk: _Walk) -> None:
    """A task of several panels of a B that is read in place: all of them for one piece of k after the other, whose rows of A are packed
    once for them all (Goto and van de Geijn 2008). Each panel has sums of its own in scratch."""
    b, c = frame.b, gemm.contraction
    column = b.op(f"arith.muli {group}, {b.index(gemm.task_panels * gemm.panel)} : i64")
    column_end = b.op(f"arith.minsi {b.op(f'arith.addi {column}, {b.index(gemm.task_panels * gemm.panel)} : i64')}, {b.scalar(c.n)} : i64")
    with _pieces(b, gemm, walk) as piece:
        packs = b.op(f"arith.andi {fresh}, {_not(b, piece.later)} : i1")
        with b.loop(column, column_end, b.index(gemm.panel)) as panel:
            end = b.op(f"arith.minsi {b.op(f'arith.addi {panel.index}, {b.index(gemm.panel)} : i64')}, {column_end} : i64")
            pointer, step = right_panel(frame, gemm, "", panel.index, end, packs, None)
            done = b.op(f"arith.subi {panel.index}, {column} : i64")
            sums = b.op(f"arith.muli {b.op(f'arith.divui {done}, {b.index(gemm.panel)} : i64')}, {b.index(gemm.panel_tile_bytes)} : i64")
            with strips(b, gemm, (panel.index, end), pointer) as (strip, moved):
                moved = address(b, Buffer(moved, (), "i8"), b.op(f"arith.muli {piece.start}, {step} : i64"))
                offset = b.op(f"arith.subi {strip[0]}, {panel.index} : i64")
                offset = b.op(f"arith.muli {offset}, {b.index(ELEMENT_BYTES[gemm.element])} : i64")
                tiles = address(b, Buffer(frame.scratch, (), "i8"), b.op(f"arith.addi {sums}, {offset} : i64"))
                blocks = b.op(f"arith.andi {piece.blocks}, {_condition(b, 'eq', strip[0], column)} : i1")
                _emit_tiles(frame, gemm, body, rows, _Strip(strip, moved, step, tiles), replace(piece, blocks=blocks), walk)


def _not(b: Builder, condition: str) -> str:
    return b.op(f"arith.xori {condition}, {b.constant('arith.constant true')} : i1")


@dataclass(frozen=True)
class _Piece:
    """A piece of k, as SSA values.

    start, count: which values; later: whether it is added to a tile that earlier pieces left; final: whether it is the task's last; whole:
    whether it is all of k; blocks: whether rows of A must be packed, where that is done in columns; tile_step: bytes from the sums of a row
    to those of the next.
    """

    start: str
    count: str
    later: str
    final: str
    whole: str
    blocks: str
    tile_step: str


@dataclass(frozen=True)
class _Strip:
    """What the tiles of a piece of k share, as SSA values. columns: the first and that behind the last; pointer, step: the piece's rows of
    the panel; tiles: where the first row of the task has its sums."""

    columns: tuple[str, str]
    pointer: str
    step: str
    tiles: str


@contextmanager
def _pieces(b: Builder, gemm: Gemm, walk: _Walk) -> Iterator[_Piece]:
    """The pieces of the task's k one after the other; the sums of all rows stay in memory from piece to piece."""
    k = b.scalar(gemm.contraction.k)
    if not walk.splits:
        always = b.constant("arith.constant true")
        never = b.constant("arith.constant false")
        yield _Piece(b.index(0), k, never, always, always, walk.blocks, b.index(0))
        return
    length = b.op(f"arith.muli {walk.depth}, {b.index(gemm.form.group)} : i64")
    if gemm.form.block:
        blocks = b.op(f"arith.ceildivui {length}, {b.index(gemm.form.block)} : i64")
        length = b.op(f"arith.muli {blocks}, {b.index(gemm.form.block)} : i64")
    start, stop = (b.index(0), k) if walk.share is None else (walk.share.start, walk.share.stop)
    end = b.op(f"arith.maxsi {stop}, {b.index(1)} : i64")  # without values of k the sums are zeros, which must still be stored
    whole = _condition(b, "sge", length, k)
    if walk.share is not None:
        whole = walk.share.whole(whole)
    tile_step = b.op(f"arith.select {whole}, {b.index(0)}, {b.index(PANEL * ELEMENT_BYTES[gemm.element])} : i64")
    with b.loop(start, end, length) as piece:
        after = b.op(f"arith.addi {piece.index}, {length} : i64")
        count = b.op(f"arith.subi {b.op(f'arith.minsi {after}, {stop} : i64')}, {piece.index} : i64")
        later, final = _condition(b, "ne", piece.index, start), _condition(b, "sge", after, stop)
        packs = b.op(f"arith.ori {walk.blocks}, {_not(b, whole)} : i1") if gemm.columns else ""
        yield _Piece(piece.index, count, later, final, whole, packs, tile_step)


def _epilogue(gemm: Gemm, body: Body) -> Epilogue:
    c = gemm.contraction
    at = c.place()
    return Epilogue(body, c.node, at, c.n, gemm.width, gemm.element, "dot", gemm.sink)


def _emit_tiles(frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], strip: _Strip, piece: _Piece, walk: _Walk) -> None:
    """Tiles of as equal a number of rows as can be: 8 rows are 4 and 4, not 6 and 2, which would wait for memory."""
    b, columns = frame.b, strip.columns
    total = b.op(f"arith.subi {rows[1]}, {rows[0]} : i64")
    passes = b.op(f"arith.divui {b.op(f'arith.addi {total}, {b.index(ROWS - 1)} : i64')}, {b.index(ROWS)} : i64")
    epilogue = _epilogue(gemm, body)
    ahead = _Ahead(frame, gemm, strip, piece, walk, passes, rows)
    if gemm.columns:
        with b.when(piece.blocks):
            pack_blocks(frame, gemm, rows, (piece.start, b.op(f"arith.addi {piece.start}, {piece.count} : i64")))
    with b.loop(b.index(0), passes, b.index(1)) as tile:
        turn = tile.index if walk.share is None else walk.share.tile(tile.index, passes)
        done, stop = (share(b, number, total, passes) for number in (turn, b.op(f"arith.addi {turn}, {b.index(1)} : i64")))
        start, end = (b.op(f"arith.addi {rows[0]}, {each} : i64") for each in (done, stop))
        count = b.op(f"arith.subi {stop}, {done} : i64")
        place = address(b, Buffer(strip.tiles, (), "i8"), b.op(f"arith.muli {done}, {piece.tile_step} : i64"))
        if gemm.columns:
            k_step = block_pointers(frame, gemm, done, count)
        else:
            k_step = row_pointers(frame, gemm, start, count, None if walk.share is None else (walk.share.start, walk.share.stop))
        with b.when(piece.final if walk.share is None else walk.share.whole(piece.final)):  # who stores a tile of parts is not known yet
            epilogue.prefetch(frame, start, count, columns[0])
        width = b.op(f"arith.subi {columns[1]}, {columns[0]} : i64")
        _call_micro(frame, gemm, (count, width), k_step, strip, piece, place, ahead.at(tile.index, end, count))
        with b.when(piece.final):
            if walk.share is None:
                _store_tile(frame, epilogue, (start, count), place, columns)
            else:
                with b.when(walk.share.is_last(turn, columns)):
                    _store_tile(frame, epilogue, (start, count), walk.share.total(place, start, count, columns), columns)


def _store_tile(frame: Frame, epilogue: Epilogue, rows: tuple[str, str], tile: str, columns: tuple[str, str]) -> None:
    """Stores the results of a tile. rows: its first and how many."""
    b, e = frame.b, frame.emitter
    with b.loop(b.index(0), rows[1], b.index(1)) as row, e.bind("gm", b.op(f"arith.addi {rows[0]}, {row.index} : i64")):
        epilogue.store_row(frame, tile, row.index, columns)


class _Ahead:
    """What the tiles of one part prefetch: each its share of the next part of a packed B, which follows this one in memory, while the
    walk prefetches it, or of the rows that will be transposed into the next panel; else the rows of A of the tile after this one, where
    rows follow each other."""

    def __init__(
        self, frame: Frame, gemm: Gemm, strip: _Strip, piece: _Piece, walk: _Walk, passes: str, rows_of_task: tuple[str, str]
    ) -> None:
        self.frame, self.gemm, self.piece = frame, gemm, piece
        rows = not gemm.packed and gemm.right is not None and is_transposed(gemm) and key_step(gemm) == gemm.contraction.k
        self.has_right = (gemm.packed or rows) and gemm.width == gemm.panel
        form = split_linear(gemm.left.rest, "gm") if gemm.left is not None and gemm.left.k_step == ONE else None
        self.has_left = form is not None and form[0] == gemm.contraction.k
        self.has_columns = gemm.prefetches_columns
        self.rows = rows_of_task
        b = frame.b
        self.never = b.constant("arith.constant false")
        self.wanted = self.never
        if not self.has_right:
            return
        size = b.op(f"arith.muli {_panel_rows(b, gemm, piece.count)}, {b.index(gemm.panel_step)} : i64")
        if rows:
            done = b.op(f"arith.muli {_panel_rows(b, gemm, piece.start)}, {b.index(gemm.panel_step)} : i64")
            self.start = address(b, Buffer(self._right(strip.columns[1]), (), "i8"), done)
        else:
            self.start = address(b, Buffer(strip.pointer, (), "i8"), size)
        some = b.op(f"arith.maxsi {passes}, {b.index(1)} : i64")
        self.share = b.op(f"arith.divui {size}, {some} : i64")
        self.wanted = walk.last
        if not rows:
            not_final = _not(b, piece.final)
            self.wanted = b.op(f"arith.andi {walk.ahead}, {b.op(f'arith.ori {walk.last}, {not_final} : i1')} : i1")
        self.step = b.op(f"arith.divui {b.index(gemm.panel_step)}, {some} : i64")

    def at(self, number: str, following: str, count: str) -> tuple[str, str, str]:
        """(address, bytes per row of B, bytes from there to the second line) for tile `number` of the part; `following`: the first row
        after it; count: its rows."""
        if self.gemm.strided is not None:
            return self._next_block(number)
        place, step = self._columns(following, count) if self.has_columns else self._next(number, following, count)
        return place, step, half(self.frame.b, step)

    def _next(self, number: str, following: str, count: str) -> tuple[str, str]:
        b = self.frame.b
        place, step = self._left(following, count) if self.has_left else (self.frame.scratch, b.index(0))
        if not self.has_right:
            return place, step
        own = address(b, Buffer(self.start, (), "i8"), b.op(f"arith.muli {number}, {self.share} : i64"))
        place = b.op(f"arith.select {self.wanted}, {own}, {place} : i1, !llvm.ptr")
        return place, b.op(f"arith.select {self.wanted}, {self.step}, {step} : i64")

    def _columns(self, following: str, count: str) -> tuple[str, str]:
        """The line of the next tile's last row, for every value of k: in memory they are a page apart, which no hardware prefetches. A row
        of B comes with two prefetches: those of the second half go to the next part of k."""
        gemm, b = self.gemm, self.frame.b
        assert gemm.left is not None
        last = b.op(f"arith.addi {following}, {b.op(f'arith.addi {count}, {b.index(-1)} : i64')} : i64")
        place = self._row(last)
        pitch = b.op(f"arith.muli {b.scalar(gemm.left.k_step)}, {b.index(gemm.left_size)} : i64")
        skip = b.op(f"arith.muli {self.piece.start}, {pitch} : i64")
        return address(b, Buffer(place, (), "i8"), skip), b.op(f"arith.addi {pitch}, {pitch} : i64")

    def _next_block(self, number: str) -> tuple[str, str, str]:
        """Two lines of what will be packed next, for every value of k: of the next piece, or of the next rows."""
        gemm, b, (low, high) = self.gemm, self.frame.b, self.rows
        assert gemm.strided is not None
        lanes = b.op(f"arith.muli {number}, {b.index(2 * LINE // gemm.left_size)} : i64")
        row = b.op(f"arith.addi {b.op(f'arith.select {self.piece.final}, {high}, {low} : i64')}, {lanes} : i64")
        end = b.op(f"arith.select {self.piece.final}, {b.scalar(gemm.contraction.m)}, {high} : i64")
        inside = b.op(f"arith.andi {self.piece.blocks}, {_condition(b, 'slt', row, end)} : i1")
        place = self._start_of(gemm.strided, "gm", b.op(f"arith.minsi {row}, {b.op(f'arith.subi {end}, {b.index(1)} : i64')} : i64"))
        pitch = b.op(f"arith.muli {b.scalar(gemm.strided.k_step)}, {b.index(gemm.left_size)} : i64")
        after = b.op(f"arith.addi {self.piece.start}, {self.piece.count} : i64")
        skip = b.op(f"arith.select {self.piece.final}, {b.index(0)}, {b.op(f'arith.muli {after}, {pitch} : i64')} : i64")
        place = address(b, Buffer(place, (), "i8"), skip)
        place = b.op(f"arith.select {inside}, {place}, {self.frame.scratch} : i1, !llvm.ptr")
        return place, b.op(f"arith.select {inside}, {pitch}, {b.index(0)} : i64"), b.index(LINE)

    def _left(self, following: str, count: str) -> tuple[str, str]:
        """As many rows of A as this tile has; none where a part is less than a row."""
        gemm, b = self.gemm, self.frame.b
        place = self._row(following)
        step = b.op(f"arith.muli {count}, {b.index(gemm.left_size * gemm.form.group)} : i64")
        return place, b.op(f"arith.select {self.piece.whole}, {step}, {b.index(0)} : i64")

    def _row(self, row: str) -> str:
        """Where a row of A begins."""
        return self._start_of(self.gemm.left, "gm", row)

    def _right(self, column: str) -> str:
        """Where a column of B begins."""
        return self._start_of(self.gemm.right, "gn", column)

    def _start_of(self, operand: OperandAccess | None, name: str, number: str) -> str:
        assert operand is not None
        leaf = self.frame.emitter.leaves[operand.leaf]
        assert isinstance(leaf, Buffer)
        with self.frame.emitter.bind(name, number):
            return address(self.frame.b, leaf, self.frame.b.scalar(operand.rest))


def _call_micro(
    frame: Frame, gemm: Gemm, size: tuple[str, str], k_step: str, strip: _Strip, piece: _Piece, tile: str, ahead: tuple[str, str, str]
) -> None:
    """Calls the micro-kernel of this tile's size, rows and columns."""
    b = frame.b
    array = address(b, Buffer(frame.scratch, (), "i8"), b.index(gemm.tile_bytes))
    skip = b.index(0) if gemm.columns else b.op(f"arith.muli {piece.start}, {k_step} : i64")
    right = f"{strip.pointer}, {strip.step}, {piece.count}"
    operands = f"{array}, {skip}, {k_step}, {right}, {tile}, {b.index(PANEL)}, {piece.later}, {', '.join(ahead)}"
    call_micro(b, gemm.form, gemm.lanes, row_counts(gemm), vector_counts(gemm), size, operands)
