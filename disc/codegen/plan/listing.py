"""What a device assembles: all text of a program for one target, with which means, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from disc.artifact.cache import Cache
from disc.codegen.plan.kernel import Kernel


@dataclass(frozen=True)
class Listing:
    """shared: text of what several kernels call; host: MLIR text of the functions that run on the CPU."""

    kernels: tuple[Kernel, ...]
    shared: tuple[str, ...]
    host: str

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join([*(kernel.source for kernel in self.kernels), *self.shared, self.host])


@dataclass(frozen=True)
class Means:
    """What a compile may use. threads: that compile. kernels: where code of kernels is kept from one compile to the next, None: nowhere."""

    threads: int = 1
    kernels: Cache | None = None


@dataclass(frozen=True)
class Assembled:
    """code: the section of the artifact. versions: what is known of the code of a kernel's version, by its name; tools: of what made it."""

    code: bytes
    versions: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    tools: Mapping[str, object] = field(default_factory=dict)
