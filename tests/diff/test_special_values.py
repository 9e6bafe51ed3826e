"""Elementwise ops at the edges of every type, against eager: zeros, infinities, NaN, denormals, the largest and smallest numbers, halves.

One program per type computes all ops, at lengths that are part of a vector, whole vectors, and both. Both zeros count as equal where
README says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from compiled import Wrapped, both_targets

from disc.errors import DiscError

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int32, torch.uint8, torch.int8, torch.int16, torch.int64)
ALWAYS = (torch.float32, torch.int32, torch.uint8, torch.bool)
LENGTHS = (67, 1, 7, 64)
TOLERANCE = {torch.float32: 4e-6, torch.float64: 4e-14, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
Op = Callable[..., torch.Tensor]


def named(names: str) -> dict[str, Op]:
    return {name: getattr(torch, name) for name in names.split()}


CONVERSIONS: dict[str, Op] = {
    f"to {kind}": lambda x, kind=kind: x.to(kind) for kind in (*FLOATS, *INTEGERS, torch.bool)
}  # fmt: skip
UNARY_FLOAT: dict[str, Op] = {
    **named("abs neg sign sgn exp expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan tanh sigmoid erf erfc floor ceil round trunc"),
    **named("square isnan isinf isfinite signbit exp2 asin acos atan asinh acosh atanh nan_to_num lgamma erfinv relu sinc"),
    "silu": F.silu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "softplus": F.softplus, "hardtanh": F.hardtanh,
    "hardswish": F.hardswish, "elu": F.elu, "mish": F.mish, "logsigmoid": F.logsigmoid, "leaky_relu": F.leaky_relu,
    "clamp": lambda x: x.clamp(-1, 2), "x ** 2": lambda x: x**2, "x ** 3": lambda x: x**3, "x ** -1": lambda x: x**-1,
    "x ** 2.5": lambda x: x**2.5, "2 ** x": lambda x: torch.pow(2.0, x), "1 - x": lambda x: 1 - x, "x % 2": lambda x: x % 2,
    "x // 2": lambda x: x // 2, "x >= 0": lambda x: x >= 0, "x != x": lambda x: x != x, **CONVERSIONS,
}  # fmt: skip
UNARY_INTEGER: dict[str, Op] = {
    **named("abs neg sign square bitwise_not relu exp sqrt sigmoid tanh log floor ceil round trunc reciprocal signbit logical_not"),
    "x ** 2": lambda x: x**2, "x ** 7": lambda x: x**7, "x ** 0": lambda x: x**0, "1 - x": lambda x: 1 - x, "x % 3": lambda x: x % 3,
    "x % -3": lambda x: x % -3, "x // 2": lambda x: x // 2, "x // -3": lambda x: x // -3, "fmod": lambda x: torch.fmod(x, -3),
    "trunc div": lambda x: torch.div(x, 3, rounding_mode="trunc"), "x / 3": lambda x: x / 3, "x << 1": lambda x: x << 1,
    "x >> 1": lambda x: x >> 1, "x << 40": lambda x: x << 40, "x >> 40": lambda x: x >> 40, "x + 1": lambda x: x + 1,
    "x * 3": lambda x: x * 3, "clamp": lambda x: x.clamp(0, 5), "x & 3": lambda x: x & 3, "x ^ 5": lambda x: x ^ 5, **CONVERSIONS,
}  # fmt: skip
UNARY_BOOL: dict[str, Op] = {**named("logical_not bitwise_not exp sqrt tanh"), "x * 3": lambda x: x * 3, **CONVERSIONS}
BINARY_COMMON: dict[str, Op] = {
    **named("add mul maximum minimum fmax fmin eq ne lt le gt ge logical_and logical_or logical_xor true_divide"),
    "where": lambda a, b: torch.where(a > b, a, b),
}  # fmt: skip
BINARY_NUMBER: dict[str, Op] = {
    **named("sub floor_divide remainder copysign atan2 pow"),
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
}  # fmt: skip
BINARY_FLOAT: dict[str, Op] = {**BINARY_COMMON, **BINARY_NUMBER, **named("hypot xlogy logaddexp")}
BINARY_INTEGER: dict[str, Op] = {
    **BINARY_COMMON, **BINARY_NUMBER, **named("fmod bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}  # fmt: skip
# README: of two zeros of different signs a maximum gives 0.0, a minimum -0.0.
EITHER_ZERO = frozenset(("maximum", "minimum", "fmax", "fmin", "relu", "hardtanh", "clamp"))
# 2^x is e^(x ln 2), and 1 + tanh(-2) loses bits: relative tolerances.
LOOSE = {"exp2": 1e-5, "gelu_tanh": 2e-5}
# Eager's vectorized kernels give up where the quotient is beyond what they divide exactly; the exact result stands.
QUOTIENT_BOUND = {"remainder": 2.0**20, "floor_divide": 2.0**20, "floor": 2.0**20}


def special(kind: torch.dtype) -> torch.Tensor:
    if kind == torch.bool:
        return torch.tensor([False, True])
    if not kind.is_floating_point:
        limits = torch.iinfo(kind)
        numbers = [0, 1, 2, 3, 5, 7, limits.max, limits.min, limits.max - 1, limits.min + 1, 100, -1, -2, -3, -7, 31, 32, 33, 8, 9, 64]
        return torch.tensor([each for each in numbers if limits.min <= each <= limits.max], dtype=kind)
    limits = torch.finfo(kind)
    near = [
        0.0,
        math.inf,
        math.nan,
        limits.tiny / 4,
        limits.smallest_normal,
        limits.max,
        limits.eps,
        1.0,
        0.5,
        1.5,
        2.5,
        7.0,
        1e-3,
        6.0,
        11.1,
    ]
    ends = [100.0, 129.0, 200.7, 300.0, 32768.0, 70000.0, 2.0**31 + 10, 2.0**32 + 5, 2.0**63, 1e19, 88.0, 104.0, 20.0, 1e4, 0.1, 255.5]
    both = torch.tensor([sign * each for each in (*near, *ends) for sign in (1, -1)], dtype=torch.float64)
    return both.to(kind)


def differs(ours: torch.Tensor, theirs: torch.Tensor, either_zero: bool, least: float) -> torch.Tensor:
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, (
        f"{ours.dtype}{tuple(ours.shape)}, {theirs.dtype}{tuple(theirs.shape)}"
    )
    if not theirs.dtype.is_floating_point:
        return ours != theirs
    left, right = ours.double(), theirs.double()
    tiny = 4 * torch.finfo(theirs.dtype).smallest_normal
    wrong = ~torch.isclose(left, right, rtol=max(TOLERANCE[theirs.dtype], least), atol=tiny, equal_nan=True)
    signs = (left == 0) & (right == 0) & (torch.signbit(left) != torch.signbit(right))
    return wrong if either_zero else wrong | signs


def compare(ops: Mapping[str, Op], inputs: list[tuple[torch.Tensor, ...]], skipped: Mapping[str, torch.Tensor] | None = None) -> None:
    """One program of all ops that eager has for the type. skipped: by op, elements of the first inputs that are not compared."""
    usable = {name: op for name, op in ops.items() if _runs(op, inputs[0])}
    assert len(usable) >= len(ops) * 3 // 4
    wrong: list[str] = []
    for executable in both_targets(Wrapped(lambda *given: tuple(op(*given) for op in usable.values())).eval(), inputs[0]):
        for given in inputs:
            for (name, op), ours in zip(usable.items(), executable(*given), strict=True):
                theirs = op(*given)
                bad = differs(ours, theirs, name in EITHER_ZERO, LOOSE.get(name, 0.0))
                if skipped is not None and name in skipped and given is inputs[0]:
                    bad &= ~skipped[name]
                for place in bad.nonzero().flatten().tolist()[:3]:
                    values = [each[place].item() for each in given]
                    wrong.append(f"{executable.isa} {name}{values} of {len(bad)}: {ours[place].item()} for {theirs[place].item()}")
    assert not wrong, "\n".join(wrong)


def _runs(op: Op, given: tuple[torch.Tensor, ...]) -> bool:
    try:
        op(*given)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def kinds(every: tuple[torch.dtype, ...]) -> list[object]:
    return [pytest.param(each, id=str(each)[6:], marks=() if each in ALWAYS else pytest.mark.long) for each in every]


@pytest.mark.parametrize("kind", kinds((*FLOATS, *INTEGERS, torch.bool)))
def test_unary(kind: torch.dtype) -> None:
    ops = UNARY_FLOAT if kind.is_floating_point else UNARY_BOOL if kind == torch.bool else UNARY_INTEGER
    values = special(kind)
    compare(ops, [(values.repeat(67)[:length],) for length in LENGTHS])


@pytest.mark.parametrize("kind", kinds((*FLOATS, *INTEGERS, torch.bool)))
def test_binary(kind: torch.dtype) -> None:
    values = special(kind)
    left, right = values.repeat_interleave(len(values)), values.repeat(len(values))
    if kind == torch.bool:
        compare(BINARY_COMMON, [(left, right)])
    elif kind.is_floating_point:
        huge = (left.double() / right.double()).abs() > 2.0**20
        compare(BINARY_FLOAT, [(left, right), (left[1:8], right[1:8])], dict.fromkeys(QUOTIENT_BOUND, huge))
    else:  # by 0 eager raises; the lowest number by -1 ends its process
        defined = (right != 0) & (right != -1)
        compare(BINARY_INTEGER, [(left[defined], right[defined]), (left[defined][1:8], right[defined][1:8])])


def test_floor_division_is_exact() -> None:
    """1 // 0.1 is 9: the quotient, rounded first, was 10."""
    left, right = torch.tensor([1.0, -1.0, 1.0, 7.0, math.inf, -7.0]), torch.tensor([0.1, 0.1, 0.3, 0.7, 2.0, math.inf])
    compare({"floor_divide": torch.floor_divide, "remainder": torch.remainder}, [(left, right)])


def test_integer_division_by_zero_is_refused_and_does_not_trap() -> None:
    """As in eager mode; the lowest number by -1 is itself."""
    ops: dict[str, Op] = {
        "quotient": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "remainder": torch.fmod, "lowest": torch.div,
    }  # fmt: skip
    lowest = torch.iinfo(torch.int32).min
    a, b = torch.tensor([7, -7, 0, lowest], dtype=torch.int32), torch.tensor([0, 0, 0, -1], dtype=torch.int32)
    for executable in both_targets(Wrapped(lambda *given: tuple(op(*given) for op in ops.values())).eval(), (a, torch.ones_like(b))):
        with pytest.raises(DiscError, match="divided by zero"):
            executable(a, b)
        quotient, remainder, _ = executable(a[3:], b[3:])
        assert quotient.tolist() == [lowest]
        assert remainder.tolist() == [0]
