"""A warning names the user's line, however deep in disc it is found."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import disc
from disc.errors import DiscWarning
from disc.frontend import dynamo

OPTIONS = disc.Options(cache=False)


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    dynamo.reset_statistics()
    yield
    torch._dynamo.reset()


class Calls(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)


def fixed_dim() -> None:
    disc.compile(Calls(lambda x: x.unflatten(1, (3, 2))), (torch.randn(4, 6),), options=OPTIONS)


def assertion() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        least: Any = x.min().item()
        torch._check(least >= -0.5 * x.shape[0])
        return x + 1

    disc.compile(Calls(function), (torch.ones(3, 4),), options=OPTIONS)


def not_packed() -> None:
    disc.compile(Calls(lambda x: x.cumsum(0)), (torch.randn(4, 6),), options=disc.Options(packed=True, cache=False))


def left_to_pytorch() -> None:
    torch.compile(lambda x: torch.special.airy_ai(x) + 1, backend="disc")(torch.randn(3, 3))


@pytest.mark.parametrize(
    ("call", "text"),
    [(fixed_dim, "is fixed to 6"), (assertion, "is dropped"), (not_packed, "not packed"), (left_to_pytorch, "leaves")],
)
def test_the_users_line_is_named(call: Callable[[], None], text: str) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    (each,) = [each for each in found if text in str(each.message)]
    lines, first = inspect.getsourcelines(call)
    assert issubclass(each.category, DiscWarning)
    assert Path(each.filename) == Path(__file__) and first <= each.lineno < first + len(lines)


def test_a_cache_that_cannot_be_used_is_reported_at_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DISC_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(DiscWarning, match="cannot be used") as found:
        disc.compile(nn.ReLU(), (torch.randn(3),))
    assert {each.filename for each in found if "cannot be used" in str(each.message)} == {__file__}
