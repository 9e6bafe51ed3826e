"""What x86 decides of a kernel, as values: the plans that `choose-kernels` writes.

A plan says what was decided, by numbers and words; the sizes, offsets and memory that follow from it and from the fusion are derived where
code is made. Words: `in-place` = read where it lies; `per-tile` = rows of A packed tile by tile; `columns` = blocks of rows of A, which
are neighbors in memory, packed ahead of a task's tiles; `packed-ahead` = a weight packed when compiling; `per-panel` = columns of B packed
panel by panel in every call; `patches` = the same, of a convolution's source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from disc.codegen.plan.library import LibraryPlan
from disc.codegen.plan.text import IllegalPlan, Plan
from disc.codegen.plan.tree_text import node_texts, read_nodes
from disc.speculation.schedules import Schedule
from disc.speculation.tree import Tree

# --- products of matrices ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProductPlan(Plan):
    """How the operands of a product are read.

    form: name of the micro-kernel (`gemm/forms.py`); left: in-place, per-tile or columns; right: packed-ahead, in-place, per-panel or
    patches; panel: columns of a panel of B; vectors: of accumulators that a row of a tile has, at most.
    """

    name: ClassVar[str] = "product"
    form: str
    left: str
    right: str
    panel: int
    vectors: int


@dataclass(frozen=True)
class TreePlan(Plan):
    """Which schedule a call takes: a tree over its sizes.

    schedules: ROWSxK, +ahead where the next part of B is prefetched, +panels where neighboring tasks share rows of A, /PARTS where k is
    split. nodes: as of `plan/tree_text.py`.
    split_rows: with more rows than that k is never split; none: whatever their number.
    """

    name: ClassVar[str] = "tree"
    schedules: tuple[str, ...]
    nodes: tuple[str, ...]
    split_rows: int | None


@dataclass(frozen=True)
class GemmPlan(Plan):
    """A dot or convolution, tile by tile.

    turned: A and B change places, since B is a single column; few: how few rows are multiplied where a call has no more: `across`
    (rows of B scaled and added, up to six), `along` (dot products: `most_rows` of `few_rows.py`), or `no` (tiles, like more rows).
    """

    name: ClassVar[str] = "gemm"
    product: ProductPlan
    turned: bool
    few: str
    tree: TreePlan


@dataclass(frozen=True)
class FewRowsPlan(GemmPlan):
    """The same where there are never more than few rows, and B is read once, where it lies."""

    name: ClassVar[str] = "few-rows"


def schedule_text(schedule: Schedule) -> str:
    """As in `TreePlan`."""
    parts = f"/{schedule.parts}" if schedule.parts > 1 else ""
    return f"{schedule.rows}x{schedule.k}{'+ahead' * schedule.ahead}{'+panels' * schedule.panels_first}{parts}"


def tree_plan(tree: Tree, split_rows: int | None) -> TreePlan:
    """A tree as a plan."""
    return TreePlan(tuple(map(schedule_text, tree.schedules)), node_texts(tree.nodes), split_rows)


def read_schedules(plan: TreePlan) -> Tree:
    """The tree of a plan. Raises IllegalPlan."""
    try:
        schedules = tuple(map(_schedule, plan.schedules))
    except ValueError as error:
        raise IllegalPlan("tree", str(error)) from error
    return Tree(schedules, read_nodes(plan.nodes, len(schedules)))


def _schedule(text: str) -> Schedule:
    words, _, parts = text.partition("/")
    size, *flags = words.split("+")
    rows, _, k = size.partition("x")
    if set(flags) - {"ahead", "panels"}:
        raise ValueError(f"{text!r} is no schedule")
    return Schedule(int(rows), int(k), int("ahead" in flags), int("panels" in flags), int(parts or "1"))


# --- convolutions and pools -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IndirectPlan(Plan):
    """A channels-last convolution through a table of addresses, its weights packed ahead of time.

    form: of the micro-kernel; panel: columns of a panel of weights; lanes: of a vector of them; taps: of the window whose part of a panel
    is multiplied with all rows of a task before the next; rows: of a task, at most; order: `panels` where the panels of the same rows
    follow each other, else `rows`.
    """

    name: ClassVar[str] = "indirect"
    form: str
    panel: int
    lanes: int
    taps: int
    rows: int
    order: str


@dataclass(frozen=True)
class WinogradPlan(Plan):
    """A 3x3 convolution in tiles of `tile` x `tile` outputs; block: tiles of a task, at most; least, enough: outputs that a tile must have,
    and how many beyond these all tiles together; direct: what computes it in a call with fewer."""

    name: ClassVar[str] = "winograd"
    tile: int
    block: int
    least: int
    enough: int
    direct: IndirectPlan


@dataclass(frozen=True)
class DepthwisePlan(Plan):
    """A depthwise convolution with lanes along the output's width: output rows of a task (band), and of a block of accumulators."""

    name: ClassVar[str] = "depthwise-window"
    band: int
    rows: int


@dataclass(frozen=True)
class PoolPlan(Plan):
    """A pool with lanes along the output's width: output rows of a task (band), and rows worked on at a time."""

    name: ClassVar[str] = "pool"
    band: int
    rows: int


