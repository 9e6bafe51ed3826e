"""Elementwise ops about signs and magnitudes: signbit, copysign, fmax, fmin, hypot."""

from __future__ import annotations

import math

import torch

from disc.frontend.call import Call
from disc.frontend.op_builder import OpBuilder, Tensor
from disc.frontend.rules.elementwise import Rule, computed
from disc.frontend.rules.overrides import Fault, Override, overrides

aten = torch.ops.aten

# The integer that holds the bits of each float, for the sign of zeros and NaNs.
BITS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def negative(e: OpBuilder, x: Tensor) -> Tensor:
    """The sign bit, of -0.0 and of NaN too."""
    if x.dtype in BITS:
        x = e.op("stablehlo.bitcast_convert", [x.value], x.shape, BITS[x.dtype])
    return e.compare("lt", x, e.scalar(0, x.dtype))


def signbit(e: OpBuilder, call: Call) -> Tensor:
    x = call.tensor("self")
    return negative(e, x) if x.dtype.is_signed else e.full(False, x.shape, torch.bool)


def copysign(e: OpBuilder, call: Call) -> Tensor:
    def body(a: Tensor, b: Tensor) -> Tensor:
        magnitude = e.unary("abs", a)
        return e.select(negative(e, b), e.unary("negate", magnitude), magnitude)

    return computed(e, call, body)


def numeric_extreme(name: str) -> Rule:
    """The extreme in which a NaN loses to a number."""

    def rule(e: OpBuilder, call: Call) -> Tensor:
        def body(a: Tensor, b: Tensor) -> Tensor:
            chosen = e.binary(name, a, b)
            if not a.dtype.is_floating_point:
                return chosen
            return e.select(e.compare("ne", a, a), b, e.select(e.compare("ne", b, b), a, chosen))

        return computed(e, call, body)

    return rule


def hypot(e: OpBuilder, call: Call) -> Tensor:
    """greater * sqrt(1 + (less / greater)^2), which overflows only where the result does."""

    def body(a: Tensor, b: Tensor) -> Tensor:
        left, right = e.unary("abs", a), e.unary("abs", b)
        greater, less = e.binary("maximum", left, right), e.binary("minimum", left, right)
        zero = e.compare("eq", greater, e.scalar(0.0, greater.dtype))
        infinity = e.scalar(math.inf, greater.dtype)
        infinite = e.binary("or", e.compare("eq", left, infinity), e.compare("eq", right, infinity))  # also where the other is NaN
        ratio = e.binary("divide", less, e.select(zero, e.scalar(1.0, greater.dtype), greater))
        root = e.unary("sqrt", e.binary("add", e.binary("multiply", ratio, ratio), e.scalar(1.0, greater.dtype)))
        return e.select(infinite, infinity, e.binary("multiply", greater, root))

    return computed(e, call, body)


OVERRIDES: dict[object, Override] = {
    **overrides(Fault.REFUSED, "16-bit floats and bools", {aten.signbit.default: signbit}),
    **overrides(Fault.REFUSED, "no StableHLO lowering", {
        aten.copysign.Tensor: copysign, aten.copysign.Scalar: copysign, aten.hypot.default: hypot,
        aten.fmax.default: numeric_extreme("maximum"), aten.fmin.default: numeric_extreme("minimum"),
    }),
}  # fmt: skip
