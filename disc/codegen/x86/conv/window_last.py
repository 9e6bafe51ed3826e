"""Window kernels for channels-last values: depthwise convolutions and pooling, lanes along the channels.

A task is one image, a band of output rows and one vector of channels. Strip by strip of columns the source is copied into scratch, padded
and with this vector's channels side by side; then blocks of output positions accumulate in registers, every load a whole vector.
"""

from __future__ import annotations

from dataclasses import dataclass

from disc.codegen.mlir.builder import register_element
from disc.codegen.plan.contraction import WindowAxis, forward_indices
from disc.codegen.plan.index import ONE, ZERO, Index, IndexSpace
from disc.codegen.plan.kernel import Kernel, Version
from disc.codegen.plan.summary import kernel_ops, traffic
from disc.codegen.plan.symbols import body_symbols
from disc.codegen.x86.conv.window import ELEMENTS, POINT, combine, pool_axes
from disc.codegen.x86.emit import Predicate
from disc.codegen.x86.function import Frame, emit_function
from disc.codegen.x86.memory import Buffer, address
from disc.codegen.x86.plans import WindowLastPlan, check
from disc.ir.graph import Body, Node
from disc.ir.op_table import WINDOWED
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim
from disc.targets.target import Target
from disc.targets.thresholds import WindowThresholds

MOST_SUMS = 64  # accumulators of a block: their code is unrolled


@dataclass(frozen=True, eq=False)
class LastWindow:
    """A window over the rows and columns of [image, row, column, channel] or the columns of [image, column, channel] (rows is POINT).

    kernel: of a depthwise convolution, [row, column, 1, channel]; None for a pool, whose body combines and whose initial value fills.
    plan: what was decided.
    """

    target: Target
    node: Node
    rows: WindowAxis
    columns: WindowAxis
    kernel: Node | None
    plan: WindowLastPlan

    @property
    def lanes(self) -> int:
        return self.target.lanes

    @property
    def limits(self) -> WindowThresholds:
        return self.target.thresholds.window

    @property
    def source(self) -> Node:
        return self.node.operands[0]

    @property
    def images(self) -> Dim:
        return self.node.dims[0]

    @property
    def channels(self) -> Dim:
        return self.node.dims[-1]

    @property
    def element(self) -> str:
        return register_element(self.node.element)

    @property
    def size(self) -> int:
        return ELEMENT_BYTES[self.element]

    @property
    def taps(self) -> int:
        return self.rows.window * self.columns.window

    @property
    def pitch(self) -> int:
        """Source columns of a strip."""
        return seen(self.columns, self.plan.strip)

    @property
    def tile_offset(self) -> int:
        """Where a block's results start in scratch, in bytes: behind the copied strip."""
        return seen(self.rows, self.plan.band) * self.pitch * self.lanes * self.size

    @property
    def scratch(self) -> int:
        """Bytes: the copied strip, the results of a block."""
        return self.tile_offset + (self.plan.rows * self.plan.columns + 1) * self.lanes * self.size

    def at(self, image: Dim, row: Dim, column: Dim, channel: Dim) -> Index:
        """The index of a position in the source or the result."""
        return (image, column, channel) if self.rows is POINT else (image, row, column, channel)

    def kernel_at(self, line: int, tap: int) -> Index:
        """The index in the kernel of a tap, for the channels bound to wc."""
        places = (Dim.of(tap), ZERO, Dim.symbol("wc"))
        return places if self.rows is POINT else (Dim.of(line), *places)


def seen(axis: WindowAxis, outputs: int) -> int:
    """The source positions that this many output positions see."""
    return (outputs - 1) * axis.stride + (axis.window - 1) * axis.dilation + 1


