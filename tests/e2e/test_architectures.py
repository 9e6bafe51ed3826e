"""Small models of other people's architectures, whole and with random weights, against eager: a part of tools/sweep_models.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from sweep_models import judge
from tiny_models import architectures

EVERY = architectures()


@pytest.mark.parametrize("name", [pytest.param("bridgetower", marks=pytest.mark.long), "codegen", "beit", "mixtral"])
def test_it_is_right_at_sizes_that_it_has_not_seen(name: str) -> None:
    found = judge(name, EVERY[name])
    assert found["outcome"] == "right" and found["sizes"] >= 3, found


def test_there_are_many() -> None:
    assert len(EVERY) > 400


def test_fourier_transforms_in_the_place_of_attention() -> None:
    found = judge("fnet", EVERY["fnet"])
    assert found["outcome"] == "right", found
