"""Keeps what `tools/gpu_check.py` measured on another machine: `python -m bench.gpu FOLDER COMMIT`.

FOLDER: its `--out`, where part `tune` was among those that ran. COMMIT: of the tree that was checked. Writes a result and its report to
bench/results/<GPU>. Then `python -m bench.summary`.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from pathlib import Path
from typing import Any

from bench.report import table
from bench.store import RESULTS

HEAD = ["program", "count", "wrong", "us", "peer us", "ratio", "note"]


def main() -> int:
    folder, commit = Path(sys.argv[1]), sys.argv[2]
    found: dict[str, Any] = json.loads((folder / "gpu_check.json").read_text())
    gpu: str = json.loads((folder / "gemm_times.json").read_text())["gpu"]
    ended = datetime.datetime.fromtimestamp((folder / "gpu_check.json").stat().st_mtime, datetime.UTC)
    record = {
        "suite": "gpu-check",
        "date": ended.strftime("%Y-%m-%d %H:%M UTC"),
        "machine": {"commit": commit, "gpu": gpu},
        "command": "bash tools/gpu_check.sh",
        "results": found,
    }
    place = RESULTS / re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    place.mkdir(exist_ok=True)
    (place / "gpu-check.json").write_text(json.dumps(record, indent=1) + "\n")
    (place / "gpu-check.md").write_text(report(record))
    print(f"written: {place}", file=sys.stderr)
    return 0


def report(record: dict[str, Any]) -> str:
    """A table of each part. A ratio is the peer's time over ours: above 1, disc is faster."""
    lines = [f"# {record['machine']['gpu']}", f"{record['date']}, commit {record['machine']['commit']}, `{record['command']}`."]
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
