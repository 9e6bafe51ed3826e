"""Transposed convolutions whose result's size is given: how much is padded depends on sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import disc
from disc.errors import ShapeConstraintError


class To(nn.Module):
    """A transposed convolution to the size of `like`, as decoders of U-nets have."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d)[dims - 1]
        self.convolution = kind(2, 3, 3, stride=2, padding=1)

    def forward(self, x: Tensor, like: Tensor) -> Tensor:
        return self.convolution(x, output_size=like.shape[2:])


@pytest.mark.parametrize("dims", [1, 2])
def test_the_size_of_the_result_is_an_input(dims: int) -> None:
    model = To(dims).eval()
    executable = disc.compile(
        model, (torch.randn(2, 2, *(5, 4)[:dims]), torch.randn(2, 1, *(10, 7)[:dims])), options=disc.Options(cache=False)
    )
    for batch, sizes, wanted in ((1, (7, 5), (14, 9)), (3, (2, 6), (3, 12)), (2, (1, 1), (1, 2)), (0, (3, 3), (5, 6))):
        x, like = torch.randn(batch, 2, *sizes[:dims]), torch.randn(batch, 1, *wanted[:dims])
        torch.testing.assert_close(executable(x, like), model(x, like), rtol=1e-5, atol=1e-5)
    with pytest.raises(ShapeConstraintError, match="dim 2 of input"):
        executable(torch.randn(1, 2, *(5, 5)[:dims]), torch.randn(1, 1, *(11, 9)[:dims]))
