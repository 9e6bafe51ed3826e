"""Sorting, selecting, searching and counting on a GPU, without scratch and without an order among programs.

An element's place in the sorted line is the number of elements that come before it: smaller ones, and equal ones further to the left. Each
program counts that for a block of elements against all of their line, and stores them where they belong. So the sort is stable, takes every
type and length, and is the same in every call. Its work grows with the square of the length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from disc.codegen.cuda.emit import Buffer, Emitter, Predicate
from disc.codegen.cuda.kernel import DeviceVersion, emit_version
from disc.codegen.cuda.rows import body_versions
from disc.codegen.cuda.text import Variable
from disc.codegen.cuda.types import FLOATS
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.index import ONE, Index, IndexSpace
from disc.ir.graph import Node
from disc.shapes import Dim, Truth
from disc.speculation.guards import Guard
from disc.targets.cuda_thresholds import KERNELS

TOPK = "disc.topk"
SORTS = ("disc.sort", TOPK)
SEARCH, COUNT = "disc.search", "disc.count"
MINE, OTHERS, WARPS = KERNELS.ranks  # elements of a program, and those that these are compared with at once
FLAT, SEARCH_WARPS = KERNELS.search  # values of a program that searches


@dataclass(frozen=True)
class _Ranks:
    """A line is sorted along `axis`; the result has the first `kept` of its elements."""

    node: Node
    axis: int
    length: Dim
    lines: Dim
    kept: Dim
    descending: bool


def _read(space: IndexSpace, node: Node) -> _Ranks:
    source = node.operands[0].dims
    axis = node.integer("dim") % max(len(source), 1)
    descending = bool(node.attrs["descending" if node.op == "disc.sort" else "largest"])
    lines = space.env.product([size for other, size in enumerate(source) if other != axis])
    length, kept = (source[axis], node.dims[axis]) if source else (ONE, ONE)
    return _Ranks(node, axis, length, lines, kept, descending)


def rank_extents(fusion: Fusion, node: Node) -> tuple[Dim, ...]:
    """What the kernel loops over."""
    space = fusion.space()
    if node.op in SORTS:
        ranks = _read(space, node)
        return ranks.length, ranks.lines, ranks.kept
    return tuple(space.env.product(each.dims) for each in (node, *node.operands))


def rank_versions(fusion: Fusion, node: Node, symbols: tuple[str, ...]) -> tuple[DeviceVersion, ...]:
    """The versions of a fusion around one op of SORTS, a search or a count."""
    make = _sorted if node.op in SORTS else _searched if node.op == SEARCH else _counted
    return tuple(make(fusion, node, symbols, guard, wide) for guard, wide in body_versions(fusion.space(), fusion.body))


def _lanes(e: Emitter, name: str, begin: str, count: int, axis: int, extent: Dim) -> Dim:
    """Binds a position that runs over the lanes of an axis from `begin`."""
    w = e.w
    place = w.let(f"{begin} + tl.arange(0, {count}){'[:, None]' if axis == 0 else '[None, :]'}", "p")
    w.bind(name, Variable(place, w.scope, frozenset({axis}), w.let(f"{place} < {w.number(extent)}", "m")))
    return e.space.variable(name, extent)


def _blocked(e: Emitter, wide: bool, length: Dim) -> tuple[str, str]:
    """(first element of the program's block, number of its line)."""
    w = e.w
    program = w.let("tl.program_id(0).to(tl.int64)" if wide else "tl.program_id(0)", "i")
    blocks = w.let(f"tl.cdiv({w.number(length)}, {MINE})", "i")
    return w.let(f"{program} % {blocks} * {MINE}", "i"), w.let(f"{program} // {blocks}", "i")


def _blocks(length: Dim) -> Dim:
    return (length + (MINE - 1)) // MINE


# --- sort and top-k -------------------------------------------------------------------------------------------------------


def _sorted(fusion: Fusion, node: Node, symbols: tuple[str, ...], guard: Guard, wide: bool) -> DeviceVersion:
    space = fusion.space()
    ranks = _read(space, node)
    fits = space.env.le(ranks.kept, ranks.length) is Truth.YES

    def emit(e: Emitter, results: tuple[Buffer, ...]) -> None:
        w = e.w
        begin, line = _blocked(e, wide, ranks.length)
        w.bind("line", Variable(line, w.root))
        at = _at(space, ranks, space.variable("line", ranks.lines))
        mine = _lanes(e, "mine", begin, MINE, 0, ranks.length)
        value = e.value(node.operands[0], at(mine))
        w.statement(f"before = tl.zeros([{MINE}, 1], {'tl.int64' if wide else 'tl.int32'})")
        with w.block(f"for step in range(0, {w.number(ranks.length)}, {OTHERS}):"):
            others = _lanes(e, "others", "step", OTHERS, 1, ranks.length)
            found = _precedes(e, ranks, e.value(node.operands[0], at(others)), value)
            live = w.variables["others"].live
            w.statement(f"before += tl.sum(({found} & {live}).to(tl.int32), 1, keep_dims=True)")
        rank = w.bind("rank", Variable("before", w.root, frozenset({0}), w.variables["mine"].live))
        space.variable("rank", ranks.length)
        if not fits:
            _report_beyond(e, ranks)
        kept: Predicate = e.within(rank, Dim.of(0), ranks.kept, ())
        for root, result in zip(fusion.body.yields, results, strict=True):
            stored = value if root is node.siblings[0] else e.w.let(f"{w.number(mine)}.to(tl.int64)")
            e.store(result, space.linear(at(rank), root.dims), stored, kept)

    grid = (_blocks(ranks.length) * ranks.lines,)
    return emit_version(
        fusion.body, space, symbols, f"[{MINE}, {OTHERS}]", emit, grid, WARPS, guard=guard, wide=wide, faults=not fits
    )  # fmt: skip


def _at(space: IndexSpace, ranks: _Ranks, line: Dim) -> Callable[[Dim], Index]:
    source = ranks.node.operands[0].dims
    others = [axis for axis in range(len(source)) if axis != ranks.axis]
    positions = space.delinear(line, [source[axis] for axis in others]) if source else ()

    def at(place: Dim) -> Index:
        index = [place] * len(source)
        for axis, position in zip(others, positions, strict=True):
            index[axis] = position
        return tuple(index)

    return at


def _precedes(e: Emitter, ranks: _Ranks, other: str, mine: str) -> str:
    """Whether `other` stands before `mine`. NaN is the largest number, and zeros are equal."""
    w, element = e.w, ranks.node.operands[0].element
    if element == "i1":
        other, mine = (w.let(f"{each}.to(tl.int32)") for each in (other, mine))
    low, high = (mine, other) if ranks.descending else (other, mine)
    less, equal = f"({low} < {high})", f"({other} == {mine})"
    if element in FLOATS:
        less = f"({less} | (({high} != {high}) & ({low} == {low})))"
        equal = f"({equal} | (({other} != {other}) & ({mine} != {mine})))"
    left = f"({w.variables['others'].name} < {w.variables['mine'].name})"
    return w.let(f"({less} | ({equal} & {left}))")


def _report_beyond(e: Emitter, ranks: _Ranks) -> None:
    """More elements are wanted than a line has."""
    w = e.w
    kept, length = w.number(ranks.kept), w.number(ranks.length)
    e.report(w.let(f"{kept} > {length}", "m"), kept, length)


# --- search ---------------------------------------------------------------------------------------------------------------


def _searched(fusion: Fusion, node: Node, symbols: tuple[str, ...], guard: Guard, wide: bool) -> DeviceVersion:
    """Asks the element in the middle of what is left, as the runtime's function does: with NaN the answer depends on whom one asks."""
    space = fusion.space()
    values, lines = node.operands
    count, size = space.env.product(values.dims), lines.dims[-1] if lines.dims else ONE

    def emit(e: Emitter, results: tuple[Buffer, ...]) -> None:
        w = e.w
        program = "tl.program_id(0).to(tl.int64)" if wide else "tl.program_id(0)"
        place = w.let(f"{program} * {FLAT} + tl.arange(0, {FLAT})", "p")
        live = w.let(f"{place} < {w.number(count)}", "m")
        w.bind("flat", Variable(place, w.root, frozenset({0}), live))
        index = space.delinear(space.variable("flat", count), values.dims)
        value = e.value(values, index)
        w.statement(f"begin = {place} * 0")
        w.statement(f"end = begin + {w.number(size)}")
        with w.block(f"while tl.max(({live} & (begin < end)).to(tl.int32)) > 0:") as scope:
            middle = w.let("begin + (end - begin) // 2", "i")
            left = w.let(f"{live} & (begin < end)", "m")
            w.bind("middle", Variable(middle, scope, frozenset({0}), left))
            asked = space.variable("middle", size)
            found = e.value(lines, (*index[: len(lines.dims) - 1], asked) if lines.dims else ())
            beyond = f"{found} > {value}" if bool(node.attrs["right"]) else f"{found} >= {value}"
            before = w.let(f"{left} & (({beyond}) == 0)", "m")
            w.statement(f"end = tl.where({left} & ({before} == 0), {middle}, end)")
            w.statement(f"begin = tl.where({before}, {middle} + 1, begin)")
        e.store(results[0], space.linear(index, node.dims), "begin")

    grid = ((count + (FLAT - 1)) // FLAT,)
    return emit_version(fusion.body, space, symbols, f"[{FLAT}]", emit, grid, SEARCH_WARPS, guard=guard, wide=wide)


# --- count ----------------------------------------------------------------------------------------------------------------


def _counted(fusion: Fusion, node: Node, symbols: tuple[str, ...], guard: Guard, wide: bool) -> DeviceVersion:
    space = fusion.space()
    (places,), (bins,) = node.operands, node.dims
    count = space.env.product(places.dims)

    def emit(e: Emitter, results: tuple[Buffer, ...]) -> None:
        w = e.w
        program = "tl.program_id(0).to(tl.int64)" if wide else "tl.program_id(0)"
        mine = _lanes(e, "mine", w.let(f"{program} * {MINE}", "i"), MINE, 0, bins)
        w.statement(f"found = tl.zeros([{MINE}, 1], tl.int64)")
        with w.block(f"for step in range(0, {w.number(count)}, {OTHERS}):"):
            others = _lanes(e, "others", "step", OTHERS, 1, count)
            value = e.value(places, space.delinear(others, places.dims))
            equal = w.let(f"({value}.to(tl.int64) == {w.number(mine)}) & {w.variables['others'].live}", "m")
            w.statement(f"found += tl.sum({equal}.to(tl.int32), 1, keep_dims=True)")
        e.store(results[0], mine, "found")

    return emit_version(fusion.body, space, symbols, f"[{MINE}, {OTHERS}]", emit, (_blocks(bins),), WARPS, guard=guard, wide=wide)
