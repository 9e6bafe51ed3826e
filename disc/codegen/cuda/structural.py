"""Values of the ops that are neither element-wise nor pure views, and reductions that a lane does by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disc.codegen.cuda.elementwise import combined, convert, emit_elementwise
from disc.codegen.cuda.emit import Emitter, Predicate, Rule
from disc.codegen.cuda.text import Variable
from disc.codegen.cuda.types import constant, in_register, rounded
from disc.codegen.plan.index import ONE, ZERO, Index, part_at
from disc.errors import TargetError
from disc.ir.graph import Body, Node
from disc.ir.op_table import rules_by_op
from disc.ir.reducers import IN_ORDER, KINDS
from disc.shapes import Dim
from disc.shapes.recursion import Recursive

_Locate = Callable[[Sequence[Dim]], tuple[Index, Predicate]]


def _constant(e: Emitter, node: Node, index: Index, predicate: Predicate) -> str:
    return e.w.let(constant(node))


def _iota(e: Emitter, node: Node, index: Index, predicate: Predicate) -> str:
    return _position(e, node, index[node.integer("dim")])


def _dim_value(e: Emitter, node: Node, index: Index, predicate: Predicate) -> str:
    return _position(e, node, e.space.env.simplify(e.space.env.parse(str(node.attrs["expr"]))))


def _position(e: Emitter, node: Node, position: Dim) -> str:
    wide = e.w.let(f"tl.zeros([], tl.int64) + {e.w.number(position)}")
    return e.w.let(rounded(f"({convert(e.w, wide, 'i64', node.element)})", node.element))


def _pad(e: Emitter, node: Node, index: Index, predicate: Predicate) -> Recursive[str]:
    source, fill = node.operands
    interior = node.ints("interior") or (0,) * len(index)
    inside, positions = predicate, list[Dim]()
    for axis, text in enumerate(node.texts("low")):
        position, step = index[axis] - e.space.env.simplify(e.space.env.parse(text)), interior[axis] + 1
        inside = e.within(position, ZERO, source.dims[axis] if step == 1 else (source.dims[axis] - 1) * step + 1, inside)
        if step > 1:
            inside = e.within((position % step) * -1, ZERO, ONE, inside)
        positions.append(position if step == 1 else position // step)
    value: str = yield e.compute(source, tuple(positions), inside)
    if inside == predicate:
        return value
    other: str = yield e.compute(fill, (), ())
    return e.w.let(f"tl.where({e.mask(inside[len(predicate) :])}, {value}, {other})")


def _concatenate(e: Emitter, node: Node, index: Index, predicate: Predicate) -> Recursive[str]:
    part = part_at(e.space, node, index)
    if part is not None:
        return (yield e.compute(*part, predicate))
    axis, start, pieces = node.integer("dimension"), ZERO, list[tuple[Node, Dim]]()
    for operand in node.operands:
        pieces.append((operand, start))
        start = start + operand.dims[axis]
    result = ""
    for operand, offset in reversed(pieces):
        position = index[axis] - offset
        inside = e.within(position, ZERO, operand.dims[axis], predicate)
        value: str = yield e.compute(operand, (*index[:axis], position, *index[axis + 1 :]), inside)
        mask = e.mask(inside[len(predicate) :]) if inside != predicate else ""
        result = e.w.let(f"tl.where({mask}, {value}, {result})") if result and mask else value
    return result


def _gather(e: Emitter, node: Node, index: Index, predicate: Predicate) -> Recursive[str]:
    source, indices = node.operands
    numbers = node.attrs["dimension_numbers"]
    assert isinstance(numbers, dict)
    offset_dims, start_map, collapsed = (_tuple(numbers[name]) for name in ("offset_dims", "start_map", "collapsed"))
    operand_batch, indices_batch = _tuple(numbers["operand_batch"]), _tuple(numbers["indices_batch"])
    vector_dim = numbers["vector_dim"]
    assert isinstance(vector_dim, int)
    sizes = [e.space.env.simplify(e.space.env.parse(text)) for text in node.texts("sizes")]
    batch = [index[axis] for axis in range(len(index)) if axis not in offset_dims]
    window = [axis for axis in range(len(source.dims)) if axis not in collapsed and axis not in operand_batch]
    positions = [ZERO] * len(source.dims)
    for axis, result_axis in zip(window, offset_dims, strict=True):
        positions[axis] = index[result_axis]
    for number, axis in enumerate(start_map):
        at = [*batch[:vector_dim], Dim.of(number), *batch[vector_dim:]] if vector_dim < len(indices.dims) else batch
        positions[axis] = positions[axis] + (yield from e.data_variable(indices, tuple(at), predicate, source.dims[axis] - sizes[axis]))
    without_vector = [axis for axis in range(len(indices.dims)) if axis != vector_dim]
    for axis, indices_axis in zip(operand_batch, indices_batch, strict=True):
        positions[axis] = batch[without_vector.index(indices_axis)]
    return (yield e.compute(source, tuple(positions), predicate))


def _dynamic_slice(e: Emitter, node: Node, index: Index, predicate: Predicate) -> Recursive[str]:
    source, *starts = node.operands
    positions: list[Dim] = []
    for position, start, size, taken in zip(index, starts, source.dims, node.dims, strict=True):
        positions.append(position + (yield from e.data_variable(start, (), (), size - taken)))
    return (yield e.compute(source, tuple(positions), predicate))


def _dynamic_update_slice(e: Emitter, node: Node, index: Index, predicate: Predicate) -> Recursive[str]:
    source, update, *starts = node.operands
    inside, positions = predicate, list[Dim]()
    for position, start, size, taken in zip(index, starts, source.dims, update.dims, strict=True):
        moved = position - (yield from e.data_variable(start, (), (), size - taken))
        inside = e.within(moved, ZERO, taken, inside)
        positions.append(moved)
    value: str = yield e.compute(update, tuple(positions), inside)
    if inside == predicate:
        return value
    other: str = yield e.compute(source, index, predicate)
    return e.w.let(f"tl.where({e.mask(inside[len(predicate) :])}, {value}, {other})")


# --- reductions that a lane does by itself ----------------------------------------------------------------------------------


def reduced_kind(node: Node) -> str:
    """How result `node` of a reduction combines elements, one of KINDS. Raises TargetError where it does by no single op."""
    body = node.body
    assert body is not None
    kind = body.yields[node.result].name
    if IN_ORDER in node.attrs or kind not in KINDS:
        raise TargetError(f"no CUDA kernel for a reduction by a body of its own (line {node.line})")
    return kind


def _reduce(e: Emitter, node: Node, index: Index, predicate: Predicate) -> Recursive[str]:
    """All results of the op, in one loop for each dim that it reduces, and for every lane alone."""
    reduced, kept = node.ints("dimensions"), iter(index)
    sizes = node.operands[0].dims
    ranges = [(sizes[axis], axis in reduced) for axis in range(len(sizes))]
    fixed = [ZERO if taken else next(kept) for _, taken in ranges]

    def at(positions: Sequence[Dim]) -> tuple[Index, Predicate]:
        taken = iter(positions)
        return tuple(next(taken) if axis in reduced else fixed[axis] for axis in range(len(sizes))), predicate

    return (yield from _looped(e, node, index, predicate, [sizes[axis] for axis in sorted(reduced)], at))


def _reduce_window(e: Emitter, node: Node, index: Index, predicate: Predicate) -> Recursive[str]:
    rank, source = len(index), node.operands[0]
    window = node.ints("window_dimensions")
    strides, dilations = node.ints("window_strides") or (1,) * rank, node.ints("window_dilations") or (1,) * rank
    padding = node.attrs.get("padding")
    low = [int(padding[axis][0]) if padding is not None else 0 for axis in range(rank)]  # pyright: ignore[reportIndexIssue, reportArgumentType]

    def at(positions: Sequence[Dim]) -> tuple[Index, Predicate]:
        inside, found = predicate, list[Dim]()
        for axis in range(rank):
            found.append(index[axis] * strides[axis] - low[axis] + positions[axis] * dilations[axis])
            inside = e.within(found[-1], ZERO, source.dims[axis], inside)
        return tuple(found), inside

    return (yield from _looped(e, node, index, predicate, [Dim.of(size) for size in window], at))


def _looped(e: Emitter, node: Node, index: Index, predicate: Predicate, extents: Sequence[Dim], at: _Locate) -> Recursive[str]:
    """Result `node` of a reduction whose elements `at` finds from a position in `extents`; the other results are remembered."""
    w, count = e.w, len(node.operands) // 2
    key = ("reduced", node.siblings[0].id, index, predicate)
    known = w.known(key)
    if known is None:
        sources, initials = node.operands[:count], node.operands[count:]
        sums: list[str] = []
        for initial in initials:
            start: str = yield e.compute(initial, (), ())
            sums.append(w.name("sum"))
            w.statement(f"{sums[-1]} = tl.broadcast_to({start}, {w.shape})")

        def nest(depth: int, positions: list[Dim]) -> Recursive[None]:
            if depth == len(extents):
                place, inside = at(positions)
                elements: list[str] = []
                for source in sources:
                    elements.append((yield e.compute(source, place, inside)))
                updated = combined_by_body(e, node, sums, elements)
                extra = e.mask(inside[len(predicate) :]) if inside != predicate else ""
                for held, new in zip(sums, updated, strict=True):
                    kept = f"tl.where({extra}, {new}, {held})" if extra else new
                    w.statement(f"{held} = tl.broadcast_to({kept}, {w.shape})")
                return
            if extents[depth] == ONE:
                yield from nest(depth + 1, [*positions, ZERO])
                return
            name = w.name("r")
            variable = e.space.variable(name, extents[depth])
            with w.block(f"for {name} in range(0, {w.number(extents[depth])}):") as scope:
                position = w.let(f"tl.zeros([], tl.int64) + {name}", "i") if w.wide else name
                w.bind(name, Variable(position, scope))
                yield from nest(depth + 1, [*positions, variable])

        yield from nest(0, [])
        known = tuple(sums)
        w.scope.memo[key] = known
    assert isinstance(known, tuple)
    return str(known[node.result])


def combined_by_body(e: Emitter, node: Node, held: Sequence[str], elements: Sequence[str]) -> list[str]:
    """What the body of a reduction or scatter makes of its arguments."""
    body = node.body
    assert isinstance(body, Body)
    values: dict[Node, str] = dict(zip(body.arguments, (*held, *elements), strict=True))
    for each in body.nodes:
        if each not in values:
            operands = [values[operand] for operand in each.operands]
            values[each] = e.w.let(constant(each)) if each.op == "stablehlo.constant" else emit_elementwise(e.w, each, operands)
    return [values[each] for each in body.yields]


def combiner(e: Emitter, kind: str, element: str) -> str:
    """The name of the function of two values that a reduction of one of KINDS combines by."""
    text = combined(kind, element, "left", "right")
    return e.w.helper(f"{kind}_{'float' if 'propagate' in text else element}", lambda: f"(left, right):\n    return {text}\n")


def reduced_along(e: Emitter, node: Node, value: str, axis: int) -> str:
    """A block reduced along one axis, which keeps length 1. Sums of f16 and bf16 are f32 until they are stored."""
    kind, element = reduced_kind(node), node.element
    if kind == "add" and element not in ("i1",):
        found = f"tl.sum({value}, {axis}, keep_dims=True)"
    else:
        found = f"tl.reduce({value}, {axis}, {combiner(e, kind, element)}, keep_dims=True)"
    return e.w.let(rounded(f"{found}.to({in_register(element)})", element))


def _tuple(value: object) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return value


RULES: dict[str, Rule] = rules_by_op(
    "CUDA structural",
    {
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
    },
)
