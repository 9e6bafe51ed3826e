"""Keeps what `tools/gpu_check.py` measured on another machine: `python -m bench.gpu FOLDER COMMIT`.

FOLDER: its `--out`. COMMIT: of the tree that was checked. Writes a result and its report to bench/results/<GPU>: gpu-check, or gpu-peers
where part `peers` ran. Then `python -m bench.summary`.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report import table
from bench.store import RESULTS, busy, date_text, slug, write_json

HEAD = ["program", "count", "wrong", "us", "peer us", "ratio", "note"]


def main() -> int:
    folder, commit = Path(sys.argv[1]), sys.argv[2]
    found: dict[str, Any] = json.loads((folder / "gpu_check.json").read_text())
    machine, parts = found["machine"], found["parts"]
    ended = datetime.datetime.fromtimestamp((folder / "gpu_check.json").stat().st_mtime, datetime.UTC)
    record = {
        "suite": "gpu-check",
        "date": date_text(ended),
        "machine": {"commit": commit, **machine},
        "command": "bash tools/gpu_check.sh" + (" --only build peers" if "peers" in parts else ""),
        "results": parts,
        "smoke": reasons_of(machine),
    }
    path = RESULTS / slug(machine["gpu"]) / ("gpu-peers.json" if "peers" in parts else "gpu-check.json")
    write_json(path, record)
    path.with_suffix(".md").write_text(report(record))
    print(f"written: {path}, .md", file=sys.stderr)
    return 0


def reasons_of(machine: Mapping[str, Any]) -> list[str]:
    """Why the machine did not stand still before the check."""
    reasons = busy(machine["load"])
    if machine["gpu_busy"] is None:
        reasons.append("the load of its GPU is not known")
    elif machine["gpu_busy"]:
        reasons.append(f"its GPU was not idle ({machine['gpu_busy']} %)")
    return reasons


def report(record: dict[str, Any]) -> str:
    """A table of each part. A ratio is the peer's time over ours: above 1, disc is faster."""
    machine = record["machine"]
    lines = [f"# {machine['gpu']}", f"{record['date']}, commit {machine['commit']}, `{record['command']}`."]
    if record["smoke"]:
        lines.append(f"Not known to be idle: {'; '.join(record['smoke'])}.")
    else:
        lines.append(f"Before it: load {machine['load']} on {machine['cores']} cores, GPU {machine['gpu_busy']} %.")
    lines.append("Times of disc and of the peer (eager PyTorch, or what the note names) in the same run; a ratio above 1: disc is faster.")
    for part, found in record["results"].items():
        rows = [_cells(row) for row in found["rows"]]
        lines += [f"## {part}", *found["wrong"], table(HEAD, rows)]
    return "\n\n".join(lines) + "\n"


def _cells(row: dict[str, Any]) -> list[str]:
    times = [_number(row["microseconds"]), _number(row["peer"]), _ratio(row)]
    return [row["name"], str(row["count"]), str(row["wrong"]), *times, row["note"]]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _ratio(row: dict[str, Any]) -> str:
    return f"{row['peer'] / row['microseconds']:.2f}" if row["peer"] and row["microseconds"] else ""


if __name__ == "__main__":
    raise SystemExit(main())
