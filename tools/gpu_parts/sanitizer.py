"""Part `sanitizer`: compute-sanitizer looks at the launches of part `kernels`, where the machine has it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from gpu_parts.job import ROOT, Job
from gpu_parts.report import Report, Row

PROGRAMS = ("layer", "rows", "products", "attention", "scatters", "mlp")  # it is slow: some of each kind


def check(job: Job, report: Report) -> None:
    """memcheck: every access within what was allocated, and aligned."""
    tool = shutil.which("compute-sanitizer") or next(map(str, Path("/usr/local").glob("cuda*/bin/compute-sanitizer")), None)
    if tool is None or job.fake:
        report.row(Row("memcheck", note="left out: " + ("the stand-in is no GPU" if job.fake else "no compute-sanitizer")))
        return
    check_kernels = [sys.executable, str(ROOT / "tools" / "gpu_check.py"), "--part", "kernels", "--folder", str(job.folder)]
    check_kernels += ["--report", str(job.out / "sanitized.jsonl"), "--only", *(job.only or PROGRAMS)]
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9", *check_kernels]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=max(job.left, 1))
    except subprocess.TimeoutExpired as late:
        print(late.stdout, late.stderr, file=sys.stderr)
        report.wrong(f"memcheck: was stopped after {job.seconds:.0f} s")
        return
    print(done.stdout[-8000:], done.stderr[-8000:], file=sys.stderr)
    summary = re.search(r"ERROR SUMMARY: (\d+) error", done.stdout + done.stderr)
    if summary is None:
        report.row(Row("memcheck", note=f"left out: it does not work here, status {done.returncode}"))
        return
    first = next((line for line in (done.stdout + done.stderr).splitlines() if "Invalid" in line or "Misaligned" in line), "")
    report.row(Row("memcheck", 1, int(int(summary[1]) > 0), note=f"{summary[1]} errors {first.strip('= ')}".strip()))
    if int(summary[1]):
        report.wrong(f"memcheck: {summary[1]} errors; the first: {first.strip('= ')}")
