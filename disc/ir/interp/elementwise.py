"""Interpreter rules of elementwise ops.

Every rule broadcasts, so that the body of a reduce may be run on whole arrays. Functions of f16, bf16 and f32 are evaluated in
f64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.ir.bf16 import bf16_bits, bf16_values, round_to_bf16
from disc.ir.interp.values import Array, Rule, Scope, element_name, held_dtype
from disc.ir.ops import int_attr
from disc.ir.philox import words_at

Function = Callable[..., Array]


def _plain(function: Function) -> Rule:
    """The result has the dtype that NumPy gives."""
    return lambda op, operands, scope: [np.asarray(function(*operands))]


def _through_f64(function: Function) -> Rule:
    """A real function: evaluated in f64, rounded to the dtype of the operands."""

    def rule(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
        return [np.asarray(function(*(x.astype(np.float64) for x in operands))).astype(operands[0].dtype)]

    return rule


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f"


def _divide(x: Array, y: Array) -> Array:
    if _is_float(x):
        return np.divide(x, y)
    # Truncating division; as in XLA, a division by zero gives all bits set and the one overflow wraps.
    safe = np.where(y == 0, np.ones_like(y), y)
    quotient = (x - np.fmod(x, safe)) // safe
    return np.where(y == 0, np.array(-1).astype(x.dtype), quotient).astype(x.dtype)


def _remainder(x: Array, y: Array) -> Array:
    if _is_float(x):
        return np.fmod(x, y)
    safe = np.where(y == 0, np.ones_like(y), y)
    return np.where(y == 0, x, np.fmod(x, safe)).astype(x.dtype)


def _power(x: Array, y: Array) -> Array:
    if _is_float(x):
        return np.power(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype)
    if x.dtype.kind == "u":
        return np.power(x, y)
    positive = np.power(x, np.maximum(y, 0))
    # The reciprocal of an integer truncates to 0, except for 1 and -1 (and 1/0, which we leave at 0).
    reciprocal = np.where(np.abs(x) == 1, np.where(y % 2 == 0, np.ones_like(x), x), np.zeros_like(x))
    return np.where(y < 0, reciprocal, positive).astype(x.dtype)


def _round_away(x: Array) -> Array:
    whole = np.trunc(x)
    # x - trunc(x) is exact, x + 0.5 is not.
    return np.copysign(np.where(np.abs(x - whole) >= 0.5, np.abs(whole) + x.dtype.type(1), np.abs(whole)), x).astype(x.dtype)


def _sign(x: Array) -> Array:
    return np.where(x == 0, x, np.sign(x)).astype(x.dtype)


def _logistic(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _shift(function: Function, overflow: Callable[[Array], Array]) -> Function:
    def shifted(x: Array, amount: Array) -> Array:
        bits = x.dtype.itemsize * 8
        legal = (amount >= 0) & (amount < bits)
        return np.where(legal, function(x, np.where(legal, amount, 0).astype(x.dtype)), overflow(x)).astype(x.dtype)

    return shifted


def _logical_right(x: Array, amount: Array) -> Array:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return np.right_shift(x.astype(unsigned), amount.astype(unsigned)).astype(x.dtype)


def _signed(x: Array) -> Array:
    """The bits as a signed number: an arithmetic shift repeats the first bit, whatever the type."""
    return x.view(np.dtype(f"i{x.dtype.itemsize}"))


def _arithmetic_right(x: Array, amount: Array) -> Array:
    return np.right_shift(_signed(x), _signed(amount)).view(x.dtype)


def _all_sign(x: Array) -> Array:
    return np.where(_signed(x) < 0, np.array(-1), np.array(0)).astype(x.dtype)


def _popcount(x: Array) -> Array:
    return np.bitwise_count(x.astype(np.dtype(f"u{x.dtype.itemsize}"))).astype(x.dtype)


def _leading_zeros(x: Array) -> Array:
    bits = x.dtype.itemsize * 8
    rest = x.astype(np.dtype(f"u{x.dtype.itemsize}")).astype(np.uint64)
    length = np.zeros(x.shape, np.int64)
    for n in range(bits):
        length = np.where(rest >> np.uint64(n) != 0, n + 1, length)
    return (bits - length).astype(x.dtype)


def _not(x: Array) -> Array:
    return np.logical_not(x) if x.dtype == np.bool_ else np.invert(x)


def _extreme(function: Callable[[Array, Array], Array], sign: bool) -> Function:
    """IEEE maximum or minimum: of two zeros the one with this sign bit is chosen (NumPy takes any)."""

    def chosen(x: Array, y: Array) -> Array:
        if not _is_float(x):
            return function(x, y)
        return np.where(x == y, np.where(np.signbit(x) == sign, x, y), function(x, y)).astype(x.dtype)

    return chosen


_maximum, _minimum = _extreme(np.maximum, False), _extreme(np.minimum, True)


def _clamp(low: Array, x: Array, high: Array) -> Array:
    return _minimum(_maximum(x, low), high)


def _total_order(x: Array) -> Array:
    """Integers in the order of IEEE totalOrder: -NaN < -inf < ... < -0 < +0 < ... < inf < NaN."""
    bits = x.view(np.dtype(f"i{x.dtype.itemsize}"))
    return np.where(bits < 0, np.bitwise_xor(bits, np.iinfo(bits.dtype).max), bits)


_COMPARE: dict[str, Function] = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
}  # fmt: skip


def _compare(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    left, right = operands
    if "compare_type" in op.attributes and _stablehlo.ComparisonTypeAttr(op.attributes["compare_type"]).value == "TOTALORDER":
        left, right = _total_order(left), _total_order(right)
    direction = _stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    return [np.asarray(_COMPARE[direction](left, right))]


def convert(x: Array, element: str) -> Array:
    """Conversion between element types: float → integer truncates and saturates (NaN → 0), anything → i1 is `!= 0`."""
    target = held_dtype(element)
    if target == np.bool_:
        return x != 0
    if not _is_float(x) or target.kind == "f":
        converted = x.astype(target)
        return round_to_bf16(converted) if element == "bf16" else converted
    limits = np.iinfo(target)
    wide = np.trunc(x.astype(np.float64))
    low, high = wide <= float(limits.min), wide >= float(limits.max)
    inside = np.where(low | high | np.isnan(wide), 0.0, wide).astype(target)
    return np.where(low, limits.min, np.where(high, limits.max, inside)).astype(target)


def _convert(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [convert(operands[0], element_name(op.results[0].type))]


def _bitcast(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    source, target = element_name(op.operands[0].type), element_name(op.results[0].type)
    bits = bf16_bits(operands[0]) if source == "bf16" else operands[0]
    storage = np.dtype(np.uint16) if target == "bf16" else held_dtype(target)
    if bits.dtype.itemsize < storage.itemsize:
        viewed = np.ascontiguousarray(bits).view(storage)[..., 0]
    elif bits.dtype.itemsize > storage.itemsize:
        viewed = np.ascontiguousarray(bits)[..., None].view(storage)
    else:
        viewed = bits.view(storage)
    return [bf16_values(viewed) if target == "bf16" else viewed]


def _philox(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    position, seed = operands
    return [words_at(position, seed, int_attr(op, "stream"), int_attr(op, "word"))]


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


def _per_element(function: Callable[[float], float]) -> Function:
    return lambda x: np.vectorize(function, otypes=[np.float64])(x) if x.size else x


def _digamma(x: Array) -> Array:
    """Reflection for x < 0.5, recurrence up to 8, then the asymptotic series; NaN at negative integers, -inf / inf at ±0."""
    reflect = x < 0.5
    y = np.where(reflect, 1.0 - x, x)
    shift = np.zeros_like(y)
    for _ in range(8):
        small = y < 8
        shift = np.where(small, shift - 1 / y, shift)
        y = np.where(small, y + 1, y)
    inverse = 1 / (y * y)
    series = inverse * (1 / 12 - inverse * (1 / 120 - inverse * (1 / 252 - inverse * (1 / 240 - inverse * (1 / 132)))))
    value = np.log(y) - 0.5 / y - series + shift
    value = np.where(reflect, value - np.pi / np.tan(np.pi * np.fmod(x, 1.0)), value)
    value = np.where((x < 0) & (x == np.floor(x)), np.nan, value)
    return np.where(x == 0, np.copysign(np.inf, -x), value)


def _erf_inverse(x: Array) -> Array:
    """Winitzki's estimate, then Newton steps on erf (erfc near ±1, where erf has no digits left)."""
    erf, erfc = _per_element(math.erf), _per_element(math.erfc)
    inside = np.where(np.abs(x) < 1, x, 0.0)
    log, a = np.log1p(-inside * inside), 0.147
    term = 2 / (np.pi * a) + log / 2
    y = np.copysign(np.sqrt(np.maximum(np.sqrt(term * term - log / a) - term, 0)), inside)
    for _ in range(4):
        error = np.where(np.abs(inside) < 0.5, erf(y) - inside, np.sign(inside) * ((1 - np.abs(inside)) - erfc(np.abs(y))))
        y = y - error * np.sqrt(np.pi) / 2 * np.exp(y * y)
    return np.where(np.abs(x) < 1, y, np.where(np.abs(x) == 1, np.copysign(np.inf, x), np.nan))


