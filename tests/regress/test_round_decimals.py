"""`torch.round` to a number of decimals: eager's own steps, and powers of ten that no float holds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import disc


class Rounded(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.round(x, decimals=decimals) for decimals in (3, 1, -1, 5, 39, -39, 400, 10**18, -(10**18)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_as_in_eager(dtype: torch.dtype) -> None:
    """Powers of 10^18 were once computed digit by digit, which never ends."""
    drawn = torch.randn(200, generator=torch.Generator().manual_seed(0)).double() * 37
    special = torch.tensor([0.0, -0.0, float("inf"), float("nan"), -float("inf"), 2.5, 3.5, 0.0005, 65000.0])
    x = torch.cat([drawn, special.double()]).to(dtype)
    executable = disc.compile(Rounded(), (x,))
    for one, other in zip(Rounded()(x), executable(x), strict=True):  # pyright: ignore[reportArgumentType]
        assert torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
