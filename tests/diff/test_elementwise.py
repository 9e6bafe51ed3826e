"""Element-wise ops of every element type, special values included, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import SIZES, TextProgram, function_text, module_program, randn, text_program, to_bits

from disc.ir.bf16 import round_to_bf16
from disc.ir.interp.values import held_dtype

Array = np.ndarray[Any, Any]

FLOATS = ("f64", "f32", "f16", "bf16")
SIGNED = ("i64", "i32", "i16", "i8")
UNSIGNED = ("ui64", "ui32", "ui16", "ui8")
INTEGERS = SIGNED + UNSIGNED
EVERY = (*FLOATS, *INTEGERS, "i1")

BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
ROUNDING = ("abs", "negate", "sign", "floor", "ceil", "round_nearest_even", "round_nearest_afz", "sqrt")
FUNCTIONS = (
    "exponential", "exponential_minus_one", "log", "log_plus_one", "tanh", "logistic", "sine", "cosine", "rsqrt", "cbrt", "tan",
)  # fmt: skip
CHLO_FUNCTIONS = ("erf", "erfc", "asinh", "acosh", "atanh", "sinh", "cosh", "asin", "acos", "lgamma", "digamma")


def special_values(element: str) -> Array:
    """Values at the ends of the type, and the ones in the middle of trouble."""
    dtype = held_dtype(element)
    if element == "i1":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.unique(
            np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, info.max // 2, info.min // 2], dtype)
        ).astype(dtype)
    inf, nan = float("inf"), float("nan")
    small = {"f64": 5e-324, "f32": 1e-45, "f16": 6e-8, "bf16": 1e-40}[element]
    large = {"f64": 1.7e308, "f32": 3.4e38, "f16": 65504.0, "bf16": 3.38e38}[element]
    return np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, inf, -inf, nan, small, -small, large, -large], dtype)


def pairs(element: str, count: int) -> tuple[Array, Array]:
    """Two columns: every pair of special values first (in an order that mixes them), then random values."""
    special = special_values(element)
    generator = np.random.default_rng(7)
    left, right = np.repeat(special, special.size), np.tile(special, special.size)
    order = generator.permutation(left.size)
    more = random_values(element, count, generator), random_values(element, count, generator)
    result = [np.concatenate([side[order], extra]) for side, extra in zip((left, right), more, strict=True)]
    return (result[0][:count], result[1][:count]) if count else (result[0][:0], result[1][:0])


def random_values(element: str, count: int, generator: np.random.Generator) -> Array:
    dtype = held_dtype(element)
    if element == "i1":
        return generator.random(count) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return generator.integers(info.min, info.max, count, dtype, endpoint=True)
    values = (generator.standard_normal(count) * 4).astype(dtype)
    return round_to_bf16(values) if element == "bf16" else values


def run_pairs(program: TextProgram, element: str, ulps: float = 0) -> None:
    for count in (*SIZES, 401):
        program.check([to_bits(side, element) for side in pairs(element, count)], ulps)


def vector(element: str) -> str:
    return f"tensor<?x{element}>"


def binary(name: str, element: str) -> tuple[str, str]:
    return f"stablehlo.{name} %x, %y : {vector(element)}", vector(element)


def unary(name: str, element: str, dialect: str = "stablehlo") -> tuple[str, str]:
    kind = vector(element)
    return (f"{dialect}.{name} %x : {kind}" + ("" if dialect == "stablehlo" else f" -> {kind}")), kind


def compare(direction: str, element: str, order: str = "") -> tuple[str, str]:
    suffix = f", {order}" if order else ""
    return f"stablehlo.compare {direction}, %x, %y{suffix} : ({vector(element)}, {vector(element)}) -> tensor<?xi1>", "tensor<?xi1>"


def arguments(element: str) -> str:
    return f"%x: {vector(element)}, %y: {vector(element)}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("element", EVERY)
def test_exact(element: str) -> None:
    """Ops whose result is defined to the last bit: arithmetic, comparisons, choices, roundings, bits."""
    kind = vector(element)
    body = [binary(name, element) for name in BINARY if element != "i1" or name != "subtract"]
    body += [compare(direction, element) for direction in DIRECTIONS]
    body.append((f"stablehlo.clamp %y, %x, %y : {kind}", kind))
    if element in FLOATS:
        body += [unary(name, element) for name in ROUNDING] + [binary("divide", element), binary("remainder", element)]
        body += [compare(direction, element, "TOTALORDER") for direction in DIRECTIONS]
        body.append((f"stablehlo.is_finite %x : ({kind}) -> tensor<?xi1>", "tensor<?xi1>"))
        body += [(f"chlo.{name} %x : {kind} -> tensor<?xi1>", "tensor<?xi1>") for name in ("is_inf", "is_pos_inf", "is_neg_inf")]
    else:
        body += [binary(name, element) for name in ("and", "or", "xor")] + [unary("not", element)]
    if element in INTEGERS:
        body += [binary(name, element) for name in ("divide", "remainder", "shift_left", "shift_right_logical")]
        body += [unary(name, element) for name in ("popcnt", "count_leading_zeros")]
    if element in SIGNED:
        body.append(binary("shift_right_arithmetic", element))
        body += [unary(name, element) for name in ("abs", "negate", "sign")]
    run_pairs(text_program(function_text(arguments(element), body)), element)


@pytest.mark.parametrize("element", FLOATS)
def test_functions(element: str) -> None:
    """Real functions: within a few units of the last place of the interpreter's, which works in f64."""
    body = [unary(name, element) for name in FUNCTIONS] + [binary(name, element) for name in ("power", "atan2")]
    body += [
        unary(name, element, "chlo") for name in CHLO_FUNCTIONS if element != "f64" or name != "digamma"
    ]  # the interpreter's is f32-good
    body.append((f"chlo.square %x : {vector(element)} -> {vector(element)}", vector(element)))
    program = text_program(function_text(arguments(element), body))
    for count in (*SIZES, 401):
        sides = pairs(element, count)
        if element == "f64":  # the range of arguments that f64 trigonometry promises
            sides = [np.where(np.isfinite(side) & (side != 0), np.clip(np.abs(side), 1e-300, 1e5) * np.sign(side), side) for side in sides]
        program.check([to_bits(side, element) for side in sides], ulps=40, absolute=1e-15)


