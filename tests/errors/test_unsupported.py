"""What cannot be compiled is refused with the user's line, whatever PyTorch itself makes of it."""

from __future__ import annotations

import pytest
import torch

import disc
from disc.errors import UnsupportedOpError


class MakesComplex(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.complex(x, x).abs()


class PoolsToThree(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_max_pool2d(x, 3)


@pytest.mark.parametrize(
    ("model", "example", "reason"),
    [(MakesComplex(), torch.ones(3, 4), "complex numbers"), (PoolsToThree(), torch.ones(1, 2, 8, 9), "adaptive_max_pool2d")],
)
def test_refused_with_the_line(model: torch.nn.Module, example: torch.Tensor, reason: str) -> None:
    with pytest.raises(UnsupportedOpError, match=reason) as caught:
        disc.compile(model, (example,), options=disc.Options(cache=False))
    assert "test_unsupported.py:" in str(caught.value)
