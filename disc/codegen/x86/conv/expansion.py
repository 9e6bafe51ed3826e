"""A depthwise convolution in one kernel with the product of matrices that makes its source, as in inverted bottlenecks.

Such a product has many times more columns than its own source has channels, and is read once: written out it goes to memory and comes
back. A task is one image, a band of output rows and one panel of channels. It computes the rows of the product that the band sees, for its
channels alone, into a padded tile that stays in L2, vector of channels by vector of channels, and slides the window over the tile. Only
rows at the edges of bands are computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from disc.codegen.plan.contraction import trace_views
from disc.codegen.plan.index import ONE, IndexSpace
from disc.codegen.plan.kernel import Kernel, PackedWeight, Version
from disc.codegen.plan.summary import kernel_ops, traffic
from disc.codegen.plan.symbols import body_symbols
from disc.codegen.x86.conv.window import POINT
from disc.codegen.x86.conv.window_last import (
    LastWindow,
    distance,
    emit_blocks,
    may_slide_last,
    origin,
    read_last_window,
    seen,
    span,
    store_vector,
)
from disc.codegen.x86.function import Frame, emit_function, product_cost, rounded_up
from disc.codegen.x86.gemm.kernels import divide, emit_panel_rows, read_product
from disc.codegen.x86.gemm.plan import PANEL, Gemm, micro_kernels, panels, product_plan
from disc.codegen.x86.memory import Buffer, address
from disc.codegen.x86.plans import ExpansionPlan, WindowLastPlan, check, keep_equal
from disc.ir.graph import Body, Node
from disc.ir.op_table import PRODUCTS
from disc.shapes import Dim, Truth, dim_max, dim_min
from disc.targets.target import Target
from disc.targets.thresholds import ExpansionThresholds

MOST_BYTES = 1 << 26  # of the rows of a product for one band: they lie in scratch


@dataclass(frozen=True, eq=False)
class Expansion:
    """product: the body of the fusion that makes the source, window: that of the convolution, link: its argument for the source.

    joined: both as one, without that argument; slide, gemm, packed: how the parts are read; plan: what was decided.
    """

    product: Body
    window: Body
    link: Node
    joined: Body
    slide: LastWindow
    gemm: Gemm
    packed: PackedWeight
    plan: ExpansionPlan

    @property
    def limits(self) -> ExpansionThresholds:
        return self.gemm.target.thresholds.expansion

    @property
    def span(self) -> int:
        """Source rows that one output row sees."""
        return (self.slide.rows.window - 1) * self.slide.rows.dilation + 1

    @property
    def band(self) -> Dim:
        """Output rows of a task, at most."""
        fits = Dim.of(self.plan.tile_bytes // (PANEL * self.slide.size)) // dim_max(self.slide.columns.size, ONE)
        return dim_max((fits - self.span) // self.slide.rows.stride + 1, Dim.of(self.limits.least_rows))

    @property
    def bands(self) -> Dim:
        """As many as the tile needs; more where there are few tasks for several threads, as long as few rows are computed twice."""
        rows, others = self.slide.rows.out, dim_max(self.slide.images * panels(self.gemm), ONE)
        shared = dim_min((others + (self.limits.tasks - 1)) // others, rows // self.limits.shared_rows)
        return dim_max((rows + self.band - 1) // self.band, shared)

    @property
    def tile_rows(self) -> Dim:
        """Rows of the tile: those of the source that a task sees, at most, padding included."""
        return (dim_min(self.band, self.slide.rows.out) - 1) * self.slide.rows.stride + self.span

    @property
    def pitch(self) -> Dim:
        """Columns of the tile: those of the source, padding included."""
        axis = self.slide.columns
        return dim_max((axis.out - 1) * axis.stride + seen(axis, 1), axis.size + axis.low)

    @property
    def plane(self) -> Dim:
        """Positions of the tile, which it has for each vector of channels; behind the last row as many as blocks read beyond theirs."""
        height, width = self.slide.plan.rows, self.slide.plan.columns
        return (self.tile_rows + height * self.slide.rows.stride) * self.pitch + seen(self.slide.columns, width)

    @property
    def window_offset(self) -> Dim:
        """Where the scratch of the convolution starts."""
        return rounded_up(self.gemm.scratch(), 64)

    @property
    def tile_offset(self) -> Dim:
        """Where the rows of the product lie."""
        return self.window_offset + rounded_up(Dim.of(self.slide.scratch), 64)

    @property
    def scratch(self) -> Dim:
        return self.tile_offset + self.plane * (PANEL * self.slide.size) + 64


@dataclass(frozen=True)
class Link:
    """A depthwise convolution whose source, under views, is argument number `argument` of its fusion."""

    window: Body
    slide: LastWindow
    argument: int


def read_link(space: IndexSpace, body: Body, target: Target, plan: WindowLastPlan | None = None) -> Link | None:
    """The depthwise convolution that a fusion is about, where its source is an argument; None otherwise. plan: of its window."""
    slide = read_last_window(space, body, target, plan)
    if slide is None or slide.kernel is None or slide.rows is POINT:
        return None
    source = slide.source
    while source.op in ("disc.reshape", "stablehlo.transpose"):
        source = source.operands[0]
    return Link(body, slide, body.arguments.index(source)) if source in body.arguments else None


def read_expansion(
    space: IndexSpace, product: Body, link: Link, target: Target, weights: frozenset[Node], plan: ExpansionPlan | None = None
) -> Expansion | None:
    """Two fusions, the first of which makes the linked argument of the second and nothing else; None where they stay apart. plan: None =
    the one that they should have."""
    window, slide, source = link.window, link.slide, link.window.arguments[link.argument]
    dots = [node for node in product.nodes if node.op in PRODUCTS]
    if len(product.yields) != 1 or [node.op for node in dots] != ["stablehlo.dot_general"]:
        return None
    if any(node.op in ("stablehlo.reduce", "disc.gather") for node in (*product.nodes, *window.nodes)) or len(set(source.uses)) != 1:
        return None
    if any(node.element != "f32" for node in (*product.yields, dots[0], *dots[0].operands[:2], slide.source)):
        return None
    gemm, packed = read_product(space, product, target, weights, plan.product if plan is not None else None)
    c, result = gemm.contraction, product.yields[0]
    positions = slide.images * slide.rows.size * slide.columns.size
    if packed is None or gemm.left is None or c.batch != ONE or c.n != slide.channels or result.dims[-1] != c.n:
        return None
    if space.env.equal(c.m, positions) is not Truth.YES or not _reads_rows(space, slide, source):
        return None
    arguments = (*product.arguments, *(each for each in window.arguments if each is not source))
    joined = Body(arguments, (*product.nodes, *window.nodes), window.yields)
    plan = plan or ExpansionPlan(link.argument, product_plan(gemm), slide.plan, target.thresholds.expansion.tile_bytes)
    return Expansion(product, window, source, joined, slide, gemm, packed, plan)


def _reads_rows(space: IndexSpace, slide: LastWindow, source: Node) -> bool:
    """Does the convolution see position (image, row, column) and a channel in row (image, row, column) and that column of the product?"""
    for name, extent in (("xy", slide.rows.size), ("xx", slide.columns.size)):
        space.variable(name, extent)
    image, row, column, channel = (Dim.symbol(name) for name in ("wi", "xy", "xx", "wc"))
    traced = trace_views(space, slide.source, slide.at(image, row, column, channel), frozenset({source}))
    expected = ((image * slide.rows.size + row) * slide.columns.size + column) * slide.channels + channel
    return traced is not None and traced[0] is source and space.env.equal(traced[1], expected) is Truth.YES


def may_expand(found: Expansion, plan: ExpansionPlan) -> None:
    """Raises IllegalPlan for a plan that the two fusions cannot have. found: them as they should be."""
    may_slide_last(plan.window)
    keep_equal(plan, found.plan, "link", "product")
    check(0 < plan.tile_bytes <= MOST_BYTES, "tile_bytes", f"must be up to {MOST_BYTES}")


def emit_expansion(name: str, space: IndexSpace, plan: Expansion) -> Kernel:
    """The kernel of both fusions."""
    body, slide, c = plan.joined, plan.slide, plan.gemm.contraction
    symbols, target = body_symbols(space, body), plan.gemm.target
    source = emit_function(f"{name}_v0", body, body.yields, symbols, space, target, lambda frame: _emit(frame, plan))
    outputs = slide.images * slide.rows.out * slide.columns.out * slide.channels
    product = plan.tile_rows * slide.columns.size * (plan.packed.k * PANEL)
    cost = product_cost(target, (plan.gemm.form.left, product)) + slide.columns.out * plan.band * (slide.taps * plan.limits.tap_cycles)
    return Kernel(
        name, "compute", (Version(f"{name}_v0"),), symbols, slide.images * plan.bands * panels(plan.gemm), cost, plan.scratch,
        source, body.lines(), kernel_ops(body), flops=c.m * c.n * c.k * 2 + outputs * (2 * slide.taps),
        bytes=traffic(space, body), micro_kernels=micro_kernels(plan.gemm), packed=(plan.packed,),
    )  # fmt: skip


# --- emission -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Band:
    """What a task computes, as SSA values. tile: the memory of the tile, plane: elements of one vector of channels in it, pitch: columns;
    image, rows: the output rows = (first, count); start, end: the source rows among those that they see; above: how many of these lie
    above the source."""

    tile: str
    plane: str
    pitch: str
    image: str
    rows: tuple[str, str]
    start: str
    end: str
    above: str


def _emit(frame: Frame, plan: Expansion) -> None:
    b, slide = frame.b, plan.slide
    scratch = Buffer(frame.scratch, (), "i8")
    tile, pitch = address(b, scratch, b.scalar(plan.tile_offset)), b.scalar(plan.pitch)
    plane = b.op(f"arith.muli {b.scalar(plan.plane)}, {b.index(b.lanes)} : i64")
    count, bands = b.scalar(panels(plan.gemm)), b.op(f"arith.maxsi {b.scalar(plan.bands)}, {b.index(1)} : i64")
    height = b.op(f"arith.ceildivui {b.scalar(slide.rows.out)}, {bands} : i64")
    with b.loop(frame.begin, frame.end, b.index(1)) as task:
        outer, panel = divide(b, task.index, count)
        image, number = divide(b, outer, bands)
        top = b.op(f"arith.muli {number}, {height} : i64")
        rows = b.op(f"arith.minsi {b.op(f'arith.subi {b.scalar(slide.rows.out)}, {top} : i64')}, {height} : i64")
        with b.when(b.op(f"arith.cmpi sgt, {rows}, {b.index(0)} : i64")):
            band = _Band(tile, plane, pitch, image, (top, rows), *_seen(frame, plan, (top, rows)))
            _emit_product(frame, plan, band, panel)
            _slide(frame, plan, band, panel)


def _seen(frame: Frame, plan: Expansion, rows: tuple[str, str]) -> tuple[str, str, str]:
    """The source rows [start, end) that output rows = (first, count) see, and how many rows they see above these."""
    b, axis = frame.b, plan.slide.rows
    size = b.scalar(axis.size)
    first = origin(frame, axis, rows[0])
    end = b.op(f"arith.addi {b.op(f'arith.addi {first}, {distance(frame, axis, rows[1])} : i64')}, {b.index(plan.span)} : i64")
    start = b.op(f"arith.minsi {b.op(f'arith.maxsi {first}, {b.index(0)} : i64')}, {size} : i64")
    start = b.op(f"arith.minsi {start}, {b.op(f'arith.maxsi {end}, {b.index(0)} : i64')} : i64")
    stop = b.op(f"arith.maxsi {b.op(f'arith.minsi {end}, {size} : i64')}, {start} : i64")
    return start, stop, b.op(f"arith.subi {start}, {first} : i64")


def _emit_product(frame: Frame, plan: Expansion, band: _Band, panel: str) -> None:
    """The tile: the rows of the product that the band sees, one panel of columns, zeros where the window leaves the source."""
    b, slide = frame.b, plan.slide
    width, axis = b.scalar(slide.columns.size), slide.columns
    height = b.op(f"arith.subi {band.end}, {band.start} : i64")
    after = b.op(f"arith.addi {band.above}, {height} : i64")
    whole = span(frame, slide.rows, band.rows[1])
    right = b.op(f"arith.addi {width}, {b.index(axis.low)} : i64")
    _clear(frame, slide, band, (b.index(0), band.above), (b.index(0), band.pitch))
    _clear(frame, slide, band, (after, whole), (b.index(0), band.pitch))
    _clear(frame, slide, band, (band.above, after), (b.index(0), b.index(axis.low)))
    _clear(frame, slide, band, (band.above, after), (right, band.pitch))
    before = b.op(f"arith.muli {band.image}, {b.scalar(slide.rows.size)} : i64")
    low, high = (b.op(f"arith.muli {b.op(f'arith.addi {before}, {each} : i64')}, {width} : i64") for each in (band.start, band.end))
    column = b.op(f"arith.muli {panel}, {b.index(PANEL)} : i64")
    origin = b.op(f"arith.addi {b.op(f'arith.muli {band.above}, {band.pitch} : i64')}, {b.index(axis.low)} : i64")
    extra = b.op(f"arith.subi {band.pitch}, {width} : i64")

    def keep(value: str) -> None:
        at = b.op(f"arith.subi {b.variables['gm'].ssa}, {low} : i64")
        line = b.op(f"arith.extui {b.op(f'arith.divui {_narrow(frame, at)}, {_narrow(frame, width)} : i32')} : i32 to i64")
        place = b.op(f"arith.addi {b.op(f'arith.addi {at}, {origin} : i64')}, {b.op(f'arith.muli {line}, {extra} : i64')} : i64")
        channel = b.op(f"arith.subi {b.variables['gn'].ssa}, {column} : i64")
        _store(frame, slide, band, value, b.op(f"arith.divui {channel}, {b.index(b.lanes)} : i64"), place)

    plan.gemm.sink = keep
    product = replace(frame, roots=plan.product.yields, outputs=())
    with b.variable("gb", b.index(0)):
        emit_panel_rows(product, plan.gemm, plan.product, (low, high), panel, plan.packed)


def _narrow(frame: Frame, value: str) -> str:
    """A number of positions of a tile in 32 bits, which divide in half the time."""
    return frame.b.op(f"arith.trunci {value} : i64 to i32")


def _store(frame: Frame, slide: LastWindow, band: _Band, value: str, vector: str, place: str) -> None:
    """Writes a vector of channels to a position of the tile."""
    b = frame.b
    offset = b.op(f"arith.muli {vector}, {band.plane} : i64")
    offset = b.op(f"arith.addi {offset}, {b.op(f'arith.muli {place}, {b.index(b.lanes)} : i64')} : i64")
    store_vector(frame, slide, value, Buffer(band.tile, (), slide.element), offset)


def _clear(frame: Frame, slide: LastWindow, band: _Band, rows: tuple[str, str], columns: tuple[str, str]) -> None:
    """Zeros in rows x columns of the tile, [begin, end) each."""
    b = frame.b
    zero = b.const(0, "f32")
    with b.loop(*rows, b.index(1)) as row:
        line = b.op(f"arith.muli {row.index}, {band.pitch} : i64")
        with b.loop(*columns, b.index(1)) as column, b.loop(b.index(0), b.index(PANEL // b.lanes), b.index(1)) as vector:
            _store(frame, slide, band, zero, vector.index, b.op(f"arith.addi {line}, {column.index} : i64"))


def _slide(frame: Frame, plan: Expansion, band: _Band, panel: str) -> None:
    """The results of a band for the channels of a panel."""
    b, e, slide = frame.b, frame.emitter, plan.slide
    window = replace(frame, scratch=address(b, Buffer(frame.scratch, (), "i8"), b.scalar(plan.window_offset)))
    channels, column = b.scalar(slide.channels), b.op(f"arith.muli {panel}, {b.index(PANEL)} : i64")
    end = b.op(f"arith.minsi {b.op(f'arith.addi {column}, {b.index(PANEL)} : i64')}, {channels} : i64")
    step = b.op(f"arith.muli {band.pitch}, {b.index(b.lanes)} : i64")
    with b.loop(column, end, b.index(b.lanes)) as channel:
        mask: str | None = None
        if slide.channels.const % b.lanes:
            mask = e.tail_mask(b.op(f"arith.subi {channels}, {channel.index} : i64"))
        vector = b.op(f"arith.divui {b.op(f'arith.subi {channel.index}, {column} : i64')}, {b.index(b.lanes)} : i64")
        own = address(b, Buffer(band.tile, (), "f32"), b.op(f"arith.muli {vector}, {band.plane} : i64"))
        columns = (b.index(0), b.scalar(slide.columns.out))
        with e.bind("wi", band.image), e.bind("wc", channel.index, lane=True, mask=mask, aligned=True):
            emit_blocks(window, slide, plan.window, band.rows, columns, (own, step))
