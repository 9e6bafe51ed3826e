"""Functions of complex numbers in functions of their real and imaginary parts, which are traced: f32 and f64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

REAL_OF = {torch.complex64: torch.float32, torch.complex128: torch.float64}
COMPLEX_OF = {real: kind for kind, real in REAL_OF.items()}


@dataclass(frozen=True)
class Pair:
    """A complex tensor as two real ones of its shape."""

    re: Tensor
    im: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """Of both parts."""
        return self.re.dtype

    def to(self, dtype: torch.dtype) -> Pair:
        """dtype: a real one."""
        return self if dtype == self.dtype else Pair(self.re.to(dtype), self.im.to(dtype))

    def scaled(self, factor: Tensor | float) -> Pair:
        return Pair(self.re * factor, self.im * factor)


Unary = Callable[[Pair], Pair]


def pair_of(value: object, real: torch.dtype) -> Pair:
    """A tensor or number as a complex one, its parts of dtype `real`."""
    if isinstance(value, Pair):
        return value.to(real)
    if isinstance(value, Tensor):
        part = value.to(real)
        return Pair(part, torch.zeros_like(part))
    parts = (value.real, value.imag) if isinstance(value, complex) else (value, 0.0)
    return Pair(*(torch.full([], part, dtype=real) for part in parts))  # pyright: ignore


def add(a: Pair, b: Pair) -> Pair:
    return Pair(a.re + b.re, a.im + b.im)


def subtract(a: Pair, b: Pair) -> Pair:
    return Pair(a.re - b.re, a.im - b.im)


def multiply(a: Pair, b: Pair) -> Pair:
    return Pair(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


def divide(a: Pair, b: Pair) -> Pair:
    """R. Smith, "Algorithm 116: Complex division" (1962), as eager: what is smaller of the divisor's parts is divided by the other."""
    swapped = b.re.abs() < b.im.abs()
    large, small = torch.where(swapped, b.im, b.re), torch.where(swapped, b.re, b.im)
    ratio = torch.where(large == 0, torch.zeros_like(large), small / large)  # a number by zero: each part by it
    scale = 1 / (large + small * ratio)
    first = torch.where(swapped, a.re * ratio + a.im, a.re + a.im * ratio)
    second = torch.where(swapped, a.im * ratio - a.re, a.im - a.re * ratio)
    return Pair(first * scale, second * scale)


def reciprocal(x: Pair) -> Pair:
    return divide(Pair(torch.ones_like(x.re), torch.zeros_like(x.re)), x)


def conjugate(x: Pair) -> Pair:
    return Pair(x.re, -x.im)


def magnitude(x: Pair) -> Tensor:
    return torch.hypot(x.re, x.im)


def phase(x: Pair) -> Tensor:
    return torch.atan2(x.im, x.re)


def polar(size: Tensor, angle: Tensor) -> Pair:
    return Pair(size * torch.cos(angle), size * torch.sin(angle))


def exp(x: Pair) -> Pair:
    """A real number stays one, also where its exponential is infinite."""
    size = torch.exp(x.re)
    return Pair(size * torch.cos(x.im), torch.where(x.im == 0, x.im, size * torch.sin(x.im)))


def expm1(x: Pair) -> Pair:
    """exp(a) cos(b) - 1 = expm1(a) cos(b) - 2 sin(b / 2)²: nothing cancels near 0."""
    half = torch.sin(x.im / 2)
    return Pair(torch.expm1(x.re) * torch.cos(x.im) - 2 * half * half, torch.exp(x.re) * torch.sin(x.im))


def log(x: Pair) -> Pair:
    return Pair(torch.log(magnitude(x)), phase(x))


def log1p(x: Pair) -> Pair:
    """|1 + z|² - 1 = a (2 + a) + b²: nothing cancels near 0."""
    near = x.re.abs() + x.im.abs() < 0.5
    small = torch.log1p(x.re * (2 + x.re) + x.im * x.im) / 2
    return Pair(torch.where(near, small, torch.log(torch.hypot(1 + x.re, x.im))), torch.atan2(x.im, 1 + x.re))


def _scaled_log(base: float) -> Unary:
    return lambda x: log(x).scaled(1 / math.log(base))


def sqrt(x: Pair) -> Pair:
    """By half of |z| + |a|, of which neither cancels (W. Kahan, "Branch cuts for complex elementary functions", 1987)."""
    large = torch.sqrt(magnitude(x) / 2 + x.re.abs() / 2)
    zero = large == 0
    small = torch.where(zero, x.im, x.im / (2 * torch.where(zero, torch.ones_like(large), large)))
    right = x.re >= 0
    return Pair(torch.where(right, large, small.abs()), torch.where(right, small, torch.copysign(large, x.im)))


def square(x: Pair) -> Pair:
    return multiply(x, x)


def sin(x: Pair) -> Pair:
    return Pair(torch.sin(x.re) * torch.cosh(x.im), torch.cos(x.re) * torch.sinh(x.im))


def cos(x: Pair) -> Pair:
    return Pair(torch.cos(x.re) * torch.cosh(x.im), -torch.sin(x.re) * torch.sinh(x.im))


def sinh(x: Pair) -> Pair:
    return Pair(torch.sinh(x.re) * torch.cos(x.im), torch.cosh(x.re) * torch.sin(x.im))


