"""What a row kernel decides: the form of its loops, what is worked on side by side, what is kept in scratch; and what it may decide.

Rules decide first. Of loops over whole rows and of flat ones, a search then looks for something better under the machine's rates
(`codegen/plan/search/`), once for results in the caches and once for those beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from disc.codegen.mlir.builder import register_element
from disc.codegen.plan.index import ONE, ZERO, IndexSpace
from disc.codegen.plan.probe import Probe
from disc.codegen.plan.rows import Dominant, RowPlan, numbers_of, plan_kernel, root_index
from disc.codegen.plan.search.astar import Found, search
from disc.codegen.plan.search.model import WIDTHS, Machine
from disc.codegen.plan.search.rows import Decision, RowsProblem, rows_problem
from disc.codegen.plan.search.stages import read_stages, rows_that_may_be_kept
from disc.codegen.plan.versions import RowVersion, read_version
from disc.codegen.x86.plans import RegionPlan, RowsPlan, SearchPlan, check, keep_equal
from disc.codegen.x86.rows.blocked import Blocked, plan_blocks
from disc.codegen.x86.rows.long_rows import plan_long_rows
from disc.ir.costs import node_cost, op_cost
from disc.ir.graph import Body, Node
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim, dim_max, dim_min
from disc.speculation.guards import Guard
from disc.targets.target import Target

MOST_TOGETHER = 8  # rows worked on at once
MOST_SHORT = 1 << 20  # elements of a row that is worked on with others
MOST_PARTS = 1024  # of a long row


@dataclass(frozen=True)
class Region:
    """The loops of one plan of a kernel: `tasks` of `elements` each, work: cost of an element. decided: their form and numbers."""

    plan: RowPlan
    decided: RegionPlan
    blocked: Blocked | None
    tasks: Dim
    elements: Dim
    work: int

    def cost(self, space: IndexSpace, target: Target) -> Dim:
        """Cycles of a task."""
        instructions = self.elements * self.plan.depth(space) * self.work
        return instructions // target.macs_per_cycle("f32") + target.thresholds.rows.task_cycles

    @property
    def flat(self) -> bool:
        """One loop over all elements?"""
        return self.decided.form == "flat"


# --- which should -----------------------------------------------------------------------------------------------------------


def choose_rows(body: Body, kind: str, space: IndexSpace, target: Target, guards: Sequence[Guard]) -> RowsPlan:
    """The plan that the kernel of a loop or stitch fusion should have."""
    limits = target.thresholds.rows
    plans = plan_kernel(space, body, kind, target.thresholds)
    rules = [ruled(space, body, plan, kind, target) for plan in plans]
    long_rows = plan_long_rows(space, body, plans[0], target.thresholds, limits.parts) if len(plans) == 1 else None
    regions = [region_of(space, body, plan, target, each) for plan, each in zip(plans, rules, strict=True)]
    kept: list[int] = []
    parts, streamed = 0, False
    for number, version in enumerate(read_version(guard, body) for guard in guards):
        if version.most_rows is not None:
            if long_rows is None:
                continue
            parts = limits.parts
        elif not any(_has_version(space, region, version, target.thresholds.device.lanes) for region in regions):
            continue
        streamed = streamed or version.streams
        kept.append(number)
    near = [_searched(space, body, plan, target, each, False) for plan, each in zip(plans, rules, strict=True)]
    beyond = [
        _searched(space, body, plan, target, replace(found.region, vectors=_vectors(plan, target, True)), True)
        for plan, found in zip(plans if streamed else [], near, strict=streamed)
    ]
    if not any(found.past for found in beyond):
        kept = [number for number in kept if not read_version(guards[number], body).streams]
    searches = [largest for found in (near, beyond) if (largest := _largest([each.search for each in found])) is not None]
    streams = tuple(found.region for found in beyond if any(each.past for each in beyond))
    return RowsPlan(tuple(found.region for found in near), streams, tuple(kept), parts, tuple(searches))


@dataclass(frozen=True)
class _Searched:
    """region: the rules', or what the search finds that costs less; past: whether results beyond the caches bypass them; search: what was
    searched, None where nothing was."""

    region: RegionPlan
    past: bool
    search: SearchPlan | None


def _largest(searches: Sequence[SearchPlan | None]) -> SearchPlan | None:
    """That of the region with most plans, with the candidates of all; None where nothing was searched."""
    found = [each for each in searches if each is not None]
    if not found:
        return None
    return replace(max(found, key=lambda each: each.space), candidates=sum(each.candidates for each in found))


def _searched(space: IndexSpace, body: Body, plan: RowPlan, target: Target, rule: RegionPlan, beyond: bool) -> _Searched:
    """beyond: for results, and inputs, beyond the caches."""
    if plan.columns or rule.form == "blocks" or not plan.tiles or plan.row(space) == ONE:
        return _Searched(rule, beyond, None)
    posed = pose(space, body, plan, target, rule, beyond)
    found = search(posed.problem)
    decision = posed.decision(found.assignment)
    stages = tuple(numbers_of(body, (node for node, _ in stage)) for stage in decision.stages)
    region = replace(
        rule, rows=decision.rows, short=decision.short if decision.rows > 1 else 0, vectors=decision.vectors, stages=stages,
        cached=numbers_of(body, decision.cached),
    )  # fmt: skip
    return _Searched(region, decision.past, _told(posed, found))


def pose(space: IndexSpace, body: Body, plan: RowPlan, target: Target, rule: RegionPlan, beyond: bool) -> RowsProblem:
    """What is searched for the loops of `plan`. rule: what the rules decide; beyond: whether inputs and results lie in
    memory: tasks and scratch are then those of the other versions."""
    limits, row = target.thresholds.rows, plan.row(space)
    lengths = (max(row.const, 1),) if row.is_const else limits.searched_rows
    rows = tuple((length, 1.0) for length in lengths)
    machine = Machine(limits.rates, target.lanes, target.registers, target.thresholds.device.rates.gigahertz, rows, beyond)
    cached = tuple(body.nodes[number] for number in rule.cached)
    decision = Decision(rule.rows, rule.short, beyond, rule.vectors, plan.stages, cached)
    return rows_problem(space, body, plan, machine, decision, limits.least_gain, is_open=not beyond)


def _told(posed: RowsProblem, found: Found) -> SearchPlan:
    count = len(posed.machine.rows)
    rules, best = (round(posed.costs.cost(each) / count * 1024e12) for each in (posed.costs.rules, found.assignment))
    return SearchPlan(posed.variables, posed.problem.open, posed.space, posed.problem.space, found.candidates, rules, best)


def ruled(space: IndexSpace, body: Body, plan: RowPlan, kind: str, target: Target, *, beyond: bool = False) -> RegionPlan:
    """By rules; beyond: where results bypass the caches. With row reductions, whose last steps are long chains of dependent instructions,
    several rows share their loops; with reductions of columns, as many vectors as whole cache lines side by side, and as many
    chains of additions."""
    limits = target.thresholds.rows
    blocks = kind == "loop" and _work(space, body, plan) <= limits.block_cost and plan_blocks(space, plan, limits.strip) is not None
    form = "flat" if _may_be_flat(plan, kind) else "blocks" if blocks else "groups"
    together = limits.rows if plan.stages and plan.group else 1
    short = limits.rows_bytes // (together * _row_bytes(space, body.arguments, plan)) if together > 1 else 0
    reductions = max((sum(len(stage) for stage in tile.columns) for tile in plan.tiles), default=0)
    columns = max(1, limits.columns // reductions) if reductions else 1
    stages = tuple(numbers_of(body, (node for node, _ in stage)) for stage in plan.stages)
    return RegionPlan(
        form, len(plan.tiles), together, short, columns, _vectors(plan, target, beyond), stages, numbers_of(body, plan.cached)
    )  # fmt: skip


def _vectors(plan: RowPlan, target: Target, beyond: bool) -> tuple[int, ...]:
    """Vectors side by side, by rules: in each round of reductions, then of results. One of expensive values where results bypass caches:
    memory is what such kernels wait for, and more of their stores in a row wait for each other, the more so when memory is busy (measured:
    1.04 to 0.85 with two). In a row kernel what is expensive is computed once per row, or kept from the pass that reduced it."""
    limits = target.thresholds.rows
    turns = 1 if beyond else limits.turns
    rounds = [
        turns if any(node_cost(source) > limits.turn_cost for node, _ in stage for source in node.operands[: len(node.operands) // 2])
        else limits.chains
        for stage in plan.stages
    ]  # fmt: skip
    dear = not plan.stages and limits.turn_cost < sum(node_cost(root) for root in plan.full_roots) <= limits.most_turn_cost
    return (*rounds, turns if dear else 1)


# --- which may ---------------------------------------------------------------------------------------------------------------


def may_be_rows(body: Body, kind: str, space: IndexSpace, target: Target, guards: Sequence[Guard], plan: RowsPlan) -> None:
    """Raises IllegalPlan for a plan that the fusion cannot have."""
    plans = plan_kernel(space, body, kind, target.thresholds)
    check(len(plan.regions) == len(plans), "regions", f"there must be {len(plans)}")
    known, last = range(len(guards)), len(guards) - 1
    versions = plan.versions
    check(
        all(number in known for number in versions) and versions == tuple(sorted(set(versions))), "versions", f"are some of {list(known)}"
    )
    check(versions[-1:] == (last,), "versions", f"the last must be {last}, which always holds")
    read = [read_version(guards[number], body) for number in versions]
    streamed = len(plans) if any(version.streams for version in read) else 0
    check(len(plan.streamed) == streamed, "streamed", f"there must be {streamed}")
    for loops, region in zip(plans, plan.regions, strict=True):
        _may_be_region(space, body, loops, kind, target, region)
    for loops, region, near in zip(plans[:streamed], plan.streamed, plan.regions[:streamed], strict=True):
        _may_be_region(space, body, loops, kind, target, region)
        keep_equal(region, near, "form", "rows", "short", "columns", "cached")  # tasks and scratch are those of all versions
    long = any(version.most_rows is not None for version in read)
    check(long == (plan.parts > 0), "parts", "must be 0 unless there is code for few long rows, and more where there is")
    if long:
        found = plan_long_rows(space, body, plans[0], target.thresholds, plan.parts) if len(plans) == 1 else None
        check(found is not None, "versions", "rows cannot be cut into parts")
        check(plan.parts <= MOST_PARTS, "parts", f"must be up to {MOST_PARTS}")


def _may_be_region(space: IndexSpace, body: Body, loops: RowPlan, kind: str, target: Target, region: RegionPlan) -> None:
    flat = _may_be_flat(loops, kind)
    forms = ["groups", *(["flat"] if flat else [])]
    limits = target.thresholds.rows
    if kind == "loop" and plan_blocks(space, loops, limits.strip) is not None:
        forms.append("blocks")
    check(region.form in forms, "form", f"must be {' or '.join(forms)}")
    most = MOST_TOGETHER if loops.stages and loops.group and region.form == "groups" else 1
    check(1 <= region.rows <= most, "rows", f"must be from 1 to {most}")
    most = MOST_SHORT if region.rows > 1 else 0
    check(0 <= region.short <= most, "short", f"must be from 0 to {most}")
    most = limits.columns if loops.columns else 1
    check(1 <= region.columns <= most, "columns", f"must be from 1 to {most}")
    count = len(loops.stages) + 1
    check(len(region.vectors) == count and set(region.vectors) <= set(WIDTHS), "vectors", f"must be {count} of {list(WIDTHS)}")
    keep_equal(region, ruled(space, body, loops, kind, target), "tiles")
    _may_be_stages(body, loops, region)
    may = set(numbers_of(body, rows_that_may_be_kept(body, loops.space))) if loops.stages else set[int]()
    check(set(region.cached) <= may, "cached", f"may be some of {sorted(may)}")


def _may_be_stages(body: Body, loops: RowPlan, region: RegionPlan) -> None:
    """The reductions of the fusion, each once, in rounds behind those that they need."""
    derived = tuple(numbers_of(body, (node for node, _ in stage)) for stage in loops.stages)
    same = sorted(each for stage in region.stages for each in stage) == sorted(each for stage in derived for each in stage)
    check(same and len(region.stages) == len(derived) and all(region.stages), "stages", f"must have those of {derived}, in as many rounds")
    if region.stages == derived:
        return
    found = read_stages(body, loops)
    rounds = {body.nodes[each].siblings[0]: number for number, stage in enumerate(region.stages) for each in stage}
    for node, needs in zip(found.reductions, found.needs, strict=True):
        check(all(rounds[found.reductions[each]] < rounds[node] for each in needs), "stages", "a reduction comes before what it needs")


# --- what follows from it -----------------------------------------------------------------------------------------------------


def region_of(space: IndexSpace, body: Body, plan: RowPlan, target: Target, decided: RegionPlan) -> Region:
    """The loops of `plan` as decided."""
    row, groups, limits = plan.row(space), plan.groups(space), target.thresholds.rows
    cached = tuple(body.nodes[number] for number in decided.cached)
    plan = replace(
        plan, cached=cached, rows_together=decided.rows, short_row=decided.short, columns_together=decided.columns, vectors=decided.vectors,
        stages=_reordered(body, plan, decided),
    )  # fmt: skip
    blocked = plan_blocks(space, plan, limits.strip) if decided.form == "blocks" else None
    tasks, elements = groups, row
    if decided.form == "flat":
        chunk = chunk_of(plan, target)
        tasks, elements = (row + (chunk - 1)) // chunk, Dim.of(chunk)
    elif plan.rows_together > 1:
        block = block_of(space, plan)
        tasks, elements = (groups + (block - 1)) // block, row * block
    elif blocked is not None:
        tasks, elements = blocked.tasks(space), row * limits.strip
    return Region(plan, decided, blocked, tasks, elements, _work(space, body, plan))


def _reordered(body: Body, plan: RowPlan, decided: RegionPlan) -> tuple[tuple[Dominant, ...], ...]:
    """The rounds of reductions as decided."""
    number = {body.nodes[each]: place for place, stage in enumerate(decided.stages) for each in stage}
    every = [each for stage in plan.stages for each in stage]
    return tuple(tuple(each for each in every if number[each[0]] == place) for place in range(len(plan.stages)))


def _may_be_flat(plan: RowPlan, kind: str) -> bool:
    """Whether all elements are those of one loop."""
    return kind == "loop" and not plan.group and [len(tile.variables) for tile in plan.tiles] == [1]


def _work(space: IndexSpace, body: Body, plan: RowPlan) -> int:
    """The cost of an element of all results: where they are concatenated, of the parts that are read alone."""
    if not any(node.op == "stablehlo.concatenate" for node in body.nodes):
        return sum(node_cost(root) + 2 for root in body.yields)
    probe = Probe(space, frozenset())
    for tile in plan.tiles:
        for root in plan.full_roots:
            probe.visit(root, root_index(space, tile.index, plan.space, root))
    return sum(op_cost(node) for node in probe.ops) + 2 * len(body.yields)


def _has_version(space: IndexSpace, region: Region, version: RowVersion, widest: int) -> bool:
    """False where a version that bypasses the caches would not bypass them with vectors of the widest level: all levels have the same."""
    return not version.streams or streams(space, region, version, widest, widest)


def streams(space: IndexSpace, region: Region, version: RowVersion, lanes: int, widest: int) -> bool:
    """Whether a version bypasses the caches at this ISA level. Only whole lines do: loops over rows that begin within one begin on a line
    themselves, but blocks do not, nor do loops over values in scratch that cannot be shifted."""
    if not version.streams:
        return False
    plan = region.plan
    whole = version.is_whole(space, lanes, [tile.lane.extent for tile in plan.tiles if tile.variables])
    return whole or not (region.blocked is not None or _is_fixed(plan, lanes != widest))


def _is_fixed(plan: RowPlan, narrow: bool) -> bool:
    """True when values in scratch can only be read in the vectors in which they were stored. narrow: vectors are not the widest ones."""
    return any(narrow or register_element(node.element) not in ("f32", "i32") for node in plan.cached)


def block_of(space: IndexSpace, plan: RowPlan) -> Dim:
    """Rows of a task: those of the plan where they are so short that they go side by side, else 1."""
    length = space.env.product(plan.space[len(plan.group_dims) :])
    short = dim_min(Dim.of(plan.short_row) // dim_max(length, 1), 1)
    return short * (plan.rows_together - 1) + 1


def _row_bytes(space: IndexSpace, arguments: Sequence[Node], plan: RowPlan) -> int:
    """Bytes on chip of one element of a row."""
    whole = space.env.product(plan.space)
    inputs = [node for node in arguments if space.env.product(node.dims) == whole]
    return max(1, sum(ELEMENT_BYTES[node.element] for node in (*inputs, *plan.cached)))


def chunk_of(plan: RowPlan, target: Target) -> int:
    """Elements of a flat loop per task."""
    return target.thresholds.rows.chunk if plan.columns_together == 1 else plan.columns_together * target.lanes


def mean(tasks: Dim, costs: Sequence[Dim]) -> Dim:
    """Cycles of a task of any region."""
    return sum(costs, ZERO) // dim_max(tasks, ONE)
