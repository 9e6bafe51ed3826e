"""What the passes of a row kernel take, by the rates of the target's table (`LoopRates`): the terms of the search.

The cost of a pass is counted per element of a row, summed over the lengths of rows that a target names where the length is not known: each
length counts by how many times as long as by the rules it takes (`evenly`). Every
part of it only grows with what is computed, loaded and stored; so, counting nothing for what an open variable may bring, it is a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from disc.codegen.plan.search.problem import Partial
from disc.codegen.plan.search.stages import RESULTS, Stages, per_element
from disc.ir.costs import op_cost
from disc.ir.graph import Node
from disc.targets.thresholds import LoopRates

WIDTHS = (1, 2, 4, 8)  # rows, or vectors of a row, side by side


@dataclass(frozen=True)
class Machine:
    """Where plans are compared. rates: of the target; lanes: of a vector; registers: of vectors; gigahertz: cycles of a nanosecond; rows:
    lengths of rows, in elements, and how much each counts. beyond: whether inputs and results lie in memory."""

    rates: LoopRates
    lanes: int
    registers: int
    gigahertz: float
    rows: tuple[tuple[int, float], ...]
    beyond: bool

    def seconds(self, cycles: float) -> float:
        return cycles / (self.gigahertz * 1e9)


@dataclass(frozen=True)
class Work:
    """Of one vector of a pass. instructions: with functions, whose ops have constants; first: inputs that no earlier pass read; again:
    others; kept, keep: rows of scratch that are loaded, and stored. sums: reductions; results: that are stored."""

    instructions: int = 0
    functions: int = 0
    first: int = 0
    again: int = 0
    kept: int = 0
    keep: int = 0
    sums: int = 0
    results: int = 0


@dataclass(frozen=True, eq=False)
class PassTerm:
    """One pass. number: from 0, the results last; scope: rows side by side, elements of a row up to which they are, whether results bypass
    the caches, vectors side by side, then the values that may be kept and the reductions that may be in several rounds, by `values` and
    `moved`. results: stored per element. departure: the rules' vectors, and what others must gain. known, works: what was computed."""

    stages: Stages
    machine: Machine
    number: int
    scope: tuple[int, ...]
    values: tuple[Node, ...]
    moved: tuple[int, ...]
    results: int
    departure: tuple[int, float]
    known: dict[object, float] = field(default_factory=dict)
    works: dict[object, Work | None] = field(default_factory=dict)

    def bound(self, values: Partial) -> float:
        """Seconds per element."""
        rows, short, past, vectors, *decided = values
        place = tuple(decided)
        if place not in self.works:
            kept = dict(zip(self.values, decided[: len(self.values)], strict=True))
            moved = dict(zip(self.moved, decided[len(self.values) :], strict=True))
            here = self._users(moved)
            self.works[place] = self.work(here, kept, moved) if here else None
        work = self.works[place]
        if work is None:
            return 0.0
        lengths = [(length, weight, together(rows, short, length)) for length, weight in self.machine.rows]
        rule, departure = self.departure
        return min(
            (departure if width != rule else 0.0)
            + sum(weight * min(self._per_element(work, length, each, width, past) for each in side) for length, weight, side in lengths)
            for width in ((vectors,) if vectors else dict.fromkeys((rule, *WIDTHS)))
        )

    def _users(self, moved: Mapping[int, int | None]) -> list[int]:
        """The reductions that are certainly in this pass; the results in the last."""
        if self.number == self.stages.passes - 1:
            return [RESULTS] if self.stages.roots[RESULTS] else []
        return [each for each in range(len(self.stages.reductions)) if self.round_of(each, moved) == self.number]

    def round_of(self, user: int, moved: Mapping[int, int | None]) -> int | None:
        """The pass of a reduction, or of the results; None while it is open."""
        if user == RESULTS:
            return self.stages.passes - 1
        return moved[user] if user in moved else self.stages.rounds[user]

    def work(self, here: Sequence[int], kept: Mapping[Node, int | None], moved: Mapping[int, int | None]) -> Work:
        """What a vector of the pass takes, at least."""
        free, loaded, stored = self._placed(here, kept, moved)
        nodes = {node for user in here for root in self.stages.roots[user] for node in per_element(root, free | loaded)}
        computed = nodes - free - loaded
        inputs = [node for node in computed if node.op == "input" and node.dims]
        instructions = sum(op_cost(node) for node in computed if node.op != "stablehlo.reduce")
        math = self.machine.rates.math
        functions = len({node.op for node in computed if op_cost(node) >= math and node.op != "stablehlo.reduce"})
        first = [node for node in inputs if self._is_first(node, moved)]
        is_result = here == [RESULTS]
        return Work(
            instructions + len(here), functions, len(first), len(inputs) - len(first), len(loaded & nodes), len(stored & computed),
            0 if is_result else len(here), self.results if is_result else 0,
        )  # fmt: skip

    def _placed(
        self, here: Sequence[int], kept: Mapping[Node, int | None], moved: Mapping[int, int | None]
    ) -> tuple[set[Node], set[Node], set[Node]]:
        """Values that may cost nothing here, since something is open; those that an earlier pass has stored; those that this one stores."""
        free, loaded, stored = set[Node](), set[Node](), set[Node]()
        for node, value in kept.items():
            others = [self.round_of(user, moved) for user in self.stages.users[node] if user not in here]
            earlier = [each for each in others if each is not None and each < self.number]
            later = [each for each in others if each is not None and each > self.number]
            if value is None or (value and None in others and not earlier):
                free.add(node)
            elif value and earlier:
                loaded.add(node)
            elif value and later:
                stored.add(node)
        return free, loaded, stored

    def _is_first(self, node: Node, moved: Mapping[int, int | None]) -> bool:
        rounds = [self.round_of(user, moved) for user in self.stages.users[node]]
        return None not in rounds and min(each for each in rounds if each is not None) == self.number

    def _per_element(self, work: Work, length: int, together: int, vectors: int, past: int | None) -> float:
        """Seconds, of a row of so many elements; together: rows, vectors: as planned, side by side."""
        key = (work, length, together, vectors, past)
        if key not in self.known:
            self.known[key] = self.machine.seconds(row_cycles(self.machine, work, length, together, vectors, past != 0)) / length
        return self.known[key]


