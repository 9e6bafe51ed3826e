"""Checks disc on this machine's NVIDIA GPU: `python gpu_check.py [--folder build/gpu] [--only PART[:PROGRAM] ...] [--out FOLDER]`.

Needs what `gpu_prepare.py` made, a driver and NumPy; the parts `build`, `models`, `shapes`, `times` and `big` need CMake, a C++ compiler
and nanobind, too, and PyTorch with CUDA where they compare with it. Each part is a process with a time of its own: one that fails, hangs or
ends the GPU's context takes no other with it. One table is printed last; files go to --out ($OUT). `--fake LIBRARY` runs everything on the
stand-in driver of tests/cuda, which executes the kernels' texts in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_parts.job import ROOT, Job
from gpu_parts.report import Report, Row, read_report

# Seconds that each part may take, in the order in which they run: what says most comes first. Together they may take MINUTES.
PARTS = {
    "build": 180, "kernels": 90, "models": 50, "times": 90, "big": 90, "shapes": 70, "tune": 50, "library": 45,
    "sanitizer": 60, "peers": 900,
}  # fmt: skip
ON_DEMAND = ("peers",)  # run where they are asked for alone
MODULES = {"build": "runtime"}  # where it has another name
MINUTES = 8.8
SPARE = 3  # seconds that a part has to end by itself


def run_part(part: str, job: Job, report: Path) -> int:
    """In a process of its own."""
    found = Report(report)
    try:
        importlib.import_module(f"gpu_parts.{MODULES.get(part, part)}").check(job, found)
    except Exception as error:  # whatever it is, the other parts go on
        traceback.print_exc()
        found.wrong(f"{part}: {type(error).__name__}: {error}")
        return 1
    return 0


def start_part(part: str, job: Job, log: Path) -> tuple[list[Row], list[str]]:
    """Runs a part in a process, and ends it when its time is up. Returns what it found."""
    report = job.out / f"{part}.jsonl"
    command = [sys.executable, __file__, "--part", part, "--folder", str(job.folder), "--out", str(job.out), "--report", str(report)]
    command += ["--seconds", str(job.seconds), *(["--fake", job.fake] if job.fake else []), *(["--only", *job.only] if job.only else [])]
    with log.open("a") as file:
        file.write(f"== {part}\n")
        file.flush()
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        try:
            status = process.wait(job.seconds + SPARE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
    rows, wrong = read_report(report)
    if status is None and job.fake:  # as slow as it is, time is up in the middle of a call
        rows.append(Row("left out", note=f"what was under way or not begun after {job.seconds + SPARE:.0f} s"))
    elif status is None:
        wrong.append(f"{part}: was stopped after {job.seconds + SPARE:.0f} s")
    elif status and not wrong:
        wrong.append(f"{part}: ended with status {status}")
    report.unlink(missing_ok=True)
    return rows, wrong


def table(found: dict[str, tuple[list[Row], list[str]]]) -> list[str]:
    """A line per row; ratio: how many times as fast as the peer."""
    cells = [("part", "program", "count", "wrong", "worst", "us", "peer us", "ratio", "")]
    for part, (rows, wrong) in found.items():
        for row in rows:
            ratio = f"{row.peer / row.microseconds:.2f}" if row.peer and row.microseconds else ""
            own, peer = ("" if each is None else f"{each:.1f}" for each in (row.microseconds, row.peer))
            cells.append((part, row.name, str(row.count), str(row.wrong), f"{row.worst:.3f}", own, peer, ratio, row.note))
        if not rows:
            cells.append((part, "", "0", str(len(wrong)), "", "", "", "", "nothing was found" if wrong else "nothing was asked for"))
    widths = [max(len(each[column]) for each in cells) for column in range(8)]
    left = [f"{each[0]:<{widths[0]}}  {each[1]:<{widths[1]}}" for each in cells]
    right = ["  ".join(f"{text:>{width}}" for text, width in zip(each[2:8], widths[2:], strict=True)) for each in cells]
    return [f"{a}  {b}  {each[8]}".rstrip() for a, b, each in zip(left, right, cells, strict=True)]


def wanted_parts(only: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The parts to run, with the names of their programs; () for all. Raises SystemExit for a part that does not exist."""
    parts: dict[str, tuple[str, ...]] = {} if only else {part: () for part in PARTS if part not in ON_DEMAND}
    for each in only:
        part, _, program = each.partition(":")
        if part not in PARTS:
            raise SystemExit(f"--only {each}: the parts are {', '.join(PARTS)}")
        parts[part] = (*parts.get(part, ()), *([program] if program else []))
    return {part: parts[part] for part in PARTS if part in parts}


