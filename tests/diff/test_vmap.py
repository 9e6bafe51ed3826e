"""`torch.func.vmap` in a model that is compiled, with dynamic batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import disc

LINEAR = torch.nn.Linear(4, 4)
CASES: dict[str, Callable[[Tensor], object]] = {
    "elementwise": lambda x: vmap(torch.sin)(x),
    "rows": lambda x: vmap(lambda row: row.softmax(0).cumsum(0))(x),
    "columns": lambda x: vmap(lambda column: column.softmax(0), in_dims=1)(x),
    "products": lambda x: vmap(torch.dot)(x, x + 1),
    "pairs": lambda x: vmap(vmap(lambda a, b: (a * b).sum(), (None, 0)), (0, None))(x, x * 2),
    "several": lambda x: vmap(lambda row: {"most": row.amax(), "order": row.sort()[0]})(x),
    "reshaped": lambda x: vmap(lambda row: row.reshape(-1, 1) @ row.reshape(1, -1))(x),
    "choice": lambda x: vmap(lambda row: torch.where(row.sum() > 0, row, -row))(x),
    "types": lambda x: vmap(lambda row: (row > 0).float() * row.to(torch.float64).masked_fill(row.bool(), 2.0))(x),
    "moved": lambda x: [vmap(lambda row: row.exp(), dim, out)(x.unsqueeze(2)) for dim, out in ((0, 1), (0, 2), (1, 2), (2, 1), (1, -1))],
    "moved twice": lambda x: vmap(vmap(lambda row: row.cumsum(0), 0, 1), 1, 2)(torch.stack([x, x + 1, x * 2], 1)),
    "the same for each": lambda x: vmap(lambda row: torch.ones(3))(x),
    "weights": lambda x: vmap(lambda row: LINEAR(row).relu())(x),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_each_element_of_a_batch(name: str) -> None:
    function = CASES[name]
    executable = disc.compile(lambda x: function(x), (torch.randn(3, 4),))
    for rows in (5, 1, 13):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(executable(x), function(x))
