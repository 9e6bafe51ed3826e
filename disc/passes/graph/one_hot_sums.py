"""A rule of `simplify`: a sum over classes of which one at most counts is that one's value.

    %hot = compare EQ, iota over the classes, label        sum over classes of select(%hot and %valid, %value, 0)
                                                           → select(0 <= label <= last class and %valid, %value, 0)

`value` and `valid` are the same for all classes. The gradient of a cross entropy has such a sum, and is element by element without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from torch_mlir import ir

from disc.ir.interp.values import held_dtype
from disc.ir.ops import build, int_attr, ints_attr
from disc.ir.reducers import IN_ORDER, reduced_kinds
from disc.ir.rewriting import defining, element_type, entries, is_one, make_reshape, make_splat, named_type, splat_value, static_size

T = TypeVar("T")


def sum_of_one_hot(op: ir.Operation) -> ir.Value | None:
    """As in the module's text, of a reduction over one dim of a known size."""
    if len(op.operands) != 2 or IN_ORDER in op.attributes or reduced_kinds(op) != ["add"]:
        return None
    chosen, start = defining(op.operands[0], "stablehlo.select"), splat_value(op.operands[1])
    dims = ints_attr(op, "dimensions")
    if chosen is None or start is None or start != 0 or np.signbit(start) or len(dims) != 1:
        return None
    (dim,) = dims
    otherwise, count = splat_value(chosen.operands[2]), static_size(entries(chosen.results[0].type)[dim])
    if otherwise is None or otherwise != 0 or not count:
        return None
    value, conditions = chosen.operands[1], _conjuncts(chosen.operands[0])
    labels = [label for each in conditions if (label := _label(each, dim, count)) is not None]
    others = [each for each in conditions if _label(each, dim, count) is None]
    if len(labels) != 1 or not all(_is_same_along(each, dim) for each in (value, *labels, *others)):
        return None
    inside = _in_range(_without(labels[0], dim, op), count, op)
    for each in others:
        inside = build("stablehlo.and", [inside, _without(each, dim, op)], [inside.type], before=op).results[0]
    type_ = op.results[0].type
    zero = make_splat(start, type_, op)
    found = build("stablehlo.select", [inside, _without(value, dim, op), zero], [type_], before=op).results[0]
    return build("stablehlo.add", [found, zero], [type_], before=op).results[0]  # a sum that begins with 0 is never -0


def _conjuncts(condition: ir.Value) -> list[ir.Value]:
    both = defining(condition, "stablehlo.and")
    return [condition] if both is None else [each for operand in both.operands for each in _conjuncts(operand)]


def _label(condition: ir.Value, dim: int, count: int) -> ir.Value | None:
    """The other side of a comparison for equality with the numbers, `count` of them, along `dim`."""
    equal = defining(condition, "stablehlo.compare")
    if equal is None or equal.attributes["comparison_direction"] != _direction("EQ"):
        return None
    for number, label in ((0, 1), (1, 0)):
        if _counts(equal.operands[number], dim, count):
            return equal.operands[label]
    return None


def _counts(value: ir.Value, dim: int, count: int) -> bool:
    """Whether each element is its number, of `count`, along `dim`."""
    spread = defining(value, "disc.broadcast_in_dim")
    numbers = defining(value if spread is None else spread.operands[0], "disc.iota")
    if numbers is None:
        return False
    dtype, place = held_dtype(str(element_type(value.type))), int_attr(numbers, "dim")
    if dtype.kind not in "iu" or np.iinfo(dtype).max < count - 1:
        return False
    if static_size(entries(numbers.results[0].type)[place]) != count:
        return False
    return place == dim if spread is None else ints_attr(spread, "dims")[place] == dim


def _in_range(label: ir.Value, count: int, before: ir.Operation) -> ir.Value:
    """Whether it is one of the first `count` numbers."""
    dtype = held_dtype(str(element_type(label.type)))
    bit = named_type(ir.IntegerType.get_signless(1), entries(label.type))
    sides = [
        build(
            "stablehlo.compare", [label, make_splat(np.array(limit, dtype), label.type, before)], [bit],
            {"comparison_direction": _direction(direction)}, before=before,
        ).results[0]
        for limit, direction in ((0, "GE"), (count - 1, "LE"))
    ]  # fmt: skip
    return build("stablehlo.and", sides, [bit], before=before).results[0]


def _direction(name: str) -> ir.Attribute:
    return ir.Attribute.parse(f"#stablehlo<comparison_direction {name}>")


def _is_same_along(value: ir.Value, dim: int) -> bool:
    if splat_value(value) is not None:
        return True
    spread = defining(value, "disc.broadcast_in_dim")
    if spread is None:
        return False
    dims = ints_attr(spread, "dims")
    if dim not in dims:
        return True
    place = dims.index(dim)
    return place not in ints_attr(spread, "maybe") and is_one(entries(spread.operands[0].type)[place])


def _without(value: ir.Value, dim: int, before: ir.Operation) -> ir.Value:
    """A value that is the same along `dim`, without that."""
    type_ = named_type(element_type(value.type), _left_out(entries(value.type), dim))
    element = splat_value(value)
    if element is not None:
        return make_splat(element, type_, before)
    spread = defining(value, "disc.broadcast_in_dim")
    assert spread is not None
    dims, maybe, source = ints_attr(spread, "dims"), ints_attr(spread, "maybe"), spread.operands[0]
    if dim in dims:
        place = dims.index(dim)
        source = make_reshape(source, named_type(element_type(source.type), _left_out(entries(source.type), place)), before)
        dims, maybe = _left_out(dims, place), [each - (each > place) for each in maybe]
    dims = [each - (each > dim) for each in dims]
    attributes = {"dims": ir.DenseI64ArrayAttr.get(dims), "maybe": ir.DenseI64ArrayAttr.get(maybe)}
    return build("disc.broadcast_in_dim", [source], [type_], attributes, before=before).results[0]


def _left_out(items: Sequence[T], place: int) -> list[T]:
    return [each for number, each in enumerate(items) if number != place]
