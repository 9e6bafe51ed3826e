"""Part `build`: the runtime and its Python binding, by CMake, from this checkout. Needs no torch-mlir and no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

from gpu_parts.job import ROOT, Job
from gpu_parts.report import Report, Row

BUILT = "runtime"  # of the folder: binaries that gpu_prepare.py made for another Python, in case that building fails


def check(job: Job, report: Report) -> None:
    """Leaves the libraries beside their sources, where `import disc` finds them. Those that are there already stay."""
    begin = time.monotonic()
    if _imports() == "":
        report.row(Row("runtime", 1, note="is there"))
        return
    try:
        _build(job.left)
    except (OSError, subprocess.SubprocessError) as error:
        words = (error.stdout or error.stderr or "") if isinstance(error, subprocess.CalledProcessError) else ""
        print(words, file=sys.stderr)
        last = [line for line in words.splitlines() if "error" in line.lower()][:1] or words.splitlines()[-1:]
        report.wrong(f"the runtime does not build: {error!s:.200} {' '.join(last)}")
        for file in sorted((job.folder / BUILT).glob("*.so")):
            shutil.copy(file, ROOT / "disc" / "ral" / file.name)
    problem = _imports()
    report.row(Row("runtime", 1, int(problem != ""), note=problem or f"built in {time.monotonic() - begin:.0f} s"))
    if problem:
        report.wrong(f"the runtime: {problem}")


def _imports() -> str:
    """Why a process of this Python cannot import disc; "" where it can."""
    code = "import disc; from disc.ral import _ral; assert _ral.ABI_VERSION"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=_environment())
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["status " + str(done.returncode)])[-1]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def build_commands(python: str, folder: str, cmake: Sequence[str], nanobind: str, options: Sequence[str] = ()) -> list[list[str]]:
    """What configures and builds for a Python. nanobind: the folder of its CMake package."""
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = [*cmake, "-S", str(ROOT), "-B", folder, *generator, "-DCMAKE_BUILD_TYPE=Release", "-DDISC_STRICT=OFF", *options]
    return [
        [*configure, f"-DPython_EXECUTABLE={python}", f"-Dnanobind_DIR={nanobind}"],
        [*cmake, "--build", folder, "--parallel", str(os.cpu_count() or 2)],
    ]


def _build(seconds: float) -> None:
    """Raises OSError without CMake, CalledProcessError with what the build said, TimeoutExpired."""
    until = time.monotonic() + seconds
    cmake = [shutil.which("cmake")] if shutil.which("cmake") else [sys.executable, "-m", "cmake"]
    found = subprocess.run([sys.executable, "-m", "nanobind", "--cmake_dir"], capture_output=True, text=True, check=True)
    folder = str(ROOT / "build" / f"runtime-{sys.version_info.major}{sys.version_info.minor}")
    for command in build_commands(sys.executable, folder, [str(each) for each in cmake], found.stdout.strip(), ["-DDISC_IN_SOURCE=ON"]):
        subprocess.run(
            command, check=True, timeout=max(until - time.monotonic(), 1), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
