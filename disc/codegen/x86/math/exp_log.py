"""exp, log and what is made of them alone, for f32 and f64 lanes, each computed in its own format.

Measured errors are in tests/unit/codegen/test_math_ulp.py; the comments give what the construction promises.
Polynomials: tools/fit_polynomials.py.
"""

import math
from dataclasses import dataclass

import numpy as np

from disc.codegen.x86.math import pieces
from disc.codegen.x86.math.coefficients import (
    EXP2_F32,
    EXP2_F64,
    EXP_F32,
    EXP_F64,
    EXP_SIXTEENTH_F32,
    LOG_F32,
    LOG_F64,
    TANH_HEAD_F32,
    TANH_HEAD_F64,
)
from disc.codegen.x86.math.vector_math import VectorMath

LOG2_E = math.log2(math.e)
# 2^(k/16) rounded to f32, and what the rounding took away.
SIXTEENTH_POWERS = tuple(float(np.float32(2 ** (number / 16))) for number in range(16))
SIXTEENTH_POWERS_REST = tuple(2 ** (number / 16) - power for number, power in enumerate(SIXTEENTH_POWERS))


@dataclass(frozen=True)
class ExpLogTable:
    """What differs between the formats. exp, exp2, tanh_head: coefficients of polynomials."""

    exp: tuple[float, ...]
    # ln2 = high + low; high has enough trailing zeros that n * high is exact for every exponent n.
    ln2_high: float
    ln2_low: float  # the rest
    # e^x is 0 below `lowest` and infinite above `highest`; both leave the exponent arithmetic in range.
    lowest: float
    highest: float  # an x, as `lowest`
    # expm1(x) rounds to -1 below -`expm1_saturation`.
    expm1_saturation: float
    exp2: tuple[float, ...]
    tanh_head: tuple[float, ...]
    # tanh(x) rounds to 1 above `tanh_saturation`.
    tanh_saturation: float


TABLES = {
    "f32": ExpLogTable(EXP_F32, 0.693145751953125, 1.42860682030941723212e-6, -104.0, 89.0, 18.0, EXP2_F32, TANH_HEAD_F32, 10.0),
    "f64": ExpLogTable(EXP_F64, 6.93147180369123816490e-01, 1.90821492927058770002e-10, -746.0, 710.0, 40.0, EXP2_F64, TANH_HEAD_F64, 22.0),
}


def reduce_exponent(m: VectorMath, x: str, bias: int) -> tuple[str, str, str]:
    """x = n ln2 + r with |r| <= ln2/2: r, n as a float, and an integer whose low bits hold n + bias."""
    table = TABLES[m.element]
    magic = m.const(m.format.round_magic + bias)
    shifted = m.fma(x, m.const(LOG2_E), magic)
    n = m.sub(shifted, magic)
    r = m.fma(n, m.const(-table.ln2_high), x)
    r = m.fma(n, m.const(-table.ln2_low), r)
    return r, n, m.bits(shifted)


def expm1_reduced(m: VectorMath, r: str) -> str:
    """e^r - 1 on |r| <= ln2/2, within 1 ulp."""
    return m.fma(m.mul(r, r), m.polynomial(r, TABLES[m.element].exp), r)


def exponential_factors(m: VectorMath, x: str, low: str | None = None) -> tuple[str, str, str]:
    """Three factors of e^(x + low), to be multiplied in this order; `low` is a correction below x's last bit.

    2^n is applied as two factors 2^(n/2): each is a normal number for every n, so the last product alone rounds a denormal result and
    overflow becomes infinite by itself.
    """
    table = TABLES[m.element]
    clamped = m.at_most(m.const(table.highest), m.at_least(m.const(table.lowest), x))
    r, _, exponent = reduce_exponent(m, clamped, 2 * m.format.exponent_bias)
    if low is not None:
        r = m.add(r, low)
    first = m.shift_right(exponent, 1)
    second = m.int_sub(exponent, first)
    return m.offset(expm1_reduced(m, r), 1.0), m.power_of_two(first), m.power_of_two(second)


def exponential(m: VectorMath, x: str) -> str:
    """e^x within 1.1 ulp, results below the smallest normal number included."""
    if m.fills_register:
        return _exponential_by_table(m, m.at_most(m.const(TABLES[m.element].highest), x))
    value, first, second = exponential_factors(m, x)
    return m.mul(m.mul(value, first), second)


