"""What a part finds: rows of the table and faults, written line by line, so that what was found is there when the part is stopped."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# Relative to the norm of what is wanted: f32 goes through three products of tf32, sums in another order, and libdevice's functions.
BOUNDS = {"bf16": 1e-2, "f16": 2e-3, "f32": 1e-4, "f64": 1e-6}
TF32 = 2e-3
Array = npt.NDArray[Any]


@dataclass
class Row:
    """A line of the table. count: of launches or calls; worst: the largest difference, as a share of what is allowed; microseconds: of a
    call, or of all launches; peer: of what it is compared with; note: what else is to be said."""

    name: str
    count: int = 0
    wrong: int = 0
    worst: float = 0.0
    microseconds: float | None = None
    peer: float | None = None
    note: str = ""


class Report:
    """A file of JSON lines: rows of the table, and what is wrong, in words."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.write_text("")

    def row(self, row: Row) -> None:
        self._write({"row": asdict(row)})

    def wrong(self, text: str) -> None:
        self._write({"wrong": text})

    def _write(self, line: object) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read_report(file: Path) -> tuple[list[Row], list[str]]:
    """What a part wrote: its rows, and what is wrong. A line that was cut off is left out."""
    rows, wrong = list[Row](), list[str]()
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if "row" in record:
            rows.append(Row(**record["row"]))
        else:
            wrong.append(record["wrong"])
    return rows, wrong


def wide(array: Array, element: str) -> Array:
    """Stored values as numbers."""
    if element == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64).reshape(array.shape)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def difference(found: Array, wanted: Array, element: str) -> float:
    """The distance relative to the norm of what is wanted; of integers, how many differ; infinite where NaN or infinities do."""
    if found.shape != wanted.shape:
        return float("inf")
    found, wanted = wide(found, element), wide(wanted, element)
    if element not in BOUNDS:
        return float((found != wanted).sum())
    finite = np.isfinite(wanted)
    if (
        not np.array_equal(np.nan_to_num(found[~finite], nan=7.0), np.nan_to_num(wanted[~finite], nan=7.0))
        or not np.isfinite(found[finite]).all()
    ):
        return float("inf")
    norm = float(np.linalg.norm(wanted[finite]))
    return float(np.linalg.norm(found[finite] - wanted[finite])) / (norm or 1.0)


def judge(row: Row, found: Array, wanted: Array, element: str, bound: float | None = None) -> str:
    """Enters a result into a row. Returns what is wrong with it, or "". bound: of floating-point results; None: of their type."""
    return enter_share(row, difference(found, wanted, element), wanted.shape, element, bound)


def enter_share(row: Row, away: float, shape: tuple[int, ...], element: str, bound: float | None = None) -> str:
    """Enters a difference, as `difference` gives it, as `judge` does."""
    allowed = bound if bound is not None and element in BOUNDS else BOUNDS.get(element, 0.5)
    share = away / allowed
    row.worst = max(row.worst, share)
    return f"differs by {share:.3g} of what is allowed ({element} {shape})" if not share <= 1 else ""
