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
