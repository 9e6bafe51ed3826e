"""Rows of A times rows of B as dot products: for few rows of A, for which packing B's transpose does not pay.

`void dots(a: f32*, b: f32*, b_step: bytes, count: i64, tile: f32*)` writes the products of one row with `count` rows of B, all contiguous
along k, and up to the next multiple of LANES products that are not read. LANES rows of B at a time have a sum of LANES lanes each, and a
transpose adds these up. Rows further on are prefetched: with this little to compute the product waits for memory alone, and where
rows of B lie far apart the hardware does not foresee the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from disc.codegen.mlir.builder import Builder
from disc.codegen.mlir.code import Code
from disc.codegen.plan.index import ONE, split_linear
from disc.codegen.x86.function import Frame
from disc.codegen.x86.gemm.micro import MICRO_PREFIX
from disc.codegen.x86.gemm.plan import Gemm, is_transposed
from disc.codegen.x86.memory import Buffer, address
from disc.shapes import Dim

LANES = 16


def may_dot(gemm: Gemm) -> bool:
    """True when rows of A and of B lie contiguous in f32, in whole vectors, and there may be few rows."""
    c, limits = gemm.contraction, gemm.target.thresholds.gemm
    if gemm.form.name != "f32" or gemm.lanes != LANES or gemm.right is None or gemm.patches is not None or gemm.packed:
        return False
    if gemm.direct or not is_transposed(gemm) or key_step(gemm) is None or (c.m.is_const and c.m.const > limits.dot_rows):
        return False
    whole = c.k.is_const and 0 < c.k.const <= limits.dot_length and c.k.const % LANES == 0
    return whole and (gemm.left is None or gemm.left.k_step == ONE)


def key_step(gemm: Gemm) -> Dim | None:
    """Elements from one row of B to the next."""
    assert gemm.right is not None
    form = split_linear(gemm.right.rest, "gn")
    return None if form is None else form[0]


def dots_name(k: int) -> str:
    """The function's name for rows of `k` values."""
    return f"{MICRO_PREFIX}dots_{k}x{LANES}"


def dots_source(k: int, ahead: int) -> str:
    """MLIR text of the function for rows of `k` values, which prefetches `ahead` rows of B ahead."""
    return _Dots(k, ahead).source()


@dataclass(frozen=True)
class FewRows:
    """A block of rows as SSA values. wanted: whether it has few rows, i1; pointer: the first of the rows of B; step: bytes to the next."""

    wanted: str
    pointer: str
    step: str

    def call(self, b: Builder, k: int, row: str, count: str, tile: str) -> None:
        """The products of the row of A at `row` with the first `count` rows of B."""
        operands = f"({row}, {self.pointer}, {self.step}, {count}, {tile}) : (!llvm.ptr, !llvm.ptr, i64, i64, !llvm.ptr) -> ()"
        b.statement(f"func.call @{dots_name(k)}{operands}")


def few_rows(frame: Frame, gemm: Gemm, rows: str, column: str) -> FewRows:
    """For a block of `rows` rows of A and the rows of B from `column` on; needs may_dot."""
    b, e, step = frame.b, frame.emitter, key_step(gemm)
    assert gemm.right is not None and step is not None
    leaf = e.leaves[gemm.right.leaf]
    assert isinstance(leaf, Buffer)
    with e.bind("gn", column):
        pointer = address(b, leaf, b.scalar(gemm.right.rest))
    wanted = b.op(f"arith.cmpi sle, {rows}, {b.index(gemm.target.thresholds.gemm.dot_rows)} : i64")
    return FewRows(wanted, pointer, b.scalar(step * 4))


class _Dots(Code):
    def __init__(self, k: int, ahead: int) -> None:
        super().__init__(LANES)
        self.k, self.ahead = k, ahead

    def source(self) -> str:
        """The text of the function."""
        signature = "%a: !llvm.ptr, %b: !llvm.ptr, %b_step: i64, %count: i64, %tile: !llvm.ptr"
        self.line(f"func.func @{dots_name(self.k)}({signature}) {{")
        self.line(f"%zero = arith.constant dense<0.0> : {self.vector}")
        last = self.op(f"arith.subi %count, {self.number(1)} : i64")
        far = self.op(f"arith.muli %b_step, {self.number(self.ahead)} : i64")
        left = [self.load("%a", start, "f32") for start in range(0, self.k, LANES)]
        with self.loop(self.number(0), "%count", LANES, []) as rows:
            total = transposed_sum(self, [self._sum(left, rows.index, number, last, far) for number in range(LANES)])
            place = self.moved("%tile", rows.index, "f32")
            self.line(f"llvm.store {total}, {place} {{alignment = 4 : i64}} : {self.vector}, !llvm.ptr")
        self.line("return\n}\n")
        return "\n".join(self.out)

    def _sum(self, left: list[str], start: str, number: int, last: str, far: str) -> str:
        """The lanes of the product with row start + number of B, the last row where there is none."""
        wanted = self.op(f"arith.addi {start}, {self.number(number)} : i64")
        offset = self.op(f"arith.muli {self.op(f'arith.minsi {wanted}, {last} : i64')}, %b_step : i64")
        row = self.moved("%b", offset, "i8")
        distant = self.moved(row, far, "i8")
        total = "%zero"
        for position, value in enumerate(left):
            self.prefetch(distant, position * LANES * 4)
            total = self.op(f"vector.fma {value}, {self.load(row, position * LANES, 'f32')}, {total} : {self.vector}")
        return total


def transposed_sum(code: Code, sums: list[str]) -> str:
    """Lane i of the result is the sum of the lanes of sums[i mod their number], which is 4, 8 or 16; every step halves it."""
    for low, high in (
        (_interleaved([0, 1]), _interleaved([2, 3])),  # a quarter of x and of y: x0 + x2, y0 + y2, x1 + x3, y1 + y3
        (_paired([0, 1]), _paired([2, 3])),  # then both sums of x and y, both of z and w
        (_quarters([0, 1]), _quarters([2, 3])),
        (_quarters([0, 2]), _quarters([1, 3])),
    ):
        pairs = zip(sums[::2] or sums, sums[1::2] or sums, strict=True)
        sums = [code.add(code.shuffle(x, y, low), code.shuffle(x, y, high)) for x, y in pairs]
    return sums[0]


def _interleaved(lanes: list[int]) -> list[int]:
    """These lanes of every quarter of two vectors, in turn."""
    return [start + lane + other for start in range(0, LANES, 4) for lane in lanes for other in (0, LANES)]


def _paired(lanes: list[int]) -> list[int]:
    """These lanes of every quarter of the first vector, then of the second."""
    return [start + lane + other for start in range(0, LANES, 4) for other in (0, LANES) for lane in lanes]


def _quarters(numbers: list[int]) -> list[int]:
    """These quarters of the first vector, then of the second."""
    return [other + 4 * number + lane for other in (0, LANES) for number in numbers for lane in range(4)]
