"""Variables that must or should be equal become one before the search (Dali, paper 004, §2.3, footnote 3).

Two loops are coupled where one stage is made of the other (descendants), both run over one symbolic size, and both have the same access
to what may run side by side. A decision about a value is left out where another one decides it: everything that reads the value reads
what a later value is made of it, in the same stages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from disc.shapes import Dim


@dataclass(frozen=True)
class Loop:
    """One loop of one stage. stage: its number; name: for display; size: how often it runs; access: what may become of it: loops with
    another are never coupled. sources: the stages whose values this one reads, directly or through others."""

    stage: int
    name: str
    size: Dim
    access: Hashable
    sources: frozenset[int] = frozenset()


def couple(loops: Sequence[Loop], equal: Callable[[Dim, Dim], bool]) -> list[tuple[Loop, ...]]:
    """The classes of loops that share one decision, in the order of their first loops. equal: whether two sizes are known to be one."""
    owner = list(range(len(loops)))

    def root(number: int) -> int:
        while owner[number] != number:
            number = owner[number]
        return number

    for number, loop in enumerate(loops):
        for other in range(number):
            if _coupled(loop, loops[other], equal):
                first, second = sorted((root(number), root(other)))
                owner[second] = first
    classes: dict[int, list[Loop]] = {}
    for number, loop in enumerate(loops):
        classes.setdefault(root(number), []).append(loop)
    return [tuple(found) for found in classes.values()]


def _coupled(loop: Loop, other: Loop, equal: Callable[[Dim, Dim], bool]) -> bool:
    related = loop.stage == other.stage or loop.stage in other.sources or other.stage in loop.sources
    return related and loop.access == other.access and equal(loop.size, other.size)
