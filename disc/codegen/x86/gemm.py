"""Compute kernels: a dot or convolution with everything fused into its operands' packing and its epilogue.

Loops: tasks are (batch, column panel, row block), row blocks fastest, so that consecutive tasks share a packed panel; within a
task, tiles of ROWS rows call a shared micro-kernel and the epilogue reads the tile from L1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import CompilerBug
from ...ir.costs import node_cost
from ...ir.graph import Body, Node
from ...ir.weights import ELEMENT_BYTES
from ...shapes import Dim, Truth
from ..contraction import Contraction, Operand, forward_indices, read_contraction, trace_views
from ..index import ONE, ZERO, Index, IndexSpace, split_linear
from ..kernel import Kernel, PackedWeight, Version
from ..plan import check_single_dot
from .builder import register_element
from .elementwise import convert, pack_bf16_pair, storage_element, to_storage
from .emit import Emitter, Predicate
from .function import Frame, body_symbols, emit_function, kernel_lines, kernel_ops, rounded_up, traffic
from .isa import Isa
from .memory import Buffer, address
from .micro import Form, choose_form, micro_name
from .patches import Patches, pack_patches, read_patches
from .transpose import TransposedRows, pack_transposed

ROWS = 6  # 6 x 4 accumulators of 16 lanes: 24 + 4 + 1 of 32 registers (112-116 GF/s of a 112-116 GF/s limit on Zen 4)
VECTORS = {16: 4, 8: 2}  # per ISA level: AVX-512 has 32 registers, AVX2 16
PANEL = 64  # columns of a packed panel, the same for every ISA level so that packed weights serve all
ROW_BLOCK = 120  # rows of a task, a multiple of ROWS


@dataclass(frozen=True)
class _Access:
    """An operand that is a buffer under views: offset(row or column, k) is affine in k."""

    leaf: Node
    k_step: Dim
    rest: Dim


@dataclass(eq=False)
class Gemm:
    """The plan of one compute kernel: panels, sources of both operands, and where things lie in scratch."""

    contraction: Contraction
    form: Form
    lanes: int
    vectors: int
    panel: int
    left: _Access | None
    right: _Access | None
    packed: bool
    roots: tuple[Node, ...]
    patches: Patches | None = None

    @property
    def element(self) -> str:
        """The element type of the accumulators."""
        return self.form.accumulator

    @property
    def tile_bytes(self) -> int:
        return ROWS * PANEL * ELEMENT_BYTES[self.element]

    @property
    def left_size(self) -> int:
        """Bytes of one element of A, in place or packed."""
        return ELEMENT_BYTES[self.form.left]

    @property
    def panel_step(self) -> int:
        """Bytes from one row of a packed panel of B to the next."""
        return self.panel * self.form.unit

    def panel_rows(self) -> Dim:
        """Rows of a panel: values of k in groups."""
        return (self.contraction.k + (self.form.group - 1)) // self.form.group

    @property
    def left_offset(self) -> int:
        """Where packed rows of A start in scratch: after the tile and the row pointers."""
        return self.tile_bytes + 64

    def right_offset(self) -> Dim:
        """Where the packed panel of B starts in scratch."""
        rows = rounded_up(self.contraction.k, 16) * (ROWS * self.left_size) if self.left is None else ZERO
        return rows + self.left_offset

    def scratch(self) -> Dim:
        """Bytes of scratch per thread."""
        panel = ZERO if self.packed else self.panel_rows() * self.panel_step
        return self.right_offset() + panel + 64


def emit_compute(name: str, body: Body, space: IndexSpace, isa: Isa, weights: frozenset[Node]) -> Kernel:
    """The kernel of a compute fusion; `weights` are the arguments known to be weights, which are packed ahead of time."""
    node = check_single_dot(body)
    contraction = read_contraction(space, node)
    declare(space, contraction)
    gemm, packed = plan_gemm(space, body, contraction, isa, weights)
    symbols = body_symbols(space, body)
    source = emit_function(f"{name}_v0", body, body.yields, symbols, space, isa.lanes, lambda frame: _emit(frame, gemm, body, packed))
    tasks = contraction.batch * _panels(gemm) * _row_blocks(gemm)
    macs = contraction.batch * contraction.m * contraction.n * contraction.k
    work = sum(node_cost(root) for root in body.yields)
    return Kernel(
        name, "compute", (Version(f"{name}_v0", ""),), symbols, tasks,
        contraction.k * (ROW_BLOCK * gemm.panel // 32) + 64, gemm.scratch(), source,
        kernel_lines(body), kernel_ops(body), _notes(gemm, packed, work), flops=macs * 2, bytes=traffic(space, body),
        micro_kernels=micro_kernels(gemm), packed=(packed,) if packed else (),
    )  # fmt: skip


# --- planning -----------------------------------------------------------------------------------------------------------


def declare(space: IndexSpace, contraction: Contraction) -> None:
    """Sets the extents of the loop variables gm, gn, gk and gb to those of `contraction`; gj is the second k of a pair."""
    c = contraction
    for name, extent in (("gm", c.m), ("gn", c.n), ("gk", c.k), ("gj", c.k), ("gb", c.batch)):
        space.variable(name, extent)


def plan_gemm(
    space: IndexSpace, body: Body, contraction: Contraction, isa: Isa, weights: frozenset[Node], leaves: frozenset[Node] = frozenset()
) -> tuple[Gemm, PackedWeight | None]:
    """How the operands are read. `leaves`: values of the fusion that will lie in memory like inputs."""
    accumulator = register_element(contraction.node.element)
    form = choose_form(contraction.left.node.element, contraction.right.node.element, accumulator, isa.features)
    columns = contraction.n.const if contraction.n.is_const else PANEL
    panel = PANEL if columns >= PANEL else max((columns + 15) // 16 * 16, 16)
    left = _access(space, contraction.left, "gm", form.left, leaves)
    if left is not None and form.left == "bf16" and left.k_step != ONE:
        left = None  # pairs are read as one number, so they must be neighbours
    right = _access(space, contraction.right, "gn", form.right, leaves)
    packed = _packed_weight(body, contraction, right, panel, form.group, weights)
    patches = read_patches(space, contraction) if form.group == 1 and form.right == form.accumulator else None
    gemm = Gemm(contraction, form, isa.lanes, VECTORS[isa.lanes], panel, left, right, packed is not None, body.yields, patches)
    return gemm, packed


def _access(space: IndexSpace, operand: Operand, free: str, element: str, leaves: frozenset[Node]) -> _Access | None:
    """How to read the operand in place: possible when it is a buffer of `element` under views, affine in k, without bounds."""
    index, bounds = operand.locate(Dim.symbol("gb"), Dim.symbol(free), Dim.symbol("gk"))
    if bounds or operand.node.element != element:
        return None
    traced = trace_views(space, operand.node, index, leaves)
    if traced is None:
        return None
    form = split_linear(traced[1], "gk")
    if form is None:
        return None
    return _Access(traced[0], *form)


def _packed_weight(
    body: Body, contraction: Contraction, access: _Access | None, panel: int, group: int, weights: frozenset[Node]
) -> PackedWeight | None:
    if access is None or access.leaf not in weights or len(set(access.leaf.uses)) != 1:
        return None
    form = split_linear(access.rest, "gn")
    if form is None or not (
        form[0].is_const and form[1].is_const and access.k_step.is_const and contraction.n.is_const and contraction.k.is_const
    ):
        return None
    return PackedWeight(
        body.arguments.index(access.leaf),
        contraction.k.const,
        contraction.n.const,
        access.k_step.const,
        form[0].const,
        form[1].const,
        panel,
        group,
    )


def _panels(gemm: Gemm) -> Dim:
    return (gemm.contraction.n + (gemm.panel - 1)) // gemm.panel


def _row_blocks(gemm: Gemm) -> Dim:
    return (gemm.contraction.m + (ROW_BLOCK - 1)) // ROW_BLOCK


def micro_kernels(gemm: Gemm) -> tuple[tuple[str, int, int], ...]:
    return tuple((gemm.form.name, rows, vectors) for rows in _row_counts(gemm) for vectors in _vector_counts(gemm))


def _row_counts(gemm: Gemm) -> tuple[int, ...]:
    m = gemm.contraction.m
    if not m.is_const:
        return tuple(range(1, ROWS + 1))
    counts = {min(ROWS, m.const - start) for start in range(0, max(m.const, 1), ROWS)}
    return tuple(sorted(count for count in counts if count > 0)) or (1,)


def _vector_counts(gemm: Gemm) -> tuple[int, ...]:
    most = min(gemm.vectors, gemm.panel // gemm.lanes)
    n = gemm.contraction.n
    if n.is_const and n.const % (most * gemm.lanes) == 0:
        return (most,)
    return tuple(range(1, most + 1))


def _notes(gemm: Gemm, packed: PackedWeight | None, work: int) -> tuple[str, ...]:
    right = "packed ahead of time" if packed else "read in place" if _direct(gemm) else "packed per panel"
    if gemm.contraction.node.op == "stablehlo.convolution":
        right = f"{right}, {gemm.patches.describe() if gemm.patches is not None else 'patches packed by gathers'}"
    left = "read in place" if gemm.left is not None else "packed per tile"
    return (
        f"schedule: {ROWS} rows x {gemm.vectors} vectors of {gemm.lanes}, panels of {gemm.panel} columns, row blocks of {ROW_BLOCK}",
        f"micro-kernel: {gemm.form.name}",
        f"A {left}; B {right}; epilogue cost {work}",
    )


def _direct(gemm: Gemm) -> bool:
    if gemm.packed or gemm.right is None or gemm.patches is not None or gemm.form.group != 1:
        return False
    form = split_linear(gemm.right.rest, "gn")
    return form is not None and form[0] == ONE


# --- emission -----------------------------------------------------------------------------------------------------------


def _emit(frame: Frame, gemm: Gemm, body: Body, packed: PackedWeight | None) -> None:
    b, e = frame.b, frame.emitter
    c = gemm.contraction
    with b.loop(frame.begin, frame.end, b.index(1)) as task:
        position = e.space.variable("gtask", c.batch * _panels(gemm) * _row_blocks(gemm))
        with e.bind("gtask", task.index):
            blocks = _row_blocks(gemm)
            outer = e.space.divide(position, blocks)
            panel = outer - e.space.divide(outer, _panels(gemm)) * _panels(gemm)
            ssa = [b.scalar(each) for each in (position - outer * blocks, panel, e.space.divide(outer, _panels(gemm)))]
            first = b.op(f"arith.cmpi eq, {task.index}, {frame.begin} : i64")
            start = b.op(f"arith.cmpi eq, {ssa[0]}, {b.index(0)} : i64")
            fresh = b.op(f"arith.ori {first}, {start} : i1")
            with e.bind("gb", ssa[2]):
                _emit_panel(frame, gemm, body, ssa[0], ssa[1], fresh, packed)


def _emit_panel(frame: Frame, gemm: Gemm, body: Body, block: str, panel: str, fresh: str, packed: PackedWeight | None) -> None:
    b, c = frame.b, gemm.contraction
    low = b.op(f"arith.muli {block}, {b.index(ROW_BLOCK)} : i64")
    high = b.op(f"arith.minsi {b.op(f'arith.addi {low}, {b.index(ROW_BLOCK)} : i64')}, {b.scalar(c.m)} : i64")
    _emit_strips(frame, gemm, body, (low, high), panel, fresh, packed)


def emit_columns(frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], fresh: str) -> None:
    """All columns of the given rows, for a batch bound to gb; `fresh`: whether the panels of B must be packed."""
    b = frame.b
    with b.loop(b.index(0), b.scalar(_panels(gemm)), b.index(1)) as panel:
        _emit_strips(frame, gemm, body, rows, panel.index, fresh, None)


def _emit_strips(frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], panel: str, fresh: str, packed: PackedWeight | None) -> None:
    """One panel: as many columns at a time as the accumulators hold."""
    b, c = frame.b, gemm.contraction
    column = b.op(f"arith.muli {panel}, {b.index(gemm.panel)} : i64")
    column_end = b.op(f"arith.minsi {b.op(f'arith.addi {column}, {b.index(gemm.panel)} : i64')}, {b.scalar(c.n)} : i64")
    pointer, step = _right_panel(frame, gemm, panel, column, column_end, fresh, packed)
    width = gemm.lanes * min(gemm.vectors, gemm.panel // gemm.lanes)
    if width == gemm.panel:
        _emit_rows(frame, gemm, body, rows, (column, column_end), pointer, step)
        return
    with b.loop(column, column_end, b.index(width)) as strip:
        end = b.op(f"arith.minsi {b.op(f'arith.addi {strip.index}, {b.index(width)} : i64')}, {column_end} : i64")
        shift = b.op(f"arith.subi {strip.index}, {column} : i64")
        shift = b.op(f"arith.muli {shift}, {b.index(gemm.form.unit)} : i64")
        moved = address(b, Buffer(pointer, (), "i8"), shift)
        _emit_rows(frame, gemm, body, rows, (strip.index, end), moved, step)


def _right_panel(
    frame: Frame, gemm: Gemm, panel: str, column: str, column_end: str, fresh: str, packed: PackedWeight | None
) -> tuple[str, str]:
    """(pointer to the panel's first row, bytes from row to row of B)."""
    b, e = frame.b, frame.emitter
    packed_step = b.index(gemm.panel_step)
    if packed is not None:
        leaf = e.leaves[body_argument(frame, packed)]
        assert isinstance(leaf, Buffer)
        rows = -(-packed.k // packed.group)
        offset = b.op(f"arith.muli {panel}, {b.index(gemm.panel_step * rows)} : i64")
        return address(b, Buffer(leaf.pointer, (), "i8"), offset), packed_step
    scratch = address(b, Buffer(frame.scratch, (), "i8"), b.scalar(gemm.right_offset()))
    if not _direct(gemm):
        with b.when(fresh):
            _pack_right(frame, gemm, scratch, column, column_end)
        return scratch, packed_step
    return _direct_panel(frame, gemm, scratch, column, column_end, fresh)


def body_argument(frame: Frame, packed: PackedWeight) -> Node:
    """The argument that a packed weight replaces."""
    return frame.arguments[packed.argument]


def _direct_panel(frame: Frame, gemm: Gemm, scratch: str, column: str, column_end: str, fresh: str) -> tuple[str, str]:
    """Whole panels of B are read in place; the last, narrower one is packed, since the micro-kernel reads whole vectors."""
    b, e = frame.b, frame.emitter
    assert gemm.right is not None
    leaf = e.leaves[gemm.right.leaf]
    assert isinstance(leaf, Buffer)
    with e.bind("gn", column):
        place = address(b, leaf, b.scalar(gemm.right.rest))
    step = b.op(f"arith.muli {b.scalar(gemm.right.k_step)}, {b.index(gemm.form.unit)} : i64")
    n = gemm.contraction.n
    if n.is_const and n.const % gemm.panel == 0:
        return place, step
    whole = b.op(f"arith.cmpi eq, {b.op(f'arith.subi {column_end}, {column} : i64')}, {b.index(gemm.panel)} : i64")
    narrow = b.op(f"arith.xori {whole}, {b.constant('arith.constant true')} : i1")
    with b.when(b.op(f"arith.andi {narrow}, {fresh} : i1")):
        _pack_right(frame, gemm, scratch, column, column_end)
    pointer = b.op(f"arith.select {whole}, {place}, {scratch} : i1, !llvm.ptr")
    return pointer, b.op(f"arith.select {whole}, {step}, {b.index(gemm.panel_step)} : i64")


def _pack_right(frame: Frame, gemm: Gemm, scratch: str, column: str, column_end: str) -> None:
    """Copies B[:, column:column_end] to scratch as rows of `panel` columns, zeros up to the next vector."""
    b, e = frame.b, frame.emitter
    if gemm.patches is not None:
        pack_patches(frame, gemm.patches, gemm.element, gemm.panel, scratch, column, column_end)
        return
    if gemm.right is not None and _transposed(gemm):
        source = TransposedRows(gemm.right.leaf, gemm.right.rest, gemm.panel_rows(), gemm.form.group)
        pack_transposed(frame, source, gemm.panel, scratch, column, column_end)
        return
    vectors = gemm.panel // gemm.lanes
    with b.loop(b.index(0), b.index(vectors), b.index(1)) as strip:
        offset = b.op(f"arith.muli {strip.index}, {b.index(gemm.lanes)} : i64")
        start = b.op(f"arith.addi {column}, {offset} : i64")
        remaining = b.op(f"arith.subi {column_end}, {start} : i64")
        mask = e.tail_mask(b.op(f"arith.maxsi {remaining}, {b.index(0)} : i64"))
        with e.bind("gn", start, lane=True, mask=mask, aligned=True):
            _pack_strip(frame, gemm, scratch, offset, mask)


def _pack_strip(frame: Frame, gemm: Gemm, scratch: str, offset: str, mask: str) -> None:
    """One vector of columns of a panel, bound to gn, over all of k."""
    b, e = frame.b, frame.emitter
    group, k = gemm.form.group, gemm.contraction.k

    def store(row: str, value: str, kind: str) -> None:
        place = b.op(f"arith.addi {b.op(f'arith.muli {row}, {b.index(gemm.panel)} : i64')}, {offset} : i64")
        place = b.op(f"arith.muli {place}, {b.index(gemm.form.unit)} : i64")
        pointer = address(b, Buffer(scratch, (), "i8"), place)
        b.statement(f"llvm.store {value}, {pointer} {{alignment = {gemm.form.unit} : i64}} : {b.vec(kind)}, !llvm.ptr")

    def value(at: str, name: str = "gk") -> str:
        with e.bind(name, at):
            return _operand_value(e, gemm, gemm.contraction.right, (Dim.symbol("gn"), Dim.symbol(name)), mask)

    whole = k // group
    with b.loop(b.index(0), b.scalar(whole), b.index(1)) as row:
        if group == 1:
            store(row.index, to_storage(b, value(row.index), gemm.form.right), storage_element(gemm.form.right))
        else:
            first = b.op(f"arith.muli {row.index}, {b.index(2)} : i64")
            second = b.op(f"arith.addi {first}, {b.index(1)} : i64")
            store(row.index, pack_bf16_pair(b, value(first), value(second, "gj")), "i32")
    if group == 1 or (k.is_const and k.const % group == 0):
        return
    last = b.scalar(k - 1)
    with b.when(b.op(f"arith.cmpi slt, {b.scalar(whole * group)}, {b.scalar(k)} : i64")):
        store(b.scalar(whole), pack_bf16_pair(b, value(last), b.const(0, "f32")), "i32")


def _transposed(gemm: Gemm) -> bool:
    """True when B's k runs along memory in units of 32 bits, which are transposed in registers."""
    assert gemm.right is not None
    k = gemm.contraction.k
    whole = k.is_const and k.const % gemm.form.group == 0
    return gemm.right.k_step == ONE and gemm.lanes == 16 and gemm.form.unit == 4 and (gemm.form.group == 1 or whole)


def _operand_value(e: Emitter, gemm: Gemm, operand: Operand, place: tuple[Dim, Dim], mask: str | None) -> str:
    """A lane vector of an operand at (row or column, k), in the accumulator's type; lanes masked or out of bounds are zero."""
    b = e.b
    index, bounds = operand.locate(Dim.symbol("gb"), *place)
    inside: Predicate | None = None
    for position, low, high in bounds:
        inside = e.within(position, low, high, inside)
    value = convert(b, e.value(operand.node, index, inside), operand.node.element, gemm.contraction.node.element)
    zero, vector = b.const(0, gemm.element), b.vec(gemm.element)
    for condition in (inside.mask if inside is not None else None, mask):
        if condition is not None:
            value = b.op(f"arith.select {condition}, {value}, {zero} : {b.vec('i1')}, {vector}")
    return value


def _emit_rows(frame: Frame, gemm: Gemm, body: Body, rows: tuple[str, str], columns: tuple[str, str], pointer: str, step: str) -> None:
    b, e = frame.b, frame.emitter
    with b.loop(rows[0], rows[1], b.index(ROWS)) as tile:
        left = b.op(f"arith.subi {rows[1]}, {tile.index} : i64")
        count = b.op(f"arith.minsi {left}, {b.index(ROWS)} : i64")
        k_step = _row_pointers(frame, gemm, tile.index, count)
        width = b.op(f"arith.subi {columns[1]}, {columns[0]} : i64")
        _call_micro(frame, gemm, count, width, k_step, pointer, step)
        with b.loop(b.index(0), count, b.index(1)) as row:
            m = b.op(f"arith.addi {tile.index}, {row.index} : i64")
            with e.bind("gm", m):
                _epilogue(frame, gemm, body, row.index, columns)


def _row_pointers(frame: Frame, gemm: Gemm, start: str, count: str) -> str:
    """Fills the array of row pointers of A (packing the rows first where they cannot be read in place); returns bytes from k to k+1."""
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
                base = _pack_left(frame, gemm, row.index)
                b.statement(f"llvm.store {base}, {slot} : !llvm.ptr, !llvm.ptr")
    if gemm.left is None:
        return b.index(gemm.left_size)
    return b.op(f"arith.muli {b.scalar(gemm.left.k_step)}, {b.index(gemm.left_size)} : i64")


def _pack_left(frame: Frame, gemm: Gemm, row: str) -> str:
    """Computes one row of A into scratch; returns its address."""
    b, e = frame.b, frame.emitter
    k = gemm.contraction.k
    place = b.op(f"arith.muli {row}, {b.scalar(rounded_up(k, 16) * gemm.left_size)} : i64")
    place = b.op(f"arith.addi {place}, {b.index(gemm.left_offset)} : i64")
    base = address(b, Buffer(frame.scratch, (), "i8"), place)
    target = Buffer(base, (k,), gemm.form.left)

    def lanes(names: list[str], carried: list[str]) -> list[str]:
        del names, carried
        e.store(target, Dim.symbol("gk"), _operand_value(e, gemm, gemm.contraction.left, (Dim.symbol("gm"), Dim.symbol("gk")), None))
        return []

    e.lane_loop("gk", b.index(0), b.scalar(k), k, 1, [], lanes)
    return base


def _call_micro(frame: Frame, gemm: Gemm, count: str, width: str, k_step: str, pointer: str, step: str) -> None:
    """Calls the micro-kernel of this tile's number of rows and vectors."""
    b = frame.b
    array = address(b, Buffer(frame.scratch, (), "i8"), b.index(gemm.tile_bytes))
    row_counts, vector_counts = _row_counts(gemm), _vector_counts(gemm)
    k = b.scalar(gemm.contraction.k)
    operands = f"{array}, {k_step}, {pointer}, {step}, {k}, {frame.scratch}, {b.index(PANEL)}"
    types = "(!llvm.ptr, i64, !llvm.ptr, i64, i64, !llvm.ptr, i64) -> ()"
    vectors = b.op(f"arith.divui {b.op(f'arith.addi {width}, {b.index(gemm.lanes - 1)} : i64')}, {b.index(gemm.lanes)} : i64")
    for vector_count in vector_counts:
        for rows in row_counts:
            call = f"func.call @{micro_name(gemm.form.name, rows, vector_count, gemm.lanes)}({operands}) : {types}"
            checks = []
            if len(row_counts) > 1:
                checks.append(b.op(f"arith.cmpi eq, {count}, {b.index(rows)} : i64"))
            if len(vector_counts) > 1:
                checks.append(b.op(f"arith.cmpi eq, {vectors}, {b.index(vector_count)} : i64"))
            if not checks:
                b.statement(call)
                continue
            with b.when(checks[0] if len(checks) == 1 else b.op(f"arith.andi {checks[0]}, {checks[1]} : i1")):
                b.statement(call)


def _epilogue(frame: Frame, gemm: Gemm, body: Body, row: str, columns: tuple[str, str]) -> None:
    """Stores one row of every root, the dot's values taken from the tile."""
    e = frame.emitter
    c = gemm.contraction
    name_row, name_start = e.name("row"), e.name("start")
    e.space.variable(name_row, Dim.of(ROWS))
    e.space.variable(name_start, c.n)
    with e.bind(name_row, row), e.bind(name_start, columns[0]):
        tile = Buffer(frame.scratch, (), gemm.element)
        offset = Dim.symbol(name_row) * PANEL
        if c.n == ONE:  # the index of a value names no column then, so it would be taken for one that all rows share
            e.floor = frame.b.scope
        else:
            offset += Dim.symbol("gn") - Dim.symbol(name_start)

        def dot_value(index: Index, predicate: Predicate | None) -> str:
            del index
            return e.load(tile, offset, predicate)

        at = c.result(Dim.symbol("gb"), Dim.symbol("gm"), Dim.symbol("gn"))
        indices = forward_indices(e.space, body, c.node, at)
        e.leaves[c.node] = dot_value
        _store_columns(frame, gemm, indices, columns)
        del e.leaves[c.node]
        e.floor = None


def _store_columns(frame: Frame, gemm: Gemm, indices: dict[Node, Index], columns: Sequence[str]) -> None:
    e = frame.emitter
    n = gemm.contraction.n
    width = gemm.lanes * min(gemm.vectors, gemm.panel // gemm.lanes)
    whole = e.space.env.divides(width, n) is Truth.YES

    def store(names: list[str], carried: list[str]) -> list[str]:
        del names, carried
        for root, output in zip(frame.roots, frame.outputs, strict=True):
            if root not in indices:
                raise CompilerBug(f"{root.op} (line {root.line}) is not reached from the dot of its fusion")
            e.store(output, e.space.linear(indices[root], root.dims), e.value(root, indices[root]))
        return []

    e.lane_loop("gn", columns[0], columns[1], Dim.of(width) if whole else Dim.symbol("gn"), 1, [], store)
