"""Resident memory of a process, and that of a runtime alone with its model file.

`python -m bench.memory RUNTIME FILE THREADS PRECISION INPUT.npy...` prints a JSON object with bytes: `start` (after the imports), `load`
(the peak until the first call could be made) and `calls` (the peak during calls).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench.machine import PAGE, ROOT
from disc.cli.bench.runtimes import OPEN


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def peak_of(work: Callable[[], object]) -> int:
    """The highest resident memory of this process, in bytes, while `work` runs."""
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM
    work()
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def runtime_memory(runtime: str, file: Path, threads: int, precision: str, inputs: Sequence[Path]) -> dict[str, int]:
    """Runs this module in a process of its own. Raises subprocess.CalledProcessError when it fails."""
    command = [sys.executable, "-m", "bench.memory", runtime, str(file), str(threads), precision, *map(str, inputs)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(runtime: str, file: str, threads: str, precision: str, *inputs: str) -> None:
    arrays = [np.load(path) for path in inputs]
    __import__({"disc": "disc", "ort": "onnxruntime", "openvino": "openvino"}[runtime])
    figures = {"start": resident_bytes()}
    opened: list[Callable[[], object]] = []
    figures["load"] = peak_of(lambda: opened.append(OPEN[runtime](Path(file), int(threads), precision)(arrays)))
    figures["calls"] = peak_of(lambda: [opened[0]() for _ in range(3)])
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
