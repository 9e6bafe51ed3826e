"""Thousands of hostile requests against one server: each is refused or answered rightly, and the server goes on (`hostile_requests.py`)."""

from __future__ import annotations

import pytest
from hostile_requests import CODES, STATUSES, run


@pytest.mark.parametrize(("requests", "seed"), [(600, 7), pytest.param(20_000, 1, marks=pytest.mark.long)])
def test_hostile_requests(requests: int, seed: int) -> None:
    found = run(requests, seed)
    assert found["requests"] == requests and found["failures"] == []
    outcomes = found["outcomes"]
    assert isinstance(outcomes, dict) and len(outcomes) == 15 and set(outcomes["good"]) == {"OK"}


def test_no_status_of_a_fault_is_accepted() -> None:
    assert not CODES & {"INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS"} and not {each for each in STATUSES if each.startswith("500")}
