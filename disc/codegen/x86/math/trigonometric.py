"""Sine, cosine, tangent, computed in f32 and f64, and their inverses, computed in f64.

An argument is reduced with pi/2 in three parts, for |x| up to 2^15 in f32 and up to 2^20 in f64. Where a vector has one beyond, all of it
is reduced in f64 with 2/pi, for f32 to 196 bits, for f64 to 1170: a branch, for it takes many times as long as all the rest.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from disc.codegen.x86.math.coefficients import ASIN_F64, ATAN_F64, COSINE_F32, COSINE_F64, SINE_F32, SINE_F64
from disc.codegen.x86.math.vector_math import VectorMath, narrow, widen

# The first 196 bits of 2/pi after the point.
TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041F
CHUNK_BITS = 28
CHUNKS = 7

# For f64 of any size: a half of x has 27 bits, so that its product with a piece of 26 is exact. The last of 45 pieces would be below the
# smallest normal number, unless x were smaller by that power of two and they larger.
CHUNK_BITS_F64 = 26
CHUNKS_F64 = 45
SHIFT_F64 = 256
LARGE_F64 = 2.0**20

# pi/2 = first + second + third; the first two have 33 bits, so that their products with an integer below 2^20 are exact (as in fdlibm).
HALF_PI_FIRST = 1.57079632673412561417e00
HALF_PI_SECOND = 6.07710050630396597660e-11
HALF_PI_THIRD = 2.02226624879595063154e-21
HALF_PI_LOW = 6.123233995736766e-17
# The same for f32, of 24 bits each.
HALF_PI_FIRST_F32 = 1.5707963705062866
HALF_PI_SECOND_F32 = -4.371138828673793e-08
HALF_PI_THIRD_F32 = -1.7151245100058819e-15
LARGE_F32 = 2.0**15

SINE = {"f32": SINE_F32, "f64": SINE_F64}
COSINE = {"f32": COSINE_F32, "f64": COSINE_F64}


@dataclass(frozen=True)
class Reduced:
    """x = n pi/2 + high + low, |high| <= pi/4; `quadrant` holds n in its low bits."""

    quadrant: str
    high: str
    low: str


@dataclass(frozen=True)
class Precise:
    """The value high + low; high alone is that, rounded."""

    high: str
    low: str


def two_sum(m: VectorMath, left: str, right: str) -> tuple[str, str]:
    """left + right = sum + error, exactly (Knuth)."""
    total = m.add(left, right)
    shadow = m.sub(total, left)
    error = m.add(m.sub(left, m.sub(total, shadow)), m.sub(right, shadow))
    return total, error


def two_over_pi_chunks() -> list[float]:
    """2/pi / 4 cut into pieces of 28 bits, the highest first: x / (2 pi) is the sum of x * chunk."""
    total_bits = CHUNK_BITS * CHUNKS
    mask = (1 << CHUNK_BITS) - 1
    shifts = [total_bits - CHUNK_BITS * (index + 1) for index in range(CHUNKS)]
    return [math.ldexp((TWO_OVER_PI >> shift) & mask, shift - total_bits - 2) for shift in shifts]


@functools.cache
def long_two_over_pi_chunks() -> tuple[float, ...]:
    """2/pi / 4 * 2^SHIFT_F64 in pieces for f64, the highest first."""
    total_bits = CHUNK_BITS_F64 * CHUNKS_F64
    guard = 64
    one = 1 << (total_bits + guard)

    def arc_tangent_of_inverse(n: int) -> int:
        total, power, k = 0, one // n, 0
        while power:
            total += (-1) ** k * (power // (2 * k + 1))
            power, k = power // (n * n), k + 1
        return total

    pi = 4 * (4 * arc_tangent_of_inverse(5) - arc_tangent_of_inverse(239))  # Machin
    bits = ((2 * one * one) // pi) >> guard
    shifts = [total_bits - CHUNK_BITS_F64 * (index + 1) for index in range(CHUNKS_F64)]
    return tuple(math.ldexp((bits >> shift) & ((1 << CHUNK_BITS_F64) - 1), shift - total_bits - 2 + SHIFT_F64) for shift in shifts)


def nearest_integer(m: VectorMath, value: str) -> tuple[str, str]:
    """The nearest integer to |value| < 2^51, as a float and as bits whose low part is that integer."""
    magic = m.const(m.format.round_magic)
    shifted = m.add(value, magic)
    return m.sub(shifted, magic), m.bits(shifted)


def reduce_f32_range(m: VectorMath, x: str) -> Reduced:
    """For an x that is exact in f32 (24 bits), of any size.

    Each product x * chunk has 52 bits, so it is exact, and so is what is left of it without its whole turns. The parts are added with
    their errors: no f32 is nearer than about 2^-31 to a multiple of pi/2, and the sum is right to 2^-68 turns.
    """
    high, low = None, m.const(0.0)
    for chunk in two_over_pi_chunks():
        product = m.scale(x, chunk)
        part = m.sub(product, m.round_even(product))
        if high is None:
            high = part
            continue
        high, error = two_sum(m, high, part)
        low = m.add(low, error)
    assert high is not None
    quarters = m.scale(high, 4.0)
    n, quadrant = nearest_integer(m, quarters)
    fraction = m.fma(low, m.const(4.0), m.sub(quarters, n))
    return Reduced(quadrant, m.scale(fraction, math.pi / 2), m.const(0.0))


def reduce_range(m: VectorMath, x: str) -> Reduced:
    """x of either format, by the range that it is in."""
    double = m.element == "f64"
    near = reduce_f64(m, x) if double else reduce_f32(m, x)
    beyond = m.compare("ogt", m.abs(x), m.const(LARGE_F64 if double else LARGE_F32))
    types = (m.integer_type, m.type, m.type)
    large = functools.partial(_reduce_large_f64, m, x, beyond, near) if double else functools.partial(_reduce_large_f32, m, x)
    return Reduced(*m.builder.where_any(beyond, (near.quadrant, near.high, near.low), types, large))


def reduce_f32(m: VectorMath, x: str) -> Reduced:
    """Cody and Waite's reduction with 72 bits of pi/2, for |x| <= 2^15: no f32 up to there is nearer than 2^-26 to a multiple of pi/2."""
    n, quadrant = nearest_integer(m, m.scale(x, 2 / math.pi))
    first = m.fma(n, m.const(-HALF_PI_FIRST_F32), x)  # exact: bits of 2^-24 and more, below 1
    product = m.scale(n, -HALF_PI_SECOND_F32)
    rest = m.fma(n, m.const(-HALF_PI_SECOND_F32), m.neg(product))
    second, error = two_sum(m, first, product)
    error = m.fma(n, m.const(-HALF_PI_THIRD_F32), m.add(error, rest))
    high = m.add(second, error)
    low = m.add(m.sub(second, high), error)
    return Reduced(quadrant, high, low)


