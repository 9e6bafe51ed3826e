"""Which ISA levels a differential test compiles for. LLVM is most of the time of these tests, and it works per level."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence

EVERY = "DISC_TEST_EVERY_LEVEL"  # set by --long


def levels_of_this_test(levels: Sequence[str]) -> tuple[str, ...]:
    """One of the levels, always the same one for a test or a case of it and spread evenly over them; all of them with --long."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if not test or os.environ.get(EVERY):
        return tuple(levels)
    return (levels[zlib.crc32(test.encode()) % len(levels)],)
