"""One row of A times a B that nobody packed: memory alone decides, so B is read once, where it lies.

Two shared functions, chosen by the direction in which B is contiguous, write the products of a row of A with up to WIDTH columns to a tile:

`void across(a: T*, a_step: bytes, b: T*, b_step: bytes, k: i64, count: i64, tile: f32*)`: columns are neighbours; the sums of as many
columns as registers hold stay there while the rows of B pass by, each scaled by a value of A. b_step: from k to k + 1.

`void along(a: T*, a_step, b: T*, b_step: bytes, k: i64, count: i64, tile: f32*)`: values of k are neighbours, in A too (a_step is not
read); COLUMNS dot products at a time. b_step: from a column to the next. Writes up to LANES values beyond the last column.

A task is a panel of columns, as for more rows; those of a batch that follow each other are gone through together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...ir.weights import ELEMENT_BYTES
from ..contraction import Contraction
from ..index import ONE
from .code import Code
from .dots import LANES, key_step, transposed_sum
from .epilogue import Epilogue
from .function import Frame
from .gemm_plan import PANEL, Gemm, panels
from .memory import Buffer, address
from .micro import MICRO_PREFIX
from .packing import row_pointers

WIDTH = 256  # columns of a call: the tile has room for some more
SUMS = 16  # vectors of sums: enough independent ones to hide the latency of a multiply-add
COLUMNS = 8  # of `along`: rows of B that lie a multiple of 4096 bytes apart share a set of an L1 cache of 8 ways or more
AHEAD = 4  # rows of B that `across` prefetches where it takes whole panels of each
NARROW = ("f32", "bf16", "f16")


def turned(c: Contraction) -> Contraction:
    """The contraction with A and B exchanged where B is a single column: then A is the matrix that is gone through once."""
    if c.n != ONE or c.m == ONE or c.node.op != "stablehlo.dot_general":
        return c
    return replace(c, m=c.n, n=c.m, left=c.right, right=c.left, result=lambda batch, m, n: c.result(batch, n, m))


def may_be_one_row(gemm: Gemm) -> bool:
    """True when there may be one row, and B lies in memory contiguous in n or k, in a type that is widened to f32.

    The same for every ISA level, since all of an artifact's share its weights, packed or as they are.
    """
    c, form = gemm.contraction, gemm.form
    if gemm.packed or gemm.patches is not None or gemm.right is None or (c.m.is_const and c.m != ONE):
        return False
    if form.accumulator != "f32" or form.block or form.left not in NARROW or form.right not in NARROW:
        return False
    return _is_across(gemm) or _is_along(gemm)


def _is_across(gemm: Gemm) -> bool:
    return key_step(gemm) == ONE


def _is_along(gemm: Gemm) -> bool:
    assert gemm.right is not None
    contiguous = gemm.left is None or gemm.left.k_step == ONE
    return gemm.right.k_step == ONE and key_step(gemm) is not None and contiguous


def one_row_note(gemm: Gemm) -> str:
    """For `explain`."""
    return f"one row: B read in place, {'rows scaled and added' if _is_across(gemm) else 'dot products'}"


def one_row_function(gemm: Gemm) -> tuple[str, str]:
    """(name, MLIR text) of the shared function that the kernel calls."""
    code = (_Across if _is_across(gemm) else _Along)(gemm)
    return code.name, code.source()


def emit_one_row(frame: Frame, gemm: Gemm, epilogue: Epilogue) -> None:
    """The tasks of a frame whose blocks are one row each: (batch, panel of columns)."""
    b, c = frame.b, gemm.contraction
    count = b.scalar(panels(gemm))
    with b.when(b.op(f"arith.cmpi slt, {frame.begin}, {frame.end} : i64")):  # else there may be no panels to divide by
        first = b.op(f"arith.divui {frame.begin}, {count} : i64")
        stop = b.op(f"arith.ceildivui {frame.end}, {count} : i64")
        with b.loop(first, stop, b.index(1)) as batch, b.variable("gb", batch.index):
            before = b.op(f"arith.muli {batch.index}, {count} : i64")
            low, high = (b.op(f"arith.subi {each}, {before} : i64") for each in (frame.begin, frame.end))
            low = b.op(f"arith.muli {b.op(f'arith.maxsi {low}, {b.index(0)} : i64')}, {b.index(gemm.panel)} : i64")
            high = b.op(f"arith.minsi {b.op(f'arith.muli {high}, {b.index(gemm.panel)} : i64')}, {b.scalar(c.n)} : i64")
            k_step = row_pointers(frame, gemm, b.index(0), b.index(1))
            with b.loop(low, high, b.index(WIDTH)) as strip:
                end = b.op(f"arith.minsi {b.op(f'arith.addi {strip.index}, {b.index(WIDTH)} : i64')}, {high} : i64")
                _call(frame, gemm, k_step, (strip.index, end))
                with frame.emitter.bind("gm", b.index(0)):
                    epilogue.store_row(frame, frame.scratch, b.index(0), (strip.index, end))


def _call(frame: Frame, gemm: Gemm, k_step: str, columns: tuple[str, str]) -> None:
    b, e = frame.b, frame.emitter
    step = gemm.right.k_step if gemm.right is not None and _is_across(gemm) else key_step(gemm)
    assert gemm.right is not None and step is not None
    leaf = e.leaves[gemm.right.leaf]
    assert isinstance(leaf, Buffer)
    array = address(b, Buffer(frame.scratch, (), "i8"), b.index(gemm.tile_bytes))
    row = b.op(f"llvm.load {array} : !llvm.ptr -> !llvm.ptr")
    with e.bind("gn", columns[0]):
        place = address(b, leaf, b.scalar(gemm.right.rest))
    width = b.op(f"arith.subi {columns[1]}, {columns[0]} : i64")
    right = f"{place}, {b.scalar(step * ELEMENT_BYTES[gemm.form.right])}, {b.scalar(gemm.contraction.k)}, {width}"
    b.statement(
        f"func.call @{one_row_function(gemm)[0]}({row}, {k_step}, {right}, {frame.scratch}) : "
        "(!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, !llvm.ptr) -> ()"
    )


class _OneRow(Code):
    """What both functions share; the elements are those of `gemm.form`."""

    kind: str

    def __init__(self, gemm: Gemm) -> None:
        super().__init__(gemm.lanes)
        self.left, self.right = gemm.form.left, gemm.form.right

    @property
    def name(self) -> str:
        """The function's name."""
        return f"{MICRO_PREFIX}{self.kind}_{self.left}_{self.right}x{self.lanes}"

    def source(self) -> str:
        """The text of the function."""
        signature = "%a: !llvm.ptr, %a_step: i64, %b: !llvm.ptr, %b_step: i64, %k: i64, %count: i64, %tile: !llvm.ptr"
        self.line(f"func.func @{self.name}({signature}) {{")
        self.line(f"%zero = arith.constant dense<0.0> : {self.vector}")
        self.body()
        self.line("return\n}\n")
        return "\n".join(self.out)

    def body(self) -> None:
        """The statements."""
        raise NotImplementedError

    def multiply(self, first: str, second: str, total: str) -> str:
        """first * second + total."""
        return self.op(f"vector.fma {first}, {second}, {total} : {self.vector}")

    def store(self, value: str, column: str, plus: int = 0) -> None:
        """A vector of sums into the tile."""
        place = self.op(f"llvm.getelementptr {self.moved('%tile', column, 'f32')}[{plus}] : (!llvm.ptr) -> !llvm.ptr, f32")
        self.line(f"llvm.store {value}, {place} {{alignment = 4 : i64}} : {self.vector}, !llvm.ptr")

    def whole(self, total: str, step: int) -> str:
        """`total` rounded down to a multiple of `step`."""
        rest = self.op(f"arith.remui {total}, {self.number(step)} : i64")
        return self.op(f"arith.subi {total}, {rest} : i64")


