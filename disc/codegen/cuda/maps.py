"""Factors of products that are loaded by tensor maps (TMA): a program describes a matrix once, and one of its threads asks for a block at a
time, whose elements outside of the matrix are 0.

A program makes its maps by itself: Triton writes them to global scratch memory, which the runtime gives to every launch
(`ral_gpu_kernel`). For GPUs before Hopper they become pointers.
"""

from __future__ import annotations

from dataclasses import dataclass

from disc.codegen.cuda.emit import Buffer, Emitter
from disc.codegen.cuda.products import Matrices, factors_in_memory
from disc.codegen.cuda.vectors import whole_lines
from disc.codegen.plan.contraction import Contraction, declare
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.index import ONE, ZERO, IndexSpace
from disc.errors import CompilerBug
from disc.shapes import Dim
from disc.speculation.block_schedules import BlockSchedule

FACTORS = 2  # of a product, each with a map
MAP_BYTES = 128
FIRST_ARCHITECTURE = 90


@dataclass(frozen=True)
class Map:
    """name: in the text; turned: whether values of k are the rows of what it loads."""

    name: str
    turned: bool

    def load(self, place: str, step: str) -> str:
        """A block of rows or columns from `place` on, by values of k from `step` on, as it lies in memory."""
        return f"{self.name}.load([{f'{step}, {place}' if self.turned else f'{place}, {step}'}])"


def mapped_factors(fusion: Fusion, space: IndexSpace, c: Contraction) -> tuple[Matrices, Matrices] | None:
    """Where the factors of a product are, whose loops are declared, if tensor maps can load them: both are matrices, whose rows lie
    multiples of 16 bytes apart, as those of a batch, where `line_guards` and the alignment of addresses hold."""
    left, right = factors_in_memory(fusion, space, c)
    if left is None or right is None or left.element != right.element:
        return None
    if ONE in (c.m if left.apart else c.k, c.n if right.apart else c.k):  # a line of one element: another loop's may be its neighbors
        return None
    steps = [(step, each.element) for each in (left, right) for step in (each.ahead, each.step)]
    return (left, right) if whole_lines(space, c, *steps) else None


def may_map(fusion: Fusion, space: IndexSpace, c: Contraction, schedule: BlockSchedule) -> bool:
    """Whether the schedule's maps, if it has any, can load the factors; persistent programs make theirs once, for one matrix each. The
    loops of the product become declared."""
    declare(space, c)
    return not schedule.mapped or ((c.batch == ONE or not schedule.persistent) and mapped_factors(fusion, space, c) is not None)


def make_maps(e: Emitter, fusion: Fusion, c: Contraction, block: BlockSchedule) -> tuple[Map, Map]:
    """Those of both factors, made where their batch is known; outside of loops over blocks of one matrix."""
    found = mapped_factors(fusion, e.space, c)
    if found is None:
        raise CompilerBug(f"tensor maps cannot load the factors of fusion {fusion.name}")
    left, right = found
    return (
        _make(e, fusion, left, (c.m, c.k), (block.rows, block.depth)),
        _make(e, fusion, right, (c.n, c.k), (block.columns, block.depth)),
    )


def _make(e: Emitter, fusion: Fusion, matrices: Matrices, sizes: tuple[Dim, Dim], block: tuple[int, int]) -> Map:
    """sizes, block: rows or columns, and values of k."""
    w, leaf = e.w, e.leaves[fusion.body.arguments[matrices.place]]
    assert isinstance(leaf, Buffer)
    batched = matrices.step != ZERO
    with w.at(w.scope_of(("gb",) if batched else ())):
        base = f"{leaf.pointer} + {w.variables['gb'].name} * {w.number(matrices.step)}" if batched else leaf.pointer
        (rows, columns), box = (sizes[::-1], block[::-1]) if matrices.apart else (sizes, block)
        shape, strides = f"[{w.number(rows)}, {w.number(columns)}]", f"[{w.number(matrices.ahead)}, 1]"
        name = w.let(f"tl.make_tensor_descriptor({base}, {shape}, {strides}, [{box[0]}, {box[1]}])", "map")
    return Map(name, matrices.apart)
