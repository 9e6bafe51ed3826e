"""Writes to every n-th place (`y[..., 1::3] = z`), as interleaved rotary embeddings do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import disc


class Write(torch.nn.Module):
    def __init__(self, place: Callable[[torch.Tensor], tuple[slice, ...]]) -> None:
        super().__init__()
        self.place = place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x * 2
        place = self.place(x)
        result[place] = torch.sin(x[place]) + 5
        return result


PLACES: dict[str, Callable[[torch.Tensor], tuple[slice, ...]]] = {
    "static dim": lambda x: (slice(None), slice(None), slice(1, 11, 3)),
    "static dim to its end": lambda x: (slice(None), slice(None), slice(2, None, 5)),
    "nothing": lambda x: (slice(None), slice(None), slice(4, 4, 2)),
    "dynamic dim": lambda x: (slice(None), slice(1, None, 2)),
    "to the middle": lambda x: (slice(None), slice(0, x.shape[1] // 2, 3)),
    "two dims": lambda x: (slice(None, None, 2), slice(1, None, 3)),
}


@pytest.mark.parametrize("place", PLACES)
def test_writes_to_every_nth_place(place: str) -> None:
    model = Write(PLACES[place]).eval()
    dynamic = {"x": {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}}
    compiled = disc.compile(model, (torch.randn(4, 16, 12),), dynamic_shapes=dynamic, options=disc.Options(cache=False))
    for batch, length in [(4, 16), (3, 17), (5, 18), (6, 31)]:
        x = torch.randn(batch, length, 12)
        torch.testing.assert_close(compiled(x), model(x))


class WithoutGradients(torch.nn.Module):
    """As rotary embeddings are written: a part under `no_grad` that writes in place, with a constant and a part of its own inside."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Buffer(torch.arange(9.0))
        self.scale = torch.nn.Parameter(torch.full((9,), 2.0))

    @torch.no_grad()
    def part(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2 + self.table
        with torch.enable_grad():
            y = y * self.scale + torch.tensor([3.0])
        y[:, 1::3] = torch.sin(x[:, 1::3])
        return y, y.sum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.part(x)
        return first + x + second


def test_lines_under_no_grad_are_the_users() -> None:
    model = WithoutGradients().eval()
    compiled = disc.compile(model, (torch.randn(4, 9),), options=disc.Options(cache=False))
    x = torch.randn(5, 9)
    torch.testing.assert_close(compiled(x), model(x))
    lines = str(compiled.explain(x))
    assert "test_slice_scatter.py:" in lines
    assert "eval_with_key" not in lines
