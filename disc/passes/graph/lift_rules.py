"""Op name → what gives an op a dim for instances in front: the rules of `lift-batch`.

A rule is called for an op that reads a lifted value, one with the dim in front; the other operands are the same for all instances. It
changes the op, or puts another in its place, so that all its results are lifted and each instance has what the op made before. They
mirror the rules of `find-batch-dim`, which proves what they make. What is here no rule for is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.ir.op_table import Kind, rules_by_op
from disc.ir.ops import build, dense_to_array, int_attr, ints_attr, location_text, rank_of, replace_op, strings, strings_attr, to_attribute
from disc.ir.rewriting import element_type, entries, is_one, make_splat, named_type, static_entry, static_size
from disc.passes.graph.dot_numbers import DotNumbers

ZERO_TEXT = "0"


class Lifting:
    """The values of a block that have the dim `symbol` in front. columns: as `GraphThresholds.lifted_columns`."""

    def __init__(self, symbol: str, columns: int) -> None:
        self.symbol = symbol
        self.columns = columns
        self.entry: ir.Attribute = ir.FlatSymbolRefAttr.get(symbol)
        self.lifted: set[ir.Value] = set()

    def kind(self, type_: ir.Type) -> ir.RankedTensorType:
        """The type with the dim in front."""
        return named_type(element_type(type_), [self.entry, *entries(type_)])

    def retype(self, op: ir.Operation) -> None:
        """The results of `op` are lifted from now on."""
        for result in op.results:
            result.set_type(self.kind(result.type))
            self.lifted.add(result)

    def with_rows(self, value: ir.Value, before: ir.Operation) -> ir.Value:
        """`value` lifted: the same for every instance where it was not."""
        if value in self.lifted:
            return value
        return self._broadcast(value, range(1, rank_of(value) + 1), self.kind(value.type), before)

    def spread(self, value: ir.Value, like: ir.Type, before: ir.Operation) -> ir.Value:
        """A lifted number, as many times as `like`, the type of one instance, has elements."""
        kind = named_type(element_type(value.type), [self.entry, *entries(like)])
        return self._broadcast(value, (0,), kind, before)

    def replace(self, op: ir.Operation, value: ir.Value) -> None:
        """`value`, which is lifted, takes the place of the one result of `op`."""
        replace_op(op, [value])
        self.lifted.add(value)

    def _broadcast(self, value: ir.Value, dims: Sequence[int], kind: ir.Type, before: ir.Operation) -> ir.Value:
        attributes = {"dims": ir.DenseI64ArrayAttr.get(list(dims)), "maybe": ir.DenseI64ArrayAttr.get([])}
        made = build("disc.broadcast_in_dim", [value], [kind], attributes, before=before).results[0]
        self.lifted.add(made)
        return made


def refuse(op: ir.Operation, reason: str) -> UnsupportedOpError:
    """What is raised for an op that cannot be lifted."""
    return UnsupportedOpError([UnsupportedOp(op.name, f"it cannot be computed for several instances at once: {reason}", location_text(op))])


Rule = Callable[[Lifting, ir.Operation], None]


def _elementwise(lift: Lifting, op: ir.Operation) -> None:
    """A number beside tensors stays one where all instances share it."""
    one = op.results[0].type
    for place, operand in enumerate(op.operands):
        if operand in lift.lifted:
            if rank_of(operand) <= rank_of(op.results[0]):
                op.operands[place] = lift.spread(operand, one, op)
        elif rank_of(operand) == rank_of(op.results[0]):
            op.operands[place] = lift.with_rows(operand, op)
    lift.retype(op)


def _later(op: ir.Operation, *names: str) -> None:
    """Dims that attributes name are one further back."""
    for name in names:
        if isinstance(op.attributes[name], ir.IntegerAttr):
            op.attributes[name] = to_attribute(int_attr(op, name) + 1)
        else:
            op.attributes[name] = ir.DenseI64ArrayAttr.get([dim + 1 for dim in ints_attr(op, name)])


def _moved(*names: str) -> Rule:
    """Ops whose attributes name dims, and which treat each of several operands alike."""

    def rule(lift: Lifting, op: ir.Operation) -> None:
        for place, operand in enumerate(op.operands):
            op.operands[place] = lift.with_rows(operand, op)
        _later(op, *names)
        lift.retype(op)

    return rule


def _broadcast(lift: Lifting, op: ir.Operation) -> None:
    _later(op, "maybe")
    op.attributes["dims"] = ir.DenseI64ArrayAttr.get([0, *(dim + 1 for dim in ints_attr(op, "dims"))])
    lift.retype(op)


def _transpose(lift: Lifting, op: ir.Operation) -> None:
    op.attributes["permutation"] = ir.DenseI64ArrayAttr.get([0, *(dim + 1 for dim in ints_attr(op, "permutation"))])
    lift.retype(op)


def _slice(lift: Lifting, op: ir.Operation) -> None:
    op.attributes["starts"] = strings(ZERO_TEXT, *strings_attr(op, "starts"))
    op.attributes["strides"] = ir.DenseI64ArrayAttr.get([1, *ints_attr(op, "strides")])
    lift.retype(op)


def _pad(lift: Lifting, op: ir.Operation) -> None:
    if op.operands[1] in lift.lifted:
        raise refuse(op, "each instance pads with a value of its own")
    op.attributes["low"] = strings(ZERO_TEXT, *strings_attr(op, "low"))
    op.attributes["interior"] = ir.DenseI64ArrayAttr.get([0, *ints_attr(op, "interior")])
    lift.retype(op)


def _with_initials(lift: Lifting, op: ir.Operation) -> None:
    """The first half of the operands of a reduction is reduced; the others are what it begins with."""
    count = len(op.results)
    for place, operand in enumerate(op.operands):
        if place < count:
            op.operands[place] = lift.with_rows(operand, op)
        elif operand in lift.lifted:
            raise refuse(op, "each instance begins with a value of its own")


def _reduce(lift: Lifting, op: ir.Operation) -> None:
    _with_initials(lift, op)
    _later(op, "dimensions")
    lift.retype(op)


def _reduce_window(lift: Lifting, op: ir.Operation) -> None:
    _with_initials(lift, op)
    for name in ("window_dimensions", "window_strides", "base_dilations", "window_dilations"):
        if name in op.attributes:
            op.attributes[name] = ir.DenseI64ArrayAttr.get([1, *ints_attr(op, name)])
    if "padding" in op.attributes:
        rows = np.concatenate([np.zeros((1, 2), np.int64), np.asarray(dense_to_array(op.attributes["padding"]), np.int64).reshape(-1, 2)])
        op.attributes["padding"] = ir.DenseElementsAttr.get(np.ascontiguousarray(rows))
    lift.retype(op)


# --- products -----------------------------------------------------------------------------------------------------------


def _dot(lift: Lifting, op: ir.Operation) -> None:
    """Of two lifted factors, instances are a batch dim. Of one, they are a free dim of it: the rows of one product with what they share;
    but where each instance's right factor has columns enough for a product of its own, whose result needs no transpose."""
    numbers, (left, right) = DotNumbers.of(op), tuple(op.operands)
    if left not in lift.lifted and _has_columns(numbers, right, lift.columns):
        op.operands[0] = left = lift.with_rows(left, op)
    if left in lift.lifted and right in lift.lifted:
        (lb, rb), (lc, rc) = numbers.batching, numbers.contracting
        both = DotNumbers(((0, *_up(lb)), (0, *_up(rb))), (_up(lc), _up(rc)))
        op.attributes["dot_dimension_numbers"] = both.attribute()
        lift.retype(op)
        return
    side = 0 if left in lift.lifted else 1
    moved = numbers.with_dims_of(side, range(1, rank_of(op.operands[side]) + 1))
    batches, free = len(numbers.batching[0]), [numbers.free(number, rank_of(op.operands[number]) - (number == side)) for number in (0, 1)]
    dims, element = entries(op.results[0].type), element_type(op.results[0].type)
    if side == 0:
        kind = named_type(element, [*dims[:batches], lift.entry, *dims[batches:]])
        made = moved.build_dot(op, [left, right], kind).results[0]
        order = [batches, *range(batches), *range(batches + 1, len(dims) + 1)]
    else:  # what is lifted comes first, so that instances are rows
        middle = batches + len(free[0])
        kind = named_type(element, [*dims[:batches], lift.entry, *dims[middle:], *dims[batches:middle]])
        made = moved.swapped().build_dot(op, [right, left], kind).results[0]
        columns = len(free[1])
        first = [batches + 1 + columns + number for number in range(len(free[0]))]
        order = [batches, *range(batches), *first, *(batches + 1 + number for number in range(columns))]
    lift.replace(op, _ordered(lift, made, order, op))


