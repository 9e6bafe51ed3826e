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
