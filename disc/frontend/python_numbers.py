"""`math.sqrt` of a size that is dynamic, while a module is exported.

Python's own reads the size as a plain number, by which torch.export fixes the dim to the example's. Here the root is a number that every
call computes from its sizes. (Of the functions of `math`, an exported program may hold this one alone.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_PYTHONS = math.sqrt


def _sqrt(x: float | torch.SymInt | torch.SymFloat, /) -> float | torch.SymFloat:
    return torch.sym_sqrt(x) if isinstance(x, torch.SymInt | torch.SymFloat) else _PYTHONS(x)  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def roots_of_sizes() -> Iterator[None]:
    """Roots of sizes stay symbolic; all others are what they were."""
    math.sqrt = _sqrt  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        math.sqrt = _PYTHONS
