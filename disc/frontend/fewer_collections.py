"""Python's collector while a program is compiled: graphs and tables of symbols are many objects that live until the end, and each full
collection looks at them all, and at PyTorch's: 9 % of the time of a step of training, nearly all for nothing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 20_000  # before a collection of the youngest (Python: 700, or 2,000). Peak memory of that compile: 1,226 MB, before 1,197
_lock = threading.Lock()
_within = 0
_before = (0, 0, 0)


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Within, by any number of threads, the collector starts less often. Where it is off, or starts as rarely, it is left alone."""
    global _within, _before
    with _lock:
        if _within == 0:
            _before = gc.get_threshold()
            if 0 < _before[0] < ALLOCATIONS:
                gc.set_threshold(ALLOCATIONS, *_before[1:])
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if _within == 0 and gc.get_threshold() == (ALLOCATIONS, *_before[1:]):  # not where the program has set its own meanwhile
                gc.set_threshold(*_before)
