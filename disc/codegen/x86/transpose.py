"""Packs the transpose of rows into a panel, 16 x 16 units of 32 bits at a time in registers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...ir.graph import Node
from ...shapes import Dim
from .builder import Builder
from .function import Frame
from .memory import Buffer, address, load_contiguous


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
    """A B whose k runs along memory in units of 32 bits: f32, or pairs of bf16.

    leaf: its buffer; start: the offset of column gn's first element; units: units along k; group: elements of a unit.
    """

    leaf: Node
    start: Dim
    units: Dim
    group: int


def pack_transposed(frame: Frame, source: TransposedRows, panel: int, scratch: str, column: str, column_end: str) -> None:
    """panel[unit][column] of B: row n of the source is loaded along k, 16 rows are transposed at once.

    Columns past the end repeat the last row: the epilogue masks them, and every value read is a valid one.
    """
    b, e = frame.b, frame.emitter
    leaf = e.leaves[source.leaf]
    assert isinstance(leaf, Buffer)
    buffer = Buffer(leaf.pointer, (), "i32")
    target = Buffer(scratch, (), "i32")
    last = b.op(f"arith.subi {column_end}, {b.index(1)} : i64")
    width = b.op(f"arith.subi {column_end}, {column} : i64")
    with b.loop(b.index(0), width, b.index(16)) as strip:
        rows: list[Buffer] = []
        for number in range(16):
            n = b.op(f"arith.addi {column}, {b.op(f'arith.addi {strip.index}, {b.index(number)} : i64')} : i64")
            with e.bind("gn", b.op(f"arith.minsi {n}, {last} : i64")):
                rows.append(replace(buffer, pointer=address(b, leaf, b.scalar(source.start))))
        length = b.scalar(source.units)

        def block(position: str, mask: str | None, store_count: str) -> None:
            values = [load_contiguous(b, row, position, mask) for row in rows]
            for number, value in enumerate(transpose_square(b, values, "i32")):
                at = b.op(f"arith.muli {b.op(f'arith.addi {position}, {b.index(number)} : i64')}, {b.index(panel)} : i64")
                place = address(b, target, b.op(f"arith.addi {at}, {strip.index} : i64"))
                store = f"llvm.store {value}, {place} {{alignment = 4 : i64}} : {b.vec('i32')}, !llvm.ptr"
                if mask is None:
                    b.statement(store)
                    continue
                with b.when(b.op(f"arith.cmpi sgt, {store_count}, {b.index(number)} : i64")):
                    b.statement(store)

        _blocks(frame, length, source.units, block)


def _blocks(frame: Frame, length: str, k: Dim, block) -> None:
    b, e = frame.b, frame.emitter
    rest = b.op(f"arith.remui {length}, {b.index(16)} : i64")
    whole = b.op(f"arith.subi {length}, {rest} : i64")
    with b.loop(b.index(0), whole, b.index(16)) as loop:
        block(loop.index, None, "")
    if k.is_const and k.const % 16 == 0:
        return
    with b.when(b.op(f"arith.cmpi sgt, {rest}, {b.index(0)} : i64")):
        block(whole, e.tail_mask(rest), rest)
