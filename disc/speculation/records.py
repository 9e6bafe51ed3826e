"""What was measured of schedules, and the files that keep it: one record per line, so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from disc.artifact.output import writing
from disc.speculation.schedules import Schedule
from disc.speculation.sizes import Point


@dataclass(frozen=True)
class Record:
    """What was measured of a point: seconds per GEMM of each schedule; library: those of torch's own product (MKL, oneDNN)."""

    point: Point
    seconds: dict[Schedule, float]
    library: float | None = None

    def to_json(self) -> str:
        """One line."""
        times = [[*asdict(schedule).values(), round(seconds * 1e9)] for schedule, seconds in self.seconds.items()]
        return json.dumps({**asdict(self.point), "ns": times, "library_ns": round(self.library * 1e9) if self.library else None})


def read_record(line: str) -> Record:
    """The record of `Record.to_json`."""
    fields = json.loads(line)
    times = {Schedule(*row[:-1]): row[-1] * 1e-9 for row in fields.pop("ns")}
    library = fields.pop("library_ns")
    return Record(Point(**fields), times, library * 1e-9 if library else None)


def resume(store: Path) -> set[Point]:
    """The sizes that `store` holds. Makes it ready for more. Raises OutputError."""
    make_ready(store)
    return {record.point for record in read_records(store)}


def make_ready(store: Path) -> None:
    """Makes a file of records ready for more: its folder is there, and the part of a line that was being written is gone.

    Raises OutputError.
    """
    with writing(store):
        store.parent.mkdir(parents=True, exist_ok=True)
        store.touch()
        whole, newline, _ = store.read_text().rpartition("\n")
        store.write_text(whole + newline)


def read_records(store: Path) -> list[Record]:
    """All of a file of records."""
    return [read_record(line) for line in whole_lines(store)]


def whole_lines(store: Path) -> list[str]:
    """The lines of a file of records: the last one may have been cut off."""
    return [line for line in store.read_text().splitlines(keepends=True) if line.endswith("\n")]