def _reduce_large_f32(m: VectorMath, x: str) -> tuple[str, str, str]:
    """The parts of what an f32 of any size is reduced to."""
    b = m.builder
    wide = VectorMath(b, "f64")
    found = reduce_f32_range(wide, widen(b, x))
    quadrant = b.op(f"arith.trunci {found.quadrant} : {wide.integer_type} to {m.integer_type}", m.integer_type)
    high = narrow(b, found.high)
    return quadrant, high, narrow(b, wide.sub(found.high, widen(b, high)))


def _reduce_large_f64(m: VectorMath, x: str, beyond: str, near: Reduced) -> tuple[str, str, str]:
    """The parts of what an f64 of any size is reduced to, in the lanes that are `beyond`.

    x is cut into halves of 27 and 26 bits; otherwise as in `reduce_f32_range`. No f64 is nearer than about 2^-62 to a multiple of pi/2, and
    the sum is right to some 2^-95 turns.
    """
    small = m.scale(x, 2.0**-SHIFT_F64)
    upper = m.from_bits(m.int_and(m.bits(small), m.int_const(-1 << CHUNK_BITS_F64)))
    halves = (upper, m.sub(small, upper))

    def add(chunk: str, sums: Sequence[str]) -> Sequence[str]:
        high, low = sums
        for half in halves:
            product = m.mul(half, chunk)
            high, error = two_sum(m, high, m.sub(product, m.round_even(product)))
            low = m.add(low, error)
        return high, low

    zero = (m.const(0.0), m.type)
    high, low = two_sum(m, *m.builder.for_each(long_two_over_pi_chunks(), (zero, zero), add))
    quarters = m.scale(high, 4.0)
    n, quadrant = nearest_integer(m, quarters)
    high, low = two_sum(m, m.sub(quarters, n), m.scale(low, 4.0))
    turned = m.scale(high, math.pi / 2)
    lost = m.fma(high, m.const(math.pi / 2), m.neg(turned))
    rest = m.fma(high, m.const(HALF_PI_LOW), m.fma(low, m.const(math.pi / 2), lost))
    return m.int_select(beyond, quadrant, near.quadrant), m.select(beyond, turned, near.high), m.select(beyond, rest, near.low)


