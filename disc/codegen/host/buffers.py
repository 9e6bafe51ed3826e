"""The buffer plan: where in a call's arena each value between kernels lies, by symbolic sizes and lifetimes (paper 002, §6.1)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter

from disc.codegen.host.steps import Value
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim, ShapeEnv, Valuation, dim_max

ZERO = Dim.of(0)
LINE = 64  # bytes: every buffer begins on a cache line
SAMPLE = 97  # the size of a dynamic dim in the order of buffers, which decides about memory alone
_BY_SAMPLE = attrgetter("sample")
LONGEST_PLACE = 1 << 14  # characters of an expression; each place that is a maximum of others may double it


@dataclass(frozen=True)
class Lifetime:
    """A value and the numbers of the steps that write it (first) and read it last."""

    value: Value
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """offsets: bytes from the start of the arena; size: bytes of the whole."""

    offsets: dict[Value, Dim]
    size: Dim


@dataclass(frozen=True)
class _Placed:
    """sample: of the start."""

    lifetime: Lifetime
    start: Dim
    end: Dim
    sample: int


@dataclass
class _Slot:
    """A piece of the arena that holds several values one after the other; last: the last reader of the latest."""

    sizes: list[Dim]
    last: int


def buffer_bytes(env: ShapeEnv, value: Value) -> Dim:
    """Bytes of a value, rounded up to whole cache lines.

    The simplified product writes `S0 // 8 * 8` as `S0 - S0 % 8`; where that makes more terms, the rounding, which mostly goes away, sees
    the quotients.
    """
    plain = math.prod(value.dims, start=Dim.of(1))
    elements = min(env.simplify(plain), plain, key=lambda dim: len(dim.monomials))
    return (elements * ELEMENT_BYTES[value.element] + (LINE - 1)) // LINE * LINE


def plan_buffers(env: ShapeEnv, lifetimes: Sequence[Lifetime]) -> Plan:
    """The better of two plans: by offsets, which needs proofs that sizes fit into each other, and in slots, which needs none."""
    planner = _Planner(env)
    sizes = {each.value: buffer_bytes(env, each.value) for each in lifetimes}
    plans = [planner.in_slots(lifetimes, sizes)]
    if (offsets := planner.by_offsets(lifetimes, sizes)) is not None:
        plans.insert(0, offsets)
    return min(plans, key=lambda plan: planner.sample(plan.size))


@dataclass
class _Order:
    """Which places are at most which others, with all that follows: that a value lies below the next one says that it lies below all above
    that. Most of what a plan asks is found here, where a proof of its own takes long sums apart."""

    _numbers: dict[Dim, int] = field(default_factory=dict)
    _below: list[int] = field(default_factory=list)  # for each place: the bits of itself and of those that are at most it

    def add(self, left: Dim, right: Dim) -> None:
        """`left <= right`."""
        low, high = self._number(left), self._number(right)
        below, bit = self._below[low], 1 << high
        self._below = [each | below if each & bit else each for each in self._below]

    def has(self, left: Dim, right: Dim) -> bool:
        low, high = self._numbers.get(left), self._numbers.get(right)
        return low is not None and high is not None and bool(self._below[high] >> low & 1)

    def _number(self, place: Dim) -> int:
        if place not in self._numbers:
            self._numbers[place] = len(self._below)
            self._below.append(1 << len(self._below))
        return self._numbers[place]


@dataclass
class _Planner:
    env: ShapeEnv
    proofs: dict[tuple[Dim, Dim], bool] = field(default_factory=dict)
    _known: _Order = field(default_factory=_Order)

    def __post_init__(self) -> None:
        self._order = Valuation(dict.fromkeys(self.env.names(), SAMPLE))

    def sample(self, dim: Dim) -> int:
        """What buffers are ordered by."""
        return dim.evaluate(self._order)

    def by_offsets(self, lifetimes: Sequence[Lifetime], sizes: Mapping[Value, Dim]) -> Plan | None:
        """Greedy, the largest first: each value goes to the lowest place, 0 or the end of another, where it provably (for all sizes)
        meets no value that lives at the same time; where nothing is provable, behind all of those. None where so little is provable that
        the places, maxima of sums of maxima, become long expressions."""
        placed: list[_Placed] = []
        for lifetime in sorted(lifetimes, key=lambda each: -self.sample(sizes[each.value])):
            size = sizes[lifetime.value]
            others = [each for each in placed if each.lifetime.first <= lifetime.last and lifetime.first <= each.lifetime.last]
            starts = sorted(dict.fromkeys([ZERO, *(each.end for each in others)]), key=self.sample)
            ordered = sorted(others, key=_BY_SAMPLE)
            start = next((start for start in starts if self._is_free(start, start + size, ordered)), None)
            if start is None:
                start = self.largest([each.end for each in others])
                if len(str(start)) > LONGEST_PLACE:
                    return None
            placed.append(_Placed(lifetime, start, start + size, self.sample(start)))
            self._known.add(start, start + size)
        return Plan({each.lifetime.value: each.start for each in placed}, self.largest([each.end for each in placed]))

    def in_slots(self, lifetimes: Sequence[Lifetime], sizes: Mapping[Value, Dim]) -> Plan:
        """In the order of the program: each value takes a slot that is free again, one of its size before any other."""
        slots: list[_Slot] = []
        chosen: dict[Value, int] = {}
        for lifetime in lifetimes:
            size = sizes[lifetime.value]
            free = [number for number, slot in enumerate(slots) if slot.last < lifetime.first]
            number = next((number for number in free if size in slots[number].sizes), free[0] if free else len(slots))
            if number == len(slots):
                slots.append(_Slot([], 0))
            slots[number].sizes.append(size)
            slots[number].last = lifetime.last
            chosen[lifetime.value] = number
        starts = [ZERO]
        for slot in slots:
            starts.append(starts[-1] + self.largest(slot.sizes))
        return Plan({value: starts[number] for value, number in chosen.items()}, starts[-1])

    def _is_free(self, start: Dim, end: Dim, others: Sequence[_Placed]) -> bool:
        """others: in order. The nearest are asked first: they say no where any does, and what they prove holds for those behind them."""
        place = bisect_left(others, self.sample(start), key=_BY_SAMPLE)
        return all(self._apart(start, end, each) for each in chain(others[place:], reversed(others[:place])))

    def _apart(self, start: Dim, end: Dim, other: _Placed) -> bool:
        return self._at_most(end, other.start) or self._at_most(other.end, start)

    def _at_most(self, left: Dim, right: Dim) -> bool:
        if (left, right) not in self.proofs:
            found = self.proofs[left, right] = self._known.has(left, right) or self.env.at_most(left, right)
            if found:
                self._known.add(left, right)
        return self.proofs[left, right]

    def largest(self, dims: Sequence[Dim]) -> Dim:
        """The largest of all: those that another is provably at least as large as are left out."""
        kept: list[Dim] = []
        for dim in dims:
            if not any(self._at_most(dim, other) for other in kept):
                kept = [*(other for other in kept if not self._at_most(other, dim)), dim]
        result = kept[0] if kept else ZERO
        for dim in kept[1:]:
            result = dim_max(result, dim)
        for dim in dims:
            self._known.add(dim, result)
        return result
