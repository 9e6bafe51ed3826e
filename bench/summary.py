"""Writes bench/results/README.md from the results that lie there: `python -m bench.summary`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.figures import Record
from bench.report import mean_rows, table
from bench.store import RESULTS

HEAD = """# Results

Made by `python -m bench.summary` from the files here: do not edit. `<machine>/<suite>-<dtype>-t<threads>.json`, with a report beside it,
is the latest whole run of a suite; git has those before. `python -m bench.plot FILE.json` draws one, `python -m bench.compare OLD NEW`
compares two. How many times longer a peer takes than disc is a geometric mean over the shapes, each network counting the same; at every
shape the fastest variant of a peer that is right is the peer. *tuned*: sizes that the tuning data holds; *held out*: those it does not."""
FUZZ = "fuzz"


def main() -> int:
    path = RESULTS / "README.md"
    path.write_text(readme(RESULTS))
    print(f"written: {path}", file=sys.stderr)
    return 0


def readme(folder: Path) -> str:
    """The text for the results in `folder`: a section per machine, then what fuzzers and sweeps found."""
    machines = sorted(each for each in folder.iterdir() if each.is_dir() and each.name != FUZZ)
    sections = [HEAD, *(_machine(each) for each in machines), _findings(folder / FUZZ)]
    return "\n\n".join(section for section in sections if section) + "\n"


def _records(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def _machine(folder: Path) -> str:
    records = _records(folder)
    files = [[f"[{name}]({folder.name}/{name}.md)", *_origin(record)] for name, record in records.items()]
    parts = [f"## {folder.name}", table(["result", "date", "commit", "idle"], files)]
    means = [[name, *row] for name, record in records.items() for row in _means(record)]
    if means:
        parts += ["How many times longer each peer takes than disc, and the share of the machine's limit that disc reaches:"]
        parts += [table(["result", "sizes", "peers", "of limit"], means)]
    settings = list(_settings(records))
    return "\n\n".join([*parts, *(["Settings of the peers:\n\n" + "\n".join(settings)] if settings else [])])


def _origin(record: Record) -> list[str]:
    commit = record.get("machine", {}).get("commit", "-")
    return [record.get("date", "-"), commit, "; ".join(["no", *record["smoke"]]) if record.get("smoke") else "yes"]


def _means(record: Record) -> Iterator[list[str]]:
    """One row for each group of sizes, where the result is one of timed calls."""
    results = record["results"]
    if isinstance(results, list) and results and "rows" in results[0]:
        peers, rows = mean_rows(results)
        for name, ratios, own in rows:
            known = [f"{peer} {ratio}" for peer, ratio in zip(peers, ratios, strict=True) if ratio != "-"]
            yield [name or "all", ", ".join(known) or "-", own]


def _settings(records: Mapping[str, Record]) -> Iterator[str]:
    """Every variant with its settings; with the results that it was run so in where not all agree."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, record in records.items():
        for peer, settings in record.get("peers", {}).items():
            found.setdefault(peer, {}).setdefault(settings, []).append(name)
    for peer, ways in found.items():
        for settings, names in ways.items():
            where = f" ({', '.join(names)})" if len(ways) > 1 else ""
            yield f"- **{peer}**{where}: {settings}"


def _findings(folder: Path) -> str:
    rows = [[f"[{name}]({FUZZ}/{name}.json)", *_origin(record)[:2], _outcomes(record)] for name, record in _records(folder).items()]
    return f"## Fuzzers and sweeps\n\n{table(['result', 'date', 'commit', 'outcomes'], rows)}" if rows else ""


def _outcomes(record: Record) -> str:
    """Counts by outcome, whatever kind of program they are of."""
    found = record.get("results", record)
    counts: dict[str, int] = {}
    for name, value in next(found[key] for key in ("count", "endings", "outcomes") if key in found).items():
        for outcome, count in value.items() if isinstance(value, dict) else ((name, value),):
            counts[outcome] = counts.get(outcome, 0) + count
    return ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())


if __name__ == "__main__":
    sys.exit(main())
