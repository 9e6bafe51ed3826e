"""Elementwise ops: arithmetic with PyTorch's type promotion, comparisons, selection, unary mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable

import sympy
import torch

from disc.frontend.call import Call
from disc.frontend.op_builder import NO_RULE, REDUCED_PRECISION, OpBuilder, RuleError, Tensor, is_integral
from disc.frontend.rules.overrides import Fault, Override, overrides
from disc.frontend.symbols import to_size

Operand = Tensor | bool | int | float | sympy.Expr
Rule = Callable[[OpBuilder, Call], Tensor]
REFUSED, WRONG, CRASH, WORSE = Fault.REFUSED, Fault.WRONG, Fault.CRASH, Fault.WORSE

aten = torch.ops.aten

# chlo op of each unary op that computes in the type of its result.
UNARY: dict[str, str] = {"erfc": "chlo.erfc", "erfinv": "chlo.erf_inv", "lgamma": "chlo.lgamma", "digamma": "chlo.digamma"}
SHIFT_OVERLOADS = {
    "bitwise_left_shift": ("Tensor_Scalar",), "bitwise_right_shift": ("Tensor_Scalar",),
    "__lshift__": ("Tensor", "Scalar"), "__rshift__": ("Tensor", "Scalar"),
}  # fmt: skip
SHIFTS = {
    "bitwise_left_shift": "shift_left", "bitwise_right_shift": "shift_right_arithmetic",
    "__lshift__": "shift_left", "__rshift__": "shift_right_arithmetic",
}  # fmt: skip


def operand(call: Call, name: str) -> Operand:
    """A tensor, a Python number, or a size expression."""
    value = call.raw(name)
    if isinstance(value, Tensor | bool | int | float | sympy.Expr):
        return value
    raise RuleError(f"argument {name} is neither a tensor nor a number")


def as_tensor(e: OpBuilder, value: Operand, dtype: torch.dtype) -> Tensor:
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
        if isinstance(value, sympy.Expr):
            return 1 if is_integral(value) else 1.0
        return value

    samples = [sample(value) for value in values]
    result = torch.result_type(samples[0], samples[-1])
    return result


def operands(e: OpBuilder, call: Call, dtype: torch.dtype, names: tuple[str, str] = ("self", "other")) -> tuple[Tensor, Tensor]:
    return as_tensor(e, operand(call, names[0]), dtype), as_tensor(e, operand(call, names[1]), dtype)


def rounded(e: OpBuilder, value: Operand, dtype: torch.dtype) -> Operand:
    """An operand of what computes in f32 for a result of `dtype`: eager converts its tensors to that first, and an integer that f16 or
    bf16 has not is another one then. A number without dims it takes as it is, in most of its loops."""
    if not isinstance(value, Tensor) or value.rank == 0 or value.dtype.is_floating_point or dtype not in REDUCED_PRECISION:
        return value
    return e.convert(value, dtype)


def computed(e: OpBuilder, call: Call, body: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`body` on the promoted operands, in f32 for reduced precision, converted to the result's type."""
    dtype = call.dtype
    wide = torch.float32 if dtype in REDUCED_PRECISION else dtype
    left, right = (as_tensor(e, rounded(e, operand(call, name), dtype), wide) for name in ("self", "other"))
    return e.convert(body(left, right), dtype)


def unary_rule(name: str) -> Rule:
    def rule(e: OpBuilder, call: Call) -> Tensor:
        return e.math(e.convert(call.tensor("self"), call.dtype), lambda y: e.unary(UNARY[name], y))

    return rule


def magnitude(e: OpBuilder, call: Call) -> Tensor:
    """Of numbers without a sign, which StableHLO's op does not take: themselves."""
    return call.tensor("self")


def shift_rule(name: str) -> Rule:
    def rule(e: OpBuilder, call: Call) -> Tensor:
        op = SHIFTS[name]
        if call.dtype.is_floating_point:
            raise RuleError("floating-point numbers have no bitwise ops")
        if op == "shift_right_arithmetic" and not call.dtype.is_signed:
            op = "shift_right_logical"
        return computed(e, call, lambda a, b: e.binary(op, a, b))

    return rule


def is_zero(value: object) -> bool:
    """Whether it is the number 0, which changes nothing where it is added."""
    return isinstance(value, int | float) and value == 0


