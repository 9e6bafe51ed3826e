"""power and remainder, computed in f64."""

from disc.codegen.x86.math.coefficients import LOG_SERIES_F64
from disc.codegen.x86.math.exp_log import TABLES, exponential, exponential_factors, logarithm, split_exponent
from disc.codegen.x86.math.vector_math import VectorMath

Pair = tuple[str, str]


def fast_two_sum(m: VectorMath, larger: str, smaller: str) -> Pair:
    """The sum and its rounding error, for |larger| >= |smaller|."""
    total = m.add(larger, smaller)
    return total, m.add(m.sub(larger, total), smaller)


def two_product(m: VectorMath, left: str, right: str) -> Pair:
    """The product and its rounding error."""
    product = m.mul(left, right)
    return product, m.fma(left, right, m.neg(product))


def pair_product(m: VectorMath, left: Pair, right: Pair) -> Pair:
    """The product of two unevaluated sums, to about 2^-100."""
    product, error = two_product(m, left[0], right[0])
    return product, m.fma(left[0], right[1], m.fma(left[1], right[0], error))


def logarithm_pair(m: VectorMath, a: str) -> Pair:
    """log(a) for positive finite a as an unevaluated sum, with a relative error near 2^-65.

    log(1 + f) = 2 atanh(s) = s (2 + z (2/3 + z Q(z))), s = f / (2 + f), z = s^2. All but the innermost product is done in pairs.
    """
    f, k = split_exponent(m, a)
    divisor = fast_two_sum(m, m.const(2.0), f)
    s_high = m.div(f, divisor[0])
    remainder = m.fma(m.neg(s_high), divisor[1], m.fma(m.neg(s_high), divisor[0], f))
    s = (s_high, m.div(remainder, divisor[0]))
    z = pair_product(m, s, s)
    inner = m.mul(z[0], m.polynomial(z[0], LOG_SERIES_F64))
    two_thirds = (m.const(2 / 3), m.const(3.700743415417188e-17))
    c_high, c_error = fast_two_sum(m, two_thirds[0], inner)
    cubic = pair_product(m, z, (c_high, m.add(c_error, two_thirds[1])))
    u_high, u_error = fast_two_sum(m, m.const(2.0), cubic[0])
    mantissa = pair_product(m, s, (u_high, m.add(u_error, cubic[1])))
    table = TABLES["f64"]
    high, error = fast_two_sum(m, m.scale(k, table.ln2_high), mantissa[0])
    return high, m.add(error, m.fma(k, m.const(table.ln2_low), mantissa[1]))


def with_power_rules(m: VectorMath, magnitude: str, x: str, y: str) -> str:
    """C's pow from `magnitude` = |x|^y, which is only used where x and y are finite and x is not zero."""
    zero, one, infinity = m.const(0.0), m.const(1.0), m.infinity()
    base = m.abs(x)
    negative_y = m.compare("olt", y, zero)
    extreme = m.mask_or(m.mask_or(m.compare("oeq", base, zero), m.compare("oeq", base, infinity)), m.compare("oeq", m.abs(y), infinity))
    grows = m.mask_xor(m.compare("ogt", base, one), negative_y)
    value = m.select(extreme, m.select(grows, infinity, zero), magnitude)
    value = m.select(m.compare("oeq", base, one), one, value)
    # Infinite y and those beyond 2^53 are even integers.
    half = m.scale(y, 0.5)
    integer = m.compare("oeq", m.round_even(y), y)
    odd = m.mask_and(integer, m.compare("one", m.round_even(half), half))
    value = m.select(odd, m.copy_sign(value, x), value)
    undefined = m.mask_and(m.compare("olt", x, zero), m.compare("une", m.round_even(y), y))
    undefined = m.mask_and(undefined, m.compare("ogt", x, m.neg(infinity)))
    undefined = m.mask_or(undefined, m.compare("uno", x, y))
    value = m.select(undefined, m.not_a_number(), value)
    always_one = m.mask_or(m.compare("oeq", x, one), m.compare("oeq", y, zero))
    return m.select(always_one, one, value)


