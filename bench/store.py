"""Where results are kept, and what may be kept there.

bench/results/<machine>/<suite>-<dtype>-t<threads>.json, with a report (.md) next to it, is the latest whole run of a suite on an idle
machine; git has those before. What the fuzzers and sweeps found lies in bench/results/fuzz. Everything else is smoke, for build/bench.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.figures import Record
from bench.machine import IDLE_LOAD, ROOT, describe

RESULTS = ROOT / "bench" / "results"
SMOKE = ROOT / "build" / "bench"


def new_record(suite: str, command: str, results: object) -> dict[str, Any]:
    """What every result says first. To be made before anything is measured: it holds the load of the machine."""
    date = date_text(datetime.datetime.now(datetime.UTC))
    return {"suite": suite, "date": date, "machine": describe(), "command": command, "results": results}


def date_text(time: datetime.datetime) -> str:
    """As results have it."""
    return time.strftime("%Y-%m-%d %H:%M UTC")


def command_line(program: str, arguments: Sequence[str]) -> str:
    """The command without `--output FOLDER`, and with the names alone of files elsewhere: nothing of it depends on this machine."""
    kept: list[str] = []
    previous = ""
    for argument in arguments:
        if previous != "--output" and argument != "--output" and not argument.startswith("--output="):
            kept.append(Path(argument).name if argument.startswith("/") else argument)
        previous = argument
    return " ".join([program, *kept])


def busy(load: float) -> list[str]:
    """Why figures taken under this load are smoke: a list of no or one reason."""
    return [f"the machine was not idle (load {load:.2f})"] if load > IDLE_LOAD else []


def machine_name(machine: Mapping[str, object]) -> str:
    """ "amd-epyc-family-25-model-17-2-cores": CPUs of one name differ in their models."""
    return slug(f"{machine['cpu']} family {machine['family']} model {machine['model']} {machine['cores']} cores")


def slug(text: str) -> str:
    """A name as that of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def stem_of(suite: str, dtype: str, threads: int) -> str:
    """The name of a result: one for each of these."""
    return f"{suite}-{dtype}-t{threads}"


def keep(record: Record, text: str, stem: str, folder: Path = RESULTS) -> Path:
    """Writes a result and its report in the machine's part of `folder`, in the place of the one before; returns the JSON's path.

    Where record["smoke"] has a reason and `folder` is the project's own, it is written to build/bench, with a message.
    """
    if record["smoke"] and folder.resolve().is_relative_to(RESULTS):
        print(f"{stem} is not kept in bench/results: {'; '.join(record['smoke'])}", file=sys.stderr)
        folder = SMOKE
    path = folder / machine_name(record["machine"]) / f"{stem}.json"
    write_json(path, record)
    path.with_suffix(".md").write_text(text)
    print(f"written: {path}, .md", file=sys.stderr)
    return path


def updated(record: Record, stem: str, folder: Path) -> Record:
    """The result that is kept, with the cases of `record` in the place of the same ones; each says of which run it is. Raises
    FileNotFoundError where none is kept."""
    path = folder / machine_name(record["machine"]) / f"{stem}.json"
    kept = json.loads(path.read_text())
    run = {"date": record["date"], "commit": record["machine"]["commit"], "command": record["command"], "load": record["machine"]["load"]}
    new = {each["case"]: {**each, "run": run} for each in record["results"]}
    results = [new.pop(each["case"], each) for each in kept["results"]]
    return {**kept, "results": [*results, *new.values()], "smoke": [*kept["smoke"], *record["smoke"]]}


def finding(suite: str, program: str, results: Mapping[str, object], output: Path | None) -> None:
    """What a fuzzer or a test of faults found: printed, or written to `output` with what a result says first, whatever the load was."""
    if output is None:
        print(json.dumps(results))
    else:
        write_json(output, new_record(suite, command_line(program, sys.argv[1:]), results))


def write_json(path: Path, record: Record) -> None:
    """In one step, so that an interrupted run leaves the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(".new")
    made.write_text(json.dumps(record, indent=1) + "\n")
    made.replace(path)
