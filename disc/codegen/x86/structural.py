"""Values of the ops that are neither element-wise nor pure views: iota, pad, concatenate, gather, slices by data, reductions."""

from __future__ import annotations

from disc.codegen.mlir.builder import register_element
from disc.codegen.plan.index import ONE, ZERO, Index, part_at, part_index
from disc.codegen.x86.elementwise import constant_splat, convert
from disc.codegen.x86.emit import Emitter, Predicate, Rule
from disc.codegen.x86.reductions import reduce_at
from disc.ir.graph import Node
from disc.ir.op_table import IN_RANGE, rules_by_op
from disc.shapes import Dim
from disc.shapes.recursion import Recursive


def _constant(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> str:
    return constant_splat(e.b, node)


def _iota(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> str:
    return convert(e.b, e.lane_vector(index[node.integer("dim")]), "i64", node.element)


def _dim_value(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> str:
    text = node.attrs["expr"]
    assert isinstance(text, str)
    return convert(e.b, e.lane_vector(e.space.env.simplify(e.space.env.parse(text))), "i64", node.element)


def _pad(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> Recursive[str]:
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
        return (yield e.compute(source, tuple(positions), predicate))
    assert inside is not None
    value = yield e.compute(source, tuple(positions), inside)
    other = yield e.compute(fill, (), predicate)
    return _select(e, node, inside, value, other, index)


def _select(e: Emitter, node: Node, inside: Predicate, value: str, other: str, index: Index) -> str:
    b = e.b
    vector = b.vec(register_element(node.element))
    with b.at(max(e.scope(index, inside), b.scope, key=lambda scope: scope.depth)):
        return b.op(f"arith.select {inside.mask}, {value}, {other} : {b.vec('i1')}, {vector}")


def _concatenate(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> Recursive[str]:
    part = part_at(e.space, node, index)
    if part is not None:
        return (yield e.compute(*part, predicate))
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
        moved = part_index(index, axis, position, operand)
        value: str = yield e.compute(operand, moved, inside)
        result = value if result is None or inside is predicate or inside is None else _select(e, node, inside, value, result, index)
    assert result is not None
    return result


def _gather(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> Recursive[str]:
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
        first = yield from e.data_variable(indices, tuple(at), predicate, source.dims[axis] - sizes[axis], IN_RANGE not in node.attrs)
        positions[axis] = positions[axis] + first
    without_vector = [axis for axis in range(len(indices.dims)) if axis != vector_dim]
    for axis, indices_axis in zip(operand_batch, indices_batch, strict=True):
        positions[axis] = batch[without_vector.index(indices_axis)]
    return (yield e.compute(source, tuple(positions), predicate))


def _dynamic_slice(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> Recursive[str]:
    source, *starts = node.operands
    positions: list[Dim] = []
    for position, start, size, taken in zip(index, starts, source.dims, node.dims, strict=True):
        positions.append(position + (yield from e.data_variable(start, (), None, size - taken)))
    return (yield e.compute(source, tuple(positions), predicate))


def _dynamic_update_slice(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> Recursive[str]:
    source, update, *starts = node.operands
    inside = predicate
    positions: list[Dim] = []
    for position, start, size, taken in zip(index, starts, source.dims, update.dims, strict=True):
        moved = position - (yield from e.data_variable(start, (), None, size - taken))
        inside = e.within(moved, ZERO, taken, inside)
        positions.append(moved)
    if inside is predicate or inside is None:
        return (yield e.compute(update, tuple(positions), predicate))
    value = yield e.compute(update, tuple(positions), inside)
    other = yield e.compute(source, index, predicate)
    return _select(e, node, inside, value, other, index)


def _reduce_window(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> Recursive[str]:
    """The value of one result; all results of the op are remembered."""
    memo = e.b.scope.memo
    keys = [("reduce window", each.id, index, predicate) for each in node.siblings]
    if keys[0] not in memo:
        values = yield from _window_values(e, node, index, predicate)
        memo.update(zip(keys, values, strict=True))
    return memo[keys[node.result]]


def _window_values(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> Recursive[list[str]]:
    """Every result, computed in the order of the window from the initial values on."""
    count = len(node.operands) // 2
    sources, initials = node.operands[:count], node.operands[count:]
    rank = len(index)
    window = node.ints("window_dimensions")
    strides = node.ints("window_strides") or (1,) * rank
    dilations = node.ints("window_dilations") or (1,) * rank
    padding = node.attrs.get("padding")
    low = [int(padding[axis][0]) if padding is not None else 0 for axis in range(rank)]  # pyright: ignore[reportIndexIssue, reportArgumentType]
    b = e.b
    vectors = [b.vec(register_element(initial.element)) for initial in initials]
    body = node.body
    assert body is not None

    def nest(axis: int, positions: list[Dim], values: list[str]) -> Recursive[list[str]]:
        if axis == rank:
            inside = predicate
            for number, position in enumerate(positions):
                inside = e.within(position, ZERO, sources[0].dims[number], inside)
            elements: list[str] = []
            for source in sources:
                elements.append((yield e.compute(source, tuple(positions), inside)))
            updated = e.body(body, [*values, *elements])
            if inside is predicate or inside is None:
                return updated
            return [
                b.op(f"arith.select {inside.mask}, {new}, {old} : {b.vec('i1')}, {vector}")
                for new, old, vector in zip(updated, values, vectors, strict=True)
            ]
        start = index[axis] * strides[axis] - low[axis]
        if window[axis] == 1:
            return (yield from nest(axis + 1, [*positions, start], values))
        name = e.name("w")
        variable = e.space.variable(name, Dim.of(window[axis]))
        carried = list(zip(values, vectors, strict=True))
        with b.loop(b.index(0), b.index(window[axis]), b.index(1), carried) as loop, e.bind(name, loop.index):
            loop.yields = yield from nest(axis + 1, [*positions, start + variable * dilations[axis]], loop.carried)
        return loop.results

    started: list[str] = []
    for initial in initials:
        started.append((yield e.compute(initial, ())))
    return (yield from nest(0, [], started))


def _tuple(value: object) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return value


RULES: dict[str, Rule] = rules_by_op(
    "x86 structural",
    {
        "stablehlo.constant": _constant,
        "disc.iota": _iota,
        "disc.dim_value": _dim_value,
        "disc.pad": _pad,
        "stablehlo.concatenate": _concatenate,
        "disc.gather": _gather,
        "stablehlo.dynamic_slice": _dynamic_slice,
        "stablehlo.dynamic_update_slice": _dynamic_update_slice,
        "stablehlo.reduce": reduce_at,
        "stablehlo.reduce_window": _reduce_window,
    },
)
