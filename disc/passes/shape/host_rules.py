"""Op name → how the op computes a host value from host values (see host_values.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch_mlir import ir

from disc.ir.ops import int_attr, ints_attr
from disc.ir.reducers import reduced_kinds
from disc.passes.shape.host_values import (
    ONE,
    ZERO,
    HostArithmetic,
    HostValue,
    Ratio,
    broadcast_sizes,
    elements,
    is_host_element,
    known_int,
    scalar,
    vector,
)
from disc.shapes import Dim

Item = Dim | Ratio
Rule = Callable[[HostArithmetic, ir.Operation, Sequence[HostValue]], HostValue | None]

# arith.cmpi predicates by number; unsigned ones compare sizes, which are never negative.
PREDICATES = ("EQ", "NE", "LT", "LE", "GT", "GE", "LT", "LE", "GT", "GE")


def _each(function: Callable[..., Item | None], operands: Sequence[HostValue]) -> HostValue | None:
    """`function` on every element, with NumPy's broadcasting (that of chlo.broadcast_*)."""
    arrays = np.broadcast_arrays(*operands)
    result = np.empty(arrays[0].shape, object)
    for index in np.ndindex(*result.shape):
        item = function(*(array[index] for array in arrays))
        if item is None:
            return None
        result[index] = item
    return result