class _Across(_OneRow):
    kind = "across"

    def body(self) -> None:
        start = self.number(0)
        for vectors in (16, 8, 4, 2):
            columns = vectors * self.lanes
            rest = self.op(f"arith.subi %count, {start} : i64")
            stop = self.op(f"arith.addi {start}, {self.whole(rest, columns)} : i64")
            with self.loop(start, stop, columns, []) as strip:
                self._strip(strip.index, vectors, None)
            start = stop
        with self.loop(start, "%count", self.lanes, []) as strip:
            left = self.op(f"arith.subi %count, {strip.index} : i64")
            self._strip(strip.index, 1, self.mask(left))

    def _strip(self, column: str, vectors: int, mask: str | None) -> None:
        """The sums of `vectors` vectors of columns. In the rest of a panel several rows of B have sums of their own, for there are few
        columns; elsewhere none have, since how many panels go together depends on who computes them, and the result must not."""
        rows = SUMS // vectors if vectors * self.lanes < PANEL else 1
        base = self.moved("%b", column, self.right)
        end = self.whole("%k", rows)
        sums = ["%zero"] * (rows * vectors)
        with self.loop(self.number(0), end, rows, sums) as step:
            for row in range(rows):
                old = step.carried[row * vectors : (row + 1) * vectors]
                step.yields += self._row(
                    base, self.op(f"arith.addi {step.index}, {self.number(row)} : i64"), old, mask, vectors * self.lanes >= PANEL
                )
        half = rows * vectors
        sums = step.results
        while half > vectors:
            half //= 2
            sums = [self.add(sums[number], sums[number + half]) for number in range(half)]
        with self.loop(end, "%k", 1, sums) as step:
            step.yields += self._row(base, step.index, step.carried, mask, False)
        for number, value in enumerate(step.results):
            self.store(value, column, number * self.lanes)

    def _row(self, base: str, k: str, sums: list[str], mask: str | None, ahead: bool) -> list[str]:
        scale = self.splat(self.moved("%a", self.op(f"arith.muli {k}, %a_step : i64"), "i8"), self.left)
        row = self.moved(base, self.op(f"arith.muli {k}, %b_step : i64"), "i8")
        if ahead:
            far = self.moved(row, self.op(f"arith.muli %b_step, {self.number(AHEAD)} : i64"), "i8")
            for line in range(0, len(sums) * self.lanes * ELEMENT_BYTES[self.right], 64):
                self.prefetch(far, line)
        return [self.multiply(scale, self.load(row, number * self.lanes, self.right, mask), old) for number, old in enumerate(sums)]


