"""Odd f32 functions by one polynomial per interval, whose coefficients are looked up in registers. For lanes that fill a register."""

from disc.codegen.x86.math_coefficients import ERF_PIECES_F32, TANH_PIECES_F32
from disc.codegen.x86.math_lanes import Lanes

Rows = tuple[tuple[float, ...], ...]


def erf(m: Lanes, x: str) -> str:
    """erf(x) within 2 ulp."""
    rest, values = _coefficients(m, x, 0.25, ERF_PIECES_F32)
    # Up to 1/4, where the rounding of a slope of 1.13 alone would cost an ulp, x is added to the polynomial; beyond, erf(1/4) and more,
    # which is larger than the rest.
    return m.copy_sign(_polynomial(m, rest, [m.at_least(values[0], rest), *values[1:]]), x)


def hyperbolic_tangent(m: Lanes, x: str) -> str:
    """tanh(x) within 2 ulp."""
    rest, values = _coefficients(m, x, 0.283203125, TANH_PIECES_F32)
    return m.copy_sign(_polynomial(m, rest, values), x)


def _coefficients(m: Lanes, x: str, step: float, rows: Rows) -> tuple[str, list[str]]:
    """|x| - number * step, and the coefficients of the interval with this number; beyond the last interval those of its end.

    rows: a row per coefficient, constant terms first. step: a multiple of 2^-12, so that the difference is exact.
    """
    end = step * len(rows[0])
    magnitude = m.at_most(m.const(end * (1 - 2.0**-24)), m.abs(x))
    magic = m.const(m.format.round_magic)
    shifted = m.fma_down(magnitude, m.const(1 / step), magic)
    rest = m.fma(m.sub(shifted, magic), m.const(-step), magnitude)
    return rest, [m.look_up(m.bits(shifted), row) for row in rows]


def _polynomial(m: Lanes, variable: str, coefficients: list[str]) -> str:
    value = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value = m.fma(value, variable, coefficient)
    return value
