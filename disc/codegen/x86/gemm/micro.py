"""GEMM micro-kernels: a tile of `rows` × `vectors` accumulators over all of K, shared by every GEMM of an artifact.

`void micro(rows: const T**, skip: bytes, k_step: bytes, b: T*, b_step: bytes, k: i64, tile: T*, tile_step: elements, accumulate: i1,
ahead: void*, ahead_step: bytes, second: bytes)` writes the tile of products, or adds to it; the caller's epilogue reads it from L1. The
cost of that detour is rows × vectors stores and loads per K steps of as many FMAs. `skip` is added to every row pointer. With every row of
B, two lines `second` bytes apart are prefetched into L2, at `ahead`, which moves on by `ahead_step` bytes: what a later call reads, while
this one computes (a GEMM that waits for memory in its first tiles and computes in the others takes the sum of both times, not the larger:
1.4 times as long at M = 16).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from disc.codegen.mlir.builder import Builder
from disc.codegen.x86.gemm.forms import FORMS, Form
from disc.ir.weights import ELEMENT_BYTES

MICRO_PREFIX = "disc_micro_"


def micro_name(form: str, rows: int, vectors: int, lanes: int) -> str:
    """The function's name."""
    return f"{MICRO_PREFIX}{form}_{rows}x{vectors}x{lanes}"


def prefetch(pointer: str, *, write: bool = False) -> str:
    """Prefetches a cache line into L2, or into L1 to be written."""
    hint = f"rw = {int(write)} : i32, hint = {3 if write else 2} : i32, cache = 1 : i32"
    return f'"llvm.intr.prefetch"({pointer}) <{{{hint}}}> : (!llvm.ptr) -> ()'


def micro_source(form: str, rows: int, vectors: int, lanes: int) -> str:
    """MLIR text of one micro-kernel. Products are accumulated in order of k, by fused multiply-add or, for narrow
    operands in groups, a group at a time."""
    return _Micro(FORMS[form], rows, vectors, lanes).source()


def call_micro(
    b: Builder, form: Form, lanes: int, heights: Sequence[int], widths: Sequence[int], size: tuple[str, str], operands: str
) -> None:
    """Calls the micro-kernel for `size`, SSA numbers of rows and columns. heights, widths: which rows and vectors there may be."""
    types = "(!llvm.ptr, i64, i64, !llvm.ptr, i64, i64, !llvm.ptr, i64, i1, !llvm.ptr, i64, i64) -> ()"
    names = {(height, width): micro_name(form.name, height, width, lanes) for width in widths for height in heights}
    call_of_size(b, lanes, names, size, f"({operands}) : {types}")


def half(b: Builder, step: str) -> str:
    """Where the second of two lines lies that are to share `step` bytes."""
    return b.op(f"arith.shrui {step}, {b.index(1)} : i64")


def call_of_size(b: Builder, lanes: int, names: Mapping[tuple[int, int], str], size: tuple[str, str], call: str) -> None:
    """Calls the function that `names` has for `size`, SSA numbers of rows and columns. names: by rows and vectors of `lanes` columns."""
    most = max(height for height, _ in names) + 1
    calls = {(width - 1) * most + height: f"func.call @{name}{call}" for (height, width), name in names.items()}
    if len(calls) == 1:
        b.statement(next(iter(calls.values())))
        return
    vectors = b.op(f"arith.divui {b.op(f'arith.addi {size[1]}, {b.index(-1)} : i64')}, {b.index(lanes)} : i64")
    number = b.op(f"arith.addi {b.op(f'arith.muli {vectors}, {b.index(most)} : i64')}, {size[0]} : i64")
    b.statement(f"scf.index_switch {b.op(f'arith.index_cast {number} : i64 to index')}")
    for key, text in calls.items():
        b.statement(f"case {key} {{\n{text}\nscf.yield\n}}")
    b.statement("default {\nscf.yield\n}")


