"""Device-neutral kernel plans: which dims are parallel, which form a row, what is kept on chip between stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import CompilerBug
from ..ir.costs import node_cost, op_cost
from ..ir.graph import Body, Node, is_row_reduction
from ..shapes import Dim, Truth
from .index import ONE, Index, IndexSpace, split_linear, view_index
from .probe import LoopVariable, Nest, Probe, Visit, choose_nest

Dominant = tuple[Node, Index]
PARTIAL = frozenset(
    {
        "disc.pad",
        "stablehlo.concatenate",
        "disc.gather",
        "stablehlo.dynamic_slice",
        "stablehlo.dynamic_update_slice",
        "stablehlo.reduce_window",
    }
)


@dataclass(frozen=True)
class RowPlan:
    """A kernel over `group` × `tile` loops: every group iteration is independent (a task or part of one); the last tile loop
    runs over vector lanes; reductions over exactly the tile dims are computed once per group iteration.

    space: the dims iterated; index: the position in them; group_dims, group_index: the part that names a row (stitch);
    groups, row: the numbers of group iterations and of elements per iteration; cached: values kept as a row in scratch.
    stages: the reductions that are the same for all of a row, with their indices, in rounds that need only the rounds before; columns:
    those of a loop kernel that differ from lane to lane, likewise.
    """

    space: tuple[Dim, ...]
    index: Index
    group_dims: tuple[Dim, ...]
    group_index: Index
    group: tuple[LoopVariable, ...]
    tile: tuple[LoopVariable, ...]
    full_roots: tuple[Node, ...]
    group_roots: tuple[Node, ...]
    cached: tuple[Node, ...] = ()
    stages: tuple[tuple[Dominant, ...], ...] = ()
    columns: tuple[tuple[Dominant, ...], ...] = ()

    def groups(self, space: IndexSpace) -> Dim:
        """The number of group iterations."""
        return space.env.product([variable.extent for variable in self.group])

    def row(self, space: IndexSpace) -> Dim:
        """The number of elements of one group iteration; where nothing is stored per element, of the rows that are reduced."""
        if not self.tile:
            return space.env.product(self.space[len(self.group_dims) :])
        return space.env.product([variable.extent for variable in self.tile])

    def depth(self, space: IndexSpace) -> Dim:
        """How many elements are read for each one that is written: the length of the columns of a loop kernel."""
        lengths = [
            space.env.product([node.operands[0].dims[axis] for axis in node.ints("dimensions")])
            for stage in self.columns
            for node, _ in stage
        ]
        return lengths[0] if lengths else ONE


def plan_rows(space: IndexSpace, body: Body, kind: str, leaves: frozenset[Node] = frozenset()) -> RowPlan:
    """Plans a fusion of kind "loop" or "stitch" (paper §4.2, steps 1 to 3: dominants, group dims, propagation).

    leaves: values of the fusion that lie in memory like inputs.
    """
    if kind == "loop":
        return _plan_loop(space, body)
    dims, group_rank = row_space(body)
    whole = space.env.product(dims)
    full, grouped = [], []
    for root in body.yields:
        (full if space.env.equal(space.env.product(root.dims), whole) is Truth.YES else grouped).append(root)
    group, tile = _nests(space, dims, group_rank, full, grouped, leaves)
    index = group.index + tile.index
    roots = [(root, root_index(space, index, dims, root)) for root in full]
    roots += [(root, root_index(space, group.index, dims[:group_rank], root)) for root in grouped]
    stages = _stages(space, roots, frozenset(variable.name for variable in tile.variables), leaves)
    return RowPlan(
        dims, index, dims[:group_rank], group.index, group.variables, tile.variables, tuple(full), tuple(grouped), _cached_rows(body, dims),
        stages,
    )  # fmt: skip


def _stages(
    space: IndexSpace, roots: Sequence[Dominant], lanes: frozenset[str], leaves: frozenset[Node]
) -> tuple[tuple[Dominant, ...], ...]:
    """The reductions behind `roots` that are the same for all of a row (their index has none of the variables `lanes`), by round.

    Not looked for: what stands behind an op that reads only parts of its operand, which may not be needed at all.
    """
    rounds: dict[Dominant, int] = {}
    seen: dict[Dominant, int] = {}

    def visit(node: Node, index: Index) -> int:
        """The round after which the value can be computed."""
        if (node, index) not in seen:
            seen[node, index] = 0
            seen[node, index] = look(node, index)
        return seen[node, index]

    def look(node: Node, index: Index) -> int:
        if node.op == "input" or node in leaves:
            return 0
        viewed = view_index(space, node, index)
        if viewed is not None:
            return visit(node.operands[0], viewed)
        if node.op in PARTIAL:
            return 0
        if node.op != "stablehlo.reduce":
            return max((visit(operand, index if operand.dims else ()) for operand in node.operands), default=0)
        first, kept = node.siblings[0], iter(index)
        sizes, reduced = node.operands[0].dims, node.ints("dimensions")
        at = tuple(space.variable(f"stage_{first.id}_{axis}", sizes[axis]) if axis in reduced else next(kept) for axis in range(len(sizes)))
        before = max((visit(source, at) for source in node.operands[: len(node.operands) // 2]), default=0)
        if any(name in lanes or name.startswith("stage_") for dim in index for name in dim.symbols()):
            return before
        return rounds.setdefault((first, index), before + 1)

    for root, index in roots:
        visit(root, index)
    last = max(rounds.values(), default=0)
    return tuple(tuple(dominant for dominant, each in rounds.items() if each == number) for number in range(1, last + 1))


def _plan_loop(space: IndexSpace, body: Body) -> RowPlan:
    dims = max((root.dims for root in body.yields), key=lambda each: len([dim for dim in each if dim != ONE]))

    def visit(probe: Probe, index: Index) -> None:
        for root in body.yields:
            at = root_index(probe.space, index, dims, root)
            probe.offsets.append(probe.space.linear(at, root.dims))
            probe.visit(root, at)

    nest = choose_nest(space, dims, frozenset(), visit, "d")
    if not nest.variables:
        return RowPlan(dims, nest.index, dims, nest.index, (), (), (), body.yields)
    lane = nest.variables[-1]
    stages = _stages(space, [(root, root_index(space, nest.index, dims, root)) for root in body.yields], frozenset(), frozenset())
    columns = [tuple((node, index) for node, index in stage if any(lane.name in dim.symbols() for dim in index)) for stage in stages]
    order = _in_input_order(space, nest, visit)
    return RowPlan(dims, nest.index, (), (), order, (lane,), body.yields, (), columns=tuple(stage for stage in columns if stage))


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


def row_space(body: Body) -> tuple[tuple[Dim, ...], int]:
    """(dims, number of group dims) of a stitch kernel: those of its first row reduction's operand, split at the first reduced dim that
    is not 1 (kept dims of size 1 may follow it)."""
    reduction = next(node for node in body.nodes if is_row_reduction(node))
    dims = reduction.operands[0].dims
    return dims, min(axis for axis in reduction.ints("dimensions") if dims[axis] != ONE)


def root_index(space: IndexSpace, index: Sequence[Dim], dims: Sequence[Dim], root: Node) -> Index:
    """The index of the element of `root` that iteration `index` over `dims` produces."""
    if tuple(dims) == root.dims:
        return tuple(index)
    return space.reshape(tuple(index), dims, root.dims)  # a reshape between equal products, read backwards


def _nests(
    space: IndexSpace, dims: tuple[Dim, ...], rank: int, full: list[Node], grouped: list[Node], leaves: frozenset[Node]
) -> tuple[Nest, Nest]:
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

    group = choose_nest(space, group_dims, leaves, visit_group, "g")

    def visit_tile(probe: Probe, index: Index) -> None:
        for root in full:
            at = root_index(probe.space, group.index + index, dims, root)
            probe.offsets.append(probe.space.linear(at, root.dims))
            probe.visit(root, at)

    tile = choose_nest(space, tile_dims, leaves, visit_tile, "t") if full else Nest((), fixed_tile)
    return group, tile


def _cached_rows(body: Body, dims: tuple[Dim, ...]) -> tuple[Node, ...]:
    """Values worth keeping as a row: read by a reduction and by something else, and dear to compute again."""
    chosen: list[Node] = []
    for node in body.nodes:
        if node.element == "i1" or op_cost(node) == 0 or node.op == "stablehlo.reduce" or len(set(node.uses)) < 2:
            continue
        feeds_reduction = any(user.op == "stablehlo.reduce" for user in node.uses)
        if feeds_reduction and node.dims == dims and node_cost(node) >= 12:
            chosen.append(node)
    return tuple(chosen)


def check_single_dot(body: Body) -> Node:
    """The one dot or convolution of a compute fusion."""
    found = [node for node in body.nodes if node.op in ("stablehlo.dot_general", "disc.scaled_dot", "stablehlo.convolution")]
    if len(found) != 1:
        raise CompilerBug(f"a compute fusion holds {len(found)} dots")
    return found[0]