def _exponential_by_table(m: VectorMath, x: str, *, correct: bool = False) -> str:
    """e^x for f32 x up to where it overflows, as 2^n T (1 + r P(r)) with n a multiple of 1/16, T = 2^(n - floor(n)) out of a table.

    That is within 1.1 ulp, as T is rounded; `correct` adds what T lacks and makes that 0.6.
    """
    table = TABLES[m.element]
    clamped = m.at_least(m.const(table.lowest), x)
    magic = m.const(m.format.round_magic / 16)
    shifted = m.fma(clamped, m.const(LOG2_E), magic)
    n = m.sub(shifted, magic)
    r = m.fma(n, m.const(-table.ln2_high), clamped)
    r = m.fma(n, m.const(-table.ln2_low), r)
    power = m.look_up(m.bits(shifted), SIXTEENTH_POWERS)
    scaled, slope = m.mul(power, r), m.polynomial(r, EXP_SIXTEENTH_F32)
    if correct:
        value = m.add(power, m.fma(scaled, slope, m.look_up(m.bits(shifted), SIXTEENTH_POWERS_REST)))
    else:
        value = m.fma(scaled, slope, power)
    return m.scale_by_power(value, n)


def exponential_of_negative(m: VectorMath, x: str) -> str:
    """e^x of f32 x <= 0 or NaN, within 1.1 ulp like `exponential`, with fewer instructions: nothing overflows."""
    if m.fills_register:
        return _exponential_by_table(m, x)
    clamped = m.at_least(m.const(TABLES[m.element].lowest), x)
    r, _, exponent = reduce_exponent(m, clamped, 2 * m.format.exponent_bias)
    value = m.offset(expm1_reduced(m, r), 1.0)
    first = m.shift_right(exponent, 1)
    second = m.int_sub(exponent, first)
    return m.mul(m.mul(value, m.power_of_two(first)), m.power_of_two(second))


def exponential_minus_one(m: VectorMath, x: str) -> str:
    """e^x - 1 within 2 ulp.

    The top binade is reached by halving: 2^1024 is no number, 2 * 2^1023 (p + 1) is. Where n = 0 the polynomial alone is the answer.
    """
    table = TABLES[m.element]
    clamped = m.at_most(m.const(table.highest), m.at_least(m.const(-table.expm1_saturation), x))
    r, n, exponent = reduce_exponent(m, clamped, m.format.exponent_bias - 1)
    half_scale = m.power_of_two(exponent)
    reduced = expm1_reduced(m, r)
    half = m.fma(half_scale, reduced, m.offset(half_scale, -0.5))
    value = m.select(m.compare("oeq", n, m.const(0.0)), reduced, m.add(half, half))
    return m.copy_sign(value, x)


def logistic(m: VectorMath, x: str) -> str:
    """1 / (1 + e^-x) within 2 ulp: with z = e^-|x| it is 1 / (1 + z) or z / (1 + z), so that nothing overflows."""
    minus_magnitude = m.neg(m.abs(x))
    if m.fills_register:
        return _logistic_of_ratio(m, x, _exponential_by_table(m, minus_magnitude, correct=True))
    z = exponential(m, minus_magnitude)
    one = m.const(1.0)
    numerator = m.select(m.compare("olt", x, m.const(0.0)), z, one)
    denominator = m.add(one, z)
    # What 1 + z and the division lose by rounding is put back to first order, with 3/4 standing for 1 / (1 + z): without it the error
    # reaches 2.2 ulp.
    lost = m.sub(z, m.sub(denominator, one))
    quotient = m.div(numerator, denominator)
    minus_quotient = m.neg(quotient)
    residual = m.fma(minus_quotient, lost, m.fma(minus_quotient, denominator, numerator))
    return m.fma(residual, m.const(0.75), quotient)


def _logistic_of_ratio(m: VectorMath, x: str, z: str) -> str:
    """1 - q or z (1 - q) with q = z / (1 + z), whose own rounding errors then count for less. z: within 0.6 ulp."""
    one = m.const(1.0)
    quotient = m.div(z, m.add(one, z))
    factor = m.select(m.compare("olt", x, m.const(0.0)), z, one)
    return m.fma(m.neg(factor), quotient, factor)


def hyperbolic_tangent(m: VectorMath, x: str) -> str:
    """tanh(x) within 2 ulp.

    x + x^3 P(x^2) up to 0.6, beyond it 1 - E / (1 + E/2) with E = 2 e^(-2|x|), where E counts for so little that a power of two with a
    one-constant reduction is enough. NaN takes the first way, because it fails the comparison.
    """
    if m.fills_register:
        return pieces.hyperbolic_tangent(m, x)
    table = TABLES[m.element]
    square = m.mul(x, x)
    head = m.fma(m.mul(m.polynomial(square, table.tanh_head), square), x, x)
    magnitude = m.abs(x)
    bounded = m.at_most(m.const(table.tanh_saturation), magnitude)
    # The bias of 1 makes 2 e^(-2|x|) of e^(-2|x|).
    magic = m.const(m.format.round_magic + 1)
    factor = m.const(-2 * LOG2_E)
    shifted = m.fma(bounded, factor, magic)
    fraction = m.polynomial(m.fma(bounded, factor, m.sub(magic, shifted)), table.exp2)
    doubled = m.from_bits(m.int_add(m.bits(fraction), m.shift_left(m.bits(shifted), m.format.mantissa_bits)))
    one = m.const(1.0)
    tail = m.sub(one, m.div(doubled, m.fma(doubled, m.const(0.5), one)))
    return m.copy_sign(m.select(m.compare("ogt", magnitude, m.const(0.6)), tail, head), x)


