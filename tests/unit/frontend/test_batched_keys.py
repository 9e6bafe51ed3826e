"""What names a call whose result may be used again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from disc.frontend.batched.keys import role_of
from disc.ral import _ral

NODE, LAYER = SimpleNamespace(), nn.Linear(1, 1)


def key(*arguments: Any) -> tuple[object, ...] | None:
    return _ral.call_key(key, arguments, {}, role_of)


def test_equal_constants_name_one_call() -> None:
    assert key(LAYER, NODE, 1.5, "a" * 2) == key(LAYER, NODE, float("1.5"), "aa") != key(LAYER, NODE, 1.5, "ab")


@pytest.mark.parametrize("others", [(1, 1.0), (1, True), (0.0, -0.0), (NODE, SimpleNamespace()), (LAYER, nn.Linear(1, 1))])
def test_different_calls(others: tuple[Any, Any]) -> None:
    assert key(NODE, others[0]) != key(NODE, others[1])


@pytest.mark.parametrize("value", [[], (), {}, torch.zeros(1), slice(1)])
def test_what_changes_names_no_call(value: Any) -> None:
    assert key(NODE, value) is None


def test_without_a_structure_there_is_no_name() -> None:
    assert key(LAYER, 1) is None
    assert key() is None


def test_what_roles_raise() -> None:
    def fails(kind: type) -> int:
        raise RuntimeError(kind.__name__)

    with pytest.raises(RuntimeError, match="Linear"):
        _ral.call_key(key, (LAYER,), {}, fails)
    roles: dict[type, int] = {}
    assert _ral.call_key(key, (NODE,), roles, role_of) == (key, id(NODE))
    assert list(roles) == [SimpleNamespace]
