"""What the machine is: CPU, memory, versions and commit, for the head of a result."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

from disc.config import VERSION

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "torch-mlir", "transformers", "onnxruntime", "openvino", "onnx", "numpy")
FLAGS = ("fma", "avx", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")
PAGE = os.sysconf("SC_PAGE_SIZE")
IDLE_LOAD = 0.3  # threads that want to run, on average, on a machine that counts as idle
WAIT_SECONDS = 180.0


def describe() -> dict[str, object]:
    """CPU, memory, versions and commit, for the head of a result."""
    fields = _cpu_fields()
    have = cpu_flags()
    memory = os.sysconf("SC_PHYS_PAGES") * PAGE
    return {
        "cpu": fields.get("model name", platform.processor()),
        "family": fields.get("cpu family", ""),
        "model": fields.get("model", ""),
        "cache": fields.get("cache size", ""),
        "flags": [flag for flag in FLAGS if flag in have],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {"disc": VERSION} | {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _commit(),
        "load": round(os.getloadavg()[0], 2),
    }


def wait_until_idle() -> None:
    """Waits until the load has fallen, but no longer than three minutes: a run that has just ended counts for one or two."""
    end = time.monotonic() + WAIT_SECONDS
    while os.getloadavg()[0] > IDLE_LOAD and time.monotonic() < end:
        time.sleep(5)


def others_running(seconds: float = 2.0) -> float:
    """How many threads of others want to run, while this process sleeps and nothing of it runs: the median over that time, since a short
    task of the system, or the end of a process of ours, is no load."""

    def running() -> int:
        time.sleep(seconds / 50)
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1  # without this one

    return statistics.median(running() for _ in range(50))


def cpu_flags() -> set[str]:
    """The CPU's features, as /proc/cpuinfo names them."""
    return set(_cpu_fields().get("flags", "").split())


def _cpu_fields() -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo."""
    entry = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    pairs = (line.split(":", 1) for line in entry.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    """The commit, with "+" when tracked files differ from it; "unknown" outside git."""
    try:
        commit = output_of(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"])
        changed = output_of(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"])
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed else "")


def output_of(command: list[str]) -> str:
    """What a command prints. Raises OSError without it, subprocess.CalledProcessError when it fails."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