@dataclass(frozen=True)
class WindowLastPlan(Plan):
    """A window over channels-last values, lanes along the channels: output rows of a task (band), output columns that are copied at a
    time (strip), and rows x columns of a block of accumulators."""

    name: ClassVar[str] = "window-last"
    band: int
    strip: int
    rows: int
    columns: int


@dataclass(frozen=True)
class ExpansionPlan(Plan):
    """A depthwise convolution in one kernel with the product that makes argument `link`.

    product, window: of the parts; tile_bytes: of the product's rows for one band.
    """

    name: ClassVar[str] = "expansion"
    values: ClassVar[tuple[str, ...]] = ("link",)
    link: int
    product: ProductPlan
    window: WindowLastPlan
    tile_bytes: int

    @property
    def joins(self) -> int | None:
        return self.link


# --- attention --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionBlocksPlan(Plan):
    """Attention with a running softmax over blocks of keys.

    first, second: of the products; rows: of a task; keys: of a block; causal: blocks of keys that no row sees are left out; segments: so
    are those of other sequences; dots: scores of few rows are dot products with keys read in place; safe: a row of -inf alone gives zeros.
    """

    name: ClassVar[str] = "attention-blocks"
    first: ProductPlan
    second: ProductPlan
    rows: int
    keys: int
    causal: bool
    segments: bool
    dots: bool
    safe: bool


@dataclass(frozen=True)
class AttentionRowsPlan(Plan):
    """Attention that keeps whole rows of scores. rows: of a task; cached: the numbers of the values kept as a row between stages."""

    name: ClassVar[str] = "attention-rows"
    values: ClassVar[tuple[str, ...]] = ("cached",)
    first: ProductPlan
    second: ProductPlan
    rows: int
    cached: tuple[int, ...]


# --- rows and sequences -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RegionPlan(Plan):
    """The loops over the results of a loop or stitch kernel, or over some parts of a concatenation.

    form: `groups` (a task is one or several rows), `flat` (one loop over all elements) or `blocks` (transposed in registers); rows: worked
    on at once, where they have up to `short` elements each; columns: vectors of columns reduced at once. vectors: of a row, computed side
    by side in each round of reductions, then of results. stages: the reductions of a row, by round; cached: what is kept as a row in
    scratch between them; both are numbers of values of the fusion, arguments first. tiles: loops that a row has one behind the other.
    """

    name: ClassVar[str] = "region"
    values: ClassVar[tuple[str, ...]] = ("stages", "cached")
    form: str
    tiles: int
    rows: int
    short: int
    columns: int
    vectors: tuple[int, ...]
    stages: tuple[tuple[int, ...], ...]
    cached: tuple[int, ...]


@dataclass(frozen=True)
class SearchPlan(Plan):
    """How the loops of a row kernel were found. variables, space: decisions and assignments at first; left, left_space: after coupling;
    candidates: assignments, whole or in part, that were looked at; rules, best: what the rules' loops and those found take by the rates of
    the target, in picoseconds for 1,024 elements of a row."""

    name: ClassVar[str] = "search"
    variables: int
    left: int
    space: int
    left_space: int
    candidates: int
    rules: int
    best: int


@dataclass(frozen=True)
class RowsPlan(Plan):
    """A loop or stitch kernel. regions: one after the other; streamed: the same in versions whose results bypass the caches, () where there
    is none; versions: the numbers of the fusion's `versions` of which there is code; parts: into how many a long row is cut at most, 0
    where none is. searches: how `regions` were found, then `streamed`; () where nothing was searched."""

    name: ClassVar[str] = "rows"
    regions: tuple[RegionPlan, ...]
    streamed: tuple[RegionPlan, ...]
    versions: tuple[int, ...]
    parts: int
    searches: tuple[SearchPlan, ...]


@dataclass(frozen=True)
class UpdatePlan(Plan):
    """A slice, or a scatter, that is written into the memory of the argument that it updates."""

    name: ClassVar[str] = "update"


@dataclass(frozen=True)
class ScanPlan(Plan):
    """A cumulative op; lanes: `across` (along the last dim, which is not scanned) or `no` (one row per task)."""

    name: ClassVar[str] = "scan"
    lanes: str


@dataclass(frozen=True)
class ScatterPlan(Plan):
    """A scatter: one task, updates in their order."""

    name: ClassVar[str] = "scatter"


# --- all of them ------------------------------------------------------------------------------------------------------------

KINDS: Mapping[str, type[Plan]] = {
    kind.name: kind
    for kind in (
        ProductPlan, TreePlan, GemmPlan, FewRowsPlan, IndirectPlan, WinogradPlan, DepthwisePlan, PoolPlan, WindowLastPlan, ExpansionPlan,
        AttentionBlocksPlan, AttentionRowsPlan, RegionPlan, SearchPlan, RowsPlan, UpdatePlan, ScanPlan, ScatterPlan, LibraryPlan,
    )
}  # fmt: skip


def check(holds: bool, field: str, reason: str) -> None:
    """Raises IllegalPlan where it does not hold."""
    if not holds:
        raise IllegalPlan(field, reason)


def keep_equal(plan: Plan, derived: Plan, *names: str) -> None:
    """Raises IllegalPlan where fields, which follow from the fusion, are not as derived."""
    for name in names:
        wanted = getattr(derived, name)
        check(getattr(plan, name) == wanted, name, f"follows from the fusion and must be {wanted}")
