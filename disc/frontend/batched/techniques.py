"""What `disc.batched` does to be fast. Each can be left out, to measure it or to find out whose fault an error is."""

from __future__ import annotations

from dataclasses import dataclass

CHEAPEST, DEPTH, AGENDA, MOST = range(4)  # as RAL_ORDER_CHEAPEST in ral.h


@dataclass(frozen=True)
class Techniques:
    """native_walk: models whose recursion instances alone decide run no Python. native_skeleton: others run none either where instructions
    say all that they do. native_recorder: calls of blocks are recorded in C++.
    native_schedule: the launches of a batch are one native call. order: how launches are ordered, by what they cost or always in one way.
    """

    native_walk: bool = True
    native_skeleton: bool = True
    native_recorder: bool = True
    native_schedule: bool = True
    order: int = CHEAPEST


ALL = Techniques()