class _Along(_OneRow):
    kind = "along"

    def body(self) -> None:
        step = 2 * self.lanes
        end = self.whole("%k", step)
        last = self.op(f"arith.subi %count, {self.number(1)} : i64")
        with self.loop(self.number(0), "%count", COLUMNS, []) as group:
            columns: list[str] = []
            for number in range(COLUMNS):  # the last column again where there is none
                column = self.op(f"arith.addi {group.index}, {self.number(number)} : i64")
                column = self.op(f"arith.minsi {column}, {last} : i64")
                columns.append(self.moved("%b", self.op(f"arith.muli {column}, %b_step : i64"), "i8"))
            with self.loop(self.number(0), end, step, ["%zero"] * (2 * COLUMNS)) as inner:
                inner.yields += self._products(columns, inner.index, inner.carried, lambda number: None)
            with self.loop(end, "%k", step, inner.results) as rest:
                left = self.op(f"arith.subi %k, {rest.index} : i64")
                beyond = self.op(f"arith.subi {left}, {self.number(self.lanes)} : i64")
                beyond = self.op(f"arith.maxsi {beyond}, {self.number(0)} : i64")
                masks = (self.mask(left), self.mask(beyond))
                rest.yields += self._products(columns, rest.index, rest.carried, lambda number: masks[number])
            sums = [self.add(*rest.results[2 * number : 2 * number + 2]) for number in range(COLUMNS)]
            self._store_sums(sums, group.index)

    def _store_sums(self, sums: list[str], column: str) -> None:
        if self.lanes == LANES:
            self.store(transposed_sum(self, sums), column)
            return
        for number, value in enumerate(sums):
            total = self.op(f"vector.reduction <add>, {value} fastmath<reassoc> : {self.vector} into f32")
            place = self.op(f"llvm.getelementptr {self.moved('%tile', column, 'f32')}[{number}] : (!llvm.ptr) -> !llvm.ptr, f32")
            self.line(f"llvm.store {total}, {place} {{alignment = 4 : i64}} : f32, !llvm.ptr")

    def _products(self, columns: list[str], k: str, sums: list[str], mask: Callable[[int], str | None]) -> list[str]:
        left_row = self.moved("%a", k, self.left)
        left = [self.load(left_row, number * self.lanes, self.left, mask(number)) for number in range(2)]
        results: list[str] = []
        for column, old in zip(columns, zip(sums[::2], sums[1::2], strict=True), strict=True):
            row = self.moved(column, k, self.right)
            for number in range(2):
                right = self.load(row, number * self.lanes, self.right, mask(number))
                results.append(self.multiply(left[number], right, old[number]))
        return results
