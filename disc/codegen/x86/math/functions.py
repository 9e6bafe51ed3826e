"""Vector math: StableHLO and CHLO elementwise functions as straight-line arith and math operations.

Every function handles NaN, infinities, signed zeros and denormals as PyTorch's eager mode does. f32 exp, expm1, log, log1p, tanh, logistic,
sin, cos, tan and erf are computed in f32; the rarer f32 functions are computed in f64 and rounded once, which keeps them within 1 ulp.
"""

from collections.abc import Callable

from disc.codegen.x86.math import erf, exp_log, gamma, hyperbolic, power, trigonometric
from disc.codegen.x86.math.vector_math import VectorBuilder, VectorMath, narrow, widen

Unary = Callable[[VectorMath, str], str]
Binary = Callable[[VectorMath, str, str], str]


def sqrt(m: VectorMath, x: str) -> str:
    """Correctly rounded."""
    return m.sqrt(x)


def rsqrt(m: VectorMath, x: str) -> str:
    """1 / sqrt(x), two correctly rounded operations: within 1.5 ulp."""
    return m.div(m.const(1.0), m.sqrt(x))


# Computed in the format of the operand.
UNARY: dict[str, Unary] = {
    "cosine": trigonometric.cosine,
    "exponential": exp_log.exponential,
    "exponential_minus_one": exp_log.exponential_minus_one,
    "log": exp_log.logarithm,
    "log_plus_one": exp_log.log_plus_one,
    "logistic": exp_log.logistic,
    "rsqrt": rsqrt,
    "sine": trigonometric.sine,
    "sqrt": sqrt,
    "tan": trigonometric.tangent,
    "tanh": exp_log.hyperbolic_tangent,
}
# Computed in f32.
UNARY_F32: dict[str, Unary] = {"erf": erf.erf_f32}
# Computed in f64.
UNARY_F64: dict[str, Unary] = {
    "acos": trigonometric.acos,
    "acosh": hyperbolic.acosh,
    "asin": trigonometric.asin,
    "asinh": hyperbolic.asinh,
    "atan": trigonometric.atan,
    "atanh": hyperbolic.atanh,
    "cbrt": hyperbolic.cbrt,
    "cosh": hyperbolic.cosh,
    "digamma": gamma.digamma,
    "erf": erf.erf_f64,
    "erf_inv": erf.erf_inv_f64,
    "erfc": erf.erfc_f64,
    "lgamma": gamma.lgamma,
    "sinh": hyperbolic.sinh,
}
BINARY_F64: dict[str, Binary] = {
    "atan2": trigonometric.atan2,
    "power": power.power,
    "remainder": power.remainder,
}
# Computed in f64 for operands that were f32: fewer bits are needed, or more range is at hand, than for f64 operands.
BINARY_WIDENED: dict[str, Binary] = {
    "power": power.power_f32,
    "remainder": power.remainder_f32,
}


def emit_unary(b: VectorBuilder, name: str, x: str, element: str) -> str:
    """Append the function `name` (StableHLO or CHLO op name without the dialect) of the vector x; gives the result's name."""
    own = UNARY.get(name) or (UNARY_F32 if element == "f32" else UNARY_F64).get(name)
    if own is not None:
        return own(VectorMath(b, element), x)
    return narrow(b, UNARY_F64[name](VectorMath(b, "f64"), widen(b, x)))


def emit_binary(b: VectorBuilder, name: str, x: str, y: str, element: str) -> str:
    """As `emit_unary`, for functions of two vectors."""
    if element == "f64":
        return BINARY_F64[name](VectorMath(b, element), x, y)
    widened = BINARY_WIDENED.get(name) or BINARY_F64[name]
    return narrow(b, widened(VectorMath(b, "f64"), widen(b, x), widen(b, y)))
