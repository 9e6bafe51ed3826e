"""grid_sample of images and volumes: every mode, at sizes down to one element and none, with places beyond the borders and on them."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import disc

SHAPES = (
    (2, 3, 4, 5, 6, 3),
    (1, 1, 1, 1, 1, 2),
    (3, 2, 7, 2, 1, 5),
    (2, 3, 1, 3, 2, 1),
    (0, 3, 4, 5, 6, 2),
)  # of the volume, and of the grid


class Sampled(nn.Module):
    def __init__(self, mode: str, padding: str, align_corners: bool) -> None:
        super().__init__()
        self.mode, self.padding, self.align_corners = mode, padding, align_corners

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        return functional.grid_sample(x, grid, self.mode, self.padding, self.align_corners)


def no_places(dims: int) -> Tensor:
    """Every combination of infinities, NaN, what overflows in elements or in a product of weights, and places inside, on borders and beyond."""
    values = [float("inf"), -float("inf"), float("nan"), 1e38, -1e38, 3e38, 1e10, 0.3, -1.0, 1.0, -37.3]
    return torch.tensor(list(itertools.product(values, repeat=dims))).reshape(1, *[len(values)] * dims, dims)


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:dim 4 of input 'grid'")
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_volumes_as_in_eager(mode: str, padding: str) -> None:
    """Also where coordinates are no places."""
    for align_corners in (True, False):
        model = Sampled(mode, padding, align_corners)
        exe = disc.compile(model, (torch.randn(2, 3, 4, 5, 6), torch.randn(2, 3, 4, 5, 3)), options=disc.Options(cache=False))
        generator = torch.Generator().manual_seed(0)
        for *shape, count in SHAPES:
            x = torch.randn(shape, generator=generator)
            grid = 2 * torch.randn(shape[0], count, count + 1, 2, 3, generator=generator)
            for place in range(min(shape[0], 1)):
                grid[place, 0, 0] = torch.tensor([[-1.0, 1.0, 0.0], [5.0, -7.0, 1.0]])
            torch.testing.assert_close(exe(x, grid), model(x, grid), rtol=1e-5, atol=1e-5)
        x, grid = torch.randn(1, 2, 4, 5, 6, generator=generator), no_places(3)
        torch.testing.assert_close(exe(x, grid), model(x, grid), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:dim 3 of input 'grid'")
@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_images_as_in_eager(mode: str, padding: str, align_corners: bool) -> None:
    model = Sampled(mode, padding, align_corners)
    exe = disc.compile(model, (torch.randn(2, 3, 5, 6), torch.randn(2, 3, 4, 2)), options=disc.Options(cache=False))
    for *shape, count in ((2, 3, 5, 6, 17), (1, 1, 1, 1, 2), (3, 2, 1, 7, 1), (0, 3, 4, 5, 2)):
        grid = 2 * torch.randn(shape[0], count, count + 1, 2)
        for coordinates in (grid, no_places(2).expand(shape[0], -1, -1, -1)):
            x = torch.randn(shape)
            torch.testing.assert_close(exe(x, coordinates), model(x, coordinates), rtol=1e-4, atol=1e-5, equal_nan=True)
