"""The plan of a compute kernel: how both operands are read, where packed pieces lie in scratch, which micro-kernels it calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from disc.codegen.mlir.builder import Builder, register_element
from disc.codegen.plan.contraction import Contraction, Operand, trace_views
from disc.codegen.plan.index import ONE, ZERO, Index, IndexSpace, split_linear, view_index
from disc.codegen.plan.kernel import PackedWeight
from disc.codegen.x86.function import rounded_up
from disc.codegen.x86.gemm.forms import Form, choose_form
from disc.codegen.x86.gemm.patches import Patches, read_patches
from disc.codegen.x86.plans import ProductPlan, check, keep_equal
from disc.errors import CompilerBug
from disc.ir.graph import Body, Node
from disc.ir.op_table import DOTS, ELEMENTWISE
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim, dim_max
from disc.speculation.policy import PANEL, panel_columns
from disc.speculation.schedules import TILE_ROWS
from disc.targets.target import Target

ROWS = TILE_ROWS
LINE = 64  # bytes of a cache line
PANELS = (16, 32, 48, 64)  # columns that a panel may have: whole vectors of every level, as many as a tile has room for

RootSink = Callable[[str], None]  # takes the values of a kernel's one root at (gm, gn), which it keeps to itself


@dataclass(frozen=True)
class OperandAccess:
    """An operand that is a buffer under views: offset(row or column, k) is affine in k."""

    leaf: Node
    k_step: Dim
    rest: Dim


@dataclass(eq=False)
class Gemm:
    """The plan of one compute kernel: panels, sources of both operands, and where things lie in scratch. panel: columns of a panel of B."""

    contraction: Contraction
    form: Form
    target: Target
    panel: int
    left: OperandAccess | None
    right: OperandAccess | None
    packed: bool
    roots: tuple[Node, ...]
    patches: Patches | None
    direct: bool  # B is read in place, but the last columns
    few: str = "no"  # as of `GemmPlan`
    pieces: bool = False  # whether a task goes through k in pieces, between which the sums of its rows are kept
    splits: bool = False  # whether k may be split over tasks (`split_k.py`)
    sink: RootSink | None = None
    columns: bool = False  # A is packed in blocks of `lanes` rows, value of k by value of k, as it lies in memory
    strided: OperandAccess | None = None  # what is packed so, where that is a buffer
    task_rows: int = ROWS  # of a task, at most
    task_panels: int = 1  # panels of a task: more than one shares the rows of A that are packed for a piece of k

    @property
    def lanes(self) -> int:
        return self.target.lanes

    @property
    def vectors(self) -> int:
        """Vectors of columns that a tile has at most."""
        return self.target.thresholds.gemm.vectors

    @property
    def element(self) -> str:
        """The element type of the accumulators."""
        return self.form.accumulator

    @property
    def tile_rows(self) -> int:
        """Rows whose sums scratch has room for: more than a tile where they are kept from one piece of k to the next."""
        return self.task_rows if self.pieces else ROWS

    @property
    def tile_bytes(self) -> int:
        return self.task_panels * self.panel_tile_bytes

    @property
    def panel_tile_bytes(self) -> int:
        """Those of one panel."""
        return self.tile_rows * PANEL * ELEMENT_BYTES[self.element]

    @property
    def width(self) -> int:
        """Columns that the accumulators hold at a time."""
        return self.lanes * min(self.vectors, self.panel // self.lanes)

    @property
    def left_size(self) -> int:
        """Bytes of one element of A, in place or packed."""
        return ELEMENT_BYTES[self.form.left]

    @property
    def panel_step(self) -> int:
        """Bytes from one row of a packed panel of B to the next."""
        return self.panel * self.form.unit

    def panel_rows(self) -> Dim:
        """Rows of a panel: values of k in groups, and rows of scales."""
        k, form = self.contraction.k, self.form
        rows = (k + (form.group - 1)) // form.group
        return rows + (k + (form.block - 1)) // form.block if form.block else rows

    @property
    def left_offset(self) -> int:
        """Where packed rows of A start in scratch: after the tile and the row pointers."""
        return self.tile_bytes + 64

    @property
    def is_strided(self) -> bool:
        """Whether a row of A has a value of k in a line of memory of its own, as in the product for the gradient of a weight. Rows side by
        side share these lines: with few enough of them they stay in the caches from tile to tile."""
        return self.columns or (self.left is not None and self.left.k_step != ONE)

    @property
    def prefetches_columns(self) -> bool:
        """Whether a tile prefetches the lines of the next one, which no hardware does."""
        return self.direct and not self.columns and self.is_strided

    @property
    def most_depth(self) -> int:
        """Rows of a panel at a time where `is_strided`: half as many where more than the lines that are read goes through the caches."""
        most = self.target.thresholds.gemm.strided_depth
        return most // 2 if self.prefetches_columns or self.columns else most

    @property
    def column_group(self) -> int:
        """Values of k that lie side by side in a block of A that is packed in columns."""
        return self.form.group if self.form.reads_groups else 1

    @property
    def column_step(self) -> int:
        """Bytes from one value of k of such a block to the next."""
        return self.lanes * self.left_size

    @property
    def column_block(self) -> int:
        """Bytes of such a block. A line more than it holds: a value of k of all blocks is written at once, and lines of addresses that are
        equal modulo a page would evict each other."""
        return self.most_depth * self.form.group * self.column_step + LINE

    def right_offset(self) -> Dim:
        """Where the packed panel of B starts in scratch."""
        rows = rounded_up(self.contraction.k, 16) * (ROWS * self.left_size) if self.left is None else ZERO
        if self.columns:
            blocks = Dim.of(-(-self.task_rows // self.lanes) * self.column_block)
            rows = blocks if self.few == "no" else dim_max(rows, blocks)
        return rows + self.left_offset

    def scratch(self) -> Dim:
        """Bytes of scratch per thread."""
        panel = ZERO if self.packed else self.panel_rows() * self.panel_step
        return self.right_offset() + panel + 64


def plan_gemm(
    space: IndexSpace,
    body: Body,
    contraction: Contraction,
    target: Target,
    weights: frozenset[Node],
    leaves: frozenset[Node] = frozenset(),
    plan: ProductPlan | None = None,
    *,
    tasks: bool = False,
) -> tuple[Gemm, PackedWeight | None]:
    """How the operands are read. `leaves`: values of the fusion that will lie in memory like inputs. plan: None = the one that the product
    should have; a plan that it cannot have raises IllegalPlan. tasks: the product is a kernel of its own, whose tasks may pack A ahead."""
    accumulator = register_element(contraction.node.element)
    form = choose_form(contraction.left.node.element, contraction.right.node.element, accumulator, target.feature_names)
    panel = plan.panel if plan is not None else panel_columns(contraction.n.const if contraction.n.is_const else PANEL)
    left = _access(space, contraction.left, "gm", form.left, leaves)
    right = _access(space, contraction.right, "gn", form.right, leaves)
    packed = _packed_weight(body, contraction, right, panel, form, weights)
    if form.block and packed is None:
        raise CompilerBug(f"a scaled dot whose weight cannot be packed (line {contraction.node.line})")
    patches = read_patches(space, contraction) if _may_read_patches(contraction, form, right) else None
    direct = packed is None and patches is None and _may_be_direct(form, right)
    is_strided = left is not None and left.k_step != ONE
    worth_packing = left is None or (is_strided and (form.reads_groups or (direct and _is_wide(contraction, panel))))
    columns = tasks and worth_packing and form.group <= 2 and contraction.node.op in DOTS and _lies_in_columns(space, contraction.left)
    in_place = left if not columns and not (is_strided and form.reads_groups) else None
    gemm = Gemm(
        contraction, form, target, panel, in_place, right, packed is not None, body.yields, patches, direct, columns=columns,
        strided=left if columns else None,
    )  # fmt: skip
    if plan is None or plan == product_plan(gemm):
        return gemm, packed
    return _as_planned(gemm, packed, plan)


def product_plan(gemm: Gemm) -> ProductPlan:
    """What was decided."""
    patches = "per-panel" if gemm.patches is None else "patches"
    right = "packed-ahead" if gemm.packed else "in-place" if gemm.direct else patches
    left = "columns" if gemm.columns else "per-tile" if gemm.left is None else "in-place"
    return ProductPlan(gemm.form.name, left, right, gemm.panel, gemm.vectors)


def _as_planned(gemm: Gemm, packed: PackedWeight | None, plan: ProductPlan) -> tuple[Gemm, PackedWeight | None]:
    """`gemm` with its operands read in another of the ways in which they may be. Raises IllegalPlan where that is none."""
    derived = product_plan(gemm)
    keep_equal(plan, derived, "form", "vectors")
    check(plan.panel in PANELS, "panel", f"must be one of {', '.join(map(str, PANELS))}")
    lefts = (derived.left, *(["in-place"] if gemm.strided is not None and not gemm.form.reads_groups else []), "per-tile")
    check(plan.left in lefts, "left", f"must be {' or '.join(lefts)}")
    ways = {derived.right, *([] if gemm.form.block else ["per-panel"])}
    if _may_be_direct(gemm.form, gemm.right) and not gemm.form.block:
        ways.add("in-place")
    if gemm.patches is not None:
        ways.add("patches")
    check(plan.right in ways, "right", f"must be {' or '.join(sorted(ways))}")
    ahead = plan.right == "packed-ahead"
    patches = gemm.patches if plan.right in ("packed-ahead", "patches") else None
    left, direct = (gemm.left or gemm.strided) if plan.left == "in-place" else None, plan.right == "in-place"
    columns = plan.left == "columns"
    strided = gemm.strided if columns else None
    changed = replace(gemm, left=left, packed=ahead, patches=patches, direct=direct, columns=columns, strided=strided)
    return changed, packed if ahead else None


def _may_read_patches(contraction: Contraction, form: Form, right: OperandAccess | None) -> bool:
    """Elements as they are summed; or of 16 bits, where no other way packs whole vectors."""
    if form.right == form.accumulator:
        return form.group == 1
    return right is None and form.right in ("bf16", "f16") and form.right == contraction.right.node.element


def _may_be_direct(form: Form, right: OperandAccess | None) -> bool:
    """Whether columns of B are neighbors in memory, as the micro-kernel reads them."""
    if right is None or form.group != 1:
        return False
    place = split_linear(right.rest, "gn")
    return place is not None and place[0] == ONE


def _access(space: IndexSpace, operand: Operand, free: str, element: str, leaves: frozenset[Node]) -> OperandAccess | None:
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
    return OperandAccess(traced[0], *form)


def _is_wide(contraction: Contraction, panel: int) -> bool:
    """Whether rows of A are worth packing: for several panels, and as many that there are tasks for several threads all the same."""
    m, n = contraction.m, contraction.n
    return m.is_const and m.const >= panel and n.is_const and n.const > panel


def _lies_in_columns(space: IndexSpace, operand: Operand) -> bool:
    """Whether more of the tensors that A is computed from have its rows side by side in memory than its values of k."""
    index, bounds = operand.locate(Dim.symbol("gb"), Dim.symbol("gm"), Dim.symbol("gk"))
    if bounds:
        return False
    votes, seen, waiting = 0, set[tuple[Node, Index]](), [(operand.node, index)]
    while waiting:
        node, place = waiting.pop()
        if (node, place) in seen:
            continue
        seen.add((node, place))
        viewed = view_index(space, node, place)
        if node.op == "input":
            flat = space.linear(place, node.dims)
            steps = [form[0] if (form := split_linear(flat, name)) is not None else ZERO for name in ("gm", "gk")]
            votes += (steps[0] == ONE) - (steps[1] == ONE)
        elif viewed is not None:
            waiting.append((node.operands[0], viewed))
        elif node.op in ELEMENTWISE:
            waiting += [(each, place) for each in node.operands if each.dims == node.dims]
    return votes > 0


def _packed_weight(
    body: Body, contraction: Contraction, access: OperandAccess | None, panel: int, form: Form, weights: frozenset[Node]
) -> PackedWeight | None:
    if access is None or access.leaf not in weights or len(set(access.leaf.uses)) != 1:
        return None
    place = split_linear(access.rest, "gn")
    if place is None or not (
        place[0].is_const and place[1].is_const and access.k_step.is_const and contraction.n.is_const and contraction.k.is_const
    ):
        return None
    scales = body.arguments.index(contraction.scales) if contraction.scales is not None else None
    return PackedWeight(
        body.arguments.index(access.leaf),
        contraction.k.const,
        contraction.n.const,
        access.k_step.const,
        place[0].const,
        place[1].const,
        panel,
        form.group,
        form.block,
        scales,
    )


def panels(gemm: Gemm) -> Dim:
    return (gemm.contraction.n + (gemm.panel - 1)) // gemm.panel


def panel_groups(gemm: Gemm) -> Dim:
    """The panels of a task count as one."""
    return (panels(gemm) + (gemm.task_panels - 1)) // gemm.task_panels


def micro_kernels(gemm: Gemm) -> tuple[tuple[str, int, int], ...]:
    return tuple((gemm.form.name, rows, vectors) for rows in row_counts(gemm) for vectors in vector_counts(gemm))


def row_counts(gemm: Gemm) -> tuple[int, ...]:
    """The heights that tiles may have."""
    m = gemm.contraction.m
    if m.is_const and 0 < m.const <= ROWS:
        return (m.const,)
    return tuple(range(1, ROWS + 1))


def vector_counts(gemm: Gemm) -> tuple[int, ...]:
    most = min(gemm.vectors, gemm.panel // gemm.lanes)
    n = gemm.contraction.n
    if n.is_const and n.const % (most * gemm.lanes) == 0:
        return (most,)
    return tuple(range(1, most + 1))


def share(b: Builder, number: str, total: str, parts: str) -> str:
    """Where part `number` of `total` starts, when all `parts` are about equal."""
    return b.op(f"arith.divui {b.op(f'arith.muli {number}, {total} : i64')}, {parts} : i64")


def is_transposed(gemm: Gemm) -> bool:
    """True when B's k runs along memory in values or groups of 16 or 32 bits, which are transposed in registers, 32 bits at a time."""
    assert gemm.right is not None
    form, k = gemm.form, gemm.contraction.k
    whole = form.group <= 2 or (k.is_const and k.const % form.group == 0)
    return gemm.right.k_step == ONE and gemm.lanes == 16 and (form.unit == 4 or (form.unit == 2 and form.group == 1)) and whole
