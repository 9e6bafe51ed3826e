"""Rules of `simplify` for elementwise ops. Each is exact for every input, NaN, infinities and signed zeros included."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.ir.bf16 import round_to_bf16
from disc.ir.interp.oracle import evaluate_scalars
from disc.ir.interp.values import Array, held_dtype
from disc.ir.op_table import ELEMENTWISE
from disc.ir.ops import build, int_attr, string_attr
from disc.ir.rewriting import defining, element_type, entries, is_one, make_splat, splat_value
from disc.shapes import parse_dim

Rule = Callable[[ir.Operation], ir.Value | None]


def _is(element: Array | None, value: float) -> bool:
    """Is the splat this value, with this sign of zero?"""
    if element is None or element != value:
        return False
    return element.dtype.kind != "f" or math.copysign(1.0, float(element)) == math.copysign(1.0, value)


def _is_float(value: ir.Value) -> bool:
    return isinstance(element_type(value.type), ir.FloatType)


def _all_bits(element: Array | None) -> bool:
    return element is not None and (bool(element) if element.dtype == np.bool_ else bool(~element == 0))


def _other(op: ir.Operation, matches: Callable[[Array | None], bool]) -> ir.Value | None:
    """The other operand of a commutative op, where one is a splat that matches."""
    for mine, other in ((0, 1), (1, 0)):
        if matches(splat_value(op.operands[mine])):
            return op.operands[other]
    return None


def _matching(op: ir.Operation, matches: Callable[[Array | None], bool]) -> ir.Value | None:
    """The operand that is a splat that matches."""
    return next((operand for operand in op.operands if matches(splat_value(operand))), None)


def add_zero(op: ir.Operation) -> ir.Value | None:
    """x + -0.0 is x for every float; x + 0.0 is not (-0.0 + 0.0 = 0.0)."""
    zero = -0.0 if _is_float(op.results[0]) else 0
    return _other(op, lambda element: _is(element, zero))


def subtract_zero(op: ir.Operation) -> ir.Value | None:
    return op.operands[0] if _is(splat_value(op.operands[1]), 0.0) else None


def multiply_by_one(op: ir.Operation) -> ir.Value | None:
    return _other(op, lambda element: _is(element, 1.0))


def multiply_by_zero(op: ir.Operation) -> ir.Value | None:
    """Integers only: for floats 0 * inf is NaN."""
    return None if _is_float(op.results[0]) else _matching(op, lambda element: _is(element, 0))


def divide_by_one(op: ir.Operation) -> ir.Value | None:
    return op.operands[0] if _is(splat_value(op.operands[1]), 1.0) else None


def divide_by_power_of_two(op: ir.Operation) -> ir.Value | None:
    """x / 2^k = x * 2^-k: both round the same real number, as long as 2^-k is a normal number of the type."""
    divisor = splat_value(op.operands[1])
    if divisor is None or not _is_float(op.results[0]) or not np.isfinite(divisor) or divisor == 0:
        return None
    mantissa, _ = math.frexp(abs(float(divisor)))
    if mantissa != 0.5:
        return None
    reciprocal = np.array(1.0 / float(divisor)).astype(divisor.dtype)
    smallest = float(np.finfo(divisor.dtype).smallest_normal)
    if not np.isfinite(reciprocal) or abs(float(reciprocal)) < smallest or abs(float(divisor)) < smallest:
        return None
    factor = make_splat(reciprocal, op.operands[1].type, op)
    return build("stablehlo.multiply", [op.operands[0], factor], [op.results[0].type], before=op).results[0]


def power_of_small_integer(op: ir.Operation) -> ir.Value | None:
    """Exponents 1, 2, 3 and -1 become products and a quotient, which is what eager computes for a scalar exponent.

    0.5 stays: sqrt differs from the power at -inf and -0.0.
    """
    x, exponent, type_ = op.operands[0], splat_value(op.operands[1]), op.results[0].type
    if exponent is None or not _is_float(op.results[0]):
        return None
    if exponent == 1:
        return x
    if exponent == -1:
        one = make_splat(np.ones((), exponent.dtype), type_, op)
        return build("stablehlo.divide", [one, x], [type_], before=op).results[0]
    if exponent not in (2, 3):
        return None
    square = build("stablehlo.multiply", [x, x], [type_], before=op).results[0]
    return square if exponent == 2 else build("stablehlo.multiply", [square, x], [type_], before=op).results[0]


def own_inverse(op: ir.Operation) -> ir.Value | None:
    """negate of negate, not of not."""
    inner = defining(op.operands[0], op.name)
    return inner.operands[0] if inner is not None else None


def idempotent_unary(op: ir.Operation) -> ir.Value | None:
    """abs, floor, ceil and the roundings of their own result."""
    return op.operands[0] if defining(op.operands[0], op.name) is not None else None


def abs_of_negate(op: ir.Operation) -> ir.Value | None:
    inner = defining(op.operands[0], "stablehlo.negate")
    return build(op.name, [inner.operands[0]], [op.results[0].type], before=op).results[0] if inner is not None else None


def equal_operands(op: ir.Operation) -> ir.Value | None:
    """maximum, minimum, and, or of one value with itself."""
    return op.operands[0] if op.operands[0] == op.operands[1] else None


def and_constant(op: ir.Operation) -> ir.Value | None:
    return _other(op, _all_bits) or _matching(op, lambda element: _is(element, 0))


def or_constant(op: ir.Operation) -> ir.Value | None:
    return _other(op, lambda element: _is(element, 0)) or _matching(op, _all_bits)


def xor_zero(op: ir.Operation) -> ir.Value | None:
    return _other(op, lambda element: _is(element, 0))


def neutral_extreme(op: ir.Operation) -> ir.Value | None:
    """maximum with -inf and minimum with inf: NaN stays NaN."""
    neutral = -math.inf if op.name == "stablehlo.maximum" else math.inf
    return _other(op, lambda element: _is(element, neutral)) if _is_float(op.results[0]) else None


def select_decided(op: ir.Operation) -> ir.Value | None:
    predicate, first, second = op.operands
    if first == second:
        return first
    decided = splat_value(predicate)
    if decided is not None:
        return first if bool(decided) else second
    inverse = defining(predicate, "stablehlo.not")
    if inverse is None:
        return None
    return build(op.name, [inverse.operands[0], second, first], [op.results[0].type], before=op).results[0]


def compare_with_itself(op: ir.Operation) -> ir.Value | None:
    """Integers only: NaN is not equal to itself."""
    if op.operands[0] != op.operands[1] or _is_float(op.operands[0]):
        return None
    direction = _stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    return make_splat(np.array(direction in ("EQ", "LE", "GE")), op.results[0].type, op)


def compare_of_iota(op: ir.Operation) -> ir.Value | None:
    """A count is never negative: `iota >= 0` is true, `iota < 0` is false (the rest of a causal mask that masks nothing)."""
    source = op.operands[0]
    while (moved := defining(source, "disc.reshape", "disc.broadcast_in_dim", "stablehlo.transpose")) is not None:
        source = moved.operands[0]
    bound = splat_value(op.operands[1])
    signed = str(element_type(source.type)) in ("i32", "i64")
    if bound is None or not signed or defining(source, "disc.iota") is None:
        return None
    direction = _stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    if (direction == "GE" and bound <= 0) or (direction in ("GT", "NE") and bound < 0):
        return make_splat(np.array(True), op.results[0].type, op)
    if (direction == "LT" and bound <= 0) or (direction in ("LE", "EQ") and bound < 0):
        return make_splat(np.array(False), op.results[0].type, op)
    return None


def iota_of_one(op: ir.Operation) -> ir.Value | None:
    """Counting along a dim of size 1 gives zeros."""
    type_ = ir.RankedTensorType(op.results[0].type)
    if not is_one(entries(type_)[int_attr(op, "dim")]):
        return None
    return make_splat(np.zeros((), held_dtype(str(type_.element_type))), type_, op)


def convert_to_same(op: ir.Operation) -> ir.Value | None:
    return op.operands[0] if op.operands[0].type == op.results[0].type else None


# Element type → (kind, bits that hold its integers exactly, exponent bits).
_PRECISION: dict[str, tuple[str, int, int]] = {
    "i1": ("u", 1, 0), "i8": ("s", 7, 0), "i16": ("s", 15, 0), "i32": ("s", 31, 0), "i64": ("s", 63, 0),
    "ui8": ("u", 8, 0), "ui16": ("u", 16, 0), "ui32": ("u", 32, 0), "ui64": ("u", 64, 0),
    "bf16": ("f", 8, 8), "f16": ("f", 11, 5), "f32": ("f", 24, 8), "f64": ("f", 53, 11),
}  # fmt: skip


def is_lossless(source: str, target: str) -> bool:
    """Does every value of `source` survive in `target`?"""
    if source == target:
        return True
    if source not in _PRECISION or target not in _PRECISION or target == "i1":
        return False
    (kind, bits, exponent), (other_kind, other_bits, other_exponent) = _PRECISION[source], _PRECISION[target]
    if kind == "f":
        return other_kind == "f" and bits <= other_bits and exponent <= other_exponent
    return bits <= other_bits and (kind == "u" or other_kind != "u")


def convert_of_convert(op: ir.Operation) -> ir.Value | None:
    """A → B → C is A → C where A → B loses nothing."""
    inner = defining(op.operands[0], "stablehlo.convert")
    if inner is None:
        return None
    source, middle, target = (str(element_type(v.type)) for v in (inner.operands[0], op.operands[0], op.results[0]))
    if not is_lossless(source, middle):
        return None
    # A float saturates where an integer wraps around.
    floats = [_PRECISION[name][0] == "f" for name in (source, middle) if name in _PRECISION]
    if floats[0] != floats[1] and not is_lossless(source, target) and target != "i1":
        return None
    return build(op.name, [inner.operands[0]], [op.results[0].type], before=op).results[0]


def convert_of_iota(op: ir.Operation) -> ir.Value | None:
    """The iota counts in the wanted type (from i32 or i64, which no dim overflows)."""
    inner = defining(op.operands[0], "disc.iota")
    target = str(element_type(op.results[0].type))
    if inner is None or str(element_type(inner.results[0].type)) not in ("i32", "i64") or target not in ("i32", "i64"):
        return None
    return build("disc.iota", [], [op.results[0].type], {"dim": inner.attributes["dim"]}, before=op).results[0]


def splat_operands(op: ir.Operation) -> ir.Value | None:
    """An elementwise op on splats alone is computed now."""
    elements = [splat_value(operand) for operand in op.operands]
    known = [element for element in elements if element is not None]
    if not known or len(known) < len(elements):
        return None
    result = evaluate_scalars(op, known)
    if str(element_type(op.results[0].type)) == "bf16":
        result = round_to_bf16(result)
    return make_splat(result, op.results[0].type, op)


def constant_dim_value(op: ir.Operation) -> ir.Value | None:
    dim = parse_dim(string_attr(op, "expr"))
    if not dim.is_const:
        return None
    return make_splat(np.array(dim.const, np.int64), op.results[0].type, op) if str(element_type(op.results[0].type)) == "i64" else None


_SPECIFIC: dict[str, tuple[Rule, ...]] = {
    "stablehlo.add": (add_zero,),
    "stablehlo.subtract": (subtract_zero,),
    "stablehlo.multiply": (multiply_by_one, multiply_by_zero),
    "stablehlo.divide": (divide_by_one, divide_by_power_of_two),
    "stablehlo.power": (power_of_small_integer,),
    "stablehlo.negate": (own_inverse,),
    "stablehlo.not": (own_inverse,),
    "stablehlo.abs": (idempotent_unary, abs_of_negate),
    "stablehlo.floor": (idempotent_unary,),
    "stablehlo.ceil": (idempotent_unary,),
    "stablehlo.round_nearest_even": (idempotent_unary,),
    "stablehlo.round_nearest_afz": (idempotent_unary,),
    "stablehlo.maximum": (equal_operands, neutral_extreme),
    "stablehlo.minimum": (equal_operands, neutral_extreme),
    "stablehlo.and": (equal_operands, and_constant),
    "stablehlo.or": (equal_operands, or_constant),
    "stablehlo.xor": (xor_zero,),
    "stablehlo.select": (select_decided,),
    "stablehlo.compare": (compare_with_itself, compare_of_iota),
    "stablehlo.convert": (convert_to_same, convert_of_convert, convert_of_iota),
    "disc.iota": (iota_of_one,),
    "disc.dim_value": (constant_dim_value,),
}

ELEMENTWISE_RULES: dict[str, tuple[Rule, ...]] = {
    name: (*_SPECIFIC.get(name, ()), *((splat_operands,) if name in ELEMENTWISE else ()))
    for name in dict.fromkeys([*_SPECIFIC, *sorted(ELEMENTWISE)])
}
