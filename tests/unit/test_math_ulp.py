"""Accuracy of the vector math in units in the last place (ulp), its special values, and that it calls no library function.

`--long` measures every f32 of every unary function (minutes each); otherwise a stride of them is measured.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from mpmath import mp, mpf

from disc.codegen.x86.math import BINARY_F64, BINARY_WIDENED, UNARY, UNARY_F32, UNARY_F64
from tests.unit.vector_math_kernels import MathKernel

Array = np.ndarray
Reference = Callable[[Array], Array]


def of_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Reference:
    return lambda x: function(torch.from_numpy(x)).numpy()


# float64 references: their error is below 2^-28 of an f32 ulp.
REFERENCES: dict[str, Reference] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "cosh": np.cosh,
    "cosine": np.cos,
    "digamma": of_torch(torch.special.digamma),
    "erf": of_torch(torch.special.erf),
    "erf_inv": of_torch(torch.special.erfinv),
    "erfc": of_torch(torch.special.erfc),
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "lgamma": of_torch(torch.lgamma),
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": of_torch(torch.sigmoid),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sine": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}
BINARY_REFERENCES: dict[str, Callable[[Array, Array], Array]] = {"atan2": np.arctan2, "power": np.power, "remainder": np.fmod}
# Where the result is as good as exact, a looser bound would hide a fault.
ULP_BOUND = 2.0
SPECIAL_BITS = (
    (0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF)
    + (0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF)
    + (0x3F800000, 0xBF800000, 0x3F800001, 0xBF800001, 0x3F7FFFFF, 0xBF7FFFFF, 0x40000000, 0xC0000000)
)
# Where exp, expm1, tanh, erf, logistic overflow, saturate or change their way.
BOUNDARIES = (88.0, 88.722839, 88.72284, 89.0, 87.33655, 103.27893, 103.97208, 104.0, 0.6, 0.625, 0.92, 1.0, 4.0, 9.0108, 10.0, 18.0, 0.5)


def special_values() -> Array:
    near = np.array(BOUNDARIES, np.float32).view(np.uint32)
    around = np.concatenate([near - 4, near - 1, near, near + 1, near + 4])
    bits = np.concatenate([np.array(SPECIAL_BITS, np.uint32), around, around | np.uint32(0x80000000)])
    return bits.view(np.float32)


def f32_errors(got: Array, exact: Array) -> Array:
    """|got - exact| in ulp of the exact result; infinite where NaN, infinity or the sign is not as it should be."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        ulp = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 24, -149))
        error = np.abs(got.astype(np.float64) - exact) / ulp
    same = np.isnan(got) & np.isnan(rounded) | (got == rounded) & (np.signbit(got) == np.signbit(rounded))
    # A result that rounds as it should may be far from the exact one only at infinity.
    error[same & ~np.isfinite(rounded)] = 0.0
    error[np.isnan(got) ^ np.isnan(rounded)] = np.inf
    wrong_sign = (np.signbit(got) != np.signbit(rounded)) & ~np.isnan(rounded)
    error[wrong_sign] = np.inf
    return error


def worst_f32(kernel: MathKernel, name: str, x: Array) -> tuple[float, float]:
    """The largest error and the argument at which it is."""
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x.astype(np.float64))
    error = f32_errors(kernel(x), exact)
    index = int(np.argmax(error))
    return float(error[index]), float(x[index])


UNARY_NAMES = sorted(UNARY | UNARY_F32 | UNARY_F64)
BINARY_NAMES = sorted(BINARY_F64 | BINARY_WIDENED)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", UNARY_NAMES)
def test_f32_sample(name: str, target: str) -> None:
    stride = np.arange(0, 2**32, 30011, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = np.linspace(-12, 12, 20000, dtype=np.float32)
    error, at = worst_f32(MathKernel(name, "f32", target=target), name, np.concatenate([special_values(), stride, dense]))
    assert error <= ULP_BOUND, f"{name}({at!r}): {error} ulp"


@pytest.mark.parametrize("name", UNARY_NAMES)
def test_f32_everywhere(name: str, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--long", default=False):
        pytest.skip("all 2^32 arguments: --long")
    kernel = MathKernel(name, "f32")
    for start in range(0, 2**32, 2**24):
        x = np.arange(start, start + 2**24, dtype=np.uint64).astype(np.uint32).view(np.float32)
        error, at = worst_f32(kernel, name, x)
        assert error <= ULP_BOUND, f"{name}({at!r}): {error} ulp"


def binary_arguments(count: int) -> tuple[Array, Array]:
    """Special values against each other, any bits, and bases with exponents that reach over- and underflow."""
    random = np.random.default_rng(7)
    special = np.concatenate([special_values()[:25], np.array([0.5, 1.5, -2.5, 3, -3, 16777215, -7, 1e10], np.float32)])
    left, right = (grid.ravel() for grid in np.meshgrid(special, special))
    any_bits = random.integers(0, 2**32, (2, count), dtype=np.uint64).astype(np.uint32).view(np.float32)
    base = np.exp(random.uniform(-40, 40, count)).astype(np.float32)
    exponent = (random.uniform(-104, 89, count) / np.log(base.astype(np.float64))).astype(np.float32)
    spread = np.exp(random.uniform(-80, 80, (2, count))).astype(np.float32)
    return np.concatenate([left, any_bits[0], base, spread[0]]), np.concatenate([right, any_bits[1], exponent, spread[1]])


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", BINARY_NAMES)
def test_f32_binary(name: str, target: str) -> None:
    x, y = binary_arguments(20000)
    got = MathKernel(name, "f32", inputs=2, target=target)(x, y)
    with np.errstate(all="ignore"):
        exact = BINARY_REFERENCES[name](x.astype(np.float64), y.astype(np.float64))
    error = f32_errors(got, exact)
    index = int(np.argmax(error))
    # The remainder is exact; the others are rounded from f64.
    bound = 0.0 if name == "remainder" else 0.51
    assert error[index] <= bound, f"{name}({x[index]!r}, {y[index]!r}): {error[index]} ulp"
