"""Measures `disc serve`: `python -m bench.serving [--suites overhead,overload,reload,drain,soak] [--minutes 30]`.

Every suite is a module of bench/served. Without --suites all but the soak run, some six minutes. Writes bench/results/<date>-serving.json
and a Markdown report beside it, which sets each figure beside its goal.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.machine import ROOT, describe
from bench.report import head
from bench.run import free_path
from bench.served.drain import drain
from bench.served.overhead import overhead
from bench.served.overload import overload
from bench.served.reload import reload
from bench.served.report import report
from bench.served.soak import MINUTES, soak

DRAINS = 25  # of a run; a hundred: --drains 100


def main(arguments: Sequence[str] | None = None) -> int:
    chosen, suites = _parse(arguments)
    machine = describe()
    results: dict[str, Mapping[str, Any]] = {}
    for name, suite in suites.items():
        print(name, file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="disc-bench-") as folder:
            results[name] = suite(Path(folder))
    now = datetime.datetime.now(datetime.UTC)
    record = {"suite": "serving", "date": now.strftime("%Y-%m-%d %H:%M UTC"), "machine": machine, "results": results}
    text = f"{head(record)}\n\n{report(results)}\n"
    print(text)
    chosen.output.mkdir(parents=True, exist_ok=True)
    path = free_path(chosen.output, f"{now:%Y-%m-%d}-serving")
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(text)
    print(f"written: {path}, .md", file=sys.stderr)
    return 0


def _parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, dict[str, Callable[[Path], Mapping[str, Any]]]]:
    parser = argparse.ArgumentParser(
        prog="python -m bench.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suites", default="overhead,overload,reload,drain")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of the soak")
    parser.add_argument("--drains", type=int, default=DRAINS, help="servers that are terminated")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results", help="folder of the results")
    chosen = parser.parse_args(arguments)
    known: dict[str, Callable[[Path], Mapping[str, Any]]] = {
        "overhead": overhead, "overload": overload, "reload": reload,
        "drain": lambda folder: drain(folder, chosen.drains), "soak": lambda folder: soak(folder, chosen.minutes),
    }  # fmt: skip
    names = [name for name in chosen.suites.split(",") if name]
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"unknown suites: {', '.join(unknown)}; there are {', '.join(known)}")
    return chosen, {name: known[name] for name in names}


if __name__ == "__main__":
    sys.exit(main())
