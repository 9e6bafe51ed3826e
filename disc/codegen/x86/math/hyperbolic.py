"""sinh, cosh and the inverse hyperbolic functions, and the cube root: made of exp and log in f64."""

import math

from disc.codegen.x86.math.exp_log import exponential, exponential_minus_one, log_plus_one, logarithm
from disc.codegen.x86.math.vector_math import VectorMath


def large_half_exponential(m: VectorMath, magnitude: str) -> str:
    """e^a / 2 without overflow before the result overflows."""
    root = exponential(m, m.scale(magnitude, 0.5))
    return m.mul(m.scale(root, 0.5), root)


def sinh(m: VectorMath, x: str) -> str:
    """(t + t / (t + 1)) / 2 with t = e^|x| - 1."""
    magnitude = m.abs(x)
    t = exponential_minus_one(m, magnitude)
    value = m.scale(m.add(t, m.div(t, m.offset(t, 1.0))), 0.5)
    large = large_half_exponential(m, magnitude)
    return m.copy_sign(m.select(m.compare("ogt", magnitude, m.const(700.0)), large, value), x)


def cosh(m: VectorMath, x: str) -> str:
    """e^|x| / 2 + 1 / (2 e^|x|)."""
    magnitude = m.abs(x)
    half = m.scale(exponential(m, magnitude), 0.5)
    value = m.add(half, m.div(m.const(0.25), half))
    large = large_half_exponential(m, magnitude)
    return m.select(m.compare("ogt", magnitude, m.const(700.0)), large, value)


def asinh(m: VectorMath, x: str) -> str:
    """log1p(a + a^2 / (1 + sqrt(1 + a^2))) for a = |x|, and log(a) + ln2 where a^2 is beyond 2^60."""
    magnitude = m.abs(x)
    large = m.compare("ogt", magnitude, m.const(2.0**30))
    bounded = m.at_most(m.const(2.0**30), magnitude)
    square = m.mul(bounded, bounded)
    one = m.const(1.0)
    small_value = log_plus_one(m, m.add(bounded, m.div(square, m.add(one, m.sqrt(m.add(one, square))))))
    large_value = m.offset(logarithm(m, magnitude), math.log(2))
    return m.copy_sign(m.select(large, large_value, small_value), x)


def acosh(m: VectorMath, x: str) -> str:
    """log1p(t + sqrt(2t + t^2)) for t = x - 1, and log(x) + ln2 where t^2 is beyond 2^60; NaN below 1."""
    t = m.offset(x, -1.0)
    bounded = m.at_most(m.const(2.0**30), t)
    small_value = log_plus_one(m, m.add(bounded, m.sqrt(m.fma(bounded, bounded, m.add(bounded, bounded)))))
    large_value = m.offset(logarithm(m, x), math.log(2))
    value = m.select(m.compare("ogt", x, m.const(2.0**30)), large_value, small_value)
    # sqrt(2t + t^2) is a number again below x = -1.
    return m.select(m.compare("olt", x, m.const(1.0)), m.not_a_number(), value)


def atanh(m: VectorMath, x: str) -> str:
    """log1p(2a / (1 - a)) / 2 for a = |x|; NaN beyond 1."""
    magnitude = m.abs(x)
    ratio = m.div(m.add(magnitude, magnitude), m.sub(m.const(1.0), magnitude))
    return m.copy_sign(m.scale(log_plus_one(m, ratio), 0.5), x)


def cbrt(m: VectorMath, x: str) -> str:
    """e^(log|x| / 3) and one step of Newton's method, which squares the error; tiny x are scaled so that the cube stays normal."""
    magnitude = m.abs(x)
    tiny = m.compare("olt", magnitude, m.const(2.0**-900))
    a = m.select(tiny, m.scale(magnitude, 2.0**180), magnitude)
    root = exponential(m, m.scale(logarithm(m, a), 1 / 3))
    square = m.mul(root, root)
    residual = m.fma(square, root, m.neg(a))
    step = m.div(residual, m.scale(square, 3.0))
    value = m.sub(root, step)
    value = m.select(tiny, m.scale(value, 2.0**-60), value)
    # Zero, infinity and NaN are their own cube roots; Newton's step is no number there.
    ordinary = m.mask_and(m.compare("ogt", magnitude, m.const(0.0)), m.compare("olt", magnitude, m.infinity()))
    return m.copy_sign(m.select(ordinary, value, magnitude), x)
