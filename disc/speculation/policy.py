"""Rules that overrule the tree of schedules: what is known to be better at sizes that the tree's data do not hold, or with schedules that
are not in the family that it was fitted to.

A rule says, of a product whose sizes are known as far as the compiler knows them, for which numbers of rows and threads it takes a schedule
of its own. `apply_rules` prunes the tree and puts the rules on top; code generation gets the result. `disc tune` and
`tools/profile_gemm.py --report` print what the data say of each rule (`quality.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from disc.shapes import Dim
from disc.speculation.schedules import FEATURES, TILE_ROWS, Schedule
from disc.speculation.sizes import Point
from disc.speculation.tree import Tree
from disc.targets.thresholds import RuleThresholds
from disc.targets.x86_thresholds import CPU

PANEL = 64  # columns of a packed panel of B, the same for every ISA level so that packed weights serve all
M, THREADS = FEATURES.index("m"), FEATURES.index("threads")
WHOLE_K = 4096  # values of k at a time: all of them, in the layers of most models


@dataclass(frozen=True)
class Product:
    """What the compiler knows of a GEMM.

    m, n, k, batch: its sizes, as the tree takes them: k counts rows of a panel of B. columns: of such a panel; row_bytes: of a row of it.
    element_bytes: of an element of the result. packed: whether B is a weight, packed ahead of time. limits: what the rules decide by.
    direct: whether B is read where it lies, row by row. strided: whether each value of k of A's rows is in a line of its own, as in the
    product for the gradient of a weight; blocks: whether these rows are packed in blocks, which the panels of a task's rows share.
    """

    m: Dim
    n: Dim
    k: Dim
    batch: Dim
    columns: int
    row_bytes: int
    element_bytes: int
    packed: bool
    limits: RuleThresholds
    direct: bool = False
    strided: bool = False
    blocks: bool = False

    @property
    def features(self) -> tuple[Dim, Dim, Dim, Dim]:
        """The features of the tree, all but the number of threads, which is known in the call."""
        return (self.m, self.n, self.k, self.batch)

    @property
    def panels(self) -> Dim:
        """How many panels B has."""
        return (self.n + (self.columns - 1)) // self.columns


@dataclass(frozen=True)
class Override:
    """`schedule` in place of the tree's choice where low < m <= high (None: without end), with more than `threads` threads."""

    schedule: Schedule
    low: int
    high: int | None
    threads: int = 0

    def decides(self, m: int, threads: int) -> bool:
        """Whether it does for so many rows and threads."""
        return self.low < m and (self.high is None or m <= self.high) and threads > self.threads

    def apply(self, tree: Tree) -> Tree:
        """`tree` with this on top."""
        if self.high is None and self.threads == 0:
            return tree.with_above(M, self.low, self.schedule)
        return tree.with_between(M, self.low, self.high, THREADS, self.threads, self.schedule)


Rule = Callable[[Product], Sequence[Override]]
"""What a rule takes of a product, the last one first; nothing where it does not apply."""


# --- the rules ------------------------------------------------------------------------------------------------------------

STREAMED = Schedule(rows=60, k=WHOLE_K, ahead=1, panels_first=1)


