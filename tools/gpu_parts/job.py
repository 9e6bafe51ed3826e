"""What a part is asked for, and the machine that it runs on: an NVIDIA GPU, or the stand-in driver of tests/cuda."""

from __future__ import annotations

import ctypes
import lzma
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_parts.report import Report, Row

ROOT = Path(__file__).resolve().parents[2]
PACKED = ".xz"  # what a packed file's name ends with


def write_packed(file: Path, content: bytes) -> None:
    """Writes a file of the folder that is taken along."""
    file.write_bytes(lzma.compress(content, preset=6))


def read_packed(file: Path) -> bytes:
    """What `write_packed` was given."""
    return lzma.decompress(file.read_bytes())


@dataclass(frozen=True)
class Job:
    """folder: what gpu_prepare.py made. fake: the stand-in's library, "" on a GPU. only: names of programs, () for all. seconds: the part's
    time; what is not begun then is left out. out: the folder for files of the part's own."""

    folder: Path
    out: Path
    fake: str = ""
    only: tuple[str, ...] = ()
    seconds: float = 60
    begin: float = field(default_factory=time.monotonic)

    def wants(self, name: str) -> bool:
        """Whether a program was asked for."""
        return not self.only or name in self.only

    @property
    def left(self) -> float:
        """Seconds until the part should end by itself."""
        return self.begin + self.seconds - time.monotonic()

    def is_late(self, report: Report, rest: str) -> bool:
        """Whether the part's time is up. What is then not run is wrong; on the stand-in, which is slow, it is a row of the table."""
        if self.left >= 0:
            return False
        if self.fake:
            report.row(Row("left out", note=rest))
        else:
            report.wrong(f"time is up: {rest} not run")
        return True

    def driver(self) -> ctypes.CDLL:
        """NVIDIA's, or the stand-in. Raises OSError where there is none."""
        if not self.fake:
            return ctypes.CDLL("libcuda.so.1")
        from gpu_parts.stand_in import stand_in

        return stand_in(self.fake, self.folder)

    def device(self) -> Any:
        """Where programs run: `devices.Stand`, `devices.Cuda`, or `devices.Host` where PyTorch has no CUDA."""
        from gpu_parts.devices import find_device

        return find_device(self)
