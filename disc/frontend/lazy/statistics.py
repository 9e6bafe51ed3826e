"""What the recorder did, and how long it took."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from disc.ral._ral import Follower


@dataclass
class LazyStatistics:
    """Since recording began, or `reset`.

    recorded: calls that were only compared with a compiled trace; noted: calls that PyTorch ran at once, and that were noted. hits: traces
    that ran compiled; uncompiled: those that PyTorch ran. compiles: programs made; shared: traces that took the program of another one,
    as they differ by numbers of steps alone. alone: line → calls that cannot be part of a program;
    refused: reason → traces that are not compiled; settled: what was asked of a tensor → how often it had to be computed for that.

    Times in nanoseconds: recording_ns: comparing calls with traces (the expression hash of Dali); replaying_ns: choosing the program for a
    trace by its guards (cached transformation); transforming_ns: making a graph of a trace the first time; optimizing_ns: compiling it;
    computing_ns: running it.
    """

    recorded: int = 0
    noted: int = 0
    hits: int = 0
    uncompiled: int = 0
    compiles: int = 0
    shared: int = 0
    alone: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    settled: Counter[str] = field(default_factory=Counter)
    recording_ns: int = 0
    replaying_ns: int = 0
    transforming_ns: int = 0
    optimizing_ns: int = 0
    computing_ns: int = 0

    def follow(self, follower: Follower) -> None:
        """Takes over what a follower has counted since the last time."""
        recorded, recording_ns, hits, replaying_ns, computing_ns = follower.take_counts()
        self.recorded += recorded
        self.recording_ns += recording_ns
        self.hits += hits
        self.replaying_ns += replaying_ns
        self.computing_ns += computing_ns
