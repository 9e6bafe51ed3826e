"""Loop kernels that reduce columns on a GPU: lanes along the result, and several rows of a column side by side.

    %s = stablehlo.reduce(%x) over dims that are not the last ones        a block of `rows` x `columns` of %x at a time, summed in registers

A loop kernel whose lanes go down their columns alone waits for memory at every step; here `rows` loads of a lane's column are under way
together, and what the rows of the block have is reduced at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from disc.codegen.cuda.elementwise import combined
from disc.codegen.cuda.emit import Buffer, Emitter, Predicate
from disc.codegen.cuda.kernel import DeviceVersion, emit_version
from disc.codegen.cuda.structural import RULES, reduced_along, reduced_kind
from disc.codegen.cuda.text import Variable
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.index import Index, IndexSpace
from disc.codegen.plan.nests import Nest
from disc.codegen.plan.rows import root_index
from disc.ir.graph import Body, Node
from disc.ir.reducers import IN_ORDER
from disc.shapes import Dim
from disc.shapes.recursion import Recursive
from disc.speculation.guards import Guard
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
    w, space, siblings = e.w, e.space, node.siblings
    sizes, reduced = node.operands[0].dims, node.ints("dimensions")
    extents = [sizes[axis] for axis in sorted(reduced)]
    length = space.env.product(extents)
    sums, starts = list[str](), list[str]()
    for each in siblings:
        start: str = yield e.compute(node.operands[len(siblings) + each.result], ())
        starts.append(start)
        sums.append(w.name("sum"))
        w.statement(f"{sums[-1]} = tl.broadcast_to({start}, {w.shape})")
    begin, name = w.name("begin"), w.name("down")
    with w.block(f"for {begin} in range(0, {w.number(length)}, {BLOCK.rows}):") as scope:
        place = w.let(f"{begin} + tl.arange(0, {BLOCK.rows})[:, None]", "p")
        live = w.let(f"{place} < {w.number(length)}", "m")
        w.bind(name, Variable(place, scope, frozenset({0}), live))
        positions, kept = iter(space.delinear(space.variable(name, length), extents)), iter(index)
        at = tuple(next(positions) if axis in reduced else next(kept) for axis in range(len(sizes)))
        for each, held, start in zip(siblings, sums, starts, strict=True):
            value: str = yield e.compute(node.operands[each.result], at, predicate)
            counted = w.let(f"tl.where({live}, {value}, {start})")
            w.statement(f"{held} = tl.broadcast_to({combined(reduced_kind(each), each.element, held, counted)}, {w.shape})")
    return tuple(reduced_along(e, each, held, 0) for each, held in zip(siblings, sums, strict=True))
