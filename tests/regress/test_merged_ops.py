"""Graph passes whose changes met each other: each once ended as a compiler bug, or ended the process."""

from __future__ import annotations

import torch

import disc


class Crossing(torch.nn.Module):
    """Two streams that take turns: each pair of like dots is independent, but both pairs merged would need each other."""

    def __init__(self) -> None:
        super().__init__()
        self.a1, self.a2, self.b1, self.b2 = (torch.nn.Linear(16, width, bias=False) for width in (16, 16, 24, 24))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = self.b1(torch.tanh(self.a1(x)))
        second = self.a2(torch.tanh(self.b2(y))[:, :16])
        return first, second


def test_merged_dots_do_not_need_each_other() -> None:
    torch.manual_seed(0)
    model = Crossing().eval()
    rows = torch.export.Dim("rows")
    compiled = disc.compile(model, (torch.randn(3, 16), torch.randn(3, 16)), dynamic_shapes=({0: rows}, {0: rows}))
    for count in (1, 5, 33):
        x, y = torch.randn(count, 16), torch.randn(count, 16)
        torch.testing.assert_close(compiled(x, y), model(x, y))


class ScaledParts(torch.nn.Module):
    """Slices of a value that moves in front of other slices."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = self.linear(x).chunk(3, -1)
        q = q * 0.5
        return q[..., :2] + 1.0, q[..., 2:] * 3.0, k + 2.0, v


def test_slices_of_a_step_that_moves() -> None:
    torch.manual_seed(0)
    model = ScaledParts().eval()
    compiled = disc.compile(model, (torch.randn(3, 8),))
    for count in (1, 5, 33):
        x = torch.randn(count, 8)
        torch.testing.assert_close(compiled(x), model(x))