def reduce_f64(m: VectorMath, x: str) -> Reduced:
    """Cody and Waite's reduction with 119 bits of pi/2, for |x| <= 2^20 pi/2."""
    n, quadrant = nearest_integer(m, m.scale(x, 2 / math.pi))
    first = m.fma(n, m.const(-HALF_PI_FIRST), x)
    second, error = two_sum(m, first, m.scale(n, -HALF_PI_SECOND))
    error = m.fma(n, m.const(-HALF_PI_THIRD), error)
    high = m.add(second, error)
    low = m.add(m.sub(second, high), error)
    return Reduced(quadrant, high, low)


def sine_and_cosine(m: VectorMath, reduced: Reduced) -> tuple[Precise, Precise]:
    """Of the reduced argument alone, each within 1 ulp."""
    r = reduced.high
    z = m.mul(r, r)
    half = m.scale(z, 0.5)
    one = m.const(1.0)
    # sin(r + low) = r + (r^3 S + low (1 - z/2)); cos(r + low) = (1 - z/2) + (what that rounding lost + z^2 C - r low).
    cube = m.mul(m.mul(z, r), m.polynomial(z, SINE[m.element]))
    sine = _sum(m, r, m.add(cube, m.fma(m.neg(reduced.low), half, reduced.low)))
    near = m.sub(one, half)
    lost = m.sub(m.sub(one, near), half)
    tail = m.fma(m.mul(z, z), m.polynomial(z, COSINE[m.element]), m.fma(m.neg(r), reduced.low, lost))
    return sine, _sum(m, near, tail)


def _sum(m: VectorMath, large: str, small: str) -> Precise:
    """large + small, where that is so (Dekker)."""
    high = m.add(large, small)
    return Precise(high, m.add(m.sub(large, high), small))


def bit_set(m: VectorMath, value: str, bit: int) -> str:
    """The mask of lanes whose integer has `bit` (a power of two) set."""
    return m.int_compare("ne", m.int_and(value, m.int_const(bit)), m.int_const(0))


def from_quadrant(m: VectorMath, reduced: Reduced, shift: int) -> str:
    """sin(x + shift * pi/2)."""
    sine, cosine = sine_and_cosine(m, reduced)
    quadrant = m.int_add(reduced.quadrant, m.int_const(shift))
    value = m.select(bit_set(m, quadrant, 1), cosine.high, sine.high)
    return m.select(bit_set(m, quadrant, 2), m.neg(value), value)


def keep_zero(m: VectorMath, x: str, value: str) -> str:
    """An odd function's zero has the sign of x, which the reduction loses."""
    return m.select(m.compare("oeq", x, m.const(0.0)), x, value)


def tangent_of(m: VectorMath, reduced: Reduced, shift: int) -> str:
    """tan(x + shift * pi/2), NaN at a pole: sin / cos, or -cos / sin in odd quadrants. The quotient of the rounded values is corrected by
    what it leaves."""
    sine, cosine = sine_and_cosine(m, reduced)
    odd = bit_set(m, m.int_add(reduced.quadrant, m.int_const(shift)), 1)
    above = Precise(m.select(odd, m.neg(cosine.high), sine.high), m.select(odd, m.neg(cosine.low), sine.low))
    below = Precise(m.select(odd, sine.high, cosine.high), m.select(odd, sine.low, cosine.low))
    inverse = m.div(m.const(1.0), below.high)
    quotient = m.mul(above.high, inverse)
    against = m.neg(quotient)
    rest = m.fma(against, below.low, m.add(m.fma(against, below.high, above.high), above.low))
    return m.fma(rest, inverse, quotient)


def sine(m: VectorMath, x: str) -> str:
    """sin(x) within 1 ulp."""
    return keep_zero(m, x, from_quadrant(m, reduce_range(m, x), 0))


def cosine(m: VectorMath, x: str) -> str:
    """cos(x) within 1 ulp."""
    return from_quadrant(m, reduce_range(m, x), 1)


def tangent(m: VectorMath, x: str) -> str:
    """tan(x) within 1.1 ulp."""
    return keep_zero(m, x, tangent_of(m, reduce_range(m, x), 0))