def stream_small_b(product: Product) -> list[Override]:
    """A B of several panels that stays in L2 together, and a result that does not: A, the result and a residual are traversed once.

    Such products are the 1x1 convolutions at the large images of a network.
    """
    n, k = product.n, product.k
    if not (product.packed and n.is_const and k.is_const and product.columns < n.const):
        return []
    if k.const * product.row_bytes * product.panels.const > product.limits.resident_bytes:
        return []
    return [Override(STREAMED, product.limits.result_bytes // (n.const * product.element_bytes), None)]


DEEP = Schedule(rows=480, k=512, ahead=0, panels_first=0)  # parts of a panel of 128 KiB: lines a page apart share few sets of L2
DEEP_SHARED = replace(DEEP, rows=120)  # for more threads than panels


def stay_with_parts(product: Product) -> list[Override]:
    """A B that is read in place, with more values of k than the grid of the tree has: a part of it serves as many rows as can be.

    Such a product is the gradient of what a classifier of many classes reads. On one thread of Zen 4, 400 x 32000 times 32000 x 512 takes
    127 ms instead of 171 (while others used the memory, 129 instead of 223).
    """
    if not (product.direct and product.k.is_const and product.k.const > WHOLE_K and product.panels.is_const):
        return []
    return [Override(DEEP, product.limits.direct_rows, None), Override(DEEP_SHARED, product.limits.direct_rows, None, product.panels.const)]


STRIDED = Schedule(rows=240, k=WHOLE_K, ahead=0, panels_first=1)
STRIDED_SHARED = replace(STRIDED, rows=60)  # for more threads than panels, or groups of panels


def stay_with_columns(product: Product) -> list[Override]:
    """An A whose rows lie side by side, as in the product for the gradient of a weight: all panels read the same lines of it, one after the
    other, since each of these lines is in a page of its own.

    On one thread of Zen 4 the gradients of 512 x 1024, 1536 x 512 and 32000 x 512 weights from 3200, 3200 and 1600 rows take 35, 62 and 552
    ms instead of 51, 85 and 838; from 400 rows, which stay in the caches, the former take as long as before.
    """
    if not (product.strided and (product.direct or product.blocks) and product.panels.is_const and product.panels.const > 1):
        return []
    if product.direct and product.blocks:
        groups = -(-product.panels.const // panels_of_task(product.panels, product.limits))
        return [Override(STRIDED, STRIDED.rows, None), Override(STRIDED_SHARED, STRIDED_SHARED.rows, None, groups)]
    return [Override(STRIDED, STRIDED.rows, None), Override(STRIDED_SHARED, STRIDED.rows, None, product.panels.const)]


def panels_of_task(panels: Dim, limits: RuleThresholds) -> int:
    """How many panels a task takes whose rows of A are packed in blocks, and whose B is read in place: groups of about equal size."""
    if not panels.is_const:
        return limits.task_panels
    groups = max(-(-panels.const // limits.task_panels), 1)
    return max(-(-panels.const // groups), 1)


SHARED = Schedule(rows=TILE_ROWS, k=WHOLE_K, ahead=1, panels_first=0)


def share_tiles(product: Product) -> list[Override]:
    """Fewer panels than threads, and few rows: a tile is a task.

    The grid of the tree holds few sizes with more threads than panels. With very few rows all threads wait for B instead.
    """
    tasks = product.panels * product.batch
    if not tasks.is_const or not 0 < tasks.const <= product.limits.few_tasks:
        return []
    return [Override(SHARED, *product.limits.shared_rows, tasks.const)]


ONE_TILE = Schedule(rows=TILE_ROWS, k=WHOLE_K, ahead=0, panels_first=0)  # nothing to compute while a prefetch comes
BLOCKS = Schedule(rows=240, k=512, ahead=1, panels_first=0)
TILES = Schedule(rows=TILE_ROWS, k=WHOLE_K, ahead=1, panels_first=0)  # a tile is a task


def split_k(product: Product) -> list[Override]:
    """An odd number of panels, up to five, leaves threads without work: parts of k are tasks of their own (`split_k.py` of the target).

    Measured on two threads, once in caches: N = 64, K = 4096 takes 10, 15, 23, 37 and 77 us for M = 1, 8, 16, 30 and 64, instead of 16, 19,
    31, 46 and 94 with a tile as a task; with weights out of the caches 42, 65, 79, 113 and 198 us for M = 4, 8, 16, 30 and 64, instead of
    54, 62, 102, 174 and 256 by the tree. Into how many parts depends on the sizes alone, so results do not depend on the number of threads.
    """
    if not may_split(product):
        return []
    count, depth, limits = product.panels.const, product.k.const, product.limits
    split_rows = dict(limits.split_rows).get(count)
    if split_rows is None or product.columns < limits.split_columns or depth < limits.split_depth * min(count, 2):
        return []
    parts, most = parts_of_panel(depth, limits), split_rows * product.columns // PANEL
    tile_macs = depth * TILE_ROWS * product.columns * count
    low = (-(-limits.split_macs // tile_macs) - 1) * TILE_ROWS  # with as many rows or fewer one thread computes it all
    above = max(low, TILE_ROWS)
    blocks = Override(replace(BLOCKS, parts=parts), above, most)
    tiles = Override(replace(TILES, parts=parts), above, most, count * parts)
    return [*([Override(replace(ONE_TILE, parts=parts), low, TILE_ROWS)] if low < TILE_ROWS else []), blocks, tiles]


def may_split(product: Product) -> bool:
    """Whether a part of B can be read where it lies, packed ahead of time. The same for every ISA level, as schedules are."""
    return product.packed and product.batch == Dim.of(1)


def parts_of_panel(depth: int, limits: RuleThresholds) -> int:
    """Of a panel of so many rows: a power of 2, since two threads would share three parts badly."""
    parts = 2
    while parts < limits.split_parts and depth >= 2 * parts * limits.split_depth:
        parts *= 2
    return parts


# A later one overrules those before it; the one that splits k is the last.
RULES: tuple[Rule, ...] = (stream_small_b, stay_with_parts, stay_with_columns, share_tiles, split_k)


# --- applied --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pruned:
    """The tree that is left of a product. split_rows: up to how many rows a schedule may split k (None: for any number)."""

    tree: Tree
    split_rows: int | None


def apply_rules(tree: Tree, product: Product) -> Pruned:
    """`tree` for what is known of the product, with the rules on top.

    A tree that splits k of itself is not split by a rule; a product whose k cannot be split gets none of its schedules split.
    """
    known = {number: size.const for number, size in enumerate(product.features) if size.is_const}
    splits, most = False, 0
    for rule in RULES:
        tree = tree.prune(known)  # not behind the last rule: it would copy what both sides of a threshold share
        splits = any(schedule.parts > 1 for schedule in tree.schedules)
        for override in rule(product):
            if override.schedule.parts == 1:
                tree = override.apply(tree)
            elif not splits:
                assert override.high is not None  # memory for the sums of parts is set aside for so many rows
                tree, most = override.apply(tree), max(most, override.high)
    if not may_split(product):
        return Pruned(Tree(tuple(replace(schedule, parts=1) for schedule in tree.schedules), tree.nodes), 0)
    return Pruned(tree, None if splits else most)


def product_of(point: Point) -> Product:
    """A layer, or a product of activations, with these sizes in f32, as the compiler knows it where only the rows are left to the call."""
    m, n, k, batch = (Dim.symbol("m"), *(Dim.of(size) for size in (point.n, point.k, point.batch)))
    columns, direct = panel_columns(point.n), not (point.weights or point.transposed)
    blocks = point.strided and direct and point.n > columns
    return Product(m, n, k, batch, columns, columns * 4, 4, point.weights, CPU.rules, direct, point.strided, blocks)


def panel_columns(n: int) -> int:
    """Of a panel of a B with `n` columns: whole vectors of every level."""
    return PANEL if n >= PANEL else max((n + 15) // 16 * 16, 16)


# --- measured -------------------------------------------------------------------------------------------------------------

# (N, K) of weights and rows at which the rules decide, besides the grid that the tree is fitted to.
RULED = ((48, 300), (64, 512), (64, 1024), (64, 4096), (192, 2048), (320, 4096), (256, 64), (384, 256))
RULED_ROWS = (4, 8, 16, 30, 64, 90, 1200, 2500)
# (M, N, K) of products of two activations: with a deep B, and with rows of A side by side.
RULED_DEEP = ((64, 512, 8192), (400, 512, 8192), (400, 256, 16384))
RULED_STRIDED = ((512, 1024, 400), (1536, 512, 1600), (512, 1024, 3200), (4096, 512, 512))


def deciding(point: Point, rules: Sequence[Rule] = RULES) -> tuple[Rule, Schedule] | None:
    """The rule that overrules the tree at this size, and what it takes; None where none does."""
    product = product_of(point)
    found = [(rule, each.schedule) for rule in rules for each in rule(product) if each.decides(point.m, point.threads)]
    return found[-1] if found else None


def ruled_points(threads: Sequence[int]) -> list[Point]:
    """The sizes at which the rules are compared with the tree's schedules, to judge them; sizes that share a program lie together."""
    points = [Point(m, n, k, 1, count, True) for n, k in RULED for count in threads for m in RULED_ROWS]
    points += [Point(m, n, k, 1, count, False) for m, n, k in RULED_DEEP for count in threads]
    points += [Point(m, n, k, 1, count, False, strided=True) for m, n, k in RULED_STRIDED for count in threads]
    return [point for point in points if deciding(point) is not None]


def ruled_schedules(points: Sequence[Point]) -> tuple[Schedule, ...]:
    """All that the rules take at these sizes."""
    return tuple(dict.fromkeys(found[1] for found in map(deciding, points) if found is not None))
