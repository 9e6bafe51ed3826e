"""Library kernels against eager: sorts and what is made of them."""

from __future__ import annotations

import pytest
import torch
from compiled import module_program, randn

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LINES = ((2, 3), (0, 3), (3, 0), (1, 1), (5, 97), (3, 96), (95, 4), (131, 260))


def special(x: torch.Tensor) -> torch.Tensor:
    """With NaN, infinities and both zeros among the values, where there is room."""
    values = (float("nan"), -0.0, 0.0, float("inf"), -float("inf"), -0.0, float("nan"), 0.0)
    flat = x.flatten()
    for place, value in enumerate(values[: max(flat.numel() - 2, 0)]):
        flat[place * 3 % flat.numel()] = value
    return flat.reshape(x.shape)


def same_bits(x: torch.Tensor) -> torch.Tensor:
    """The sign of zeros as a number of its own; a bool as one."""
    return torch.copysign(torch.ones_like(x), x) if x.dtype.is_floating_point else x


@pytest.mark.parametrize("dtypes", [FLOATS, (*INTEGERS, torch.bool)], ids=["floats", "integers"])
def test_sorts(dtypes: tuple[torch.dtype, ...]) -> None:
    """All dtypes, both dims, both orders; equal elements keep their order, also those that only look different."""

    def sorts(*inputs: torch.Tensor) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for number, x in enumerate(inputs):
            for dim in (0, -1):
                values, indices = torch.sort(x, dim=dim, descending=bool((number + dim) % 2), stable=True)
                found += [values, indices, same_bits(values)]
        return found

    program = module_program(sorts, *(randn(2, 3, dtype=dtype) for dtype in dtypes))
    for shape in LINES:
        inputs = [randn(*shape, dtype=dtype, seed=number) for number, dtype in enumerate(dtypes)]
        program.check(*(special(x) if x.dtype.is_floating_point else x for x in inputs))


def test_sorts_of_what_is_computed() -> None:
    """Operands that are views, constants and values of other kernels, of three dims; results that nothing reads, and that others do."""

    def sorts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        middle = torch.sort(x * 2, dim=1).values + 1
        flat = torch.sort(x.reshape(-1)).indices
        turned = torch.sort(x.permute(2, 0, 1), dim=1, descending=True).values
        constant = torch.sort(torch.ones_like(x), dim=2, stable=True).indices
        return middle, flat, turned, constant, torch.sort(x.sum(0)).values, torch.sort(x.sum()).indices

    program = module_program(sorts, randn(2, 3, 4))
    for shape in ((2, 3, 4), (1, 1, 1), (0, 2, 3), (7, 11, 13), (5, 100, 3)):
        program.check(randn(*shape))


def test_long_lines() -> None:
    """A line whose keys need every digit."""

    def sorts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *torch.sort(x, stable=True), *torch.sort(x.double() * 1e200, descending=True, stable=True)

    program = module_program(sorts, randn(5))
    program.check(randn(70_001))
