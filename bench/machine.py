"""What the machine is and what it can do: description, the limit of multiply-adds, the bandwidth of a copy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("disc", "torch", "torch-mlir", "transformers", "onnxruntime", "openvino", "onnx", "numpy")
FLAGS = ("fma", "avx", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")
COPY_FLOATS = 1 << 26  # 256 MiB, several times any cache
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Limits:
    """flops: of fp32 multiply-adds per second, 2 each. copy: bytes per second, read plus written. how: the way it was measured."""

    flops: float
    copy: float
    how: str


def describe() -> dict[str, object]:
    """CPU, memory, versions and commit, for the head of a result."""
    fields = _cpu_fields()
    have = set(fields.get("flags", "").split())
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
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _commit(),
        "load": round(os.getloadavg()[0], 2),
    }


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
        commit = _output(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"])
        changed = _output(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"])
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed else "")


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def measure_limits(threads: int, seconds: float = 0.2) -> Limits:
    """Both limits with this many threads. Without gcc the FMA limit is the best of torch's matrix products, which may be far lower."""
    try:
        flops = _fma_flops(threads, seconds)
        how = "FMA limit: bench/fma.c, accumulators in registers, gcc -O3 -march=native"
    except (OSError, subprocess.CalledProcessError) as error:
        flops = _matmul_flops(seconds)
        how = f"FMA limit: torch.mm of 1024x1024 (bench/fma.c could not be built: {error}), a lower bound"
    return Limits(flops, _copy_bytes(seconds), f"{how}; copy: torch.Tensor.copy_ of 256 MiB, bytes read plus written")


def _fma_flops(threads: int, seconds: float) -> float:
    lanes = 16 if "avx512f" in _cpu_fields().get("flags", "").split() else 8
    with tempfile.TemporaryDirectory(prefix="disc-bench-") as folder:
        program = f"{folder}/fma"
        flags = ["-O3", "-march=native", "-ffp-contract=fast", "-mprefer-vector-width=512", f"-DDISC_LANES={lanes}", "-pthread"]
        _output(["gcc", *flags, str(ROOT / "bench" / "fma.c"), "-o", program])
        return float(_output([program, str(threads), str(seconds)]))


def higher(one: Limits, other: Limits) -> Limits:
    """The higher of two measurements: a busy machine only ever lowers one."""
    return Limits(max(one.flops, other.flops), max(one.copy, other.copy), other.how)


def _matmul_flops(seconds: float) -> float:
    left, right = torch.ones(1024, 1024), torch.ones(1024, 1024)
    return 2 * 1024**3 / _best(lambda: torch.mm(left, right), seconds)


def _copy_bytes(seconds: float) -> float:
    source, target = torch.ones(COPY_FLOATS), torch.zeros(COPY_FLOATS)
    return 2 * 4 * COPY_FLOATS / _best(lambda: target.copy_(source), seconds)


def _best(call: Callable[[], object], seconds: float) -> float:
    """The shortest time of the calls that fit into `seconds`, at least 3."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
