"""Pooling kernels, lanes along the output width: the lines of a window first, which needs no shuffles, then its columns.

A task is one plane (image and channel) and a band of output rows. For a few output rows at a time the source rows are read where they lie
and combined line by line into rows of scratch, whose margins hold the padding; then windows are combined along these rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from disc.codegen.plan.contraction import forward_indices
from disc.codegen.plan.index import Index, IndexSpace
from disc.codegen.plan.kernel import Kernel, Version
from disc.codegen.plan.summary import kernel_ops, traffic
from disc.codegen.plan.symbols import body_symbols
from disc.codegen.x86.conv.window import POINT, Window, bands, combine, emit_tasks, row_inside, rows_that_see
from disc.codegen.x86.emit import Predicate
from disc.codegen.x86.function import Frame, emit_function, rounded_up, store_roots
from disc.codegen.x86.memory import Buffer, load_contiguous, load_gather, prefetch, store_contiguous
from disc.ir.graph import Body
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim, dim_max


def emit_pool(name: str, body: Body, space: IndexSpace, window: Window) -> Kernel:
    """The kernel of a fusion in which `read_window` found a pool."""
    symbols, target = body_symbols(space, body), window.target
    source = emit_function(f"{name}_v0", body, body.yields, symbols, space, target, lambda frame: _Pool(frame, window, body).emit())
    taps = window.rows.window * window.columns.window
    return Kernel(
        name, "loop", (Version(f"{name}_v0"),), symbols, window.planes * bands(window),
        window.cost, _pitch(window, target.lanes) * (window.block * ELEMENT_BYTES[window.element]),
        source, body.lines(), kernel_ops(body),
        flops=window.planes * window.rows.out * window.columns.out * (2 * taps), bytes=traffic(space, body),
    )  # fmt: skip


def _pitch(window: Window, lanes: int) -> Dim:
    """Elements of a row of scratch, which begins with the first column that a window sees: whole vectors of what is stored and read."""
    columns = window.columns
    stored = rounded_up(columns.size, lanes) + max(columns.low, 0)
    read = rounded_up(columns.out, lanes) * columns.stride + (columns.window - 1) * columns.dilation
    return rounded_up(dim_max(stored, read), lanes)


@dataclass(frozen=True, eq=False)
class _Pool:
    """A kernel under construction."""

    frame: Frame
    window: Window
    body: Body

    @property
    def block(self) -> int:
        """Output rows at a time."""
        return self.window.block

    @property
    def pitch(self) -> Dim:
        """Elements of a row of scratch."""
        return _pitch(self.window, self.frame.b.lanes)

    @property
    def scratch(self) -> Buffer:
        return Buffer(self.frame.scratch, (), self.window.element)

    def fill(self) -> str:
        """The initial value, which is also every element of the padding."""
        return self.frame.emitter.value(self.window.node.operands[1], ())

    def combine(self, total: str, value: str) -> str:
        return combine(self.frame, self.window.node, self.window.element, total, value, None)

    def padding(self) -> str:
        """What the lines of a window that lies in the padding combine to."""
        return reduce(self.combine, [self.fill()] * self.window.rows.window)

    # --- emission ---------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        """All of scratch is padding, until the columns that exist are written over in every block of rows."""
        b = self.frame.b
        padding = self.padding()
        with b.loop(b.index(0), b.scalar(self.pitch * self.block), b.index(b.lanes)) as loop:
            store_contiguous(b, self.scratch, loop.index, padding, None)
        emit_tasks(self.frame, self.window, lambda first, rows: self.emit_band(first, rows, padding))

    def emit_band(self, first: str, rows: str, padding: str) -> None:
        """`rows` output rows from `first` on of the plane bound to gb."""
        b, e, axis = self.frame.b, self.frame.emitter, self.window.rows
        e.space.variable("wtop", axis.out)
        end = b.op(f"arith.addi {first}, {rows} : i64")
        with b.loop(first, end, b.index(self.block)) as block, e.bind("wtop", block.index):
            top = Dim.symbol("wtop") * axis.stride - axis.low
            above = b.op(f"arith.cmpi sge, {b.scalar(top)}, {b.index(0)} : i64")
            below = b.op(f"arith.cmpi sle, {b.scalar(top + self.window.source_rows(self.block))}, {b.scalar(axis.size)} : i64")
            whole = b.op(f"arith.andi {above}, {below} : i1")
            cut = b.op(f"arith.xori {whole}, {b.constant('arith.constant true')} : i1")
            for condition, checked in ((whole, False), (cut, True)):
                with b.when(condition):
                    e.floor = b.scope  # a row may exist under this condition alone
                    self.combine_lines(top, padding, checked)
                    e.floor = None
            left = b.op(f"arith.subi {end}, {block.index} : i64")
            self.combine_columns(b.op(f"arith.minsi {left}, {b.index(self.block)} : i64"))

    def combine_lines(self, top: Dim, padding: str, checked: bool) -> None:
        """scratch[output row][column] of a block whose first window begins at source row `top`.

        checked: a row may lie outside the source and then is padding.
        """
        b, e, columns = self.frame.b, self.frame.emitter, self.window.columns
        skipped, margin = max(-columns.low, 0), max(columns.low, 0)
        length = b.scalar(columns.size - skipped)
        for name in ("wcol", "wcol.base"):
            e.space.variable(name, columns.size)
        column = Dim.symbol("wcol") + skipped
        with b.loop(b.index(0), length, b.index(b.lanes)) as loop:
            mask = e.tail_mask(b.op(f"arith.subi {length}, {loop.index} : i64"))
            with e.bind("wcol", loop.index, lane=True, mask=mask, aligned=True):
                self.fetch_next(top, column)
                for number, value in enumerate(self.line_values(top, column, checked)):
                    kept = b.op(f"arith.select {mask}, {value}, {padding} : {b.vec('i1')}, {b.vec(self.window.element)}")
                    place = b.op(f"arith.addi {loop.index}, {b.scalar(self.pitch * number + margin)} : i64")
                    store_contiguous(b, self.scratch, place, kept, None)

    def line_values(self, top: Dim, column: Dim, checked: bool) -> list[str]:
        """What the lines of each output row of a block combine to; a source row serves all windows that see it."""
        b, e = self.frame.b, self.frame.emitter
        found: dict[int, str] = {}
        for row in range(self.window.source_rows(self.block)):
            seen = rows_that_see(self.window, row, self.block)
            if not seen:
                continue
            inside: Predicate | None = row_inside(self.frame, self.window, top + row) if checked else None
            value = e.value(self.window.source, self.window.source_at(Dim.symbol("gb"), top + row, column), inside)
            if inside is not None:
                value = b.op(f"arith.select {inside.mask}, {value}, {self.fill()} : {b.vec('i1')}, {b.vec(self.window.element)}")
            for number, _ in seen:
                found[number] = self.combine(found[number], value) if number in found else value
        return [found[number] for number in range(self.block)]

    def fetch_next(self, top: Dim, column: Dim) -> None:
        """Prefetches the rows at `column` that the next block adds; behind a plane's last row lies the next plane."""
        b, e, window = self.frame.b, self.frame.emitter, self.window
        leaf = e.leaves.get(window.source)
        if not isinstance(leaf, Buffer) or window.rows is POINT:
            return
        row = top + window.source_rows(self.block)
        for number in range(self.block * window.rows.stride):
            for start in range(0, b.lanes, window.target.caches.line // ELEMENT_BYTES[window.element]):
                at = window.source_at(Dim.symbol("gb"), row + number, column + start)
                prefetch(b, leaf, b.scalar(e.space.linear(at, leaf.dims)))

    def combine_columns(self, count: str) -> None:
        """Stores `count` rows of every root, the windows combined along the rows of scratch."""
        b, e, window = self.frame.b, self.frame.emitter, self.window
        e.space.variable("wnumber", Dim.of(self.block))
        e.space.variable("wx.base", window.columns.out)
        at = window.result_at(Dim.symbol("gb"), Dim.symbol("wy"), Dim.symbol("wx"))
        indices = forward_indices(e.space, self.body, window.node, at)
        width = b.scalar(window.columns.out)
        with b.loop(b.index(0), width, b.index(b.lanes)) as strip:
            mask = e.tail_mask(b.op(f"arith.subi {width}, {strip.index} : i64"))
            left = b.op(f"arith.muli {strip.index}, {b.index(window.columns.stride)} : i64")
            with (
                b.loop(b.index(0), count, b.index(1)) as row,
                e.bind("wnumber", row.index),
                e.bind("wy", b.scalar(Dim.symbol("wtop") + Dim.symbol("wnumber"))),
                e.bind("wx", strip.index, lane=True, mask=mask, aligned=True),
            ):
                place = b.op(f"arith.addi {b.scalar(self.pitch * Dim.symbol('wnumber'))}, {left} : i64")
                value = reduce(self.combine, self.column_values(place), self.fill())

                def window_value(index: Index, predicate: Predicate | None, value: str = value) -> str:
                    del index, predicate
                    return value

                e.leaves[window.node] = window_value
                store_roots(self.frame, indices, "window")
                del e.leaves[window.node]

    def column_values(self, place: str) -> list[str]:
        """What each column of the windows holds whose first one begins at `place` of scratch."""
        b, columns = self.frame.b, self.window.columns
        vector = b.vec(self.window.element)
        loaded: dict[int, str] = {}

        def load(offset: int) -> str:
            if offset not in loaded:
                loaded[offset] = load_contiguous(b, self.scratch, b.op(f"arith.addi {place}, {b.index(offset)} : i64"), None)
            return loaded[offset]

        def tap(offset: int) -> str:
            if columns.stride == 1:
                return load(offset)
            if columns.stride == 2:  # the even lanes, or the odd ones, of two vectors
                phase = offset % 2
                order = ", ".join(str(2 * lane + phase) for lane in range(b.lanes))
                low, high = load(offset - phase), load(offset - phase + b.lanes)
                return b.op(f"vector.shuffle {low}, {high} [{order}] : {vector}, {vector}")
            numbers = ", ".join(str(lane * columns.stride + offset) for lane in range(b.lanes))
            lanes = b.constant(f"arith.constant dense<[{numbers}]> : {b.vec('i64')}")
            start = b.op(f"vector.broadcast {place} : i64 to {b.vec('i64')}")
            return load_gather(b, self.scratch, b.op(f"arith.addi {start}, {lanes} : {b.vec('i64')}"), None)

        return [tap(number * columns.dilation) for number in range(columns.window)]
