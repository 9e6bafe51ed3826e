"""Softmax of rows by rules of its own: a product instead of the division, a maximum that does not carry NaN; values expensive to compute,
several vectors at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import module_program, randn

LENGTHS = (0, 1, 15, 16, 17, 31, 61, 63, 64, 65, 67, 127, 128, 129, 256, 257, 1021)
NAN, INF = float("nan"), float("inf")


def alone(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, -1)


def with_its_parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The maximum, the exponentials and the sum are results too, so that none of them may drop a NaN."""
    maximum = x.amax(-1, keepdim=True)
    exponential = (x - maximum).exp()
    total = exponential.sum(-1, keepdim=True)
    return exponential / total, maximum, exponential, total


def with_its_differences(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shifted = x - x.amax(-1, keepdim=True)
    exponential = shifted.exp()
    return exponential / exponential.sum(-1, keepdim=True), shifted


def of_a_sum(x: torch.Tensor) -> torch.Tensor:
    """No maximum: a sum of exponentials may be anything, so this must stay a division."""
    exponential = x.exp()
    return exponential / exponential.sum(-1, keepdim=True)


def masked(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x.masked_fill(x > 1, -INF), -1) * 2


@pytest.mark.parametrize("forward", [alone, with_its_parts, with_its_differences, of_a_sum, masked])
def test_softmaxes_of_rows(forward: Callable[[torch.Tensor], object]) -> None:
    program = module_program(forward, randn(3, 5))
    for number, length in enumerate(LENGTHS):
        for rows in (1, 4, 5 + number % 3) if length or forward in (alone, masked) else ():
            program.check(randn(rows, length) * 8)
    for length in (3, 17, 64, 131, 300):
        for value in (NAN, INF, -INF):
            for places in ((0,), (length - 1,), (length // 2, 1), tuple(range(length))):
                x = randn(6, length)
                x[1, list(places)] = value
                x[4, list(places)] = -value
                program.check(x)
    if forward is of_a_sum:
        program.check(torch.full((5, 33), -100.0))  # the sum is denormal, and its reciprocal infinite
        program.check(torch.full((5, 33), 85.2))  # the sum is nearly infinite


def test_softmax_is_as_accurate_as_a_division() -> None:
    """Within 2.5 units of the last place, and 1.5 for the sum, of what f64 makes of the same differences from the maximum."""
    program = module_program(alone, randn(3, 5))
    for scale in (0.1, 1.0, 10.0):
        x = randn(64, 1021) * scale
        powers = (x - x.amax(-1, keepdim=True)).double().exp()
        exact = powers / powers.sum(-1, keepdim=True)
        for executable in program.executables:
            found = executable(x)
            assert isinstance(found, torch.Tensor)
            kept = exact > 1e-35
            assert ((found.double() - exact).abs() / exact)[kept].max() < 4 * 2.0**-23


def expensive(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [F.gelu(x), torch.tanh(x * y) + y, torch.sigmoid(x).exp(), (x.exp() * y).sum(-1), F.gelu(x + y[:1]) * x.sin().log1p()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vectors_side_by_side(dtype: torch.dtype) -> None:
    """Every number of vectors, and of elements of the last one, that is left over."""
    program = module_program(expensive, randn(3, 5, dtype=dtype), randn(3, 5, dtype=dtype))
    for length in LENGTHS:
        for rows in (1, 3, 4):
            program.check(randn(rows, length, dtype=dtype).abs() / 2, randn(rows, length, dtype=dtype))
