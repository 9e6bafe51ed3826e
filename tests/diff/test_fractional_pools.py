"""Fractional max pooling and convolutions of [time, batch, channels] against eager, at many sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import Wrapped
from torch import Tensor

import disc


def planes(x: Tensor, samples: Tensor) -> tuple[Tensor, ...]:
    return (
        *F.fractional_max_pool2d_with_indices(x, (2, 2), output_size=(3, 2), _random_samples=samples),
        F.fractional_max_pool2d(x, (3, 1), output_size=(1, 4), _random_samples=samples),
        F.fractional_max_pool2d(x, (2, 2), output_ratio=(0.5, 0.5), _random_samples=samples),
    )


def volumes(x: Tensor, samples: Tensor) -> tuple[Tensor, ...]:
    return tuple(F.fractional_max_pool3d_with_indices(x, (2, 1, 3), output_size=(3, 2, 1), _random_samples=samples))


@pytest.mark.parametrize(("function", "sizes"), [(planes, ((7, 9), (4, 5), (31, 17))), (volumes, ((7, 9, 4), (16, 5, 9)))])
def test_fractional_pools(function: Callable[..., tuple[Tensor, ...]], sizes: tuple[tuple[int, ...], ...]) -> None:
    dims = len(sizes[0])

    def make(batch: int, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        x = torch.randint(9, (batch, 3, *size)).float()  # equal maxima
        return x, torch.rand(batch, 3, dims)

    executable = disc.compile(Wrapped(function).eval(), make(2, sizes[0]))
    for batch, size in ((2, sizes[0]), *((1 + number, size) for number, size in enumerate(sizes))):
        given = make(batch, size)
        for ours, theirs in zip(executable.flat(*given), function(*given), strict=True):
            assert isinstance(ours, Tensor)
            assert torch.equal(ours, theirs), (batch, size)
    x, samples = make(1, sizes[0])
    x[0, 0, 1, 1] = float("nan")
    for ours, theirs in zip(executable.flat(x, samples), function(x, samples), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=0, atol=0)


def test_convolution_of_time_batch_channels() -> None:
    weight, bias = torch.randn(3, 4, 5), torch.randn(5)

    def function(x: Tensor) -> Tensor:
        return torch.conv_tbc(x, weight, bias, 1)

    executable = disc.compile(Wrapped(function).eval(), (torch.randn(7, 2, 4),))
    for time, batch in ((7, 2), (1, 1), (3, 0), (64, 3)):
        x = torch.randn(time, batch, 4)
        torch.testing.assert_close(executable(x), function(x), rtol=1e-5, atol=1e-5)
