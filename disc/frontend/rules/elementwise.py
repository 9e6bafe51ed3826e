"""Elementwise ops: arithmetic with PyTorch's type promotion, comparisons, selection, unary mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable

import sympy
import torch

from disc.frontend.call import Call
from disc.frontend.emitter import Emitter, RuleError, Tensor
from disc.frontend.symbols import to_size

Operand = Tensor | bool | int | float | sympy.Expr
Rule = Callable[[Emitter, Call], Tensor]

aten = torch.ops.aten

# StableHLO op (or chlo) of each unary op that computes in the type of its result.
UNARY: dict[str, str] = {
    "abs": "abs", "neg": "negate", "exp": "exponential", "expm1": "exponential_minus_one", "log": "log", "log1p": "log_plus_one",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sine", "cos": "cosine", "tan": "tan", "tanh": "tanh", "sigmoid": "logistic",
    "floor": "floor", "ceil": "ceil", "round": "round_nearest_even",
    "erf": "chlo.erf", "erfc": "chlo.erfc", "erfinv": "chlo.erf_inv", "lgamma": "chlo.lgamma", "digamma": "chlo.digamma",
    "sinh": "chlo.sinh", "cosh": "chlo.cosh", "asin": "chlo.asin", "acos": "chlo.acos", "atan": "chlo.atan",
    "asinh": "chlo.asinh", "acosh": "chlo.acosh", "atanh": "chlo.atanh",
}  # fmt: skip
# What StableHLO has for signed types only.
UNSIGNED: dict[str, Callable[[Emitter, Tensor], Tensor]] = {
    "abs": lambda e, x: x,
    "neg": lambda e, x: e.binary("subtract", e.scalar(0, x.dtype), x),
}
INTEGER_IDENTITY = ("floor", "ceil", "round")
BINARY: dict[str, str] = {
    "mul": "multiply", "maximum": "maximum", "minimum": "minimum", "atan2": "atan2", "fmod": "remainder",
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
    "bitwise_left_shift": "shift_left", "bitwise_right_shift": "shift_right_arithmetic",
    "__lshift__": "shift_left", "__rshift__": "shift_right_arithmetic",
}  # fmt: skip
BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def operand(call: Call, name: str) -> Operand:
    """A tensor, a Python number, or a size expression."""
    value = call.raw(name)
    if isinstance(value, Tensor | bool | int | float | sympy.Expr):
        return value
    raise RuleError(f"argument {name} is neither a tensor nor a number")


def as_tensor(e: Emitter, value: Operand, dtype: torch.dtype) -> Tensor:
    if isinstance(value, Tensor):
        return e.convert(value, dtype)
    if isinstance(value, sympy.Expr):
        return e.size_scalar(to_size(value), dtype)
    return e.scalar(value, dtype)


def promoted(*values: Operand) -> torch.dtype:
    """PyTorch's promotion over tensors (by rank) and numbers."""

    def sample(value: Operand) -> torch.Tensor | bool | int | float:
        if isinstance(value, Tensor):
            return torch.empty([1] * value.rank, dtype=value.dtype, device="meta")
        return 1 if isinstance(value, sympy.Expr) else value

    samples = [sample(value) for value in values]
    result = torch.result_type(samples[0], samples[-1])
    return result


def operands(e: Emitter, call: Call, dtype: torch.dtype, names: tuple[str, str] = ("self", "other")) -> tuple[Tensor, Tensor]:
    return as_tensor(e, operand(call, names[0]), dtype), as_tensor(e, operand(call, names[1]), dtype)


