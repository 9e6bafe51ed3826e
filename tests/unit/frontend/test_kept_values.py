"""What forward leaves behind in plain attributes, and what of that a user is told."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import disc


class Marks(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        setattr(self, self.name, True)
        return x + 1


@pytest.mark.parametrize(("name", "told"), [("_set_up", False), ("called", True)])
def test_a_mark_of_a_library_is_no_state(name: str, told: bool) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        exe = disc.compile(Marks(name), (torch.ones(2),))
    assert any(f"forward sets {name}" in str(each.message) for each in found) is told
    assert torch.equal(exe(torch.ones(3)), torch.full((3,), 2.0))


class Force(torch.nn.Module):
    """Keeps what it computed of a derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(torch.tanh(self.layer(x)).sum(), x)
        self.kept = found * 2
        return found


@pytest.mark.filterwarnings("ignore:forward sets kept")
def test_no_tensor_of_a_trace_stays_in_the_model() -> None:
    model = Force()
    compiled = disc.compile(model, [torch.randn(3, 4)], dynamic_shapes=[{0: torch.export.Dim.AUTO}])
    assert not hasattr(model, "kept")
    x = torch.randn(5, 4)
    torch.testing.assert_close(torch.as_tensor(compiled(x)), model(x))
