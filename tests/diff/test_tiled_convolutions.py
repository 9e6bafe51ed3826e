"""Convolutions by kernels that are no constants, and gradients of kernels: tile edges, paddings, channels around a unit and a panel, few and no
images, values that are not finite."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compiled import ModuleProgram, module_program, plans_of, randn

from disc.codegen.plan.library import LibraryPlan
from disc.frontend.convolution_gradients import convolution_backward

pytestmark = pytest.mark.sampled(2)

# Around tiles of 2 and of 4, one tile and several, more than a block and than a band of tiles.
PLANES = ((1, 1, 1), (2, 4, 4), (3, 5, 7), (1, 8, 9), (2, 13, 1), (3, 2, 33), (1, 33, 29), (0, 9, 9), (9, 3, 3))
SIZES = ((16, 16), (17, 70), (48, 130), (64, 64))


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def scaled(*shape: int) -> torch.Tensor:
    """Values whose sums over a window and all channels stay near 1."""
    return randn(*shape) / (shape[1] * shape[-1] * shape[-2]) ** 0.5


def functions(executable: object) -> list[str]:
    return [plan.function for plan in plans_of(executable) if isinstance(plan, LibraryPlan)]  # pyright: ignore[reportArgumentType]


def convolution(channels: int, outputs: int, window: int, padding: int, dtype: torch.dtype = torch.float32) -> ModuleProgram:
    program = module_program(
        lambda x, w: F.relu(F.conv2d(x, w, padding=padding)),
        randn(2, channels, 11, 12).to(dtype),
        scaled(outputs, channels, window, window).to(dtype),
        dynamic=[(0, 2, 3), ()],
    )
    assert functions(program.executables[0]) == ["tiled_convolution"]
    return program


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [3, 5])
@pytest.mark.parametrize("size", SIZES)
def test_convolutions(size: tuple[int, int], window: int, dtype: torch.dtype) -> None:
    channels, outputs = size
    program = convolution(channels, outputs, window, window // 2, dtype)
    for batch, height, width in PLANES:
        program.check(randn(batch, channels, height, width).to(dtype), scaled(outputs, channels, window, window).to(dtype))


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_paddings(padding: int) -> None:
    program = convolution(20, 33, 5, padding)
    for height, width in ((5, 5), (6, 9), (12, 7)):
        program.check(randn(2, 20, height, width), scaled(33, 20, 5, 5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_not_finite(dtype: torch.dtype) -> None:
    """They reach the results whose windows have them, and no others of their tiles; so do results too large to be added."""
    program = convolution(16, 16, 5, 2, dtype)
    for value in (float("inf"), float("nan"), torch.finfo(dtype).max / 3):
        x = randn(2, 16, 9, 9).to(dtype)
        x[0, 3, 4, 4] = x[1, 5, 0, 0] = value
        program.check(x, scaled(16, 16, 5, 5).to(dtype))


def gradient(channels: int, outputs: int, window: int, padding: int, dtype: torch.dtype = torch.float32) -> ModuleProgram:
    def by_kernel(x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        weight = x.new_empty(outputs, channels, window, window)
        found = convolution_backward(dy, x, weight, None, [1], [padding], [1], False, [0], 1, [False, True, False])
        assert found[1] is not None
        return found[1]

    grown = 2 * padding - window + 1
    program = module_program(
        by_kernel,
        randn(2, channels, 11, 12).to(dtype),
        randn(2, outputs, 11 + grown, 12 + grown).to(dtype),
        dynamic=[(0, 2, 3), (0, 2, 3)],
    )
    assert functions(program.executables[0]) == ["kernel_gradient"]
    return program


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [3, 5])
@pytest.mark.parametrize("size", SIZES)
def test_gradients(size: tuple[int, int], window: int, dtype: torch.dtype) -> None:
    """Of sums over positions of all images: more of them than one part has, too. The last row and column of a window of 5x5 take the values
    of the points 2 and -2 times 16, their corner twice, with their rounding: up to 3e-5 of the largest sum of some thousand positions there
    (elsewhere 5e-6; eager 2e-6)."""
    channels, outputs = size
    program = gradient(channels, outputs, window, window // 2, dtype)
    tolerance = 5e-5 if window == 5 and dtype == torch.float32 else None
    for batch, height, width in (*PLANES, (20, 14, 14)):
        scale = max(batch * height * width, 1) ** -0.5
        x, y = randn(batch, channels, height, width), randn(batch, outputs, height, width) * scale
        program.check(x.to(dtype), y.to(dtype), tolerance=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_values_that_are_not_finite(dtype: torch.dtype) -> None:
    program = gradient(16, 17, 5, 2, dtype)
    for value in (float("inf"), float("nan"), torch.finfo(dtype).max / 3):
        x = randn(2, 16, 9, 9).to(dtype)
        x[0, 3, 4, 4] = value
        program.check(x, randn(2, 17, 9, 9).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_results_of_16_bits_are_off_by_their_rounding_alone(dtype: torch.dtype) -> None:
    """In tiles of 4x4 by 5x5, too: as far from f64 as what f64 rounds to."""
    x, w, dy = randn(4, 32, 14, 14).to(dtype), scaled(48, 32, 5, 5).to(dtype), randn(4, 48, 14, 14).to(dtype)
    wide = w.double().requires_grad_()
    by_window = F.conv2d(x.double(), wide, padding=2)
    cases = (
        (convolution(32, 48, 5, 2, dtype), (x, w), F.relu(by_window.detach())),
        (gradient(32, 48, 5, 2, dtype), (x, dy), torch.autograd.grad(by_window, wide, dy.double())[0]),
    )
    for program, inputs, exact in cases:
        result = program.executables[0](*inputs)
        assert isinstance(result, torch.Tensor)
        ours, rounded = ((each.double() - exact).norm() for each in (result, exact.to(dtype)))
        assert ours <= 1.01 * rounded


def test_few_channels_and_many_bytes_have_other_kernels() -> None:
    """So do windows and steps that there are no tiles for."""
    for channels, outputs, window, stride in ((8, 32, 5, 1), (256, 256, 3, 1), (16, 16, 1, 1), (16, 16, 3, 2), (16, 16, 7, 1)):
        program = module_program(
            lambda x, w, s=stride: F.conv2d(x, w, stride=s), randn(2, channels, 11, 12), randn(outputs, channels, window, window)
        )
        assert not functions(program.executables[0])
