"""Functions of two numbers that take iterations, as the interpreter computes them: in Python floats, by series and sums."""

from __future__ import annotations

import math

STEPS = 100_000
EPSILON = 2.0**-53
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)  # B2, B4, ...


def zeta(x: float, q: float) -> float:
    """The sum of (q + n)^-x, by Euler's and Maclaurin's formula (NIST Handbook, 25.11.5)."""
    if x == 1:
        return math.inf
    if not x > 1:
        return math.nan
    if q <= 0:
        if q == math.floor(q):
            return math.inf
        if x != math.floor(x):
            return math.nan
    total, end = 0.0, q
    while end <= 10:
        total += math.pow(end, -x)
        end += 1
    power = math.pow(end, -x)
    total += power * end / (x - 1) + power / 2
    factor = x * power / end
    for k, number in enumerate(BERNOULLI, 1):
        total += number / math.factorial(2 * k) * factor
        factor *= (x + 2 * k - 1) * (x + 2 * k) / (end * end)
    return total


def igamma(a: float, x: float) -> float:
    """The lower regularized incomplete gamma function."""
    found = _edge(a, x)
    if found is not None:
        return found
    return 1 - _upper(a, x) if x > a + 1 else _lower(a, x)


def igammac(a: float, x: float) -> float:
    found = _edge(a, x)
    if found is not None:
        return 1 - found
    return _upper(a, x) if x > a + 1 else 1 - _lower(a, x)


def _edge(a: float, x: float) -> float | None:
    """What the lower function is where there is nothing to sum."""
    if not (a >= 0 and x >= 0) or (math.isinf(a) and math.isinf(x)) or (a == 0 and x == 0):
        return math.nan
    return 1.0 if a == 0 or math.isinf(x) else 0.0 if x == 0 or math.isinf(a) else None


def _factor(a: float, x: float) -> float:
    return math.exp(a * math.log(x) - x - math.lgamma(a))


def _lower(a: float, x: float) -> float:
    term = total = 1 / a
    for step in range(1, STEPS):
        term *= x / (a + step)
        total += term
        if term <= EPSILON * total:
            break
    return total * _factor(a, x)


def _upper(a: float, x: float) -> float:
    """Lentz' continued fraction (NIST Handbook, 8.9.2)."""
    b = x + 1 - a
    c, d = math.inf, 1 / b
    value = d
    for step in range(1, STEPS):
        part = -step * (step - a)
        b += 2
        d = 1 / (part * d + b)
        c = b + part / c
        value *= c * d
        if abs(c * d - 1) <= EPSILON * 4:
            break
    return value * _factor(a, x)
