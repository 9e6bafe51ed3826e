"""What is known about the dims of a model: names, ranges, divisors, equalities; and the questions that passes ask about them.

The relations are those of BladeDISC (section 3.1: dimension equality, and equality of products, "dim collapse"), extended by ranges,
divisors and inequalities. Any size may be 0 at run time, so `a * c == b * c` never yields `a == b` by itself. An answer YES or NO holds
for every assignment of the symbols that satisfies the declarations and facts; where an expression divides by zero it has no value, and
nothing is claimed about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum

from disc.errors import ShapeConstraintError
from disc.shapes.algebra import (
    Dim,
    dim_min,
    divide_polynomials,
    parse_dim,
)
from disc.shapes.conditions import Comparison, Condition
from disc.shapes.facts import Facts, Group, finite


class Truth(Enum):
    """The answer to a question about sizes that are not known yet."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"

    def __bool__(self) -> bool:
        raise TypeError("a Truth has three values: compare it with Truth.YES, Truth.NO or Truth.UNKNOWN")


class ShapeEnv:
    """Symbols with their ranges and divisors, the facts between them, and proofs.

    Methods that learn raise `ShapeConstraintError` when a fact contradicts what is known, and then change nothing. Every method raises
    ValueError for a symbol that was not declared.
    """

    def __init__(self) -> None:
        self._facts = Facts()
        self._next_fresh = 0

    # Declarations

    def symbol(self, name: str, lo: int | None = 0, hi: int | None = None, divisor: int = 1) -> Dim:
        """Declares a symbol, or adds the range and divisor to what is known of it. A size has `lo` 0; a value may have None."""
        if divisor < 1:
            raise ValueError(f"the divisor of {name} must be at least 1, not {divisor}")
        symbol = Dim.symbol(name)
        if name not in self._facts.order and divisor == 1 and (lo is None or hi is None or lo < hi):
            self._facts.declare(name, lo, hi)
            return symbol
        with _Learning(self, f"the declaration of {name} (range {lo} to {hi}, divisor {divisor})"):
            if name not in self._facts.order:
                self._facts.declare(name, None, None)
            self._facts.learn_equal(symbol % divisor, Dim.of(0))
            if lo is not None:
                self._facts.learn_at_least(symbol, Dim.of(lo))
            if hi is not None:
                self._facts.learn_at_least(Dim.of(hi), symbol)
        return symbol

    def define(self, name: str, expression: Dim | int) -> Dim:
        """Declares a symbol that is another name for an expression of declared ones. No fact contains it yet, so none is reconsidered.

        Raises ValueError where the symbol is declared already.
        """
        symbol, expression = Dim.symbol(name), Dim.of(expression)
        if name in self._facts.order:
            raise ValueError(f"the dim symbol {name} is declared already")
        self._facts.define(name, expression)
        return symbol

    def fresh(self, prefix: str = "S") -> Dim:
        """Declares the next unused of S0, S1, ..."""
        number = self._next_fresh if prefix == "S" else 0
        while f"{prefix}{number}" in self._facts.order:
            number += 1
        if prefix == "S":
            self._next_fresh = number + 1
        return self.symbol(f"{prefix}{number}")

    def pin(self, symbol: Dim | str) -> None:
        """Never replaces this symbol by an expression; an equality that would do so is kept as a relation."""
        name = str(symbol)
        self._facts.check_declared(Dim.symbol(name))
        self._facts.pinned[name] = None

    def names(self) -> tuple[str, ...]:
        """The symbols in the order of declaration."""
        return tuple(self._facts.order)

    def parse(self, text: str) -> Dim:
        """`parse_dim`, for declared symbols only."""
        dim = parse_dim(text)
        self._facts.check_declared(dim)
        return dim

    def copy(self) -> ShapeEnv:
        """An independent environment with the same knowledge."""
        other = ShapeEnv()
        other.adopt(self)
        return other

    def adopt(self, other: ShapeEnv) -> None:
        """Takes over all that `other` knows, in the place of what is known here."""
        self._facts = other._facts.copy_with_answers()
        self._next_fresh = other._next_fresh

    # Facts

    def equate(self, left: Dim | int, right: Dim | int) -> None:
        """Learns `left == right`. The symbol declared later is replaced where the equation can be solved for it."""
        with _Learning(self, f"{left} == {right}"):
            self._facts.learn_equal(Dim.of(left), Dim.of(right))

    def assume_ge(self, left: Dim | int, right: Dim | int) -> None:
        """Learns `left >= right`."""
        with _Learning(self, f"{left} >= {right}"):
            self._facts.assume_at_least(Dim.of(left), Dim.of(right))

    def facts(self) -> list[tuple[Dim, Dim]]:
        """The equalities (left, right), as given, that are no replacement of a symbol: product equalities and pinned symbols.

        An inequality `a >= b` is among them as `min(a, b) == b`. `equate` with each pair restores the knowledge.
        """
        return [*self._facts.relations, *((dim_min(greater, smaller), smaller) for greater, smaller in self._facts.assumed)]

    def inequalities(self) -> list[tuple[Dim, Dim]]:
        """The pairs `left >= right` given to `assume_ge` that no range of a symbol expresses."""
        return list(self._facts.assumed)

    def premises(self) -> list[tuple[str, Dim]]:
        """All that answers about sizes rest on, as (what is known, of which size) over symbols that no other expression stands for.

        Two environments with equal premises, symbols renamed, have the same truths.
        """
        return self._facts.premises()

    def learn(self, condition: Condition) -> None:
        """Learns a condition that is a fact (`Condition.is_fact`); another one teaches nothing."""
        sole = condition.sole
        if sole is None or not condition.is_fact():
            return
        order = sole.at_least()
        if order is not None:
            self.assume_ge(*order)
        else:
            self.equate(sole.left, sole.right)

    @contextmanager
    def supposing(self, conditions: Iterable[Condition]) -> Iterator[bool]:
        """Within, the orders among the conditions are facts as well; what is learned within is forgotten behind it. Yields whether they
        are: not where they contradict what is known, or make an expression another one."""
        known = self._facts
        self._facts = known.copy_with_answers()
        try:
            yield self._suppose(conditions, known)
        finally:
            self._facts = known

    def _suppose(self, conditions: Iterable[Condition], known: Facts) -> bool:
        before = [self.simplify(Dim.symbol(name)) for name in known.order]
        try:
            for condition in conditions:
                if condition.sole is not None and condition.sole.at_least() is not None:
                    self.learn(condition)
            if [self.simplify(Dim.symbol(name)) for name in known.order] == before:
                return True
        except ShapeConstraintError:
            pass
        self._facts = known.copy_with_answers()
        return False

    def known_when(self, premise: Condition, conditions: Iterable[Condition]) -> list[Condition]:
        """What holds where `premise` does: it, and the only alternative that it leaves of any of the conditions, which all hold."""
        found = premise.parts()
        with self.supposing(found):
            for each in conditions:
                left = [alternative for alternative in each.alternatives if self._all_hold(alternative) is not Truth.NO]
                found += Condition((left[0],)).parts() if len(left) == 1 else []
        return found

    # Questions

    def holds(self, condition: Condition) -> Truth:
        """Whether the condition holds, whatever the inputs."""
        found = [self._all_hold(conjunction) for conjunction in condition.alternatives]
        if Truth.YES in found:
            return Truth.YES
        return Truth.NO if all(truth is Truth.NO for truth in found) else Truth.UNKNOWN

    def _all_hold(self, comparisons: Iterable[Comparison]) -> Truth:
        found = [self._compare(each) for each in comparisons]
        if Truth.NO in found:
            return Truth.NO
        return Truth.YES if all(truth is Truth.YES for truth in found) else Truth.UNKNOWN

    def _compare(self, comparison: Comparison) -> Truth:
        order = comparison.at_least()
        if order is not None:
            return self.le(order[1], order[0])
        truth = self.equal(comparison.left, comparison.right)
        opposite = {Truth.YES: Truth.NO, Truth.NO: Truth.YES, Truth.UNKNOWN: Truth.UNKNOWN}
        return truth if comparison.sign == "==" else opposite[truth]

    def simplify(self, dim: Dim | int) -> Dim:
        """The expression under all facts; equal results mean equal sizes."""
        dim = Dim.of(dim)
        if dim not in self._facts.simplified:
            self._facts.simplified[dim] = self._facts.restore(self._facts.normal(dim))
        return self._facts.simplified[dim]

    def equal(self, left: Dim | int, right: Dim | int) -> Truth:
        """Whether both sizes are the same, whatever the inputs."""
        left, right = Dim.of(left), Dim.of(right)
        if left is right:
            return Truth.YES
        key = (left, right)
        if key not in self._facts.equalities:
            self._facts.equalities[key] = self._facts.decide_equal(left, right)
        answer = self._facts.equalities[key]
        return Truth.UNKNOWN if answer is None else Truth.YES if answer else Truth.NO

    def le(self, left: Dim | int, right: Dim | int) -> Truth:
        """Whether `left <= right`."""
        difference = self._facts.difference(Dim.of(right), Dim.of(left))
        if self._facts.never_negative(difference):
            return Truth.YES
        return Truth.NO if self._facts.never_negative(-1 - difference) else Truth.UNKNOWN

    def at_most(self, left: Dim | int, right: Dim | int) -> bool:
        """Whether `le` says YES; what else it might say is not looked for."""
        return self._facts.at_most(Dim.of(left), Dim.of(right))

    def lt(self, left: Dim | int, right: Dim | int) -> Truth:
        """Whether `left < right`."""
        return self.le(Dim.of(left) + 1, right)

    def divides(self, divisor: Dim | int, dim: Dim | int) -> Truth:
        """Whether `dim` is a multiple of `divisor`; 0 divides 0 alone."""
        divisor, dim = Dim.of(divisor), Dim.of(dim)
        if divisor == 0:
            return self.equal(dim, 0)
        if self.exact_div(dim, divisor) is not None:
            return Truth.YES
        if self.equal(divisor, 0) is not Truth.NO:
            return Truth.UNKNOWN
        return self.equal(dim % divisor, 0)

    def range(self, dim: Dim | int) -> tuple[int | None, int | None]:
        """The proved least and greatest value; None where there is none."""
        normal = self._facts.normal(Dim.of(dim))
        return finite(self._facts.bounds().lower(normal)), finite(self._facts.bounds().upper(normal))

    def divisor(self, dim: Dim | int) -> int:
        """The largest proved constant divisor; for a size proved to be 0, which every number divides, it is 1."""
        return self._facts.constant_divisor(self._facts.normal(Dim.of(dim))) or 1

    def exact_div(self, dividend: Dim | int, divisor: Dim | int) -> Dim | None:
        """q with `dividend == q * divisor` proved, also where the divisor is 0 at run time; else None."""
        dividend, divisor = Dim.of(dividend), Dim.of(divisor)
        direct = divide_polynomials(dividend, divisor)
        if direct is not None:
            return self.simplify(direct)
        below = self._facts.normal(divisor)
        quotient = self._facts.exact_quotient(self._facts.normal(dividend), below)
        if quotient is not None:
            return self._facts.restore(quotient)
        if below.is_const and below != 0 and self._facts.normal(dividend % below) == 0:
            return self.simplify(dividend // below)
        return None

    def product(self, dims: Iterable[Dim | int]) -> Dim:
        """The simplified product; 1 for no dims."""
        total = Dim.of(1)
        for dim in dims:
            total = total * dim
        return self.simplify(total)

    def reshape_groups(self, source: Sequence[Dim | int], target: Sequence[Dim | int]) -> list[Group] | None:
        """The finest split of both shapes into consecutive groups of proved equal products, as dim indices; None without such a split.

        A dim of size 1 joins the group before it, or the first one.
        """
        sides = tuple(map(Dim.of, source)), tuple(map(Dim.of, target))
        if sides not in self._facts.groups:
            self._facts.groups[sides] = self._split(*sides)
        found = self._facts.groups[sides]
        return None if found is None else list(found)

    def _split(self, source: tuple[Dim, ...], target: tuple[Dim, ...]) -> tuple[Group, ...] | None:
        kept = [[index for index, dim in enumerate(side) if self.equal(dim, 1) is not Truth.YES] for side in (source, target)]
        cuts = _GroupSearch(self, [source[index] for index in kept[0]], [target[index] for index in kept[1]]).longest(0, 0)
        if cuts is None:
            return None
        if not cuts:
            return ((tuple(range(len(source))), tuple(range(len(target)))),) if source or target else ()
        starts = [(0, 0), *((_start(kept[0], i, len(source)), _start(kept[1], j, len(target))) for i, j in cuts[:-1])]
        ends = [*starts[1:], (len(source), len(target))]
        return tuple((tuple(range(a, b)), tuple(range(c, d))) for (a, c), (b, d) in zip(starts, ends, strict=True))


class _Learning:
    """Restores the state of an environment when learning a fact fails, and names the fact in the error."""

    def __init__(self, env: ShapeEnv, fact: str) -> None:
        self._env = env
        self._fact = fact
        self._saved = env._facts.copy()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            return
        self._env._facts = self._saved
        if isinstance(error, ShapeConstraintError):
            raise ShapeConstraintError(f"{self._fact} contradicts what is known: {error}") from error


class _GroupSearch:
    """Longest chain of cuts through two shapes such that the dims between neighboring cuts have proved equal products."""

    def __init__(self, env: ShapeEnv, source: Sequence[Dim], target: Sequence[Dim]) -> None:
        self._env = env
        self._source = source
        self._target = target
        self._known: dict[tuple[int, int], list[tuple[int, int]] | None] = {}

    def longest(self, i: int, j: int) -> list[tuple[int, int]] | None:
        """The ends of the groups from dims i and j on; None where the remaining dims cannot be grouped."""
        if i == len(self._source) and j == len(self._target):
            return []
        if (i, j) not in self._known:
            self._known[i, j] = self._extend(i, j)
        return self._known[i, j]

    def _extend(self, i: int, j: int) -> list[tuple[int, int]] | None:
        best: list[tuple[int, int]] | None = None
        for end_i in range(i, len(self._source) + 1):
            for end_j in range(j, len(self._target) + 1):
                if (end_i, end_j) == (i, j) or not self._equal(i, end_i, j, end_j):
                    continue
                rest = self.longest(end_i, end_j)
                if rest is not None and (best is None or len(rest) + 1 > len(best)):
                    best = [(end_i, end_j), *rest]
        return best

    def _equal(self, i: int, end_i: int, j: int, end_j: int) -> bool:
        source = self._env.product(self._source[i:end_i])
        target = self._env.product(self._target[j:end_j])
        return self._env.equal(source, target) is Truth.YES


def _start(kept: Sequence[int], position: int, length: int) -> int:
    return kept[position] if position < len(kept) else length
