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

from disc.codegen.x86.math.functions import BINARY_F64, BINARY_WIDENED, UNARY, UNARY_F32, UNARY_F64
from disc.targets.x86 import LEVELS
from tests.unit.codegen.vector_math_kernels import RUN_HERE, MathKernel

Array = np.ndarray
Reference = Callable[[Array], Array]


def of_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Reference:
    return lambda x: function(torch.from_numpy(x)).numpy()


def logistic_reference(x: Array) -> Array:
    """Unlike torch.sigmoid it keeps results below the smallest normal number."""
    z = np.exp(-np.abs(x))
    return np.where(x < 0, z, 1.0) / (1.0 + z)


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
    "logistic": logistic_reference,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sine": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}
BINARY_REFERENCES: dict[str, Callable[[Array, Array], Array]] = {"atan2": np.arctan2, "power": np.power, "remainder": np.fmod}
ULP_BOUND = 2.0
SPECIAL_BITS = [
    *(0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF),
    *(0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF),
    *(0x3F800000, 0xBF800000, 0x3F800001, 0xBF800001, 0x3F7FFFFF, 0xBF7FFFFF, 0x40000000, 0xC0000000),
]
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


@pytest.mark.parametrize("target", RUN_HERE)
@pytest.mark.parametrize("name", UNARY_NAMES)
def test_f32_sample(name: str, target: str) -> None:
    stride = np.arange(0, 2**32, 30011, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = np.linspace(-12, 12, 20000, dtype=np.float32)
    error, at = worst_f32(MathKernel(name, "f32", target=target), name, np.concatenate([special_values(), stride, dense]))
    assert error <= ULP_BOUND, f"{name}({at!r}): {error} ulp"


@pytest.mark.parametrize("target", RUN_HERE)
@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("name", ["tanh", "erf", "logistic"])
def test_functions_reach_their_limits(name: str, element: str, target: str) -> None:
    """x * (1 + tanh(x)) of -1e38 is 0 only if tanh is exactly -1 there."""
    beyond = {("tanh", "f32"): 9.02, ("tanh", "f64"): 19.1, ("erf", "f32"): 4.0, ("erf", "f64"): 6.0, ("logistic", "f32"): 17.4,
              ("logistic", "f64"): 37.5}[name, element]  # fmt: skip
    x = np.array([beyond, 40.0, 1e3, 1e10, np.finfo(np.float32).max, np.inf], np.float32 if element == "f32" else np.float64)
    kernel = MathKernel(name, element, target=target)
    assert np.array_equal(kernel(x), np.ones_like(x))
    if name != "logistic":
        assert np.array_equal(kernel(-x), -np.ones_like(x))


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


@pytest.mark.parametrize("target", RUN_HERE)
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


# Measured bounds in ulp of the f64 functions, and the interval of |x| from which arguments are drawn.
F64_CASES: dict[str, tuple[Callable[[mpf], mpf], float, float, float]] = {
    "acos": (mp.acos, 1e-10, 1.0, 2.0),
    "asin": (mp.asin, 1e-10, 1.0, 2.0),
    "asinh": (mp.asinh, 1e-100, 1e300, 2.0),
    "atan": (mp.atan, 1e-100, 1e100, 2.0),
    "atanh": (mp.atanh, 1e-10, 0.999, 2.0),
    "cosh": (mp.cosh, 1e-5, 710.4, 2.5),
    "cosine": (mp.cos, 1e-300, 1.7e308, 1.5),
    "erf": (mp.erf, 1e-300, 6.5, 1.5),
    "erfc": (mp.erfc, 1e-5, 27.2, 3.0),
    "exponential": (mp.exp, 1e-5, 745.0, 1.5),
    "exponential_minus_one": (mp.expm1, 1e-300, 709.0, 2.0),
    "log": (lambda x: mp.log(abs(x)), 5e-324, 1e308, 1.5),
    "log_plus_one": (mp.log1p, 1e-300, 0.99, 2.0),
    "logistic": (lambda x: 1 / (1 + mp.exp(-x)), 1e-5, 745.0, 2.0),
    "sine": (mp.sin, 1e-300, 1.7e308, 1.5),
    "sinh": (mp.sinh, 1e-300, 710.4, 3.0),
    "tan": (mp.tan, 1e-300, 1.7e308, 3.0),
    "tanh": (mp.tanh, 1e-300, 25.0, 1.5),
}


def f64_error(got: float, exact: mpf) -> float:
    if not np.isfinite(got):
        return 0.0 if abs(exact) > mpf(np.finfo(np.float64).max) else np.inf
    exponent = max(mp.frexp(exact)[1] - 53, -1074) if exact else -1074
    return float(abs(mpf(float(got)) - exact) / mpf(2) ** exponent)


@pytest.mark.parametrize("name", sorted(F64_CASES))
def test_f64_sample(name: str) -> None:
    function, low, high, bound = F64_CASES[name]
    random = np.random.default_rng(11)
    spread = np.exp(random.uniform(np.log(low), np.log(high), 150)) * random.choice([-1.0, 1.0], 150)
    dense = random.uniform(-1, 1, 150) * min(high, 8.0)
    x = np.concatenate([spread, dense])
    if name in ("sine", "cosine", "tan"):  # where two ways to reduce meet, and the f64 that is nearest to a multiple of pi/2
        x = np.concatenate([x, 2.0**20 + random.uniform(-9, 9, 30), 10.0 ** random.uniform(6, 20, 60), [6381956970095103 * 2.0**797]])
    got = MathKernel(name, "f64")(np.abs(x) if name == "log" else x)
    with mp.workdps(700 if high > 1e300 else 60):
        errors = [f64_error(value, function(mpf(float(argument)))) for value, argument in zip(got, x, strict=True)]
    worst = int(np.argmax(errors))
    assert errors[worst] <= bound, f"{name}({x[worst]!r}): {errors[worst]} ulp"


@pytest.mark.parametrize("name", sorted(set(REFERENCES) - {"lgamma", "digamma"}))
def test_f64_special_values(name: str) -> None:
    limits = [np.finfo(np.float64).tiny, 5e-324, 709.78, 709.79, 710.5, 745.1, 745.2, 1000.0]
    x = np.array([0.0, np.inf, np.nan, 1.0, *limits])
    x = np.concatenate([x, -x])
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x)
        got = MathKernel(name, "f64")(x)
    np.testing.assert_allclose(got, exact, rtol=1e-14, atol=0.0)
    number = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(exact)[number])


