"""Sums and maxima over the rows of each of several segments on a GPU: what a packed program pools.

A program has one segment and a block of columns, and goes down the segment's rows, several at a time. Floats are summed in f64, as on a
CPU, so that what a sequence gives depends neither on its length nor on where it lies.
"""

from __future__ import annotations

from disc.codegen.cuda.elementwise import combined
from disc.codegen.cuda.emit import Buffer, Emitter
from disc.codegen.cuda.factors import bind_lanes
from disc.codegen.cuda.kernel import DeviceVersion, emit_version
from disc.codegen.cuda.rows import body_versions
from disc.codegen.cuda.structural import combiner
from disc.codegen.cuda.text import Variable
from disc.codegen.cuda.types import FLOATS, in_register, literal
from disc.codegen.plan.fusion import Fusion
from disc.ir.graph import Node
from disc.ir.reducers import identity
from disc.shapes import Dim
from disc.speculation.guards import Guard
from disc.targets.cuda_thresholds import KERNELS

SEGMENTS = "disc.reduce_segments"
ROWS, COLUMNS, WARPS = KERNELS.segments


def segment_extents(fusion: Fusion, node: Node) -> tuple[Dim, ...]:
    """(segments, rows, elements of a row)."""
    source, starts, _ = node.operands
    return starts.dims[0], source.dims[0], fusion.space().env.product(source.dims[1:])


def segment_versions(fusion: Fusion, node: Node, symbols: tuple[str, ...]) -> tuple[DeviceVersion, ...]:
    """The versions of a fusion around one `disc.reduce_segments`."""
    return tuple(_version(fusion, node, symbols, guard, wide) for guard, wide in body_versions(fusion.space(), fusion.body))


def _version(fusion: Fusion, node: Node, symbols: tuple[str, ...], guard: Guard, wide: bool) -> DeviceVersion:
    space, (segments, rows, width) = fusion.space(), segment_extents(fusion, node)
    source, starts, ends = node.operands
    kind = "maximum" if node.attrs["maximum"] else "add"
    element = "f64" if kind == "add" and node.element in FLOATS else node.element
    start = literal(identity(kind, element).item(), element)

    def emit(e: Emitter, results: tuple[Buffer, ...]) -> None:
        w = e.w
        integer = "tl.int64" if wide else "tl.int32"
        program = w.let(f"tl.program_id(0).to({integer})", "i")
        across = w.let(f"tl.cdiv({w.number(width)}, {COLUMNS})", "i")
        w.bind("segment", Variable(w.let(f"{program} // {across}", "i"), w.root))
        bind_lanes(e, space, "flat", f"{program} % {across} * {COLUMNS} + tl.arange(0, {COLUMNS})[None, :]", 1, width, COLUMNS, w.root)
        segment, row = space.variable("segment", segments), space.variable("row", rows)
        rest = space.delinear(space.variable("flat", width), source.dims[1:])
        # Bounds are data: what lies outside of the rows is cut.
        first, past = (
            w.let(f"tl.minimum(tl.maximum({e.value(each, (segment,))}, 0), {w.number(rows)}).to({integer})", "i") for each in (starts, ends)
        )
        w.statement(f"found = tl.broadcast_to({start}, {w.shape})")
        with w.block(f"for step in range({first}, {past}, {ROWS}):") as scope:
            place = w.let(f"step + tl.arange(0, {ROWS})[:, None]", "i")
            live = w.let(f"{place} < {past}", "m")
            w.bind("row", Variable(place, scope, frozenset({0}), live))
            value = w.let(f"tl.where({live}, {e.value(source, (row, *rest))}.to({in_register(element)}), {start})")
            w.statement(f"found = {combined(kind, element, 'found', value)}")
        summed = f"tl.reduce(found, 0, {combiner(e, kind, element)}, keep_dims=True)"
        total = w.let(f"{summed}.to({in_register(node.element)})")
        e.store(results[0], space.linear((segment, *rest), node.dims), total)

    grid = (segments * ((width + (COLUMNS - 1)) // COLUMNS),)
    return emit_version(fusion.body, space, symbols, f"[{ROWS}, {COLUMNS}]", emit, grid, WARPS, guard=guard, wide=wide)
