"""Memory that batches with gradients use again: what a step needs is as large as what the last one needed, and pages that the system hands
out anew have to be cleared by it."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import torch
from torch import Tensor


class Memory:
    """Buffers that nobody uses now. Several threads may take and give."""

    def __init__(self) -> None:
        self._free: dict[torch.dtype, list[Tensor]] = {}  # flat, by size
        self._lock = threading.Lock()

    def take(self, dtype: torch.dtype, count: int) -> Tensor:
        """A flat buffer of at least `count` elements, its values whatever they are. One that is too small makes room for a new one."""
        with self._lock:
            free = self._free.setdefault(dtype, [])
            place = next((place for place, each in enumerate(free) if each.numel() >= count), None)
            if place is not None:
                return free.pop(place)
            if free:
                free.pop()
        return torch.empty(count + count // 4, dtype=dtype)

    def give(self, buffers: Sequence[Tensor]) -> None:
        with self._lock:
            for each in buffers:
                free = self._free.setdefault(each.dtype, [])
                free.append(each)
                free.sort(key=Tensor.numel)


class Loan:
    """Tensors in memory that is given back together, by `end`."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._taken: list[Tensor] = []

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Its values are whatever they are."""
        count = math.prod(shape)
        self._taken.append(self._memory.take(dtype, count))
        return self._taken[-1][:count].view(*shape)

    def end(self) -> None:
        """Nobody may use the tensors from now on."""
        self._memory.give(self._taken)
        self._taken = []
