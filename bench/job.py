"""What a worker process is asked to measure and what it hands back."""

from __future__ import annotations

from dataclasses import dataclass

Result = dict[str, object]


@dataclass(frozen=True)
class Job:
    """One process' work: cases one after the other, with one number of threads, in one dtype.

    shapes: as on the command line; None = the case's own. inductor_shapes: those that inductor takes part in; None = all.
    repeats: turns per figure. freeze: the control group that stands still while anything is timed (`bench.freezer`); None = there is none.
    """

    suite: str
    cases: tuple[str, ...]
    threads: int
    peers: tuple[str, ...]
    shapes: str | None
    repeats: int
    dtype: str = "fp32"
    inductor_shapes: str | None = None
    freeze: str | None = None
