"""What forward leaves behind in plain attributes, and what of that a user is told."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import disc
from disc.frontend.kept_caches import caches_restored


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


class LoadedWhenAsked(OrderedDict[str, object]):
    """As Transformers' tables of models, which import each that is looked at."""

    def values(self) -> Any:
        raise AssertionError("all that the table names is imported")

    items = __iter__ = keys = __len__ = values


TABLE = LoadedWhenAsked(scale=2.0, shift=1.0)


def test_a_table_that_a_model_names_is_asked_for_what_the_model_reads_alone() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * TABLE["scale"]

    x = torch.ones(1, 3)  # of size 1: the model is also run on a larger example without data
    assert torch.equal(torch.as_tensor(disc.compile(Scaled(), (x,))(x)), x * 2)


def test_the_order_of_a_table_is_what_it_was_before_runs_without_data() -> None:
    recent = OrderedDict(a=1, b=2, c=3)
    recent.move_to_end("a")
    with caches_restored([recent], is_dry=True):
        recent["b"] = recent.pop("b") * 2
    assert list(recent) == ["b", "c", "a"]
