"""Seeds of random programs: the suite runs the first ones, `--long` all of them."""

from __future__ import annotations

import pytest


def seeds(suite: int, every: int) -> list[object]:
    """What `parametrize` takes: 0 to `every`, marked `long` from `suite` on."""
    return [pytest.param(seed, marks=pytest.mark.long) if seed >= suite else seed for seed in range(every)]