def main() -> int:
    """Runs the parts that are asked for. Returns 1 where something is wrong, 2 where there is no GPU or nothing to check it with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--only", nargs="*", default=[], help="parts, or programs of parts as part:program")
    parser.add_argument("--out", type=Path, default=Path(os.environ["OUT"]) if os.environ.get("OUT") else None)
    parser.add_argument("--fake", default="", help="the library of the stand-in driver")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for everything together")
    for name, kind in (("--part", str), ("--report", Path), ("--seconds", float)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = chosen.out or Path(scratch)
        job = Job(chosen.folder, out, chosen.fake, tuple(chosen.only), chosen.seconds or 60)
        if chosen.part:
            return run_part(chosen.part, job, chosen.report)
        return run_all(job, wanted_parts(chosen.only), time.monotonic() + 60 * chosen.minutes)


def run_all(job: Job, parts: dict[str, tuple[str, ...]], until: float) -> int:
    """The parts one after the other; then the table."""
    problem = obstacle(job)
    if problem:
        print(problem, file=sys.stderr)
        return 2
    machine = machine_record()
    begin, found, log = time.monotonic(), dict[str, tuple[list[Row], list[str]]](), job.out / "gpu_check.log"
    log.write_text("")
    for part, programs in parts.items():
        seconds = min(PARTS[part], until - time.monotonic() - SPARE)
        if job.fake:  # it has no limit but the whole
            rest = list(parts)[list(parts).index(part) :]
            share = 0.5 if part == "build" and len(rest) > 1 else PARTS[part] / sum(PARTS[each] for each in rest)
            seconds = (until - time.monotonic()) * share - SPARE
        if seconds < 5:
            found[part] = [], [f"{part}: there was no time left"]
            continue
        print(f"{time.monotonic() - begin:6.0f} s  {part}", file=sys.stderr, flush=True)
        found[part] = start_part(part, Job(job.folder, job.out, job.fake, programs, seconds), log)
    wrong = [text for _, texts in found.values() for text in texts]
    lines = [*wrong, f"{time.monotonic() - begin:.0f} s, {len(wrong)} wrong", *table(found)]
    print("\n".join(lines))
    (job.out / "gpu_check.txt").write_text("\n".join(lines) + "\n")
    record = {part: {"rows": [asdict(row) for row in rows], "wrong": texts} for part, (rows, texts) in found.items()}
    (job.out / "gpu_check.json").write_text(json.dumps({"machine": machine, "parts": record}, indent=1))
    return bool(wrong) or any(row.wrong for rows, _ in found.values() for row in rows)


def machine_record() -> dict[str, object]:
    """What else the machine does before anything is measured. gpu_busy: percent, lately; None where nvidia-smi cannot be asked."""
    gpu, busy, command = "", None, ["nvidia-smi", "--query-gpu=name,utilization.gpu", "--format=csv,noheader,nounits", "--id=0"]
    try:
        gpu, _, percent = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip().rpartition(",")
        busy = int(percent)
    except (OSError, ValueError, subprocess.SubprocessError):
        pass
    return {"gpu": gpu, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2), "gpu_busy": busy}


def obstacle(job: Job) -> str:
    """Why nothing can be checked; "" where it can."""
    if not (job.folder / "cases.json").exists():
        return f"{job.folder} has nothing to check with: run gpu_prepare.py on any machine, and bring the folder"
    try:
        ctypes.CDLL(job.fake or "libcuda.so.1")
    except OSError as error:
        return f"no GPU: {error}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
