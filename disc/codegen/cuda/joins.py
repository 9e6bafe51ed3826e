"""Several programs that share the work on one block of a result: each leaves what it found in scratch, the last one joins it.

Joined are the parts in their order, whichever program comes last, so that results do not differ between calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from disc.codegen.cuda.emit import Emitter
from disc.codegen.cuda.kernel import Scratch
from disc.codegen.cuda.names import SCRATCH
from disc.shapes import Dim, dim_min
from disc.speculation.block_schedules import SPLIT_PROGRAMS
from disc.speculation.guards import AtMost

WORD = 4  # bytes of an element of scratch
PAGE = 256  # bytes, which the counters are rounded up to


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
        """A counter for each block, then what the programs leave; in calls in which it does not fit, none is used."""
        reserved = dim_min(self.blocks, Dim.of(self.fits.number))
        counters = (reserved * WORD + (PAGE - 1)) // PAGE * PAGE
        return Scratch(counters + reserved * (self.parts * self.words * WORD), counters)

    def leave(self, e: Emitter, block: str, part: str, lanes: str, value: str) -> None:
        """Stores f32 values at `lanes` of a part's words."""
        e.w.statement(f"tl.store({self._place(e, block, part, lanes)}, {value}.to(tl.int32, bitcast=True))")

    def found(self, e: Emitter, block: str, part: str, lanes: str) -> str:
        """What a part has left; past L1, which may hold what was there before."""
        return f'tl.load({self._place(e, block, part, lanes)}, cache_modifier=".cg").to(tl.float32, bitcast=True)'

    def is_last(self, e: Emitter, block: str) -> str:
        """Whether the program is the last one of its block to have left its part: then it sees all of them."""
        w = e.w
        w.statement("tl.debug_barrier()")  # the stores of all threads come before the one that counts
        return f"{w.let(f'tl.atomic_add({SCRATCH} + {block}, 1)', 'n')} == {self.parts - 1}"

    def _place(self, e: Emitter, block: str, part: str, lanes: str) -> str:
        per = PAGE // WORD
        with e.w.at(e.w.root):
            counters = e.w.let(f"tl.cdiv({e.w.number(self.blocks)}, {per}) * {per}", "i")
        return f"{SCRATCH} + {counters} + ({block} * {self.parts} + {part}) * {self.words} + {lanes}"
