"""Packs the transpose of rows into a panel, 16 x 16 units of 32 bits at a time in registers."""

from __future__ import annotations

from dataclasses import dataclass

from disc.codegen.mlir.builder import Builder
from disc.codegen.x86.emit import Emitter
from disc.codegen.x86.function import Frame
from disc.codegen.x86.memory import Buffer, address
from disc.ir.graph import Node
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim


def transpose_square(b: Builder, rows: list[str], element: str) -> list[str]:
    """The transpose of as many vectors as they have lanes, a power of 2, by rounds of pairwise shuffles (four and 64 for 16 lanes)."""
    vector, lanes = b.vec(element), len(rows)
    distance = 1
    while distance < lanes:
        result = list(rows)
        low = ", ".join(str(lane if not lane & distance else lanes + lane - distance) for lane in range(lanes))
        high = ", ".join(str(lane + distance if not lane & distance else lanes + lane) for lane in range(lanes))
        for first in range(lanes):
            if first & distance:
                continue
            second = first + distance
            result[first] = b.op(f"vector.shuffle {rows[first]}, {rows[second]} [{low}] : {vector}, {vector}")
            result[second] = b.op(f"vector.shuffle {rows[first]}, {rows[second]} [{high}] : {vector}, {vector}")
        rows = result
        distance *= 2
    return rows


@dataclass(frozen=True)
class TransposedRows:
    """A B whose k runs along memory.

    leaf: its buffer; start: the offset of column gn's first element; k: values; unit: bytes of a column in a row of the panel: one value,
    or a group of 32 bits.
    """

    leaf: Node
    start: Dim
    k: Dim
    unit: int


def pack_transposed(frame: Frame, source: TransposedRows, panel: int, scratch: str, column: str, column_end: str) -> None:
    """panel[unit][column] of B: row n of the source is loaded along k, 32 bits at a time, and 16 rows are transposed at once.

    Columns past the end repeat the last row: the epilogue masks them, and every value read is a valid one.
    """
    b, e = frame.b, frame.emitter
    leaf = e.leaves[source.leaf]
    assert isinstance(leaf, Buffer)
    last = b.op(f"arith.subi {column_end}, {b.index(1)} : i64")
    width = b.op(f"arith.subi {column_end}, {column} : i64")
    with b.loop(b.index(0), width, b.index(16)) as strip:
        rows: list[str] = []
        for number in range(16):
            n = b.op(f"arith.addi {column}, {b.op(f'arith.addi {strip.index}, {b.index(number)} : i64')} : i64")
            with e.bind("gn", b.op(f"arith.minsi {n}, {last} : i64")):
                rows.append(address(b, leaf, b.scalar(source.start)))
        offset = b.op(f"arith.muli {strip.index}, {b.index(source.unit)} : i64")
        _Strip(b, source, leaf.element, rows, address(b, Buffer(scratch, (), "i8"), offset), panel * source.unit).pack(e)


@dataclass(frozen=True)
class _Strip:
    """16 columns of a panel: where each starts in the source, where they start in the panel, and bytes from row to row (step) there."""

    b: Builder
    source: TransposedRows
    element: str
    columns: list[str]
    target: str
    step: int

    def pack(self, e: Emitter) -> None:
        """All values of k."""
        b, size = self.b, ELEMENT_BYTES[self.element]
        count = self.source.k // (4 // size)  # of whole units of 32 bits
        length = b.scalar(count)
        rest = b.op(f"arith.remui {length}, {b.index(16)} : i64")
        whole = b.op(f"arith.subi {length}, {rest} : i64")
        with b.loop(b.index(0), whole, b.index(16)) as loop:
            self._square(loop.index, None, "")
        if not (count.is_const and count.const % 16 == 0):
            with b.when(b.op(f"arith.cmpi sgt, {rest}, {b.index(0)} : i64")):
                self._square(whole, e.tail_mask(rest), rest)
        if size == 2 and not (self.source.k.is_const and self.source.k.const % 2 == 0):
            k = b.scalar(self.source.k)
            with b.when(b.op(f"arith.cmpi ne, {b.op(f'arith.remui {k}, {b.index(2)} : i64')}, {b.index(0)} : i64")):
                self._last(length)

    def _square(self, position: str, mask: str | None, count: str) -> None:
        """16 units of all columns from `position` on, of which a mask leaves `count`."""
        b = self.b
        values = [self._load(column, position, mask) for column in self.columns]
        for number, value in enumerate(transpose_square(b, values, "i32")):
            unit = b.op(f"arith.addi {position}, {b.index(number)} : i64")
            if mask is None:
                self._store(unit, value)
                continue
            with b.when(b.op(f"arith.cmpi sgt, {count}, {b.index(number)} : i64")):
                self._store(unit, value)

    def _load(self, column: str, position: str, mask: str | None) -> str:
        """Units of a column, which are aligned as its elements are."""
        b, vector, align = self.b, self.b.vec("i32"), min(ELEMENT_BYTES[self.element], 4)
        pointer = address(b, Buffer(column, (), "i32"), position)
        if mask is None:
            return b.op(f"llvm.load {pointer} {{alignment = {align} : i64}} : !llvm.ptr -> {vector}")
        types = f"(!llvm.ptr, {b.vec('i1')}, {vector}) -> {vector}"
        return b.op(f"llvm.intr.masked.load {pointer}, {mask}, {b.const(0, 'i32')} {{alignment = {align} : i32}} : {types}")

    def _store(self, unit: str, value: str) -> None:
        """A row of the panel, or two where a unit holds two of its values."""
        b = self.b
        if self.source.unit == 4:
            b.statement(f"llvm.store {value}, {self._row(unit)} {{alignment = 4 : i64}} : {b.vec('i32')}, !llvm.ptr")
            return
        row = b.op(f"arith.muli {unit}, {b.index(2)} : i64")
        upper = b.op(f"arith.shrui {value}, {b.const(16, 'i32')} : {b.vec('i32')}")
        for at, wide in ((row, value), (b.op(f"arith.addi {row}, {b.index(1)} : i64"), upper)):
            narrow = b.op(f"arith.trunci {wide} : {b.vec('i32')} to {b.vec('i16')}")
            b.statement(f"llvm.store {narrow}, {self._row(at)} {{alignment = 2 : i64}} : {b.vec('i16')}, !llvm.ptr")

    def _row(self, number: str) -> str:
        return address(self.b, Buffer(self.target, (), "i8"), self.b.op(f"arith.muli {number}, {self.b.index(self.step)} : i64"))

    def _last(self, units: str) -> None:
        """The value of 16 bits that no unit holds: a row of its own, or one of units whose other half is zero."""
        b, unit = self.b, self.source.unit
        place = b.op(f"arith.muli {units}, {b.index(2)} : i64")
        row = self._row(units if unit == 4 else place)
        for number, column in enumerate(self.columns):
            value = b.op(f"llvm.load {address(b, Buffer(column, (), 'i16'), place)} {{alignment = 2 : i64}} : !llvm.ptr -> i16")
            kind = "i16" if unit == 2 else "i32"
            if unit == 4:
                value = b.op(f"arith.extui {value} : i16 to i32")
            target = address(b, Buffer(row, (), kind), b.index(number))
            b.statement(f"llvm.store {value}, {target} {{alignment = {unit} : i64}} : {kind}, !llvm.ptr")
