"""Rules of `simplify` for ops that move data, for reductions over nothing, and for contractions of broadcast operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.ir.op_table import ELEMENTWISE
from disc.ir.ops import block_ops, build, int_attr, ints_attr, strings_attr
from disc.ir.reducers import IN_ORDER
from disc.ir.rewriting import (
    defining,
    element_type,
    entries,
    has_one_use,
    is_one,
    make_reshape,
    make_splat,
    named_type,
    splat_value,
    static_entry,
)
from disc.passes.graph.one_hot_sums import sum_of_one_hot
from disc.shapes import parse_dim

Rule = Callable[[ir.Operation], ir.Value | None]


def same_type(op: ir.Operation) -> ir.Value | None:
    """For ops that are the identity when they keep the type."""
    return op.operands[0] if op.operands[0].type == op.results[0].type else None


def reshape_of_reshape(op: ir.Operation) -> ir.Value | None:
    inner = defining(op.operands[0], "disc.reshape")
    return make_reshape(inner.operands[0], op.results[0].type, op) if inner is not None else None


def reshape_of_splat(op: ir.Operation) -> ir.Value | None:
    """A reshape or transpose of one repeated element is a broadcast of that element."""
    element = splat_value(op.operands[0])
    return make_splat(element, op.results[0].type, op) if element is not None else None


def transpose_identity(op: ir.Operation) -> ir.Value | None:
    permutation = ints_attr(op, "permutation")
    return op.operands[0] if permutation == list(range(len(permutation))) else None


def _transpose(value: ir.Value, permutation: Sequence[int], type_: ir.Type, before: ir.Operation) -> ir.Value:
    if list(permutation) == list(range(len(permutation))):
        return value
    return build(
        "stablehlo.transpose", [value], [type_], {"permutation": ir.DenseI64ArrayAttr.get(list(permutation))}, before=before
    ).results[0]


def transpose_of_transpose(op: ir.Operation) -> ir.Value | None:
    inner = defining(op.operands[0], "stablehlo.transpose")
    if inner is None:
        return None
    first, second = ints_attr(inner, "permutation"), ints_attr(op, "permutation")
    return _transpose(inner.operands[0], [first[dim] for dim in second], op.results[0].type, op)


def transpose_of_unit_dims(op: ir.Operation) -> ir.Value | None:
    """Moving dims of size 1 alone leaves the data in place: so it is a reshape."""
    source = entries(op.operands[0].type)
    moved = [dim for dim in ints_attr(op, "permutation") if not is_one(source[dim])]
    return make_reshape(op.operands[0], op.results[0].type, op) if moved == sorted(moved) else None


def transpose_of_broadcast(op: ir.Operation) -> ir.Value | None:
    inner = defining(op.operands[0], "disc.broadcast_in_dim")
    if inner is None:
        return None
    places = ints_attr(op, "permutation")
    dims = [places.index(dim) for dim in ints_attr(inner, "dims")]
    return _broadcast(inner.operands[0], dims, ints_attr(inner, "maybe"), op.results[0].type, op)


def _broadcast(value: ir.Value, dims: Sequence[int], maybe: Sequence[int], type_: ir.Type, before: ir.Operation) -> ir.Value:
    attributes = {"dims": ir.DenseI64ArrayAttr.get(list(dims)), "maybe": ir.DenseI64ArrayAttr.get(list(maybe))}
    return build("disc.broadcast_in_dim", [value], [type_], attributes, before=before).results[0]


def broadcast_identity(op: ir.Operation) -> ir.Value | None:
    dims = ints_attr(op, "dims")
    return same_type(op) if dims == list(range(len(dims))) else None


def broadcast_certain(op: ir.Operation) -> ir.Value | None:
    """A dim in `maybe` with the symbol of its result dim is the identity there, and one of size 1 always expands."""
    dims, maybe = ints_attr(op, "dims"), ints_attr(op, "maybe")
    source, result = entries(op.operands[0].type), entries(op.results[0].type)
    undecided = [i for i in maybe if source[i] != result[dims[i]] and not is_one(source[i])]
    return _broadcast(op.operands[0], dims, undecided, op.results[0].type, op) if undecided != maybe else None


def broadcast_of_broadcast(op: ir.Operation) -> ir.Value | None:
    """Composes. The run-time checks stay: where the outer one decides at run time, the inner one must be the identity."""
    inner = defining(op.operands[0], "disc.broadcast_in_dim")
    if inner is None:
        return None
    inner_dims, outer_dims = ints_attr(inner, "dims"), ints_attr(op, "dims")
    source, middle = entries(inner.operands[0].type), entries(inner.results[0].type)
    maybe = ints_attr(inner, "maybe")
    for dim in ints_attr(op, "maybe"):
        if dim not in inner_dims or source[inner_dims.index(dim)] != middle[dim]:
            return None
        maybe.append(inner_dims.index(dim))
    dims = [outer_dims[dim] for dim in inner_dims]
    return _broadcast(inner.operands[0], dims, sorted(maybe), op.results[0].type, op)


def broadcast_of_new_unit_dims(op: ir.Operation) -> ir.Value | None:
    """A reshape that only inserts dims of size 1 is part of the broadcast (the keepdim of a reduction)."""
    inner = defining(op.operands[0], "disc.reshape")
    if inner is None:
        return None
    dims, maybe = ints_attr(op, "dims"), ints_attr(op, "maybe")
    source, middle = entries(inner.operands[0].type), entries(inner.results[0].type)
    kept = _kept_dims(source, middle)
    if kept is None or any(dim not in kept for dim in maybe):
        return None
    return _broadcast(
        inner.operands[0], [dims[dim] for dim in kept], [kept.index(dim) for dim in maybe], op.results[0].type, op
    )  # fmt: skip


def _kept_dims(source: Sequence[ir.Attribute], target: Sequence[ir.Attribute]) -> list[int] | None:
    """The dims of `target` that are the dims of `source`, where all others have size 1; None where that is not so."""
    kept: list[int] = []
    for dim, entry in enumerate(target):
        if len(kept) < len(source) and source[len(kept)] == entry:
            kept.append(dim)
        elif not is_one(entry):
            return None
    return kept if len(kept) == len(source) else None


def reduce_nothing(op: ir.Operation) -> ir.Value | None:
    """A reduction over dims of size 1 (or no dims) applies its one-op body once, to the start and the reshaped operand."""
    if len(op.operands) != 2 or IN_ORDER in op.attributes:
        return None
    source = entries(op.operands[0].type)
    if not all(is_one(source[dim]) for dim in ints_attr(op, "dimensions")):
        return None
    body = op.regions[0].blocks[0]
    ops = block_ops(body)
    start = splat_value(op.operands[1])
    if start is None or len(ops) != 2:
        return None
    type_ = op.results[0].type
    value = make_reshape(op.operands[0], type_, op)
    return build(ops[0].name, [make_splat(start, type_, op), value], [type_], before=op).results[0]


def slice_everything(op: ir.Operation) -> ir.Value | None:
    starts = [parse_dim(text) for text in strings_attr(op, "starts")]
    return same_type(op) if all(start == 0 for start in starts) and all(step == 1 for step in ints_attr(op, "strides")) else None


def pad_nothing(op: ir.Operation) -> ir.Value | None:
    low = [parse_dim(text) for text in strings_attr(op, "low")]
    return same_type(op) if all(start == 0 for start in low) and not any(ints_attr(op, "interior")) else None


def concatenate_one(op: ir.Operation) -> ir.Value | None:
    return op.operands[0] if len(op.operands) == 1 else None


def reverse_nothing(op: ir.Operation) -> ir.Value | None:
    source = entries(op.operands[0].type)
    return op.operands[0] if all(is_one(source[dim]) for dim in ints_attr(op, "dimensions")) else None


def reverse_of_reverse(op: ir.Operation) -> ir.Value | None:
    """What is reversed twice along the same dims."""
    inner = defining(op.operands[0], "stablehlo.reverse")
    same = inner is not None and sorted(ints_attr(inner, "dimensions")) == sorted(ints_attr(op, "dimensions"))
    return inner.operands[0] if inner is not None and same else None


def scan_nothing(op: ir.Operation) -> ir.Value | None:
    return op.operands[0] if is_one(entries(op.operands[0].type)[int_attr(op, "dim")]) else None


def move_through_elementwise(op: ir.Operation) -> ir.Value | None:
    """reshape(f(reshape(x))) becomes f(reshape(reshape(x))), so that the two meet; the same for transposes.

    Only where every operand of f is such an op or a splat, and f has no other use.
    """
    inner = defining(op.operands[0], *ELEMENTWISE)
    if inner is None or not has_one_use(inner.results[0]):
        return None
    movable = [defining(operand, op.name) for operand in inner.operands]
    splats = [splat_value(operand) for operand in inner.operands]
    if not any(movable) or any(move is None and splat is None for move, splat in zip(movable, splats, strict=True)):
        return None
    if any(move is not None and splat is None and not has_one_use(move.results[0]) for move, splat in zip(movable, splats, strict=True)):
        return None
    dims = entries(op.results[0].type)
    moved: list[ir.Value] = []
    for operand, splat in zip(inner.operands, splats, strict=True):
        scalar = ir.RankedTensorType(operand.type).rank < ir.RankedTensorType(inner.results[0].type).rank  # of a select or clamp
        type_ = named_type(element_type(operand.type), [] if scalar else dims)
        attributes = {name: op.attributes[name] for name in op.attributes}
        moved.append(
            make_splat(splat, type_, op) if splat is not None else build(op.name, [operand], [type_], attributes, before=op).results[0]
        )
    attributes = {name: inner.attributes[name] for name in inner.attributes}
    return build(inner.name, moved, [op.results[0].type], attributes, location=inner.location, before=op).results[0]


def dot_of_broadcast_batch(op: ir.Operation) -> ir.Value | None:
    """A batched product with an operand that was only repeated over the batch is a plain one: the batch dims join the rows.

    [b, m, k] x broadcast([k, n] → [b, k, n]) → [b, m, n]   ─►   [b, m, k] x [k, n] → [b, m, n]
    """
    numbers = _stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    batch = list(numbers.lhs_batching_dimensions)
    repeated = defining(op.operands[1], "disc.broadcast_in_dim")
    if repeated is None or not batch or batch != list(range(len(batch))) or ints_attr(repeated, "maybe"):
        return None
    places = ints_attr(repeated, "dims")
    added = [dim for dim in range(len(entries(op.operands[1].type))) if dim not in places]
    source, result = entries(repeated.operands[0].type), entries(repeated.results[0].type)
    if sorted(numbers.rhs_batching_dimensions) != added or places != sorted(places):
        return None
    if any(source[i] != result[place] for i, place in enumerate(places)):
        return None
    plain = _stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=[], rhs_batching_dimensions=[],
        lhs_contracting_dimensions=list(numbers.lhs_contracting_dimensions),
        rhs_contracting_dimensions=[places.index(dim) for dim in numbers.rhs_contracting_dimensions],
    )  # fmt: skip
    attributes = {name: op.attributes[name] for name in op.attributes} | {"dot_dimension_numbers": plain}
    return build(op.name, [op.operands[0], repeated.operands[0]], [op.results[0].type], attributes, before=op).results[0]


def gather_by_position(op: ir.Operation) -> ir.Value | None:
    """A gather that takes index i of some dim for the place i of the indices has that dim as a batching dim, and needs no index there.

    So `torch.gather` comes: all coordinates of an element as one index vector, all but one of them its own place.
    """
    numbers = _stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    joined = defining(op.operands[1], "stablehlo.concatenate")
    vector = numbers.index_vector_dim
    if joined is None or int_attr(joined, "dimension") != vector or len(joined.operands) != len(numbers.start_index_map):
        return None
    table, batching = (
        entries(op.operands[0].type),
        list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)),
    )
    kept: list[tuple[ir.Value, int]] = []
    for column, axis in zip(joined.operands, numbers.start_index_map, strict=True):
        place = _own_place(column, vector)
        alike = place is not None and entries(column.type)[place] == table[axis] and axis in numbers.collapsed_slice_dims
        if place is not None and alike and place not in dict(batching).values():
            batching.append((axis, place))
        else:
            kept.append((column, axis))
    if len(kept) == len(joined.operands) or not kept:
        return None
    batching.sort()
    dropped = [axis for axis, _ in batching]
    by_place = _stablehlo.GatherDimensionNumbers.get(
        offset_dims=list(numbers.offset_dims),
        collapsed_slice_dims=[axis for axis in numbers.collapsed_slice_dims if axis not in dropped],
        operand_batching_dims=dropped, start_indices_batching_dims=[place for _, place in batching],
        start_index_map=[axis for _, axis in kept], index_vector_dim=vector,
    )  # fmt: skip
    indices = kept[0][0]
    if len(kept) > 1:
        dims = entries(joined.results[0].type)
        dims[vector] = static_entry(len(kept))
        type_ = named_type(element_type(indices.type), dims)
        columns = [column for column, _ in kept]
        indices = build("stablehlo.concatenate", columns, [type_], {"dimension": vector}, before=op).results[0]
    attributes = {name: op.attributes[name] for name in op.attributes} | {"dimension_numbers": by_place}
    return build(op.name, [op.operands[0], indices], [op.results[0].type], attributes, before=op).results[0]


def _own_place(column: ir.Value, vector: int) -> int | None:
    """The dim along which `column`, of size 1 in dim `vector`, holds the numbers 0, 1, 2, ..."""
    reshape = defining(column, "disc.reshape")
    iota = defining(column if reshape is None else reshape.operands[0], "disc.iota")
    if iota is None or not is_one(entries(column.type)[vector]):
        return None
    dim = int_attr(iota, "dim")
    if reshape is None:
        return dim
    dims = entries(column.type)
    return dim + (dim >= vector) if entries(iota.results[0].type) == dims[:vector] + dims[vector + 1 :] else None


def gather_by_one_index(op: ir.Operation) -> ir.Value | None:
    """An index vector of one element needs no dim of its own."""
    numbers = _stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    dims, vector = entries(op.operands[1].type), numbers.index_vector_dim
    if vector != len(dims) - 1 or len(numbers.start_index_map) != 1:
        return None
    indices = make_reshape(op.operands[1], named_type(element_type(op.operands[1].type), dims[:-1]), op)
    attributes = {name: op.attributes[name] for name in op.attributes}
    return build(op.name, [op.operands[0], indices], [op.results[0].type], attributes, before=op).results[0]


STRUCTURE_RULES: dict[str, tuple[Rule, ...]] = {
    "disc.reshape": (same_type, reshape_of_reshape, reshape_of_splat, move_through_elementwise),
    "stablehlo.transpose": (
        transpose_identity, transpose_of_transpose, reshape_of_splat, transpose_of_broadcast, transpose_of_unit_dims,
        move_through_elementwise,
    ),
    "disc.broadcast_in_dim": (broadcast_identity, broadcast_certain, broadcast_of_broadcast, broadcast_of_new_unit_dims),
    "stablehlo.reduce": (reduce_nothing, sum_of_one_hot),
    "disc.slice": (slice_everything,),
    "disc.pad": (pad_nothing,),
    "stablehlo.concatenate": (concatenate_one,),
    "stablehlo.reverse": (reverse_nothing, reverse_of_reverse),
    "disc.cumulative": (scan_nothing,),
    "stablehlo.dot_general": (dot_of_broadcast_batch,),
    "disc.gather": (gather_by_position, gather_by_one_index),
}  # fmt: skip
