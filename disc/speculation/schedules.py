"""The schedules of a GEMM (paper 002, §5.2.2): how a kernel that is compiled once walks over its matrices, as a handful of numbers that it
gets with every call. `tree.py` chooses them, `tune.py` measures them.
"""

from __future__ import annotations

from dataclasses import dataclass

TILE_ROWS = 6  # rows of a tile, which the rows of a task are a multiple of
FEATURES = ("m", "n", "k", "batch", "threads")
LIBRARY = len(FEATURES)  # the number of a further question of trees of GPUs: whether there is a library of products, 1 or 0
QUESTIONS = (*FEATURES, "library")  # the names of all of them
# The arguments of a kernel that are its schedule in every call: rows of a task, the number of such blocks of rows, rows of a panel at a
# time, how to prefetch, the order of tasks, values of k of a task, and the number of such parts of k.
BLOCKS = "g_blocks"
SCHEDULE_SYMBOLS = ("g_rows", BLOCKS, "g_depth", "g_ahead", "g_panels_first", "g_span", "g_parts")


@dataclass(frozen=True)
class Schedule:
    """How a GEMM walks over its matrices.

    rows: rows of A in a task; they are read from L2 once for every panel of B. k: rows of a panel of B at a time (one for each value of k
    in f32): that part stays in L2 while the task's rows are multiplied. ahead: 1 to prefetch the next part of a packed B during the current
    one, a share in every tile. panels_first: 1 when consecutive tasks share rows of A, 0 when they
    share a panel of B. parts: into how many parts k is split, which are tasks of their own; their sums are added in the end. The one field
    that changes results (in their last bits): set by the number of threads, it makes results depend on that.
    """

    rows: int
    k: int
    ahead: int
    panels_first: int
    parts: int = 1

    def describe(self) -> str:
        """The text that `explain` shows."""
        order = "panels first" if self.panels_first else "rows first"
        ahead = "next part prefetched" if self.ahead else "no prefetch"
        parts = f", k split into {self.parts} parts" if self.parts > 1 else ""
        return f"{self.rows} rows x {self.k} of k, {order}, {ahead}{parts}"


# The family that is measured. 120 rows of 768 values are a third of a 1 MiB L2; 64 columns of 768 values a fifth of it.
FAMILY: tuple[Schedule, ...] = tuple(
    Schedule(rows, k, ahead, panels_first)
    for rows in (30, 60, 120, 240)
    for k in (256, 512, 1024, 4096)
    for ahead in (0, 1)
    for panels_first in (0, 1)
)
