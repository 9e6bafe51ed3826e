"""Where programs run: tensors of PyTorch on the GPU, or, where it has no CUDA and on the stand-in, tensors of the host."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_parts.driver import Array, Gpu
from gpu_parts.job import PACKED, ROOT, Job, read_packed

if TYPE_CHECKING:
    from disc.ral.executable import Executable

ROUNDS, ROUND = 5, 5e-3  # measurements, and seconds of each


class Host:
    """A program for a GPU takes tensors of the host, which the runtime copies there and back. peers: whether eager PyTorch runs there."""

    peers = False

    def __init__(self, job: Job) -> None:
        self.gpu = Gpu(job.driver())  # before disc looks for a driver: the runtime takes the library that is loaded
        sys.path[:0] = [str(ROOT)]
        self._scratch = tempfile.TemporaryDirectory()  # files that programs may read later

    def load(self, path: Path) -> Executable:
        """The program of a file, packed or not, for this GPU."""
        return self.load_for(path, "cuda")

    def load_for(self, path: Path, isa: str | None) -> Executable:
        """The program of a file, packed or not, as `disc.load` does."""
        import disc

        if path.suffix == PACKED:
            plain = Path(self._scratch.name) / path.stem
            if not plain.exists():
                plain.write_bytes(read_packed(path))
            path = plain
        return disc.load(path, isa=isa)

    def place(self, array: Array, element: str) -> Any:
        """A tensor with the array's values. bf16 comes as its bits."""
        del element
        return array

    def read(self, tensor: Any) -> Array:
        """The values of a tensor; of bf16, the bits."""
        return np.asarray(tensor)

    def wait(self) -> None:
        """Until the GPU is done."""

    def microseconds(self, call: Callable[[], object]) -> float:
        """Of one call: the median of some rounds of several, after one that does not count."""
        call()
        begin = time.perf_counter()
        call()
        self.wait()
        many = max(1, min(1000, int(ROUND / (time.perf_counter() - begin))))
        return statistics.median(self.round(call, many) for _ in range(ROUNDS)) / many

    def round(self, call: Callable[[], object], many: int) -> float:
        """Microseconds of so many calls."""
        begin = time.perf_counter()
        for _ in range(many):
            call()
        self.wait()
        return (time.perf_counter() - begin) * 1e6


class Stand(Host):
    """The stand-in: its times say nothing, so a call is made once."""

    def microseconds(self, call: Callable[[], object]) -> float:
        return self.round(call, 1)


class Cuda(Host):
    """PyTorch's tensors on the first GPU, calls on its current stream."""

    peers = True

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        import torch

        self._torch = torch
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def load(self, path: Path) -> Executable:
        return self.load_for(path, None)

    def place(self, array: Array, element: str) -> Any:
        tensor = self._torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
        return (tensor.view(self._torch.bfloat16) if element == "bf16" else tensor).cuda()

    def read(self, tensor: Any) -> Array:
        host = tensor.detach().cpu()
        return host.view(self._torch.int16).numpy().view(np.uint16) if host.dtype == self._torch.bfloat16 else host.numpy()

    def wait(self) -> None:
        self._torch.cuda.synchronize()

    def round(self, call: Callable[[], object], many: int) -> float:
        """By events around the calls: what the GPU waits for the host counts."""
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(many):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3


def find_device(job: Job) -> Host:
    """The best there is. Raises OSError and DriverError without a GPU."""
    if job.fake:
        return Stand(job)
    try:
        import torch
    except ImportError:
        return Host(job)
    return Cuda(job) if torch.cuda.is_available() else Host(job)


def resident_bytes() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
