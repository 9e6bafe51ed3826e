"""Every path of convolutions and pools against eager: strides, paddings, dilations, groups, ranks, layouts, epilogues, odd sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from compiled import ModuleProgram, module_program, randn, text_program
from models import IMAGE_DIMS, ImageModel, image_inputs
from torch import nn

import disc

pytestmark = pytest.mark.sampled(3)

PLANES = ((1, 1), (2, 3), (7, 7), (16, 15), (13, 17), (32, 33), (5, 67), (40, 9), (1, 65), (17, 5), (33, 7))
BATCHES = (1, 2, 3)


def check_planes(program: ModuleProgram, channels: int, least: int = 1, dtype: torch.dtype = torch.float32) -> None:
    """Every plane with at least `least` rows and columns; eager refuses smaller ones."""
    for number, (height, width) in enumerate(PLANES):
        if min(height, width) >= least:
            program.check(randn(BATCHES[number % 3], channels, height, width, dtype=dtype))


def image_program(model: nn.Module, channels: int, size: int = 19, dtype: torch.dtype = torch.float32) -> ModuleProgram:
    torch.manual_seed(0)
    return module_program(model.to(dtype), randn(2, channels, size, size + 1, dtype=dtype), dynamic=[(0, 2, 3)])


# (kernel, stride, padding, dilation): the least plane that eager takes follows from them.
WINDOWS = [(1, 1, 0, 1), (1, 2, 0, 1), (3, 1, 1, 1), (3, 1, 0, 1), (3, 2, 1, 1), (3, 1, 2, 2), (3, 2, 3, 3), (5, 3, 2, 1), (2, 2, 0, 1),
           (4, 4, 0, 1), (7, 2, 3, 1), (3, 1, 5, 1), (2, 3, 1, 2)]  # fmt: skip


def least_plane(kernel: int, padding: int, dilation: int) -> int:
    return max(1, (kernel - 1) * dilation + 1 - 2 * padding)


@pytest.mark.parametrize("window", WINDOWS)
def test_dense(window: tuple[int, int, int, int]) -> None:
    kernel, stride, padding, dilation = window
    model = nn.Sequential(nn.Conv2d(5, 13, kernel, stride, padding, dilation), nn.ReLU())
    check_planes(image_program(model, 5), 5, least_plane(kernel, padding, dilation))


@pytest.mark.parametrize("window", WINDOWS)
def test_depthwise(window: tuple[int, int, int, int]) -> None:
    kernel, stride, padding, dilation = window
    model = nn.Sequential(nn.Conv2d(6, 6, kernel, stride, padding, dilation, groups=6), nn.GELU())
    check_planes(image_program(model, 6), 6, least_plane(kernel, padding, dilation))


@pytest.mark.parametrize("window", [each for each in WINDOWS if each[2] * 2 <= each[0]])
def test_pools(window: tuple[int, int, int, int]) -> None:
    kernel, stride, padding, dilation = window
    modules: list[nn.Module] = [nn.MaxPool2d(kernel, stride, padding, dilation), nn.MaxPool2d((kernel, 1), (stride, 1), (padding, 0))]
    if dilation == 1:
        modules += [nn.AvgPool2d(kernel, stride, padding), nn.AvgPool2d(kernel, stride, padding, count_include_pad=False)]
    for module in modules:
        check_planes(image_program(module, 3), 3, least_plane(kernel, padding, dilation))


POOL_SIZES = (3, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 67, 131)


@pytest.mark.parametrize("pool", [
    lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: F.max_pool2d(x, (5, 3), (1, 3), (2, 1)), lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    lambda x: F.avg_pool2d(x, 2, 2, 1), lambda x: F.avg_pool2d(x, 3, 1, 1), lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    lambda x: F.avg_pool2d(x, (3, 5), 4, (1, 2), divisor_override=7), lambda x: F.max_pool2d(torch.exp(x), 3, 1, 1) * 2,
    lambda x: F.avg_pool2d(F.relu(x + x[:, :, :1]), 3, 2, 1), lambda x: F.max_pool2d(x, 3, 2, 1, 2),
])  # fmt: skip
def test_pool_sizes(pool: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Every number of rows and columns about a block, a band and a vector; NaN and infinities as in eager; no image at all."""
    program = module_program(pool, randn(2, 2, 9, 10), dynamic=[(0, 2, 3)])
    values = torch.tensor([math.nan, -math.nan, math.inf, -math.inf, -0.0])
    for number, size in enumerate(POOL_SIZES):
        for height, width in ((size, POOL_SIZES[-number]), (POOL_SIZES[number - 3], size)):
            program.check(randn(1, 2, height, width))
            x = randn(2, 2, height, width)
            places = torch.randperm(x.numel())[: x.numel() // 9]
            x.view(-1)[places] = values[places % len(values)]
            program.check(x)
    program.check(randn(0, 2, 5, 7))


WINDOW_TEXT = """
func.func @main(%x: tensor<?x2x?x?xELEMENT>) -> tensor<?x?x?x?xELEMENT> {
  %low = stablehlo.constant dense<3> : tensor<ELEMENT>
  %r = "stablehlo.reduce_window"(%x, %low) ({
  ^bb0(%a: tensor<ELEMENT>, %b: tensor<ELEMENT>):
    %m = stablehlo.KIND %a, %b : tensor<ELEMENT>
    stablehlo.return %m : tensor<ELEMENT>
  }) {window_dimensions = array<i64: 1, 1, 3, 3>, window_strides = array<i64: 1, 1, STRIDE, STRIDE>,
      padding = dense<[[0, 0], [0, 0], [ROWS, 2], [COLUMNS, 5]]> : tensor<4x2xi64>}
      : (tensor<?x2x?x?xELEMENT>, tensor<ELEMENT>) -> tensor<?x?x?x?xELEMENT>
  return %r : tensor<?x?x?x?xELEMENT>
}"""


@pytest.mark.parametrize(("element", "dtype"), [("f32", np.float32), ("f64", np.float64), ("i32", np.int32), ("i64", np.int64)])
@pytest.mark.parametrize("kind", ["add", "maximum", "minimum"])
@pytest.mark.parametrize("edges", [(-1, -2), (4, 6), (-3, 1)])
def test_windows_over_any_padding(element: str, dtype: type, kind: str, edges: tuple[int, int]) -> None:
    """Windows within the padding, source rows and columns that none sees, an initial value that changes the result."""
    text = WINDOW_TEXT.replace("ELEMENT", element).replace("KIND", kind).replace("STRIDE", str(abs(edges[0]) if edges[0] != 4 else 2))
    if dtype in (np.float32, np.float64):
        text = text.replace("dense<3>", "dense<3.0>")
    program = text_program(text.replace("ROWS", str(edges[0])).replace("COLUMNS", str(edges[1])))
    for height, width in ((9, 9), (4, 16), (17, 15), (33, 18), (5, 65)):
        values = np.random.default_rng(height).integers(-9, 9, (2, 2, height, width)).astype(dtype)
        program.check([values], ulps=8, absolute=1e-6)


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_groups(groups: int) -> None:
    """From one group to one channel per group, several outputs per channel included."""
    model = nn.Conv2d(8, 16, 3, 1, 1, groups=groups)
    check_planes(image_program(model, 8), 8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 6])
