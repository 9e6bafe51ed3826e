"""Products whose k is split over tasks: with few blocks of columns, threads would have nothing to do, or wait for one of them. Where it
pays is a rule of `speculation/policy.py`.

A part of k is a task of its own for a panel of columns and a block of rows. It leaves its sums in memory of the call, tile by tile, and
counts every tile that it leaves; the task that counts last adds the parts of that tile, in their order, and stores the results. So there
is one launch, no thread waits for another, and a sum depends on the sizes alone: neither on the number of threads nor on who comes last.
The later half of the parts goes through the tiles from the last one up: two threads meet in the middle, and each adds half of the tiles.

Memory: counters, i32, by panel, strip of a panel and tile of rows; then, by part and panel, rows of PANEL sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from disc.codegen.plan.kernel import Parts
from disc.codegen.x86.function import Frame, partials_argument, rounded_up
from disc.codegen.x86.gemm.plan import PANEL, ROWS, Gemm, panels
from disc.codegen.x86.memory import Buffer, address
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim, dim_min
from disc.speculation.schedules import SCHEDULE_SYMBOLS

COUNTER = 4  # bytes
MULTIPLE = 64  # values of k of a part: whole vectors of every level, where A is packed


def plan_parts(gemm: Gemm, most: int, rows: int | None) -> Parts | None:
    """What the host must know where k is taken in up to `most` parts (None where it never is). rows: only up to so many; None: always."""
    c = gemm.contraction
    if most < 2:
        return None
    height = c.m if rows is None else dim_min(c.m, rows)
    counters = _counter_bytes(gemm, height)
    return Parts(c.k, lcm(MULTIPLE, gemm.form.block or 1), counters, counters + panels(gemm) * height * (most * _row_bytes(gemm)), height)


def _strips(gemm: Gemm) -> int:
    return -(-gemm.panel // gemm.width)


def _tiles(rows: Dim) -> Dim:
    return (rows + (ROWS - 1)) // ROWS


def _counter_bytes(gemm: Gemm, rows: Dim) -> Dim:
    """Of the counters, which lie before the sums."""
    return rounded_up(panels(gemm) * _strips(gemm) * _tiles(rows) * COUNTER, 64)


def _row_bytes(gemm: Gemm) -> int:
    return PANEL * ELEMENT_BYTES[gemm.element]


def share_of_task(frame: Frame, gemm: Gemm, part: str, panel: str, low: str) -> Share:
    """The share of the task of `part` of k, a panel and a block of rows from `low` on."""
    b = frame.b
    span, parts = (b.variables[name].ssa for name in SCHEDULE_SYMBOLS[-2:])
    start = b.op(f"arith.muli {part}, {span} : i64")
    stop = b.op(f"arith.minsi {b.op(f'arith.addi {start}, {span} : i64')}, {b.scalar(gemm.contraction.k)} : i64")
    split = b.op(f"arith.cmpi ne, {parts}, {b.index(1)} : i64")
    return Share(frame, gemm, split, start, stop, part, parts, panel, low)


@dataclass(frozen=True)
class Share:
    """The share of a task in a product whose k may be split, as SSA values.

    split: whether it is, i1; start, stop: the task's values of k; number, parts: which of how many parts that is; panel, low: the task's
    panel and its first row.
    """

    frame: Frame
    gemm: Gemm
    split: str
    start: str
    stop: str
    number: str
    parts: str
    panel: str
    low: str

    def sums(self, columns: tuple[str, str]) -> str:
        """Where the sums of the task's first row, from the strip `columns` on, lie: in scratch unless k is split."""
        own = address(self.frame.b, self._memory(columns), self._offset(self.number, self.low))
        return self.frame.b.op(f"arith.select {self.split}, {own}, {self.frame.scratch} : i1, !llvm.ptr")

    def tile(self, turn: str, tiles: str) -> str:
        """The tile, of `tiles`, whose turn it is."""
        b = self.frame.b
        half = b.op(f"arith.divui {self.parts}, {b.index(2)} : i64")
        later = b.op(f"arith.andi {self.split}, {b.op(f'arith.cmpi uge, {self.number}, {half} : i64')} : i1")
        reverse = b.op(f"arith.subi {b.op(f'arith.subi {tiles}, {b.index(1)} : i64')}, {turn} : i64")
        return b.op(f"arith.select {later}, {reverse}, {turn} : i64")

    def is_last(self, tile: str, columns: tuple[str, str]) -> str:
        """Counts that the sums of `tile` of the task are there; whether those of all other parts were already, i1."""
        b, gemm = self.frame.b, self.gemm
        strip = b.op(f"arith.divui {self._column(columns)}, {b.index(gemm.width)} : i64")
        strip = b.op(f"arith.addi {b.op(f'arith.muli {self.panel}, {b.index(_strips(gemm))} : i64')}, {strip} : i64")
        place = b.op(f"arith.muli {strip}, {b.scalar(_tiles(gemm.contraction.m))} : i64")
        place = b.op(f"arith.addi {place}, {b.op(f'arith.divui {self.low}, {b.index(ROWS)} : i64')} : i64")
        place = b.op(f"arith.addi {place}, {tile} : i64")
        counter = address(b, Buffer(partials_argument(self.frame), (), "i32"), place)
        last = b.op(f"arith.trunci {b.op(f'arith.subi {self.parts}, {b.index(1)} : i64')} : i64 to i32")
        old, found, one = b.fresh(), b.fresh(), b.constant("arith.constant 1 : i32")
        count = f"{old} = llvm.atomicrmw add {counter}, {one} acq_rel : !llvm.ptr, i32\n{found} = arith.cmpi eq, {old}, {last} : i32"
        otherwise = f"scf.yield {b.constant('arith.constant true')} : i1"
        return b.op(f"scf.if {self.split} -> (i1) {{\n{count}\nscf.yield {found} : i1\n}} else {{\n{otherwise}\n}}")

    def whole(self, condition: str) -> str:
        """`condition`, and that k is not split, i1."""
        b = self.frame.b
        return b.op(f"arith.select {self.split}, {b.constant('arith.constant false')}, {condition} : i1")

    def total(self, tile: str, start: str, count: str, columns: tuple[str, str]) -> str:
        """Where the sums of `count` rows from `start` on lie: at `tile`, or, where k is split, added up in scratch."""
        b = self.frame.b
        with b.when(self.split):
            self._add(start, count, columns)
        return b.op(f"arith.select {self.split}, {self.frame.scratch}, {tile} : i1, !llvm.ptr")

    def _add(self, start: str, count: str, columns: tuple[str, str]) -> None:
        """The sums of all parts, in their order, of `count` rows from `start` on, to the tile in scratch."""
        b, gemm = self.frame.b, self.gemm
        memory, scratch = self._memory(columns), Buffer(self.frame.scratch, (), "i8")
        kind = b.vec(gemm.element)
        operation = "arith.addf" if gemm.element.startswith("f") else "arith.addi"
        attributes = f"{{alignment = {ELEMENT_BYTES[gemm.element]} : i64}} : !llvm.ptr -> {kind}"
        with b.loop(b.index(0), count, b.index(1)) as row:
            first = self._offset(b.index(0), b.op(f"arith.addi {start}, {row.index} : i64"))
            step = b.scalar(panels(gemm) * gemm.contraction.m * _row_bytes(gemm))
            vectors = [b.index(number * b.lanes * ELEMENT_BYTES[gemm.element]) for number in range(gemm.width // b.lanes)]

            def load(place: str, vector: str) -> str:
                return b.op(f"llvm.load {address(b, memory, b.op(f'arith.addi {place}, {vector} : i64'))} {attributes}")

            begin = [(load(first, vector), kind) for vector in vectors]
            with b.loop(b.index(1), self.parts, b.index(1), begin) as part:
                place = b.op(f"arith.addi {first}, {b.op(f'arith.muli {part.index}, {step} : i64')} : i64")
                part.yields = [
                    b.op(f"{operation} {old}, {load(place, vector)} : {kind}") for old, vector in zip(part.carried, vectors, strict=True)
                ]
            offset = b.op(f"arith.muli {row.index}, {b.index(_row_bytes(gemm))} : i64")
            for total, vector in zip(part.results, vectors, strict=True):
                target = address(b, scratch, b.op(f"arith.addi {offset}, {vector} : i64"))
                b.statement(f"llvm.store {total}, {target} {{alignment = 4 : i64}} : {kind}, !llvm.ptr")

    def _column(self, columns: tuple[str, str]) -> str:
        """Where the strip `columns` begins in the task's panel."""
        b = self.frame.b
        return b.op(f"arith.subi {columns[0]}, {b.op(f'arith.muli {self.panel}, {b.index(self.gemm.panel)} : i64')} : i64")

    def _memory(self, columns: tuple[str, str]) -> Buffer:
        """The sums of part 0 of panel 0 from the strip `columns` of a panel on."""
        b, gemm = self.frame.b, self.gemm
        column = b.op(f"arith.muli {self._column(columns)}, {b.index(ELEMENT_BYTES[gemm.element])} : i64")
        start = b.op(f"arith.addi {b.scalar(_counter_bytes(gemm, gemm.contraction.m))}, {column} : i64")
        return Buffer(address(b, Buffer(partials_argument(self.frame), (), "i8"), start), (), "i8")

    def _offset(self, part: str, row: str) -> str:
        """Bytes from there to those of a part and row of the task's panel."""
        b, gemm = self.frame.b, self.gemm
        slot = b.op(f"arith.addi {b.op(f'arith.muli {part}, {b.scalar(panels(gemm))} : i64')}, {self.panel} : i64")
        row = b.op(f"arith.addi {b.op(f'arith.muli {slot}, {b.scalar(gemm.contraction.m)} : i64')}, {row} : i64")
        return b.op(f"arith.muli {row}, {b.index(_row_bytes(gemm))} : i64")
