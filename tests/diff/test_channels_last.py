"""Chains of convolutions, which compute channels last: windows, sources, panels and chunks of taps, neighbors of every kind."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compiled import ModuleProgram, module_program, randn
from models import IMAGE_DIMS
from torch import nn

import disc

pytestmark = pytest.mark.sampled(2)

PLANES = ((1, 1, 1), (2, 2, 3), (3, 7, 7), (1, 16, 15), (2, 13, 17), (1, 33, 31), (1, 5, 67), (0, 9, 9), (2, 29, 57))


def program_of(model: nn.Module, channels: int, size: int = 19, dtype: torch.dtype = torch.float32) -> ModuleProgram:
    torch.manual_seed(0)
    return module_program(model.to(dtype), randn(2, channels, size, size + 1, dtype=dtype), dynamic=[(0, 2, 3)])


def check(program: ModuleProgram, channels: int, least: int = 1, dtype: torch.dtype = torch.float32) -> None:
    """Every plane of at least `least` rows and columns; eager refuses smaller ones."""
    for batch, height, width in PLANES:
        if min(height, width) >= least:
            program.check(randn(batch, channels, height, width, dtype=dtype))


def ends(*middle: nn.Module, source: int, first: int, last: int) -> nn.Sequential:
    """The layers between 1x1 convolutions, so that they form a chain."""
    return nn.Sequential(nn.Conv2d(source, first, 1), *middle, nn.Conv2d(last, 16, 1), nn.ReLU())


# kernel, stride, padding, dilation, output channels: tails of a panel, one panel, several
WINDOWS = [((3, 3), 1, 1, 1, 24), ((3, 3), 2, 1, 1, 64), ((1, 1), 2, 0, 1, 72), ((2, 2), 2, 0, 1, 130), ((5, 3), (1, 2), (2, 0), 1, 16),
           ((3, 1), 1, (1, 0), (2, 1), 96), ((7, 7), 3, 3, 1, 17), ((3, 3), 1, 2, 2, 65)]  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS)
def test_dense(window: tuple[tuple[int, int], int, int, int, int]) -> None:
    kernel, stride, padding, dilation, outputs = window
    middle = nn.Conv2d(20, outputs, kernel, stride, padding, dilation)
    program = program_of(ends(middle, nn.GELU(), source=9, first=20, last=outputs), 9)
    check(program, 9, 1 if padding in (1, 2, 3) else 7)


@pytest.mark.parametrize("window", [(7, 2, 3), (3, 1, 1), (4, 4, 0), (3, 2, (2, 0)), (1, 2, 1)])
def test_images(window: tuple[int, int, int]) -> None:
    """A source of few channels is read channels first."""
    kernel, stride, padding = window
    model = nn.Sequential(nn.Conv2d(3, 18, kernel, stride, padding), nn.ReLU(), nn.Conv2d(18, 16, 3, 1, 1), nn.ReLU())
    check(program_of(model, 3), 3, 4)


@pytest.mark.parametrize("window", [(7, 1, 3, 1), (3, 2, 1, 1), (5, 1, 4, 2), (2, 3, 0, 1), ((3, 1), 1, (1, 0), 1)])
@pytest.mark.parametrize("channels", [16, 21])
def test_windows(window: tuple[int, int, int, int], channels: int) -> None:
    """Depthwise convolutions and pools, whole vectors of channels and a tail, more rows and columns than a band and a strip."""
    kernel, stride, padding, dilation = window
    depthwise = nn.Conv2d(channels, channels, kernel, stride, padding, dilation, groups=channels)
    check(program_of(ends(depthwise, nn.ReLU(), source=9, first=channels, last=channels), 9), 9, 3)
    half = padding if kernel in (3, (3, 1)) else 0
    pools = nn.MaxPool2d(kernel, stride, half, dilation), nn.AvgPool2d(kernel, 1, half)
    check(program_of(ends(*pools, source=9, first=channels, last=channels), 9), 9, 15)


# channels, outputs, groups, kernel, stride, padding, dilation: outputs of a group are one vector of 8, several, several of 16, more than a
# tile, and the last panel has fewer columns
GROUPS = [(16, 16, 2, 3, 1, 1, 1), (104, 104, 13, 3, 2, 1, 1), (6, 72, 3, 3, 1, 2, 2), (32, 192, 4, 3, 1, 1, 1), (40, 160, 2, 5, 2, 2, 1),
          (12, 48, 6, 1, 1, 0, 1), (8, 64, 8, 3, 1, 1, 1), (72, 256, 2, (3, 1), 1, (1, 0), 1)]  # fmt: skip


@pytest.mark.parametrize("case", GROUPS)
def test_groups(case: tuple[int, int, int, int, int, int, int]) -> None:
    channels, outputs, groups, kernel, stride, padding, dilation = case
    middle = nn.Conv2d(channels, outputs, kernel, stride, padding, dilation, groups=groups)
    program = program_of(ends(nn.ReLU(), middle, nn.GELU(), source=9, first=channels, last=outputs), 9)
    check(program, 9)
    assert "channels last: A read through a table" in str(program.executables[0].explain())


@pytest.mark.parametrize("pads", [(0, 1, 0, 1), (2, 1, 0, 3), (0, 0, 1, 0)])
@pytest.mark.parametrize("kind", ["dense", "depthwise", "groups", "image"])
def test_pads_apart(pads: tuple[int, int, int, int], kind: str) -> None:
    """Zeros that a program puts around a source by itself are padding of the convolution."""
    groups = {"depthwise": 16, "groups": 2}.get(kind, 1)
    body = nn.Conv2d(3 if kind == "image" else 16, 24 if kind == "dense" else 16, 3, 2, (1, 0), groups=groups)
    first = () if kind == "image" else (nn.Conv2d(9, 16, 1), nn.SiLU())
    model = nn.Sequential(*first, nn.ZeroPad2d(pads), body, nn.ReLU(), nn.Conv2d(body.out_channels, 16, 1))
    channels = 3 if kind == "image" else 9
    program = program_of(model, channels)
    check(program, channels, 3)
    kernels = [kernel.ops for kernel in program.executables[0].explain().kernels]
    assert kind == "image" or not any("pad" in op for ops in kernels for op in ops)


def test_many_chunks() -> None:
    """A panel larger than the cache is gone through in chunks of taps, whose sums are added up."""
    model = nn.Sequential(nn.Conv2d(8, 520, 1), nn.Conv2d(520, 72, 3, 1, 1), nn.ReLU(), nn.Conv2d(72, 8, 3, 2, 1))
    program = program_of(model, 8, 9)
    for size in ((1, 8, 7, 7), (3, 8, 7, 7), (1, 8, 13, 11), (1, 8, 1, 1), (2, 8, 17, 19), (2, 8, 12, 10), (1, 8, 241, 1)):
        program.check(randn(*size), tolerance=1e-4)


@pytest.mark.parametrize("rank", [1, 3])
def test_other_ranks(rank: int) -> None:
    layer = nn.Conv1d if rank == 1 else nn.Conv3d
    pool = nn.MaxPool1d(3, 2, 1) if rank == 1 else nn.MaxPool3d(3, 2, 1)
    depthwise = layer(24, 24, 5, 1, 2, groups=24)
    model = nn.Sequential(layer(9, 24, 3, 1, 1), nn.ReLU(), layer(24, 24, 3, 2, 1), depthwise, pool, layer(24, 16, 1), nn.ReLU())
    torch.manual_seed(0)
    program = module_program(model, randn(2, 9, *[8] * rank), dynamic=[(0, *range(2, rank + 2))])
    for sizes in [(1, 1), (2, 17), (3, 67)] if rank == 1 else [(1, 1, 1, 1), (2, 5, 7, 9), (1, 8, 3, 16)]:
        program.check(randn(sizes[0], 9, *sizes[1:]), tolerance=1e-4)


def test_joined_axes() -> None:
    """Axes with a window of 1 are one, and the padding of the others stays theirs."""
    model = nn.Sequential(nn.Conv3d(9, 16, 1), nn.Conv3d(16, 24, (3, 1, 1), 1, (1, 0, 0)), nn.ReLU(), nn.Conv3d(24, 16, (3, 1, 1)))
    torch.manual_seed(0)
    program = module_program(model, randn(2, 9, 5, 4, 6), dynamic=[(0, 2, 3, 4)])
    for sizes in ((1, 9, 3, 1, 1), (2, 9, 4, 3, 5), (1, 9, 7, 8, 9)):
        program.check(randn(*sizes))


def test_double() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 20, 3, 2, 1), nn.Conv2d(20, 20, 3, 1, 1, groups=20), nn.Conv2d(20, 72, 3, 1, 1), nn.MaxPool2d(3, 1, 1)
    )
    check(program_of(model, 3, dtype=torch.float64), 3, dtype=torch.float64)


class Branches(nn.Module):
    """Residuals, a gate computed from the mean over the plane, a concatenation, results of several layouts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(8, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 1)
        self.down, self.up = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 1)
        self.last = nn.Conv2d(40, 24, 3, 1, 1)
        self.norm = nn.LayerNorm(24)
        self.transposed = nn.ConvTranspose2d(24, 8, 2, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = F.relu(self.first(x))
        b = self.third(F.relu(self.second(a))) + a
        gate = torch.sigmoid(self.up(F.relu(self.down(b.mean((2, 3), keepdim=True)))))
        c = self.last(torch.cat([b * gate, a, x], 1))
        tokens = self.norm(c.flatten(2).transpose(1, 2))
        return c, tokens, self.transposed(c), c.amax(1), a.permute(0, 2, 3, 1) * 2, torch.where(c > 0, c, c * 0.1)


def test_branches() -> None:
    check(program_of(Branches(), 8), 8)


def test_paths() -> None:
    """A chain takes the channels-last kernels; a layer between two transposes of its own would not pay and keeps its layout."""
    chain = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Conv2d(16, 32, 1), nn.Conv2d(32, 16, 3, 1, 1)
    )
    text = str(disc.compile(chain.eval(), (torch.randn(2, 3, 64, 65),), IMAGE_DIMS).explain())
    assert "window, channels last: " in text and text.count("through a table of addresses") == 2 and "dot_general" in text, text
    text = str(disc.compile(nn.Conv2d(16, 16, 3, 1, 1).eval(), (torch.randn(2, 16, 64, 65),), IMAGE_DIMS).explain())
    assert "B patches packed per panel" in text and "channels last" not in text, text


