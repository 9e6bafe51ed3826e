"""Measures `disc serve`: `python -m bench.serving [--suites overhead,overload,reload,drain,soak] [--minutes 30]`.

Every suite is a module of bench/served, with a result of its own (`bench.store`), whose report shows each figure with its goal. Without
--suites all but the soak run, some six minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.machine import wait_until_idle
from bench.report import head
from bench.served.drain import drain
from bench.served.overhead import overhead
from bench.served.overload import overload
from bench.served.reload import reload
from bench.served.report import report
from bench.served.soak import MINUTES, soak
from bench.store import RESULTS, busy, command_line, keep, new_record

DRAINS = 25  # of a run; a hundred: --drains 100


def main(arguments: Sequence[str] | None = None) -> int:
    chosen, suites = _parse(arguments)
    command = command_line("python -m bench.serving", sys.argv[1:] if arguments is None else arguments)
    for name, suite in suites.items():
        if not chosen.smoke:
            wait_until_idle()
        print(name, file=sys.stderr, flush=True)
        record = new_record(f"serving-{name}", command, {})
        with tempfile.TemporaryDirectory(prefix="disc-bench-") as folder:
            record["results"] = {name: suite(Path(folder))}
        record["smoke"] = ["--smoke was given"] * chosen.smoke + busy(record["machine"]["load"])
        text = f"{head(record)}\n\n{report(record['results'])}\n"
        print(text)
        keep(record, text, f"serving-{name}", chosen.output)
    return 0


def _parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, dict[str, Callable[[Path], Mapping[str, Any]]]]:
    parser = argparse.ArgumentParser(
        prog="python -m bench.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suites", default="overhead,overload,reload,drain")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of the soak")
    parser.add_argument("--drains", type=int, default=DRAINS, help="servers that are terminated")
    parser.add_argument("--smoke", action="store_true", help="on a busy machine: do not wait, keep nothing in bench/results")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
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