@pytest.mark.parametrize("element", INTEGERS)
def test_integer_power(element: str) -> None:
    program = text_program(function_text(arguments(element), [binary("power", element)]))
    for count in (0, 1, 17, 67):
        left, right = pairs(element, count)
        program.check([left, (right % np.array(9).astype(right.dtype)).astype(right.dtype)])


@pytest.mark.parametrize("element", EVERY)
def test_converts(element: str) -> None:
    """To every other type: truncation towards zero and saturation, NaN to 0, wrapping among integers, nearest even among floats."""
    body = [(f"stablehlo.convert %x : (tensor<?x{element}>) -> tensor<?x{target}>", f"tensor<?x{target}>") for target in EVERY]
    program = text_program(function_text(f"%x: {vector(element)}", body))
    for count in (0, 1, 7, 17, 67, 401):
        left, _ = pairs(element, count)
        program.check([to_bits(left, element)])


BITCASTS = (
    ("f32", "i32"),
    ("i32", "f32"),
    ("f64", "i64"),
    ("i64", "f64"),
    ("f32", "ui32"),
    ("bf16", "i16"),
    ("i16", "bf16"),
    ("f16", "ui16"),
)


@pytest.mark.parametrize(("source", "target"), BITCASTS)
def test_bitcasts(source: str, target: str) -> None:
    body = [(f"stablehlo.bitcast_convert %x : (tensor<?x{source}>) -> tensor<?x{target}>", f"tensor<?x{target}>")]
    program = text_program(function_text(f"%x: {vector(source)}", body))
    for count in (0, 1, 16, 67):
        values = np.arange(count) * 977 if held_dtype(source).kind in "iu" else np.linspace(-3, 3, count)
        held = values.astype(held_dtype(source))
        program.check([to_bits(round_to_bf16(held) if source == "bf16" else held, source)])


