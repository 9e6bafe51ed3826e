"""Kernels whose iterations depend on each other: cumulative scans and scatters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disc.codegen.mlir.builder import Variable, register_element
from disc.codegen.plan.index import ONE, ZERO, Index, IndexSpace
from disc.codegen.plan.kernel import Kernel, Version
from disc.codegen.plan.summary import kernel_ops, traffic
from disc.codegen.plan.symbols import body_symbols
from disc.codegen.x86.elementwise import convert, emit_elementwise
from disc.codegen.x86.function import Frame, emit_function
from disc.codegen.x86.memory import Buffer
from disc.codegen.x86.plans import ScanPlan, ScatterPlan, UpdatePlan, check
from disc.errors import CompilerBug
from disc.ir.graph import Body, Node
from disc.ir.op_table import SEQUENTIAL
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim
from disc.targets.target import Target


def choose_sequential(body: Body) -> ScanPlan | ScatterPlan:
    """The plan of a scan or scatter: lanes run along the last dim where that is not scanned."""
    node = _sequence(body)
    return ScanPlan("across" if _may_be_across(node) else "no") if node.op == "disc.cumulative" else ScatterPlan()


def may_be_sequential(body: Body, plan: ScanPlan | ScatterPlan) -> None:
    """Raises IllegalPlan for a plan that the fusion cannot have."""
    derived = choose_sequential(body)
    check(type(plan) is type(derived), "", f"the fusion is a {derived.name}")
    if isinstance(plan, ScanPlan):
        check(plan.lanes in ("no", "across"), "lanes", "must be no or across")
        check(plan.lanes == "no" or _may_be_across(_sequence(body)), "lanes", "must be no: the last dim is scanned")


def _sequence(body: Body) -> Node:
    node = next((each for each in body.nodes if each.op in SEQUENTIAL), None)
    if node is None or body.yields != node.siblings:
        raise CompilerBug("a library fusion must yield the results of one scan or scatter")
    return node


def _may_be_across(node: Node) -> bool:
    return node.integer("dim") % len(node.dims) != len(node.dims) - 1


def emit_sequential(name: str, body: Body, space: IndexSpace, target: Target, plan: ScanPlan | ScatterPlan | UpdatePlan) -> Kernel:
    """The kernel of a `disc.cumulative` or `stablehlo.scatter` with the views and element-wise ops around its operands. With an
    `UpdatePlan` the result of a scatter lies where its operand does."""
    node, in_place = _sequence(body), isinstance(plan, UpdatePlan)
    if isinstance(plan, ScanPlan):
        across = plan.lanes == "across"
        tasks, emit = _scan(space, node, across)
        vectors = (node.dims[-1] + (target.lanes - 1)) // target.lanes if across else ONE
        steps = node.dims[node.integer("dim") % len(node.dims)] * vectors
    else:
        write, worked = (_scatter_in_place, node.operands[-1]) if in_place else (_scatter, node.operands[0])
        tasks, emit, steps = Dim.of(1), lambda frame: write(frame, node), space.env.product(worked.dims)
    symbols = body_symbols(space, body, tasks, steps)
    source = emit_function(f"{name}_v0", body, body.yields, symbols, space, target, emit)
    limits = target.thresholds
    cost = steps * limits.scan_cycles + limits.task_cycles
    return Kernel(
        name, "library", (Version(f"{name}_v0"),), symbols, tasks, cost, ZERO, source, body.lines(), kernel_ops(body),
        bytes=_traffic_in_place(space, body, node) if in_place else traffic(space, body),
        updates=body.arguments.index(node.operands[0]) if in_place else None,
    )  # fmt: skip


def _traffic_in_place(space: IndexSpace, body: Body, node: Node) -> Dim:
    """Bytes that must move: the updates are read and written, the rest of what they are written over is not touched."""
    read = [space.env.product(each.dims) * ELEMENT_BYTES[each.element] for each in body.arguments if each is not node.operands[0]]
    return sum(read, space.env.product(node.operands[-1].dims) * ELEMENT_BYTES[node.element])


# --- scans ----------------------------------------------------------------------------------------------------------------

_COMBINE = {"sum": "stablehlo.add", "prod": "stablehlo.multiply", "max": "stablehlo.maximum", "min": "stablehlo.minimum"}


def _scan(space: IndexSpace, node: Node, vector: bool) -> tuple[Dim, Callable[[Frame], None]]:
    """(tasks, emit): lanes along the last dim, or one row per task."""
    axis = node.integer("dim") % len(node.dims)
    outer = [number for number in range(len(node.dims)) if number != axis and not (vector and number == len(node.dims) - 1)]
    tasks = space.env.product([node.dims[number] for number in outer])

    def emit(frame: Frame) -> None:
        b, e = frame.b, frame.emitter
        with b.loop(frame.begin, frame.end, b.index(1)) as task:
            name = e.name("task")
            position = e.space.variable(name, tasks)
            with e.bind(name, task.index):
                index: list[Dim] = [ZERO] * len(node.dims)
                for number, value in zip(outer, e.space.delinear(position, [node.dims[number] for number in outer]), strict=True):
                    index[number] = value
                _scan_rows(frame, node, axis, index, vector)

    return tasks, emit


def _scan_rows(frame: Frame, node: Node, axis: int, index: list[Dim], vector: bool) -> None:
    e, b = frame.emitter, frame.b
    if not vector:
        _scan_line(frame, node, axis, index)
        return
    name = e.name("v")
    last = node.dims[-1]
    index[-1] = e.space.variable(name, last)

    def lanes(names: list[str], carried: list[str]) -> list[str]:
        del names, carried
        _scan_line(frame, node, axis, index)
        return []

    e.lane_loop(name, b.index(0), b.scalar(last), last, 1, [], lanes)


def _scan_line(frame: Frame, node: Node, axis: int, index: list[Dim]) -> None:
    b, e = frame.b, frame.emitter
    source, element = node.operands[0], register_element(node.element)
    kind = str(node.attrs["kind"])
    combine = Node(-1, _COMBINE[kind], (source, source), node.dims, node.element, {})
    with b.loop(b.index(0), b.scalar(node.dims[axis]), b.index(1), [(_identity(frame, kind, node.element), b.vec(element))]) as loop:
        name = e.name("s")
        at = list(index)
        at[axis] = e.space.variable(name, node.dims[axis])
        with e.bind(name, loop.index):
            total = emit_elementwise(b, combine, [loop.carried[0], e.value(source, tuple(at))])
            e.store(frame.outputs[0], e.space.linear(at, node.dims), total)
        loop.yields = [total]


def _identity(frame: Frame, kind: str, element: str) -> str:
    register = register_element(element)
    if kind in ("sum", "prod"):
        return frame.b.const(0 if kind == "sum" else 1, register)
    if register.startswith("f"):
        return frame.b.const(float("-inf") if kind == "max" else float("inf"), register)
    if register == "i1":
        return frame.b.const(kind == "min", register)
    bits = int(register[1:])
    unsigned = element.startswith("ui")
    lowest, highest = (0, -1) if unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return frame.b.const(lowest if kind == "max" else highest, register)


# --- scatter --------------------------------------------------------------------------------------------------------------


def _scatter(frame: Frame, node: Node) -> None:
    b = frame.b
    with b.loop(frame.begin, frame.end, b.index(1)):
        for source, target in zip(node.operands, frame.outputs, strict=False):
            _copy_whole(frame, source, target)
        _update_nest(frame, node, 0, [])


def _scatter_in_place(frame: Frame, node: Node) -> None:
    """Writes nothing where an index is out of range and that is an error: the call then fails, and what it was to change is as it was."""
    b = frame.b
    with b.loop(frame.begin, frame.end, b.index(1)):
        good = b.constant("arith.constant true") if frame.emitter.fault is None else _indices_hold(frame, node, [])
        with b.when(good):
            _update_nest(frame, node, 0, [])


def _indices_hold(frame: Frame, node: Node, index: list[Dim]) -> str:
    """Whether all indices are within the dims that they index, as an i1; reports those that are not."""
    b, e = frame.b, frame.emitter
    updates, (window_dims, inserted) = node.operands[-1], _scatter_dims(node)
    depth = len(index)
    if depth == len(updates.dims):
        source, good = node.operands[0], b.constant("arith.constant true")
        positions = _target(frame, node, tuple(index))
        for axis in inserted:
            good = b.op(f"arith.andi {good}, {_within(frame, positions[axis], source.dims[axis])} : i1")
        return good
    if depth in window_dims:
        return _indices_hold(frame, node, [*index, ZERO])
    name = e.name("u")
    variable, first = e.space.variable(name, updates.dims[depth]), b.constant("arith.constant true")
    with b.loop(b.index(0), b.scalar(updates.dims[depth]), b.index(1), [(first, "i1")]) as loop, e.bind(name, loop.index):
        inner = _indices_hold(frame, node, [*index, variable])
        loop.yields = [b.op(f"arith.andi {loop.carried[0]}, {inner} : i1")]
    return loop.results[0]


def _scatter_dims(node: Node) -> tuple[Sequence[int], Sequence[int]]:
    """(the dims of the updates that are a window, the dims of the operand that no window has)."""
    numbers = node.attrs["scatter_dimension_numbers"]
    assert isinstance(numbers, dict)
    return _ints(numbers["window_dims"]), _ints(numbers["inserted"])


def _copy_whole(frame: Frame, source: Node, target: Buffer) -> None:
    b, e = frame.b, frame.emitter
    count = e.space.env.product(source.dims)
    name = e.name("v")
    position = e.space.variable(name, count)

    def lanes(names: list[str], carried: list[str]) -> list[str]:
        del names, carried
        e.store(target, position, e.value(source, e.space.delinear(position, source.dims)))
        return []

    e.lane_loop(name, b.index(0), b.scalar(count), count if not count.is_const else position, 1, [], lanes)


def _update_nest(frame: Frame, node: Node, depth: int, index: list[Dim]) -> None:
    b, e = frame.b, frame.emitter
    updates = node.operands[-1]
    if depth == len(updates.dims):
        _update_one(frame, node, tuple(index))
        return
    name = e.name("u")
    variable = e.space.variable(name, updates.dims[depth])
    with b.loop(b.index(0), b.scalar(updates.dims[depth]), b.index(1)) as loop, e.bind(name, loop.index):
        _update_nest(frame, node, depth + 1, [*index, variable])


def _update_one(frame: Frame, node: Node, index: Index) -> None:
    b, e = frame.b, frame.emitter
    count = len(node.siblings)
    source, updates = node.operands[0], node.operands[count + 1 :]
    positions = _target(frame, node, index)
    inside = b.constant("arith.constant true")
    for position, size in zip(positions, source.dims, strict=True):
        inside = b.op(f"arith.andi {inside}, {_within(frame, position, size)} : i1")
    with b.when(inside):
        offset = e.space.linear(positions, source.dims)
        current = [e.load(target, offset, None) for target in frame.outputs]
        assert node.body is not None
        updated = e.body(node.body, [*current, *(e.value(each, index) for each in updates)])
        for target, value in zip(frame.outputs, updated, strict=True):
            e.store(target, offset, value)


def _within(frame: Frame, position: Dim, size: Dim) -> str:
    """The i1: position is that of an element of a dim."""
    b = frame.b
    low = b.op(f"arith.cmpi sge, {b.scalar(position)}, {b.index(0)} : i64")
    high = b.op(f"arith.cmpi slt, {b.scalar(position)}, {b.scalar(size)} : i64")
    return b.op(f"arith.andi {low}, {high} : i1")


def _target(frame: Frame, node: Node, index: Index) -> list[Dim]:
    """Where in the operand the update at `index` goes: start position from the indices plus the place in the window."""
    e, b = frame.emitter, frame.b
    source, indices = node.operands[0], node.operands[len(node.siblings)]
    numbers, (window_dims, inserted) = node.attrs["scatter_dimension_numbers"], _scatter_dims(node)
    assert isinstance(numbers, dict)
    operand_batch, indices_batch = _ints(numbers["operand_batch"]), _ints(numbers["indices_batch"])
    vector_dim = numbers["vector_dim"]
    assert isinstance(vector_dim, int)
    batch = [index[axis] for axis in range(len(index)) if axis not in window_dims]
    window_axes = [axis for axis in range(len(source.dims)) if axis not in inserted and axis not in operand_batch]
    positions = [ZERO] * len(source.dims)
    for axis, update_axis in zip(window_axes, window_dims, strict=True):
        positions[axis] = index[update_axis]
    for number, axis in enumerate(_ints(numbers["scatter_map"])):
        at = list(batch)
        if vector_dim < len(indices.dims):
            at.insert(vector_dim, Dim.of(number))
        raw = convert(b, e.value(indices, tuple(at)), indices.element, "i64")
        if axis in inserted:
            e.report_fault(raw, e.lane_vector(source.dims[axis] - 1), tuple(at), None)
        name = e.name("data")
        first = b.op(f"vector.extract {raw}[0] : i64 from {b.vec('i64')}")
        b.variables[name] = Variable(name, first, b.scope)
        positions[axis] = positions[axis] + e.space.variable(name, source.dims[axis])
    without_vector = [axis for axis in range(len(indices.dims)) if axis != vector_dim]
    for axis, indices_axis in zip(operand_batch, indices_batch, strict=True):
        positions[axis] = batch[without_vector.index(indices_axis)]
    return positions


def _ints(value: object) -> Sequence[int]:
    assert isinstance(value, tuple)
    return value
