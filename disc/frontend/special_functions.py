"""Decompositions of special functions, by the approximations that eager takes (Cephes), in arithmetic that every kernel has.

Each is computed in the type of its argument, 16-bit floats in f32. Where a function has several approximations, all are computed and one is
selected: what the others make of an argument that is not theirs is never seen.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from disc.frontend import cephes
from disc.frontend.eager_strides import Decomposition

aten, prims = torch.ops.aten, torch.ops.prims
Function = Callable[[Tensor], Tensor]


def of_floats(function: Function) -> Function:
    """Of integers and bools in the default type; of 16-bit floats in f32."""

    @functools.wraps(function)
    def converted(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return function(x.to(torch.get_default_dtype()))
        return function(x.to(torch.float32)).to(x.dtype) if x.dtype in (torch.float16, torch.bfloat16) else function(x)

    return converted


def chebyshev(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """By Clenshaw's recurrence; the last coefficient counts half."""
    before = last = torch.zeros_like(x)
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        before, last = last, value
        value = x * last - before + coefficient
    return 0.5 * (value - before)


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def rational(x: Tensor, numerator: Sequence[float], denominator: Sequence[float]) -> Tensor:
    return polynomial(x, numerator) / polynomial(x, denominator)


# --- modified Bessel functions --------------------------------------------------------------------------------------------------


@of_floats
def i0e(x: Tensor) -> Tensor:
    size = x.abs()
    far = chebyshev(32.0 / size - 2.0, cephes.I0_FAR) / torch.sqrt(size)
    return torch.where(size <= 8.0, chebyshev(size / 2.0 - 2.0, cephes.I0_NEAR), far)


@of_floats
def i1e(x: Tensor) -> Tensor:
    size = x.abs()
    far = chebyshev(32.0 / size - 2.0, cephes.I1_FAR) / torch.sqrt(size)
    value = torch.where(size <= 8.0, chebyshev(size / 2.0 - 2.0, cephes.I1_NEAR) * size, far)
    return torch.where(x < 0, -value, value)


@of_floats
def i0(x: Tensor) -> Tensor:
    return torch.exp(x.abs()) * i0e(x)


@of_floats
def i1(x: Tensor) -> Tensor:
    return torch.exp(x.abs()) * i1e(x)


def of_positive(x: Tensor, value: Tensor, at_zero: float) -> Tensor:
    return torch.where(x == 0, at_zero, torch.where(x < 0, math.nan, value))


@of_floats
def scaled_k0(x: Tensor) -> Tensor:
    near = (chebyshev(x * x - 2.0, cephes.K0_NEAR) - torch.log(0.5 * x) * i0(x)) * torch.exp(x)
    far = chebyshev(8.0 / x - 2.0, cephes.K0_FAR) / torch.sqrt(x)
    return of_positive(x, torch.where(x <= 2.0, near, far), math.inf)


@of_floats
def scaled_k1(x: Tensor) -> Tensor:
    near = (torch.log(0.5 * x) * i1(x) + chebyshev(x * x - 2.0, cephes.K1_NEAR) / x) * torch.exp(x)
    far = chebyshev(8.0 / x - 2.0, cephes.K1_FAR) / torch.sqrt(x)
    return of_positive(x, torch.where(x <= 2.0, near, far), math.inf)


@of_floats
def k0(x: Tensor) -> Tensor:
    near = chebyshev(x * x - 2.0, cephes.K0_NEAR) - torch.log(0.5 * x) * i0(x)
    far = torch.exp(-x) * chebyshev(8.0 / x - 2.0, cephes.K0_FAR) / torch.sqrt(x)
    return of_positive(x, torch.where(x <= 2.0, near, far), math.inf)


@of_floats
def k1(x: Tensor) -> Tensor:
    near = torch.log(0.5 * x) * i1(x) + chebyshev(x * x - 2.0, cephes.K1_NEAR) / x
    far = torch.exp(-x) * chebyshev(8.0 / x - 2.0, cephes.K1_FAR) / torch.sqrt(x)
    return of_positive(x, torch.where(x <= 2.0, near, far), math.inf)


# --- Bessel functions -----------------------------------------------------------------------------------------------------------

AMPLITUDE = math.sqrt(2 / math.pi)


