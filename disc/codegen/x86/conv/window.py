"""Window kernels, and those of depthwise convolutions: lanes along the output width, no index arithmetic per tap (pools: `pool.py`).

A task is one plane (image and channel) and a band of output rows. The source rows of the band are copied into scratch once, padded, the
columns of a stride split into phases, so that every tap of every output is an unmasked load of consecutive elements. Blocks of output
rows accumulate in registers: a loaded vector serves all rows of the block that see it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from disc.codegen.mlir.builder import register_element
from disc.codegen.plan.contraction import WindowAxis, forward_indices, read_contraction
from disc.codegen.plan.index import ONE, ZERO, Index, IndexSpace
from disc.codegen.plan.kernel import Kernel, Version
from disc.codegen.plan.summary import kernel_ops, traffic
from disc.codegen.plan.symbols import body_symbols
from disc.codegen.x86.emit import Predicate
from disc.codegen.x86.function import Frame, emit_function
from disc.codegen.x86.memory import Buffer, address, prefetch
from disc.codegen.x86.plans import DepthwisePlan, PoolPlan, check
from disc.ir.graph import Body, Node
from disc.ir.op_table import WINDOWED
from disc.ir.reducers import IN_ORDER
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim
from disc.targets.target import Target

MOST_ROWS = 32  # of a block: their code is unrolled
ELEMENTS = ("f32", "f64", "i32", "i64")
POINT = WindowAxis(ONE, ONE, 1, 1, 1, 0)  # the missing axis of a one-dimensional window

_UNDECIDED = DepthwisePlan(0, 0)


@dataclass(frozen=True, eq=False)
class Window:
    """A value whose element (plane, row, column) combines a window of its source's plane.

    source_at, result_at: indices in the source and in the node of (plane, row, column). kernel_at: the index in the kernel of (plane, tap)
    for a depthwise convolution, None for a pool, whose body combines and whose initial value fills the padding. plan: what was decided.
    """

    target: Target
    node: Node
    source: Node
    planes: Dim
    rows: WindowAxis
    columns: WindowAxis
    source_at: Callable[[Dim, Dim, Dim], Index]
    result_at: Callable[[Dim, Dim, Dim], Index]
    kernel_at: Callable[[Dim, int], Index] | None = None
    plan: DepthwisePlan | PoolPlan = _UNDECIDED

    @property
    def element(self) -> str:
        return register_element(self.node.element)

    @property
    def band(self) -> int:
        """Output rows of a task."""
        return self.plan.band

    @property
    def block(self) -> int:
        """Output rows of a block of accumulators."""
        return self.plan.rows

    @property
    def cost(self) -> Dim:
        """Cycles of a task."""
        limits = self.target.thresholds
        steps = self.band * (self.rows.window * self.columns.window) // (self.target.lanes * limits.window.steps_per_cycle)
        return self.columns.out * steps + limits.task_cycles

    @property
    def phases(self) -> int:
        """Rows of scratch per source row: column j of phase p is source column j * stride + p - low."""
        return min(self.columns.stride, (self.columns.window - 1) * self.columns.dilation + 1)

    @property
    def halved(self) -> bool:
        """Both phases of a stride of 2 come from the same pair of vectors."""
        return self.columns.stride == 2 and self.phases == 2

    @property
    def shift(self) -> int:
        """How many columns of a phase the last tap lies behind the first."""
        return (self.columns.window - 1) * self.columns.dilation // self.columns.stride

    def pitch(self) -> Dim:
        """Elements of a scratch row: room for the taps of a whole last vector."""
        return (self.columns.out + (self.shift + 31)) // 16 * 16

    def source_rows(self, rows: int) -> int:
        """The source rows that this many output rows see."""
        return (rows - 1) * self.rows.stride + (self.rows.window - 1) * self.rows.dilation + 1


def read_window(space: IndexSpace, body: Body, target: Target, plan: DepthwisePlan | PoolPlan | None = None) -> Window | None:
    """The window of a fusion around one pool or depthwise convolution; None where another path must take it. plan: None = the one that it
    should have."""
    found = [node for node in body.nodes if node.op in WINDOWED]
    if len(found) != 1 or found[0].op == "stablehlo.reduce":
        return None
    read = _read_pool if found[0].op == "stablehlo.reduce_window" else _read_depthwise
    window, most = read(space, found[0], target), target.thresholds.window.most_taps
    if window is None or window.element not in ELEMENTS or window.rows.window * window.columns.window > most:
        return None
    for name, extent in (("gb", window.planes), ("wy", window.rows.out), ("wx", window.columns.out)):
        space.variable(name, extent)
    at = window.result_at(Dim.symbol("gb"), Dim.symbol("wy"), Dim.symbol("wx"))
    if not all(root in forward_indices(space, body, window.node, at) for root in body.yields):
        return None
    return replace(window, plan=plan or _plan(window))


def _plan(window: Window) -> DepthwisePlan | PoolPlan:
    """A depthwise convolution copies small bands where it can: with what is prefetched they stay in L1."""
    limits = window.target.thresholds.window
    if window.kernel_at is None:
        return PoolPlan(limits.bands[-1], 1 if window.rows is POINT else limits.pool_rows)
    again = (window.rows.window - 1) * window.rows.dilation + 1 - window.rows.stride
    fitting = (rows for rows in limits.bands if rows * window.rows.stride >= limits.least_part * again)
    return DepthwisePlan(next(fitting, limits.bands[-1]), limits.rows)


def may_slide(window: Window, plan: DepthwisePlan | PoolPlan) -> None:
    """Raises IllegalPlan for a plan that the window cannot have."""
    kind = PoolPlan if window.kernel_at is None else DepthwisePlan
    check(isinstance(plan, kind), "", f"the window is that of a {kind.name}")
    check(1 <= plan.rows <= MOST_ROWS, "rows", f"must be from 1 to {MOST_ROWS}")
    check(plan.band >= plan.rows and plan.band % plan.rows == 0, "band", "must be a multiple of rows")


def _read_depthwise(space: IndexSpace, node: Node, target: Target) -> Window | None:
    contraction = read_contraction(space, node)
    windows = contraction.windows
    if windows is None or contraction.m != ONE or windows.channels != ONE or len(windows.axes) not in (1, 2):
        return None
    *outer, columns = windows.axes
    rows, flat = outer[0] if outer else POINT, not outer

    def source_at(plane: Dim, row: Dim, column: Dim) -> Index:
        return windows.at(plane, ZERO, [column] if flat else [row, column])

    def result_at(plane: Dim, row: Dim, column: Dim) -> Index:
        return contraction.result(plane, ZERO, row * columns.out + column)

    def kernel_at(plane: Dim, tap: int) -> Index:
        return contraction.left.locate(plane, ZERO, Dim.of(tap))[0]

    return Window(target, node, contraction.right.node, contraction.batch, rows, columns, source_at, result_at, kernel_at)


def pool_axes(node: Node) -> list[WindowAxis] | None:
    """Every axis of a reduce_window of one source by a plain op; None of any other."""
    rank = len(node.dims)
    ones = (1,) * rank
    sizes, padding = node.ints("window_dimensions"), node.attrs.get("padding")
    strides, dilations = node.ints("window_strides") or ones, node.ints("window_dilations") or ones
    if len(node.operands) != 2 or IN_ORDER in node.attrs:
        return None
    source = node.operands[0]
    low = [int(padding[axis][0]) if padding is not None else 0 for axis in range(rank)]  # pyright: ignore[reportIndexIssue, reportArgumentType]
    return [WindowAxis(source.dims[axis], node.dims[axis], sizes[axis], strides[axis], dilations[axis], low[axis]) for axis in range(rank)]


def _read_pool(space: IndexSpace, node: Node, target: Target) -> Window | None:
    every = pool_axes(node)
    if every is None:
        return None
    rank, source = len(node.dims), node.operands[0]
    slid = [number for number, axis in enumerate(every) if (axis.window, axis.stride) != (1, 1) or axis.size != axis.out]
    if not 1 <= len(slid) <= 2:
        return None
    lead = [axis for axis in range(rank) if axis not in slid]

    def at(plane: Dim, row: Dim, column: Dim) -> Index:
        index = [ZERO] * rank
        for axis, position in zip(lead, space.delinear(plane, [node.dims[axis] for axis in lead]), strict=True):
            index[axis] = position
        for axis, position in zip(slid[::-1], (column, row), strict=False):
            index[axis] = position
        return tuple(index)

    rows = every[slid[0]] if len(slid) == 2 else POINT
    planes = space.env.product([node.dims[axis] for axis in lead])
    return Window(target, node, source, planes, rows, every[slid[-1]], at, at)


def emit_window(name: str, body: Body, space: IndexSpace, window: Window) -> Kernel:
    """The kernel of a fusion in which `read_window` found a depthwise convolution."""
    symbols = body_symbols(space, body)

    def emit(frame: Frame) -> None:
        emit_tasks(frame, window, lambda first, rows: _emit_band(frame, window, body, first, rows))

    source = emit_function(f"{name}_v0", body, body.yields, symbols, space, window.target, emit)
    taps = window.rows.window * window.columns.window
    count = window.planes * window.rows.out * window.columns.out
    return Kernel(
        name, "compute", (Version(f"{name}_v0"),), symbols, window.planes * bands(window),
        window.cost, _tile_offset(window) + window.block * window.target.lanes * _size(window),
        source, body.lines(), kernel_ops(body), flops=count * (2 * taps), bytes=traffic(space, body),
    )  # fmt: skip


def bands(window: Window) -> Dim:
    """The number of tasks per plane."""
    return (window.rows.out + (window.band - 1)) // window.band


def _tile_offset(window: Window) -> Dim:
    """Where the block's results start in scratch, in bytes: behind the copied band."""
    return window.pitch() * (window.source_rows(window.band) * window.phases * ELEMENT_BYTES[window.element]) + 64


