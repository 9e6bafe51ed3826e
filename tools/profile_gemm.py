#!/usr/bin/env python3
"""Measures GEMM schedules on this machine, fits the tree that disc brings along, and says how good it is.

Two passes: all schedules at a coarse grid of sizes, from which the best N are taken; those at the fine grid. The data is kept beside the
machine's description in tools/data. Interrupted, or stopped by --seconds, it goes on where it stopped.

    tools/profile_gemm.py --threads 1,2              # measures, fits, writes disc/schedules.json
    tools/profile_gemm.py --report                   # judges the data that is there
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import numpy as np

from bench.machine import describe
from disc.schedules import Schedule
from disc.tuning import Bench, Point, Record, best_schedules, coarse_points, collect, fine_points, fit, read_record, read_records

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tools" / "data" / "gemm-schedules.json.gz"
TOP = 12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2", help="counts of threads to measure (default: 1,2)")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "profile-gemm", help="folder of the unfinished measurements")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop measuring after this long")
    parser.add_argument("--leaves", type=int, default=48, help="leaves of the tree, at most")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    if arguments.report:
        kept = json.loads(gzip.decompress(KEPT.read_bytes()))
        schedules = [Schedule(*each) for each in kept["schedules"]]
        return _report([read_record(json.dumps(each)) for each in kept["records"]], schedules, arguments.leaves)
    until = time.monotonic() + arguments.seconds
    threads = [int(each) for each in arguments.threads.split(",")]
    coarse = arguments.work / "coarse.jsonl"
    if not _measure(coarse_points(threads[0]), coarse, Bench(), until):
        return 3
    schedules = best_schedules(read_records(coarse), TOP)
    fine = arguments.work / "fine.jsonl"
    if not _measure(fine_points(threads), fine, Bench(schedules, library=True), until):
        return 3
    records = _merged(read_records(fine), schedules)
    KEPT.parent.mkdir(exist_ok=True)
    rows = [astuple(schedule) for schedule in schedules]
    machine = {"machine": describe(), "schedules": rows, "records": [json.loads(record.to_json()) for record in records]}
    KEPT.write_bytes(gzip.compress(json.dumps(machine, separators=(",", ":")).encode(), mtime=0))
    return _report(records, schedules, arguments.leaves)


def _merged(records: list[Record], schedules: Sequence[Schedule]) -> list[Record]:
    """With what was kept before of the same schedules: the least of both times, since noise only adds."""
    if not KEPT.exists():
        return records
    kept = json.loads(gzip.decompress(KEPT.read_bytes()))
    if [tuple(each) for each in kept["schedules"]] != [astuple(each) for each in schedules]:
        return records
    merged: dict[Point, Record] = {}
    for record in (*(read_record(json.dumps(each)) for each in kept["records"]), *records):
        old = merged.setdefault(record.point, record)
        seconds = {key: min(value, old.seconds.get(key, value)) for key, value in record.seconds.items()}
        library = min((each for each in (record.library, old.library) if each is not None), default=None)
        merged[record.point] = Record(record.point, seconds, library)
    return list(merged.values())


def _measure(wanted: Sequence[Point], store: Path, bench: Bench, until: float) -> bool:
    """False when time ran out."""
    for done, record in collect(wanted, store, bench):
        best = min(record.seconds.values())
        print(f"{done}/{len(wanted)} {record.point}: {best * 1e6:.1f} us", file=sys.stderr)
        if time.monotonic() > until:
            return False
    return True


def _report(records: Sequence[Record], schedules: Sequence[Schedule], leaves: int) -> int:
    fitted = fit(records, schedules, leaves=leaves)
    print(f"{len(records)} sizes, {len(schedules)} schedules, {len(fitted.tree.nodes)} nodes")
    print(f"fitted    {fitted.fitted}")
    print(f"held out  {fitted.held_out}")
    for name, some in (
        ("weights", [each for each in records if each.point.weights]),
        ("products", [each for each in records if not each.point.weights]),
    ):
        ratios = np.array([record.library / min(record.seconds.values()) for record in some if record.library])
        if len(ratios):
            print(f"{name}: {np.exp(np.log(ratios).mean()):.2f} times the library's speed on average, least {ratios.min():.2f}, "
                  f"below 0.95 at {(ratios < 0.95).sum()} of {len(ratios)} sizes")  # fmt: skip
    (ROOT / "disc" / "schedules.json").write_text(fitted.tree.to_json() + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