@of_floats
def j0(x: Tensor) -> Tensor:
    size = x.abs()
    square, inverse, angle = size * size, 25.0 / (size * size), size - math.pi / 4
    near = (square - 5.78318596294678452118) * (square - 30.4712623436620863991) * rational(square, cephes.J0_RP, cephes.J0_RQ)
    near = torch.where(size < 0.00001, 1.0 - square / 4.0, near)
    p, q = rational(inverse, cephes.J0_PP, cephes.J0_PQ), rational(inverse, cephes.J0_QP, cephes.J0_QQ)
    far = (p * torch.cos(angle) - 5.0 / size * q * torch.sin(angle)) * AMPLITUDE / torch.sqrt(size)
    return torch.where(size <= 5.0, near, far)


@of_floats
def j1(x: Tensor) -> Tensor:
    size = x.abs()
    square, inverse, angle = size * size, 5.0 / size * (5.0 / size), size - 3 * math.pi / 4
    near = rational(square, cephes.J1_RP, cephes.J1_RQ) * size * (square - 14.6819706421238932572) * (square - 49.2184563216946036703)
    p, q = rational(inverse, cephes.J1_PP, cephes.J1_PQ), rational(inverse, cephes.J1_QP, cephes.J1_QQ)
    far = (p * torch.cos(angle) - 5.0 / size * q * torch.sin(angle)) * AMPLITUDE / torch.sqrt(size)
    value = torch.where(size <= 5.0, near, far)
    return torch.where(x < 0, -value, value)


@of_floats
def y0(x: Tensor) -> Tensor:
    square, inverse, angle = x * x, 25.0 / (x * x), x - math.pi / 4
    near = rational(square, cephes.Y0_YP, cephes.Y0_YQ) + 2 / math.pi * torch.log(x) * j0(x)
    p, q = rational(inverse, cephes.J0_PP, cephes.J0_PQ), rational(inverse, cephes.J0_QP, cephes.J0_QQ)
    far = (p * torch.sin(angle) + 5.0 / x * q * torch.cos(angle)) * AMPLITUDE / torch.sqrt(x)
    return of_positive(x, torch.where(x <= 5.0, near, far), -math.inf)


@of_floats
def y1(x: Tensor) -> Tensor:
    square, inverse, angle = x * x, 5.0 / x * (5.0 / x), x - 3 * math.pi / 4
    near = x * rational(square, cephes.Y1_YP, cephes.Y1_YQ) + 2 / math.pi * (j1(x) * torch.log(x) - 1.0 / x)
    p, q = rational(inverse, cephes.J1_PP, cephes.J1_PQ), rational(inverse, cephes.J1_QP, cephes.J1_QQ)
    far = (p * torch.sin(angle) + 5.0 / x * q * torch.cos(angle)) * AMPLITUDE / torch.sqrt(x)
    return of_positive(x, torch.where(x <= 5.0, near, far), -math.inf)


@of_floats
def spherical_j0(x: Tensor) -> Tensor:
    series = [(-1) ** n / math.factorial(2 * n + 1) for n in range(6, -1, -1)]
    value = torch.where(x.abs() < 0.5, polynomial(x * x, series), torch.sin(x) / x)
    return torch.where(x.abs() == math.inf, 0.0, value)


# --- of the normal distribution, of gamma ---------------------------------------------------------------------------------------


@of_floats
def ndtri(x: Tensor) -> Tensor:
    tail = math.exp(-2)
    upper = x > 1 - tail
    y = torch.where(upper, 1 - x, x)
    middle = y - 0.5
    square = middle * middle
    center = (middle + middle * (square * rational(square, cephes.NDTRI_P0, cephes.NDTRI_Q0))) * math.sqrt(2 * math.pi)
    root = torch.sqrt(-2.0 * torch.log(y))
    inverse = 1.0 / root
    near, far = rational(inverse, cephes.NDTRI_P1, cephes.NDTRI_Q1), rational(inverse, cephes.NDTRI_P2, cephes.NDTRI_Q2)
    value = root - torch.log(root) / root - inverse * torch.where(root < 8.0, near, far)
    value = torch.where(y > tail, center, torch.where(upper, value, -value))
    value = torch.where(x == 0, -math.inf, torch.where(x == 1, math.inf, value))
    return torch.where((x < 0) | (x > 1), math.nan, value)


