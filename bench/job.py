"""What a worker process is asked to measure and what it hands back."""

from __future__ import annotations

from dataclasses import dataclass

Result = dict[str, object]


@dataclass(frozen=True)
class Job:
    """One process' work. shapes: as on the command line; None = the case's own. repeats: turns per figure."""

    suite: str
    model: str
    threads: int
    peers: tuple[str, ...]
    shapes: str | None
    repeats: int
