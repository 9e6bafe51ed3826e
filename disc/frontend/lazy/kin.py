"""Traces that differ by the numbers of steps of their loops alone, and by sizes and other numbers: what has been seen of them, and the
programs that they share (the cached transformation of Dali, paper 004, section 2, where Python unrolls a loop)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from disc.frontend.lazy.families import Family
from disc.frontend.lazy.made_again import Place
from disc.frontend.lazy.outline import Outline
from disc.frontend.lazy.traces import History
from disc.frontend.lazy.unrolled import Pattern, Unrolled
from disc.frontend.lazy.variants import Variant
from disc.frontend.loops_found import FEWEST_STEPS

WORTH_COMPILING = 2  # runs of a trace, or of its kin
FEWEST_VARYING = 3  # steps of a loop that other traces have with another number of steps
MOST_ALIKE = 4  # families of the same kin, of which one may hold for a batch of 1 and another for all others
MOST_KIN = 64  # that are remembered, those seen last first


@dataclass(frozen=True)
class Facts:
    """What kin have in common, but for their calls: of every input what programs take it by, and what the trace does with it; whether
    gradients may be asked for."""

    inputs: tuple[object, ...]
    gradients: Mapping[int, int]
    twins: Mapping[int, int]
    sharing: Set[int]
    written: Set[int]
    differentiable: bool

    @classmethod
    def of(cls, outline: Outline) -> Facts:
        inputs = tuple(
            (each.dtype, each.device, each.dim(), each.requires_grad, each.is_leaf, each.requires_grad and each._is_view())
            for each in outline.tensors
        )
        return cls(inputs, dict(outline.run.gradients), outline.twins, outline.sharing, outline.written, outline.differentiable)


@dataclass(eq=False)
class Kin:
    """families: the programs, that made last first. history: of runs by PyTorch; history.runs: those that no program would have served.
    counts: of the loops, as last seen; steady: those loops of which no trace has shown that they are worth one program for any count.
    refused: why there is no program."""

    pattern: Pattern
    facts: Facts
    history: History = field(default_factory=History)
    families: list[Family] = field(default_factory=list)
    refused: str = ""
    counts: dict[int, int] = field(default_factory=dict)
    steady: set[int] = field(default_factory=set)
    _numbers: dict[Place, Sequence[float]] = field(default_factory=dict)
    _varied: dict[Place, set[int]] = field(default_factory=dict)

    def note(self, unrolled: Unrolled) -> None:
        """A trace that PyTorch has run."""
        self.history.note(unrolled.outline.run)
        counts = {place: part.count for place, part in enumerate(unrolled.parts) if part.kind == "loop"}
        worth = {place for place, count in counts.items() if count >= FEWEST_STEPS or self.counts.get(place, count) != count}
        self.steady = (self.steady if self.counts else set(counts)) - worth
        self.counts = counts
        for place, part in enumerate(unrolled.parts):
            for call in range(part.period):
                if not unrolled.is_cut(place, call):
                    given = unrolled.scalars[part.first + call]
                    before = self._numbers.get((place, call), given)
                    pairs = enumerate(zip(before, given, strict=True))
                    changed = {number for number, (one, other) in pairs if repr(one) != repr(other)}  # zeros have a sign
                    if changed:
                        self._varied.setdefault((place, call), set()).update(changed)
                    self._numbers[place, call] = given

    def varied(self, place: Place) -> Set[int]:
        """Which numbers of a call have not always been the same, by its part and its place there."""
        return self._varied.get(place, frozenset())

    def came_often(self) -> bool:
        """Whether they are worth a program, though the very same trace has not come so often. The second program is mostly that
        for a batch of 1; where each serves few of them, further ones have to wait."""
        return self.history.runs >= WORTH_COMPILING << max(len(self.families) - 1, 0)

    def add(self, family: Family) -> None:
        """A program that has been made."""
        self.families = [family, *self.families][:MOST_ALIKE]
        self.history.runs = 0


@dataclass(frozen=True)
class Member:
    """A trace among its kin, taken apart as they are."""

    kin: Kin
    unrolled: Unrolled

    def variant(self) -> Variant | None:
        """Of the trace, if one of the programs serves it."""
        outline = self.unrolled.outline
        for family in self.kin.families:
            variant = family.variant(outline, self.unrolled) if family.has_gradients(outline) else None
            if variant is not None and variant.fits(outline.run) is not None:
                return variant
        return None


class AllKin:
    """Those that a recorder knows."""

    def __init__(self) -> None:
        self._known: list[Kin] = []

    def clear(self) -> None:
        self._known.clear()

    def of(self, outline: Outline) -> Member | None:
        """The kin of a trace that PyTorch has run, which is noted; None if it has no loop of any number of steps."""
        facts = Facts.of(outline)
        for kin in self._known:
            if not kin.steady and kin.facts == facts:
                unrolled = Unrolled(outline)
                if unrolled.follow(kin.pattern):
                    return self._noted(kin, unrolled)
        for fewest in (FEWEST_VARYING, FEWEST_STEPS):
            unrolled = Unrolled(outline)
            unrolled.find(fewest)
            if not unrolled.loops:
                return None
            pattern = unrolled.pattern()
            alike = (each for each in self._known if each.facts == facts and each.pattern.key == pattern.key)
            found = self._noted(next(alike, None) or Kin(pattern, facts), unrolled)
            if not found.kin.steady:
                return found
        return None

    def _noted(self, kin: Kin, unrolled: Unrolled) -> Member:
        kin.note(unrolled)
        self._known = [kin, *(each for each in self._known if each is not kin)][:MOST_KIN]
        return Member(kin, unrolled)