# --- emission -----------------------------------------------------------------------------------------------------------


def emit_tasks(frame: Frame, window: Window, emit_band: Callable[[str, str], None]) -> None:
    """Runs `emit_band(first, rows)` for the band of output rows of each task, its plane bound to gb and its number to wband."""
    b, e = frame.b, frame.emitter
    with b.loop(frame.begin, frame.end, b.index(1)) as task:
        position = e.space.variable("wtask", window.planes * bands(window))
        e.space.variable("wband", bands(window))
        with e.bind("wtask", task.index):
            plane = e.space.divide(position, bands(window))
            with e.bind("gb", b.scalar(plane)), e.bind("wband", b.scalar(position - plane * bands(window))):
                first = b.scalar(Dim.symbol("wband") * window.band)
                left = b.op(f"arith.subi {b.scalar(window.rows.out)}, {first} : i64")
                emit_band(first, b.op(f"arith.minsi {left}, {b.index(window.band)} : i64"))


def _emit_band(frame: Frame, window: Window, body: Body, first: str, rows: str) -> None:
    b = frame.b
    _copy_band(frame, window, rows)
    end = b.op(f"arith.addi {first}, {rows} : i64")
    block = window.block
    with (
        b.loop(b.index(0), rows, b.index(block)) as block_loop,
        b.loop(b.index(0), b.scalar(window.columns.out), b.index(b.lanes)) as strip,
    ):
        _fetch_next(frame, window, b.op(f"arith.addi {end}, {block_loop.index} : i64"), strip.index)
        sums = _block_values(frame, window, block_loop.index, strip.index)
        tile = Buffer(address(b, Buffer(frame.scratch, (), "i8"), b.scalar(_tile_offset(window))), (), window.element)
        for number, value in enumerate(sums):
            place = address(b, tile, b.index(number * b.lanes))
            b.statement(f"llvm.store {value}, {place} {{alignment = {_size(window)} : i64}} : {b.vec(window.element)}, !llvm.ptr")
        count = b.op(f"arith.minsi {b.op(f'arith.subi {rows}, {block_loop.index} : i64')}, {b.index(block)} : i64")
        top = b.op(f"arith.addi {first}, {block_loop.index} : i64")
        _epilogue(frame, window, body, tile, (top, count), strip.index)


