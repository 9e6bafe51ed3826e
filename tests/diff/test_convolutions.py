"""Convolutions and pools of one to three dims: strides, paddings, dilations, groups, transposed, and their epilogues."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compiled import ModuleProgram, module_program, randn
from torch import nn

TOLERANCE = 5e-5


class Branches(nn.Module):
    """Independent layers on one input."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x) for layer in self.layers]


def check_images(program: ModuleProgram, channels: int, sizes: list[tuple[int, ...]]) -> None:
    for batch, *space in sizes:
        program.check(randn(batch, channels, *space), tolerance=TOLERANCE)


def test_one_dim() -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = [
        nn.Conv1d(6, 5, 1), nn.Conv1d(6, 17, 3, padding=1), nn.Conv1d(6, 4, 4, stride=2, padding=2), nn.Conv1d(6, 6, 3, dilation=2, bias=False), nn.Conv1d(6, 12, 3, groups=3, padding=1),
        nn.Conv1d(6, 6, 5, groups=6, padding=2), nn.ConvTranspose1d(6, 4, 3, stride=2, padding=1, output_padding=1), nn.ConvTranspose1d(6, 4, 2, stride=3, output_padding=2),
        nn.Conv1d(6, 8, 3, padding="same", padding_mode="reflect"),
    ]  # fmt: skip
    program = module_program(Branches(layers), randn(2, 6, 9), dynamic=[(0, 2)])
    check_images(program, 6, [(1, 7), (2, 8), (3, 16), (1, 17), (2, 33), (1, 130)])


IMAGES = [(1, 7, 7), (2, 8, 9), (1, 16, 17), (3, 7, 33), (1, 65, 8)]


def test_two_dims() -> None:
    torch.manual_seed(1)
    layers: list[nn.Module] = [
        nn.Conv2d(6, 5, 1), nn.Conv2d(6, 17, 3, padding=1), nn.Conv2d(6, 4, (3, 5), stride=(2, 1), padding=(1, 2)), nn.Conv2d(6, 6, 3, dilation=2), nn.Conv2d(6, 65, 3, stride=2, bias=False),
        nn.Conv2d(6, 12, 3, groups=2, padding=1), nn.Conv2d(6, 6, 3, groups=6, padding=1), nn.Conv2d(6, 12, 7, groups=6, padding=3, stride=2), nn.Conv2d(6, 1, 3, padding=2),
        nn.ConvTranspose2d(6, 4, 3, stride=2), nn.ConvTranspose2d(6, 6, 2, stride=2, groups=3), nn.ConvTranspose2d(6, 3, 3, padding=1, dilation=2),
        nn.ConvTranspose2d(6, 4, (4, 2), (3, 2), (2, 0), (2, 1), groups=2), nn.ConvTranspose2d(6, 6, 4, 2, 1, groups=6), nn.ConvTranspose2d(6, 4, (5, 1), (2, 1)),
    ]  # fmt: skip
    program = module_program(Branches(layers), randn(2, 6, 11, 12), dynamic=[(0, 2, 3)])
    check_images(program, 6, IMAGES)


def test_three_dims() -> None:
    torch.manual_seed(2)
    layers: list[nn.Module] = [
        nn.Conv3d(3, 5, 3, padding=1),
        nn.Conv3d(3, 4, (1, 2, 3), stride=(1, 2, 1)),
        nn.MaxPool3d(2),
        nn.ConvTranspose3d(3, 4, 2, 2),
    ]
    program = module_program(Branches(layers), randn(2, 3, 4, 6, 5), dynamic=[(0, 2, 3, 4)])
    check_images(program, 3, [(1, 3, 4, 5), (2, 5, 7, 8), (1, 2, 9, 17)])


def test_one_channel_and_given_kernels() -> None:
    """A single input channel; kernels that are inputs."""

    def forward(x: torch.Tensor, kernel: torch.Tensor, row: torch.Tensor) -> list[torch.Tensor]:
        return [
            F.conv2d(x, kernel),
            F.conv2d(x, kernel, padding=1, stride=2),
            F.conv2d(x.tanh(), kernel * 2),
            F.conv1d(x[:, :, 0], row, padding=1),
        ]

    program = module_program(forward, randn(2, 1, 8, 9), randn(4, 1, 3, 3), randn(5, 1, 3), dynamic=[(0, 2, 3), (0,), (0,)])
    for batch, height, width in IMAGES:
        for features in (1, 7, 17):
            program.check(randn(batch, 1, height, width), randn(features, 1, 3, 3), randn(features, 1, 3), tolerance=TOLERANCE)


class Block(nn.Module):
    """Convolution, batch norm, activation, residual; what networks are made of."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.first, self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.Conv2d(channels, channels, 1)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.normal_(self.norm.weight)
        self.norm.running_mean.normal_()  # pyright: ignore[reportOptionalMemberAccess]
        self.head = nn.Linear(channels, 3)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        y = F.relu(self.norm(self.first(x)) + x)
        z = F.gelu(self.second(y)) * torch.sigmoid(x)
        pooled = F.adaptive_avg_pool2d(z, 1).flatten(1)
        return [
            y,
            z,
            self.head(pooled),
            y.permute(0, 2, 3, 1).contiguous(),
            self.second(x).flatten(2).transpose(1, 2),
            torch.cat([y, z], 1),
            F.relu6(self.first(x)),
            F.pad(y, (1, 1)),
        ]


@pytest.mark.parametrize("channels", [1, 8, 17])
def test_blocks(channels: int) -> None:
    program = module_program(Block(channels), randn(2, channels, 8, 9), dynamic=[(0, 2, 3)])
    for batch, height, width in [*IMAGES[:4], (1, 2, 2), (2, 3, 1)]:
        program.check(randn(batch, channels, height, width), tolerance=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_types(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    layers: list[nn.Module] = [
        nn.Conv2d(4, 7, 3, padding=1),
        nn.Conv2d(4, 4, 3, groups=4),
        nn.MaxPool2d(2),
        nn.AvgPool2d(3, padding=1, stride=1),
    ]
    program = module_program(Branches(layers).to(dtype), randn(2, 4, 8, 9, dtype=dtype), dynamic=[(0, 2, 3)])
    for batch, height, width in IMAGES[:3]:
        program.check(randn(batch, 4, height, width, dtype=dtype), tolerance=0.04 if dtype == torch.bfloat16 else 1e-10)


def pools(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        F.max_pool2d(x, 2), F.max_pool2d(x, 3, stride=2, padding=1), F.max_pool2d(x, (2, 3), stride=1), F.max_pool2d(x, 2, dilation=2), F.max_pool2d(x, 3, stride=2, ceil_mode=True),
        F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, stride=2, padding=1), F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False), F.adaptive_avg_pool2d(x, 1), F.adaptive_max_pool2d(x, 1),
        F.avg_pool1d(x[:, :, 0], 2), F.max_pool2d(F.relu(x), 2) * 2, F.avg_pool2d(x.exp(), 2).sum(1), F.max_pool2d(x.flip(-1), 2, stride=1),
        F.interpolate(x, scale_factor=2, mode="nearest"),
    ]  # fmt: skip


def test_pools() -> None:
    program = module_program(pools, randn(2, 3, 8, 9), dynamic=[(0, 2, 3)])
    check_images(program, 3, IMAGES)