def _binary(name: str) -> Rule:
    """A rule that applies the method `name` of HostArithmetic to each pair of elements."""

    def rule(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
        return _each(getattr(arithmetic, name), operands)

    return rule


def _plain(function: Callable[..., Item | None]) -> Rule:
    """A rule that needs no facts."""

    def rule(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
        return _each(function, operands)

    return rule


def _same(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    return operands[0]


def _and(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    return _each(arithmetic.all_hold, operands) if _is_boolean(op) else None


def _or(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    return _each(arithmetic.any_holds, operands) if _is_boolean(op) else None


def _xor(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    return _each(lambda a, b: a + b - a * b * 2, operands) if _is_boolean(op) else None


def _not(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    return _each(lambda a: ONE - a, operands) if _is_boolean(op) else None


def _is_boolean(op: ir.Operation) -> bool:
    kind = op.results[0].type
    element = kind.element_type if isinstance(kind, ir.RankedTensorType) else kind
    return isinstance(element, ir.IntegerType) and element.width == 1


def _abs(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    return _each(lambda a: arithmetic.maximum(a, -a), operands)


def _sign(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    def one(a: Item) -> Item | None:
        return None if isinstance(a, Ratio) else arithmetic.less(ZERO, a) - arithmetic.less(a, ZERO)

    return _each(one, operands)


def _clamp(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    def one(low: Item, value: Item, high: Item) -> Item | None:
        above = arithmetic.maximum(value, low)
        return None if above is None else arithmetic.minimum(above, high)

    return _each(one, operands)


def _compare_integers(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    direction = PREDICATES[int_attr(op, "predicate")]
    return _each(lambda a, b: arithmetic.compare(direction, a, b), operands)


def _compare(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    direction = str(op.attributes["comparison_direction"]).rstrip(">").split()[-1]
    return _each(lambda a, b: arithmetic.compare(direction, a, b), operands)


def _convert(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    """Between the types of sizes: f64 → integer rounds towards zero, anything → i1 tests that it is not zero."""
    kind = op.results[0].type
    element = kind.element_type if isinstance(kind, ir.RankedTensorType) else kind
    if not is_host_element(element):
        return None
    if isinstance(element, ir.F64Type):
        return _each(arithmetic.to_float, operands)
    if isinstance(element, ir.IntegerType) and element.width == 1:
        return _each(lambda a: None if isinstance(a, Ratio) else arithmetic.differ(a, ZERO), operands)
    return _each(arithmetic.to_integer, operands)


def _from_elements(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    shape = ir.RankedTensorType(op.results[0].type).shape
    return vector([operand.item() for operand in operands]).reshape(shape)


def _extract(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    found = [known_int(operand.item()) for operand in operands[1:]]
    index = tuple(position for position in found if position is not None)
    return scalar(operands[0].item(index)) if len(index) == len(found) else None


def _reshape(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    shape = ir.RankedTensorType(op.results[0].type).shape
    return operands[0].reshape(shape) if all(size >= 0 for size in shape) else operands[0].reshape(-1)


def _concatenate(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    return np.concatenate(operands, axis=int_attr(op, "dimension"))


def _slice(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    bounds = zip(ints_attr(op, "start_indices"), ints_attr(op, "limit_indices"), ints_attr(op, "strides"), strict=True)
    return operands[0][tuple(slice(*bound) for bound in bounds)]


def _dynamic_slice(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    """A slice whose starts are known; they are clamped so that the slice stays inside."""
    found = [known_int(operand.item()) for operand in operands[1:]]
    starts = [start for start in found if start is not None]
    if len(starts) != len(found):
        return None
    sizes = ints_attr(op, "slice_sizes")
    clamped = [min(max(start, 0), full - size) for start, size, full in zip(starts, sizes, operands[0].shape, strict=True)]
    return operands[0][tuple(slice(start, start + size) for start, size in zip(clamped, sizes, strict=True))]


def _broadcast_in_dim(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    shape = ir.RankedTensorType(op.results[0].type).shape
    if any(size < 0 for size in shape) or int(np.prod(shape)) > 64:
        return None
    expanded = [1] * len(shape)
    for size, dim in zip(operands[0].shape, ints_attr(op, "broadcast_dimensions"), strict=True):
        expanded[dim] = size
    return np.broadcast_to(operands[0].reshape(expanded), shape)


def _num_elements(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    product = ONE
    for size in elements(operands[0]):
        assert isinstance(size, Dim), "a shape holds integers"
        product = product * size
    return scalar(product)


def _get_extent(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    index = known_int(operands[1].item())
    return None if index is None else scalar(operands[0].item(index))


def _broadcast_shapes(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    """shape.broadcast: sizes aligned at the right."""
    return vector(broadcast_sizes(arithmetic.env, [tuple(operand) for operand in operands]))


def _reduce(arithmetic: HostArithmetic, op: ir.Operation, operands: Sequence[HostValue]) -> HostValue | None:
    """A whole rank-1 tensor folded by one op, as in the product of a shape."""
    if len(operands) != 2 or operands[0].ndim != 1 or ints_attr(op, "dimensions") != [0]:
        return None
    body = [inner.operation.name for inner in op.regions[0].blocks[0].operations]
    combine = {
        "stablehlo.multiply": arithmetic.multiply, "stablehlo.add": arithmetic.add,
        "stablehlo.maximum": arithmetic.maximum, "stablehlo.minimum": arithmetic.minimum,
    }.get(body[0])  # fmt: skip
    if len(body) != 2 or combine is None or reduced_kinds(op) is None:
        return None
    total: Item | None = operands[1].item()
    for item in elements(operands[0]):
        total = None if total is None else combine(total, item)
    return None if total is None else scalar(total)


_ADD = _binary("add")
_SUBTRACT = _binary("subtract")
_MULTIPLY = _binary("multiply")
_NEGATE = _plain(lambda a: -a)
_ELEMENTWISE: dict[str, Rule] = {
    "add": _ADD, "subtract": _SUBTRACT, "multiply": _MULTIPLY, "divide": _binary("divide"), "remainder": _binary("remainder"),
    "maximum": _binary("maximum"), "minimum": _binary("minimum"), "and": _and, "or": _or, "xor": _xor,
    "compare": _compare, "select": _binary("select"),
}  # fmt: skip

HOST_RULES: dict[str, Rule] = {
    **{f"stablehlo.{name}": rule for name, rule in _ELEMENTWISE.items()},
    **{f"chlo.broadcast_{name}": rule for name, rule in _ELEMENTWISE.items()},
    "stablehlo.negate": _NEGATE, "stablehlo.abs": _abs, "stablehlo.sign": _sign, "stablehlo.not": _not, "stablehlo.clamp": _clamp,
    "stablehlo.floor": _binary("floor"), "stablehlo.ceil": _binary("ceil"), "stablehlo.convert": _convert,
    "stablehlo.reshape": _reshape, "stablehlo.dynamic_reshape": lambda arithmetic, op, operands: _reshape(arithmetic, op, operands[:1]),
    "stablehlo.concatenate": _concatenate, "stablehlo.slice": _slice, "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.broadcast_in_dim": _broadcast_in_dim, "stablehlo.reduce": _reduce,
    "arith.addi": _ADD, "arith.subi": _SUBTRACT, "arith.muli": _MULTIPLY,
    "arith.divsi": _binary("divide"), "arith.divui": _binary("floor_divide"),
    "arith.floordivsi": _binary("floor_divide"),
    "arith.ceildivsi": _binary("ceil_divide"), "arith.ceildivui": _binary("ceil_divide"),
    "arith.remsi": _binary("remainder"), "arith.remui": _binary("remainder"),
    "arith.maxsi": _binary("maximum"), "arith.maxui": _binary("maximum"),
    "arith.minsi": _binary("minimum"), "arith.minui": _binary("minimum"),
    "arith.andi": _and, "arith.ori": _or, "arith.xori": _xor, "arith.cmpi": _compare_integers, "arith.select": _binary("select"),
    "arith.index_cast": _same, "arith.index_castui": _same, "arith.extsi": _same, "arith.extui": _same, "arith.trunci": _convert,
    "arith.sitofp": _convert, "arith.uitofp": _convert, "arith.fptosi": _convert, "arith.extf": _convert, "arith.truncf": _convert,
    "arith.addf": _ADD, "arith.subf": _SUBTRACT, "arith.mulf": _MULTIPLY, "arith.divf": _binary("divide"), "arith.negf": _NEGATE,
    "math.floor": _binary("floor"), "math.ceil": _binary("ceil"),
    "tensor.from_elements": _from_elements, "tensor.extract": _extract, "tensor.cast": _same,
    "shape.num_elements": _num_elements, "shape.get_extent": _get_extent, "shape.broadcast": _broadcast_shapes,
    "shape.to_extent_tensor": _same, "shape.from_extents": _from_elements, "shape.size_to_index": _same, "shape.index_to_size": _same,
}  # fmt: skip
