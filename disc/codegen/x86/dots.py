"""Rows of A times rows of B as dot products: for few rows of A, which are not worth packing B's transpose.

`void dots(a: f32*, b: f32*, b_step: bytes, count: i64, tile: f32*)` writes the products of one row with `count` rows of B, all contiguous
along k, and up to the next multiple of LANES products that nobody reads. LANES rows of B at a time have a sum of LANES lanes each, and a
transpose adds these up. Rows AHEAD of them are prefetched: with this little to compute the product waits for memory alone, and where
rows of B lie far apart the hardware does not foresee the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...shapes import Dim
from ..index import ONE, split_linear
from .builder import Builder
from .function import Frame
from .gemm_plan import Gemm, is_direct, is_transposed
from .memory import Buffer, address
from .micro import MICRO_PREFIX

FEW = 4  # rows of A, at most
LANES = 16
LONGEST = 256  # values of k, at most: the products of one group of rows are straight-line code
AHEAD = 32  # rows
VECTOR = f"vector<{LANES}xf32>"


def may_dot(gemm: Gemm) -> bool:
    """True when rows of A and of B lie contiguous in f32, in whole vectors, and there may be few rows."""
    c = gemm.contraction
    if gemm.form.name != "f32" or gemm.lanes != LANES or gemm.right is None or gemm.patches is not None or gemm.packed:
        return False
    if is_direct(gemm) or not is_transposed(gemm) or key_step(gemm) is None or (c.m.is_const and c.m.const > FEW):
        return False
    whole = c.k.is_const and 0 < c.k.const <= LONGEST and c.k.const % LANES == 0
    return whole and (gemm.left is None or gemm.left.k_step == ONE)


def key_step(gemm: Gemm) -> Dim | None:
    """Elements from one row of B to the next."""
    assert gemm.right is not None
    form = split_linear(gemm.right.rest, "gn")
    return None if form is None else form[0]


def dots_name(k: int) -> str:
    """The function's name for rows of `k` values."""
    return f"{MICRO_PREFIX}dots_{k}x{LANES}"


def dots_source(k: int) -> str:
    """MLIR text of the function for rows of `k` values."""
    return _Dots(k).source()


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
    wanted = b.op(f"arith.cmpi sle, {rows}, {b.index(FEW)} : i64")
    return FewRows(wanted, pointer, b.scalar(step * 4))


class _Dots:
    def __init__(self, k: int) -> None:
        self.k = k
        self.out: list[str] = []
        self._count = 0

    def _op(self, text: str) -> str:
        self._count += 1
        self.out.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def source(self) -> str:
        """The text of the function."""
        signature = "%a: !llvm.ptr, %b: !llvm.ptr, %b_step: i64, %count: i64, %tile: !llvm.ptr"
        self.out.append(f"func.func @{dots_name(self.k)}({signature}) {{")
        for name, value in (("c0", 0), ("c1", 1), ("lanes", LANES), ("ahead", AHEAD)):
            self.out.append(f"%{name} = arith.constant {value} : i64")
        self.out.append(f"%zero = arith.constant dense<0.0> : {VECTOR}")
        self.out.append("%last = arith.subi %count, %c1 : i64")
        self.out.append("%far = arith.muli %b_step, %ahead : i64")
        left = [self._load("%a", start) for start in range(0, self.k, LANES)]
        self.out.append("scf.for %row = %c0 to %count step %lanes : i64 {")
        total = _transposed_sum(self, [self._sum(left, number) for number in range(LANES)])
        self.out.append("%place = llvm.getelementptr %tile[%row] : (!llvm.ptr, i64) -> !llvm.ptr, f32")
        self.out.append(f"llvm.store {total}, %place {{alignment = 4 : i64}} : {VECTOR}, !llvm.ptr")
        self.out.append("}\nreturn\n}\n")
        return "\n".join(self.out)

    def _load(self, pointer: str, start: int) -> str:
        place = self._op(f"llvm.getelementptr {pointer}[{start}] : (!llvm.ptr) -> !llvm.ptr, f32")
        return self._op(f"llvm.load {place} {{alignment = 4 : i64}} : !llvm.ptr -> {VECTOR}")

    def _sum(self, left: list[str], number: int) -> str:
        """The lanes of the product with row %row + number of B, the last row where there is none."""
        wanted = self._op(f"arith.addi %row, {self._op(f'arith.constant {number} : i64')} : i64")
        offset = self._op(f"arith.muli {self._op(f'arith.minsi {wanted}, %last : i64')}, %b_step : i64")
        row = self._op(f"llvm.getelementptr %b[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
        far = self._op(f"llvm.getelementptr {row}[%far] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
        total = "%zero"
        for position, value in enumerate(left):
            line = self._op(f"llvm.getelementptr {far}[{position * LANES}] : (!llvm.ptr) -> !llvm.ptr, f32")
            self.out.append(f'"llvm.intr.prefetch"({line}) <{{rw = 0 : i32, hint = 3 : i32, cache = 1 : i32}}> : (!llvm.ptr) -> ()')
            total = self._op(f"vector.fma {value}, {self._load(row, position * LANES)}, {total} : {VECTOR}")
        return total

    def shuffle(self, first: str, second: str, order: list[int]) -> str:
        """Lanes of both."""
        return self._op(f"vector.shuffle {first}, {second} {order} : {VECTOR}, {VECTOR}")

    def add(self, first: str, second: str) -> str:
        """Lane by lane."""
        return self._op(f"arith.addf {first}, {second} : {VECTOR}")


def _transposed_sum(code: _Dots, sums: list[str]) -> str:
    """Lane i of the result is the sum of the lanes of sums[i]; every step halves the number of vectors."""
    for low, high in (
        (_interleaved([0, 1]), _interleaved([2, 3])),  # a quarter of x and of y: x0 + x2, y0 + y2, x1 + x3, y1 + y3
        (_paired([0, 1]), _paired([2, 3])),  # then both sums of x and y, both of z and w
        (_quarters([0, 1]), _quarters([2, 3])),
        (_quarters([0, 2]), _quarters([1, 3])),
    ):
        pairs = zip(sums[::2], sums[1::2], strict=True)
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
