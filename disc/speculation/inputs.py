"""How many values a fusion may read (F_max of Dali, paper 004 §2.2): chosen for each kind of fusion by what was measured on this machine.

A fusion that reads more saves memory traffic and launches, until its streams no longer have registers, lines of L1 or prefetchers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from disc.speculation.kept import keep, read_kept
from disc.speculation.records import whole_lines
from disc.targets.thresholds import InputLimits

STORE, FILE = "inputs.jsonl", "inputs.json"  # what was measured, in the folder of a run; the limits, in the cache folder
SAME = 1.02  # within 2 % of the least time a limit is as good
KINDS = tuple(each.name for each in fields(InputLimits))


@dataclass(frozen=True)
class InputRecord:
    """Seconds of a call of a program, of so many rows, by the limit it was compiled with."""

    program: str
    kind: str
    rows: int
    seconds: dict[int, float]


def read_inputs(store: Path) -> list[InputRecord]:
    """What a file holds of records, [] for one that is not there."""
    records = [json.loads(line) for line in whole_lines(store)] if store.exists() else []
    return [InputRecord(**{**record, "seconds": {int(limit): each for limit, each in record["seconds"].items()}}) for record in records]


def relative_times(records: Sequence[InputRecord], kind: str) -> dict[int, float]:
    """By the limit, the geometric mean of a kind's times over the least of each program and size."""
    own = [record.seconds for record in records if record.kind == kind]
    return {limit: math.exp(sum(math.log(each[limit] / min(each.values())) for each in own) / len(own)) for limit in sorted(own[0])}


def fit_inputs(records: Sequence[InputRecord], usual: InputLimits) -> InputLimits:
    """For each kind, of the limits that are as good as the best, the one nearest to the usual: users' fusions are not the measured ones:
    an attention that may not read its mask and its bias loses more than a few streams cost."""
    chosen: dict[str, int] = {}
    for kind in KINDS:
        times, own = relative_times(records, kind), getattr(usual, kind)
        good = [limit for limit, time in times.items() if time <= SAME * min(times.values())]
        chosen[kind] = min(good, key=lambda limit: (abs(math.log(limit / own)), -limit))
    return InputLimits(**chosen)


def write_limits(folder: Path, limits: InputLimits) -> Path:
    """Keeps them in the folder; programs compiled for CPUs from now on are fused by those of the cache folder. Raises OutputError."""
    return keep(folder / FILE, json.dumps(asdict(limits)))


def find_limits(folder: Path) -> InputLimits | None:
    """Those that `disc tune` found on this machine, None where it did not run."""
    return read_kept(folder / FILE, _read_limits, "limits of inputs")


def _read_limits(text: str) -> InputLimits:
    """Raises ValueError for a text that is none of `write_limits`."""
    try:
        limits = InputLimits(**json.loads(text))
    except TypeError as error:
        raise ValueError(error) from error
    if not all(isinstance(each, int) and each > 1 for each in asdict(limits).values()):
        raise ValueError("a limit is no number above 1")
    return limits
