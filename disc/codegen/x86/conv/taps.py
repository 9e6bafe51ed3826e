"""Micro-kernels of channels-last convolutions: a tile of `rows` output positions x `vectors` of output channels, summed over taps.

`void taps(table: (const T*[TABLE_ROWS], const T* b, pad)[taps], taps: i64, run: i64, tile: T*, tile_step: elements, fresh: i1,
ahead: void*, ahead_step: bytes)`: each tap reads `run` consecutive elements (of bf16: pairs) for every row, from where the table points,
against `run` rows of a packed panel from b on. The rows of the left operand are thus never copied ("The Indirect Convolution Algorithm",
Dukhan 2019), and a tap that only zeros would meet need not be in the table. fresh: the tile starts at zero; otherwise at what it holds.
With every row of b, two lines of the `ahead_step` bytes at `ahead` are prefetched, as in micro.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from disc.codegen.x86.gemm.forms import Form
from disc.codegen.x86.gemm.micro import prefetch
from disc.ir.weights import ELEMENT_BYTES
from disc.speculation.schedules import TILE_ROWS

TABLE_ROWS = TILE_ROWS
ENTRY = 8  # addresses of an entry of the table: one for each row of a tile, what fills them works on vectors of 8, then the panel's


@dataclass(frozen=True)
class Taps:
    """One micro-kernel. rows, vectors: of a tile; lanes: columns of a vector; panel: columns of the packed panel; run: the length of a run
    where it is unrolled, 0 where the call passes it; moves: where the vectors of columns are of several groups, the elements (of bf16:
    pairs) from a row to its run for each vector."""

    form: Form
    rows: int
    vectors: int
    lanes: int
    panel: int
    run: int
    moves: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The function's name."""
        last = "".join(f"_{each}" for each in ((self.run,) if self.run else ()) + self.moves)
        return f"disc_taps_{self.form.name}_{self.rows}x{self.vectors}x{self.lanes}_{self.panel}{last}"

    def source(self) -> str:
        """MLIR text. Products are accumulated in order of (tap, element of the run) by fused multiply-add, those of bf16 pair by pair."""
        return "\n".join(_Source(self).lines()) + "\n"


