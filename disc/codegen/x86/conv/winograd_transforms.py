"""Functions that transform the patches and the results of Winograd convolutions (`codegen/plan/winograd.py`), a vector of channels at a
time.

`void source(table: const f32*[patch][ENTRY], target: f32*, step: elements, channels: i64)` writes B^T d B of the patch d whose rows of
channels the table lists, `step` elements from position to position. `i1 result(products: const f32*, step: elements, sums: f32*, width:
i64)` writes A^T m A, PANEL elements from output to output, and says whether one of them is an infinity or a NaN.
"""

from __future__ import annotations

from collections.abc import Callable

from disc.codegen.x86.conv.taps import ENTRY
from disc.codegen.x86.gemm.plan import PANEL

Line = list[str]  # values along one axis


def source_name(tile: int, lanes: int) -> str:
    """The function's name."""
    return f"disc_winograd_source_{tile}x{lanes}"


def result_name(tile: int, lanes: int) -> str:
    """The function's name."""
    return f"disc_winograd_result_{tile}x{lanes}"


def transforms(tile: int, lanes: int) -> tuple[tuple[str, str], ...]:
    """Both functions, as (name, MLIR text)."""
    return (source_name(tile, lanes), _Source(tile, lanes).text()), (result_name(tile, lanes), _Result(tile, lanes).text())


class _Function:
    """A function under construction."""

    def __init__(self, tile: int, lanes: int) -> None:
        self.tile, self.patch, self.lanes = tile, tile + 2, lanes
        self.vector = f"vector<{lanes}xf32>"
        self.lines: list[str] = []
        self.constants: dict[str, str] = {}

    def op(self, text: str) -> str:
        self.lines.append(f"%v{len(self.lines)} = {text}")
        return f"%v{len(self.lines) - 1}"

    def number(self, value: int) -> str:
        return self.constant(f"arith.constant {value} : i64")

    def splat(self, value: float) -> str:
        return self.constant(f"arith.constant dense<{float(value)}> : {self.vector}")

    def constant(self, text: str) -> str:
        return self.constants.setdefault(text, f"%c{len(self.constants)}")

    def add(self, left: str, right: str) -> str:
        return self.op(f"arith.addf {left}, {right} : {self.vector}")

    def subtract(self, left: str, right: str) -> str:
        return self.op(f"arith.subf {left}, {right} : {self.vector}")

    def fma(self, factor: float, value: str, addend: str) -> str:
        return self.op(f"vector.fma {value}, {self.splat(factor)}, {addend} : {self.vector}")

    def element(self, pointer: str, *offsets: str) -> str:
        """The address so many elements on."""
        for offset in offsets:
            pointer = self.op(f"llvm.getelementptr {pointer}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, f32")
        return pointer

    def load(self, pointer: str) -> str:
        return self.op(f"llvm.load {pointer} {{alignment = 4 : i64}} : !llvm.ptr -> {self.vector}")

    def store(self, value: str, pointer: str) -> None:
        self.lines.append(f"llvm.store {value}, {pointer} {{alignment = 4 : i64}} : {self.vector}, !llvm.ptr")

    def place(self, pointer: str, number: int, step: str, channel: str) -> str:
        """The address of `channel` of position `number`, `step` elements from position to position."""
        return self.element(pointer, self.op(f"arith.muli {self.number(number)}, {step} : i64"), channel)

    def definitions(self) -> list[str]:
        return [f"{name} = {text}" for text, name in self.constants.items()]


def _both(lines: list[Line], transform: Callable[[Line], Line]) -> list[Line]:
    """`transform` along each line, then along each of the lines across."""
    along = [transform(line) for line in lines]
    across = [transform(list(line)) for line in zip(*along, strict=True)]
    return [list(line) for line in zip(*across, strict=True)]


class _Source(_Function):
    def text(self) -> str:
        lines = [[self.load(self.element(self._row(y, x), "%channel")) for x in range(self.patch)] for y in range(self.patch)]
        for y, line in enumerate(_both(lines, self._transform)):
            for x, value in enumerate(line):
                self.store(value, self.place("%target", y * self.patch + x, "%step", "%channel"))
        step = self.number(self.lanes)
        zero = self.number(0)
        name = source_name(self.tile, self.lanes)
        return "\n".join((
            f"func.func @{name}(%table: !llvm.ptr, %target: !llvm.ptr, %step: i64, %channels: i64) {{", *self.definitions(),
            f"scf.for %channel = {zero} to %channels step {step} : i64 {{", *self.lines, "}", "return", "}\n",
        ))  # fmt: skip

    def _row(self, y: int, x: int) -> str:
        slot = self.op(f"llvm.getelementptr %table[{y * ENTRY + x}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
        return self.op(f"llvm.load {slot} : !llvm.ptr -> !llvm.ptr")

    def _transform(self, d: Line) -> Line:
        """B^T d."""
        if self.tile == 2:
            return [self.subtract(d[0], d[2]), self.add(d[1], d[2]), self.subtract(d[2], d[1]), self.subtract(d[1], d[3])]
        even, odd = self.fma(-4, d[2], d[4]), self.fma(-4, d[1], d[3])
        far_even, far_odd = self.subtract(d[4], d[2]), self.subtract(d[3], d[1])
        first, last = (self.fma(4, d[at], self.fma(-5, d[at + 2], d[at + 4])) for at in (0, 1))
        pairs = [self.add(even, odd), self.subtract(even, odd), self.fma(2, far_odd, far_even), self.fma(-2, far_odd, far_even)]
        return [first, *pairs, last]


class _Result(_Function):
    def text(self) -> str:
        lines = [
            [self.load(self.place("%products", y * self.patch + x, "%step", "%column")) for x in range(self.patch)]
            for y in range(self.patch)
        ]
        spoilt = "%spoilt"
        for y, line in enumerate(_both(lines, self._transform)):
            for x, value in enumerate(line):
                self.store(value, self.element("%sums", self.number((y * self.tile + x) * PANEL), "%column"))
                spoilt = self.fma(0, value, spoilt)  # NaN from an infinity or a NaN on
        none, zero, step = self.splat(0), self.number(0), self.number(self.lanes)
        flags = f"vector<{self.lanes}xi1>"
        name = result_name(self.tile, self.lanes)
        return "\n".join((
            f"func.func @{name}(%products: !llvm.ptr, %step: i64, %sums: !llvm.ptr, %width: i64) -> i1 {{", *self.definitions(),
            f"%last = scf.for %column = {zero} to %width step {step} iter_args(%spoilt = {none}) -> ({self.vector}) : i64 {{",
            *self.lines, f"scf.yield {spoilt} : {self.vector}", "}",
            f"%flags = arith.cmpf uno, %last, %last : {self.vector}", f"%any = vector.reduction <or>, %flags : {flags} into i1",
            "return %any : i1", "}\n",
        ))  # fmt: skip

    def _transform(self, d: Line) -> Line:
        """A^T d."""
        if self.tile == 2:
            return [self.add(self.add(d[0], d[1]), d[2]), self.subtract(self.subtract(d[1], d[2]), d[3])]
        near, near_odd, far, far_odd = self.add(d[1], d[2]), self.subtract(d[1], d[2]), self.add(d[3], d[4]), self.subtract(d[3], d[4])
        return [
            self.add(self.add(d[0], near), far), self.fma(2, far_odd, near_odd), self.fma(4, far, near),
            self.add(self.fma(8, far_odd, near_odd), d[5]),
        ]  # fmt: skip
