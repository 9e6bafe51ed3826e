"""Values of the ops that are neither element-wise nor pure views: iota, pad, concatenate, gather, slices by data, reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...errors import CompilerBug
from ...ir.costs import node_cost
from ...ir.graph import Node
from ...shapes import Dim
from ..index import ONE, ZERO, Index
from ..probe import Probe, flattens
from .builder import register_element
from .elementwise import constant_splat, convert
from .emit import Emitter, Predicate, Rule


def _constant(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> str:
    return constant_splat(e.b, node)


def _iota(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> str:
    return convert(e.b, e.lane_vector(index[node.integer("dim")]), "i64", node.element)


def _dim_value(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> str:
    text = node.attrs["expr"]
    assert isinstance(text, str)
    return convert(e.b, e.lane_vector(e.space.env.simplify(e.space.env.parse(text))), "i64", node.element)


def _pad(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> str:
    source, fill = node.operands
    interior = node.ints("interior") or (0,) * len(index)
    inside: Predicate | None = predicate
    positions: list[Dim] = []
    for axis, text in enumerate(node.texts("low")):
        position = index[axis] - e.space.env.simplify(e.space.env.parse(text))
        step = interior[axis] + 1
        limit = source.dims[axis] if step == 1 else (source.dims[axis] - 1) * step + 1
        inside = e.within(position, ZERO, limit, inside)
        if step > 1:
            inside = e.within((position % step) * -1, ZERO, ONE, inside)
        positions.append(position if step == 1 else position // step)
    if inside is predicate:
        return e.value(source, tuple(positions), predicate)
    assert inside is not None
    value = e.value(source, tuple(positions), inside)
    return _select(e, node, inside, value, e.value(fill, (), predicate), index)


def _select(e: Emitter, node: Node, inside: Predicate, value: str, other: str, index: Index) -> str:
    b = e.b
    vector = b.vec(register_element(node.element))
    with b.at(max(e._scope(index, inside), b.scope, key=lambda scope: scope.depth)):
        return b.op(f"arith.select {inside.mask}, {value}, {other} : {b.vec('i1')}, {vector}")


def _concatenate(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> str:
    axis = node.integer("dimension")
    start = ZERO
    result: str | None = None
    pieces: list[tuple[Node, Dim]] = []
    for operand in node.operands:
        pieces.append((operand, start))
        start = start + operand.dims[axis]
    for operand, offset in reversed(pieces):
        position = index[axis] - offset
        inside = e.within(position, ZERO, operand.dims[axis], predicate)
        moved = tuple(position if number == axis else each for number, each in enumerate(index))
        value = e.value(operand, moved, inside)
        result = value if result is None or inside is predicate or inside is None else _select(e, node, inside, value, result, index)
    assert result is not None
    return result


def _gather(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> str:
    source, indices = node.operands
    numbers = node.attrs["dimension_numbers"]
    assert isinstance(numbers, dict)
    offset_dims = _tuple(numbers["offset_dims"])
    start_map, collapsed = _tuple(numbers["start_map"]), _tuple(numbers["collapsed"])
    operand_batch, indices_batch = _tuple(numbers["operand_batch"]), _tuple(numbers["indices_batch"])
    vector_dim = numbers["vector_dim"]
    assert isinstance(vector_dim, int)
    sizes = [e.space.env.simplify(e.space.env.parse(text)) for text in node.texts("sizes")]
    batch = [index[axis] for axis in range(len(index)) if axis not in offset_dims]
    window_axes = [axis for axis in range(len(source.dims)) if axis not in collapsed and axis not in operand_batch]
    positions = [ZERO] * len(source.dims)
    for axis, result_axis in zip(window_axes, offset_dims, strict=True):
        positions[axis] = index[result_axis]
    for number, axis in enumerate(start_map):
        at = list(batch)
        if vector_dim < len(indices.dims):
            at.insert(vector_dim, Dim.of(number))
        positions[axis] = positions[axis] + e.data_variable(indices, tuple(at), predicate, source.dims[axis] - sizes[axis])
    without_vector = [axis for axis in range(len(indices.dims)) if axis != vector_dim]
    for axis, indices_axis in zip(operand_batch, indices_batch, strict=True):
        positions[axis] = batch[without_vector.index(indices_axis)]
    return e.value(source, tuple(positions), predicate)


def _dynamic_slice(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> str:
    source, *starts = node.operands
    positions = [
        position + e.data_variable(start, (), None, size - taken)
        for position, start, size, taken in zip(index, starts, source.dims, node.dims, strict=True)
    ]
    return e.value(source, tuple(positions), predicate)


def _dynamic_update_slice(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> str:
    source, update, *starts = node.operands
    inside = predicate
    positions: list[Dim] = []
    for position, start, size, taken in zip(index, starts, source.dims, update.dims, strict=True):
        moved = position - e.data_variable(start, (), None, size - taken)
        inside = e.within(moved, ZERO, taken, inside)
        positions.append(moved)
    if inside is predicate or inside is None:
        return e.value(update, tuple(positions), predicate)
    value = e.value(update, tuple(positions), inside)
    return _select(e, node, inside, value, e.value(source, index, predicate), index)


def _reduce(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> str:
    scope = e.b.scope
    key = ("reduce", node.siblings[0].id, index, predicate)
    found = scope.memo.get(key)
    if found is None:
        results = reduce_values(e, node, index, predicate)
        for number, result in enumerate(results):
            scope.memo[("reduce", node.siblings[0].id, index, predicate, number)] = result
        scope.memo[key] = results[0]
    return scope.memo[("reduce", node.siblings[0].id, index, predicate, node.result)]


def reduce_values(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> list[str]:
    """All results of a reduction at one index of the kept dims: over lanes when the index is the same in every lane
    (row reduction), one accumulator per lane otherwise (column reduction)."""
    count = len(node.operands) // 2
    sources, initials = node.operands[:count], node.operands[count:]
    reduced = node.ints("dimensions")
    b = e.b
    carried = [(e.value(initial, ()), b.vec(register_element(initial.element))) for initial in initials]
    extents = [sources[0].dims[axis] for axis in reduced]
    lane = any(b.lane_variable(dim) is not None for dim in index)

    def source_index(positions: Sequence[Dim]) -> Index:
        kept, taken = iter(index), iter(positions)
        return tuple(next(taken) if axis in reduced else next(kept) for axis in range(len(sources[0].dims)))

    if lane:
        return _column_reduce(e, node, sources, [name for name in extents], source_index, carried, predicate)
    return _row_reduce(e, node, sources, extents, source_index, carried, predicate)


def _column_reduce(
    e: Emitter, node: Node, sources: Sequence[Node], extents: list[Dim], source_index: Callable[[Sequence[Dim]], Index],
    carried: list[tuple[str, str]], predicate: Predicate | None,
) -> list[str]:  # fmt: skip
    b = e.b
    assert node.body is not None

    def nest(depth: int, positions: list[Dim], values: list[str]) -> list[str]:
        if depth == len(extents):
            at = source_index(positions)
            elements = [e.value(source, at, predicate) for source in sources]
            return e.body(node.body, [*values, *elements])  # pyright: ignore[reportArgumentType]
        if extents[depth] == ONE:
            return nest(depth + 1, [*positions, ZERO], values)
        name = e.name("r")
        variable = e.space.variable(name, extents[depth])
        pairs = [(value, type_) for value, (_, type_) in zip(values, carried, strict=True)]
        with b.loop(b.index(0), b.scalar(extents[depth]), b.index(1), pairs) as loop, e.bind(name, loop.index):
            loop.yields = nest(depth + 1, [*positions, variable], loop.carried)
        return loop.results

    return nest(0, [], [value for value, _ in carried])


def _row_reduce(
    e: Emitter, node: Node, sources: Sequence[Node], extents: list[Dim], source_index: Callable[[Sequence[Dim]], Index],
    carried: list[tuple[str, str]], predicate: Predicate | None,
) -> list[str]:  # fmt: skip
    outer, inner, place = _reduction_loops(e, sources, extents, source_index)
    b = e.b
    assert node.body is not None
    unroll = 4 if _cheap(sources) and not (inner.is_const and inner.const < 4 * b.lanes) else 1
    lane_name = e.name("v")
    e.space.variable(lane_name, inner)

    def lanes(outer_positions: list[Dim], values: list[str]) -> list[str]:
        pairs = [(value, type_) for value, (_, type_) in zip(values, carried, strict=True)] + carried * (unroll - 1)

        def step(names: list[str], accumulators: list[str]) -> list[str]:
            updated: list[str] = []
            for number, name in enumerate(names):
                own = accumulators[number * len(carried) : (number + 1) * len(carried)]
                updated.extend(
                    _accumulate(e, node, sources, source_index(place([*outer_positions, Dim.symbol(name)])), own, name, predicate)
                )
            return updated

        saved, e._row_loop = e._row_loop, not outer
        results = e.lane_loop(lane_name, b.index(0), b.scalar(inner), inner, unroll, pairs, step)
        e._row_loop = saved
        return _join(e, node, results, len(carried), unroll)

    def nest(depth: int, positions: list[Dim], values: list[str]) -> list[str]:
        if depth == len(outer):
            return lanes(positions, values)
        name = e.name("r")
        variable = e.space.variable(name, outer[depth])
        pairs = [(value, type_) for value, (_, type_) in zip(values, carried, strict=True)]
        with b.loop(b.index(0), b.scalar(outer[depth]), b.index(1), pairs) as loop, e.bind(name, loop.index):
            loop.yields = nest(depth + 1, [*positions, variable], loop.carried)
        return loop.results

    results = nest(0, [], [value for value, _ in carried])
    for cache in e.caches.values():
        cache.ready, cache.pending = cache.ready or cache.pending, False
    return _across_lanes(e, node, results)


def _reduction_loops(
    e: Emitter, sources: Sequence[Node], extents: list[Dim], source_index: Callable[[Sequence[Dim]], Index]
) -> tuple[list[Dim], Dim, Callable[[Sequence[Dim]], Sequence[Dim]]]:
    """(outer extents, lane extent, positions in the reduced dims): one flat lane loop where every load stays affine."""

    def visit(probe: Probe, positions: Index) -> None:
        for source in sources:
            probe.visit(source, source_index(positions))

    whole = e.space.env.product(extents)
    if len([extent for extent in extents if extent != ONE]) <= 1 or flattens(e.space, frozenset(e.leaves), extents, visit):
        return [], whole, lambda positions: e.space.delinear(positions[0], extents)
    return extents[:-1], extents[-1], lambda positions: positions


def _cheap(sources: Sequence[Node]) -> bool:
    """Few ops per element: several accumulators then hide the latency of the adds."""
    return all(node_cost(source) <= 8 for source in sources)


def _accumulate(
    e: Emitter, node: Node, sources: Sequence[Node], at: Index, own: list[str], name: str, predicate: Predicate | None
) -> list[str]:
    b = e.b
    assert node.body is not None
    elements = [e.value(source, at, predicate) for source in sources]
    updated = e.body(node.body, [*own, *elements])
    mask = b.variables[name].mask
    if mask is None:
        return updated
    vectors = [b.vec(register_element(argument.element)) for argument in node.body.arguments[: len(own)]]
    return [
        b.op(f"arith.select {mask}, {new}, {old} : {b.vec('i1')}, {vector}") for new, old, vector in zip(updated, own, vectors, strict=True)
    ]


def _join(e: Emitter, node: Node, results: list[str], count: int, unroll: int) -> list[str]:
    assert node.body is not None
    groups = [results[number * count : (number + 1) * count] for number in range(unroll)]
    while len(groups) > 1:
        groups = [e.body(node.body, [*groups[number], *groups[number + 1]]) for number in range(0, len(groups), 2)]
    return groups[0]


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
        values = e.body(node.body, [*values, *moved])
        distance //= 2
    return values


def _reduce_window(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> str:
    count = len(node.operands) // 2
    if count != 1 or any(dilation != 1 for dilation in node.ints("base_dilations")):
        raise CompilerBug(f"reduce_window with {count} operands or base dilation reached code generation (line {node.line})")
    source, initial = node.operands
    rank = len(index)
    window = node.ints("window_dimensions")
    strides = node.ints("window_strides") or (1,) * rank
    dilations = node.ints("window_dilations") or (1,) * rank
    padding = node.attrs.get("padding")
    low = [int(padding[axis][0]) if padding is not None else 0 for axis in range(rank)]  # pyright: ignore[reportIndexIssue, reportArgumentType]
    b = e.b
    vector = b.vec(register_element(node.element))
    assert node.body is not None

    def nest(axis: int, positions: list[Dim], value: str) -> str:
        if axis == rank:
            inside = predicate
            for number, position in enumerate(positions):
                inside = e.within(position, ZERO, source.dims[number], inside)
            element = e.value(source, tuple(positions), inside)
            updated = e.body(node.body, [value, element])[0]  # pyright: ignore[reportArgumentType]
            if inside is predicate or inside is None:
                return updated
            return b.op(f"arith.select {inside.mask}, {updated}, {value} : {b.vec('i1')}, {vector}")
        start = index[axis] * strides[axis] - low[axis]
        if window[axis] == 1:
            return nest(axis + 1, [*positions, start], value)
        name = e.name("w")
        variable = e.space.variable(name, Dim.of(window[axis]))
        with b.loop(b.index(0), b.index(window[axis]), b.index(1), [(value, vector)]) as loop, e.bind(name, loop.index):
            loop.yields = [nest(axis + 1, [*positions, start + variable * dilations[axis]], loop.carried[0])]
        return loop.results[0]

    return nest(0, [], e.value(initial, ()))


def _tuple(value: object) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return value


STRUCTURAL: dict[str, Rule] = {
    "stablehlo.constant": _constant,
    "disc.iota": _iota,
    "disc.dim_value": _dim_value,
    "disc.pad": _pad,
    "stablehlo.concatenate": _concatenate,
    "disc.gather": _gather,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
}
