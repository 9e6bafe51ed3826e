"""What rewritten code calls in the place of `sorted`, `min` and `max` by a key: the keys are computed before, as other tensor code is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from disc.frontend.batched.rows import settled


def sorted_by(items: Sequence[Any], keys: Sequence[Any], reverse: Any) -> list[Any]:
    """The items in the order of their keys."""
    known = _known(keys)
    return [items[place] for place in sorted(range(len(items)), key=known.__getitem__, reverse=reverse)]


def least_by(items: Sequence[Any], keys: Sequence[Any]) -> Any:
    """The first of those with the least key."""
    known = _known(keys)
    return items[min(range(len(items)), key=known.__getitem__)]


def greatest_by(items: Sequence[Any], keys: Sequence[Any]) -> Any:
    """The first of those with the greatest key."""
    known = _known(keys)
    return items[max(range(len(items)), key=known.__getitem__)]


def _known(keys: Sequence[Any]) -> list[Any]:
    return [settled(each) for each in keys]


ORDERED = {"_disc_sorted": sorted_by, "_disc_least": least_by, "_disc_greatest": greatest_by}
