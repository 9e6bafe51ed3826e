"""Bounds of `Dim` expressions from the ranges of their symbols and from inequalities.

Three means, the best answer wins: interval arithmetic (also with each atom written as its lower end plus a rest, which decides
`S0 * S1 - S0 >= 0` for `S1 >= 1`, and with quotients of one symbol written in parts); replacing an atom by what bounds it
(`floordiv(n, c)` by `n / c`, `min(a, b)` by an operand); adding multiples of known inequalities so that a product cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from disc.shapes.algebra import Atom, Dim, FloorDiv, Max, Min, Mod, Monomial, Symbol, divide_monomials, inner_first, of_atom, of_terms
from disc.shapes.chains import in_parts

End = int | float
"""An end of an interval: an int, or plus or minus infinity."""
Interval = tuple[End, End]

EVERYTHING: Interval = (-math.inf, math.inf)
_DEPTH = 3
"""How many replacements one proof may chain. Shape expressions nest one or two of them."""
_MAXIMUM_TERMS = 12
"""Longer sums get interval arithmetic only: the search is exponential in the depth."""
_MAXIMUM_STEPS = 400
"""Expressions that one question may look at. Proofs that end well take few; what sums of many roundings could still be compared with, no
proof needs, and a program has many such questions (the places of buffers)."""


class Bounds:
    """Answers for one state of a `ShapeEnv`; every answer is kept."""

    def __init__(self, symbol_range: Callable[[str], Interval], inequalities: Sequence[Dim]) -> None:
        """`inequalities` are expressions known to be at least 0."""
        self._symbol_range = symbol_range
        self._inequalities = tuple(inequalities)
        self._lower: dict[tuple[Dim, int], End] = {}
        self._direct_ends: dict[Dim, End] = {}
        self._atom_ranges: dict[Atom, Interval] = {}
        self._steps = 0
        """What the present question may still look at."""
        self.steps_taken = 0

    def copy(self, symbol_range: Callable[[str], Interval]) -> Bounds:
        """The same answers for a copy of the state."""
        other = Bounds(symbol_range, self._inequalities)
        other._lower, other._direct_ends, other._atom_ranges = dict(self._lower), dict(self._direct_ends), dict(self._atom_ranges)
        return other

    def lower(self, dim: Dim) -> End:
        """A value that the expression never falls below."""
        outer, self._steps = self._steps, _MAXIMUM_STEPS
        found = self._search(dim, _DEPTH)
        self._steps = outer
        return found

    def never_negative(self, dim: Dim) -> bool:
        """Whether `lower` is at least 0. The first means that says so ends the search."""
        outer, self._steps = self._steps, _MAXIMUM_STEPS
        found = any(end >= 0 for end in self._candidates(dim, _DEPTH))
        self._steps = outer
        return found

    def upper(self, dim: Dim) -> End:
        """A value that the expression never exceeds."""
        return -self.lower(-dim)

    def interval(self, dim: Dim) -> Interval:
        """Bounds by interval arithmetic alone."""
        return _interval(dim, {atom: self._atom_range(atom) for atom in dim.atoms()})

    def _search(self, dim: Dim, depth: int) -> End:
        key = (dim, depth)
        if key not in self._lower:
            if not self._steps:
                return self._direct(dim)
            self._steps -= 1
            self.steps_taken += 1
            self._lower[key] = self._direct(dim)  # what a cycle of questions would see: weaker, but true
            self._lower[key] = max(self._candidates(dim, depth))
        return self._lower[key]

    def _candidates(self, dim: Dim, depth: int) -> Iterator[End]:
        yield self._direct(dim)
        if depth == 0 or dim.is_const or len(dim.monomials) > _MAXIMUM_TERMS:
            return
        for atom in dim.atoms():
            if not isinstance(atom, Symbol):
                yield from self._relax(dim, atom, depth - 1)
        for inequality in self._inequalities:
            yield from self._cancel(dim, inequality, depth - 1)

    def _direct(self, dim: Dim) -> End:
        """The lower end by interval arithmetic: plain, with the atoms shifted to start at zero, and with quotients in parts."""
        if dim not in self._direct_ends:
            self._direct_ends[dim] = self._best_interval(dim)
        return self._direct_ends[dim]

    def _best_interval(self, dim: Dim) -> End:
        ranges = {atom: self._atom_range(atom) for atom in dim.atoms()}
        end = _shifted_end(dim, ranges)
        parts = None if len(ranges) < 2 else in_parts(dim, self._symbol_range)
        if parts is None:
            return end
        written, part_ranges = parts
        return max(end, _shifted_end(written, {**ranges, **part_ranges}))

    def _atom_range(self, atom: Atom) -> Interval:
        if atom not in self._atom_ranges:
            for inner in inner_first(of_atom(atom), lambda dim: all(each in self._atom_ranges for each in dim.atoms())):
                self.interval(inner)
            self._atom_ranges[atom] = EVERYTHING  # an atom inside its own bounds would be no help
            self._atom_ranges[atom] = self._compute_atom_range(atom)
        return self._atom_ranges[atom]

    def _compute_atom_range(self, atom: Atom) -> Interval:
        if isinstance(atom, Symbol):
            return self._symbol_range(atom.name)
        left = (self.lower(atom.left), self.upper(atom.left))
        right = (self.lower(atom.right), self.upper(atom.right))
        if isinstance(atom, Min):
            return (min(left[0], right[0]), min(left[1], right[1]))
        if isinstance(atom, Max):
            return (max(left[0], right[0]), max(left[1], right[1]))
        if isinstance(atom, FloorDiv):
            return _quotient_interval(left, right)
        return _remainder_interval(left, right)

    def _relax(self, dim: Dim, atom: FloorDiv | Mod | Min | Max, depth: int) -> Iterator[End]:
        """Lower bounds of `factor * atom + rest` from expressions that bound the atom."""
        split = _split(dim, atom)
        if split is None:
            return
        factor, rest = split
        if self._direct(factor) >= 0:
            positive = True
        elif -self._direct(-factor) <= 0:
            positive = False
        else:
            return
        if isinstance(atom, Min | Max):
            ends = [self._search(factor * operand + rest, depth) for operand in atom.operands()]
            one_suffices = isinstance(atom, Max) == positive
            yield max(ends) if one_suffices else min(ends)
            return
        if isinstance(atom, Mod) and atom.right.is_const:
            # n - mod(n, c) is c * floordiv(n, c), whose range is exact: S rounded up to a multiple of 16 stays within 512 if S does.
            yield self._direct(factor * (atom.left - atom.left // atom.right * atom.right) + rest)
        if isinstance(atom, FloorDiv) and not atom.right.is_const and self._direct(atom.right) >= 1:
            # Times k, the expression is at least `scaled`; an integer above -1 is not negative.
            scaled = rest * atom.right + factor * (atom.left - atom.right + 1 if positive else atom.left)
            if self._search(scaled + atom.right - 1, depth) >= 0:
                yield 0
        for scale, bound in self._replacements(atom, positive):
            yield _ceil_divide(self._search(factor * bound + rest * scale, depth), scale)

    def _replacements(self, atom: FloorDiv | Mod, below: bool) -> Iterator[tuple[int, Dim]]:
        """Pairs (scale, bound) with `bound <= scale * atom` if below, else `bound >= scale * atom`; the scale is positive."""
        numerator, divisor = atom.left, atom.right
        if isinstance(atom, FloorDiv) and divisor.is_const and divisor.const > 0:
            yield (divisor.const, numerator - divisor + 1 if below else numerator)
            return
        if below or self._direct(divisor) < 1:
            return
        if isinstance(atom, Mod):
            yield (1, divisor - 1)
        if self._direct(numerator) >= 0:
            yield (1, numerator)

    def _cancel(self, dim: Dim, inequality: Dim, depth: int) -> Iterator[End]:
        """Lower bounds of `dim - multiple * inequality`, the multiple chosen so that one product cancels."""
        for fact_coefficient, fact_product in inequality.monomials:
            if not fact_product:
                continue
            for coefficient, product in dim.monomials:
                multiple = divide_monomials(product, fact_product)
                if multiple is None or (coefficient > 0) != (fact_coefficient > 0) or not self._never_negative(multiple):
                    continue
                scale = abs(fact_coefficient)
                rest = dim * scale - inequality * of_terms([(abs(coefficient), multiple)])
                yield _ceil_divide(self._search(rest, depth), scale)

    def _never_negative(self, product: Monomial) -> bool:
        return all(power % 2 == 0 or self._atom_range(atom)[0] >= 0 for atom, power in product)


def _split(dim: Dim, atom: Atom) -> tuple[Dim, Dim] | None:
    """(factor, rest) with `dim == factor * atom + rest`, or None where the atom occurs with a power."""
    factor: list[tuple[int, Monomial]] = []
    rest: list[tuple[int, Monomial]] = []
    for coefficient, product in dim.monomials:
        power = next((power for other, power in product if other == atom), 0)
        if power > 1:
            return None
        if power:
            factor.append((coefficient, tuple(item for item in product if item[0] != atom)))
        else:
            rest.append((coefficient, product))
    return of_terms(factor), of_terms(rest)


def _shifted_end(dim: Dim, ranges: Mapping[Atom, Interval]) -> End:
    """The lower end of the interval, of the expression as it is and of the one with atoms that start at zero."""
    plain = _interval(dim, ranges)[0]
    if len(dim.monomials) < 2 or all(len(product) < 2 and sum(p for _, p in product) < 2 for _, product in dim.monomials):
        return plain
    # What an atom is over its distance to an end is multiplied out here, not as a Dim: a question asks this of hundreds of expressions.
    total: dict[tuple[tuple[Atom, int], ...], int] = {}
    for coefficient, product in dim.monomials:
        terms: list[tuple[tuple[tuple[Atom, int], ...], int]] = [((), coefficient)]
        for atom, power in product:
            factors = _shifted_power(ranges[atom], power)
            terms = [((*left, (atom, rest)) if rest else left, number * factor) for left, number in terms for rest, factor in factors]
        for left, number in terms:
            total[left] = total.get(left, 0) + number
    shifted = {atom: _shifted_range(interval) for atom, interval in ranges.items()}
    return max(plain, _interval_of([(number, product) for product, number in total.items() if number], shifted)[0])


def _shifted_power(interval: Interval, power: int) -> list[tuple[int, int]]:
    """The power of an atom, as (power, coefficient) of terms in its distance to the lower end of its range, else to the upper one."""
    low, high = interval
    end, sign = (low, 1) if isinstance(low, int) else (high, -1) if isinstance(high, int) else (0, 1)
    if not end:
        return [(power, sign**power)]
    assert isinstance(end, int)
    return [(rest, math.comb(power, rest) * sign**rest * end ** (power - rest)) for rest in range(power + 1)]


def _shifted_range(interval: Interval) -> Interval:
    low, high = interval
    if isinstance(low, int):
        return (0, _add(high, -low))
    return (0, math.inf) if isinstance(high, int) else interval


def _interval(dim: Dim, ranges: Mapping[Atom, Interval]) -> Interval:
    return _interval_of(dim.monomials, ranges)


def _interval_of(terms: Iterable[tuple[int, Monomial]], ranges: Mapping[Atom, Interval]) -> Interval:
    total: Interval = (0, 0)
    for coefficient, product in terms:
        part: Interval = (coefficient, coefficient)
        for atom, power in product:
            part = _multiply(part, ranges[atom] if power == 1 else _power(ranges[atom], power))
        total = (_add(total[0], part[0]), _add(total[1], part[1]))
    return total


def _add(left: End, right: End) -> End:
    """The sum; infinity wins (an int beyond the range of a float must not be converted)."""
    if isinstance(left, float):
        return left
    return right if isinstance(right, float) else left + right


def _times(left: End, right: End) -> End:
    if left == 0 or right == 0:
        return 0
    if isinstance(left, float) or isinstance(right, float):
        return math.inf if (left > 0) == (right > 0) else -math.inf
    return left * right


def _multiply(left: Interval, right: Interval) -> Interval:
    if left[0] >= 0 and right[0] >= 0:
        return (_times(left[0], right[0]), _times(left[1], right[1]))
    corners = [_times(a, b) for a in left for b in right]
    return (min(corners), max(corners))


def _power(interval: Interval, power: int) -> Interval:
    result: Interval = (1, 1)
    for _ in range(power):
        result = _multiply(result, interval)
    return (max(result[0], 0), result[1]) if power % 2 == 0 else result


def _ceil_divide(value: End, divisor: int) -> End:
    return value if isinstance(value, float) else -(-value // divisor)


def _floor_divide(value: End, divisor: End) -> End:
    """The floor of a quotient of ends, the divisor at least 1; a finite value over infinity is 0 or -1."""
    if isinstance(divisor, float):
        return (0 if value >= 0 else -1) if isinstance(value, int) else value
    return value if isinstance(value, float) else value // divisor


def _quotient_interval(left: Interval, right: Interval) -> Interval:
    if right[1] <= -1:
        left, right = (-left[1], -left[0]), (-right[1], -right[0])
    if right[0] < 1:
        # A divisor of 0 has no value; of unknown sign, the magnitude never grows.
        if right[0] >= 0:
            right = (1, max(right[1], 1))
        else:
            magnitude = max(abs(left[0]), abs(left[1]))
            return (-magnitude, magnitude)
    corners = [_floor_divide(a, b) for a in left for b in right]
    return (min(corners), max(corners))


def _remainder_interval(left: Interval, right: Interval) -> Interval:
    """The remainder has the sign of the divisor and is smaller in magnitude; it never exceeds a numerator that is not negative."""
    if right[0] >= 0:
        high = _add(right[1], -1)
        return (0, max(0, min(high, left[1]) if left[0] >= 0 else high))
    if right[1] <= 0:
        return (min(0, _add(right[0], 1)), 0)
    return (min(0, _add(right[0], 1)), max(0, _add(right[1], -1)))
