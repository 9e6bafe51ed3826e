"""3x3 convolutions that are computed by Winograd's method: tile edges, paddings, tails of panels, few outputs, values that are not finite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import ModuleProgram, module_program, plans_of, randn, text_program
from torch import nn

import disc
from disc.codegen.x86.plans import WinogradPlan

pytestmark = pytest.mark.sampled(2)

# Around a tile of 2 and of 4, one tile and several, more tiles than a task takes, few outputs in many images.
PLANES = (
    (1, 1, 1),
    (3, 2, 2),
    (1, 3, 5),
    (2, 4, 4),
    (1, 5, 4),
    (3, 7, 7),
    (1, 8, 9),
    (1, 13, 1),
    (2, 3, 17),
    (1, 33, 31),
    (0, 9, 9),
    (9, 1, 1),
    (8, 3, 3),
)


class Last(nn.Module):
    """A convolution of a channels-last source; `residual` adds the source to its result."""

    def __init__(self, channels: int, outputs: int, padding: int | tuple[int, int] = 1, residual: bool = False) -> None:
        super().__init__()
        self.convolution, self.residual = nn.Conv2d(channels, outputs, 3, 1, padding), residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.convolution(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return F.relu(result + x) if self.residual else result


def program_of(model: nn.Module, channels: int) -> ModuleProgram:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=(9 * channels) ** -0.5)
    return module_program(model, randn(2, 19, 20, channels), dynamic=[(0, 1, 2)])


def check(program: ModuleProgram, channels: int, least: int = 1) -> None:
    for batch, height, width in PLANES:
        if min(height, width) >= least:
            program.check(randn(batch, height, width, channels))


# channels and outputs: tiles of 4x4, some of them with a last panel of few columns, then of 2x2
SIZES = [(16, 16, 4), (64, 64, 4), (48, 130, 4), (128, 17, 4), (160, 192, 2), (256, 130, 2)]


@pytest.mark.parametrize("size", SIZES)
def test_sizes(size: tuple[int, int, int]) -> None:
    channels, outputs, tile = size
    program = program_of(Last(channels, outputs), channels)
    assert tile in tiles_of(Last(channels, outputs), channels)
    check(program, channels)


@pytest.mark.parametrize("padding", [0, 2, (0, 1), (2, 0)])
@pytest.mark.parametrize("channels", [32, 192])
def test_paddings(padding: int | tuple[int, int], channels: int) -> None:
    check(program_of(Last(channels, channels, padding), channels), channels, 3)


@pytest.mark.parametrize("pads", [((0, 2), (2, 1)), ((3, 0), (-1, 1))])
def test_unequal_paddings(pads: tuple[tuple[int, int], tuple[int, int]]) -> None:
    weights = np.random.default_rng(0).standard_normal((3, 3, 32, 24), dtype=np.float32)
    sizes = f"padding = dense<{[list(each) for each in pads]}> : tensor<2x2xi64>"
    program = text_program(f"""
func.func @main(%x: tensor<?x?x?x32xf32>) -> tensor<?x?x?x24xf32> {{
  %t = stablehlo.transpose %x, dims = [0, 3, 1, 2] : (tensor<?x?x?x32xf32>) -> tensor<?x32x?x?xf32>
  %w = stablehlo.constant dense<"0x{weights.transpose(3, 2, 0, 1).tobytes().hex()}"> : tensor<24x32x3x3xf32>
  %c = "stablehlo.convolution"(%t, %w) {{batch_group_count = 1 : i64, feature_group_count = 1 : i64, {sizes},
    dimension_numbers = #stablehlo.conv<[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]>}}
    : (tensor<?x32x?x?xf32>, tensor<24x32x3x3xf32>) -> tensor<?x24x?x?xf32>
  %r = stablehlo.transpose %c, dims = [0, 2, 3, 1] : (tensor<?x24x?x?xf32>) -> tensor<?x?x?x24xf32>
  return %r : tensor<?x?x?x24xf32>
}}
""")
    for size in ((1, 3, 3), (2, 7, 9), (1, 16, 13)):
        program.check([randn(*size, 32).numpy()], absolute=1e-3)


@pytest.mark.parametrize("channels", [48, 192])
def test_residual(channels: int) -> None:
    check(program_of(Last(channels, channels, residual=True), channels), channels)


@pytest.mark.parametrize("size", [(64, 130), (192, 96)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_not_finite(size: tuple[int, int], value: float) -> None:
    """What is not finite stays where it is in eager, and what would overflow in a transform does not."""
    channels, outputs = size
    program = program_of(Last(channels, outputs), channels)
    x = randn(2, 19, 21, channels)
    x[0, 0, 0, 3] = x[1, 7, 20, 5] = x[1, 10, 11, 7] = x[1, 11, 12, 7] = value
    program.check(x)


def test_weights_that_are_not_finite() -> None:
    model = Last(32, 80)
    program_of(model, 32)
    with torch.no_grad():
        model.convolution.weight[3, 4, 1, 1], model.convolution.weight[70, 0, 1, 1] = float("inf"), 3e38
    program = module_program(model, randn(2, 19, 20, 32), dynamic=[(0, 1, 2)])
    program.check(randn(2, 9, 11, 32).abs() + 1e-3)


def executable_of(model: nn.Module, channels: int, threads: int = 1) -> disc.Executable:
    dims = dict.fromkeys((0, 1, 2), torch.export.Dim.AUTO)
    return disc.compile(model.eval(), (randn(2, 19, 20, channels),), (dims,), options=disc.Options(threads=threads))


def tiles_of(model: nn.Module, channels: int) -> list[int]:
    """Of its Winograd kernels."""
    return [plan.tile for plan in plans_of(executable_of(model, channels)) if isinstance(plan, WinogradPlan)]


@pytest.mark.parametrize("size", [(64, 64), (128, 200), (256, 256)])
def test_threads(size: tuple[int, int]) -> None:
    """Any share of the tasks gives the same bits."""
    torch.manual_seed(0)
    model = Last(*size)
    one, two = (executable_of(model, size[0], threads) for threads in (1, 2))
    for plane in ((1, 7, 7), (1, 14, 14), (3, 29, 27)):
        x = randn(*plane, size[0])
        assert torch.equal(one(x), two(x))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("size", [(128, 128), (256, 256)])
def test_accuracy(size: tuple[int, int]) -> None:
    """Errors stay below 2e-5 of the largest value, against sums in f64."""
    torch.manual_seed(0)
    model = Last(*size)
    x = randn(1, 28, 28, size[0])
    ours = executable_of(model, size[0])(x)
    with torch.no_grad():
        exact = model.double()(x.double())
    assert isinstance(ours, torch.Tensor)
    assert float((ours - exact).abs().max() / exact.abs().max()) < 2e-5


OTHERS: Sequence[tuple[int, int, int, int, int]] = (
    (8, 64, 1, 1, 1), (24, 64, 1, 1, 1), (512, 512, 1, 1, 1), (64, 64, 2, 1, 1), (64, 64, 1, 2, 1), (64, 64, 1, 1, 4),
)  # fmt: skip


def test_what_is_left_to_other_kernels() -> None:
    """Few channels, many (their transformed weights are large), channels that are no whole vectors; strides, dilations, groups."""
    for channels, outputs, stride, dilation, groups in OTHERS:
        model = Last(channels, outputs)
        model.convolution = nn.Conv2d(channels, outputs, 3, stride, 1, dilation, groups)
        assert not tiles_of(model, channels), (channels, outputs, stride, dilation, groups)
