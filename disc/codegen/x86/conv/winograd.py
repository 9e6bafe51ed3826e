"""Winograd convolutions: 3x3 by strides of 1, channels last, in tiles of 4x4 or 2x2 outputs (`codegen/plan/winograd.py` has the source).

A task is (block of tiles, panel of output channels), panels fastest: the patches of its tiles are transformed into scratch, unless the task
before did that, and multiplied by the transformed weights, position by position; the products of a tile are transformed into sums, which
the epilogue reads. A call of few outputs goes through a table of addresses instead (`indirect.py`). A tile with a result that is not finite
is computed again, from the patch as it is: transforms spread an infinity or a NaN over the tile, and overflow sooner.
"""

from __future__ import annotations

from dataclasses import dataclass

from disc.codegen.plan.index import IndexSpace
from disc.codegen.plan.kernel import Kernel, Version
from disc.codegen.plan.summary import kernel_ops, traffic
from disc.codegen.plan.symbols import body_symbols
from disc.codegen.x86.conv.indirect import MASK_TYPE, ROWS_TYPE, clear_zeros, emit_tasks, epilogue_of, spread
from disc.codegen.x86.conv.taps import ENTRY
from disc.codegen.x86.conv.winograd_plan import Winograd
from disc.codegen.x86.conv.winograd_transforms import result_name, source_name, transforms
from disc.codegen.x86.function import Frame, emit_function, product_cost
from disc.codegen.x86.gemm.micro import call_micro, half
from disc.codegen.x86.gemm.plan import PANEL, ROWS, share
from disc.codegen.x86.memory import Buffer, address
from disc.ir.graph import Body
from disc.shapes import Dim

HEIGHTS = range(1, ROWS + 1)


def emit_winograd(name: str, body: Body, space: IndexSpace, plan: Winograd) -> Kernel:
    """The kernel of a fusion that `read_winograd` accepted."""
    direct = plan.direct
    symbols = body_symbols(space, body)
    source = emit_function(f"{name}_v0", body, body.yields, symbols, space, direct.target, lambda frame: _emit(frame, plan, body))
    macs = direct.rows * (direct.columns * plan.packed.k)
    of_task = Dim.of(plan.products * plan.channels * plan.block * plan.packed.columns)
    sizes = [(rows, vectors) for rows in HEIGHTS for vectors in direct.vector_counts()]
    return Kernel(
        name, "compute", (Version(f"{name}_v0"),), symbols, plan.tasks,
        product_cost(direct.target, (direct.form.left, of_task)), Dim.of(plan.scratch), source,
        body.lines(), kernel_ops(body), flops=macs * 2, bytes=traffic(space, body),
        micro_kernels=tuple((direct.form.name, *each) for each in sizes),
        functions=(*direct.functions(), *transforms(plan.tile, direct.lanes)), packed=(plan.packed,),
    )  # fmt: skip


# --- emission -----------------------------------------------------------------------------------------------------------


def _emit(frame: Frame, plan: Winograd, body: Body) -> None:
    b = frame.b
    pays = b.op(f"arith.cmpi eq, {b.scalar(plan.pays)}, {b.index(1)} : i64")
    with b.when(pays):
        _Tasks(frame, plan, body).emit()
    with b.when(b.op(f"arith.xori {pays}, {b.constant('arith.constant true')} : i1")):
        emit_tasks(frame, plan.direct, body)


@dataclass(frozen=True)
class _Place:
    """Where the outputs of a tile begin, as SSA values."""

    image: str
    row: str
    column: str


