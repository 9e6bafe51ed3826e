"""Memory over a thousand loads and unloads of a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.served.process import COLUMNS, resident_kib, twice
from disc.serving.repository import Repository
from disc.serving.settings import settings_of

CYCLES, FIRST_CYCLES = 1000, 50


def reload(folder: Path) -> dict[str, object]:
    repository, x = Repository(twice(folder), settings_of({})), np.ones((2, COLUMNS), np.float32)
    sizes: list[int] = []
    for _ in range(CYCLES):
        repository.load("twice")
        repository.find("twice").executable(x)
        repository.unload("twice")
        sizes.append(resident_kib())
    settled = sizes[FIRST_CYCLES - 1]
    return {"cycles": CYCLES, f"KiB after {FIRST_CYCLES}": settled, "KiB at the end": sizes[-1], "growth": sizes[-1] / settled - 1}