def test_other_types(dtype: torch.dtype, groups: int) -> None:
    for stride in (1, 2, 3):
        model = nn.Sequential(nn.Conv2d(6, 6, 3, stride, 1, groups=groups), nn.ReLU(), nn.MaxPool2d(3, stride, 1))
        check_planes(image_program(model, 6, dtype=dtype), 6, dtype=dtype)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 4])
def test_one_dimension(stride: int, groups: int) -> None:
    model = nn.Sequential(nn.Conv1d(4, 8, 5, stride, 2, 2, groups=groups), nn.ReLU(), nn.AvgPool1d(2, 1))
    torch.manual_seed(0)
    program = module_program(model, randn(2, 4, 61), dynamic=[(0, 2)])
    for batch, length in itertools.product(BATCHES, (17, 32, 33, 67, 129)):
        program.check(randn(batch, 4, length))


@pytest.mark.parametrize("groups", [1, 3])
def test_three_dimensions(groups: int) -> None:
    model = nn.Sequential(nn.Conv3d(3, 6, (3, 1, 3), (1, 2, 1), (1, 0, 1), groups=groups), nn.ReLU(), nn.MaxPool3d(2, 1))
    torch.manual_seed(0)
    program = module_program(model, randn(2, 3, 6, 7, 9), dynamic=[(0, 2, 3, 4)])
    for sizes in ((1, 3, 2, 3, 2), (2, 3, 5, 7, 16), (1, 3, 4, 9, 17), (3, 3, 3, 4, 35)):
        program.check(randn(*sizes))


