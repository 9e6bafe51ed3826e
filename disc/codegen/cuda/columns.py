"""Loop kernels that reduce columns on a GPU: lanes along the result, and several rows of a column side by side.

    %s = stablehlo.reduce(%x) over dims that are not the last ones        a block of `rows` x `columns` of %x at a time, summed in registers

A loop kernel whose lanes go down their columns alone waits for memory at every step; here `rows` loads of a lane's column are under way
together, and what the rows of the block have is reduced at the end. Where columns are few and long, several programs share them: each
leaves what its part of the rows gives, and the one that comes last combines the parts in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from disc.codegen.cuda.elementwise import combined
from disc.codegen.cuda.emit import Buffer, Emitter, Predicate
from disc.codegen.cuda.factors import only_at
from disc.codegen.cuda.joins import Join
from disc.codegen.cuda.kernel import DeviceVersion, emit_version
from disc.codegen.cuda.structural import RULES, reduced_along, reduced_kind
from disc.codegen.cuda.text import Variable
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.index import Index, IndexSpace
from disc.codegen.plan.nests import Nest
from disc.codegen.plan.rows import root_index
from disc.ir.graph import Body, Node
from disc.ir.op_table import ELEMENTWISE
from disc.ir.reducers import IN_ORDER
from disc.shapes import Dim, Truth
from disc.shapes.recursion import Recursive, run_recursive
from disc.speculation.guards import AtLeast, Guard, all_of, asked_of
from disc.targets.cuda_thresholds import KERNELS


@dataclass(frozen=True)
class ColumnBlock:
    """columns: of the result in a block; rows: of a column that are loaded at once; warps."""

    columns: int
    rows: int
    warps: int


BLOCK = ColumnBlock(*KERNELS.columns)


def reduces_columns(body: Body) -> bool:
    """Whether a loop kernel has a reduction whose order is free."""
    return any(node.op == "stablehlo.reduce" and IN_ORDER not in node.attrs for node in body.nodes)


def column_version(
    fusion: Fusion, space: IndexSpace, nest: Nest, dims: tuple[Dim, ...], symbols: tuple[str, ...], guard: Guard, wide: bool
) -> DeviceVersion:
    """A version of a loop kernel that reduces columns. nest: its loops over `dims`, those of its largest result."""
    body, block = fusion.body, BLOCK
    count = space.env.product(dims)

    def emit(e: Emitter, results: tuple[Buffer, ...]) -> None:
        w = e.w
        e.rules = {**RULES, "stablehlo.reduce": _reduce}
        program = "tl.program_id(0).to(tl.int64)" if wide else "tl.program_id(0)"
        place = w.let(f"{program} * {block.columns} + tl.arange(0, {block.columns})[None, :]", "i")
        w.bind("flat", Variable(place, w.root, frozenset({1}), w.let(f"{place} < {w.number(count)}", "m")))
        e.bind_loops(space.variable("flat", count), nest.variables)
        together = _independent(body, space, dims)
        if together:
            at = root_index(space, nest.index, dims, together[0])
            values = _together(e, together, at, "0", w.number(_length(space, together[0])))
            e.leaves |= {node: only_at(node, at, value) for node, value in values.items()}
        for root, result in zip(body.yields, results, strict=True):
            index = root_index(space, nest.index, dims, root)
            e.store(result, space.linear(index, root.dims), e.value(root, index))

    grid = ((count + (block.columns - 1)) // block.columns,)
    shape = f"[{block.rows}, {block.columns}]"
    return emit_version(body, space, symbols, shape, emit, grid, block.warps, guard=guard, wide=wide)


def _reduce(e: Emitter, node: Node, index: Index, predicate: Predicate) -> Recursive[str]:
    """All results of a reduction of columns; one within another, or in order, is every lane's own."""
    w = e.w
    names = [name for dim in index for name in dim.symbols()]
    if IN_ORDER in node.attrs or 0 in w.axes_of(names):
        return (yield from _alone(e, node, index, predicate))
    key = ("columns", node.siblings[0].id, index, predicate)
    known = w.known(key)
    if known is None:
        known = yield from _reduced(e, node, index, predicate)
        w.scope.memo[key] = known
    assert isinstance(known, tuple)
    return str(known[node.result])