_PLAIN: dict[str, Function] = {
    "stablehlo.add": np.add, "stablehlo.subtract": np.subtract, "stablehlo.multiply": np.multiply,
    "stablehlo.divide": _divide, "stablehlo.remainder": _remainder, "stablehlo.power": _power,
    "stablehlo.maximum": _maximum, "stablehlo.minimum": _minimum, "stablehlo.clamp": _clamp, "stablehlo.select": np.where,
    "stablehlo.and": np.bitwise_and, "stablehlo.or": np.bitwise_or, "stablehlo.xor": np.bitwise_xor, "stablehlo.not": _not,
    "stablehlo.shift_left": _shift(np.left_shift, np.zeros_like),
    "stablehlo.shift_right_logical": _shift(_logical_right, np.zeros_like),
    "stablehlo.shift_right_arithmetic": _shift(_arithmetic_right, _all_sign),
    "stablehlo.popcnt": _popcount, "stablehlo.count_leading_zeros": _leading_zeros,
    "stablehlo.negate": np.negative, "stablehlo.abs": np.abs, "stablehlo.sign": _sign,
    "stablehlo.floor": np.floor, "stablehlo.ceil": np.ceil, "stablehlo.sqrt": np.sqrt, "stablehlo.is_finite": np.isfinite,
    "stablehlo.round_nearest_even": np.rint, "stablehlo.round_nearest_afz": _round_away,
    "chlo.is_inf": np.isinf, "chlo.is_pos_inf": np.isposinf, "chlo.is_neg_inf": np.isneginf, "chlo.square": lambda x: x * x,
}  # fmt: skip