def test_unequal_sides() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, (5, 1), (1, 2), (2, 0)), nn.Conv2d(6, 6, (1, 7), (2, 1), (0, 3), (1, 2), groups=6))
    check_planes(image_program(model, 3), 3, 16)


def test_channels_last_source() -> None:
    """A normalized image whose channels lie innermost in memory, as ConvNeXt makes it."""

    class Block(nn.Module):
        def __init__(self, groups: int, kernel: int, stride: int, padding: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(20)
            self.convolution = nn.Conv2d(20, 20, kernel, stride, padding, groups=groups)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.convolution(self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)).relu()

    for groups, kernel, stride, padding in ((1, 3, 1, 1), (1, 2, 2, 0), (20, 7, 1, 3), (20, 3, 2, 1), (4, 3, 1, 1)):
        check_planes(image_program(Block(groups, kernel, stride, padding), 20), 20, kernel)


def test_transposed() -> None:
    """By strides it is a convolution; with a dilation, too, a source with holes, which takes the general path."""
    for groups, dilation in ((1, 1), (4, 1), (1, 2), (4, 2)):
        model = nn.ConvTranspose2d(4, 8, 3, 2, 1, 1, groups=groups, dilation=dilation)
        check_planes(image_program(model, 4), 4, 2)


def test_empty() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.MaxPool2d(3, 1, 1), nn.Conv2d(4, 4, 3, 1, 1, groups=4))
    program = image_program(model, 3)
    program.check(randn(0, 3, 5, 6))
    program.check(randn(1, 3, 1, 1))


class Residual(nn.Module):
    """Batch norms with real statistics before and after a residual add."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 3, 1, 1, groups=groups, bias=groups > 1), nn.BatchNorm2d(channels))
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels))
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean)  # pyright: ignore[reportArgumentType]
                nn.init.uniform_(module.running_var, 0.5, 2.0)  # pyright: ignore[reportArgumentType]
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + x)


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_residual_block(groups: int) -> None:
    torch.manual_seed(1)
    check_planes(image_program(Residual(8, groups), 8), 8)


def test_large_images() -> None:
    """More rows than one band, more columns than one panel, a sum over more than one panel of rows."""
    model = nn.Sequential(
        nn.Conv2d(3, 70, 3, 1, 1), nn.Conv2d(70, 70, 5, 1, 2, groups=70), nn.MaxPool2d(3, 2, 1), nn.Conv2d(70, 130, 3, 2, 1)
    )
    program = image_program(model, 3)
    for size in ((1, 3, 97, 131), (2, 3, 70, 64)):
        program.check(randn(*size), tolerance=1e-4)


def test_paths_are_reported() -> None:
    """explain says which path each convolution took; four channels are too few for the channels-last kernels."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 4, 3, 2, 1, groups=4), nn.Conv2d(4, 4, 3, 4), nn.ConvTranspose2d(4, 8, 3, 2, dilation=2)
    )
    compiled = disc.compile(model.eval(), (torch.randn(2, 3, 64, 65),), IMAGE_DIMS)
    notes = [" ".join(kernel.notes) for kernel in compiled.explain().kernels]
    assert len(notes) == 4, notes
    for note, path in zip(notes, ("B patches packed", "depthwise window", "B patches packed", "B packed per panel"), strict=True):
        assert path in note and "channels last" not in note, notes


@pytest.mark.long
def test_resnet_50() -> None:
    torch.manual_seed(0)
    model = ImageModel(transformers.ResNetModel(transformers.ResNetConfig()))
    program = module_program(model, *image_inputs(2, 96, 65), dynamic=[(0, 2, 3)])
    for size in ((1, 224, 224), (2, 161, 193), (3, 64, 33)):
        program.check(*image_inputs(*size), tolerance=1e-3)