class _Tasks:
    """The loop over tasks."""

    def __init__(self, frame: Frame, plan: Winograd, body: Body) -> None:
        self.frame, self.plan, self.b = frame, plan, frame.b
        frame.emitter.space.variable("gm", plan.direct.rows)
        frame.emitter.space.variable("gn", Dim.of(plan.direct.columns))
        self.epilogue = epilogue_of(frame, plan.direct, body)
        weight = frame.emitter.leaves[frame.arguments[plan.packed.argument]]
        assert isinstance(weight, Buffer)
        self.weight = Buffer(weight.pointer, (), "i8")

    def emit(self) -> None:
        frame, plan, b = self.frame, self.plan, self.b
        clear_zeros(frame, self._scratch(plan.zeros_offset), plan.channels, "f32")
        self._list_rows()
        total, blocks, panels = b.scalar(plan.tiles), b.scalar(plan.blocks), b.index(plan.direct.panels)
        with b.loop(frame.begin, frame.end, b.index(1)) as task:
            block = b.op(f"arith.divui {task.index}, {panels} : i64")
            panel = b.op(f"arith.subi {task.index}, {b.op(f'arith.muli {block}, {panels} : i64')} : i64")
            low, high = (share(b, each, total, blocks) for each in (block, self._add(block, b.index(1))))
            tiles = low, b.op(f"arith.subi {high}, {low} : i64")
            first = b.op(f"arith.cmpi eq, {task.index}, {frame.begin} : i64")
            start = b.op(f"arith.cmpi eq, {panel}, {b.index(0)} : i64")
            with b.when(b.op(f"arith.ori {first}, {start} : i1")):
                self._transform_patches(tiles)
            column = self._multiply(panel, plan.packed.columns)
            stop = b.op(f"arith.minsi {self._add(column, b.index(plan.packed.columns))}, {b.index(plan.direct.columns)} : i64")
            self._products(panel, tiles[1], b.op(f"arith.subi {stop}, {column} : i64"))
            self._store(panel, tiles, (column, stop))

    # --- patches --------------------------------------------------------------------------------------------------------

    def _list_rows(self) -> None:
        """The addresses of the rows of the first matrix of transformed patches."""
        plan, b = self.plan, self.b
        patches, rows = self._scratch(plan.patches_offset), self._scratch(plan.rows_offset)
        with b.loop(b.index(0), b.index(plan.block), b.index(1)) as tile:
            slot = b.op(f"llvm.getelementptr {rows}[{tile.index}] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr")
            b.statement(f"llvm.store {self._bytes(patches, self._multiply(tile.index, plan.channels * 4))}, {slot} : !llvm.ptr, !llvm.ptr")

    def _transform_patches(self, tiles: tuple[str, str]) -> None:
        """tiles: the first and how many."""
        plan, b = self.plan, self.b
        patches, table = self._scratch(plan.patches_offset), self._scratch(plan.table_offset)
        with b.loop(b.index(0), tiles[1], b.index(1)) as tile:
            self._fill_table(self._place(self._add(tiles[0], tile.index)))
            target = self._bytes(patches, self._multiply(tile.index, plan.channels * 4))
            operands = f"{table}, {target}, {b.index(plan.patches_step // 4)}, {b.index(plan.channels)}"
            b.statement(f"func.call @{source_name(plan.tile, plan.direct.lanes)}({operands}) : (!llvm.ptr, !llvm.ptr, i64, i64) -> ()")

    def _place(self, tile: str) -> _Place:
        plan, b = self.plan, self.b
        line = b.op(f"arith.divui {tile}, {b.scalar(plan.across)} : i64")
        column = b.op(f"arith.subi {tile}, {b.op(f'arith.muli {line}, {b.scalar(plan.across)} : i64')} : i64")
        image = b.op(f"arith.divui {line}, {b.scalar(plan.down)} : i64")
        row = b.op(f"arith.subi {line}, {b.op(f'arith.muli {image}, {b.scalar(plan.down)} : i64')} : i64")
        return _Place(image, self._multiply(row, plan.tile), self._multiply(column, plan.tile))

    def _fill_table(self, place: _Place) -> None:
        """The addresses of the channels of every position of a patch, of zeros outside the image, ENTRY to a row of the patch."""
        plan, b, e = self.plan, self.b, self.frame.emitter
        leaf = e.leaves[plan.direct.leaf]
        assert isinstance(leaf, Buffer)
        table, zeros = self._scratch(plan.table_offset), self._scratch(plan.zeros_offset)
        down, across = plan.axes
        with e.bind("gb", place.image):
            base = b.scalar(plan.direct.base)
        numbers = b.constant(f"arith.constant dense<{list(range(ENTRY))}> : {ROWS_TYPE}")
        left = spread(b, self._add(place.column, b.index(-across.window.low)))
        columns = b.op(f"arith.addi {numbers}, {left} : {ROWS_TYPE}")
        beside = b.op(f"arith.cmpi ult, {columns}, {spread(b, b.scalar(across.window.size))} : {ROWS_TYPE}")
        offsets = b.op(f"arith.muli {columns}, {spread(b, b.scalar(across.step * 4))} : {ROWS_TYPE}")
        nothing = spread(b, b.op(f"llvm.ptrtoint {zeros} : !llvm.ptr to i64"))
        start = b.op(f"llvm.ptrtoint {address(b, Buffer(leaf.pointer, (), 'f32'), base)} : !llvm.ptr to i64")
        top = self._add(place.row, b.index(-down.window.low))
        with b.loop(b.index(0), b.index(plan.patch), b.index(1)) as number:
            row = self._add(top, number.index)
            within = b.op(f"arith.cmpi ult, {row}, {b.scalar(down.window.size)} : i64")
            inside = b.op(f"arith.andi {beside}, {b.op(f'vector.broadcast {within} : i1 to {MASK_TYPE}')} : {MASK_TYPE}")
            line = spread(b, self._add(start, b.op(f"arith.muli {row}, {b.scalar(down.step * 4)} : i64")))
            addresses = b.op(f"arith.addi {line}, {offsets} : {ROWS_TYPE}")
            addresses = b.op(f"arith.select {inside}, {addresses}, {nothing} : {MASK_TYPE}, {ROWS_TYPE}")
            slot = self._bytes(table, self._multiply(number.index, ENTRY * 8))
            b.statement(f"llvm.store {addresses}, {slot} {{alignment = 8 : i64}} : {ROWS_TYPE}, !llvm.ptr")

    # --- products -------------------------------------------------------------------------------------------------------

    def _products(self, panel: str, count: str, width: str) -> None:
        """The products of all matrices of `count` transformed patches with those of a panel of weights."""
        plan, b = self.plan, self.b
        rows, products = self._scratch(plan.rows_offset), self._scratch(plan.products_offset)
        weights = self._bytes(self.weight.pointer, self._multiply(panel, plan.products * plan.matrix_bytes))
        parts = b.op(f"arith.ceildivui {count}, {b.index(ROWS)} : i64")
        step = b.op(f"arith.divui {b.index(plan.direct.panel_step)}, {parts} : i64")
        never = b.constant("arith.constant false")
        with (
            b.loop(b.index(0), b.index(plan.products), b.index(1)) as matrix,
            b.loop(b.index(0), width, b.index(plan.direct.width)) as strip,
            b.loop(b.index(0), parts, b.index(1)) as part,
        ):
            start, end = (share(b, each, count, parts) for each in (part.index, self._add(part.index, b.index(1))))
            right = self._bytes(weights, self._multiply(matrix.index, plan.matrix_bytes))
            ahead = self._bytes(right, self._add(b.index(plan.matrix_bytes), share(b, part.index, b.index(plan.matrix_bytes), parts)))
            target = self._add(self._multiply(matrix.index, plan.products_step), self._multiply(start, PANEL * 4))
            left = self._bytes(rows, self._multiply(start, 8)), self._multiply(matrix.index, plan.patches_step)
            height = b.op(f"arith.subi {end}, {start} : i64")
            self._call((height, width), strip.index, (left, right), (self._bytes(products, target), never), (ahead, step))

    def _call(
        self, size: tuple[str, str], strip: str, operands: tuple[tuple[str, str], str], target: tuple[str, str], ahead: tuple[str, str]
    ) -> None:
        """Calls the micro-kernel of size = (rows, columns) for the columns from `strip` on.

        operands: ((list of rows, bytes to skip in each), panel); target: (sums, whether to add); ahead: (address, bytes per row).
        """
        plan, b = self.plan, self.b
        (rows, skip), right = operands
        right, sums = (self._bytes(each, self._multiply(strip, 4)) for each in (right, target[0]))
        columns = b.op(f"arith.minsi {b.op(f'arith.subi {size[1]}, {strip} : i64')}, {b.index(plan.direct.width)} : i64")
        arguments = (
            f"{rows}, {skip}, {b.index(4)}, {right}, {b.index(plan.direct.panel_step)}, {b.index(plan.channels)}, "
            f"{sums}, {b.index(PANEL)}, {target[1]}, {ahead[0]}, {ahead[1]}, {half(b, ahead[1])}"
        )
        call_micro(b, plan.direct.form, plan.direct.lanes, HEIGHTS, plan.direct.vector_counts(), (size[0], columns), arguments)

    # --- results --------------------------------------------------------------------------------------------------------

    def _store(self, panel: str, tiles: tuple[str, str], columns: tuple[str, str]) -> None:
        """Sums of every tile from its products, and the epilogue of those that lie in the image."""
        plan, b = self.plan, self.b
        products, sums = self._scratch(plan.products_offset), self._scratch(0)
        width = b.op(f"arith.subi {columns[1]}, {columns[0]} : i64")
        with b.loop(b.index(0), tiles[1], b.index(1)) as tile:
            place = self._place(self._add(tiles[0], tile.index))
            own = self._bytes(products, self._multiply(tile.index, PANEL * 4))
            operands = f"{own}, {b.index(plan.products_step // 4)}, {sums}, {width}"
            called = f"func.call @{result_name(plan.tile, plan.direct.lanes)}({operands})"
            with b.when(b.op(f"{called} : (!llvm.ptr, i64, !llvm.ptr, i64) -> i1")):
                self._compute_directly(panel, place, width)
            self._store_tile(place, columns)

    def _store_tile(self, place: _Place, columns: tuple[str, str]) -> None:
        """The epilogue of a tile's outputs that lie in the image."""
        plan, b, e = self.plan, self.b, self.frame.emitter
        down, across = (b.scalar(axis.window.out) for axis in plan.axes)
        ends = (b.op(f"arith.subi {size}, {start} : i64") for size, start in ((down, place.row), (across, place.column)))
        height, width = (b.op(f"arith.minsi {end}, {b.index(plan.tile)} : i64") for end in ends)
        top = self._add(b.op(f"arith.muli {place.image}, {down} : i64"), place.row)
        with b.loop(b.index(0), height, b.index(1)) as row:
            start = self._add(b.op(f"arith.muli {self._add(top, row.index)}, {across} : i64"), place.column)
            sums = self._bytes(self._scratch(0), self._multiply(row.index, plan.tile * PANEL * 4))
            with b.loop(b.index(0), width, b.index(1)) as column, e.bind("gm", self._add(start, column.index)):
                self.epilogue.store_row(self.frame, sums, column.index, columns)

    def _compute_directly(self, panel: str, place: _Place, width: str) -> None:
        """The sums of a tile from its patch, tap by tap."""
        plan, b = self.plan, self.b
        self._fill_table(place)
        start = self._add(b.index(plan.direct.offset), self._multiply(panel, 9 * plan.matrix_bytes))
        weights = self._bytes(self.weight.pointer, start)
        table, sums = self._scratch(plan.table_offset), self._scratch(0)
        with (
            b.loop(b.index(0), b.index(9), b.index(1)) as tap,
            b.loop(b.index(0), b.index(plan.tile), b.index(1)) as row,
            b.loop(b.index(0), width, b.index(plan.direct.width)) as strip,
        ):
            down = b.op(f"arith.divui {tap.index}, {b.index(3)} : i64")
            across = b.op(f"arith.subi {tap.index}, {self._multiply(down, 3)} : i64")
            entry = self._add(self._multiply(self._add(row.index, down), ENTRY), across)
            left = self._bytes(table, self._multiply(entry, 8)), b.index(0)
            right = self._bytes(weights, self._multiply(tap.index, plan.matrix_bytes))
            target = self._bytes(sums, self._multiply(row.index, plan.tile * PANEL * 4))
            added = b.op(f"arith.cmpi ne, {tap.index}, {b.index(0)} : i64")
            self._call((b.index(plan.tile), width), strip.index, (left, right), (target, added), (sums, b.index(0)))

    # --- numbers and addresses ------------------------------------------------------------------------------------------

    def _scratch(self, offset: int) -> str:
        return self._bytes(self.frame.scratch, self.b.index(offset))

    def _bytes(self, pointer: str, offset: str) -> str:
        return address(self.b, Buffer(pointer, (), "i8"), offset)

    def _add(self, left: str, right: str) -> str:
        return self.b.op(f"arith.addi {left}, {right} : i64")

    def _multiply(self, value: str, factor: int) -> str:
        return self.b.op(f"arith.muli {value}, {self.b.index(factor)} : i64")