_THROUGH_F64: dict[str, Function] = {
    "stablehlo.exponential": np.exp, "stablehlo.exponential_minus_one": np.expm1, "stablehlo.log": np.log,
    "stablehlo.log_plus_one": np.log1p, "stablehlo.logistic": _logistic, "stablehlo.rsqrt": lambda x: 1 / np.sqrt(x),
    "stablehlo.cbrt": np.cbrt, "stablehlo.tanh": np.tanh, "stablehlo.sine": np.sin, "stablehlo.cosine": np.cos,
    "stablehlo.tan": np.tan, "stablehlo.atan2": np.arctan2,
    "chlo.erf": _per_element(math.erf), "chlo.erfc": _per_element(math.erfc), "chlo.erf_inv": _erf_inverse,
    "chlo.lgamma": _per_element(_lgamma), "chlo.digamma": _digamma,
    "chlo.sinh": np.sinh, "chlo.cosh": np.cosh, "chlo.tan": np.tan, "chlo.asin": np.arcsin, "chlo.acos": np.arccos,
    "chlo.atan": np.arctan, "chlo.asinh": np.arcsinh, "chlo.acosh": np.arccosh, "chlo.atanh": np.arctanh,
}  # fmt: skip

RULES: dict[str, Rule] = {
    **{name: _plain(function) for name, function in _PLAIN.items()},
    **{name: _through_f64(function) for name, function in _THROUGH_F64.items()},
    "stablehlo.compare": _compare,
    "stablehlo.convert": _convert,
    "stablehlo.bitcast_convert": _bitcast,
    "disc.philox": _philox,
}
