"""The plan of a channels-last convolution: which elements lie side by side for a tap, panels, chunks of taps, places in scratch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from disc.codegen.plan.contraction import WindowAxis, declare, read_contraction
from disc.codegen.plan.index import ONE, Index, IndexSpace
from disc.codegen.plan.kernel import PackedWeight
from disc.codegen.x86.conv.taps import ENTRY, TABLE_ROWS, Taps
from disc.codegen.x86.gemm.forms import Form, choose_form
from disc.codegen.x86.gemm.patches import Patches, read_patches
from disc.codegen.x86.gemm.plan import PANEL
from disc.codegen.x86.plans import IndirectPlan, check, keep_equal
from disc.ir.graph import Body, Node
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim
from disc.speculation.policy import panel_columns
from disc.targets.target import Target
from disc.targets.thresholds import IndirectThresholds

MOST_ROWS = 960  # of a task: their sums lie in scratch
ELEMENTS = (("f32", "f32", "f32"), ("f64", "f64", "f64"), ("f32", "bf16", "bf16"))  # of the result, the source and the kernel

_UNDECIDED = IndirectPlan("", 0, 0, 0, 0, "")


@dataclass(frozen=True)
class TapAxis:
    """An axis of the window, and elements from one source position to the next. guarded: the window can leave the source along it;
    merged: its taps are part of a run."""

    window: WindowAxis
    step: Dim
    guarded: bool
    merged: bool = False


@dataclass(frozen=True)
class Runs:
    """The axes of a window; inner: how many elements of the source lie side by side for one tap."""

    axes: tuple[TapAxis, ...]
    inner: int


@dataclass(frozen=True, eq=False)
class Indirect:
    """A convolution whose source has its channels innermost.

    form: of the products, bf16 in pairs that a run holds whole; base: where (image gb, position 0) starts, in elements, that of group gg
    where there are several; columns: output channels of all groups; positions: outputs of one image; lanes: of a vector of columns;
    plan: what was decided; group: output channels of one, 0 for a dense convolution; offset: bytes before the panels in the packed weight.
    """

    target: Target
    node: Node
    form: Form
    leaf: Node
    base: Dim
    runs: Runs
    columns: int
    images: Dim
    positions: Dim
    result: Callable[[Dim, Dim, Dim], Index]
    packed: PackedWeight
    lanes: int
    plan: IndirectPlan
    group: int = 0
    offset: int = 0

    @property
    def limits(self) -> IndirectThresholds:
        return self.target.thresholds.indirect

    @property
    def vectors(self) -> int:
        """Vectors of columns that a tile has at most."""
        return self.target.thresholds.gemm.vectors

    @property
    def inner(self) -> int:
        return self.runs.inner

    @property
    def loops(self) -> list[TapAxis]:
        """The axes with a loop over taps."""
        return [axis for axis in self.runs.axes if not axis.merged]

    @property
    def taps(self) -> int:
        count = 1
        for axis in self.loops:
            count *= axis.window.window
        return count

    @property
    def element(self) -> str:
        """The element of the sums."""
        return self.form.accumulator

    @property
    def source_element(self) -> str:
        """The element of the source in memory, and of the weights."""
        return self.form.right

    @property
    def source_size(self) -> int:
        return ELEMENT_BYTES[self.source_element]

    @property
    def steps(self) -> int:
        """Rows of a panel that a run meets: one for each group of its elements."""
        return self.inner // self.form.group

    @property
    def rows(self) -> Dim:
        return self.images * self.positions

    @property
    def panel_step(self) -> int:
        """Bytes of a row of a panel."""
        return self.packed.columns * self.form.unit

    @property
    def tap_bytes(self) -> int:
        """Bytes of the rows of a panel that one tap meets."""
        return self.steps * self.panel_step

    @property
    def width(self) -> int:
        """Columns of a tile: of whole groups, or a part of one that goes into it without rest."""
        if not self.group:
            return min(self.vectors * self.lanes, self.packed.columns)
        widths = range(self.vectors * self.lanes, 0, -self.lanes)
        return next(each for each in widths if not self.packed.columns % each and (not each % self.group or not self.group % each))

    @property
    def chunk(self) -> int:
        """Taps of a chunk."""
        return self.plan.taps

    @property
    def chunks(self) -> int:
        return -(-self.taps // self.chunk)

    @property
    def row_block(self) -> int:
        """Rows of a task at most."""
        return self.plan.rows

    @property
    def tile_rows(self) -> int:
        """Rows whose sums are kept: a tile, or the whole row block where chunks are added up."""
        return self.row_block if self.chunks > 1 else TABLE_ROWS

    @property
    def guards(self) -> list[TapAxis]:
        """The axes along which a tap can lie outside."""
        return [axis for axis in self.loops if axis.guarded]

    @property
    def table_offset(self) -> int:
        return self.tile_rows * PANEL * ELEMENT_BYTES[self.element]

    @property
    def starts_offset(self) -> int:
        """Where the windows of a tile's rows start: offsets in the source, then positions along each guarded axis."""
        return self.table_offset + self.chunk * ENTRY * 8

    @property
    def zeros_offset(self) -> int:
        return self.starts_offset + (1 + len(self.guards)) * ENTRY * 8

    @property
    def scratch(self) -> int:
        """Bytes: sums, table, starts, zeros."""
        return self.zeros_offset + self.zeros * self.source_size + 64

    @property
    def zeros(self) -> int:
        """Elements that replace a run outside the source: of every group that a tile reads."""
        return self.inner * max(self.width // self.group, 1) if self.group else self.inner

    @property
    def panels(self) -> int:
        """Panels of the weights."""
        return -(-self.columns // self.packed.columns)

    @property
    def tasks(self) -> Dim:
        return self.row_blocks * self.panels

    @property
    def row_blocks(self) -> Dim:
        """Blocks of rows: with the panels, the tasks."""
        return (self.rows + (self.row_block - 1)) // self.row_block

    @property
    def panels_first(self) -> bool:
        """Do the panels of one row block follow each other? Then the source and the result are traversed once."""
        return self.plan.order == "panels"

    def micro(self, rows: int, vectors: int) -> Taps:
        """The micro-kernel of a tile."""
        run = self.steps if self.steps <= self.limits.unrolled else 0
        moves = tuple(vector * self.lanes // self.group * self.steps for vector in range(vectors)) if self.group else ()
        return Taps(self.form, rows, vectors, self.lanes, self.packed.columns, run, moves if any(moves) else ())

    def functions(self) -> tuple[tuple[str, str], ...]:
        """The micro-kernels, as (name, MLIR text)."""
        kernels = [self.micro(rows, vectors) for rows in range(1, TABLE_ROWS + 1) for vectors in self.vector_counts()]
        return tuple((each.name, each.source()) for each in kernels)

    def vector_counts(self) -> tuple[int, ...]:
        """The widths of tiles, in vectors."""
        widths = {min(self.width, self.columns - start) for start in range(0, self.columns, self.width)}
        return tuple(sorted({-(-width // self.lanes) for width in widths}))


def read_indirect(
    space: IndexSpace, body: Body, target: Target, weights: frozenset[Node], plan: IndirectPlan | None = None
) -> Indirect | None:
    """The convolution of a compute fusion, where it is channels last throughout with a constant kernel; None otherwise. plan: None = the
    one that it should have."""
    found = _read(space, body, target, weights)
    return None if found is None else replace(found, plan=plan or _plan(found))


def _plan(found: Indirect) -> IndirectPlan:
    """A panel that stays in L2 is multiplied as a whole, a larger one chunk by chunk, of about equal numbers of taps. Where all panels stay
    there the source and the result are gone through once, panel by panel for the same rows."""
    limits, size = found.limits, found.tap_bytes * found.taps
    most = found.taps if size <= limits.panel_bytes else max(limits.chunk_bytes // found.tap_bytes, 1)
    taps = -(-found.taps // -(-found.taps // most))
    order = "panels" if size * found.panels <= limits.panel_bytes else "rows"
    rows = limits.chunked_block if taps < found.taps else limits.block
    return IndirectPlan(found.form.name, found.packed.columns, found.lanes, taps, rows, order)


def may_be_indirect(found: Indirect, plan: IndirectPlan) -> None:
    """Raises IllegalPlan for a plan that the convolution cannot have."""
    keep_equal(plan, _plan(found), "form", "panel", "lanes")
    check(1 <= plan.taps <= found.taps, "taps", f"must be from 1 to {found.taps}")
    check(0 < plan.rows <= MOST_ROWS and plan.rows % TABLE_ROWS == 0, "rows", f"must be a multiple of {TABLE_ROWS} up to {MOST_ROWS}")
    check(plan.order in ("panels", "rows"), "order", "must be panels or rows")


def _read(space: IndexSpace, body: Body, target: Target, weights: frozenset[Node]) -> Indirect | None:
    node = next((each for each in body.nodes if each.op == "stablehlo.convolution"), None)
    if node is None or (node.element, *(each.element for each in node.operands)) not in ELEMENTS:
        return None
    source, kernel = node.operands
    form = choose_form(source.element, kernel.element, node.element, target.feature_names)
    groups = node.integer("feature_group_count", 1)
    if kernel not in weights or len(set(kernel.uses)) != 1 or not _has_order(node):
        return None
    contraction = read_contraction(space, node)
    outputs, k, images = contraction.m, contraction.k, contraction.batch  # outputs: channels of a group
    if not outputs.is_const or not k.is_const or not outputs.const or not k.const:
        return None
    lanes = target.lanes if groups == 1 else group_lanes(outputs.const, target)
    if lanes is None:
        return None
    if groups == 1:
        declare(space, contraction)
        patches, panel = read_patches(space, contraction), panel_columns(outputs.const)
    else:  # the same rows and panels, but every vector of columns meets the channels of its own group alone
        images, place = node.dims[0], space.variable("gg", Dim.of(groups))
        patches = read_patches(space, contraction, space.variable("gb", images) * groups + place)
        panel = PANEL // outputs.const * outputs.const or math.gcd(outputs.const, PANEL)
    if patches is None or not patches.channels.is_const or (groups != 1 and patches.channel_step != ONE):
        return None
    runs = _runs(node, patches)
    if runs is None or runs.inner % form.group:
        return None
    columns = outputs.const * groups
    packed = PackedWeight(body.arguments.index(kernel), k.const, columns, columns, 1, 0, panel, form.group)
    return Indirect(
        target, node, form, patches.leaf, patches.base, runs, columns, images, contraction.n,
        lambda image, column, position: contraction.result(image * groups, column, position), packed, lanes, _UNDECIDED,
        outputs.const if groups != 1 else 0,
    )  # fmt: skip


def group_lanes(outputs: int, target: Target) -> int | None:
    """How many lanes a vector of one group's `outputs` columns has; None where they are no whole vectors."""
    return next((each for each in (target.lanes, target.thresholds.indirect.group_lanes) if outputs and outputs % each == 0), None)


def _has_order(node: Node) -> bool:
    """Channels last in the result, taps and channels outermost in the kernel, in the order in which the source has them."""
    numbers = node.attrs["dimension_numbers"]
    assert isinstance(numbers, dict)
    rank = len(node.dims)
    places = (numbers["output_feature"], numbers["kernel_output"])
    if any(node.ints("window_reversal")) or places != (rank - 1, rank - 1):
        return False
    if numbers["input_feature"] == rank - 1:
        return numbers["kernel_input"] == rank - 2 and numbers["kernel_spatial"] == tuple(range(rank - 2))
    return numbers["input_feature"] == 1 and numbers["kernel_input"] == 0 and numbers["kernel_spatial"] == tuple(range(1, rank - 1))


def _runs(node: Node, patches: Patches) -> Runs | None:
    """Channels innermost in the source are a run, all positions of a last axis that the window never leaves included. With channels
    outermost the run is the window along the last axis, and the channels are one more axis of taps."""
    numbers, padding = node.attrs["dimension_numbers"], node.attrs.get("padding")
    assert isinstance(numbers, dict)
    spatial = len(node.dims) - 2
    pads = [(int(low), int(high)) for low, high in padding] if padding is not None else [(0, 0)] * spatial  # pyright: ignore[reportGeneralTypeIssues]
    if len(patches.axes) != spatial:
        pads = [*pads[: len(patches.axes) - 1], (0, 0)]  # the last ones are joined: windows of 1, nothing padded
    axes = [TapAxis(axis.window, axis.step, low != 0 or high > 0) for axis, (low, high) in zip(patches.axes, pads, strict=True)]
    last = axes[-1]
    stays = not last.guarded and (last.window.dilation == 1 or last.window.window == 1)
    channels = patches.channels.const
    if numbers["input_feature"] == 1:
        if not stays or last.step != ONE:
            return None
        every = WindowAxis(patches.channels, ONE, channels, 1, 1, 0)
        axes = [TapAxis(every, patches.channel_step, False), *axes[:-1], replace(last, merged=True)]
        return Runs(tuple(axes), last.window.window)
    if patches.channel_step != ONE:
        return None
    if stays and last.step == Dim.of(channels):
        return Runs((*axes[:-1], replace(last, merged=True)), channels * last.window.window)
    return Runs(tuple(axes), channels)