def arc_tangent_of_magnitude(m: VectorMath, t: str) -> str:
    """atan(t) for 0 <= t <= 1: beyond tan(pi/8), as pi/4 + atan((t - 1) / (t + 1))."""
    large = m.compare("ogt", t, m.const(math.tan(math.pi / 8)))
    zero = m.const(0.0)
    reduced = m.select(large, m.div(m.offset(t, -1.0), m.offset(t, 1.0)), t)
    z = m.mul(reduced, reduced)
    cube = m.mul(m.mul(z, reduced), m.polynomial(z, ATAN_F64))
    # pi/4 is added after the small terms; its own last bits go with them.
    small = m.add(cube, m.select(large, m.const(HALF_PI_LOW / 2), zero))
    return m.add(m.select(large, m.const(math.pi / 4), zero), m.add(reduced, small))


def atan(m: VectorMath, x: str) -> str:
    """atan(x) within 2 ulp: pi/2 - atan(1/|x|) beyond 1."""
    magnitude = m.abs(x)
    beyond = m.compare("ogt", magnitude, m.const(1.0))
    value = arc_tangent_of_magnitude(m, m.select(beyond, m.div(m.const(1.0), magnitude), magnitude))
    complement = m.offset(m.sub(m.const(HALF_PI_LOW), value), math.pi / 2)
    return m.copy_sign(m.select(beyond, complement, value), x)


def atan2(m: VectorMath, y: str, x: str) -> str:
    """The angle of the point (x, y) with C's values at zeros and infinities."""
    rise, run = m.abs(y), m.abs(x)
    steep = m.compare("ogt", rise, run)
    ratio = m.div(m.select(steep, run, rise), m.select(steep, rise, run))
    # 0/0 counts as 0 and inf/inf as 1, but a NaN operand stays.
    ratio = m.select(m.compare("oeq", rise, m.const(0.0)), m.select(m.compare("oeq", run, m.const(0.0)), m.const(0.0), ratio), ratio)
    both_infinite = m.mask_and(m.compare("oeq", rise, m.infinity()), m.compare("oeq", run, m.infinity()))
    angle = arc_tangent_of_magnitude(m, m.select(both_infinite, m.const(1.0), ratio))
    angle = m.select(steep, m.offset(m.sub(m.const(HALF_PI_LOW), angle), math.pi / 2), angle)
    # The sign bit of x decides, not x < 0: atan2(0, -0) is pi.
    leftward = m.compare("olt", m.copy_sign(m.const(1.0), x), m.const(0.0))
    angle = m.select(leftward, m.offset(m.sub(m.const(2 * HALF_PI_LOW), angle), math.pi), angle)
    ordered = m.copy_sign(angle, y)
    return m.select(m.compare("uno", x, y), m.not_a_number(), ordered)


def arc_sine_parts(m: VectorMath, x: str) -> tuple[str, str]:
    """The mask |x| > 1/2 and asin(|x|), or there asin(sqrt((1 - |x|) / 2)); NaN beyond 1 through the square root."""
    magnitude = m.abs(x)
    large = m.compare("ogt", magnitude, m.const(0.5))
    folded = m.fma(magnitude, m.const(-0.5), m.const(0.5))
    t = m.select(large, m.sqrt(folded), magnitude)
    z = m.mul(t, t)
    return large, m.fma(m.mul(z, t), m.polynomial(z, ASIN_F64), t)


def asin(m: VectorMath, x: str) -> str:
    """asin(x); beyond 1/2 as pi/2 - 2 asin(sqrt((1 - |x|) / 2))."""
    large, part = arc_sine_parts(m, x)
    complement = m.offset(m.fma(part, m.const(-2.0), m.const(HALF_PI_LOW)), math.pi / 2)
    return m.copy_sign(m.select(large, complement, part), x)


def acos(m: VectorMath, x: str) -> str:
    """acos(x): pi/2 - asin(x), or 2 asin(sqrt((1 - |x|) / 2)) beyond 1/2 and pi less that below -1/2."""
    large, part = arc_sine_parts(m, x)
    central = m.offset(m.sub(m.const(HALF_PI_LOW), m.copy_sign(part, x)), math.pi / 2)
    doubled = m.add(part, part)
    beyond = m.select(m.compare("olt", x, m.const(0.0)), m.offset(m.sub(m.const(2 * HALF_PI_LOW), doubled), math.pi), doubled)
    return m.select(large, beyond, central)