def erfcx(x: Tensor) -> Tensor:
    """exp(x²) erfc(x), computed in f64: the product as it is up to 25, a continued fraction beyond."""
    wide = x.to(torch.float64)
    square = wide * wide
    fraction = (square * (square + 4.5) + 2) / (wide * (square * (square + 5) + 3.75)) / math.sqrt(math.pi)
    fraction = torch.where(wide > 5e7, 1 / (wide * math.sqrt(math.pi)), fraction)
    value = torch.where(wide > 25.0, fraction, torch.exp(square) * torch.erfc(wide))
    return value.to(x.dtype if x.is_floating_point() else torch.get_default_dtype())


def polygamma(n: int, x: Tensor) -> Tensor:
    """Of order 0 and 1; others are sums of any length where x is negative."""
    if n == 0:
        return torch.digamma(x)
    return trigamma(x) if n == 1 else NotImplemented


@of_floats
def trigamma(x: Tensor) -> Tensor:
    reflected = x < 0.5
    sine = torch.sin(math.pi * x)
    total = torch.where(reflected, -(math.pi * math.pi) / (sine * sine), 0.0)
    x = torch.where(reflected, 1 - x, x)
    for _ in range(6):
        total = total + 1 / (x * x)
        x = x + 1
    inverse = 1 / (x * x)
    total = total + (1 + 1 / (2 * x) + inverse * (1 / 6 - inverse * (1 / 30 - inverse * (1 / 42)))) / x
    return torch.where(reflected, -total, total)


# --- parts of a number ----------------------------------------------------------------------------------------------------------


def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """(m, e) with x = m * 2**e and 0.5 <= |m| < 1; of 0, infinities and NaN the number itself and 0. Read from the bits, of a subnormal
    number after it is multiplied by a power of 2."""
    values = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    whole, digits, limit = (torch.int64, 52, 2047) if values.dtype == torch.float64 else (torch.int32, 23, 255)
    small = values.abs() < torch.finfo(values.dtype).smallest_normal
    bits = torch.where(small, values * 2.0 ** (digits + 1), values).view(whole)
    exponent = ((bits >> digits) & limit) - (limit // 2 - 1) - torch.where(small, digits + 1, 0)
    mantissa = ((bits & ~(limit << digits)) | ((limit // 2 - 1) << digits)).view(values.dtype)
    same = (values == 0) | torch.isfinite(values).logical_not()
    return torch.where(same, values, mantissa).to(x.dtype), torch.where(same, 0, exponent).to(torch.int32)


def nextafter(x: Tensor, to: Tensor) -> Tensor:
    """The neighbor's bits are one more or one less, as a number without its sign."""
    if x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    x, to = torch.broadcast_tensors(x, to)
    whole = torch.int32 if x.dtype == torch.float32 else torch.int64
    bits = x.contiguous().view(whole)
    away = torch.where((to > x) == (x > 0), bits + 1, bits - 1)
    least = torch.where(to > 0, torch.ones_like(bits), torch.full_like(bits, torch.iinfo(whole).min + 1))
    found = torch.where(x == 0, least, away).view(x.dtype)
    return torch.where(torch.isnan(x) | torch.isnan(to), x + to, torch.where(x == to, to, found))


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    prims.bessel_i0.default: i0,
    prims.bessel_i0e.default: i0e,
    prims.bessel_i1.default: i1,
    prims.bessel_i1e.default: i1e,
    prims.bessel_j0.default: j0,
    prims.bessel_j1.default: j1,
    prims.spherical_bessel_j0.default: spherical_j0,
    prims.ndtri.default: ndtri,
    prims.erfcx.default: erfcx,
    prims.frexp.default: frexp,
    aten.frexp.Tensor: frexp,
    aten.special_bessel_y0.default: y0,
    aten.special_bessel_y1.default: y1,
    aten.special_modified_bessel_i0.default: i0,
    aten.special_modified_bessel_i1.default: i1,
    aten.special_modified_bessel_k0.default: k0,
    aten.special_modified_bessel_k1.default: k1,
    aten.special_scaled_modified_bessel_k0.default: scaled_k0,
    aten.special_scaled_modified_bessel_k1.default: scaled_k1,
    aten.polygamma.default: polygamma,
    aten.nextafter.default: nextafter,
}