def read_last_window(space: IndexSpace, body: Body, target: Target, plan: WindowLastPlan | None = None) -> LastWindow | None:
    """The window of a fusion around one pool or depthwise convolution of channels-last values; None where another path must take it. plan:
    None = the one that it should have."""
    found = [node for node in body.nodes if node.op in WINDOWED]
    if len(found) != 1 or found[0].op == "stablehlo.reduce" or len(found[0].dims) not in (3, 4):
        return None
    node = found[0]
    limits = target.thresholds.window
    plan = plan or WindowLastPlan(limits.last_band, limits.last_strip, limits.last_rows, limits.last_columns)
    window = _read_pool(node, target, plan) if node.op == "stablehlo.reduce_window" else _read_depthwise(node, target, plan)
    if window is None or window.element not in ELEMENTS or window.taps > limits.most_taps:
        return None
    if not window.channels.is_const or window.channels.const < window.limits.last_channels:
        return None
    for name, extent in (("wi", window.images), ("wy", window.rows.out), ("wx", window.columns.out), ("wc", window.channels)):
        space.variable(name, extent)
    space.variable("wc.base", window.channels)
    reached = forward_indices(space, body, node, _symbols(window))
    return window if all(root in reached for root in body.yields) else None


def _symbols(window: LastWindow) -> Index:
    return window.at(*(Dim.symbol(name) for name in ("wi", "wy", "wx", "wc")))


def may_slide_last(plan: WindowLastPlan) -> None:
    """Raises IllegalPlan for a plan that no window can have."""
    check(1 <= plan.rows * plan.columns <= MOST_SUMS, "rows", f"times columns must be from 1 to {MOST_SUMS}")
    check(plan.band >= plan.rows and plan.band % plan.rows == 0, "band", "must be a multiple of rows")
    check(plan.strip >= plan.columns and plan.strip % plan.columns == 0, "strip", "must be a multiple of columns")


def _read_depthwise(node: Node, target: Target, plan: WindowLastPlan) -> LastWindow | None:
    numbers = node.attrs["dimension_numbers"]
    assert isinstance(numbers, dict)
    source, kernel = node.operands
    rank = len(node.dims)
    spatial = tuple(range(1, rank - 1))
    channels = node.integer("feature_group_count", 1)
    last = all(numbers[name] == rank - 1 for name in ("input_feature", "output_feature", "kernel_output"))
    placed = numbers["input_spatial"] == spatial == numbers["output_spatial"] and numbers["kernel_spatial"] == tuple(range(rank - 2))
    if not (last and placed) or node.integer("batch_group_count", 1) != 1 or any(node.ints("window_reversal")):
        return None
    if (
        channels == 1
        or kernel.dims[-2] != ONE
        or kernel.dims[-1] != Dim.of(channels)
        or any(step != 1 for step in node.ints("lhs_dilation"))
    ):
        return None
    windows = [kernel.dims[axis] for axis in range(rank - 2)]
    if any(not window.is_const for window in windows):
        return None
    ones, padding = (1,) * len(spatial), node.attrs.get("padding")
    strides, dilations = node.ints("window_strides") or ones, node.ints("rhs_dilation") or ones
    low = [int(padding[axis][0]) if padding is not None else 0 for axis in range(len(spatial))]  # pyright: ignore[reportIndexIssue, reportArgumentType]
    axes = [
        WindowAxis(source.dims[place], node.dims[place], windows[axis].const, strides[axis], dilations[axis], low[axis])
        for axis, place in enumerate(spatial)
    ]
    return LastWindow(target, node, axes[0] if rank == 4 else POINT, axes[-1], kernel, plan)


def _read_pool(node: Node, target: Target, plan: WindowLastPlan) -> LastWindow | None:
    axes = pool_axes(node)
    if axes is None or any((axis.window, axis.stride, axis.low) != (1, 1, 0) or axis.size != axis.out for axis in (axes[0], axes[-1])):
        return None
    return LastWindow(target, node, axes[1] if len(axes) == 4 else POINT, axes[-2], None, plan)


