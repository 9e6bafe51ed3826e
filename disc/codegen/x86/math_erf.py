"""erf, erfc and erf_inv. f32 erf is its own short code; f32 erfc and erf_inv go through f64 (see math.py)."""

from disc.codegen.x86.math_coefficients import ERF_HEAD_F32, ERF_TAIL_F32, EXP2_SHORT_F32
from disc.codegen.x86.math_lanes import Lanes


def erf_f32(m: Lanes, x: str) -> str:
    """erf(x) within 1 ulp.

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