@pytest.mark.parametrize("element", EVERY)
def test_select_and_constants(element: str) -> None:
    """Selects by a scalar and by a tensor; splat constants; mixed with a buffer of another width."""
    kind = vector(element)
    value = {"i1": "true"}.get(element, "3.0" if element in FLOATS else "3")
    text = f"""func.func @main(%p: tensor<?xi1>, %s: tensor<i1>, %x: {kind}, %y: {kind}) -> ({kind}, {kind}, {kind}, tensor<4x{element}>) {{
  %0 = stablehlo.select %p, %x, %y : tensor<?xi1>, {kind}
  %1 = stablehlo.select %s, %x, %y : tensor<i1>, {kind}
  %c = stablehlo.constant dense<{value}> : tensor<{element}>
  %d = stablehlo.constant dense<{value}> : tensor<4x{element}>
  %2 = chlo.broadcast_maximum %x, %c : ({kind}, tensor<{element}>) -> {kind}
  return %0, %1, %2, %d : {kind}, {kind}, {kind}, tensor<4x{element}>
}}"""
    program = text_program(text)
    generator = np.random.default_rng(3)
    for count in SIZES:
        sides = [to_bits(side, element) for side in pairs(element, count)]
        for chosen in (False, True):
            program.check([generator.random(count) < 0.5, np.array(chosen), *sides])


def torch_floats(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [
        x // y, x % y, torch.remainder(x, 2.5), torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc"), x.round(), x.frac(), x.sign(), torch.heaviside(x, y), x.clamp(-1, 1), x.clamp(min=0.5),
        torch.maximum(x, y), torch.fmax(x, y), x.reciprocal(), x.rsqrt(), x.square(), x.pow(3), x.abs().pow(0.5), x.abs().pow(y), torch.where(x > y, x, 0.0), x.lerp(y, 0.3), torch.addcmul(x, y, y),
        x.isfinite(), x.isnan(), x.nan_to_num(1.0, 2.0, -2.0), torch.hypot(x, y), torch.copysign(x, y), x.logit(0.1), F.softplus(x), F.elu(x), F.hardswish(x), F.leaky_relu(x), F.mish(x), F.selu(x),
        x.signbit(), torch.logaddexp(x, y), x.expm1(), x.log1p(), x.exp2(), x.abs().log2(), x.abs().log10(), x.erfinv(), torch.sinc(x), x.deg2rad(), x.eq(y), x.logical_not(), x.to(torch.int32),
    ]  # fmt: skip


def torch_integers(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """y has no zero: eager raises there."""
    return [
        x // y, x % y, torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y), x / y, x & y, x | y, x ^ y, ~x, x << 1, x >> 1, -x, x.abs(), x.sign(), x.clamp(1, 3), x * y - x, x.pow(2), x.eq(y), x.float().exp(),
        x.bool(), x + 1.5, x > 1, torch.maximum(x, y), x.logical_and(y), torch.where(x > y, x, y), x.to(torch.float64), x.to(torch.uint8), x.square(), x.bitwise_not(), x.remainder(3), x.floor_divide(2),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.long)])
def test_torch_floats(dtype: torch.dtype) -> None:
    program = module_program(torch_floats, randn(5, dtype=dtype), randn(5, dtype=dtype))
    for size in (0, 1, 9, 17, 33):
        program.check(randn(size, dtype=dtype) * 2, randn(size, dtype=dtype, seed=1))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_torch_integers(dtype: torch.dtype) -> None:
    program = module_program(torch_integers, randn(5, dtype=dtype), randn(5, dtype=dtype))
    for size in (0, 1, 9, 17, 33):
        y = randn(size, dtype=dtype, seed=1)
        program.check(randn(size, dtype=dtype), torch.where(y == 0, 3, y).to(dtype))
    if dtype == torch.uint8:
        program.check(torch.tensor([255, 254, 128], dtype=dtype), torch.tensor([255, 1, 2], dtype=dtype))
