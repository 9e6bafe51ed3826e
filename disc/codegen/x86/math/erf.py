"""erf, erfc and erf_inv. f32 erf is its own short code; f32 erfc and erf_inv go through f64 (see functions.py)."""

from disc.codegen.x86.math import pieces
from disc.codegen.x86.math.coefficients import (
    ERF_HEAD_F32,
    ERF_HEAD_F64,
    ERF_INV_CENTRE_F64,
    ERF_INV_TAIL_F64,
    ERF_TAIL_F32,
    ERFC_F64,
    EXP2_SHORT_F32,
)
from disc.codegen.x86.math.exp_log import exponential_factors, logarithm
from disc.codegen.x86.math.vector_math import VectorMath


def erf_f32(m: VectorMath, x: str) -> str:
    """erf(x) within 2 ulp."""
    return pieces.erf(m, x) if m.fills_register else _erf_of_two_ranges(m, x)


def _erf_of_two_ranges(m: VectorMath, x: str) -> str:
    """1.7 ulp measured, just beyond 0.92.

    Below 0.92 it is x + x P(x^2), beyond it is 1 - 2^T(|x|) with T a polynomial of log2(erfc). NaN takes the first way, because it fails
    the comparison.
    """
    magnitude = m.abs(x)
    head = m.fma(m.polynomial(m.mul(x, x), ERF_HEAD_F32), x, x)
    exponent = m.polynomial(m.at_most(m.const(4.0), magnitude), ERF_TAIL_F32)
    magic = m.const(m.format.round_magic)
    shifted = m.add(exponent, magic)
    fraction = m.polynomial(m.sub(exponent, m.sub(shifted, magic)), EXP2_SHORT_F32)
    complement = m.from_bits(m.int_add(m.bits(fraction), m.shift_left(m.bits(shifted), m.format.mantissa_bits)))
    tail = m.copy_sign(m.sub(m.const(1.0), complement), x)
    return m.select(m.compare("ogt", magnitude, m.const(0.92)), tail, head)


def erfc_of_magnitude(m: VectorMath, magnitude: str) -> str:
    """erfc(a) for a >= 0 in f64: exp(-a^2) P(q) / (1 + 2a) with q = (a - 4) / (a + 4); a^2 is taken to twice the precision."""
    a = m.at_most(m.const(28.0), magnitude)
    q = m.div(m.offset(a, -4.0), m.offset(a, 4.0))
    scaled = m.div(m.polynomial(q, ERFC_F64), m.fma(a, m.const(2.0), m.const(1.0)))
    square = m.mul(a, a)
    lost = m.fma(a, a, m.neg(square))
    value, first, second = exponential_factors(m, m.neg(square), m.neg(lost))
    return m.mul(m.mul(m.mul(scaled, value), first), second)


def erf_head_f64(m: VectorMath, x: str) -> str:
    """erf(x) = x + x P(x^2) for |x| <= 1."""
    return m.fma(m.polynomial(m.mul(x, x), ERF_HEAD_F64), x, x)


def erf_f64(m: VectorMath, x: str) -> str:
    """erf(x) within 1 ulp: beyond 1 it is 1 - erfc."""
    magnitude = m.abs(x)
    tail = m.copy_sign(m.sub(m.const(1.0), erfc_of_magnitude(m, magnitude)), x)
    return m.select(m.compare("ogt", magnitude, m.const(1.0)), tail, erf_head_f64(m, x))


def erfc_f64(m: VectorMath, x: str) -> str:
    """erfc(x) in f64, within 3 ulp (measured); 1 - erf(x) about zero, where the tail's rounding errors would show most."""
    magnitude = m.abs(x)
    tail = erfc_of_magnitude(m, magnitude)
    value = m.select(m.compare("olt", x, m.const(0.0)), m.sub(m.const(2.0), tail), tail)
    central = m.sub(m.const(1.0), erf_head_f64(m, x))
    return m.select(m.compare("olt", magnitude, m.const(0.5)), central, value)


def erf_inv_f64(m: VectorMath, x: str) -> str:
    """erf_inv(x) in f64: x times a polynomial of w = -log(1 - x^2), or of sqrt(w) from w = 6 on."""
    one = m.const(1.0)
    w = m.neg(logarithm(m, m.mul(m.sub(one, x), m.add(one, x))))
    center = m.polynomial(m.offset(w, -3.0), ERF_INV_CENTRE_F64)
    tail = m.polynomial(m.offset(m.sqrt(w), -4.0), ERF_INV_TAIL_F64)
    value = m.mul(x, m.select(m.compare("ogt", w, m.const(6.0)), tail, center))
    # The logarithm is NaN beyond 1 and infinite at 1.
    return m.select(m.compare("oeq", m.abs(x), one), m.copy_sign(m.infinity(), x), value)
