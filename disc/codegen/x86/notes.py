"""Why a kernel is as it is, in words: the notes of `explain` and the manifest. They say what the plan says, and nothing that it does not
decide; what is counted (tasks, scratch, flops) stands beside them."""

from __future__ import annotations

from collections.abc import Iterator

from disc.codegen.plan.library import LibraryPlan
from disc.codegen.plan.text import Plan
from disc.codegen.plan.updates import SCATTER
from disc.codegen.x86.plans import (
    AttentionBlocksPlan,
    AttentionRowsPlan,
    DepthwisePlan,
    ExpansionPlan,
    FewRowsPlan,
    GemmPlan,
    IndirectPlan,
    PoolPlan,
    ProductPlan,
    RegionPlan,
    RowsPlan,
    ScanPlan,
    ScatterPlan,
    SearchPlan,
    UpdatePlan,
    WindowLastPlan,
    WinogradPlan,
)
from disc.ir.costs import node_cost
from disc.ir.graph import Body
from disc.speculation.schedules import TILE_ROWS
from disc.targets.target import Target

_OPERANDS = {
    "in-place": "read in place",
    "per-tile": "packed per tile",
    "columns": "packed in columns per task",
    "packed-ahead": "packed ahead of time",
    "per-panel": "packed per panel",
    "patches": "patches packed per panel",
}
_REGIONS = {"groups": "tasks of whole rows", "flat": "one flat loop over all elements", "blocks": "blocks transposed in registers"}


def notes_of(plan: Plan, body: Body, target: Target) -> tuple[str, ...]:
    """The sentences of a plan that the fusion of `body` has."""
    return tuple(_sentences(plan, body, target))


def _sentences(plan: Plan, body: Body, target: Target) -> Iterator[str]:
    if isinstance(plan, GemmPlan):
        yield from _gemm(plan, body, target)
    elif isinstance(plan, IndirectPlan):
        yield from _indirect(plan, body)
    elif isinstance(plan, WinogradPlan):
        yield from _winograd(plan, body)
    elif isinstance(plan, ExpansionPlan):
        yield from _expansion(plan, body, target)
    elif isinstance(plan, AttentionBlocksPlan | AttentionRowsPlan):
        yield from _attention(plan, body, target)
    elif isinstance(plan, RowsPlan):
        yield from _rows(plan, body)
    elif isinstance(plan, ScanPlan):
        yield "scan: lanes along the last dim" if plan.lanes == "across" else "scan: one row per task, its values one after the other"
    elif isinstance(plan, LibraryPlan):
        custom = "::" in plan.function
        yield f"the custom op {plan.function}" if custom else f"the runtime's function {plan.function}, over as many threads as pay"
    elif isinstance(plan, UpdatePlan):
        what = "updates alone are" if any(each.op == SCATTER for each in body.nodes) else "the slice alone is"
        yield f"{what} written, into the memory of the value that it updates"
    elif isinstance(plan, ScatterPlan):
        yield "one task, updates in their order"
    else:
        yield from _window(plan)


def _gemm(plan: GemmPlan, body: Body, target: Target) -> Iterator[str]:
    yield _tiles(plan.product, target)
    exchanged = "; A and B change places, since B is one column" if plan.turned else ""
    yield f"A {_OPERANDS[plan.product.left]}; B {_OPERANDS[plan.product.right]}; {_epilogue(body)}{exchanged}"
    if plan.few != "no":
        rows = f"calls of up to {TILE_ROWS} rows"
        if isinstance(plan, FewRowsPlan):
            rows = "always few rows"
        elif plan.few == "along" and plan.product.left == "in-place":
            rows += ", or where k is long enough of some more"
        yield f"{rows}: B read in place, {'its rows scaled and added' if plan.few == 'across' else 'dot products'}"
    for node in body.nodes:
        why = node.attrs.get("disc.note")
        if isinstance(why, str):
            yield why


def _tiles(product: ProductPlan, target: Target) -> str:
    size = f"{TILE_ROWS} rows x {product.vectors} vectors of {target.lanes}"
    return f"tiles of up to {size}, panels of {product.panel} columns; micro-kernel {product.form}"


def _epilogue(body: Body) -> str:
    return f"epilogue cost {sum(node_cost(root) for root in body.yields)}"


def _indirect(plan: IndirectPlan, body: Body) -> Iterator[str]:
    order = "panels of the same rows" if plan.order == "panels" else "row blocks"
    panels = f"panels of {plan.panel} columns in vectors of {plan.lanes}"
    yield f"row blocks of up to {plan.rows}, {panels}, {plan.taps} taps at a time, {order} fastest"
    yield f"channels last: A read through a table of addresses; B packed ahead of time; {_epilogue(body)}"