class _Source:
    """The text under construction; values that are carried are named by row and column of the tile."""

    def __init__(self, taps: Taps) -> None:
        self.taps = taps
        self.element = taps.form.accumulator
        self.size = ELEMENT_BYTES[self.element]
        self.vector = f"vector<{taps.lanes}x{self.element}>"
        self.places = [(row, column) for row in range(taps.rows) for column in range(taps.vectors)]
        self.types = ", ".join([self.vector] * len(self.places))

    def lines(self) -> list[str]:
        return [
            f"func.func @{self.taps.name}(%table: !llvm.ptr, %taps: i64, %run: i64, %tile: !llvm.ptr, %tile_step: i64, "
            "%fresh: i1, %ahead: !llvm.ptr, %ahead_step: i64) {",
            "%c0 = arith.constant 0 : i64",
            "%c1 = arith.constant 1 : i64",
            f"%entry = arith.constant {ENTRY} : i64",
            f"%width = arith.constant {self.taps.panel} : i64",
            f"%zero = arith.constant dense<0.0> : {self.vector}",
            "%tap_ahead = arith.muli %run, %ahead_step : i64",
            "%half = arith.shrui %ahead_step, %c1 : i64",
            *self._starts(),
            *self._tap_loop(),
            *(f"llvm.store %sums#{number}, %place{row}_{column} {{alignment = {self.size} : i64}} : {self.vector}, !llvm.ptr"
              for number, (row, column) in enumerate(self.places)),
            "return",
            "}",
        ]  # fmt: skip

    def _names(self, prefix: str) -> list[str]:
        return [f"%{prefix}_{row}_{column}" for row, column in self.places]

    def _results(self, name: str) -> list[str]:
        return [f"%{name}#{number}" for number in range(len(self.places))]

    def _yield(self, values: list[str]) -> str:
        return f"scf.yield {', '.join(values)} : {self.types}"

    def _loop(self, name: str, variable: str, count: str, carried: list[str], start: list[str]) -> str:
        pairs = ", ".join(f"{new} = {old}" for new, old in zip(carried, start, strict=True))
        return f"%{name}:{len(start)} = scf.for {variable} = %c0 to {count} step %c1 iter_args({pairs}) -> ({self.types}) : i64 {{"

    def _starts(self) -> list[str]:
        """Where every vector of the tile lies, and what it starts from."""
        lines: list[str] = []
        for row, column in self.places:
            own = f"{row}_{column}"
            lines += [
                f"%row{own} = arith.constant {row} : i64",
                f"%begin{own} = arith.muli %row{own}, %tile_step : i64",
                f"%lane{own} = arith.constant {column * self.taps.lanes} : i64",
                f"%at{own} = arith.addi %begin{own}, %lane{own} : i64",
                f"%place{own} = llvm.getelementptr %tile[%at{own}] : (!llvm.ptr, i64) -> !llvm.ptr, {self.element}",
            ]
        lines += [f"%start:{len(self.places)} = scf.if %fresh -> ({self.types}) {{", self._yield(["%zero"] * len(self.places)), "} else {"]
        for row, column in self.places:
            own = f"{row}_{column}"
            lines.append(f"%old_{own} = llvm.load %place{own} {{alignment = {self.size} : i64}} : !llvm.ptr -> {self.vector}")
        return [*lines, self._yield(self._names("old")), "}"]

    def _tap_loop(self) -> list[str]:
        carried = self._names("t")
        lines = [
            self._loop("sums", "%tap", "%taps", carried, self._results("start")),
            "%first = arith.muli %tap, %entry : i64",
            "%entries = llvm.getelementptr %table[%first] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr",
            f"%slot = llvm.getelementptr %entries[{TABLE_ROWS}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr",
            "%panel = llvm.load %slot : !llvm.ptr -> !llvm.ptr",
        ]
        for row in range(self.taps.rows):
            lines += [
                f"%slot{row} = llvm.getelementptr %entries[{row}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr",
                f"%r{row} = llvm.load %slot{row} : !llvm.ptr -> !llvm.ptr",
            ]
        if self.taps.run:
            for k in range(self.taps.run):
                lines.append(f"%k{k} = arith.constant {k} : i64")
                lines += self._step(f"k{k}", carried)
                carried = self._names(f"k{k}f")
            return [*lines, self._yield(carried), "}"]
        inner = self._names("s")
        lines += [
            "%ahead_moved = arith.muli %tap, %tap_ahead : i64",
            "%ahead_tap = llvm.getelementptr %ahead[%ahead_moved] : (!llvm.ptr, i64) -> !llvm.ptr, i8",
            self._loop("partial", "%k", "%run", inner, carried),
            "%ahead_k = arith.muli %k, %ahead_step : i64",
            "%line = llvm.getelementptr %ahead_tap[%ahead_k] : (!llvm.ptr, i64) -> !llvm.ptr, i8",
            prefetch("%line"),
            "%next_line = llvm.getelementptr %line[%half] : (!llvm.ptr, i64) -> !llvm.ptr, i8",
            prefetch("%next_line"),
            *self._step("k", inner),
            self._yield(self._names("kf")),
            "}",
        ]
        return [*lines, self._yield(self._results("partial")), "}"]

    def _step(self, k: str, sums: list[str]) -> list[str]:
        """One element of a run, or one pair of narrow ones: `sums` plus products, named after `k`."""
        taps, pairs = self.taps, self.taps.form.group == 2
        kind = "i32" if pairs else self.element
        stored = f"vector<{taps.lanes}x{kind}>"
        align = ELEMENT_BYTES[taps.form.right]
        lines = [
            f"%{k}o = arith.muli %{k}, %width : i64",
            f"%{k}l = llvm.getelementptr %panel[%{k}o] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}",
        ]
        for column in range(taps.vectors):
            lines += [
                f"%{k}w{column} = llvm.getelementptr %{k}l[{column * taps.lanes}] : (!llvm.ptr) -> !llvm.ptr, {kind}",
                f"%{k}v{column} = llvm.load %{k}w{column} {{alignment = {align} : i64}} : !llvm.ptr -> {stored}",
            ]
            lines += self._parts(f"{k}v{column}") if pairs else []
        for row in range(taps.rows):
            lines.append(f"%{k}e{row} = llvm.getelementptr %r{row}[%{k}] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}")
            for move in dict.fromkeys(taps.moves or (0,)):
                own = f"{row}_{move}"
                lines += [
                    f"%{k}m{own} = llvm.getelementptr %{k}e{row}[{move}] : (!llvm.ptr) -> !llvm.ptr, {kind}",
                    f"%{k}x{own} = llvm.load %{k}m{own} {{alignment = {align} : i64}} : !llvm.ptr -> {kind}",
                    f"%{k}y{own} = vector.broadcast %{k}x{own} : {kind} to {stored}",
                ]
                lines += self._parts(f"{k}y{own}") if pairs else []
            for column in range(taps.vectors):
                old = sums[row * taps.vectors + column]
                left = f"{k}y{row}_{taps.moves[column] if taps.moves else 0}"
                lines += self._products(left, f"{k}v{column}", old, f"{k}f_{row}_{column}")
        return lines

    def _parts(self, name: str) -> list[str]:
        """Lanes of pairs of bf16 as their product needs them: as they are, or the lower and the upper ones as f32."""
        vector, narrow = f"vector<{self.taps.lanes}xi32>", f"vector<{self.taps.lanes * 2}xbf16>"
        if self.taps.form.feature:
            return [f"%{name}p = vector.bitcast %{name} : {vector} to {narrow}"]
        return [
            f"%{name}s = arith.constant dense<16> : {vector}",
            f"%{name}m = arith.constant dense<-65536> : {vector}",
            f"%{name}i = arith.shli %{name}, %{name}s : {vector}",
            f"%{name}j = arith.andi %{name}, %{name}m : {vector}",
            f"%{name}a = arith.bitcast %{name}i : {vector} to {self.vector}",
            f"%{name}b = arith.bitcast %{name}j : {vector} to {self.vector}",
        ]

    def _products(self, left: str, right: str, old: str, new: str) -> list[str]:
        """%new = old + the product of an element, or the products of a pair."""
        if self.taps.form.group == 1:
            return [f"%{new} = vector.fma %{left}, %{right}, {old} : {self.vector}"]
        if self.taps.form.feature:
            narrow = f"vector<{self.taps.lanes * 2}xbf16>"
            types = f"({self.vector}, {narrow}, {narrow}) -> {self.vector}"
            return [f'%{new} = llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.512"({old}, %{left}p, %{right}p) : {types}']
        return [
            f"%{new}a = vector.fma %{left}a, %{right}a, {old} : {self.vector}",
            f"%{new} = vector.fma %{left}b, %{right}b, %{new}a : {self.vector}",
        ]