def _alone(e: Emitter, node: Node, index: Index, predicate: Predicate) -> Recursive[str]:
    found = RULES["stablehlo.reduce"](e, node, index, predicate)
    return found if isinstance(found, str) else (yield from found)


def _reduced(e: Emitter, node: Node, index: Index, predicate: Predicate) -> Recursive[tuple[str, ...]]:
    """Over all rows."""
    past = e.w.number(_length(e.space, node))
    found = yield from _reduced_between(e, node.siblings, index, predicate, "0", past)
    return tuple(found[each] for each in node.siblings)


def _together(e: Emitter, firsts: Sequence[Node], index: Index, first: str, past: str) -> dict[Node, str]:
    """The values of reductions that do not need each other, and of their siblings: a loop loads what several share once (paper 002,
    section 5.1). It has as many sums as registers hold."""
    found, loop = dict[Node, str](), list[Node]()
    for node in firsts:
        if len(loop) + len(node.siblings) > KERNELS.column_sums:
            found |= run_recursive(_reduced_between(e, loop, index, (), first, past)) if loop else {}
            loop = []
        loop += node.siblings
    return found | run_recursive(_reduced_between(e, loop, index, (), first, past))


def _length(space: IndexSpace, node: Node) -> Dim:
    """Elements of a column."""
    return space.env.product([node.operands[0].dims[axis] for axis in sorted(node.ints("dimensions"))])


def _reduced_between(
    e: Emitter, nodes: Sequence[Node], index: Index, predicate: Predicate, first: str, past: str
) -> Recursive[dict[Node, str]]:
    """Results of reductions of columns of one length over the rows from `first` to `past`."""
    w, space = e.w, e.space
    sums, starts = dict[Node, str](), dict[Node, str]()
    for each in nodes:
        start: str = yield e.compute(each.operands[len(each.siblings) + each.result], ())
        starts[each], sums[each] = start, w.name("sum")
        w.statement(f"{sums[each]} = tl.broadcast_to({start}, {w.shape})")
    begin, name = w.name("begin"), w.name("down")
    with w.block(f"for {begin} in range({first}, {past}, {BLOCK.rows}):") as scope:
        place = w.let(f"{begin} + tl.arange(0, {BLOCK.rows})[:, None]", "p")
        live = w.let(f"{place} < {past}", "m")
        w.bind(name, Variable(place, scope, frozenset({0}), live))
        down = space.variable(name, _length(space, nodes[0]))
        for each in nodes:
            value: str = yield e.compute(each.operands[each.result], _source(space, each, down, index), predicate)
            counted = w.let(f"tl.where({live}, {value}, {starts[each]})")
            w.statement(f"{sums[each]} = tl.broadcast_to({combined(reduced_kind(each), each.element, sums[each], counted)}, {w.shape})")
    return {each: reduced_along(e, each, sums[each], 0) for each in nodes}


def _source(space: IndexSpace, node: Node, down: Dim, index: Index) -> Index:
    """The index in what is reduced, at position `down` of the column at `index`."""
    sizes, reduced = node.operands[0].dims, node.ints("dimensions")
    positions, kept = iter(space.delinear(down, [sizes[axis] for axis in sorted(reduced)])), iter(index)
    return tuple(next(positions) if axis in reduced else next(kept) for axis in range(len(sizes)))


# --- columns that programs share --------------------------------------------------------------------------------------------


def shared_versions(
    fusion: Fusion, nest_of: Callable[[IndexSpace], Nest], dims: tuple[Dim, ...], symbols: tuple[str, ...], guard: Guard
) -> Iterator[DeviceVersion]:
    """Versions for so few columns that programs share them; none where reductions are not of the result's dims, need each other, or have
    values of another size than a word. nest_of: the loops over `dims`, those of the largest result, declared in a space."""
    for parts in KERNELS.column_parts:
        space = fusion.space()
        shared = _Shared(fusion, space, nest_of(space), dims, parts)
        if not shared.reductions:
            return
        asked = asked_of((shared.join.fits, AtLeast(parts * BLOCK.rows * KERNELS.column_steps, shared.length)), space.env)
        if asked is not None:
            yield emit_version(
                fusion.body, space, symbols, f"[{BLOCK.rows}, {BLOCK.columns}]", shared.emit, (shared.tiles * parts,), BLOCK.warps,
                guard=all_of((asked, guard)), scratch=shared.join.scratch(),
            )  # fmt: skip


