"""Tests of disc.lazy begin and end without a trace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import disc
from disc.frontend.lazy import public


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No traces of other tests."""
    disc.lazy.disable()
    public._thread.__init__()
    yield
    disc.lazy.disable()
