"""Loop and stitch kernels: a task is one group iteration (or a run of elements); rows run over vector lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from disc.codegen.mlir.builder import register_element
from disc.codegen.plan.index import ONE, ZERO, Index, IndexSpace, split_linear
from disc.codegen.plan.kernel import Kernel, Split, Version
from disc.codegen.plan.rows import RowPlan, Tile, plan_kernel, root_index
from disc.codegen.plan.summary import kernel_ops, traffic
from disc.codegen.plan.symbols import body_symbols
from disc.codegen.plan.versions import RowVersion, read_version
from disc.codegen.x86.emit import Ahead, Beside, RowCache
from disc.codegen.x86.function import Frame, emit_function, rounded_up
from disc.codegen.x86.memory import Buffer, address, fence_streams, prefetch
from disc.codegen.x86.plans import RowsPlan, SearchPlan
from disc.codegen.x86.reductions import reduce_columns_together, reduce_together
from disc.codegen.x86.rows.blocked import emit_blocked
from disc.codegen.x86.rows.long_rows import emit_long_rows, plan_long_rows
from disc.codegen.x86.rows.regions import Region, block_of, chunk_of, mean, region_of, streams
from disc.codegen.x86.rows.row_softmax import bind_softmaxes
from disc.ir.graph import Body, Node
from disc.ir.reducers import IN_ORDER
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim, Truth, dim_min
from disc.speculation.guards import Guard
from disc.targets.target import Target


def emit_rows(name: str, body: Body, kind: str, space: IndexSpace, target: Target, guards: Sequence[Guard], plan: RowsPlan) -> Kernel:
    """The kernel of a loop or stitch fusion in one version per guard of the plan: of rows that are whole vectors it has no tail code,
    without broadcasts that expand no index arithmetic for them, and results beyond the caches bypass these."""
    loops = plan_kernel(space, body, kind, target.thresholds)
    regions, streamed = (
        [region_of(space, body, each, target, decided) for each, decided in zip(loops, decisions, strict=bool(decisions))]
        for decisions in (plan.regions, plan.streamed)
    )
    extents = [size for each in (*regions, *streamed) for size in (each.tasks, each.plan.groups(space), each.plan.row(space))]
    symbols = body_symbols(space, body, *extents)
    plans = [region.plan for region in regions]
    long_rows = plan_long_rows(space, body, plans[0], target.thresholds, plan.parts) if plan.parts else None
    versions: list[Version] = []
    source = ""
    split: Split | None = None
    for number in plan.versions:
        version = read_version(guards[number], body)
        if version.most_rows is not None:
            assert long_rows is not None
            functions = tuple(f"{name}_v{number}_{part}" for part in range(len(plans[0].stages) + 1))
            for part, function in enumerate(functions):
                emit_part = partial(emit_long_rows, plan=plans[0], rows=long_rows, number=part)
                source += emit_function(function, body, body.yields, symbols, space, target, emit_part)
            split = long_rows.split(version.most_rows.number, functions, regions[0].work, target)
            versions.append(Version(functions[-1], version.guard))
            continue
        function = f"{name}_v{number}"

        def emit(frame: Frame, version: RowVersion = version) -> None:
            bind_softmaxes(frame.emitter, body)
            space.broadcasts_resolved = version.resolved
            frame.emitter.whole = version.whole_length(target.lanes)
            _emit_regions(frame, streamed if version.streams else regions, version)
            space.broadcasts_resolved = False

        source += emit_function(function, body, body.yields, symbols, space, target, emit)
        versions.append(Version(function, version.guard, predicted=_predicted(space, plans, plan.searches[version.streams :])))
    tasks = sum((region.tasks for region in regions), ZERO)
    costs = [region.cost(space, target) for region in regions]
    cost = costs[0] if len(regions) == 1 else mean(tasks, [region.tasks * cost for region, cost in zip(regions, costs, strict=True)])
    flops = sum((plan.groups(space) * plan.row(space) * region.work for plan, region in zip(plans, regions, strict=True)), ZERO)
    cached = max(len(each[0].plan.cached) for each in (regions, streamed) if each)
    scratch = rounded_up(plans[0].row(space), target.lanes) * (8 * cached) * block_of(space, plans[0])
    return Kernel(
        name, kind, tuple(versions), symbols, tasks, cost, scratch, source, body.lines(), kernel_ops(body),
        flops=flops, bytes=traffic(space, body), split=split,
    )  # fmt: skip


def _predicted(space: IndexSpace, plans: Sequence[RowPlan], searches: Sequence[SearchPlan]) -> Dim | None:
    """Picoseconds of one thread, as the search counted them; None where it did not, and for loops one after the other."""
    if not searches or len(plans) != 1:
        return None
    return plans[0].groups(space) * plans[0].row(space) * searches[0].best // 1024


def _emit_regions(frame: Frame, regions: Sequence[Region], version: RowVersion) -> None:
    """The tasks of all regions, numbered one region after the other."""
    b, e = frame.b, frame.emitter
    if len(regions) == 1:
        _emit(frame, regions[0], version)
        return
    start = ZERO
    for region in regions:
        low = b.op(f"arith.maxsi {b.op(f'arith.subi {frame.begin}, {b.scalar(start)} : i64')}, {b.index(0)} : i64")
        high = b.op(f"arith.minsi {b.op(f'arith.subi {frame.end}, {b.scalar(start)} : i64')}, {b.scalar(region.tasks)} : i64")
        with b.when(b.op(f"arith.cmpi slt, {low}, {high} : i64")):
            e.floor = b.scope  # a region without elements reads nothing
            _emit(replace(frame, begin=low, end=high), region, version)
            e.floor = None
        start = start + region.tasks


def _emit(frame: Frame, region: Region, version: RowVersion) -> None:
    e = frame.emitter
    e.streams = streams(e.space, region, version, frame.b.lanes, e.target.thresholds.device.lanes)
    if region.blocked is not None:
        emit_blocked(frame, region.plan, region.blocked)
    elif region.flat:
        _emit_flat(frame, region.plan)
    else:
        _emit_groups(frame, region.plan)
    if e.streams:
        fence_streams(frame.b)


def _emit_groups(frame: Frame, plan: RowPlan) -> None:
    groups = plan.groups(frame.emitter.space)
    rows = plan.rows_together
    if rows == 1:
        _loop_over_groups(frame, plan, groups, (frame.begin, frame.end), 1)
        return
    # A task is a block, so that which rows go side by side, and with it the order of sums, does not depend on the number of threads.
    b = frame.b
    block = b.scalar(block_of(frame.emitter.space, plan))
    begin = b.op(f"arith.muli {frame.begin}, {block} : i64")
    end = b.op(f"arith.minsi {b.op(f'arith.muli {frame.end}, {block} : i64')}, {b.scalar(groups)} : i64")
    rest = b.op(f"arith.remui {b.op(f'arith.subi {end}, {begin} : i64')}, {b.index(rows)} : i64")
    whole = b.op(f"arith.cmpi eq, {block}, {b.index(rows)} : i64")
    low = b.op(f"arith.select {whole}, {b.op(f'arith.subi {end}, {rest} : i64')}, {begin} : i64")
    _loop_over_groups(frame, plan, groups, (begin, low), rows)
    _loop_over_groups(frame, plan, groups, (low, end), 1)


def _loop_over_groups(frame: Frame, plan: RowPlan, groups: Dim, limits: tuple[str, str], rows: int) -> None:
    b, e = frame.b, frame.emitter
    with b.loop(*limits, b.index(rows)) as task, ExitStack() as bound:
        positions: list[Dim] = []
        for number in range(rows):
            name = e.name("task")
            positions.append(e.space.variable(name, groups))
            bound.enter_context(e.bind(name, b.op(f"arith.addi {task.index}, {b.index(number)} : i64") if number else task.index))
        emit_groups(frame, plan, positions)


def _vectors_at_once(plan: RowPlan, rows: int) -> int:
    """How many vectors of a row share the loop over its lanes: of columns, or of values that are expensive to compute."""
    if plan.columns:
        return plan.columns_together
    return max(1, plan.vectors[-1] // rows) if plan.vectors else 1


def emit_group(frame: Frame, plan: RowPlan, position: Dim) -> None:
    """All stages of the row at flat `position` among the groups."""
    emit_groups(frame, plan, [position])


def emit_groups(frame: Frame, plan: RowPlan, positions: Sequence[Dim]) -> None:
    """All stages of the rows at these flat positions among the groups, side by side."""
    e = frame.emitter
    rows: list[_Row] = []
    with ExitStack() as bound:
        for number, position in enumerate(positions):
            names: dict[str, Dim] = {}
            values = e.space.delinear(position, [variable.extent for variable in plan.group])
            for variable, value in zip(plan.group, values, strict=True):
                own = f"{variable.name}.row{number}"
                names[variable.name] = e.space.variable(own, variable.extent)
                bound.enter_context(e.bind(own, frame.b.scalar(value)))
            rows.append(_Row(number, names))
        _emit_rows(frame, plan, rows)


@dataclass(frozen=True)
class _Row:
    """One of the rows worked on at once: its number, and its own variables for those of the plan's group."""

    number: int
    names: dict[str, Dim]

    def of(self, index: Index) -> Index:
        """`index` for this row."""
        return tuple(position.replace(self.names) for position in index)


