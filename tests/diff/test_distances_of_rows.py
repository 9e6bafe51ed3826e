"""`torch.cdist` of any number of rows: eager takes another form for more than 25."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import disc

CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows": torch.cdist,
    "in f64": lambda a, b: torch.cdist(a.double(), b.double()),
    "batches": lambda a, b: torch.cdist(torch.stack([a, a * 2]), torch.stack([b, -b])),
    "broadcast": lambda a, b: torch.cdist(torch.stack([a, a * 2]).unsqueeze(1), torch.stack([b, -b, b * 3])),
    "nearest": lambda a, b: torch.cdist(a, torch.cat([b, b.new_ones(1, 4)])).argmin(-1),
    "another norm": lambda a, b: torch.cdist(a, b, p=1.5),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [(3, 5), (30, 50)])
@pytest.mark.parametrize("name", CASES)
def test_distances(name: str, rows: tuple[int, int]) -> None:
    function = CASES[name]
    executable = disc.compile(lambda a, b: function(a, b), (torch.randn(rows[0], 4), torch.randn(rows[1], 4)))
    for first, second in [(3, 5), (1, 1), (0, 5), (2, 0), (30, 31), (26, 3), (25, 25), (3, 26)]:
        a, b = torch.randn(first, 4), torch.randn(second, 4)
        torch.testing.assert_close(executable(a, b), function(a, b), atol=1e-5, rtol=1e-5)