def test_f64_power() -> None:
    random = np.random.default_rng(3)
    base = np.exp(random.uniform(-300, 300, 400))
    exponent = random.uniform(-744, 709, 400) / np.log(base)
    got = MathKernel("power", "f64", inputs=2)(base, exponent)
    with mp.workdps(60):
        exact = [mpf(float(x)) ** mpf(float(y)) for x, y in zip(base, exponent, strict=True)]
        errors = [f64_error(value, result) for value, result in zip(got, exact, strict=True)]
    assert max(errors) <= 2.0


@pytest.mark.parametrize("name", BINARY_NAMES)
def test_f64_binary_special_values(name: str) -> None:
    special = np.array([0.0, np.inf, np.nan, 1.0, 2.0, 3.0, 0.5, 1.5, 5e-324, 1e-310, 1e308, 2.0**53, 2.0**53 - 1, 1e10, 0.1])
    special = np.concatenate([special, -special])
    x, y = (grid.ravel() for grid in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        exact = BINARY_REFERENCES[name](x, y)
        got = MathKernel(name, "f64", inputs=2)(x, y)
    np.testing.assert_allclose(got, exact, rtol=0.0 if name == "remainder" else 1e-15, atol=1e-320 if name == "power" else 5e-324)
    number = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(exact)[number])


def test_f64_remainder_is_exact() -> None:
    random = np.random.default_rng(5)
    x, y = random.integers(0, 2**64, (2, 4000), dtype=np.uint64).view(np.float64)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(MathKernel("remainder", "f64", inputs=2)(x, y), np.fmod(x, y))


@pytest.mark.parametrize("target", LEVELS)
def test_no_library_calls(target: str, tmp_path: Path) -> None:
    for name in ("exponential", "sine", "lgamma", "erf"):
        path = tmp_path / f"{name}.o"
        MathKernel(name, "f32", target=target).dump_object(path)
        undefined = subprocess.run(["nm", "-u", str(path)], capture_output=True, text=True, check=True).stdout
        assert undefined.split() == [], f"{name} calls {undefined}"
