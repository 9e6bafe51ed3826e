"""A depthwise convolution in one kernel with the product that makes its source: windows, bands, panels, what must stay apart."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compiled import ModuleProgram, module_program, randn
from torch import Tensor, nn

# One band and several, a panel and several, planes narrower than a block, more columns than fit a band of the least number of rows
PLANES = ((1, 1, 1), (2, 4, 3), (3, 7, 7), (1, 17, 23), (0, 9, 9), (1, 57, 112), (1, 300, 5), (2, 9, 400), (1, 2, 700))
FUSED = "a product of matrices and a depthwise convolution"


class Bottleneck(nn.Module):
    def __init__(self, wide: int, window: tuple[object, ...], act: nn.Module) -> None:
        super().__init__()
        self.first, self.expand = nn.Conv2d(9, 16, 1), nn.Conv2d(16, wide, 1)
        self.slide = nn.Conv2d(wide, wide, *window, groups=wide)  # pyright: ignore[reportArgumentType]
        self.project, self.last, self.act = nn.Conv2d(wide, 24, 1), nn.Conv2d(24, 16, 1), act

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.project(self.act(self.slide(self.act(self.expand(self.first(x))))))))


def program_of(model: nn.Module) -> ModuleProgram:
    torch.manual_seed(0)
    return module_program(model, randn(2, 9, 19, 20), dynamic=[(0, 2, 3)])


def fused(program: ModuleProgram) -> list[bool]:
    """For each ISA level: are the two one kernel?"""
    return [FUSED in str(executable.explain()) for executable in program.executables]


# channels; kernel, stride, padding, dilation
CASES = [(96, (3, 1, 1), nn.ReLU6()), (144, (3, 2, 1), nn.SiLU()), (72, (5, 2, 2), nn.Hardswish()), (100, (3, 1, 2, 2), nn.GELU()),
         (64, (3, (2, 1), (0, 1)), nn.ReLU()), (136, (7, 1, 3), nn.ReLU()), (24, ((1, 5), 1, (3, 2)), nn.ReLU())]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_windows(case: tuple[int, tuple[object, ...], nn.Module]) -> None:
    program = program_of(Bottleneck(*case))
    assert all(fused(program))
    for batch, height, width in PLANES:
        if height >= 3 or case[1][0] == (1, 5):
            program.check(randn(batch, 9, height, width))


class Read(Bottleneck):
    """The source of the window is read elsewhere, too."""

    def forward(self, x: Tensor) -> Tensor:
        wide = self.act(self.expand(self.first(x)))
        return self.last(F.relu(self.project(self.act(self.slide(wide)) * torch.sigmoid(wide))))


class Returned(Bottleneck):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        wide = self.act(self.expand(self.first(x)))
        return self.last(F.relu(self.project(self.slide(wide)))), wide


@pytest.mark.parametrize("kind", [Read, Returned])
def test_what_is_read_elsewhere_stays(kind: type[Bottleneck]) -> None:
    program = program_of(kind(96, (3, 1, 1), nn.ReLU()))
    assert not any(fused(program))
    program.check(randn(2, 9, 13, 17))


class Residual(Bottleneck):
    """What follows the product reads an element of its own for every row."""

    def __init__(self) -> None:
        super().__init__(96, (3, 1, 1), nn.ReLU())
        self.other = nn.Conv2d(9, 96, 1)

    def forward(self, x: Tensor) -> Tensor:
        other = self.other(F.relu(x))
        wide = self.act(self.expand(self.first(x)) + torch.tanh(other))
        return self.last(F.relu(self.project(self.slide(wide))))


def test_residuals() -> None:
    program = program_of(Residual())
    assert all(fused(program))
    for batch, height, width in PLANES[:6]:
        program.check(randn(batch, 9, height, width))


class Tokens(nn.Module):
    """A depthwise convolution between linear layers over positions, as in transformers of several stages."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.up = nn.Conv2d(9, 32, 2, 2), nn.Linear(32, 128)
        self.slide, self.down = nn.Conv2d(128, 128, 3, 1, 1, groups=128), nn.Linear(128, 32)

    def forward(self, x: Tensor) -> Tensor:
        planes = self.patches(x)
        height, width = planes.shape[2:]
        tokens = self.up(planes.flatten(2).transpose(1, 2))
        slid = self.slide(tokens.transpose(1, 2).reshape(x.shape[0], 128, height, width))
        return self.down(F.gelu(slid.flatten(2).transpose(1, 2)))


def test_tokens() -> None:
    torch.manual_seed(0)
    program = module_program(Tokens(), randn(2, 9, 20, 24), dynamic=[(0, 2, 3)])
    assert all(fused(program))
    for size in ((1, 9, 8, 8), (3, 9, 14, 10), (1, 9, 112, 96)):
        program.check(randn(*size))