def power(m: VectorMath, x: str, y: str) -> str:
    """x^y in f64 within 2 ulp: y log|x| is formed as a pair, so that its error stays below 2^-54 up to 2^10."""
    log = logarithm_pair(m, m.abs(x))
    high, error = two_product(m, y, log[0])
    low = m.fma(y, log[1], error)
    # An infinite product has no error term.
    low = m.select(m.compare("olt", m.abs(high), m.const(1000.0)), low, m.const(0.0))
    value, first, second = exponential_factors(m, high, low)
    return with_power_rules(m, m.mul(m.mul(value, first), second), x, y)


def power_f32(m: VectorMath, x: str, y: str) -> str:
    """x^y for widened f32: f64's plain log and exp leave more than 40 right bits."""
    return with_power_rules(m, exponential(m, m.mul(y, logarithm(m, m.abs(x)))), x, y)


# f32 quotients reach 2^277; each step takes 28 bits off, and a quotient of 28 bits times a divisor of 24 is exact in f64.
REMAINDER_STEP_BITS = 28
REMAINDER_STEPS = 10


def remainder_f32(m: VectorMath, x: str, y: str) -> str:
    """C's fmod for widened f32, exact: the divisor is scaled by 2^(28 k) for k = 9 ... 0, each time leaving at most half of it."""
    divisor = m.abs(y)
    inverse = m.div(m.const(1.0), divisor)
    rest = m.abs(x)
    for step in reversed(range(REMAINDER_STEPS)):
        scaled = m.scale(divisor, 2.0 ** (REMAINDER_STEP_BITS * step))
        quotient = m.round_even(m.mul(rest, m.scale(inverse, 2.0 ** (-REMAINDER_STEP_BITS * step))))
        rest = m.fma(m.neg(quotient), scaled, rest)
    return with_remainder_rules(m, rest, x, divisor)


def with_remainder_rules(m: VectorMath, rest: str, x: str, divisor: str) -> str:
    """The result in [0, divisor) with the sign of x. An infinite divisor leaves x; the steps make NaN of all undefined cases."""
    rest = m.select(m.compare("olt", rest, m.const(0.0)), m.add(rest, divisor), rest)
    dividend = m.abs(x)
    unbounded = m.mask_and(m.compare("oeq", divisor, m.infinity()), m.compare("olt", dividend, m.infinity()))
    return m.copy_sign(m.select(unbounded, dividend, rest), x)


# f64 quotients reach 2^2098. A step takes 51 bits off: the rounded quotient is at most 2^52, and no shift is beyond 2 * 1023.
WIDE_STEP_BITS = 51
WIDE_STEPS = 42


def exponent_field(m: VectorMath, value: str) -> str:
    """The biased exponent of a float, as an integer; the sign does not count."""
    return m.shift_right(m.int_and(m.bits(value), m.int_const(m.format.infinity_bits)), m.format.mantissa_bits)


def remainder(m: VectorMath, x: str, y: str) -> str:
    """C's fmod in f64, exact: in each step the divisor times 2^shift, with `shift` chosen per lane to be about 2^51 below the rest."""
    divisor = m.abs(y)
    zero, bias = m.int_const(0), m.int_const(m.format.exponent_bias)
    # A denormal divisor's exponent is that of its multiple by 2^54, less 54.
    denormal = m.compare("olt", divisor, m.const(m.format.smallest_normal))
    lifted = m.int_sub(exponent_field(m, m.scale(divisor, 2.0**54)), m.int_const(54))
    start = m.int_add(m.int_select(denormal, lifted, exponent_field(m, divisor)), m.int_const(WIDE_STEP_BITS))
    rest = m.abs(x)
    for _ in range(WIDE_STEPS):
        shift = m.int_sub(exponent_field(m, rest), start)
        shift = m.int_select(m.int_compare("sgt", shift, zero), shift, zero)
        half = m.shift_right(shift, 1)
        scaled = m.mul(divisor, m.power_of_two(m.int_add(half, bias)))
        scaled = m.mul(scaled, m.power_of_two(m.int_add(m.int_sub(shift, half), bias)))
        quotient = m.round_even(m.div(rest, scaled))
        rest = m.fma(m.neg(quotient), scaled, rest)
    return with_remainder_rules(m, rest, x, divisor)