def together(rows: int | None, short: int | None, length: int) -> Sequence[int]:
    """How many rows of a length may be side by side."""
    if rows is None:
        return WIDTHS
    if short is None:
        return (1, rows)
    return (rows,) if length <= short else (1,)


def row_cycles(machine: Machine, work: Work, length: int, together: int, vectors: int, past: bool) -> float:
    """Cycles of a pass over a row of so many elements. Vectors that are left over from those side by side come one by one, masked."""
    rates = machine.rates
    unrolled = max(1, vectors // (together * max(1, work.sums)))
    count = -(-length // machine.lanes)
    whole = count // unrolled * unrolled if work.sums else count
    cycles = whole * _vector_cycles(machine, work, together * unrolled, past)
    cycles += (count - whole) * rates.masked * _vector_cycles(machine, work, together, past)
    if work.first and together > 1 and together * length * 4 > rates.apart:
        cycles += count * rates.streams * together
    if (work.first or work.results) and unrolled > rates.crowded:
        cycles += count * rates.crowd
    return cycles + (rates.loop + work.sums * rates.join_wait) / together + work.sums * rates.join


def _vector_cycles(machine: Machine, work: Work, side: int, past: bool) -> float:
    """Of one of so many vectors side by side."""
    rates = machine.rates
    compute = work.instructions * rates.instruction
    waits = rates.stall * compute / side if work.functions else 0.0
    if work.sums:
        waits = max(waits, rates.latency / side - compute)
    live = rates.constants * work.functions + side * ((rates.math_live if work.functions else rates.live) + work.sums)
    spill = rates.spill * max(0, live - machine.registers) / side
    fetch = (rates.fetch - 1) * compute if work.instructions * side > rates.code else 0.0
    busy = compute + max(waits, 0.0) + spill + fetch + rates.again * work.again + rates.kept * work.kept + rates.keep * work.keep
    if machine.beyond:
        store = rates.memory_store + (0 if past else rates.allocate)
        return max(busy, rates.memory_load * work.first + store * work.results)
    return busy + rates.first_load * work.first + rates.store * work.results


@dataclass(frozen=True, eq=False)
class OnceTerm:
    """What is computed once per row: instructions that wait for each other, unless other rows are side by side. scope: the first two of a
    pass's."""

    machine: Machine
    scope: tuple[int, ...]
    instructions: int

    def bound(self, values: Partial) -> float:
        rows, short = values
        rates, total = self.machine.rates, 0.0
        for length, weight in self.machine.rows:
            waits = min(rates.once_wait / each for each in together(rows, short, length))
            total += weight * self.instructions * (rates.instruction + waits) / length
        return self.machine.seconds(total)


@dataclass(frozen=True, eq=False)
class DepartureTerm:
    """What a decision other than the rules' must gain: what the rates say is not exact. scope: the number of its variable. rule: the value
    that the rules give it."""

    scope: tuple[int, ...]
    rule: int
    seconds: float

    def bound(self, values: Partial) -> float:
        return 0.0 if values[0] in (None, self.rule) else self.seconds


@dataclass(frozen=True, eq=False)
class OrderTerm:
    """A reduction comes in a later round than those that it needs: 0 where that holds or is open, else infinite. scope: the numbers of the
    variables that say the rounds of the reductions `moved`."""

    stages: Stages
    scope: tuple[int, ...]
    moved: tuple[int, ...]

    def bound(self, values: Partial) -> float:
        rounds: dict[int, int | None] = dict(enumerate(self.stages.rounds))
        rounds.update(zip(self.moved, values, strict=True))
        for number, needs in enumerate(self.stages.needs):
            for source in needs:
                before, after = rounds[source], rounds[number]
                if before is not None and after is not None and before >= after:
                    return float("inf")
        return 0.0