def _has_columns(numbers: DotNumbers, right: ir.Value, least: int) -> bool:
    """Whether a lifted right factor has so many columns in each instance."""
    dims = entries(right.type)[1:]
    sizes = [static_size(dims[dim]) for dim in numbers.free(1, len(dims))]
    return prod(each or 0 for each in sizes) >= least


def _up(dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(dim + 1 for dim in dims)


def _ordered(lift: Lifting, value: ir.Value, order: Sequence[int], before: ir.Operation) -> ir.Value:
    """`value` with its dims in this order."""
    if list(order) == sorted(order):
        return value
    dims = entries(value.type)
    kind = named_type(element_type(value.type), [dims[dim] for dim in order])
    return build("stablehlo.transpose", [value], [kind], {"permutation": list(order)}, before=before).results[0]


def _convolution(lift: Lifting, op: ir.Operation) -> None:
    """Instances and images are one dim, while it runs; so they are where there is one image, and where images come first."""
    image, kernel = op.operands
    numbers = _stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    result = op.results[0]
    if kernel in lift.lifted:
        raise refuse(op, "each instance has a kernel of its own")
    if numbers.input_batch_dimension or numbers.output_batch_dimension or not is_one(entries(result.type)[0]):
        raise refuse(op, "an instance has to have one image, as its first dim")
    lifted = lift.kind(result.type)
    source = named_type(element_type(image.type), [lift.entry, *entries(image.type)[2:]])
    op.operands[0] = build("disc.reshape", [image], [source], before=op).results[0]
    result.set_type(named_type(element_type(result.type), [lift.entry, *entries(result.type)[1:]]))
    uses = [(use.owner.operation, use.operand_number) for use in result.uses]
    following = _next(op)
    value = build("disc.reshape", [result], [lifted], location=op.location, before=following).results[0]
    for owner, place in uses:
        owner.operands[place] = value
    lift.lifted.add(value)


def _next(op: ir.Operation) -> ir.Operation:
    operations = list(op.block.operations)  # pyright: ignore[reportAttributeAccessIssue]
    return operations[[each.operation for each in operations].index(op) + 1].operation


# --- gathers and slices at places that are data ----------------------------------------------------------------------------


def _gather(lift: Lifting, op: ir.Operation) -> None:
    """Each instance's indices into one table; the same indices into each instance's; or its own into its own, a batch dim of both."""
    own_source, own_indices = (operand in lift.lifted for operand in op.operands)
    old, sizes = _stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"]), strings_attr(op, "sizes")
    collapsed, batch, mapped = list(old.collapsed_slice_dims), list(old.operand_batching_dims), list(old.start_index_map)
    indexed, vector = list(old.start_indices_batching_dims), old.index_vector_dim
    offsets = [dim + 1 for dim in old.offset_dims]
    if own_source:
        collapsed, batch, mapped = ([dim + 1 for dim in dims] for dims in (collapsed, batch, mapped))
        sizes = ["1" if own_indices else lift.symbol, *sizes]
    if own_indices:
        indexed, vector = [dim + 1 for dim in indexed], vector + 1
    if own_source and own_indices:
        batch, indexed = [0, *batch], [0, *indexed]
    elif own_source:
        offsets = [0, *offsets]
    op.attributes["dimension_numbers"] = _stablehlo.GatherDimensionNumbers.get(offsets, collapsed, batch, indexed, mapped, vector)
    op.attributes["sizes"] = strings(*sizes)
    lift.retype(op)


def _dynamic_slice(lift: Lifting, op: ir.Operation) -> None:
    """Slices that begin elsewhere in each instance are a gather; a start is moved as far as the slice fits, as the op says."""
    source, *starts = op.operands
    own, sizes = source in lift.lifted, ints_attr(op, "slice_sizes")
    dims = [static_size(entry) for entry in entries(source.type)[1 if own else 0 :]]
    if any(size is None for size in dims):
        raise refuse(op, "it takes a slice out of a dim whose size is dynamic")
    word = ir.IntegerType.get_signless(64)
    columns: list[ir.Value] = []
    for start, size, taken in zip(starts, dims, sizes, strict=True):
        assert size is not None
        wide = named_type(word, entries(start.type))
        number = start if element_type(start.type) == word else build("stablehlo.convert", [start], [wide], before=op).results[0]
        scalar = ir.RankedTensorType.get([], word)
        low, high = (make_splat(np.array(bound, np.int64), scalar, op) for bound in (0, size - taken))
        number = build("stablehlo.clamp", [low, number, high], [wide], before=op).results[0]
        if start in lift.lifted:
            lift.lifted.add(number)
        column = named_type(word, [lift.entry, static_entry(1)])
        columns.append(build("disc.reshape", [lift.with_rows(number, op)], [column], before=op).results[0])
    pair = named_type(word, [lift.entry, static_entry(len(columns))])
    indices = build("stablehlo.concatenate", columns, [pair], {"dimension": 1}, before=op).results[0]
    rank = len(sizes)
    numbers = _stablehlo.GatherDimensionNumbers.get(
        list(range(1, rank + 1)), [], [0] if own else [], [0] if own else [], [dim + own for dim in range(rank)], 1
    )
    taken_text = [*(["1"] if own else []), *map(str, sizes)]
    kind = lift.kind(op.results[0].type)
    attributes = {"dimension_numbers": numbers, "sizes": strings(*taken_text)}
    lift.replace(op, build("disc.gather", [source, indices], [kind], attributes, before=op).results[0])


def _update_slice(lift: Lifting, op: ir.Operation) -> None:
    source, update, *starts = op.operands
    if any(start in lift.lifted for start in starts):
        raise refuse(op, "each instance writes at a place of its own")
    if not starts:
        raise refuse(op, "it writes a number")
    first = make_splat(np.array(0, np.dtype(np.int64)).astype(_index_dtype(starts[0])), starts[0].type, op)
    operands = [lift.with_rows(source, op), lift.with_rows(update, op), first, *starts]
    made = build("stablehlo.dynamic_update_slice", operands, [lift.kind(op.results[0].type)], before=op)
    lift.replace(op, made.results[0])


def _index_dtype(start: ir.Value) -> np.dtype[np.generic]:
    return np.dtype({"i32": np.int32, "i64": np.int64, "ui32": np.uint32, "ui64": np.uint64}[str(element_type(start.type))])


def _draw(lift: Lifting, op: ir.Operation) -> None:
    raise refuse(op, "it draws random numbers, which every instance draws for itself")


OWN: dict[str, Rule] = {
    "disc.reshape": Lifting.retype, "disc.broadcast_in_dim": _broadcast, "stablehlo.transpose": _transpose, "disc.slice": _slice,
    "disc.diagonals": _moved("row", "column"), "disc.unfold": _moved("dim"),
    "stablehlo.reverse": _moved("dimensions"), "stablehlo.concatenate": _moved("dimension"),
    "disc.pad": _pad, "disc.gather": _gather, "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _update_slice, "stablehlo.reduce": _reduce, "stablehlo.reduce_window": _reduce_window,
    "stablehlo.dot_general": _dot, "stablehlo.convolution": _convolution, "disc.cumulative": _moved("dim"), "disc.sort": _moved("dim"),
    "disc.topk": _moved("dim"), "disc.philox": _draw,
}  # fmt: skip
RULES: dict[str, Rule] = rules_by_op("lift-batch", OWN, {Kind.ELEMENTWISE: _elementwise})
