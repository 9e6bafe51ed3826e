"""Packs rows of bf16 into a panel of pairs: values of two rows of B side by side, as `vdpbf16ps` reads them."""

from __future__ import annotations

from disc.codegen.mlir.builder import Builder
from disc.codegen.plan.index import ONE, split_linear
from disc.codegen.x86.function import Frame
from disc.codegen.x86.gemm.plan import Gemm
from disc.codegen.x86.memory import Buffer, address
from disc.ir.weights import ELEMENT_BYTES


def has_rows_of_pairs(gemm: Gemm) -> bool:
    """True when B's columns are neighbors in memory, in 16 bits, and go to the panel in pairs of rows."""
    if gemm.right is None or gemm.form.group != 2 or gemm.form.unit != 4:
        return False
    form = split_linear(gemm.right.rest, "gn")
    return form is not None and form[0] == ONE


def pack_pairs(frame: Frame, gemm: Gemm, scratch: str, columns: tuple[str, str], depth: tuple[str, str]) -> None:
    """Copies B[depth, columns] to scratch, two whole rows at a time, zeros up to the next vector and beyond an odd last row; depth:
    [begin, end) of k."""
    b, e = frame.b, frame.emitter
    assert gemm.right is not None
    leaf = e.leaves[gemm.right.leaf]
    assert isinstance(leaf, Buffer)
    k_step = b.scalar(gemm.right.k_step)
    with e.bind("gn", columns[0]):
        before = b.op(f"arith.muli {depth[0]}, {k_step} : i64")
        place = address(b, leaf, b.op(f"arith.addi {b.scalar(gemm.right.rest)}, {before} : i64"))
    width = b.op(f"arith.subi {columns[1]}, {columns[0]} : i64")
    count = b.op(f"arith.subi {depth[1]}, {depth[0]} : i64")
    pairs = b.op(f"arith.divui {count}, {b.index(2)} : i64")
    whole = b.op(f"arith.cmpi eq, {width}, {b.index(gemm.panel)} : i64")

    def row(number: str, members: int, masks: list[str] | None) -> None:
        """The row of the panel that holds `members` rows of B."""
        first = address(b, Buffer(place, (), "i16"), b.op(f"arith.muli {b.op(f'arith.muli {number}, {b.index(2)} : i64')}, {k_step} : i64"))
        rows = [first, *(address(b, Buffer(first, (), "i16"), k_step) for _ in range(members - 1))]
        target = address(b, Buffer(scratch, (), "i8"), b.op(f"arith.muli {number}, {b.index(gemm.panel_step)} : i64"))
        for vector in range(gemm.panel // b.lanes):
            value = _interleaved(b, rows, vector * b.lanes, masks[vector] if masks is not None else None)
            at = address(b, Buffer(target, (), "i32"), b.index(vector * b.lanes))
            b.statement(f"llvm.store {value}, {at} {{alignment = 4 : i64}} : vector<{2 * b.lanes}xi16>, !llvm.ptr")

    def all_rows(masks: list[str] | None) -> None:
        with b.loop(b.index(0), pairs, b.index(1)) as pair:
            row(pair.index, 2, masks)
        with b.when(b.op(f"arith.cmpi ne, {b.op(f'arith.remui {count}, {b.index(2)} : i64')}, {b.index(0)} : i64")):
            row(pairs, 1, masks)

    with b.when(whole):
        all_rows(None)
    with b.when(b.op(f"arith.xori {whole}, {b.constant('arith.constant true')} : i1")):
        masks: list[str] = []
        for vector in range(gemm.panel // b.lanes):
            left = b.op(f"arith.subi {width}, {b.index(vector * b.lanes)} : i64")
            masks.append(e.tail_mask(b.op(f"arith.maxsi {left}, {b.index(0)} : i64")))
        all_rows(masks)


def join_pairs(frame: Frame, gemm: Gemm, scratch: str, rows: str) -> None:
    """Turns a panel of rows of 16 bits, one value of k each, into one of pairs, in the same memory; an odd last row gets zeros."""
    b, size = frame.b, gemm.panel * ELEMENT_BYTES["i16"]
    vectors = range(0, gemm.panel, b.lanes)

    def join(number: str, members: int) -> None:
        target = address(b, Buffer(scratch, (), "i8"), b.op(f"arith.muli {number}, {b.index(gemm.panel_step)} : i64"))
        sources = [target, address(b, Buffer(target, (), "i8"), b.index(size))][:members]
        joined = [_interleaved(b, sources, start, None) for start in vectors]  # all are read before the first is written
        for start, value in zip(vectors, joined, strict=True):
            at = address(b, Buffer(target, (), "i32"), b.index(start))
            b.statement(f"llvm.store {value}, {at} {{alignment = 4 : i64}} : vector<{2 * b.lanes}xi16>, !llvm.ptr")

    pairs = b.op(f"arith.divui {rows}, {b.index(2)} : i64")
    with b.loop(b.index(0), pairs, b.index(1)) as pair:
        join(pair.index, 2)
    with b.when(b.op(f"arith.cmpi ne, {b.op(f'arith.remui {rows}, {b.index(2)} : i64')}, {b.index(0)} : i64")):
        join(pairs, 1)


def _interleaved(b: Builder, rows: list[str], start: int, mask: str | None) -> str:
    """A vector of elements of each of one or two rows, in turn; zeros for a second one that does not exist."""
    vector = b.vec("i16")
    found: list[str] = []
    for row in rows:
        at = address(b, Buffer(row, (), "i16"), b.index(start))
        if mask is None:
            found.append(b.op(f"llvm.load {at} {{alignment = 2 : i64}} : !llvm.ptr -> {vector}"))
        else:
            types = f"(!llvm.ptr, {b.vec('i1')}, {vector}) -> {vector}"
            found.append(b.op(f"llvm.intr.masked.load {at}, {mask}, {b.const(0, 'i16')} {{alignment = 2 : i32}} : {types}"))
    second = found[1] if len(found) > 1 else b.const(0, "i16")
    order = [lane + other for lane in range(b.lanes) for other in (0, b.lanes)]
    return b.op(f"vector.shuffle {found[0]}, {second} {order} : {vector}, {vector}")
