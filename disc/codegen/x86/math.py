"""Vector math: StableHLO and CHLO elementwise functions as straight-line arith and math operations.

Every function handles NaN, infinities, signed zeros and denormals as PyTorch's eager mode does. f32 exp, expm1, log, log1p, tanh, logistic
and erf are computed in f32; the rarer f32 functions are computed in f64 and rounded once, which keeps them within 1 ulp.
"""

from collections.abc import Callable

from disc.codegen.x86 import math_erf, math_exp_log
from disc.codegen.x86.math_lanes import Lanes, VectorBuilder, narrow, widen

Unary = Callable[[Lanes, str], str]
Binary = Callable[[Lanes, str, str], str]


def sqrt(m: Lanes, x: str) -> str:
    """Correctly rounded."""
    return m.sqrt(x)


def rsqrt(m: Lanes, x: str) -> str:
    """1 / sqrt(x), two correctly rounded operations: within 1.5 ulp."""
    return m.div(m.const(1.0), m.sqrt(x))


# Computed in the format of the operand.
UNARY: dict[str, Unary] = {
    "exponential": math_exp_log.exponential,
    "exponential_minus_one": math_exp_log.exponential_minus_one,
    "log": math_exp_log.logarithm,
    "log_plus_one": math_exp_log.log_plus_one,
    "logistic": math_exp_log.logistic,
    "rsqrt": rsqrt,
    "sqrt": sqrt,
    "tanh": math_exp_log.hyperbolic_tangent,
}
UNARY_F32: dict[str, Unary] = {"erf": math_erf.erf_f32}
UNARY_F64: dict[str, Unary] = {}
BINARY: dict[str, Binary] = {}
BINARY_F32: dict[str, Binary] = {}
BINARY_F64: dict[str, Binary] = {}


def emit_unary(b: VectorBuilder, name: str, x: str, element: str) -> str:
    """Append the function `name` (StableHLO or CHLO op name without the dialect) of the vector x; gives the result's name."""
    own = UNARY.get(name) or (UNARY_F32 if element == "f32" else UNARY_F64).get(name)
    if own is not None:
        return own(Lanes(b, element), x)
    return narrow(b, UNARY_F64[name](Lanes(b, "f64"), widen(b, x)))


def emit_binary(b: VectorBuilder, name: str, x: str, y: str, element: str) -> str:
    """As `emit_unary`, for functions of two vectors."""
    own = BINARY.get(name) or (BINARY_F32 if element == "f32" else BINARY_F64).get(name)
    if own is not None:
        return own(Lanes(b, element), x, y)
    return narrow(b, BINARY_F64[name](Lanes(b, "f64"), widen(b, x), widen(b, y)))