def _emit_rows(frame: Frame, plan: RowPlan, rows: Sequence[_Row]) -> None:
    e = frame.emitter
    beside = _beside(frame, plan, rows)
    if beside is None:
        _make_caches(frame, plan, rows)
    for number, stage in enumerate(plan.stages):
        if number:
            e.ahead = _next_rows(frame, plan)
        e.side_by_side = plan.vectors[number] if plan.vectors else None
        e.beside = beside if number == 0 else None
        reduce_together(e, [(node, row.of(index)) for row in rows for node, index in stage])
        e.side_by_side = e.beside = None
    if plan.stages:
        e.ahead = _next_rows(frame, plan)
    for root, output in zip(frame.roots, frame.outputs, strict=True):
        if root in plan.group_roots:
            for row in rows:
                at = row.of(root_index(e.space, plan.group_index, plan.group_dims, root))
                e.store(output, e.space.linear(at, root.dims), e.value(root, at))
    for tile in plan.tiles if beside is None else ():
        with _reading_nothing_without_elements(frame, plan, tile):
            _tile_loops(frame, plan, tile, rows, 0)
    e.caches.clear()
    e.ahead, e.fetched = None, set()


def _beside(frame: Frame, plan: RowPlan, rows: Sequence[_Row]) -> Beside | None:
    """Stores the results in the loop of the first reductions, where none of them needs a reduction: they are not computed again, nor kept.
    None where they need a loop of their own."""
    e = frame.emitter
    first = next((node for stage in plan.stages for node, _ in stage), None)
    whole = [(root, output) for root, output in zip(frame.roots, frame.outputs, strict=True) if root in plan.full_roots]
    if first is None or first.operands[0].dims != plan.space or len(plan.tiles) != 1 or IN_ORDER in first.attrs:
        return None
    if not whole or any(root.dims != plan.space or _needs_reduction(root) for root, _ in whole):
        return None
    if any(_line_base(frame, plan, plan.tiles[0], row) is not None for row in rows):
        return None

    def store(node: Node, index: Index) -> None:
        if node is first:
            for root, output in whole:
                e.store(output, e.space.linear(index, root.dims), e.value(root, index), result=True)

    return store


