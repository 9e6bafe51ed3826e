"""What takes minutes: terminations under load by the hundred, and a soak. The same code writes the committed results (bench/serving.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.served.drain import drain
from bench.served.soak import soak

pytestmark = pytest.mark.long


def test_a_hundred_terminations_under_load_lose_nothing(tmp_path: Path) -> None:
    found = drain(tmp_path)
    assert found["lost"] == 0 and found["unexpected"] == [] and found["exit codes"] == [0]
    assert found["answered"] > 1000
    assert found["not serving ms"]["p90"] <= 100 and found["exit s"]["most"] <= 30


def test_a_soak_of_five_minutes(tmp_path: Path) -> None:
    """A short form of what bench.serving does for half an hour."""
    found = soak(tmp_path, minutes=5)
    assert found["errors"] == 0, found["first errors"]
    assert found["open files"]["end"] <= found["open files"]["settled"] + 2
    assert found["memory MiB"]["end"] <= 1.1 * found["memory MiB"]["settled"]
