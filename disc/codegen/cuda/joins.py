"""Several programs that share the work on one block of a result: each leaves what it found in scratch, the last one joins it.

Joined are the parts in their order, whichever program comes last, so that results do not differ between calls. Each block has a counter of
its programs; the last one sets it back to 0, so that counters are cleared once for all launches of a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from disc.codegen.cuda.emit import Emitter
from disc.codegen.cuda.kernel import Scratch
from disc.codegen.cuda.names import SCRATCH
from disc.codegen.cuda.text import Scope
from disc.shapes import Dim, dim_min
from disc.speculation.block_schedules import SPLIT_PROGRAMS
from disc.speculation.guards import AtMost
from disc.targets.cuda_thresholds import KERNELS

WORD = 4  # bytes of an element of scratch
COUNTERS = SPLIT_PROGRAMS // 2 * WORD  # bytes: two programs share a block at least


@dataclass(frozen=True)
class Join:
    """parts: programs that share a block; words: of 4 bytes that each leaves; blocks: of the result."""

    parts: int
    words: int
    blocks: Dim

    @property
    def fits(self) -> AtMost:
        """Where there is scratch for all blocks."""
        return AtMost(SPLIT_PROGRAMS // self.parts, self.blocks)

    def scratch(self) -> Scratch:
        """Counters, as many for all kernels, then what the programs leave; in calls in which it does not fit, none is used."""
        reserved = dim_min(self.blocks, Dim.of(self.fits.number))
        return Scratch(reserved * (self.parts * self.words * WORD) + COUNTERS, Dim.of(COUNTERS))

    def leave(self, e: Emitter, block: str, part: str, lanes: str, value: str) -> None:
        """Stores f32 values at `lanes` of a part's words."""
        e.w.statement(f"tl.store({self._place(block, part, lanes)}, {value}.to(tl.int32, bitcast=True))")

    def found(self, e: Emitter, block: str, lanes: Sequence[str], size: int, warps: int) -> Iterator[tuple[str, ...]]:
        """Of each part, the f32 values that it has left at each of `lanes`, `size` in all. As many parts as registers hold are loaded
        before the first of them is used: no load waits for another."""
        ahead = max(1, KERNELS.joined_registers * 32 * warps // size)
        for first in range(0, self.parts, ahead):
            parts = range(first, min(first + ahead, self.parts))
            yield from [tuple(e.w.let(self._found(block, part, each)) for each in lanes) for part in parts]

    @contextmanager
    def last(self, e: Emitter, block: str) -> Iterator[Scope]:
        """What only the last program of a block does to have left its part, which then sees all of them."""
        w = e.w
        w.statement("tl.debug_barrier()")  # the stores of all threads come before the one that counts
        with w.block(f"if {w.let(f'tl.atomic_add({SCRATCH} + {block}, 1)', 'n')} == {self.parts - 1}:") as scope:
            w.statement(f"tl.store({SCRATCH} + {block}, 0)")
            yield scope

    def left(self, block: str, parts: str, lanes: str) -> str:
        """What a launch before has left."""
        return f"tl.load({self._place(block, parts, lanes)}).to(tl.float32, bitcast=True)"

    def _found(self, block: str, part: int, lanes: str) -> str:
        """What a part has left; past L1, which may hold what was there before."""
        return f'tl.load({self._place(block, part, lanes)}, cache_modifier=".cg").to(tl.float32, bitcast=True)'

    def _place(self, block: str, part: int | str, lanes: str) -> str:
        return f"{SCRATCH} + {COUNTERS // WORD} + ({block} * {self.parts} + {part}) * {self.words} + {lanes}"
