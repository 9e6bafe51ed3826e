"""Reductions: over lanes when the result is the same in every lane (rows), one accumulator per lane otherwise (columns).

Row reductions of equal extent share one loop (paper §5.1: independent dominants are interleaved): several reductions of a row, and
the same one of several rows, so that the latencies of their accumulators and of the sums across lanes overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from disc.codegen.mlir.builder import Builder, register_element
from disc.codegen.plan.index import ONE, ZERO, Index, IndexSpace
from disc.codegen.plan.probe import Probe, flattens
from disc.codegen.x86.emit import Ahead, Emitter, Predicate
from disc.codegen.x86.memory import Buffer, load_contiguous
from disc.ir.costs import node_cost
from disc.ir.graph import Node
from disc.ir.reducers import IN_ORDER
from disc.shapes import Dim
from disc.shapes.recursion import Recursive, run_recursive

Place = Callable[[Sequence[Dim]], Sequence[Dim]]


@dataclass(eq=False)
class _Reduction:
    """One reduction at one index of its kept dims: its loops (`outer` extents, then lanes over `inner`), the positions in the reduced
    dims that these represent, and the SSA values and types that its accumulators start from."""

    node: Node
    index: Index
    predicate: Predicate | None
    initial: list[tuple[str, str]]
    outer: list[Dim]
    inner: Dim
    place: Place

    @property
    def sources(self) -> tuple[Node, ...]:
        """What is reduced."""
        return self.node.operands[: len(self.node.operands) // 2]


def reduce_at(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> Recursive[str]:
    """The rule of `stablehlo.reduce`: the value of one result; all results of the op are remembered. Where the order
    matters every lane has its own accumulator, also where all lanes have the same result."""
    if _key(node, index, predicate, node.result) not in e.b.scope.memo:
        if IN_ORDER in node.attrs or any(e.b.lane_variable(dim) is not None for dim in index):
            yield from _reduce_columns(e, [(node, index)], predicate)
        else:
            yield from _reduce_rows(e, [(yield from _row_reduction(e, node, index, predicate))])
    return e.b.scope.memo[_key(node, index, predicate, node.result)]


def reduce_together(e: Emitter, wanted: Sequence[tuple[Node, Index]]) -> None:
    """Computes row reductions, none of which needs another, in as few loops as their extents allow; `reduce_at` then finds them."""
    nests: dict[object, list[_Reduction]] = {}
    for node, index in dict.fromkeys(wanted):
        if IN_ORDER in node.attrs:
            continue
        each = run_recursive(_row_reduction(e, node, index, None))
        nests.setdefault((e.scope(index, None).depth, tuple(each.outer), each.inner), []).append(each)
    for same in nests.values():
        with e.b.at(e.scope(same[0].index, None)):
            run_recursive(_reduce_rows(e, same))


def _key(node: Node, index: Index, predicate: Predicate | None, result: int) -> object:
    return ("reduce", node.siblings[0].id, index, predicate, result)


def _remember(e: Emitter, node: Node, index: Index, predicate: Predicate | None, results: Sequence[str]) -> None:
    with e.b.at(e.scope(index, predicate)):
        for number, result in enumerate(results):
            e.b.scope.memo[_key(node, index, predicate, number)] = result


def _initial(e: Emitter, node: Node) -> Recursive[list[tuple[str, str]]]:
    found: list[tuple[str, str]] = []
    for initial in node.operands[len(node.operands) // 2 :]:
        found.append(((yield e.compute(initial, ())), e.b.vec(register_element(initial.element))))
    return found


def _source_index(node: Node, index: Index, positions: Sequence[Dim]) -> Index:
    reduced = node.ints("dimensions")
    kept, taken = iter(index), iter(positions)
    return tuple(next(taken) if axis in reduced else next(kept) for axis in range(len(node.operands[0].dims)))


# --- columns --------------------------------------------------------------------------------------------------------------


def reduce_columns_together(e: Emitter, wanted: Sequence[tuple[Node, Index]]) -> None:
    """Computes column reductions, none of which needs another and whose indices are known in the current scope, in as few loops as their
    extents allow; `reduce_at` then finds them."""
    nests: dict[object, list[tuple[Node, Index]]] = {}
    for node, index in dict.fromkeys(wanted):
        nests.setdefault(tuple(_extents(node)), []).append((node, index))
    for same in nests.values():
        run_recursive(_reduce_columns(e, same, None))


def _extents(node: Node) -> list[Dim]:
    return [node.operands[0].dims[axis] for axis in node.ints("dimensions")]


def _reduce_columns(e: Emitter, wanted: Sequence[tuple[Node, Index]], predicate: Predicate | None) -> Recursive[None]:
    """Reductions over equal extents, as one loop nest."""
    b = e.b
    extents = _extents(wanted[0][0])
    initial: list[list[tuple[str, str]]] = []
    for node, _ in wanted:
        initial.append((yield from _initial(e, node)))
    types = [type_ for own in initial for _, type_ in own]

    def step(positions: list[Dim], values: list[str]) -> Recursive[list[str]]:
        updated: list[str] = []
        for (node, index), own in zip(wanted, initial, strict=True):
            at = _source_index(node, index, positions)
            elements: list[str] = []
            for source in node.operands[: len(own)]:
                elements.append((yield e.compute(source, at, predicate)))
            updated.extend(_combined(e, node, values[len(updated) : len(updated) + len(own)], elements))
        return updated

    def nest(depth: int, positions: list[Dim], values: list[str]) -> Recursive[list[str]]:
        if depth == len(extents):
            return (yield from step(positions, values))
        if extents[depth] == ONE:
            return (yield from nest(depth + 1, [*positions, ZERO], values))
        name = e.name("r")
        variable = e.space.variable(name, extents[depth])
        pairs = list(zip(values, types, strict=True))
        with b.loop(b.index(0), b.scalar(extents[depth]), b.index(1), pairs) as loop, e.bind(name, loop.index):
            e.ahead = _rows_ahead(name, e.target.thresholds.rows.columns_ahead) if len(wanted) > 1 else None
            loop.yields = yield from nest(depth + 1, [*positions, variable], loop.carried)
            e.ahead = None
        return loop.results

    results = yield from nest(0, [], [value for own in initial for value, _ in own])
    for (node, index), own in zip(wanted, initial, strict=True):
        _remember(e, node, index, predicate, results[: len(own)])
        results = results[len(own) :]


def _rows_ahead(name: str, rows: int) -> Ahead:
    """What the loop over `name` reads `rows` rows later: the hardware does not foresee such strides."""

    def ahead(node: Node, offset: Dim) -> Dim | None:
        del node
        return offset.replace({name: Dim.symbol(name) + rows}) if name in offset.symbols() else None

    return ahead


# --- rows -----------------------------------------------------------------------------------------------------------------


def _row_reduction(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> Recursive[_Reduction]:
    """Its loops: one flat lane loop where every load stays affine."""
    extents = _extents(node)
    initial = yield from _initial(e, node)
    if has_one_loop(e.space, frozenset(e.leaves), node, index):
        whole = e.space.env.product(extents)
        return _Reduction(node, index, predicate, initial, [], whole, lambda positions: e.space.delinear(positions[0], extents))
    return _Reduction(node, index, predicate, initial, extents[:-1], extents[-1], lambda positions: positions)


def has_one_loop(space: IndexSpace, leaves: frozenset[Node], node: Node, index: Index) -> bool:
    """True when the reduced dims can be run over as one, every load from `leaves` staying affine."""
    extents = _extents(node)

    def visit(probe: Probe, positions: Index) -> None:
        for source in node.operands[: len(node.operands) // 2]:
            probe.visit(source, _source_index(node, index, positions))

    return len([extent for extent in extents if extent != ONE]) <= 1 or flattens(space, leaves, extents, visit)


def _reduce_rows(e: Emitter, reductions: Sequence[_Reduction]) -> Recursive[None]:
    """Reductions with equal loops, as one loop nest."""
    results = yield from _accumulated(e, reductions, None)
    e.finish_caches()
    for each in reductions:
        own, results = results[: len(each.initial)], results[len(each.initial) :]
        _remember(e, each.node, each.index, each.predicate, _across_lanes(e, each.node, own))


def reduce_part(e: Emitter, wanted: Sequence[tuple[Node, Index]], low: str, high: str) -> list[tuple[str, str]]:
    """The accumulators, with their register elements, of reductions with `has_one_loop` over equal lengths, from position `low`, a
    multiple of the lanes, to `high`."""
    reductions = [run_recursive(_row_reduction(e, node, index, None)) for node, index in wanted]
    results = run_recursive(_accumulated(e, reductions, (low, high)))
    return list(zip(results, (element for each in reductions for element in _elements(each.node)), strict=True))


def join_parts(e: Emitter, wanted: Sequence[tuple[Node, Index]], parts: str, place: Callable[[int, str], str]) -> None:
    """Joins what `reduce_part` gave for parts 0, 1, ... of a row; `reduce_at` then finds the results. place: the address of an
    accumulator of a part."""
    b = e.b
    initial = [pair for node, _ in wanted for pair in run_recursive(_initial(e, node))]
    with b.loop(b.index(0), parts, b.index(1), initial) as loop:
        for node, _ in wanted:
            done = len(loop.yields)
            own = loop.carried[done : done + len(node.operands) // 2]
            buffers = [Buffer(place(done + number, loop.index), (), element) for number, element in enumerate(_elements(node))]
            loop.yields.extend(_combined(e, node, own, [load_contiguous(b, buffer, b.index(0), None) for buffer in buffers]))
    results = loop.results
    for node, index in wanted:
        own, results = results[: len(node.operands) // 2], results[len(node.operands) // 2 :]
        _remember(e, node, index, None, _across_lanes(e, node, own))


def _elements(node: Node) -> list[str]:
    """The register elements of a reduction's accumulators."""
    return [register_element(initial.element) for initial in node.operands[len(node.operands) // 2 :]]


def _accumulated(e: Emitter, reductions: Sequence[_Reduction], limits: tuple[str, str] | None) -> Recursive[list[str]]:
    """The accumulators of reductions with equal loops: of the whole, or of the part of their one loop within `limits`."""
    b = e.b
    outer, inner = reductions[0].outer, reductions[0].inner
    initial = [pair for each in reductions for pair in each.initial]
    unroll = _unroll(e, reductions)
    types = [type_ for _, type_ in initial] * unroll
    lane_name = e.name("v")
    e.space.variable(lane_name, inner)

    def lanes(outer_positions: list[Dim], values: list[str]) -> Recursive[list[str]]:
        def step(names: list[str], accumulators: list[str]) -> Recursive[list[str]]:
            updated: list[str] = []
            with b.in_turns() as begin:
                for name in names:
                    positions = [*outer_positions, Dim.symbol(name)]
                    for each in reductions:
                        begin()
                        own = accumulators[len(updated) : len(updated) + len(each.initial)]
                        updated.extend((yield from _accumulate(e, each, positions, own, name)))
            return updated

        saved, e.row_loop = e.row_loop, not outer
        low, high = limits or (b.index(0), b.scalar(inner))
        extent = inner if limits is None else Dim.symbol(lane_name)
        pairs = list(zip(values, types, strict=True))
        results = yield from e.asking_lane_loop(lane_name, low, high, extent, unroll, pairs, step)
        e.row_loop = saved
        return results

    def nest(depth: int, positions: list[Dim], values: list[str]) -> Recursive[list[str]]:
        if depth == len(outer):
            return (yield from lanes(positions, values))
        name = e.name("r")
        variable = e.space.variable(name, outer[depth])
        pairs = list(zip(values, types, strict=True))
        with b.loop(b.index(0), b.scalar(outer[depth]), b.index(1), pairs) as loop, e.bind(name, loop.index):
            loop.yields = yield from nest(depth + 1, [*positions, variable], loop.carried)
        return loop.results

    copies = yield from nest(0, [], [value for value, _ in initial] * unroll)
    return _join(e, reductions, copies, unroll)


def _unroll(e: Emitter, reductions: Sequence[_Reduction]) -> int:
    """Copies of the accumulators: enough chains to hide an addition's latency, but no more than a known row fills."""
    inner, limits = reductions[0].inner, e.target.thresholds.rows
    if any(node_cost(source) > limits.turn_cost for each in reductions for source in each.sources):
        return 1 << (max(1, (e.side_by_side or in_turns(e)) // len(reductions)).bit_length() - 1)
    unroll = most = e.side_by_side or limits.chains
    _, longest = e.space.env.range(inner)
    while unroll > 1 and (unroll * len(reductions) >= 2 * most or (longest is not None and longest < unroll * e.b.lanes)):
        unroll //= 2
    return unroll


def in_turns(e: Emitter) -> int:
    """How many vectors of expensive values are computed together. One where results bypass the caches: memory is what such kernels wait
    for, and more of their stores in a row wait for each other, the more so when memory is busy (measured: 1.04 to 0.85 with two)."""
    return 1 if e.streams else e.target.thresholds.rows.turns


def _accumulate(e: Emitter, reduction: _Reduction, positions: Sequence[Dim], own: list[str], name: str) -> Recursive[list[str]]:
    b, node = e.b, reduction.node
    assert node.body is not None
    at = _source_index(node, reduction.index, reduction.place(positions))
    elements: list[str] = []
    for source in reduction.sources:
        elements.append((yield e.compute(source, at, reduction.predicate)))
    if e.beside is not None:
        e.beside(node, at)
    updated = _combined(e, node, own, elements)
    mask = b.variables[name].mask
    if mask is None:
        return updated
    vectors = [b.vec(register_element(argument.element)) for argument in node.body.arguments[: len(own)]]
    return [
        b.op(f"arith.select {mask}, {new}, {old} : {b.vec('i1')}, {vector}") for new, old, vector in zip(updated, own, vectors, strict=True)
    ]


def _combined(e: Emitter, node: Node, accumulators: list[str], elements: list[str]) -> list[str]:
    """The body of the reduction. A maximum or minimum whose order is free gets its operands in the other order: its test for NaN is of the
    first, which then is not part of the chain from one iteration to the next."""
    assert node.body is not None
    if IN_ORDER in node.attrs or not _is_extreme(node):
        return e.body(node.body, [*accumulators, *elements])
    if register_element(node.element) == "f32" and e.b.lanes in (8, 16):
        return [_extreme(e.b, node.body.yields[0], elements[0], accumulators[0], silent=node in e.silent_maxima)]
    return e.body(node.body, [*elements, *accumulators])


def _extreme(b: Builder, last: Node, element: str, accumulator: str, *, silent: bool) -> str:
    """The maximum or minimum of f32, with a NaN of either, but not of `element` where `silent`; of two zeros the accumulator, whatever
    its sign, as eager mode has it.

    The instruction answers with its second operand when either is NaN, so a NaN accumulator stays. It is called by name because the
    compiler makes three comparisons and masks of what the words "less" and "select" say.
    """
    type_, name = b.vec("f32"), "max" if last.name == "maximum" else "min"
    if b.lanes == 16:
        rounding = b.op("arith.constant 4 : i32")
        text = f'"llvm.x86.avx512.{name}.ps.512"({element}, {accumulator}, {rounding}) : ({type_}, {type_}, i32) -> {type_}'
    else:
        text = f'"llvm.x86.avx.{name}.ps.256"({element}, {accumulator}) : ({type_}, {type_}) -> {type_}'
    better = b.op(f"llvm.call_intrinsic {text}")
    if silent:
        return better
    missing = b.op(f"arith.cmpf uno, {element}, {element} : {type_}")
    return b.op(f"arith.select {missing}, {element}, {better} : {b.vec('i1')}, {type_}")


def _is_extreme(node: Node) -> bool:
    """True when the body is the maximum or minimum of its two arguments alone."""
    body = node.body
    assert body is not None
    if len(body.arguments) != 2 or len(body.yields) != 1:
        return False
    last = body.yields[0]
    return last.op in ("stablehlo.maximum", "stablehlo.minimum") and set(last.operands) == set(body.arguments)


def _join(e: Emitter, reductions: Sequence[_Reduction], results: list[str], unroll: int) -> list[str]:
    """The `unroll` copies of all accumulators as one."""
    count = len(results) // unroll
    groups = [results[number * count : (number + 1) * count] for number in range(unroll)]
    while len(groups) > 1:
        groups = [_join_two(e, reductions, groups[number], groups[number + 1]) for number in range(0, len(groups), 2)]
    return groups[0]


def _join_two(e: Emitter, reductions: Sequence[_Reduction], left: list[str], right: list[str]) -> list[str]:
    joined: list[str] = []
    for each in reductions:
        place = slice(len(joined), len(joined) + len(each.initial))
        joined.extend(_combined(e, each.node, left[place], right[place]))
    return joined


def _across_lanes(e: Emitter, node: Node, values: list[str]) -> list[str]:
    """Combines the lanes by a butterfly, so that every lane ends with the result."""
    b = e.b
    assert node.body is not None
    distance = b.lanes // 2
    elements = [register_element(argument.element) for argument in node.body.arguments[: len(values)]]
    while distance:
        order = ", ".join(str(lane ^ distance) for lane in range(b.lanes))
        moved = [
            b.op(f"vector.shuffle {value}, {value} [{order}] : {b.vec(element)}, {b.vec(element)}")
            for value, element in zip(values, elements, strict=True)
        ]
        values = _combined(e, node, values, moved)
        distance //= 2
    return values
