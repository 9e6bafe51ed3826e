"""Stitch kernels over few long rows: a row is cut into parts, which are tasks of their own.

One function per round of reductions leaves what each part gives in memory of the call; the next functions, run when all tasks of the
one before are done, first join the parts of a row, in their order. Rows that a later function reads again lie there too. Parts depend
on the row's length alone: neither they nor sums depend on the number of threads.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from disc.codegen.mlir.builder import register_element
from disc.codegen.plan.index import IndexSpace
from disc.codegen.plan.kernel import Split
from disc.codegen.plan.rows import RowPlan, Tile, root_index
from disc.codegen.x86.emit import RowCache
from disc.codegen.x86.function import Frame, partials_argument, rounded_up
from disc.codegen.x86.memory import Buffer, address, store_contiguous
from disc.codegen.x86.reductions import has_one_loop, join_parts, reduce_part
from disc.ir.graph import Body, Node
from disc.shapes import Dim, Truth, dim_max, dim_min
from disc.targets.target import Target
from disc.targets.thresholds import Thresholds


@dataclass(eq=False)
class LongRows:
    """length: elements of a part; parts: of a row; groups: rows, row: elements of each; values: accumulators of all reductions; lanes: of
    the device's widest vectors, so that parts are the same for all targets; cached: the values kept as rows, stored: those that the
    functions emitted so far leave in memory."""

    length: Dim
    parts: Dim
    groups: Dim
    row: Dim
    values: int
    lanes: int
    cached: tuple[Node, ...]
    stored: set[Node] = field(default_factory=set)

    def split(self, most: int, functions: tuple[str, ...], work: int, target: Target) -> Split:
        """What the host needs to know. most: rows that there are at most; work: cost of an element of all functions together."""
        cost = self.length * work // target.macs_per_cycle("f32") + target.thresholds.rows.task_cycles
        return Split(functions, self.groups * self.parts, cost, self.start(dim_min(self.groups, most), len(self.cached)))

    def start(self, groups: Dim, number: int) -> Dim:
        """Where the rows of a cached value begin, in bytes, behind the accumulators."""
        return groups * (self.parts * (self.slot * self.values) + self.room * number)

    @property
    def slot(self) -> int:
        """Bytes of a vector of any element."""
        return 8 * self.lanes

    @property
    def room(self) -> Dim:
        """Bytes of a cached row."""
        return rounded_up(self.row, self.lanes) * 8


def plan_long_rows(space: IndexSpace, body: Body, plan: RowPlan, thresholds: Thresholds, parts: int) -> LongRows | None:
    """The parts of a row, so many at most; None when there are reductions that are not one loop over a row each."""
    limits, lanes = thresholds.rows, thresholds.device.lanes
    found = [(node, index) for stage in plan.stages for node, index in stage]
    reduced = {node.siblings[0] for node in body.nodes if node.op == "stablehlo.reduce"}
    row, leaves = plan.row(space), frozenset(body.arguments)
    if plan.columns or (plan.full_roots and [len(tile.variables) for tile in plan.tiles] != [1]) or reduced != {node for node, _ in found}:
        return None
    for node, index in found:
        extents = [node.operands[0].dims[axis] for axis in node.ints("dimensions")]
        if space.env.equal(space.env.product(extents), row) is not Truth.YES or not has_one_loop(space, leaves, node, index):
            return None
    length = dim_max(rounded_up((row + (parts - 1)) // parts, lanes), Dim.of(limits.part))
    values = sum(len(node.operands) // 2 for node, _ in found)
    return LongRows(length, (row + (length - 1)) // length, plan.groups(space), row, values, lanes, plan.cached)


def emit_long_rows(frame: Frame, plan: RowPlan, rows: LongRows, number: int) -> None:
    """Function `number`: of a round of reductions, or, behind those of all rounds, of the results."""
    b, e = frame.b, frame.emitter
    with b.loop(frame.begin, frame.end, b.index(1)) as task, ExitStack() as bound:
        e.floor = task.scope
        name = e.name("task")
        position = e.space.variable(name, rows.groups * rows.parts)
        bound.enter_context(e.bind(name, task.index))
        group, part = e.space.delinear(position, [rows.groups, rows.parts])
        values = e.space.delinear(group, [variable.extent for variable in plan.group])
        for variable, value in zip(plan.group, values, strict=True):
            bound.enter_context(e.bind(variable.name, b.scalar(value)))
        _make_caches(frame, rows, group)
        low = b.scalar(part * rows.length)
        high = b.op(f"arith.minsi {b.op(f'arith.addi {low}, {b.scalar(rows.length)} : i64')}, {b.scalar(plan.row(e.space))} : i64")
        done = 0
        for stage in plan.stages[:number]:
            join_parts(e, stage, b.scalar(rows.parts), lambda value, part, done=done: _slot(frame, rows, done + value, group, part))
            done += sum(len(node.operands) // 2 for node, _ in stage)
        if number < len(plan.stages):
            results = reduce_part(e, plan.stages[number], low, high)
            for value, (result, element) in enumerate(results):
                target = Buffer(_slot(frame, rows, done + value, group, b.scalar(part)), (), element)
                store_contiguous(b, target, b.index(0), result, None)
        else:
            _store(frame, plan, (low, high), b.scalar(part))
        rows.stored |= {node for node, (cache,) in e.caches.items() if cache.pending}
        e.floor = None


def _make_caches(frame: Frame, rows: LongRows, group: Dim) -> None:
    b, e = frame.b, frame.emitter
    for number, node in enumerate(rows.cached):
        start = b.scalar(rows.start(rows.groups, number) + group * rows.room)
        pointer = address(b, Buffer(partials_argument(frame), (), "i8"), start)
        buffer = Buffer(pointer, node.dims, register_element(node.element))
        e.caches[node] = [RowCache(buffer, e.space.env.simplify(group * rows.row), rows.row, ready=node in rows.stored)]


def _slot(frame: Frame, rows: LongRows, value: int, group: Dim, part: str) -> str:
    """The address of accumulator `value` of a part."""
    b = frame.b
    first = b.scalar((rows.groups * value + group) * rows.parts)
    offset = b.op(f"arith.muli {b.op(f'arith.addi {first}, {part} : i64')}, {b.index(rows.slot)} : i64")
    return address(b, Buffer(partials_argument(frame), (), "i8"), offset)


def _store(frame: Frame, plan: RowPlan, limits: tuple[str, str], part: str) -> None:
    """The results of one part; those of a whole row go with its first part."""
    b, e = frame.b, frame.emitter

    def full(tile: Tile, names: list[str], carried: list[str]) -> list[str]:
        del carried
        for root, output in zip(frame.roots, frame.outputs, strict=True):
            if root in plan.full_roots:
                index = root_index(e.space, tile.index, plan.space, root)
                at = tuple(position.replace({tile.lane.name: Dim.symbol(names[0])}) for position in index)
                e.store(output, e.space.linear(at, root.dims), e.value(root, at), result=True)
        return []

    for tile in plan.tiles:
        e.lane_loop(tile.lane.name, *limits, Dim.symbol(tile.lane.name), 1, [], partial(full, tile))
    with b.when(b.op(f"arith.cmpi eq, {part}, {b.index(0)} : i64")):
        for root, output in zip(frame.roots, frame.outputs, strict=True):
            if root in plan.group_roots:
                at = root_index(e.space, plan.group_index, plan.group_dims, root)
                e.store(output, e.space.linear(at, root.dims), e.value(root, at))
