"""Tuning: measures schedules of GEMMs and fits the tree that chooses among them (paper 002, §5.2.2).

The one loop behind `disc tune`, `disc ray tune` and `tools/profile_gemm.py`: all schedules at a coarse grid of sizes, the few that are
worth more at a fine one, a tree fitted to these; besides that, what the rules take that overrule the tree, to judge them. Every record is
kept as it comes: interrupted, a run goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from disc.speculation.fit import LEAVES, Fitted, best_schedules, fit
from disc.speculation.inputs import STORE as INPUTS
from disc.speculation.policy import ruled_schedules
from disc.speculation.records import Record, read_records, resume
from disc.speculation.schedules import FAMILY, Schedule
from disc.speculation.sizes import Point

TOP = 12  # schedules measured at every size; more gain less than measuring them costs
COARSE, FINE, RULES = "coarse.jsonl", "fine.jsonl", "rules.jsonl"  # the stores of the rounds in the folder of a run


@dataclass(frozen=True)
class Round:
    """One pass over sizes. name: for display; points: the sizes; schedules: those measured at each; store: the file of the records."""

    name: str
    points: Sequence[Point]
    schedules: Sequence[Schedule]
    store: Path


Measure = Callable[[Round, Sequence[Point]], Iterable[Record]]
"""Measures a round's schedules at these of its sizes, in any order, and yields each record as it is there."""
Progress = Callable[[Round, int, Record], None]
"""Called with every new record, and how many of the round's sizes are done."""


def silent(round_: Round, done: int, record: Record) -> None:
    """Progress that is not reported."""
    del round_, done, record


@dataclass(frozen=True)
class Tuned:
    """What a run gives: the schedules that were worth more, what was measured of them, and the tree fitted to it; ruled: what was measured
    where rules overrule the tree, which it is not fitted to."""

    schedules: tuple[Schedule, ...]
    records: list[Record]
    ruled: list[Record]
    fitted: Fitted


def tune(
    folder: Path,
    coarse: Sequence[Point],
    fine: Sequence[Point],
    measure: Measure,
    *,
    ruled: Sequence[Point] = (),
    top: int = TOP,
    leaves: int = LEAVES,
    until: float = float("inf"),
    progress: Progress = silent,
) -> Tuned | None:
    """Measures what `folder` does not hold yet and fits a tree; None when time ran out before all sizes were measured.

    coarse, fine: the sizes of the first two rounds; ruled: those of the third, at which rules are judged. top: how many schedules the
    second one measures. until: of `time.monotonic`, in seconds.
    Raises OSError when records cannot be kept, and what `measure` raises.
    """
    first = Round("all schedules", coarse, FAMILY, folder / COARSE)
    if not measure_round(first, measure, until=until, progress=progress):
        return None
    schedules = best_schedules(read_records(first.store), top)
    second = Round(f"the best {top}", fine, schedules, folder / FINE)
    if not measure_round(second, measure, until=until, progress=progress):
        return None
    third = rules_round(ruled, schedules, folder)
    if not measure_round(third, measure, until=until, progress=progress):
        return None
    records, judged = read_records(second.store), read_records(third.store) if ruled else []
    return Tuned(schedules, records, judged, fit(records, schedules, ruled=judged, leaves=leaves))


def rules_round(points: Sequence[Point], schedules: Sequence[Schedule], folder: Path) -> Round:
    """What rules take at these sizes, besides the schedules of the tree."""
    return Round("the rules", points, tuple(dict.fromkeys((*schedules, *ruled_schedules(points)))), folder / RULES)


def measure_round(round_: Round, measure: Measure, *, until: float = float("inf"), progress: Progress = silent) -> bool:
    """Measures what the round's store does not hold yet and appends it, record by record; False when time ran out before the end."""
    known = resume(round_.store)
    left = [point for point in round_.points if point not in known]
    done = len(round_.points) - len(left)
    if not left:
        return True
    for record in measure(round_, left):
        with round_.store.open("a") as file:
            file.write(record.to_json() + "\n")
        done += 1
        progress(round_, done, record)
        if time.monotonic() > until:
            break
    return done == len(round_.points)


def forget(folder: Path) -> None:
    """Removes what earlier runs measured."""
    for name in (COARSE, FINE, RULES, INPUTS):
        (folder / name).unlink(missing_ok=True)