def _winograd(plan: WinogradPlan, body: Body) -> Iterator[str]:
    saved = f"{(plan.tile + 2) ** 2} multiplications for the {9 * plan.tile**2} that flops counts"
    yield f"Winograd F({plan.tile}x{plan.tile}, 3x3): {saved}, so a share of the limit may exceed 100 %"
    yield (
        f"up to {plan.block} tiles and a panel of {plan.direct.panel} columns a task; directly where there are less than "
        f"{plan.least} outputs a tile and {plan.enough} more, and tiles that would not be finite"
    )
    yield f"channels last: A read through a table of addresses; B transformed and packed ahead of time; {_epilogue(body)}"


def _expansion(plan: ExpansionPlan, body: Body, target: Target) -> Iterator[str]:
    yield (
        f"a product of matrices and a depthwise convolution: bands of rows of the product stay in L2, up to {plan.tile_bytes >> 10} KiB, "
        "and are not written out; rows at the edges of bands are computed twice"
    )
    yield f"{_tiles(plan.product, target)}; B {_OPERANDS[plan.product.right]}; {_epilogue(body)}"
    yield from _window(plan.window)


def _window(plan: Plan) -> Iterator[str]:
    if isinstance(plan, PoolPlan):
        yield f"pool: bands of {plan.band} rows, {plan.rows} at a time, first the lines of a window, then its columns"
    if isinstance(plan, DepthwisePlan):
        yield f"depthwise window: bands of {plan.band} rows copied padded, blocks of {plan.rows} rows, all taps unrolled"
    if isinstance(plan, WindowLastPlan):
        yield (
            f"window, channels last: bands of {plan.band} rows and strips of {plan.strip} columns copied padded, "
            f"blocks of {plan.rows}x{plan.columns} positions, all taps unrolled"
        )


def _attention(plan: AttentionBlocksPlan | AttentionRowsPlan, body: Body, target: Target) -> Iterator[str]:
    if isinstance(plan, AttentionRowsPlan):
        yield f"no softmax, so rows are kept whole: scores of {plan.rows} rows at a time stay in scratch, no buffer of all scores"
        yield from _cached(plan.cached, body)
    else:
        yield f"running softmax: {plan.rows} rows x {plan.keys} keys of scores in scratch, no buffer of all scores"
        yield f"rows of -inf alone give {'0' if plan.safe else 'NaN'}"
        if plan.dots:
            yield f"up to {target.thresholds.gemm.dot_rows} rows: scores as dot products, keys read in place"
        if plan.causal:
            yield "causal: blocks of keys that no row sees are skipped, unless a value there is not finite"
        if plan.segments:
            yield "packed sequences: a row's keys are those of its sequence, nothing is computed between two of them"
    gathered = len([node for node in body.nodes if node.op == "disc.gather"])
    if gathered:
        yield f"{gathered} terms of a score gathered where it is made, no buffer of them"


def _rows(plan: RowsPlan, body: Body) -> Iterator[str]:
    for region in plan.regions:
        yield from _region(region, body)
    if plan.parts:
        yield f"a few long rows are cut into up to {plan.parts} parts each"
    for found, where in zip(plan.searches, ("in caches", "in memory"), strict=False):
        yield _search(found, where)


def _search(found: SearchPlan, where: str) -> str:
    """With times for 1,024 elements of a row."""
    best, rules = f"{found.best / 1000:.1f} ns", f"{found.rules / 1000:.1f} ns"
    times = f"{best} instead of {rules} by the rules" if found.best < found.rules else f"the rules' {rules}, nothing is better"
    return (
        f"searched for data {where}: {found.left} of {found.variables} variables, {found.left_space} of {found.space} plans, "
        f"{found.candidates} candidates; predicted for 1024 elements: {times}"
    )


def _region(plan: RegionPlan, body: Body) -> Iterator[str]:
    several = f", {plan.rows} at once" if plan.rows > 1 else ""
    columns = f", {plan.columns} vectors of columns at once" if plan.columns > 1 else ""
    stages = f"; reductions in {len(plan.stages)} rounds" if len(plan.stages) > 1 else ""
    yield f"{_REGIONS[plan.form]}{several}{columns}{stages}"
    yield from _cached(plan.cached, body)


def _cached(numbers: tuple[int, ...], body: Body) -> Iterator[str]:
    """Values by their numbers in the fusion, arguments first."""
    for number in numbers:
        yield f"row of {body.nodes[number].name} kept in scratch between stages"