class _Shared:
    """A version whose columns `parts` programs share."""

    def __init__(self, fusion: Fusion, space: IndexSpace, nest: Nest, dims: tuple[Dim, ...], parts: int) -> None:
        self.body, self.space, self.nest, self.dims, self.parts = fusion.body, space, nest, dims, parts
        self.count = space.env.product(dims)
        self.reductions = _words(_independent(self.body, space, dims))
        self.length = _length(space, self.reductions[0]) if self.reductions else Dim.of(0)
        self.tiles = (self.count + (BLOCK.columns - 1)) // BLOCK.columns
        self.join = Join(parts, BLOCK.columns * sum(len(node.siblings) for node in self.reductions), self.tiles)

    def emit(self, e: Emitter, results: tuple[Buffer, ...]) -> None:
        w, parts = e.w, self.parts
        tile, part = w.let(f"tl.program_id(0) // {parts}", "i"), w.let(f"tl.program_id(0) % {parts}", "i")
        place = w.let(f"{tile} * {BLOCK.columns} + tl.arange(0, {BLOCK.columns})[None, :]", "i")
        w.bind("flat", Variable(place, w.root, frozenset({1}), w.let(f"{place} < {w.number(self.count)}", "m")))
        e.bind_loops(self.space.variable("flat", self.count), self.nest.variables)
        span = w.let(f"tl.cdiv(tl.cdiv({w.number(self.length)}, {BLOCK.rows}), {parts}) * {BLOCK.rows}", "i")
        begin, end = w.let(f"{part} * {span}", "i"), w.let(f"tl.minimum({part} * {span} + {span}, {w.number(self.length)})", "i")
        index = root_index(self.space, self.nest.index, self.dims, self.reductions[0])
        found = [(each, index, value) for each, value in _together(e, self.reductions, index, begin, end).items()]
        lanes = [w.let(f"tl.arange(0, {BLOCK.columns})[None, :] + {number * BLOCK.columns}", "i") for number in range(len(found))]
        for (_, _, value), places in zip(found, lanes, strict=True):
            self.join.leave(e, tile, part, places, value)
        starts = [e.value(node.operands[len(node.siblings) + node.result], ()) for node, _, _ in found]
        with self.join.last(e, tile) as scope, w.not_before(scope):
            for (node, index, _), start, places in zip(found, starts, lanes, strict=True):
                total = w.name("total")
                w.statement(f"{total} = tl.broadcast_to({start}, [1, {BLOCK.columns}])")
                for (value,) in self.join.found(e, tile, [places], BLOCK.columns, BLOCK.warps):
                    w.statement(f"{total} = {combined(reduced_kind(node), node.element, total, value)}")
                e.leaves[node] = only_at(node, index, total)
            for root, result in zip(self.body.yields, results, strict=True):
                index = root_index(self.space, self.nest.index, self.dims, root)
                e.store(result, self.space.linear(index, root.dims), e.value(root, index))


def _words(reductions: tuple[Node, ...]) -> tuple[Node, ...]:
    """These, where programs can leave each other their values in scratch; else ()."""
    return reductions if all(each.element == "f32" for node in reductions for each in node.siblings) else ()


def _independent(body: Body, space: IndexSpace, dims: tuple[Dim, ...]) -> tuple[Node, ...]:
    """The reductions of a body, the first of each group of siblings, where all go over as many elements, none needs another, and what is
    made of them has their dims and is element-wise; () where that is not so."""
    every = [node for node in body.nodes if node.op == "stablehlo.reduce"]
    plain = all(IN_ORDER not in node.attrs and node.dims == dims for node in every)
    above = set[Node]()  # what needs a reduction
    for node in body.nodes:
        if any(operand in above or operand in every for operand in node.operands):
            above.add(node)
    if not plain or not all(node.op in ELEMENTWISE and node.dims == dims for node in above):
        return ()
    firsts = tuple(dict.fromkeys(node.siblings[0] for node in every))
    same = all(space.env.equal(_length(space, node), _length(space, firsts[0])) is Truth.YES for node in firsts)
    return firsts if same else ()