def computed(e: Emitter, call: Call, body: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`body` on the promoted operands, in f32 for reduced precision, converted to the result's type."""
    dtype = call.dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return e.convert(body(*operands(e, call, wide)), dtype)


def unary_rule(name: str) -> Rule:
    def rule(e: Emitter, call: Call) -> Tensor:
        x = call.tensor("self")
        if name in INTEGER_IDENTITY and not x.dtype.is_floating_point:
            return x
        if name in UNSIGNED and not x.dtype.is_signed:
            return UNSIGNED[name](e, x)
        return e.math(e.convert(x, call.dtype), lambda y: e.unary(UNARY[name], y))

    return rule


def binary_rule(name: str) -> Rule:
    def rule(e: Emitter, call: Call) -> Tensor:
        op = BINARY[name]
        if name in BITWISE and call.dtype.is_floating_point:
            raise RuleError("floating-point numbers have no bitwise ops")
        if op == "shift_right_arithmetic" and not call.dtype.is_signed:
            op = "shift_right_logical"
        return computed(e, call, lambda a, b: e.binary(op, a, b))

    return rule


def logical_rule(name: str) -> Rule:
    def rule(e: Emitter, call: Call) -> Tensor:
        return e.binary(LOGICAL[name], *operands(e, call, torch.bool))

    return rule


def comparison_rule(name: str) -> Rule:
    def rule(e: Emitter, call: Call) -> Tensor:
        dtype = promoted(operand(call, "self"), operand(call, "other"))
        return e.compare(name, *operands(e, call, dtype))

    return rule


def add_rule(sign: str) -> Rule:
    def rule(e: Emitter, call: Call) -> Tensor:
        alpha = call.scalar("alpha") if call.has("alpha") else 1

        def body(a: Tensor, b: Tensor) -> Tensor:
            scaled = b if alpha == 1 else e.binary("multiply", b, e.scalar(alpha, b.dtype))
            return e.binary(sign, a, scaled)

        if isinstance(call.raw("other"), int | float) and call.raw("other") == 0 and isinstance(call.raw("self"), Tensor):
            return e.convert(call.tensor("self"), call.dtype)
        return computed(e, call, body)

    return rule


def rsub(e: Emitter, call: Call) -> Tensor:
    alpha = call.scalar("alpha") if call.has("alpha") else 1

    def body(a: Tensor, b: Tensor) -> Tensor:
        return e.binary("subtract", b, a if alpha == 1 else e.binary("multiply", a, e.scalar(alpha, a.dtype)))

    return computed(e, call, body)


def div(e: Emitter, call: Call) -> Tensor:
    mode = call.text("rounding_mode")
    if mode == "floor":
        return floor_divide(e, call)

    def body(a: Tensor, b: Tensor) -> Tensor:
        quotient = e.binary("divide", a, b)
        if mode is None or not quotient.dtype.is_floating_point:
            return quotient
        return truncated(e, quotient)

    return computed(e, call, body)


def truncated(e: Emitter, x: Tensor) -> Tensor:
    return e.select(e.compare("lt", x, e.scalar(0.0, x.dtype)), e.unary("ceil", x), e.unary("floor", x))


def floor_divide(e: Emitter, call: Call) -> Tensor:
    def body(a: Tensor, b: Tensor) -> Tensor:
        quotient = e.binary("divide", a, b)
        if quotient.dtype.is_floating_point:
            return _floor_of_quotient(e, a, b, quotient)
        if not quotient.dtype.is_signed:
            return quotient
        # StableHLO truncates: one less where a remainder is left and the signs differ.
        adjust = _is_beyond(e, e.binary("remainder", a, b), b)
        return e.select(adjust, e.binary("subtract", quotient, e.scalar(1, a.dtype)), quotient)

    return computed(e, call, body)


def _is_beyond(e: Emitter, rest: Tensor, b: Tensor) -> Tensor:
    """Whether a remainder is left whose sign is not that of the divisor."""
    zero = e.scalar(0, b.dtype)
    differ = e.compare("ne", e.compare("lt", rest, zero), e.compare("lt", b, zero))
    return e.binary("and", differ, e.compare("ne", rest, zero))


def _floor_of_quotient(e: Emitter, a: Tensor, b: Tensor, quotient: Tensor) -> Tensor:
    """As Python divides floats: 1 // 0.1 is 9, though 1 / 0.1 rounds to 10, and an infinite dividend gives NaN."""
    zero, one, half = (e.scalar(value, b.dtype) for value in (0.0, 1.0, 0.5))
    rest = e.binary("remainder", a, b)
    whole = e.binary("divide", e.binary("subtract", a, rest), b)
    whole = e.select(_is_beyond(e, rest, b), e.binary("subtract", whole, one), whole)
    floor = e.unary("floor", whole)
    floor = e.select(e.compare("gt", e.binary("subtract", whole, floor), half), e.binary("add", floor, one), floor)
    floor = e.select(e.compare("eq", whole, zero), e.binary("multiply", quotient, zero), floor)  # a zero has the quotient's sign
    return e.select(e.compare("eq", b, zero), quotient, floor)


def remainder(e: Emitter, call: Call) -> Tensor:
    def body(a: Tensor, b: Tensor) -> Tensor:
        rest = e.binary("remainder", a, b)
        if not rest.dtype.is_signed:
            return rest
        # Python's sign rule: the result takes the sign of the divisor.
        return e.select(_is_beyond(e, rest, b), e.binary("add", rest, b), rest)

    return computed(e, call, body)


def power(e: Emitter, call: Call) -> Tensor:
    exponent = call.raw("exponent")

    def body(x: Tensor) -> Tensor:
        if exponent == 1:
            return x
        if exponent == 2:
            return e.binary("multiply", x, x)
        if exponent == 3:
            return e.binary("multiply", e.binary("multiply", x, x), x)
        if exponent == 0.5:
            return e.unary("sqrt", x)
        if exponent == -0.5:
            return e.unary("rsqrt", x)
        if exponent == -1:
            return e.binary("divide", e.scalar(1, x.dtype), x)
        return e.binary("power", x, as_tensor(e, operand(call, "exponent"), x.dtype))

    base = as_tensor(e, operand(call, "self"), call.dtype)
    if exponent == 0:
        return e.full(1, call.shape, call.dtype)
    return e.math(base, body)


def where(e: Emitter, call: Call) -> Tensor:
    a, b = operands(e, call, call.dtype)
    return e.select(e.convert(call.tensor("condition"), torch.bool), a, b)


def masked_fill(e: Emitter, call: Call) -> Tensor:
    x = call.tensor("self")
    return e.select(call.tensor("mask"), as_tensor(e, operand(call, "value"), x.dtype), x)


def clamp(e: Emitter, call: Call) -> Tensor:
    x = as_tensor(e, operand(call, "self"), call.dtype)
    if call.has("min"):
        x = e.binary("maximum", x, as_tensor(e, operand(call, "min"), call.dtype))
    if call.has("max"):
        x = e.binary("minimum", x, as_tensor(e, operand(call, "max"), call.dtype))
    return x


def sign(e: Emitter, call: Call) -> Tensor:
    """0 for NaN and for both zeros, unlike StableHLO's."""
    x = call.tensor("self")
    if not x.dtype.is_floating_point:
        return e.unary("sign", x) if x.dtype.is_signed else e.convert(e.convert(x, torch.bool), x.dtype)
    negative, zero, positive = (e.scalar(value, x.dtype) for value in (-1.0, 0.0, 1.0))
    below = e.select(e.compare("lt", x, zero), negative, zero)
    return e.select(e.compare("gt", x, zero), positive, below)


def relu(e: Emitter, call: Call) -> Tensor:
    x = call.tensor("self")
    return e.binary("maximum", x, e.scalar(0, x.dtype))


def logical_not(e: Emitter, call: Call) -> Tensor:
    return e.unary("not", e.convert(call.tensor("self"), torch.bool))


def bitwise_not(e: Emitter, call: Call) -> Tensor:
    if call.dtype.is_floating_point:
        raise RuleError("floating-point numbers have no bitwise ops")
    return e.unary("not", call.tensor("self"))


def trunc(e: Emitter, call: Call) -> Tensor:
    x = call.tensor("self")
    return truncated(e, x) if x.dtype.is_floating_point else x


def reciprocal(e: Emitter, call: Call) -> Tensor:
    x = e.convert(call.tensor("self"), call.dtype)
    return e.math(x, lambda y: e.binary("divide", e.scalar(1, y.dtype), y))


def scaled_log(base: float) -> Rule:
    def rule(e: Emitter, call: Call) -> Tensor:
        x = e.convert(call.tensor("self"), call.dtype)
        return e.math(x, lambda y: e.binary("multiply", e.unary("log", y), e.scalar(1 / math.log(base), y.dtype)))

    return rule


def exp2(e: Emitter, call: Call) -> Tensor:
    x = e.convert(call.tensor("self"), call.dtype)
    return e.math(x, lambda y: _power_of_two(e, y))


def _power_of_two(e: Emitter, y: Tensor) -> Tensor:
    """2^y = 2^n e^(f ln2) with n the nearest integer: e^(y ln2) would multiply the rounding of its argument by |y|.

    2^n comes in two factors, each a normal number, so that the last product alone rounds a denormal result, and overflow becomes infinite.
    """
    integer, bias, mantissa = (torch.int64, 1023, 52) if y.dtype == torch.float64 else (torch.int32, 127, 23)
    low, high = e.scalar(-bias - mantissa - 2, y.dtype), e.scalar(bias + 2, y.dtype)
    bounded = e.binary("minimum", e.binary("maximum", y, low), high)
    whole = e.unary("round_nearest_even", bounded)
    part = e.unary("exponential", e.binary("multiply", e.binary("subtract", bounded, whole), e.scalar(math.log(2), y.dtype)))
    exponent = e.op("stablehlo.convert", [whole.value], y.shape, integer)
    half = e.binary("shift_right_arithmetic", exponent, e.scalar(1, integer))
    for each in (half, e.binary("subtract", exponent, half)):
        biased = e.binary("add", each, e.scalar(bias, integer))
        shifted = e.binary("shift_left", biased, e.scalar(mantissa, integer))
        part = e.binary("multiply", part, e.op("stablehlo.bitcast_convert", [shifted.value], y.shape, y.dtype))
    return part


def isnan(e: Emitter, call: Call) -> Tensor:
    x = call.tensor("self")
    return e.compare("ne", x, x) if x.dtype.is_floating_point else e.full(False, x.shape, torch.bool)


def isinf(e: Emitter, call: Call) -> Tensor:
    x = call.tensor("self")
    if not x.dtype.is_floating_point:
        return e.full(False, x.shape, torch.bool)
    return e.compare("eq", e.unary("abs", x), e.scalar(math.inf, x.dtype))


def cast(e: Emitter, call: Call) -> Tensor:
    return e.convert(call.tensor("self"), call.dtype)


def convert_element_type(e: Emitter, call: Call) -> Tensor:
    return e.convert(call.tensor("a"), call.dtype)


def identity(e: Emitter, call: Call) -> Tensor:
    return call.tensor("self")


def lift(e: Emitter, call: Call) -> Tensor:
    x = call.tensor("self")
    return e.convert(x, call.dtype)


def scalar_tensor(e: Emitter, call: Call) -> Tensor:
    return as_tensor(e, operand(call, "s"), call.dtype)


RULES: dict[object, Rule] = {}
for _name in UNARY:
    RULES[getattr(aten, _name).default] = unary_rule(_name)
for _name in ("mul", "fmod", "bitwise_and", "bitwise_or", "bitwise_xor", "__lshift__", "__rshift__"):
    RULES[getattr(aten, _name).Tensor] = binary_rule(_name)
    RULES[getattr(aten, _name).Scalar] = binary_rule(_name)
for _name in ("maximum", "minimum", "atan2"):
    RULES[getattr(aten, _name).default] = binary_rule(_name)
for _name in ("bitwise_left_shift", "bitwise_right_shift"):
    RULES[getattr(aten, _name).Tensor] = binary_rule(_name)
    RULES[getattr(aten, _name).Tensor_Scalar] = binary_rule(_name)
for _name in LOGICAL:
    RULES[getattr(aten, _name).default] = logical_rule(_name)
for _name in COMPARISONS:
    RULES[getattr(aten, _name).Tensor] = comparison_rule(_name)
    RULES[getattr(aten, _name).Scalar] = comparison_rule(_name)
RULES |= {
    aten.add.Tensor: add_rule("add"), aten.add.Scalar: add_rule("add"),
    aten.sub.Tensor: add_rule("subtract"), aten.sub.Scalar: add_rule("subtract"),
    aten.rsub.Tensor: rsub, aten.rsub.Scalar: rsub,
    aten.div.Tensor: div, aten.true_divide.Tensor: div, aten.div.Scalar: div, aten.div.Tensor_mode: div, aten.div.Scalar_mode: div,
    aten.floor_divide.default: floor_divide, aten.floor_divide.Scalar: floor_divide,
    aten.remainder.Tensor: remainder, aten.remainder.Scalar: remainder,
    aten.pow.Tensor_Scalar: power, aten.pow.Tensor_Tensor: power, aten.pow.Scalar: power,
    aten.where.self: where, aten.where.ScalarSelf: where, aten.where.ScalarOther: where, aten.where.Scalar: where,
    aten.masked_fill.Scalar: masked_fill, aten.masked_fill.Tensor: masked_fill,
    aten.clamp.default: clamp, aten.clamp.Tensor: clamp, aten.clamp_min.default: clamp, aten.clamp_max.default: clamp,
    aten.sign.default: sign,
    aten.relu.default: relu, aten.logical_not.default: logical_not, aten.bitwise_not.default: bitwise_not, aten.trunc.default: trunc,
    aten.reciprocal.default: reciprocal, aten.log2.default: scaled_log(2), aten.log10.default: scaled_log(10), aten.exp2.default: exp2,
    aten.isnan.default: isnan, aten.isinf.default: isinf,
    aten._to_copy.default: cast, torch.ops.prims.convert_element_type.default: convert_element_type,
    aten.clone.default: identity, aten.alias.default: identity, aten.detach.default: identity, aten.detach_.default: identity,
    aten.lift_fresh_copy.default: lift,
    aten.contiguous.default: identity, aten.scalar_tensor.default: scalar_tensor,
}  # fmt: skip
