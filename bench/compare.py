"""What changed between two results of one suite: `python -m bench.compare before.json after.json`.

Times are compared, and ratios to peers and shares of the limit too: these hold even where the machine was slower during one of the runs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Record, peer_names, ratio, share
from bench.report import table

NOTABLE = 0.05  # a change of a ratio beyond this is marked


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the comparison; 1 when the files are of different suites."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    chosen = parser.parse_args(arguments)
    before, after = (json.loads(path.read_text()) for path in (chosen.before, chosen.after))
    if before["suite"] != after["suite"]:
        print(f"different suites: {before['suite']} and {after['suite']}", file=sys.stderr)
        return 1
    print(comparison(before, after))
    return 0


def comparison(before: Record, after: Record) -> str:
    """A table of what both runs measured, and lines for what only one did."""
    old, new = figures(before), figures(after)
    rows = [[name, f"{old[name]:.4g}", f"{new[name]:.4g}", f"{new[name] / old[name] - 1:+.1%}" if old[name] else "", _mark(name, old, new)]
            for name in old if name in new]  # fmt: skip
    lines = [f"before: {_origin(before)}", f"after:  {_origin(after)}", "", table(["figure", "before", "after", "change", ""], rows)]
    lines += [f"only before: {name}" for name in old if name not in new]
    lines += [f"only after: {name}" for name in new if name not in old]
    if before["machine"]["cpu"] != after["machine"]["cpu"]:
        lines.append("The machines differ: compare only ratios.")
    return "\n".join(lines)


def _origin(record: Record) -> str:
    return f"{record['date']}, commit {record['machine']['commit']}, {record['machine']['cpu']}"


def _mark(name: str, old: dict[str, float], new: dict[str, float]) -> str:
    """Ratios to a peer, and shares of a limit, say better or worse; a time alone may be the machine's doing."""
    if not name.endswith(("÷ disc", "of limit")) or abs(new[name] / old[name] - 1) <= NOTABLE:
        return ""
    return "better" if new[name] > old[name] else "WORSE"


def figures(record: Record) -> dict[str, float]:
    """Every number of a result under a name that the next run gives it too."""
    read = {"compile": _compile, "stream": _stream}.get(record["suite"], _calls)
    found: dict[str, float] = {}
    for result in record["results"]:
        prefix = f"{result['case']} t{result['threads']} {result.get('dtype', 'fp32')}"
        found.update({f"{prefix} {name}": value for name, value in read(result).items()})
    return found


def _calls(result: Record) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in result["rows"]:
        if "disc" not in row["ms"]:
            continue
        own = {"disc ms": row["ms"]["disc"]["median"], "of limit": share(row, "disc")}
        own |= {f"{peer} ÷ disc": ratio(row, peer) for peer in peer_names(result)}
        found |= {f"{row['shape']} {name}": value for name, value in own.items() if not math.isnan(value)}
    memory = (result.get("memory") or {}).get("mib", {})
    return found | {f"{name} MiB in calls": mib["calls"] for name, mib in memory.items()}


def _compile(result: Record) -> dict[str, float]:
    artifact = {name: value for name, value in result["artifact"].items() if name != "bytes"}
    return {
        **{f"{name} s": value for table in ("cold_s", "cached_s", "setup_s") for name, value in result.get(table, {}).items()},
        **artifact,
    }


def _stream(result: Record) -> dict[str, float]:
    whole = {name: float(result[name]) for name in ("compiles", "first_s", "steady_s", "ratio", "arena_mib")}
    return whole | {f"first ÷ steady {name}": value for name, value in result["quantiles"].items()}


if __name__ == "__main__":
    sys.exit(main())
