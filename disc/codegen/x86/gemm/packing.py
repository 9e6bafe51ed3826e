"""Packing of operands within a compute kernel: panels of B and rows of A that cannot be read in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from disc.codegen.mlir.builder import Builder, register_element
from disc.codegen.plan.contraction import GROUP, Operand
from disc.codegen.plan.kernel import PackedWeight
from disc.codegen.x86.elementwise import convert, pack_bf16_pair, pack_bytes, storage_element, to_storage
from disc.codegen.x86.emit import Emitter, Predicate
from disc.codegen.x86.function import Frame, rounded_up
from disc.codegen.x86.gemm.pairs import has_rows_of_pairs, join_pairs, pack_pairs
from disc.codegen.x86.gemm.patches import pack_patches
from disc.codegen.x86.gemm.plan import Gemm, is_transposed
from disc.codegen.x86.gemm.transpose import TransposedRows, pack_transposed
from disc.codegen.x86.memory import Buffer, address
from disc.ir.graph import Node
from disc.shapes import Dim


def right_panel(
    frame: Frame, gemm: Gemm, panel: str, column: str, column_end: str, fresh: str, packed: PackedWeight | None
) -> tuple[str, str]:
    """(pointer to the panel's first row, bytes from row to row of B)."""
    b, e = frame.b, frame.emitter
    packed_step = b.index(gemm.panel_step)
    if packed is not None:
        leaf = e.leaves[body_argument(frame, packed)]
        assert isinstance(leaf, Buffer)
        rows = gemm.form.panel_rows(packed.k)
        offset = b.op(f"arith.muli {panel}, {b.index(gemm.panel_step * rows)} : i64")
        return address(b, Buffer(leaf.pointer, (), "i8"), offset), packed_step
    scratch = address(b, Buffer(frame.scratch, (), "i8"), b.scalar(gemm.right_offset()))
    if not gemm.direct:
        with b.when(fresh):
            _pack_right(frame, gemm, scratch, column, column_end)
        return scratch, packed_step
    return _direct_panel(frame, gemm, scratch, column, column_end, fresh)


@contextmanager
def strips(b: Builder, gemm: Gemm, columns: tuple[str, str], pointer: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Loops over as many columns of a panel at a time as the accumulators hold: their range, and the panel from there on."""
    if gemm.width == gemm.panel:
        yield columns, pointer
        return
    with b.loop(*columns, b.index(gemm.width)) as strip:
        end = b.op(f"arith.minsi {b.op(f'arith.addi {strip.index}, {b.index(gemm.width)} : i64')}, {columns[1]} : i64")
        shift = b.op(f"arith.subi {strip.index}, {columns[0]} : i64")
        shift = b.op(f"arith.muli {shift}, {b.index(gemm.form.unit)} : i64")
        yield (strip.index, end), address(b, Buffer(pointer, (), "i8"), shift)


def body_argument(frame: Frame, packed: PackedWeight) -> Node:
    """The argument that a packed weight replaces."""
    return frame.arguments[packed.argument]


def _direct_panel(frame: Frame, gemm: Gemm, scratch: str, column: str, column_end: str, fresh: str) -> tuple[str, str]:
    """Panels of B are read in place, but a last one whose columns are no whole vectors, as the micro-kernel reads, is packed."""
    b, e = frame.b, frame.emitter
    assert gemm.right is not None
    leaf = e.leaves[gemm.right.leaf]
    assert isinstance(leaf, Buffer)
    with e.bind("gn", column):
        place = address(b, leaf, b.scalar(gemm.right.rest))
    step = b.op(f"arith.muli {b.scalar(gemm.right.k_step)}, {b.index(gemm.form.unit)} : i64")
    n = gemm.contraction.n
    if n.is_const and n.const % gemm.lanes == 0:
        return place, step
    rest = b.op(f"arith.remui {b.op(f'arith.subi {column_end}, {column} : i64')}, {b.index(gemm.lanes)} : i64")
    whole = b.op(f"arith.cmpi eq, {rest}, {b.index(0)} : i64")
    narrow = b.op(f"arith.xori {whole}, {b.constant('arith.constant true')} : i1")
    with b.when(b.op(f"arith.andi {narrow}, {fresh} : i1")):
        _pack_right(frame, gemm, scratch, column, column_end)
    pointer = b.op(f"arith.select {whole}, {place}, {scratch} : i1, !llvm.ptr")
    return pointer, b.op(f"arith.select {whole}, {step}, {b.index(gemm.panel_step)} : i64")


def _pack_right(frame: Frame, gemm: Gemm, scratch: str, column: str, column_end: str) -> None:
    """Copies B[:, column:column_end] to scratch as rows of `panel` columns, zeros up to the next vector."""
    b = frame.b
    if gemm.patches is not None:
        element = gemm.element if gemm.form.right == gemm.element else "i16"
        pack_patches(frame, gemm.patches, element, gemm.panel, scratch, column, column_end)
        if gemm.form.group == 2:
            join_pairs(frame, gemm, scratch, b.scalar(gemm.contraction.k))
        return
    if gemm.right is not None and is_transposed(gemm):
        source = TransposedRows(gemm.right.leaf, gemm.right.rest, gemm.contraction.k, gemm.form.unit)
        pack_transposed(frame, source, gemm.panel, scratch, column, column_end)
        return
    pack_columns(frame, gemm, scratch, (column, column_end), (b.index(0), b.scalar(gemm.contraction.k)))


def pack_columns(frame: Frame, gemm: Gemm, scratch: str, columns: tuple[str, str], depth: tuple[str, str]) -> None:
    """Copies B[depth, columns] to scratch, a vector of columns at a time, zeros up to the next vector; depth: [begin, end) of k, begin a
    multiple of the form's group."""
    if has_rows_of_pairs(gemm):
        pack_pairs(frame, gemm, scratch, columns, depth)
        return
    b, e = frame.b, frame.emitter
    vectors = gemm.panel // gemm.lanes
    with b.loop(b.index(0), b.index(vectors), b.index(1)) as strip:
        offset = b.op(f"arith.muli {strip.index}, {b.index(gemm.lanes)} : i64")
        start = b.op(f"arith.addi {columns[0]}, {offset} : i64")
        remaining = b.op(f"arith.subi {columns[1]}, {start} : i64")
        mask = e.tail_mask(b.op(f"arith.maxsi {remaining}, {b.index(0)} : i64"))
        with e.bind("gn", start, lane=True, mask=mask, aligned=True):
            _pack_strip(frame, gemm, scratch, offset, mask, depth)


def _pack_strip(frame: Frame, gemm: Gemm, scratch: str, offset: str, mask: str, depth: tuple[str, str]) -> None:
    """One vector of columns of a panel, bound to gn, over `depth`."""
    b, e = frame.b, frame.emitter
    group = gemm.form.group
    begin, end = depth

    def store(row: str, value: str, kind: str) -> None:
        place = b.op(f"arith.addi {b.op(f'arith.muli {row}, {b.index(gemm.panel)} : i64')}, {offset} : i64")
        place = b.op(f"arith.muli {place}, {b.index(gemm.form.unit)} : i64")
        pointer = address(b, Buffer(scratch, (), "i8"), place)
        b.statement(f"llvm.store {value}, {pointer} {{alignment = {gemm.form.unit} : i64}} : {b.vec(kind)}, !llvm.ptr")

    def value(at: str, name: str = "gk") -> str:
        with e.bind(name, at):
            return _operand_value(e, gemm.contraction.right, gemm.form.right, (Dim.symbol("gn"), Dim.symbol(name)), mask)

    def members(first: str) -> list[str]:
        """The positions in k of the group that starts there."""
        return [first, *(b.op(f"arith.addi {first}, {b.index(number)} : i64") for number in range(1, group))]

    count = b.op(f"arith.subi {end}, {begin} : i64")
    whole = b.op(f"arith.divui {count}, {b.index(group)} : i64")
    with b.loop(b.index(0), whole, b.index(1)) as row:
        first = b.op(f"arith.addi {begin}, {b.op(f'arith.muli {row.index}, {b.index(group)} : i64')} : i64")
        if group == 1:
            store(row.index, to_storage(b, value(first), gemm.form.right), storage_element(gemm.form.right))
        else:
            store(row.index, _join(b, gemm, [value(at, name) for at, name in zip(members(first), GROUP, strict=False)]), "i32")
    if group == 1:
        return
    zero, kind = b.const(0, register_element(gemm.form.right)), b.vec(register_element(gemm.form.right))
    done = b.op(f"arith.muli {whole}, {b.index(group)} : i64")
    with b.when(b.op(f"arith.cmpi slt, {done}, {count} : i64")):
        last = b.op(f"arith.subi {end}, {b.index(1)} : i64")
        values: list[str] = []
        for at, name in zip(members(b.op(f"arith.addi {begin}, {done} : i64"))[:-1], GROUP, strict=False):
            inside = b.op(f"arith.cmpi slt, {at}, {end} : i64")
            read = value(b.op(f"arith.minsi {at}, {last} : i64"), name)
            values.append(b.op(f"arith.select {inside}, {read}, {zero} : {kind}"))
        store(whole, _join(b, gemm, [*values, zero]), "i32")


def _join(b: Builder, gemm: Gemm, values: list[str]) -> str:
    """i32 lanes with one group of B each."""
    return pack_bf16_pair(b, values[0], values[1]) if gemm.form.right == "bf16" else pack_bytes(b, values)


def _operand_value(e: Emitter, operand: Operand, element: str, place: tuple[Dim, Dim], mask: str | None) -> str:
    """A lane vector of an operand at (row or column, k), in the register form of `element`; lanes masked or out of bounds are zero."""
    b = e.b
    index, bounds = operand.locate(Dim.symbol("gb"), *place)
    inside: Predicate | None = None
    for position, low, high in bounds:
        inside = e.within(position, low, high, inside)
    value = convert(b, e.value(operand.node, index, inside), operand.node.element, element)
    zero, vector = b.const(0, register_element(element)), b.vec(register_element(element))
    for condition in (inside.mask if inside is not None else None, mask):
        if condition is not None:
            value = b.op(f"arith.select {condition}, {value}, {zero} : {b.vec('i1')}, {vector}")
    return value


def row_pointers(frame: Frame, gemm: Gemm, start: str, count: str, depth: tuple[str, str] | None = None) -> str:
    """Fills the array of row pointers of A (packing the rows first where they cannot be read in place); returns bytes from k to k+1.

    depth: [begin, end) of the values of k that will be read, begin a multiple of the lanes; None: all.
    """
    b, e = frame.b, frame.emitter
    array = address(b, Buffer(frame.scratch, (), "i8"), b.index(gemm.tile_bytes))
    with b.loop(b.index(0), count, b.index(1)) as row:
        m = b.op(f"arith.addi {start}, {row.index} : i64")
        slot = b.op(f"llvm.getelementptr {array}[{row.index}] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr")
        with e.bind("gm", m):
            if gemm.left is not None:
                leaf = e.leaves[gemm.left.leaf]
                assert isinstance(leaf, Buffer)
                b.statement(f"llvm.store {address(b, leaf, b.scalar(gemm.left.rest))}, {slot} : !llvm.ptr, !llvm.ptr")
            else:
                base = pack_left(frame, gemm, row.index, depth)
                b.statement(f"llvm.store {base}, {slot} : !llvm.ptr, !llvm.ptr")
    if gemm.left is None:
        return b.index(gemm.left_size)
    return b.op(f"arith.muli {b.scalar(gemm.left.k_step)}, {b.index(gemm.left_size)} : i64")


def pack_blocks(frame: Frame, gemm: Gemm, rows: tuple[str, str], depth: tuple[str, str]) -> None:
    """Computes the rows [begin, end) of A over `depth`, [begin, end) of k, into scratch, in blocks of a vector of rows: they are neighbors
    in memory, so that a value of k of all of them is one load. Rows beyond the last are zeros."""
    b, e = frame.b, frame.emitter
    group, first = gemm.column_group, address(b, Buffer(frame.scratch, (), "i8"), b.index(gemm.left_offset))
    element = "i32" if group > 1 else storage_element(gemm.form.left)
    count = b.op(f"arith.subi {depth[1]}, {depth[0]} : i64")
    whole, rest = (b.op(f"arith.{division} {count}, {b.index(group)} : i64") for division in ("divui", "remui"))

    def pack(number: str, members: int) -> None:
        start = b.op(f"arith.addi {depth[0]}, {b.op(f'arith.muli {number}, {b.index(group)} : i64')} : i64")
        place = address(b, Buffer(first, (), "i8"), b.op(f"arith.muli {number}, {b.index(group * gemm.column_step)} : i64"))
        with b.loop(*rows, b.index(gemm.lanes)) as loop:
            mask = e.tail_mask(b.op(f"arith.subi {rows[1]}, {loop.index} : i64"))
            with e.bind("gm", loop.index, lane=True, mask=mask):
                values: list[str] = []
                for member, name in zip(range(members), GROUP, strict=False):
                    with e.bind(name, b.op(f"arith.addi {start}, {b.index(member)} : i64")):
                        values.append(_operand_value(e, gemm.contraction.left, gemm.form.left, (Dim.symbol("gm"), Dim.symbol(name)), mask))
            values += [b.const(0, register_element(gemm.form.left))] * (group - members)
            value = _join(b, gemm, values) if group > 1 else to_storage(b, values[0], gemm.form.left)
            done = b.op(f"arith.divui {b.op(f'arith.subi {loop.index}, {rows[0]} : i64')}, {b.index(gemm.lanes)} : i64")
            block = address(b, Buffer(place, (), "i8"), b.op(f"arith.muli {done}, {b.index(gemm.column_block)} : i64"))
            b.statement(f"llvm.store {value}, {block} {{alignment = {gemm.left_size} : i64}} : {b.vec(element)}, !llvm.ptr")

    with b.loop(b.index(0), whole, b.index(1)) as each:
        pack(each.index, group)
    if group > 1:
        with b.when(b.op(f"arith.cmpi ne, {rest}, {b.index(0)} : i64")):
            pack(whole, 1)


def block_pointers(frame: Frame, gemm: Gemm, done: str, count: str) -> str:
    """Fills the array of row pointers with those of `count` rows, of which `done` of the task come before, in the blocks of `pack_blocks`;
    returns bytes from k to k+1."""
    b = frame.b
    array = address(b, Buffer(frame.scratch, (), "i8"), b.index(gemm.tile_bytes))
    with b.loop(b.index(0), count, b.index(1)) as row:
        number = b.op(f"arith.addi {done}, {row.index} : i64")
        block, lane = (b.op(f"arith.{division} {number}, {b.index(gemm.lanes)} : i64") for division in ("divui", "remui"))
        place = b.op(f"arith.muli {block}, {b.index(gemm.column_block)} : i64")
        place = b.op(f"arith.addi {place}, {b.op(f'arith.muli {lane}, {b.index(gemm.left_size * gemm.column_group)} : i64')} : i64")
        place = b.op(f"arith.addi {place}, {b.index(gemm.left_offset)} : i64")
        slot = b.op(f"llvm.getelementptr {array}[{row.index}] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr")
        b.statement(f"llvm.store {address(b, Buffer(frame.scratch, (), 'i8'), place)}, {slot} : !llvm.ptr, !llvm.ptr")
    return b.index(gemm.column_step)


def pack_left(frame: Frame, gemm: Gemm, row: str, depth: tuple[str, str] | None = None) -> str:
    """Computes one row of A, or its part `depth` as in `row_pointers`, into scratch; returns the row's address."""
    b, e = frame.b, frame.emitter
    k = gemm.contraction.k
    place = b.op(f"arith.muli {row}, {b.scalar(rounded_up(k, 16) * gemm.left_size)} : i64")
    place = b.op(f"arith.addi {place}, {b.index(gemm.left_offset)} : i64")
    base = address(b, Buffer(frame.scratch, (), "i8"), place)
    target = Buffer(base, (k,), gemm.form.left)

    def lanes(names: list[str], carried: list[str]) -> list[str]:
        del names, carried
        e.store(
            target, Dim.symbol("gk"), _operand_value(e, gemm.contraction.left, gemm.form.left, (Dim.symbol("gm"), Dim.symbol("gk")), None)
        )
        return []

    if depth is None:
        e.lane_loop("gk", b.index(0), b.scalar(k), k, 1, [], lanes)
    else:
        e.lane_loop("gk", *depth, Dim.of(b.lanes) if k.is_const and k.const % b.lanes == 0 else Dim.symbol("gk"), 1, [], lanes)
    return base
