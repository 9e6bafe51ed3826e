"""Loop and stitch kernels: a task is one group iteration (or a run of elements); rows run over vector lanes."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.costs import node_cost
from ...ir.graph import Body
from ...ir.weights import ELEMENT_BYTES
from ...shapes import Dim
from ..index import IndexSpace
from ..kernel import Kernel, Version
from ..plan import RowPlan, plan_rows, root_index
from .builder import register_element
from .emit import RowCache
from .function import Frame, body_symbols, emit_function, kernel_lines, kernel_ops, rounded_up, traffic
from .memory import Buffer, address

CHUNK = 4096  # elements of a flat loop per task: 16 KiB of f32, half of an L1 cache


def emit_rows(name: str, body: Body, kind: str, space: IndexSpace, lanes: int, guards: Sequence[str] = ("",)) -> Kernel:
    """The kernel of a loop or stitch fusion in one version per guard: "divides(16, row)" means no tail code, "equal(...)" that no
    run-time broadcast expands (the guards of one fusion name all of them)."""
    plan = plan_rows(space, body, kind)
    symbols = body_symbols(space, body)
    flat = not plan.group and len(plan.tile) == 1 and kind == "loop"
    row, groups = plan.row(space), plan.groups(space)
    versions: list[Version] = []
    source = ""
    for number, guard in enumerate(guards):
        function = f"{name}_v{number}"

        def emit(frame: Frame, guard: str = guard) -> None:
            space.broadcasts_resolved = "equal(" in guard
            frame.emitter.whole = _whole_length(space, guard)
            _emit(frame, plan, groups, flat)
            space.broadcasts_resolved = False

        source += emit_function(function, body, body.yields, symbols, space, lanes, emit)
        versions.append(Version(function, guard))
    work = sum(node_cost(root) + 2 for root in body.yields)
    cost = (Dim.of(CHUNK) if flat else row) * work // lanes + 16
    return Kernel(
        name, kind, tuple(versions), symbols, (row + (CHUNK - 1)) // CHUNK if flat else groups, cost,
        rounded_up(row, lanes) * (8 * len(plan.cached)), source, kernel_lines(body), kernel_ops(body), _notes(plan, flat),
        flops=groups * row * work, bytes=traffic(space, body),
    )  # fmt: skip


def _whole_length(space: IndexSpace, guard: str) -> Dim | None:
    """The length in the "divides(16, length)" part of a guard."""
    for part in guard.split(" and "):
        if part.startswith("divides("):
            return space.env.parse(part.partition(",")[2].removesuffix(")").strip())
    return None


def _emit(frame: Frame, plan: RowPlan, groups: Dim, flat: bool) -> None:
    if flat:
        _emit_flat(frame, plan)
        return
    b, e = frame.b, frame.emitter
    with b.loop(frame.begin, frame.end, b.index(1)) as task:
        name = e.name("task")
        position = e.space.variable(name, groups)
        with e.bind(name, task.index):
            emit_group(frame, plan, position)


def emit_group(frame: Frame, plan: RowPlan, position: Dim) -> None:
    """All stages of the row at flat `position` among the groups."""
    e = frame.emitter
    values = e.space.delinear(position, [variable.extent for variable in plan.group])

    def nest(number: int) -> None:
        if number == len(plan.group):
            _emit_row(frame, plan)
            return
        with e.bind(plan.group[number].name, frame.b.scalar(values[number])):
            nest(number + 1)

    nest(0)


def _emit_row(frame: Frame, plan: RowPlan) -> None:
    e = frame.emitter
    _make_caches(frame, plan)
    for root, output in zip(frame.roots, frame.outputs, strict=True):
        if root in plan.group_roots:
            at = root_index(e.space, plan.group_index, plan.group_dims, root)
            e.store(output, e.space.linear(at, root.dims), e.value(root, at))
    if plan.full_roots:
        _tile_loops(frame, plan, 0)
    e.caches.clear()


def _make_caches(frame: Frame, plan: RowPlan) -> None:
    e, b = frame.emitter, frame.b
    row = e.space.env.product(plan.space[len(plan.group_dims) :])
    start = e.space.linear(plan.group_index, plan.group_dims) * row
    for number, node in enumerate(plan.cached):
        element = register_element(node.element)
        offset = b.scalar(rounded_up(row, b.lanes) * (number * 8))
        with b.at(e.floor or b.root):  # a row that is the same for every group is made before the loop over groups
            pointer = address(b, Buffer(frame.scratch, (), "i8"), offset)
        assert ELEMENT_BYTES[element] <= 8
        e.caches[node] = RowCache(Buffer(pointer, node.dims, element), e.space.env.simplify(start))


def _tile_loops(frame: Frame, plan: RowPlan, depth: int) -> None:
    e, b = frame.emitter, frame.b
    variables = plan.tile
    if not variables:
        _store_full(frame, plan)
        return
    variable = variables[depth]
    if depth < len(variables) - 1:
        with b.loop(b.index(0), b.scalar(variable.extent), b.index(1)) as loop, e.bind(variable.name, loop.index):
            _tile_loops(frame, plan, depth + 1)
        return

    def body(names: list[str], carried: list[str]) -> list[str]:
        del names, carried
        _store_full(frame, plan)
        return []

    e.lane_loop(variable.name, b.index(0), b.scalar(variable.extent), variable.extent, 1, [], body)


def _store_full(frame: Frame, plan: RowPlan) -> None:
    e = frame.emitter
    for root, output in zip(frame.roots, frame.outputs, strict=True):
        if root in plan.full_roots:
            at = root_index(e.space, plan.index, plan.space, root)
            e.store(output, e.space.linear(at, root.dims), e.value(root, at))


def _emit_flat(frame: Frame, plan: RowPlan) -> None:
    """One loop over all elements, cut into chunks."""
    e, b = frame.emitter, frame.b
    variable = plan.tile[0]
    with b.loop(frame.begin, frame.end, b.index(1)) as task:
        low = b.op(f"arith.muli {task.index}, {b.index(CHUNK)} : i64")
        high = b.op(f"arith.minsi {b.op(f'arith.addi {low}, {b.index(CHUNK)} : i64')}, {b.scalar(variable.extent)} : i64")

        def body(names: list[str], carried: list[str]) -> list[str]:
            del names, carried
            _store_full(frame, plan)
            return []

        extent = variable.extent if variable.extent.is_const and variable.extent.const <= CHUNK else Dim.symbol(variable.name)
        e.lane_loop(variable.name, low, high, extent, 1, [], body)


def _notes(plan: RowPlan, flat: bool) -> tuple[str, ...]:
    if flat:
        return (f"one flat loop over {plan.tile[0].extent} elements",)
    groups = " x ".join(str(variable.extent) for variable in plan.group) or "1"
    tile = " x ".join(str(variable.extent) for variable in plan.tile) or "1"
    notes = [f"tasks: {groups}; row: {tile}"]
    notes += [f"row of {node.name} kept in scratch between stages" for node in plan.cached]
    return tuple(notes)
