"""How a compile service is set up."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from disc.serving.settings import Access, Tls

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class CompileLimits:
    """What clients and jobs may use.

    message_bytes: of one gRPC message. upload_bytes: program and weights of one job. upload_s: in which they must arrive. uploads: at
    the same time. arrival_s: in which the first message of a call, and each next piece of an upload, must arrive. upload_rate: bytes per
    second of an upload, after its first `arrival_s`. connections: at a time. idle_s: how long one may be open without a request.

    queue: jobs that may wait; more are refused. requests: answered at the same time. cpu_s, wall_s: seconds of one job. memory_bytes: its
    address space. disk_bytes: what it may write. results_bytes: of all artifacts kept, the least recently used go first.
    """

    message_bytes: int = 8 * MIB
    upload_bytes: int = 4 * GIB
    upload_s: float = 600
    uploads: int = 4
    arrival_s: float = 20
    upload_rate: int = 128 << 10
    connections: int = 256
    idle_s: float = 300
    queue: int = 16
    requests: int = 64
    cpu_s: int = 900
    wall_s: float = 900
    memory_bytes: int = 16 * GIB
    disk_bytes: int = 12 * GIB
    results_bytes: int = 32 * GIB


@dataclass(frozen=True)
class CompileSettings:
    """folder: for uploads, jobs and results; no other user may write to it. jobs: compilers at the same time. drain_timeout_s: how long
    running jobs may take after SIGTERM. worker: the command of a job, which runs confined in its folder (`job.py`)."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8010  # TCP
    jobs: int = 1
    drain_timeout_s: float = 30.0
    limits: CompileLimits = field(default_factory=CompileLimits)
    tls: Tls | None = None
    access: Access = field(default_factory=Access)
    worker: tuple[str, ...] = (sys.executable, "-P", "-s", "-m", "disc.serving.compile_service.job")

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", self.folder.absolute())  # jobs move into it
