"""lgamma and digamma in f64: Stirling's series from 8 on, recurrence below, reflection for negative arguments."""

import math

from disc.codegen.x86.math.coefficients import LOG_GAMMA_F64
from disc.codegen.x86.math.exp_log import logarithm
from disc.codegen.x86.math.trigonometric import Reduced, from_quadrant, nearest_integer, tangent_of
from disc.codegen.x86.math.vector_math import VectorMath

# B_2k / (2k (2k-1)) and B_2k / 2k with the Bernoulli numbers B_2k: below 2^-50 of the result at 8 after eight and nine terms.
LOG_GAMMA_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
DIGAMMA_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12, -3617 / 8160, 43867 / 14364)
SERIES_START = 8


def reduce_half_turns(m: VectorMath, x: str) -> Reduced:
    """pi x for the trigonometric functions; exact but for the last product. From 2^51 on, x counts as an even integer."""
    doubled = m.add(x, x)
    n, quadrant = nearest_integer(m, doubled)
    bounded = m.compare("olt", m.abs(x), m.const(2.0**50))
    fraction = m.select(bounded, m.sub(doubled, n), m.const(0.0))
    return Reduced(m.int_select(bounded, quadrant, m.int_const(0)), m.scale(fraction, math.pi / 2), m.const(0.0))


def stirling(m: VectorMath, w: str) -> str:
    """lgamma(w) for w >= 8, written so that infinity gives infinity."""
    inverse = m.div(m.const(1.0), w)
    series = m.mul(inverse, m.polynomial(m.mul(inverse, inverse), LOG_GAMMA_SERIES))
    constant = 0.5 * math.log(2 * math.pi) - 0.5
    return m.fma(m.offset(logarithm(m, w), -1.0), m.offset(w, -0.5), m.offset(series, constant))


def log_gamma_of_magnitude(m: VectorMath, a: str) -> str:
    """lgamma(a) for a >= 0: (z-1)(z-2) P(z) for z = a or a + 1 in [1, 3], so that the zeros at 1 and 2 are exact; beyond, Stirling."""
    below_one = m.compare("olt", a, m.const(1.0))
    v = m.offset(m.select(below_one, m.offset(a, 1.0), a), -2.0)
    # a - 1 without the rounding of a + 1.
    shifted = m.select(below_one, a, m.offset(v, 1.0))
    near_two = m.select(below_one, m.offset(a, -1.0), v)
    # The divisor of the fit is v (v + 1) = (z - 2) (z - 1).
    near = m.mul(m.mul(near_two, shifted), m.polynomial(near_two, LOG_GAMMA_F64))
    bounded = m.at_most(m.const(float(SERIES_START)), a)
    product = bounded
    for step in range(1, 5):
        product = m.mul(product, m.offset(bounded, float(step)))
    recurs = m.compare("olt", a, m.const(float(SERIES_START)))
    far = stirling(m, m.select(recurs, m.offset(a, 5.0), a))
    # One logarithm serves both: of a below 1, of the recurrence's product up to 8.
    one = m.const(1.0)
    inside = m.compare("olt", a, m.const(3.0))
    factor = m.select(inside, m.select(below_one, a, one), m.select(recurs, product, one))
    # Adding +0 makes lgamma(1) = +0 of -0.
    return m.offset(m.sub(m.select(inside, near, far), logarithm(m, factor)), 0.0)


def lgamma(m: VectorMath, x: str) -> str:
    """log|gamma(x)|; below zero log(pi / |x sin(pi x)|) - lgamma(|x|), infinite at the poles."""
    magnitude = m.abs(x)
    value = log_gamma_of_magnitude(m, magnitude)
    sine = m.mul(m.abs(from_quadrant(m, reduce_half_turns(m, magnitude), 0)), magnitude)
    reflected = m.sub(logarithm(m, m.div(m.const(math.pi), sine)), value)
    # At -infinity the reflection is the difference of two infinities.
    reflected = m.select(m.compare("oeq", magnitude, m.infinity()), m.infinity(), reflected)
    # Near zero both sides are -log|x| up to 2 |x|, and x sin(pi x) would underflow.
    reflected = m.select(m.compare("olt", magnitude, m.const(1e-18)), value, reflected)
    return m.select(m.compare("olt", x, m.const(0.0)), reflected, value)


def digamma_of_magnitude(m: VectorMath, a: str) -> str:
    """digamma(a) for a > 0: the series at a + 8 less the sum of 1/(a + i), i < 8, as one fraction."""
    recurs = m.compare("olt", a, m.const(float(SERIES_START)))
    bounded = m.at_most(m.const(float(SERIES_START)), a)
    numerator, denominator = m.const(1.0), bounded
    for step in range(1, SERIES_START):
        term = m.offset(bounded, float(step))
        numerator = m.fma(numerator, term, denominator)
        denominator = m.mul(denominator, term)
    w = m.select(recurs, m.offset(a, float(SERIES_START)), a)
    inverse = m.div(m.const(1.0), w)
    square = m.mul(inverse, inverse)
    series = m.fma(square, m.polynomial(square, DIGAMMA_SERIES), m.scale(inverse, 0.5))
    value = m.sub(logarithm(m, w), series)
    return m.select(recurs, m.sub(value, m.div(numerator, denominator)), value)


def digamma(m: VectorMath, x: str) -> str:
    """The derivative of lgamma; below zero digamma(|x|) + 1/|x| - pi / tan(pi x). As PyTorch: NaN at the negative poles, -inf at +0."""
    magnitude = m.abs(x)
    value = digamma_of_magnitude(m, magnitude)
    # -pi / tan(pi x) = pi / tan(pi |x|) = -pi tan(pi |x| + pi/2)
    tangent = tangent_of(m, reduce_half_turns(m, magnitude), 1)
    reflected = m.fma(tangent, m.const(-math.pi), m.add(value, m.div(m.const(1.0), magnitude)))
    pole = m.compare("oeq", m.floor(x), x)
    reflected = m.select(pole, m.not_a_number(), reflected)
    result = m.select(m.compare("olt", x, m.const(0.0)), reflected, value)
    return m.select(m.compare("oeq", x, m.const(0.0)), m.copy_sign(m.infinity(), m.neg(x)), result)
