"""Writes to a diagonal, and gradients of one: PyTorch's decomposition of `diagonal_scatter` writes in place, which no trace took."""

from __future__ import annotations

import pytest
import torch

import disc

CASES = [
    ((4, 4), 0, 0, 1),
    ((3, 5), 1, 0, 1),
    ((5, 3), -1, 0, 1),
    ((3, 7), 2, 1, 0),
    ((3, 2, 4), -2, -1, 0),
    ((1, 1), 1, 0, 1),
    ((0, 3), 0, 0, 1),
]


@pytest.mark.parametrize(("shape", "offset", "first", "second"), CASES)
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.long)])
def test_of_torch_compile(shape: tuple[int, ...], offset: int, first: int, second: int, dynamic: bool) -> None:
    def function(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        x = x + 1
        x.diagonal(offset, first, second).add_(values)
        return torch.diagonal_scatter(x, values, offset, first, second) * 2 + x * x.diagonal(offset, first, second).sum()

    x = torch.rand(shape, requires_grad=True)
    values = torch.rand(x.diagonal(offset, first, second).shape)
    results = list[torch.Tensor]()
    for each in (function, torch.compile(function, backend="disc", dynamic=dynamic, options={"strict": True})):
        x.grad = None
        result = each(x, values)
        result.sum().backward()
        assert x.grad is not None
        results += [result, x.grad]
    assert results[0].stride() == results[2].stride()
    torch.testing.assert_close(results[2:], results[:2])


def test_compiled() -> None:
    class Write(torch.nn.Module):
        def forward(self, x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return torch.diagonal_scatter(x, values, 1)

    x, values = torch.rand(4, 5), torch.rand(4)
    torch.testing.assert_close(disc.compile(Write(), (x, values))(x, values), Write()(x, values))