class _Micro:
    """One micro-kernel under construction; the accumulators are lists of SSA names, row by row."""

    def __init__(self, form: Form, rows: int, vectors: int, lanes: int) -> None:
        self.form, self.rows, self.vectors, self.lanes = form, rows, vectors, lanes
        self.vector = f"vector<{lanes}x{form.register}>"
        self.out: list[str] = []
        self._count = 0

    def source(self) -> str:
        """The text of the function."""
        name = micro_name(self.form.name, self.rows, self.vectors, self.lanes)
        self._line(
            f"func.func @{name}(%rows: !llvm.ptr, %skip: i64, %k_step: i64, %b: !llvm.ptr, %b_step: i64, %k: i64, "
            "%tile: !llvm.ptr, %tile_step: i64, %accumulate: i1, %ahead: !llvm.ptr, %ahead_step: i64, %second: i64) {"
        )
        self._line("%c0 = arith.constant 0 : i64")
        self._line("%c1 = arith.constant 1 : i64")
        self._line(f"%group = arith.constant {self.form.group} : i64")
        zero = self._op(f"arith.constant dense<{'0.0' if self.form.register.startswith('f') else '0'}> : {self.vector}")
        for row in range(self.rows):
            self._line(f"%rp{row} = llvm.getelementptr %rows[{row}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
            self._line(f"%rs{row} = llvm.load %rp{row} : !llvm.ptr -> !llvm.ptr")
            self._line(f"%r{row} = llvm.getelementptr %rs{row}[%skip] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
        if self.form.block:
            self._blocks(zero)
        else:
            start = self._start(zero)
            self._store(self._loop("%c0", "%k", start, self._single) if self.form.group == 1 else self._groups(start))
        self._line("return\n}\n")
        return "\n".join(self.out)

    def _line(self, text: str) -> None:
        self.out.append(text)

    def _op(self, text: str) -> str:
        self._count += 1
        self._line(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def _loop(self, low: str, high: str, start: list[str], step: Callable[[str, list[str]], list[str]]) -> list[str]:
        """`step(i, accumulators)` for i in [low, high), from the accumulators `start`; returns the last ones."""
        self._count += 1
        name, types = f"%s{self._count}", ", ".join([self.vector] * len(start))
        carried = [f"{name}_{number}" for number in range(len(start))]
        pairs = ", ".join(f"{new} = {old}" for new, old in zip(carried, start, strict=True))
        self._line(f"{name}:{len(start)} = scf.for {name}_i = {low} to {high} step %c1 iter_args({pairs}) -> ({types}) : i64 {{")
        results = step(f"{name}_i", carried)
        self._line(f"scf.yield {', '.join(results)} : {types}\n}}")
        return [f"{name}#{number}" for number in range(len(start))]

    def _groups(self, start: list[str]) -> list[str]:
        """A group of k at a time, then a last, partial one, whose missing partners in the panel are zero."""
        groups = self._op("arith.divui %k, %group : i64")
        end = self._op("arith.ceildivui %k, %group : i64")
        whole, last = {
            "bf16": (self._dot_pair, self._dot_last),
            "f32": (self._wide_pair, self._wide_last),
            "ui8": (self._bytes, self._bytes_last),
        }[self.form.left]
        return self._loop(groups, end, self._loop("%c0", groups, start, whole), last)

    def _blocks(self, zero: str) -> None:
        """Sums of one block of k after the other, each scaled and added to the tile: it has no room in registers with the sums, and its
        loads and stores go on while the next block is multiplied. The last block may be shorter."""
        block, none = self.form.block, [zero] * (self.rows * self.vectors)
        self._clear()
        size, step, rows = (self._constant(each) for each in (block, block // self.form.group, self.form.panel_rows(block)))
        whole, rest = (self._op(f"arith.{division} %k, {size} : i64") for division in ("divui", "remui"))
        self._line(f"scf.for %block = %c0 to {whole} step %c1 : i64 {{")
        first, row = (self._op(f"arith.muli %block, {each} : i64") for each in (step, rows))
        pairs = self._constant(block // self.form.group // 2)
        sums = self._loop("%c0", pairs, none, lambda index, old: self._two_groups((first, row), index, old))
        self._add_scaled(sums, self._op(f"arith.addi {row}, {step} : i64"))
        self._line("}")
        self._line(f"scf.if {self._op(f'arith.cmpi ne, {rest}, %c0 : i64')} {{")
        start, line = (self._op(f"arith.muli {whole}, {each} : i64") for each in (step, rows))
        groups, end = (self._op(f"arith.{division} {rest}, %group : i64") for division in ("divui", "ceildivui"))
        sums = self._loop("%c0", groups, none, lambda index, old: self._bytes_at(*self._both(start, line, index), old))
        sums = self._loop(groups, end, sums, lambda index, old: self._bytes_last_at(*self._both(start, line, index), old))
        self._add_scaled(sums, self._op(f"arith.addi {line}, {end} : i64"))
        self._line("}")

    def _two_groups(self, start: tuple[str, str], index: str, accumulators: list[str]) -> list[str]:
        """Groups 2 * index and 2 * index + 1 of a block; start: the block's first group of A and row of the panel."""
        even = self._op(f"arith.shli {index}, %c1 : i64")
        for group in (even, self._op(f"arith.ori {even}, %c1 : i64")):
            accumulators = self._bytes_at(*self._both(*start, group), accumulators)
            self._keep_order()
        return accumulators

    def _keep_order(self) -> None:
        """No load passes here. LLVM would hoist loads, for which there are no registers, and keep sums on the stack instead."""
        self._line('llvm.inline_asm has_side_effects "", "~{memory}" : () -> ()')

    def _both(self, first: str, row: str, index: str) -> tuple[str, str]:
        """Group `index` of a block: its number in a row of A, and its row of the panel."""
        return self._op(f"arith.addi {first}, {index} : i64"), self._op(f"arith.addi {row}, {index} : i64")

    def _clear(self) -> None:
        """Zeros in the tile, unless it is added to."""
        floats = f"vector<{self.lanes}xf32>"
        self._line("scf.if %accumulate {\n} else {")
        none = self._op(f"arith.constant dense<0.0> : {floats}")
        for place in self._places():
            self._line(f"llvm.store {none}, {place} {{alignment = 4 : i64}} : {floats}, !llvm.ptr")
        self._line("}")

    def _add_scaled(self, sums: list[str], scale_row: str) -> None:
        """Adds sums times their columns' scales to the tile."""
        floats, scales = f"vector<{self.lanes}xf32>", self._right(scale_row, "f32")
        for number, (value, place) in enumerate(zip(sums, self._places(), strict=True)):
            old = self._op(f"llvm.load {place} {{alignment = 4 : i64}} : !llvm.ptr -> {floats}")
            wide = self._op(f"arith.sitofp {value} : {self.vector} to {floats}")
            new = self._op(f"vector.fma {wide}, {scales[number % self.vectors]}, {old} : {floats}")
            self._line(f"llvm.store {new}, {place} {{alignment = 4 : i64}} : {floats}, !llvm.ptr")
        self._keep_order()

    def _constant(self, value: int) -> str:
        return self._op(f"arith.constant {value} : i64")

    def _offset(self, index: str) -> str:
        """Bytes from the start of a row of A to its group `index`."""
        return self._op(f"arith.muli {self._op(f'arith.muli {index}, %group : i64')}, %k_step : i64")

    def _start(self, zero: str) -> list[str]:
        """The accumulators at first: zeros, or the tile where the products are added to it."""
        count = self.rows * self.vectors
        self._line(f"%old:{count} = scf.if %accumulate -> ({', '.join([self.vector] * count)}) {{")
        align = ELEMENT_BYTES[self.form.accumulator]
        loaded = [self._op(f"llvm.load {place} {{alignment = {align} : i64}} : !llvm.ptr -> {self.vector}") for place in self._places()]
        types = ", ".join([self.vector] * count)
        self._line(f"scf.yield {', '.join(loaded)} : {types}\n}} else {{\nscf.yield {', '.join([zero] * count)} : {types}\n}}")
        return [f"%old#{number}" for number in range(count)]

    def _store(self, accumulators: list[str]) -> None:
        align = ELEMENT_BYTES[self.form.accumulator]
        for value, place in zip(accumulators, self._places(), strict=True):
            self._line(f"llvm.store {value}, {place} {{alignment = {align} : i64}} : {self.vector}, !llvm.ptr")

    def _places(self) -> Iterator[str]:
        """Where each accumulator lies in the tile."""
        for row in range(self.rows):
            base = self._op(f"arith.muli {self._op(f'arith.constant {row} : i64')}, %tile_step : i64")
            for j in range(self.vectors):
                column = self._op(f"arith.addi {base}, {self._op(f'arith.constant {j * self.lanes} : i64')} : i64")
                yield self._op(f"llvm.getelementptr %tile[{column}] : (!llvm.ptr, i64) -> !llvm.ptr, {self.form.accumulator}")

    # --- operands -------------------------------------------------------------------------------------------------------

    def _right(self, index: str, kind: str) -> list[str]:
        """The panel's row `index` as vectors of `lanes` elements of type `kind`; prefetches what lies ahead."""
        ahead = self._op(
            f"llvm.getelementptr %ahead[{self._op(f'arith.muli {index}, %ahead_step : i64')}] : (!llvm.ptr, i64) -> !llvm.ptr, i8"
        )
        for line in (ahead, self._op(f"llvm.getelementptr {ahead}[%second] : (!llvm.ptr, i64) -> !llvm.ptr, i8")):
            self._line(prefetch(line))
        offset = self._op(f"arith.muli {index}, %b_step : i64")
        row = self._op(f"llvm.getelementptr %b[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
        values: list[str] = []
        for j in range(self.vectors):
            place = self._op(f"llvm.getelementptr {row}[{j * self.lanes * self.form.unit}] : (!llvm.ptr) -> !llvm.ptr, i8")
            align = ELEMENT_BYTES[self.form.right]
            values.append(self._op(f"llvm.load {place} {{alignment = {align} : i64}} : !llvm.ptr -> vector<{self.lanes}x{kind}>"))
        return values

    def _left(self, row: int, offset: str, kind: str) -> str:
        """The scalar of type `kind` at byte `offset` of a row of A, aligned as an element of A is."""
        place = self._op(f"llvm.getelementptr %r{row}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
        return self._op(f"llvm.load {place} {{alignment = {ELEMENT_BYTES[self.form.left]} : i64}} : !llvm.ptr -> {kind}")

    def _spread(self, scalar: str, kind: str) -> str:
        return self._op(f"vector.broadcast {scalar} : {kind} to vector<{self.lanes}x{kind}>")

    # --- one step of k --------------------------------------------------------------------------------------------------

    def _single(self, index: str, accumulators: list[str]) -> list[str]:
        stored = self.form.right
        right = self._right(index, stored)
        if stored != self.form.accumulator:
            right = [self._op(f"arith.extf {value} : vector<{self.lanes}x{stored}> to {self.vector}") for value in right]
        return self._multiply(self._op(f"arith.muli {index}, %k_step : i64"), right, accumulators)

    def _multiply(self, offset: str, right: list[str], accumulators: list[str]) -> list[str]:
        """accumulators + A[offset] * right."""
        element, results = self.form.accumulator, []
        for row in range(self.rows):
            left = self._spread(self._left(row, offset, element), element)
            for j, value in enumerate(right):
                old = accumulators[row * self.vectors + j]
                if element.startswith("f"):
                    results.append(self._op(f"vector.fma {left}, {value}, {old} : {self.vector}"))
                else:
                    product = self._op(f"arith.muli {left}, {value} : {self.vector}")
                    results.append(self._op(f"arith.addi {product}, {old} : {self.vector}"))
        return results

    def _wide_pair(self, index: str, accumulators: list[str]) -> list[str]:
        pairs = self._right(index, "i32")
        offset = self._offset(index)
        first = self._multiply(offset, [self._even(pair) for pair in pairs], accumulators)
        return self._multiply(self._op(f"arith.addi {offset}, %k_step : i64"), [self._odd(pair) for pair in pairs], first)

    def _wide_last(self, index: str, accumulators: list[str]) -> list[str]:
        offset = self._offset(index)
        return self._multiply(offset, [self._even(pair) for pair in self._right(index, "i32")], accumulators)

    def _even(self, pair: str) -> str:
        """The lower of two bf16 as f32, whose upper 16 bits it is."""
        kind = f"vector<{self.lanes}xi32>"
        shifted = self._op(f"arith.shli {pair}, {self._op(f'arith.constant dense<16> : {kind}')} : {kind}")
        return self._op(f"arith.bitcast {shifted} : {kind} to {self.vector}")

    def _odd(self, pair: str) -> str:
        """The upper of two bf16 as f32."""
        kind = f"vector<{self.lanes}xi32>"
        masked = self._op(f"arith.andi {pair}, {self._op(f'arith.constant dense<-65536> : {kind}')} : {kind}")
        return self._op(f"arith.bitcast {masked} : {kind} to {self.vector}")

    def _dot_pair(self, index: str, accumulators: list[str]) -> list[str]:
        offset = self._offset(index)
        return self._dot(index, [self._left(row, offset, "i32") for row in range(self.rows)], accumulators)

    def _dot_last(self, index: str, accumulators: list[str]) -> list[str]:
        offset = self._offset(index)
        left = [self._op(f"arith.extui {self._left(row, offset, 'i16')} : i16 to i32") for row in range(self.rows)]
        return self._dot(index, left, accumulators)

    def _dot(self, index: str, left: list[str], accumulators: list[str]) -> list[str]:
        """accumulators + the dot products of pairs of bf16 (`vdpbf16ps`: round to nearest even, denormals are zero)."""
        return self._intrinsic("avx512bf16.dpbf16ps.512", f"vector<{self.lanes * 2}xbf16>", self._right(index, "i32"), left, accumulators)

    def _intrinsic(self, name: str, group: str, right: list[str], left: list[str], accumulators: list[str]) -> list[str]:
        """accumulators + products of groups by an instruction of x86: left has an i32 a row, right i32 lanes, both taken as `group`."""
        kind = f"vector<{self.lanes}xi32>"
        right = [self._op(f"vector.bitcast {value} : {kind} to {group}") for value in right]
        results: list[str] = []
        for row in range(self.rows):
            spread = self._op(f"vector.bitcast {self._spread(left[row], 'i32')} : {kind} to {group}")
            for j, value in enumerate(right):
                operands = f"{accumulators[row * self.vectors + j]}, {spread}, {value}"
                types = f"({self.vector}, {group}, {group}) -> {self.vector}"
                results.append(self._op(f'llvm.call_intrinsic "llvm.x86.{name}"({operands}) : {types}'))
        return results

    def _bytes(self, index: str, accumulators: list[str]) -> list[str]:
        return self._bytes_at(index, index, accumulators)

    def _bytes_at(self, group: str, panel_row: str, accumulators: list[str]) -> list[str]:
        offset = self._offset(group)
        return self._multiply_bytes(panel_row, [self._left(row, offset, "i32") for row in range(self.rows)], accumulators)

    def _bytes_last(self, index: str, accumulators: list[str]) -> list[str]:
        return self._bytes_last_at(index, index, accumulators)

    def _bytes_last_at(self, group: str, panel_row: str, accumulators: list[str]) -> list[str]:
        """What is left of each row of A, byte by byte: nothing is read past its end."""
        offset, rest, zero = self._offset(group), self._op("arith.remui %k, %group : i64"), self._op("arith.constant 0 : i32")
        eight = self._op("arith.constant 8 : i64")
        left: list[str] = []
        for row in range(self.rows):
            self._count += 1
            name = f"%w{self._count}"
            self._line(f"{name} = scf.for {name}_i = %c0 to {rest} step %c1 iter_args({name}_o = {zero}) -> (i32) : i64 {{")
            byte = self._left(row, self._op(f"arith.addi {offset}, {self._op(f'arith.muli {name}_i, %k_step : i64')} : i64"), "i8")
            shift = self._op(f"arith.trunci {self._op(f'arith.muli {name}_i, {eight} : i64')} : i64 to i32")
            moved = self._op(f"arith.shli {self._op(f'arith.extui {byte} : i8 to i32')}, {shift} : i32")
            self._line(f"scf.yield {self._op(f'arith.ori {name}_o, {moved} : i32')} : i32\n}}")
            left.append(name)
        return self._multiply_bytes(panel_row, left, accumulators)

    def _multiply_bytes(self, panel_row: str, left: list[str], accumulators: list[str]) -> list[str]:
        """accumulators + the dot products of four unsigned with four signed bytes, exactly."""
        return (self._vnni if self.form.feature else self._widened_bytes)(self._right(panel_row, "i32"), left, accumulators)

    def _vnni(self, right: list[str], left: list[str], accumulators: list[str]) -> list[str]:
        return self._intrinsic("avx512.vpdpbusd.512", f"vector<{self.lanes * 4}xi8>", right, left, accumulators)

    def _widened_bytes(self, right: list[str], left: list[str], accumulators: list[str]) -> list[str]:
        """Bytes 0 and 2, then 1 and 3, as pairs of i16 for `vpmaddwd` (`vpmaddubsw` would saturate)."""
        words = f"vector<{self.lanes * 2}xi16>"
        intrinsic = "llvm.x86.avx512.pmaddw.d.512" if self.lanes == 16 else "llvm.x86.avx2.pmadd.wd"
        eight, mask = self._op(f"arith.constant dense<8> : {words}"), self._op(f"arith.constant {0x00FF00FF} : i32")
        scalar_eight = self._op("arith.constant 8 : i32")
        odd = [self._op(f"vector.bitcast {value} : {self.vector} to {words}") for value in right]
        even = [self._op(f"arith.shli {value}, {eight} : {words}") for value in odd]
        halves = [[self._op(f"arith.shrsi {value}, {eight} : {words}") for value in side] for side in (even, odd)]
        results: list[str] = []
        for row in range(self.rows):
            scalars = [left[row], self._op(f"arith.shrui {left[row]}, {scalar_eight} : i32")]
            sums = accumulators[row * self.vectors : (row + 1) * self.vectors]
            for scalar, side in zip(scalars, halves, strict=True):
                spread = self._spread(self._op(f"arith.andi {scalar}, {mask} : i32"), "i32")
                spread = self._op(f"vector.bitcast {spread} : {self.vector} to {words}")
                products = [
                    self._op(f'llvm.call_intrinsic "{intrinsic}"({spread}, {value}) : ({words}, {words}) -> {self.vector}')
                    for value in side
                ]
                sums = [self._op(f"arith.addi {old}, {new} : {self.vector}") for old, new in zip(sums, products, strict=True)]
            results += sums
        return results