def _needs_reduction(root: Node) -> bool:
    """Whether a reduction is among what a value is computed from."""
    pending, seen = [root], {root}
    while pending:
        node = pending.pop()
        if node.op == "stablehlo.reduce":
            return True
        pending.extend(operand for operand in node.operands if operand not in seen)
        seen.update(node.operands)
    return False


@contextmanager
def _reading_nothing_without_elements(frame: Frame, plan: RowPlan, tile: Tile) -> Iterator[None]:
    """Of the parts of a row (those of regions, too), one that may have no elements is under a condition of its own: an index in data that
    is the same for all of it is not looked up, and reported, where there is nothing to read."""
    e, b = frame.emitter, frame.b
    extent = e.space.env.product([variable.extent for variable in tile.variables])
    whole = len(plan.tiles) == 1 and e.floor is None
    if e.fault is None or whole or e.space.env.le(ONE, extent) is Truth.YES:
        yield
        return
    outer = e.floor
    with b.when(b.op(f"arith.cmpi sgt, {b.scalar(extent)}, {b.index(0)} : i64")):
        e.floor = b.scope
        yield
    e.floor = outer


def _next_rows(frame: Frame, plan: RowPlan) -> Ahead:
    """The same place in the next row of an input: where a pass over a row in cache fetches that, the next first pass finds it there."""
    space, fetched = frame.emitter.space, frozenset(frame.emitter.fetched)
    distance = dim_min(space.env.product(plan.space[len(plan.group_dims) :]), Dim.of(frame.emitter.target.thresholds.rows.ahead))
    whole = space.env.product(plan.space)
    rows = {node for node in frame.arguments if space.env.product(node.dims) == whole} - fetched

    def ahead(node: Node, offset: Dim) -> Dim | None:
        return offset + distance if node in rows else None

    return ahead


