"""Device-neutral kernel plans: which dims are parallel, which form a row, what is kept on chip between stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from disc.codegen.plan.index import ONE, ZERO, Index, IndexSpace, part_at, split_linear, view_index
from disc.codegen.plan.nests import LoopVariable, Nest, Visit, choose_nest, choose_nests
from disc.codegen.plan.probe import Probe
from disc.errors import CompilerBug
from disc.ir.costs import Costs, inputs_of, node_cost, op_cost
from disc.ir.graph import Body, Node, row_space
from disc.ir.op_table import PARTIAL, PRODUCTS
from disc.shapes import Dim, Truth
from disc.shapes.recursion import Recursive, run_recursive
from disc.targets.thresholds import RowThresholds, Thresholds

Dominant = tuple[Node, Index]
ChooseNests = Callable[[IndexSpace, Sequence[Dim], frozenset[Node], Visit, str], list[Nest]]


@dataclass(frozen=True)
class Tile:
    """Loops within one group iteration, the last one over vector lanes.

    index: the position in the dims iterated; columns: the reductions of a loop kernel that differ from lane to lane, with their indices, in
    rounds that need only the rounds before.
    """

    variables: tuple[LoopVariable, ...]
    index: Index
    columns: tuple[tuple[Dominant, ...], ...] = ()

    @property
    def lane(self) -> LoopVariable:
        """The innermost loop."""
        return self.variables[-1]


@dataclass(frozen=True)
class RowPlan:
    """Loops over `group`, and within them one after the other those of `tiles`: every group iteration is independent (a task or part of
    one); reductions over exactly the tile dims are computed once per group iteration.

    space: the dims iterated; group_dims, group_index: the part that names a row (stitch); tiles: one, unless elements of a row are those of
    a concatenation's parts, none where nothing is stored per element; cached: values kept as a row in scratch. stages: the reductions that
    are the same for all of a row, with their indices, in rounds that need only the rounds before. rows_together: group iterations whose
    loops are the same, where a row has up to `short_row` elements; columns_together: vectors of columns that are reduced in one loop.
    vectors: of a row, computed side by side in the loop of each round, then of the results; (): as the emitter has it.
    """

    space: tuple[Dim, ...]
    group_dims: tuple[Dim, ...]
    group_index: Index
    group: tuple[LoopVariable, ...]
    tiles: tuple[Tile, ...]
    full_roots: tuple[Node, ...]
    group_roots: tuple[Node, ...]
    cached: tuple[Node, ...] = ()
    stages: tuple[tuple[Dominant, ...], ...] = ()
    rows_together: int = 1
    short_row: int = 0
    columns_together: int = 1
    vectors: tuple[int, ...] = ()

    def groups(self, space: IndexSpace) -> Dim:
        """The number of group iterations."""
        return space.env.product([variable.extent for variable in self.group])

    def row(self, space: IndexSpace) -> Dim:
        """The number of elements of one group iteration; where nothing is stored per element, of the rows that are reduced."""
        if not self.tiles:
            return space.env.product(self.space[len(self.group_dims) :])
        return sum((space.env.product([variable.extent for variable in tile.variables]) for tile in self.tiles), ZERO)

    def depth(self, space: IndexSpace) -> Dim:
        """How many elements are read for each one that is written: the length of the columns of a loop kernel."""
        lengths = [
            space.env.product([node.operands[0].dims[axis] for axis in node.ints("dimensions")])
            for tile in self.tiles
            for stage in tile.columns
            for node, _ in stage
        ]
        return lengths[0] if lengths else ONE

    @property
    def columns(self) -> bool:
        """True for a loop kernel that reduces columns."""
        return any(tile.columns for tile in self.tiles)


def plan_kernel(space: IndexSpace, body: Body, kind: str, thresholds: Thresholds) -> tuple[RowPlan, ...]:
    """Plans a fusion of kind "loop" or "stitch": one plan, or one after the other for the parts of its concatenations."""
    if kind == "loop":
        return _joined(_plan_loops(space, body, thresholds.rows))
    choose = partial(choose_nests, most=thresholds.rows.nests, repeats=thresholds.rows.repeats)
    return tuple(_plan_stitch(space, body, frozenset(), choose, thresholds))


def plan_rows(space: IndexSpace, body: Body, leaves: frozenset[Node], thresholds: Thresholds) -> RowPlan:
    """Plans rows as those of a stitch fusion, all elements in the same loops. leaves: values of `body` that lie in memory like inputs."""
    (plan,) = _plan_stitch(space, body, leaves, lambda *arguments: [choose_nest(*arguments)], thresholds)
    return plan


def _joined(plans: Sequence[RowPlan]) -> tuple[RowPlan, ...]:
    """Neighbours over the same group loops become one plan: the parts of a row are worked on together. Plans that reduce rows do not:
    equal loops may be over the rows of different parts."""
    found: list[RowPlan] = []
    for plan in plans:
        if found and plan.group == found[-1].group and (plan.group or not any(tile.variables for tile in (*plan.tiles, *found[-1].tiles))):
            found[-1] = replace(found[-1], tiles=(*found[-1].tiles, *plan.tiles))
        else:
            found.append(plan)
    return tuple(found)


def _plan_stitch(space: IndexSpace, body: Body, leaves: frozenset[Node], choose: ChooseNests, thresholds: Thresholds) -> list[RowPlan]:
    """Paper §4.2, steps 1 to 3: dominants, group dims, propagation."""
    dims, rank = row_space(body.nodes)
    whole = space.env.product(dims)
    full, grouped = [], []
    for root in body.yields:
        (full if space.env.equal(space.env.product(root.dims), whole) is Truth.YES else grouped).append(root)
    cached = rows_to_keep(body, dims, Costs.of(thresholds.device))
    plans: list[RowPlan] = []
    for group, nests in _nests(space, dims, rank, full, grouped, leaves, choose):
        tiles = tuple(Tile(nest.variables, group.index + nest.index) for nest in nests)
        lanes = frozenset(variable.name for tile in tiles for variable in tile.variables)
        roots = [(root, root_index(space, tile.index, dims, root)) for tile in tiles for root in full]
        roots += [(root, root_index(space, group.index, dims[:rank], root)) for root in grouped]
        stages = _stages(space, roots, lanes, leaves)
        plans.append(RowPlan(dims, dims[:rank], group.index, group.variables, tiles, tuple(full), tuple(grouped), cached, stages))
    return plans


def _stages(
    space: IndexSpace, roots: Sequence[Dominant], lanes: frozenset[str], leaves: frozenset[Node]
) -> tuple[tuple[Dominant, ...], ...]:
    """The reductions behind `roots` that are the same for all of a row (their index has none of the variables `lanes`), by round.

    Not looked for: what stands behind an op that reads only parts of its operand, which may not be needed at all.
    """
    rounds: dict[Dominant, int] = {}
    seen: dict[Dominant, int] = {}

    def visit(node: Node, index: Index) -> Recursive[int]:
        """The round after which the value can be computed."""
        if (node, index) not in seen:
            seen[node, index] = 0
            seen[node, index] = yield from look(node, index)
        return seen[node, index]

    def latest(needed: Sequence[Dominant]) -> Recursive[int]:
        found = 0
        for node, index in needed:
            found = max(found, (yield visit(node, index)))
        return found

    def look(node: Node, index: Index) -> Recursive[int]:
        if node.op == "input" or node in leaves:
            return 0
        viewed = view_index(space, node, index)
        if viewed is not None:
            return (yield visit(node.operands[0], viewed))
        part = part_at(space, node, index)
        if part is not None:
            return (yield visit(*part))
        if node.op in PARTIAL:
            return 0
        if node.op != "stablehlo.reduce":
            return (yield from latest([(operand, index if operand.dims else ()) for operand in node.operands]))
        first, kept = node.siblings[0], iter(index)
        sizes, reduced = node.operands[0].dims, node.ints("dimensions")
        at = tuple(space.variable(f"stage_{first.id}_{axis}", sizes[axis]) if axis in reduced else next(kept) for axis in range(len(sizes)))
        before = yield from latest([(source, at) for source in node.operands[: len(node.operands) // 2]])
        if any(name in lanes or name.startswith("stage_") for dim in index for name in dim.symbols()):
            return before
        return rounds.setdefault((first, index), before + 1)

    for root, index in roots:
        run_recursive(visit(root, index))
    last = max(rounds.values(), default=0)
    return tuple(tuple(dominant for dominant, each in rounds.items() if each == number) for number in range(1, last + 1))


def _plan_loops(space: IndexSpace, body: Body, limits: RowThresholds) -> list[RowPlan]:
    dims = max((root.dims for root in body.yields), key=lambda each: len([dim for dim in each if dim != ONE]))

    def visit(probe: Probe, index: Index) -> None:
        for root in body.yields:
            at = root_index(probe.space, index, dims, root)
            probe.offsets.append(probe.space.linear(at, root.dims))
            probe.visit(root, at)

    def plan(nest: Nest) -> RowPlan:
        if not nest.variables:
            return RowPlan(dims, dims, nest.index, (), (Tile((), nest.index),), body.yields, ())
        lane = nest.variables[-1]
        stages = _stages(space, [(root, root_index(space, nest.index, dims, root)) for root in body.yields], frozenset(), frozenset())
        columns = [tuple((node, index) for node, index in stage if any(lane.name in dim.symbols() for dim in index)) for stage in stages]
        tile = Tile((lane,), nest.index, tuple(stage for stage in columns if stage))
        return RowPlan(dims, (), (), _in_input_order(space, nest, visit), (tile,), body.yields, ())

    return [plan(nest) for nest in choose_nests(space, dims, frozenset(), visit, "d", limits.nests, limits.repeats)]


def _in_input_order(space: IndexSpace, nest: Nest, visit: Visit) -> tuple[LoopVariable, ...]:
    """The loops around the lanes, ordered as one whole input lies in memory: stores do not wait, scattered loads do."""
    probe = Probe(space, frozenset())
    visit(probe, nest.index)
    whole = space.env.product([variable.extent for variable in nest.variables])
    offset = next((offset for node, offset in probe.reads if space.env.equal(space.env.product(node.dims), whole) is Truth.YES), None)
    ordered: list[LoopVariable] = []
    for variable in nest.variables[:-1]:
        place = len(ordered)
        while place and offset is not None and _steps_further(space, offset, variable.name, ordered[place - 1].name):
            place -= 1
        ordered.insert(place, variable)
    return tuple(ordered)


def _steps_further(space: IndexSpace, offset: Dim, first: str, second: str) -> bool:
    """True when a step of loop `first` moves `offset` by a whole number of steps of `second`."""
    near, far = split_linear(offset, second), split_linear(offset, first)
    return near is not None and far is not None and near[0] != far[0] and space.env.exact_div(far[0], near[0]) is not None


def root_index(space: IndexSpace, index: Sequence[Dim], dims: Sequence[Dim], root: Node) -> Index:
    """The index of the element of `root` that iteration `index` over `dims` produces."""
    if tuple(dims) == root.dims:
        return tuple(index)
    return space.reshape(tuple(index), dims, root.dims)  # a reshape between equal products, read backwards


def _nests(
    space: IndexSpace, dims: tuple[Dim, ...], rank: int, full: list[Node], grouped: list[Node], leaves: frozenset[Node], choose: ChooseNests
) -> list[tuple[Nest, list[Nest]]]:
    """Nests over groups, and for each those over the elements of its rows."""
    group_dims, tile_dims = dims[:rank], dims[rank:]
    fixed_tile = tuple(space.variable(f"tile{number}", size) for number, size in enumerate(tile_dims))

    def visit_group(probe: Probe, index: Index) -> None:
        for root in full:
            at = root_index(probe.space, index + fixed_tile, dims, root)
            probe.offsets.append(probe.space.linear(at, root.dims))
            probe.visit(root, at)
        for root in grouped:
            at = root_index(probe.space, index, group_dims, root)
            probe.offsets.append(probe.space.linear(at, root.dims))
            probe.visit(root, at)

    def tiles(group: Nest) -> list[Nest]:
        def visit_tile(probe: Probe, index: Index) -> None:
            for root in full:
                at = root_index(probe.space, group.index + index, dims, root)
                probe.offsets.append(probe.space.linear(at, root.dims))
                probe.visit(root, at)

        return choose(space, tile_dims, leaves, visit_tile, "t") if full else []

    return [(group, tiles(group)) for group in choose(space, group_dims, leaves, visit_group, "g")]


def rows_to_keep(body: Body, dims: tuple[Dim, ...], costs: Costs) -> tuple[Node, ...]:
    """Values worth keeping as a row: read by a reduction and by something else, and no cheaper to compute again, per vector, than to store
    and load. To compute it again is to load its inputs again, but for one, in whose place it would be loaded."""
    chosen: list[Node] = []
    for node in body.nodes:
        if node.element == "i1" or op_cost(node) == 0 or node.op == "stablehlo.reduce" or len(set(node.uses)) < 2:
            continue
        if node.dims != dims or all(user.op != "stablehlo.reduce" for user in node.uses):
            continue
        if costs.compute(node_cost(node)) + costs.reload(max(len(inputs_of(node)) - 1, 0)) >= costs.keep():
            chosen.append(node)
    return tuple(chosen)


def numbers_of(body: Body, nodes: Iterable[Node]) -> tuple[int, ...]:
    """The places of values among those of a fusion, arguments first: how a plan names them."""
    return tuple(body.nodes.index(node) for node in nodes)


def check_single_dot(body: Body) -> Node:
    """The one dot or convolution of a compute fusion."""
    found = [node for node in body.nodes if node.op in PRODUCTS]
    if len(found) != 1:
        raise CompilerBug(f"a compute fusion holds {len(found)} dots")
    return found[0]
