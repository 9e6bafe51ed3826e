"""Which sizes the compiler's tuning data holds, so that those it never saw are reported apart."""

from __future__ import annotations

import functools
from collections.abc import Callable

from bench.cases.case import Shape

Tuned = Callable[[Shape], bool]


def linear_is_tuned(outputs: int, inputs: int) -> Tuned:
    """Of a linear layer, called with (rows,): the very size is in the data that the tree of schedules was fitted to."""
    return lambda shape: (shape[0], outputs, inputs) in _sizes()


def rows_are_tuned(rows_of: Callable[[Shape], int]) -> Tuned:
    """Of a network whose matrix products have so many rows: the data holds that number of rows."""
    return lambda shape: rows_of(shape) in {rows for rows, _, _ in _sizes()}


@functools.cache
def _sizes() -> frozenset[tuple[int, int, int]]:
    """(rows, outputs, inputs) of products by weights, with any number of threads."""
    from disc.speculation.sizes import fine_points  # loads the compiler

    return frozenset((point.m, point.n, point.k) for point in fine_points((1, 2)) if point.weights)