def _make_caches(frame: Frame, plan: RowPlan, rows: Sequence[_Row]) -> None:
    e, b = frame.emitter, frame.b
    length = e.space.env.product(plan.space[len(plan.group_dims) :])
    size = rounded_up(length, b.lanes) * 8
    for number, node in enumerate(plan.cached):
        element = register_element(node.element)
        assert ELEMENT_BYTES[element] <= 8
        for row in rows:
            start = e.space.linear(row.of(plan.group_index), plan.group_dims) * length
            offset = b.scalar(size * (row.number * len(plan.cached) + number))
            with b.at(e.floor or b.root):  # a row that is the same for every group is made before the loop over groups
                pointer = address(b, Buffer(frame.scratch, (), "i8"), offset)
            e.caches.setdefault(node, []).append(RowCache(Buffer(pointer, node.dims, element), e.space.env.simplify(start), length))


def _tile_loops(frame: Frame, plan: RowPlan, tile: Tile, rows: Sequence[_Row], depth: int) -> None:
    e, b = frame.emitter, frame.b
    if not tile.variables:
        _store_full(frame, plan, tile, rows)
        return
    variable = tile.variables[depth]
    if variable is not tile.lane:
        with b.loop(b.index(0), b.scalar(variable.extent), b.index(1)) as loop, e.bind(variable.name, loop.index):
            _tile_loops(frame, plan, tile, rows, depth + 1)
        return
    _lanes(frame, plan, tile, rows, (b.index(0), b.scalar(variable.extent)), variable.extent)


def _lanes(frame: Frame, plan: RowPlan, tile: Tile, rows: Sequence[_Row], limits: tuple[str, str], extent: Dim) -> None:
    """The loop over lanes, of which `extent` elements are run over."""
    variable = tile.lane
    bases = [_line_base(frame, plan, tile, row) for row in rows]
    if None not in bases:
        for row, base in zip(rows, bases, strict=True):
            assert base is not None
            for root, output in zip(frame.roots, frame.outputs, strict=True):
                if root in plan.full_roots:
                    prefetch(frame.b, output, frame.b.scalar(base + variable.extent * (len(rows) + 1)))
            frame.emitter.line_loop(variable.name, limits[1], base, partial(_store_full, frame, plan, tile, [row]))
        return

    def body(names: list[str], carried: list[str]) -> list[str]:
        del carried
        copies = [_Row(row.number, {**row.names, variable.name: Dim.symbol(name)}) for name in names for row in rows]
        for stage in tile.columns:
            reduce_columns_together(frame.emitter, [(node, copy.of(index)) for copy in copies for node, index in stage])
        _store_full(frame, plan, tile, copies)
        return []

    frame.emitter.lane_loop(variable.name, *limits, extent, _vectors_at_once(plan, len(rows)), [], body)


def _line_base(frame: Frame, plan: RowPlan, tile: Tile, row: _Row) -> Dim | None:
    """Where a row of results that bypass the caches begins, when that may be within a line; else None."""
    e = frame.emitter
    if not e.streams or plan.columns or not plan.group:
        return None
    root = plan.full_roots[0]
    at = row.of(root_index(e.space, tile.index, plan.space, root))
    form = split_linear(e.space.linear(at, root.dims), tile.lane.name)
    return None if form is None or form[0] != ONE or e.whole_vectors_before(form[1]) else form[1]


def _store_full(frame: Frame, plan: RowPlan, tile: Tile, rows: Sequence[_Row]) -> None:
    e = frame.emitter
    with frame.b.in_turns() as begin:
        for row in rows:
            begin()
            for root, output in zip(frame.roots, frame.outputs, strict=True):
                if root in plan.full_roots:
                    at = row.of(root_index(e.space, tile.index, plan.space, root))
                    e.store(output, e.space.linear(at, root.dims), e.value(root, at), result=True)


def _emit_flat(frame: Frame, plan: RowPlan) -> None:
    """One loop over all elements, cut into chunks."""
    b = frame.b
    (tile,), chunk = plan.tiles, chunk_of(plan, frame.emitter.target)
    variable = tile.lane
    with b.loop(frame.begin, frame.end, b.index(1)) as task:
        low = b.op(f"arith.muli {task.index}, {b.index(chunk)} : i64")
        high = b.op(f"arith.minsi {b.op(f'arith.addi {low}, {b.index(chunk)} : i64')}, {b.scalar(variable.extent)} : i64")

        extent = variable.extent if variable.extent.is_const and variable.extent.const <= chunk else Dim.symbol(variable.name)
        _lanes(frame, plan, tile, [_Row(0, {})], (low, high), extent)