def emit_last_window(name: str, body: Body, space: IndexSpace, window: LastWindow) -> Kernel:
    """The kernel of a fusion that `read_last_window` accepted."""
    symbols, limits = body_symbols(space, body), window.limits
    source = emit_function(f"{name}_v0", body, body.yields, symbols, space, window.target, lambda frame: _emit(frame, window, body))
    count = window.images * window.rows.out * window.columns.out * window.channels
    plan = window.plan
    steps = plan.band * window.taps // limits.last_steps_per_cycle
    return Kernel(
        name, "compute" if window.kernel is not None else "loop", (Version(f"{name}_v0"),), symbols,
        window.images * _bands(window) * _vectors(window), window.columns.out * steps + window.target.thresholds.task_cycles,
        Dim.of(window.scratch), source,
        body.lines(), kernel_ops(body), flops=count * (2 * window.taps), bytes=traffic(space, body),
    )  # fmt: skip


def _bands(window: LastWindow) -> Dim:
    return (window.rows.out + (window.plan.band - 1)) // window.plan.band


def _vectors(window: LastWindow) -> int:
    return -(-window.channels.const // window.lanes)


# --- emission -----------------------------------------------------------------------------------------------------------


def _emit(frame: Frame, window: LastWindow, body: Body) -> None:
    b, e = frame.b, frame.emitter
    vectors, bands = b.index(_vectors(window)), b.scalar(_bands(window))
    with b.loop(frame.begin, frame.end, b.index(1)) as task:
        outer = b.op(f"arith.divui {task.index}, {vectors} : i64")
        channel = b.op(f"arith.subi {task.index}, {b.op(f'arith.muli {outer}, {vectors} : i64')} : i64")
        channel = b.op(f"arith.muli {channel}, {b.index(b.lanes)} : i64")
        image = b.op(f"arith.divui {outer}, {bands} : i64")
        band = b.op(f"arith.subi {outer}, {b.op(f'arith.muli {image}, {bands} : i64')} : i64")
        top = b.op(f"arith.muli {band}, {b.index(window.plan.band)} : i64")
        mask: str | None = None
        if window.channels.const % b.lanes:
            mask = e.tail_mask(b.op(f"arith.subi {b.scalar(window.channels)}, {channel} : i64"))
        rows = b.op(f"arith.minsi {b.op(f'arith.subi {b.scalar(window.rows.out)}, {top} : i64')}, {b.index(window.plan.band)} : i64")
        with (
            e.bind("wi", image),
            e.bind("wc", channel, lane=True, mask=mask, aligned=True),
            b.loop(b.index(0), b.scalar(window.columns.out), b.index(window.plan.strip)) as strip,
        ):
            left = b.op(f"arith.subi {b.scalar(window.columns.out)}, {strip.index} : i64")
            columns = b.op(f"arith.minsi {left}, {b.index(window.plan.strip)} : i64")
            _emit_strip(frame, window, body, (top, rows), (strip.index, columns))


def _emit_strip(frame: Frame, window: LastWindow, body: Body, rows: tuple[str, str], columns: tuple[str, str]) -> None:
    """`rows`, `columns`: first and count of the output positions."""
    b = frame.b
    _copy(frame, window, rows, columns)
    emit_blocks(frame, window, body, rows, columns, (frame.scratch, b.index(window.pitch * b.lanes)))


def emit_blocks(
    frame: Frame, window: LastWindow, body: Body, rows: tuple[str, str], columns: tuple[str, str], source: tuple[str, str]
) -> None:
    """The output positions `rows` x `columns` = (first, count) each, block by block, for the channels bound to wc.

    source: where the padded source of the first position lies, a vector of channels per position, and elements from row to row. What
    blocks beyond the last position read is never stored.
    """
    b = frame.b
    height, width = window.plan.rows, window.plan.columns
    tile = Buffer(address(b, Buffer(frame.scratch, (), "i8"), b.index(window.tile_offset)), (), window.element)
    with (
        b.loop(b.index(0), rows[1], b.index(height)) as row,
        b.loop(b.index(0), columns[1], b.index(width)) as column,
    ):
        for number, value in enumerate(_block(frame, window, source, row.index, column.index)):
            store_vector(frame, window, value, tile, b.index(number * b.lanes))
        lines = b.op(f"arith.minsi {b.op(f'arith.subi {rows[1]}, {row.index} : i64')}, {b.index(height)} : i64")
        places = b.op(f"arith.minsi {b.op(f'arith.subi {columns[1]}, {column.index} : i64')}, {b.index(width)} : i64")
        top, left = b.op(f"arith.addi {rows[0]}, {row.index} : i64"), b.op(f"arith.addi {columns[0]}, {column.index} : i64")
        _epilogue(frame, window, body, tile, (top, lines), (left, places))


def store_vector(frame: Frame, window: LastWindow, value: str, buffer: Buffer, offset: str) -> None:
    """Writes a vector of the window's channels to an element of a buffer."""
    b = frame.b
    place = address(b, buffer, offset)
    b.statement(f"llvm.store {value}, {place} {{alignment = {window.size} : i64}} : {b.vec(window.element)}, !llvm.ptr")


def _copy(frame: Frame, window: LastWindow, rows: tuple[str, str], columns: tuple[str, str]) -> None:
    """scratch[source row][source column] of the strip: the source inside, the fill value outside."""
    b = frame.b
    height, width = span(frame, window.rows, rows[1]), span(frame, window.columns, columns[1])
    first_row, first_column = origin(frame, window.rows, rows[0]), origin(frame, window.columns, columns[0])
    scratch = Buffer(frame.scratch, (), window.element)
    zero = b.index(0)
    begin = b.op(f"arith.maxsi {b.op(f'arith.subi {zero}, {first_column} : i64')}, {zero} : i64")
    begin = b.op(f"arith.minsi {begin}, {width} : i64")
    end = b.op(f"arith.minsi {b.op(f'arith.subi {b.scalar(window.columns.size)}, {first_column} : i64')}, {width} : i64")
    end = b.op(f"arith.maxsi {end}, {begin} : i64")
    fill = _fill(frame, window)
    with b.loop(zero, height, b.index(1)) as row:
        line = b.op(f"arith.muli {row.index}, {b.index(window.pitch * b.lanes)} : i64")
        at = b.op(f"arith.addi {first_row}, {row.index} : i64")
        inside = b.op(f"arith.cmpi ult, {at}, {b.scalar(window.rows.size)} : i64")
        stop = b.op(f"arith.select {inside}, {end}, {begin} : i64")
        for low, high in ((zero, begin), (stop, width)):
            with b.loop(low, high, b.index(1)) as column:
                place = b.op(f"arith.addi {line}, {b.op(f'arith.muli {column.index}, {b.index(b.lanes)} : i64')} : i64")
                store_vector(frame, window, fill, scratch, place)
        with b.loop(begin, stop, b.index(1)) as column:
            place = b.op(f"arith.addi {line}, {b.op(f'arith.muli {column.index}, {b.index(b.lanes)} : i64')} : i64")
            value = _source(frame, window, at, b.op(f"arith.addi {first_column}, {column.index} : i64"))
            store_vector(frame, window, value, scratch, place)


def distance(frame: Frame, axis: WindowAxis, outputs: str) -> str:
    """Source positions from what the first of so many output positions (at least 1) sees first to what the last one does."""
    b = frame.b
    return b.op(f"arith.muli {b.op(f'arith.subi {outputs}, {b.index(1)} : i64')}, {b.index(axis.stride)} : i64")


def span(frame: Frame, axis: WindowAxis, outputs: str) -> str:
    """The source positions that so many output positions (at least 1) see."""
    b = frame.b
    return b.op(f"arith.addi {distance(frame, axis, outputs)}, {b.index(seen(axis, 1))} : i64")


def origin(frame: Frame, axis: WindowAxis, output: str) -> str:
    """The first source position that an output position sees; negative within the padding."""
    b = frame.b
    return b.op(f"arith.subi {b.op(f'arith.muli {output}, {b.index(axis.stride)} : i64')}, {b.index(axis.low)} : i64")


def _source(frame: Frame, window: LastWindow, row: str, column: str) -> str:
    e = frame.emitter
    names = e.name("wsy"), e.name("wsx")
    for name, axis in zip(names, (window.rows, window.columns), strict=True):
        e.space.variable(name, axis.size)
    with e.bind(names[0], row), e.bind(names[1], column):
        at = window.at(Dim.symbol("wi"), Dim.symbol(names[0]), Dim.symbol(names[1]), Dim.symbol("wc"))
        return e.value(window.source, at)


def _fill(frame: Frame, window: LastWindow) -> str:
    return frame.b.const(0, window.element) if window.kernel is not None else frame.emitter.value(window.node.operands[1], ())


def _block(frame: Frame, window: LastWindow, source: tuple[str, str], top: str, left: str) -> list[str]:
    """The results of a block of positions, row by row; `top`, `left`: its first position; source as in `emit_blocks`."""
    b, e = frame.b, frame.emitter
    height, width = window.plan.rows, window.plan.columns
    rows, columns = window.rows, window.columns
    vector = b.vec(window.element)
    place = b.op(f"arith.muli {b.op(f'arith.muli {top}, {b.index(rows.stride)} : i64')}, {source[1]} : i64")
    place = b.op(f"arith.addi {place}, {b.op(f'arith.muli {left}, {b.index(columns.stride * b.lanes)} : i64')} : i64")
    origin = address(b, Buffer(source[0], (), window.element), place)
    starts = [
        address(b, Buffer(origin, (), window.element), b.op(f"arith.muli {b.index(line)}, {source[1]} : i64"))
        for line in range(seen(rows, height))
    ]
    sums = [[_fill(frame, window)] * width for _ in range(height)]
    for line in range(rows.window):
        weights = [
            e.value(window.kernel, window.kernel_at(line, tap)) if window.kernel is not None else None for tap in range(columns.window)
        ]
        for row in range(height):
            for position in range(seen(columns, width)):
                taps = _taps_at(columns, position, width)
                if not taps:
                    continue
                start = starts[row * rows.stride + line * rows.dilation]
                pointer = address(b, Buffer(start, (), window.element), b.index(position * b.lanes))
                value = b.op(f"llvm.load {pointer} {{alignment = {window.size} : i64}} : !llvm.ptr -> {vector}")
                for output, tap in taps:
                    sums[row][output] = combine(frame, window.node, window.element, sums[row][output], value, weights[tap])
    return [value for line in sums for value in line]


def _taps_at(axis: WindowAxis, position: int, outputs: int) -> list[tuple[int, int]]:
    """(output of the block, tap) pairs that read a source position of the block."""
    found: list[tuple[int, int]] = []
    for tap in range(axis.window):
        output, rest = divmod(position - tap * axis.dilation, axis.stride)
        if rest == 0 and 0 <= output < outputs:
            found.append((output, tap))
    return found


def _epilogue(frame: Frame, window: LastWindow, body: Body, tile: Buffer, rows: tuple[str, str], columns: tuple[str, str]) -> None:
    """Stores `rows` x `columns` = (first, count) positions of every root, the window's values taken from the tile."""
    b, e = frame.b, frame.emitter
    with b.loop(b.index(0), rows[1], b.index(1)) as row, e.bind("wy", b.op(f"arith.addi {rows[0]}, {row.index} : i64")):
        line = b.op(f"arith.muli {row.index}, {b.index(window.plan.columns * b.lanes)} : i64")
        with (
            b.loop(b.index(0), columns[1], b.index(1)) as column,
            e.bind("wx", b.op(f"arith.addi {columns[0]}, {column.index} : i64")),
        ):
            place = address(b, tile, b.op(f"arith.addi {line}, {b.op(f'arith.muli {column.index}, {b.index(b.lanes)} : i64')} : i64"))
            value = b.op(f"llvm.load {place} {{alignment = {window.size} : i64}} : !llvm.ptr -> {b.vec(window.element)}")
            indices = forward_indices(e.space, body, window.node, _symbols(window))

            def window_value(index: Index, predicate: Predicate | None, value: str = value) -> str:
                del index, predicate
                return value

            e.leaves[window.node] = window_value
            for root, output in zip(frame.roots, frame.outputs, strict=True):
                e.store(output, e.space.linear(indices[root], root.dims), e.value(root, indices[root]))
            del e.leaves[window.node]