def cosh(x: Pair) -> Pair:
    return Pair(torch.cosh(x.re) * torch.cos(x.im), torch.sinh(x.re) * torch.sin(x.im))


def tanh(x: Pair) -> Pair:
    """Kahan's form; where sinh squared is not finite in f32 any more, its limit."""
    tangent, hyperbolic = torch.tan(x.im), torch.sinh(x.re)
    slope = 1 + tangent * tangent
    divisor = 1 + slope * hyperbolic * hyperbolic
    root = torch.sqrt(1 + hyperbolic * hyperbolic)
    far = x.re.abs() > 20
    decay = 4 * torch.sin(x.im) * torch.cos(x.im) * torch.exp(-2 * x.re.abs())
    return Pair(
        torch.where(far, torch.copysign(torch.ones_like(x.re), x.re), slope * root * hyperbolic / divisor),
        torch.where(far, decay, tangent / divisor),
    )


def _turned(x: Pair) -> Pair:
    """i z."""
    return Pair(-x.im, x.re)


def _turned_back(x: Pair) -> Pair:
    """-i z."""
    return Pair(x.im, -x.re)


def _of_turned(function: Unary) -> Unary:
    """-i f(i z): tan of tanh, asinh of asin, atan of atanh."""
    return lambda x: _turned_back(function(_turned(x)))


def _below_one(x: Pair) -> Pair:
    """1 - z, whose imaginary part keeps the sign of a zero."""
    return Pair(1 - x.re, -x.im)


def _above_one(x: Pair) -> Pair:
    return Pair(1 + x.re, x.im)


def asin(x: Pair) -> Pair:
    """Kahan's forms, for this and the next two: the roots hold the branch cuts."""
    below, above = sqrt(_below_one(x)), sqrt(_above_one(x))
    return Pair(torch.atan2(x.re, multiply(below, above).re), torch.asinh(multiply(conjugate(below), above).im))


def acos(x: Pair) -> Pair:
    below, above = sqrt(_below_one(x)), sqrt(_above_one(x))
    return Pair(2 * torch.atan2(below.re, above.re), torch.asinh(multiply(conjugate(above), below).im))


def acosh(x: Pair) -> Pair:
    below, above = sqrt(Pair(x.re - 1, x.im)), sqrt(_above_one(x))
    return Pair(torch.asinh(multiply(conjugate(below), above).re), 2 * torch.atan2(below.im, above.re))


def atanh(x: Pair) -> Pair:
    rest = 1 - x.re
    real = torch.log1p(4 * x.re / (rest * rest + x.im * x.im)) / 4
    return Pair(real, torch.atan2(2 * x.im, rest * (1 + x.re) - x.im * x.im) / 2)


def sigmoid(x: Pair) -> Pair:
    """(1 + tanh(z / 2)) / 2: no exponential overflows."""
    half = tanh(x.scaled(0.5))
    return Pair(0.5 + half.re * 0.5, half.im * 0.5)


def sign(x: Pair) -> Pair:
    """z / |z|, and 0 of 0."""
    size = magnitude(x)
    divisor = torch.where(size == 0, torch.ones_like(size), size)
    return Pair(x.re / divisor, x.im / divisor)


def power(x: Pair, exponent: Pair) -> Pair:
    """exp(w log z). 0 to the power of 0 is 1, and 0 to one with a positive real part 0."""
    found = exp(multiply(exponent, log(x)))
    zero = (x.re == 0) & (x.im == 0)
    none = (exponent.re == 0) & (exponent.im == 0)
    nothing = zero & (exponent.re > 0) & ~none
    one = torch.ones_like(found.re)
    real = torch.where(none, one, torch.where(nothing, torch.zeros_like(one), found.re))
    return Pair(real, torch.where(none | nothing, torch.zeros_like(one), found.im))


POWERS: dict[complex, Unary] = {
    0: lambda x: Pair(torch.ones_like(x.re), torch.zeros_like(x.im)), 1: lambda x: x, 2: square, 3: lambda x: multiply(square(x), x),
    0.5: sqrt, -0.5: lambda x: reciprocal(sqrt(x)), -1: reciprocal, -2: lambda x: reciprocal(square(x)),
}  # fmt: skip


def is_equal(a: Pair, b: Pair) -> Tensor:
    return (a.re == b.re) & (a.im == b.im)


def is_nonzero(x: Pair) -> Tensor:
    return (x.re != 0) | (x.im != 0)


UNARY: dict[str, Unary] = {
    "_conj": conjugate, "_conj_physical": conjugate, "conj_physical": conjugate, "reciprocal": reciprocal, "square": square,
    "exp": exp, "expm1": expm1, "exp2": lambda x: exp(x.scaled(math.log(2))), "sqrt": sqrt, "rsqrt": lambda x: reciprocal(sqrt(x)),
    "log": log, "log1p": log1p, "log2": _scaled_log(2), "log10": _scaled_log(10), "sin": sin, "cos": cos, "sinh": sinh, "cosh": cosh,
    "tanh": tanh, "tan": _of_turned(tanh), "asin": asin, "acos": acos, "acosh": acosh, "asinh": _of_turned(asin), "atanh": atanh,
    "atan": _of_turned(atanh), "sigmoid": sigmoid, "silu": lambda x: multiply(x, sigmoid(x)), "sgn": sign, "positive": lambda x: x,
}  # fmt: skip