def _fetch_next(frame: Frame, window: Window, row: str, column: str) -> None:
    """Prefetches what a block at output `row` and `column` will read: the next band, or what lies there in the next plane.

    Bands are read in bursts, which memory serves slower than they are issued; nothing is computed in the meantime.
    """
    b, e = frame.b, frame.emitter
    leaf = e.leaves.get(window.source)
    if not isinstance(leaf, Buffer):
        return
    e.space.variable("wnext", window.rows.out + window.band)
    e.space.variable("wleft", window.columns.out)
    with e.bind("wnext", row), e.bind("wleft", column):
        top = Dim.symbol("wnext") * window.rows.stride - window.rows.low
        left = Dim.symbol("wleft") * window.columns.stride - window.columns.low
        for line in range(1 if window.rows is POINT else window.block * window.rows.stride):
            for start in range(0, b.lanes * window.columns.stride, window.target.caches.line // _size(window)):
                at = window.source_at(Dim.symbol("gb"), ZERO if window.rows is POINT else top + line, left + start)
                prefetch(b, leaf, b.scalar(e.space.linear(at, leaf.dims)))


def _size(window: Window) -> int:
    return ELEMENT_BYTES[window.element]


def _copy_band(frame: Frame, window: Window, rows: str) -> None:
    """scratch[source row][phase][column] of the band: the source inside, the fill value outside."""
    b, e = frame.b, frame.emitter
    rows_seen = b.op(f"arith.muli {b.op(f'arith.subi {rows}, {b.index(1)} : i64')}, {b.index(window.rows.stride)} : i64")
    rows_seen = b.op(f"arith.addi {rows_seen}, {b.index(window.source_rows(1))} : i64")
    e.space.variable("wrow", Dim.of(window.source_rows(window.band)))
    row = Dim.symbol("wband") * (window.band * window.rows.stride) + Dim.symbol("wrow") - window.rows.low
    length = window.columns.out + window.shift
    vectors = 2 if window.halved else 1
    names = [f"wcol{number}" for number in range(vectors)]
    for name in names:
        e.space.variable(name, window.pitch() * vectors)
        e.space.variable(f"{name}.base", window.pitch() * vectors)
    with (
        b.loop(b.index(0), rows_seen, b.index(1)) as row_loop,
        e.bind("wrow", row_loop.index),
        b.loop(b.index(0), b.scalar(length), b.index(b.lanes)) as column,
    ):
        place = b.scalar(Dim.symbol("wrow") * window.pitch() * window.phases)
        place = b.op(f"arith.addi {place}, {column.index} : i64")
        if window.halved:
            values = _two_phases(frame, window, row, names, column.index)
        else:
            with e.bind(names[0], column.index, lane=True, aligned=True):
                at = Dim.symbol(names[0]) * window.columns.stride - window.columns.low
                values = [_padded(frame, window, row, at + phase) for phase in range(window.phases)]
        for phase, value in enumerate(values):
            offset = b.op(f"arith.addi {place}, {b.scalar(window.pitch() * phase)} : i64")
            pointer = address(b, Buffer(frame.scratch, (), window.element), offset)
            b.statement(f"llvm.store {value}, {pointer} {{alignment = {_size(window)} : i64}} : {b.vec(window.element)}, !llvm.ptr")


def _two_phases(frame: Frame, window: Window, row: Dim, names: Sequence[str], column: str) -> list[str]:
    """The even and the odd of two consecutive vectors of source columns."""
    b, e = frame.b, frame.emitter
    start = b.op(f"arith.muli {column}, {b.index(2)} : i64")
    second = b.op(f"arith.addi {start}, {b.index(b.lanes)} : i64")
    vector, halves = b.vec(window.element), []
    for name, base in zip(names, (start, second), strict=True):
        with e.bind(name, base, lane=True, aligned=True):
            halves.append(_padded(frame, window, row, Dim.symbol(name) - window.columns.low))
    result: list[str] = []
    for phase in range(2):
        order = ", ".join(str(2 * lane + phase) for lane in range(b.lanes))
        result.append(b.op(f"vector.shuffle {halves[0]}, {halves[1]} [{order}] : {vector}, {vector}"))
    return result


def _padded(frame: Frame, window: Window, row: Dim, column: Dim) -> str:
    """The source at a position that may lie outside."""
    b, e = frame.b, frame.emitter
    uniform: Predicate | None = None
    if window.rows is not POINT:
        uniform = row_inside(frame, window, row)
    variable = b.lane_variable(column)
    assert variable is not None
    vector, step = b.vec("i32"), 1 if window.halved else window.columns.stride
    numbers = b.constant(f"arith.constant dense<[{', '.join(str(lane * step) for lane in range(b.lanes))}]> : {vector}")
    first = b.op(f"vector.broadcast {b.op(f'arith.trunci {b.scalar(column)} : i64 to i32')} : i32 to {vector}")
    limit = b.op(f"vector.broadcast {b.op(f'arith.trunci {b.scalar(window.columns.size)} : i64 to i32')} : i32 to {vector}")
    mask = b.op(f"arith.cmpi ult, {b.op(f'arith.addi {first}, {numbers} : {vector}')}, {limit} : {vector}")
    if uniform is not None:
        mask = b.op(f"arith.andi {mask}, {uniform.mask} : {b.vec('i1')}")
    inside = Predicate(mask, b.scope, uniform, True)
    at = window.source_at(Dim.symbol("gb"), ZERO if window.rows is POINT else row, column)
    value = e.value(window.source, at, inside)
    return b.op(f"arith.select {mask}, {value}, {b.const(0, window.element)} : {b.vec('i1')}, {b.vec(window.element)}")


def row_inside(frame: Frame, window: Window, row: Dim) -> Predicate:
    """Whether a source row exists, emitted once per row."""
    b = frame.b
    scope = b.scope_of(row)
    key = ("row inside", row)
    if key not in scope.memo:
        with b.at(scope):
            inside = b.op(f"arith.cmpi ult, {b.scalar(row)}, {b.scalar(window.rows.size)} : i64")
            scope.memo[key] = b.op(f"vector.broadcast {inside} : i1 to {b.vec('i1')}")
    return Predicate(scope.memo[key], scope)


def _block_values(frame: Frame, window: Window, top: str, left: str) -> list[str]:
    """The results of a block of rows and a vector of columns; `top`: the block's first row within the band."""
    b = frame.b
    count = window.block
    vector = b.vec(window.element)
    row_place = b.op(f"arith.muli {top}, {b.scalar(window.pitch() * (window.rows.stride * window.phases))} : i64")
    origin = address(b, Buffer(frame.scratch, (), window.element), b.op(f"arith.addi {row_place}, {left} : i64"))
    element = window.element

    def source(row: int, tap: int) -> str:
        shift, phase = divmod(tap * window.columns.dilation, window.columns.stride)
        offset = b.scalar(window.pitch() * (row * window.phases + phase) + shift)
        pointer = address(b, Buffer(origin, (), element), offset)
        return b.op(f"llvm.load {pointer} {{alignment = {_size(window)} : i64}} : !llvm.ptr -> {vector}")

    sums = [b.const(0, element)] * count
    rows = [(row, seen) for row in range(window.source_rows(count)) if (seen := rows_that_see(window, row, count))]
    for tap in range(window.columns.window):
        weights = [_weight(frame, window, line * window.columns.window + tap) for line in range(window.rows.window)]
        for row, seen in rows:
            value = source(row, tap)
            for number, line in seen:
                sums[number] = combine(frame, window.node, element, sums[number], value, weights[line])
    return sums


def rows_that_see(window: Window, row: int, count: int) -> list[tuple[int, int]]:
    """(output row of the block, line of the window) for a source row of the block."""
    found: list[tuple[int, int]] = []
    for line in range(window.rows.window):
        number, rest = divmod(row - line * window.rows.dilation, window.rows.stride)
        if rest == 0 and 0 <= number < count:
            found.append((number, line))
    return found


def _weight(frame: Frame, window: Window, tap: int) -> str:
    """One weight of the plane in every lane."""
    assert window.kernel_at is not None
    kernel = window.node.operands[1]
    return frame.emitter.value(kernel, window.kernel_at(Dim.symbol("gb"), tap))


def combine(frame: Frame, node: Node, element: str, total: str, value: str, weight: str | None) -> str:
    """A running result of `node` with one more source value: weighted, or combined by the body of a pool."""
    b = frame.b
    if weight is None:
        assert node.body is not None
        return frame.emitter.body(node.body, [total, value])[0]
    vector = b.vec(element)
    if element.startswith("f"):
        return b.op(f"vector.fma {value}, {weight}, {total} : {vector}")
    return b.op(f"arith.addi {b.op(f'arith.muli {value}, {weight} : {vector}')}, {total} : {vector}")


def _epilogue(frame: Frame, window: Window, body: Body, tile: Buffer, rows: tuple[str, str], left: str) -> None:
    """Stores `rows` = (first, count) rows of every root, the window's values taken from the tile."""
    b, e = frame.b, frame.emitter
    mask = e.tail_mask(b.op(f"arith.subi {b.scalar(window.columns.out)}, {left} : i64"))
    e.space.variable("wnumber", Dim.of(window.block))
    e.space.variable("wx.base", window.columns.out)
    with (
        b.loop(b.index(0), rows[1], b.index(1)) as row,
        e.bind("wnumber", row.index),
        e.bind("wy", b.op(f"arith.addi {rows[0]}, {row.index} : i64")),
        e.bind("wx", left, lane=True, mask=mask, aligned=True),
    ):
        place = address(b, tile, b.scalar(Dim.symbol("wnumber") * b.lanes))
        value = b.op(f"llvm.load {place} {{alignment = {_size(window)} : i64}} : !llvm.ptr -> {b.vec(window.element)}")
        at = window.result_at(Dim.symbol("gb"), Dim.symbol("wy"), Dim.symbol("wx"))
        indices = forward_indices(e.space, body, window.node, at)

        def window_value(index: Index, predicate: Predicate | None) -> str:
            del index, predicate
            return value

        e.leaves[window.node] = window_value
        # The index of a single position names no row: its value would be taken for one of all rows.
        e.floor = b.scope if window.rows.out == ONE == window.columns.out else None
        for root, output in zip(frame.roots, frame.outputs, strict=True):
            e.store(output, e.space.linear(indices[root], root.dims), e.value(root, indices[root]))
        e.floor = None
        del e.leaves[window.node]
