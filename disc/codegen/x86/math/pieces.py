"""Odd f32 functions by one polynomial per interval, whose coefficients are looked up in registers. For lanes that fill a register."""

from disc.codegen.x86.math.coefficients import ERF_PIECES_F32, TANH_PIECES_F32
from disc.codegen.x86.math.vector_math import VectorMath

Rows = tuple[tuple[float, ...], ...]


def erf(m: VectorMath, x: str) -> str:
    """erf(x) within 2 ulp."""
    rest, number = _interval(m, x, 0.25, ERF_PIECES_F32)
    value = _slope(m, rest, number, ERF_PIECES_F32)
    # Up to 1/4, where the rounding of a slope of 1.13 alone would cost an ulp, x is added to the polynomial; beyond, erf(1/4) and more,
    # which is larger than the rest.
    return m.copy_sign(m.fma(value, rest, m.at_least(m.look_up(number, ERF_PIECES_F32[0]), rest)), x)


def hyperbolic_tangent(m: VectorMath, x: str) -> str:
    """tanh(x) within 2 ulp."""
    rest, number = _interval(m, x, 0.283203125, TANH_PIECES_F32)
    value = _slope(m, rest, number, TANH_PIECES_F32)
    return m.copy_sign(m.fma(value, rest, m.look_up(number, TANH_PIECES_F32[0])), x)


def _interval(m: VectorMath, x: str, step: float, rows: Rows) -> tuple[str, str]:
    """|x| - number * step, and an integer with the interval's number in its low bits; beyond the last interval those of its end.

    rows: a row per coefficient, constant terms first. step: a multiple of 2^-12, so that the difference is exact.
    """
    end = step * len(rows[0])
    magnitude = m.at_most(m.const(end * (1 - 2.0**-24)), m.abs(x))
    magic = m.const(m.format.round_magic)
    shifted = m.fma_down(magnitude, m.const(1 / step), magic)
    return m.fma(m.sub(shifted, magic), m.const(-step), magnitude), m.bits(shifted)


def _slope(m: VectorMath, variable: str, number: str, rows: Rows) -> str:
    """The polynomial less its constant term, over `variable`. Coefficients are looked up where they are used, so that few are alive."""
    value = m.look_up(number, rows[-1])
    for row in reversed(rows[1:-1]):
        value = m.fma(value, variable, m.look_up(number, row))
    return value