class Bottleneck(nn.Module):
    """A dot whose weight stays in L2, with a residual add: its result is gone through once where it is larger than L2."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, outputs, 1), nn.Conv2d(8, 24, 3, 1, 1)
        self.third, self.fourth = nn.Conv2d(24, outputs, 1), nn.Conv2d(outputs, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fourth(F.relu(self.third(F.relu(self.second(x))) + self.first(x)))


@pytest.mark.parametrize("outputs", [256, 250])
def test_results_beyond_the_cache(outputs: int) -> None:
    """Both sides of the threshold, 1024 rows of 256 columns, and rows of a task and a tile with remainders."""
    model = Bottleneck(outputs)
    program = program_of(model, 8)
    assert "panels first" in str(program.executables[0].explain())
    for size in ((1, 8, 32, 32), (1, 8, 25, 41), (3, 8, 37, 29), (1, 8, 61, 1), (2, 8, 53, 47), (0, 8, 3, 3)):
        program.check(randn(*size))


@pytest.mark.parametrize("layer", [(270, 400, 3, 1, 1), (300, 330, (3, 5), (1, 2), (0, 2)), (1280, 1290, 1, 1, 0)])
def test_alone(layer: tuple[int, int, int, int, int]) -> None:
    """With many channels a single convolution turns, too: its source and its result are transposed by kernels of their own."""
    program = program_of(nn.Sequential(nn.Conv2d(*layer), nn.ReLU()), layer[0])
    assert "transpose" in str(program.executables[0].explain())
    for size in ((1, 7, 7), (2, 3, 5), (3, 13, 17), (1, 3, 1), (0, 9, 9)):
        program.check(randn(size[0], layer[0], *size[1:]), tolerance=1e-4)


@pytest.mark.parametrize("padding", [(2, 2), (9, 0), (0, 7)])
def test_taps_that_only_zeros_meet(padding: tuple[int, int]) -> None:
    """They are left out of the table: of some tiles, and of all of a tile beyond the padding, whose sums are zero."""
    program = program_of(ends(nn.Conv2d(12, 20, 3, 1, padding), nn.GELU(), source=9, first=12, last=20), 9)
    for size in ((1, 9, 7, 7), (3, 9, 4, 5), (2, 9, 3, 13), (1, 9, 3, 3)):
        program.check(randn(*size))


def test_a_source_that_only_a_transpose_makes_channels_last() -> None:
    """The first layer of a chain, behind an element-wise op and without one: a kernel transposes the source, so that the table of addresses
    serves it."""
    for first in (nn.Identity(), nn.Tanh()):
        layers = nn.Conv2d(9, 24, 3, 1, 1), nn.ReLU(), nn.Conv2d(24, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1)
        program = program_of(nn.Sequential(first, *layers), 9)
        assert str(program.executables[0].explain()).count("table of addresses") == 3
        check(program, 9)


# channels of the source, of the result, window, sizes of the source
PATCHES = [(3, 24, (4, 4), (8, 20)), (5, 8, (2, 3), (2, 9)), (3, 40, (16, 16), (32, 16)), (4, 9, (1, 2), (7, 6)), (3, 24, (4, 4), (9, 20)),
           (2, 16, (2,), (10,)), (3, 8, (2, 1, 3), (4, 5, 6))]  # fmt: skip


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("patches", PATCHES)
def test_patches(patches: tuple[int, int, tuple[int, ...], tuple[int, ...]], behind: bool) -> None:
    """Windows that tile the source, as it is or behind a convolution whose result is channels last; one tiling leaves a row out."""
    inputs, outputs, window, sizes = patches
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(window) - 1]
    before = layer(inputs, 16, 1) if behind else nn.Identity()
    model = nn.Sequential(before, layer(16 if behind else inputs, outputs, window, window), nn.ReLU())  # pyright: ignore[reportArgumentType]
    torch.manual_seed(0)
    program = module_program(model, randn(2, inputs, *sizes), dynamic=[(0,)])
    names = " ".join(str(kernel["name"]) for kernel in program.executables[0].manifest["kernels"])
    assert ("convolution" in names) == (sizes[0] == 9)
    for batch in (0, 1, 2, 7):
        program.check(randn(batch, inputs, *sizes))
