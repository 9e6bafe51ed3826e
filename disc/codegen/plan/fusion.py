"""What a device gets to make a kernel of: one fusion, with what is known of its operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from disc.codegen.plan.index import IndexSpace
from disc.ir.graph import Body, Node
from disc.shapes import ShapeEnv
from disc.speculation.guards import ALWAYS, Guard

PLAN = "disc.plan"  # the attribute: a dictionary of texts by the name of the target


@dataclass(frozen=True, eq=False)
class Fusion:
    """One `kernel.fusion`.

    name: for display; kind: loop, stitch, compute, attention or library; body: its region; weights: those of its arguments that are
    weights; guards: of its versions, the best first, the last always holds. env: what is known of the symbols; checked: whether an index
    out of range is an error. makers: for each argument, the fusion that makes it where nothing else reads what that one makes, else None.
    spare: those of its arguments whose memory a result may take: it is the program's own, and nothing reads them afterwards.
    """

    name: str
    kind: str
    body: Body
    weights: frozenset[Node]
    env: ShapeEnv
    checked: bool
    guards: tuple[Guard, ...] = (ALWAYS,)
    makers: tuple[Fusion | None, ...] = ()
    spare: frozenset[Node] = frozenset()

    def space(self) -> IndexSpace:
        """A new space of indices: readers declare loop variables in it."""
        return IndexSpace(self.env.copy(), self.checked)

    def maker(self, argument: int) -> Fusion | None:
        """The fusion that makes an argument for this one alone."""
        return self.makers[argument] if self.makers else None


class KernelPlan(Protocol):
    """What a device has decided of one kernel."""

    @property
    def joins(self) -> int | None:
        """The argument whose maker (`Fusion.makers`) becomes part of this kernel; None where it is a kernel of its own."""
        ...

    def renumbered(self, numbers: Mapping[int, int]) -> KernelPlan:
        """The same decisions where the values of the fusion have other numbers. Equal fusions whose plans are equal then share a kernel."""
        ...