def log_reduced(m: VectorMath, f: str, k: str) -> str:
    """k ln2 + log(1 + f) for sqrt(1/2) <= 1 + f <= sqrt(2), within 1 ulp."""
    if m.element == "f32":
        # ln2 rounded to f32 is right to 29 bits, so one constant is enough.
        square = m.mul(f, f)
        tail = m.mul(m.polynomial(f, LOG_F32), f)
        tail = m.fma(tail, square, m.scale(square, -0.5))
        return m.fma(k, m.const(math.log(2)), m.add(f, tail))
    # log(1 + f) = 2 atanh(s) = f - (f^2/2 - s (f^2/2 + s^2 P(s^2))), which makes the correction of f small.
    table = TABLES[m.element]
    s = m.div(f, m.offset(f, 2.0))
    z = m.mul(s, s)
    half_square = m.mul(m.scale(f, 0.5), f)
    series = m.fma(z, m.polynomial(z, LOG_F64), half_square)
    low = m.fma(s, series, m.scale(k, table.ln2_low))
    return m.fma(k, m.const(table.ln2_high), m.sub(f, m.sub(half_square, low)))


def exponent_bits_above_root_half(m: VectorMath, x: str) -> str:
    """The bits of x, shifted so that the exponent field is k + bias where x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2)."""
    shift = m.format.bits_of(1.0) - m.format.bits_of(math.sqrt(0.5))
    return m.int_add(m.bits(x), m.int_const(shift))


def exponent_as_float(m: VectorMath, shifted_bits: str, extra: float) -> str:
    """The exponent field less its bias and less `extra`. The field is put under the magic number's bits, so no conversion is needed."""
    magic = m.format.bits_of(2.0**m.format.mantissa_bits)
    field = m.shift_right(shifted_bits, m.format.mantissa_bits)
    return m.offset(m.from_bits(m.int_or(field, m.int_const(magic))), -(2.0**m.format.mantissa_bits + m.format.exponent_bias + extra))


def split_exponent(m: VectorMath, x: str) -> tuple[str, str]:
    """x = 2^k (1 + f) for positive finite x: f and k, both floats; denormal x included."""
    mantissa_bits = m.format.mantissa_bits
    tiny = m.compare("olt", x, m.const(m.format.smallest_normal))
    normal = m.select(tiny, m.scale(x, 2.0**mantissa_bits), x)
    shifted = exponent_bits_above_root_half(m, normal)
    k = exponent_as_float(m, shifted, 0.0)
    k = m.select(tiny, m.offset(k, -float(mantissa_bits)), k)
    mantissa = m.int_and(shifted, m.int_const((1 << mantissa_bits) - 1))
    fraction = m.from_bits(m.int_add(mantissa, m.int_const(m.format.bits_of(math.sqrt(0.5)))))
    return m.offset(fraction, -1.0), k


def with_log_poles(m: VectorMath, value: str, x: str) -> str:
    """log's results outside of the positive finite numbers: x for +inf and NaN, -inf at zero, NaN below."""
    outside = m.select(m.compare("oeq", x, m.const(0.0)), m.neg(m.infinity()), m.not_a_number())
    regular = m.select(m.compare("olt", x, m.infinity()), value, x)
    return m.select(m.compare("ole", x, m.const(0.0)), outside, regular)


def logarithm(m: VectorMath, x: str) -> str:
    """log(x) within 1 ulp."""
    f, k = split_exponent(m, x)
    return with_log_poles(m, log_reduced(m, f, k), x)


def log_plus_one(m: VectorMath, x: str) -> str:
    """log(1 + x) within 2 ulp: k is taken from 1 + x rounded, f = 2^-k x + (2^-k - 1) from x itself, so no bit of a small x is lost.

    4f is what is computed: 2^-k is denormal in the top binade, 2^(2-k) is not.
    """
    sum_ = m.offset(x, 1.0)
    shifted = exponent_bits_above_root_half(m, sum_)
    k = exponent_as_float(m, shifted, 0.0)
    mantissa_bits = m.format.mantissa_bits
    field = m.int_and(shifted, m.int_const(m.format.infinity_bits))
    inverse = m.from_bits(m.int_sub(m.int_const((2 * m.format.exponent_bias + 2) << mantissa_bits), field))
    f = m.scale(m.fma(inverse, x, m.offset(inverse, -4.0)), 0.25)
    value = m.copy_sign(log_reduced(m, f, k), x)
    above_pole = m.select(m.compare("olt", sum_, m.infinity()), value, x)
    at_or_below = m.select(m.compare("oeq", sum_, m.const(0.0)), m.neg(m.infinity()), m.not_a_number())
    return m.select(m.compare("ole", sum_, m.const(0.0)), at_or_below, above_pole)
