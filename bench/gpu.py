"""Keeps what `tools/gpu_check.py` measured on another machine: `python -m bench.gpu FOLDER COMMIT`.

FOLDER: its `--out`, where part `tune` was among those that ran. COMMIT: of the tree that was checked. Writes a result and its report to
bench/results/<GPU>. Then `python -m bench.summary`.
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

from bench.report import table
from bench.store import RESULTS, date_text, slug, write_json

NOT_NOTED = "the load of that machine was not noted"
HEAD = ["program", "count", "wrong", "us", "peer us", "ratio", "note"]


def main() -> int:
    folder, commit = Path(sys.argv[1]), sys.argv[2]
    found: dict[str, Any] = json.loads((folder / "gpu_check.json").read_text())
    gpu: str = json.loads((folder / "gemm_times.json").read_text())["gpu"]
    ended = datetime.datetime.fromtimestamp((folder / "gpu_check.json").stat().st_mtime, datetime.UTC)
    record = {
        "suite": "gpu-check",
        "date": date_text(ended),
        "machine": {"commit": commit, "gpu": gpu},
        "command": "bash tools/gpu_check.sh",
        "results": found,
        "smoke": [NOT_NOTED],
    }
    path = RESULTS / slug(gpu) / "gpu-check.json"
    write_json(path, record)
    path.with_suffix(".md").write_text(report(record))
    print(f"written: {path}, .md", file=sys.stderr)
    return 0


def report(record: dict[str, Any]) -> str:
    """A table of each part. A ratio is the peer's time over ours: above 1, disc is faster."""
    lines = [f"# {record['machine']['gpu']}", f"{record['date']}, commit {record['machine']['commit']}, `{record['command']}`."]
    lines.append(f"Not known to be idle: {'; '.join(record['smoke'])}.")
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