def add(e: OpBuilder, call: Call) -> Tensor:
    """Plus the number 0, or something times a number that every call computes (`alpha=x.item()`)."""
    if is_zero(call.raw("other")):
        return e.convert(call.tensor("self"), call.dtype)
    scale = operand(call, "alpha")
    if isinstance(scale, bool | int | float):
        raise RuleError(NO_RULE)
    return computed(e, call, lambda x, y: e.binary("add", x, e.binary("multiply", y, as_tensor(e, scale, y.dtype))))


def power(e: OpBuilder, call: Call) -> Tensor:
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


def clamp(e: OpBuilder, call: Call) -> Tensor:
    x = as_tensor(e, operand(call, "self"), call.dtype)
    if call.has("min"):
        x = e.binary("maximum", x, as_tensor(e, operand(call, "min"), call.dtype))
    if call.has("max"):
        x = e.binary("minimum", x, as_tensor(e, operand(call, "max"), call.dtype))
    return x


def truncated(e: OpBuilder, x: Tensor) -> Tensor:
    return e.select(e.compare("lt", x, e.scalar(0.0, x.dtype)), e.unary("ceil", x), e.unary("floor", x))


def trunc(e: OpBuilder, call: Call) -> Tensor:
    x = call.tensor("self")
    return truncated(e, x) if x.dtype.is_floating_point else x


def isinf(e: OpBuilder, call: Call) -> Tensor:
    x = call.tensor("self")
    if not x.dtype.is_floating_point:
        return e.full(False, x.shape, torch.bool)
    return e.compare("eq", e.unary("abs", x), e.scalar(math.inf, x.dtype))


def cast(e: OpBuilder, call: Call) -> Tensor:
    return e.convert(call.tensor("self"), call.dtype)


def convert_element_type(e: OpBuilder, call: Call) -> Tensor:
    return e.convert(call.tensor("a"), call.dtype)


def reinterpreted(e: OpBuilder, call: Call) -> Tensor:
    """The bits of each element as another type.

    Raises: RuleError where the types have other widths, or one is bool.
    """
    x = call.tensor("self")
    if x.dtype.itemsize != call.dtype.itemsize or torch.bool in (x.dtype, call.dtype):
        raise RuleError(f"{x.dtype} seen as {call.dtype}".replace("torch.", ""))
    return x if x.dtype == call.dtype else e.op("stablehlo.bitcast_convert", [x.value], x.shape, call.dtype)


def identity(e: OpBuilder, call: Call) -> Tensor:
    return call.tensor("self")


def scalar_tensor(e: OpBuilder, call: Call) -> Tensor:
    return as_tensor(e, operand(call, "s"), call.dtype)


OVERRIDES: dict[object, Override] = {
    **overrides(REFUSED, "no StableHLO lowering", {getattr(aten, name).default: unary_rule(name) for name in UNARY}),
    **overrides(REFUSED, "of numbers without a sign", {aten.abs.default: magnitude}),
    **overrides(CRASH, "of a tensor without dims by one with dims", {
        aten.bitwise_left_shift.Tensor: shift_rule("bitwise_left_shift"),
        aten.bitwise_right_shift.Tensor: shift_rule("bitwise_right_shift"),
    }),
    **overrides(REFUSED, "no StableHLO lowering", {
        getattr(getattr(aten, name), overload): shift_rule(name)
        for name, packets in SHIFT_OVERLOADS.items() for overload in packets
    }),
    **overrides(WRONG, "powers of -0.0 and -inf; a general power where products do", {aten.pow.Tensor_Scalar: power}),
    **overrides(CRASH, "between tensors, one of them without dims", {aten.clamp.Tensor: clamp}),
    **overrides(REFUSED, "of integers between fractions", {
        aten.clamp.default: clamp, aten.clamp_min.default: clamp, aten.clamp_max.default: clamp,
    }),
    **overrides(WORSE, "the number 0 is added", {
        aten.add.Tensor: add, aten.add.Scalar: add,
    }),
    **overrides(REFUSED, "of bools and bytes", {aten.isinf.default: isinf}),
    **overrides(WORSE, "a product with the sign", {aten.trunc.default: trunc}),
    **overrides(WRONG, "floats that an integer does not hold, or that become a bool", {aten._to_copy.default: cast}),
    **overrides(WRONG, "floats that an integer does not hold", {torch.ops.prims.convert_element_type.default: convert_element_type}),
    **overrides(REFUSED, "no lowering in torch-mlir", {aten.detach_.default: identity}),
    **overrides(REFUSED, "no lowering in torch-mlir", {aten.view.dtype: reinterpreted}),
}  # fmt: skip
