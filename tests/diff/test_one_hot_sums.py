"""Sums over classes of which one at most counts, against eager: labels that are no class, values that are no numbers, types of labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import disc

ROWS = (0, 1, 2, 7, 33)


class Chosen(nn.Module):
    """The value of a row where its label is one of `count` classes and `valid`, else 0; and how many classes it is."""

    def __init__(self, count: int, label_first: bool) -> None:
        super().__init__()
        self.count, self.label_first = count, label_first

    def forward(self, labels: Tensor, values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        classes, each = torch.arange(self.count, dtype=labels.dtype), labels.unsqueeze(1)
        hot = each == classes if self.label_first else classes == each
        found = torch.where(hot & valid.unsqueeze(1), values.unsqueeze(1), 0)
        return found.sum(1), hot.sum(1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
@pytest.mark.parametrize("count", [1, 2, 7, 200])
def test_labels_within_and_without(dtype: torch.dtype, count: int) -> None:
    if count - 1 > torch.iinfo(dtype).max:
        pytest.skip("arange wraps around")
    model = Chosen(count, label_first=count % 2 == 0)
    rows = torch.export.Dim("rows")
    compiled: Any = disc.compile(model, inputs(5, count, dtype), dynamic_shapes=({0: rows}, {0: rows}, {0: rows}))
    for size in ROWS:
        given = inputs(size, count, dtype)
        for one, other in zip(compiled(*given), model(*given), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
            assert torch.equal(torch.signbit(one) & ~one.isnan(), torch.signbit(other) & ~other.isnan())


def inputs(rows: int, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Labels below, in and above the range of the classes, as far as the type has them; some values are infinite, NaN or -0."""
    generator = torch.Generator().manual_seed(rows)
    limits = torch.iinfo(dtype)
    labels = torch.randint(max(-3, limits.min), min(count + 3, limits.max), (rows,), generator=generator).to(dtype)
    values = torch.randn(rows, generator=generator)
    values[1::6], values[2::6], values[3::6] = torch.inf, torch.nan, -0.0
    return labels, values, torch.rand(rows, generator=generator) < 0.8
