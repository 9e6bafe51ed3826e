"""What is known about the dims of a model: names, ranges, divisors, equalities; and the questions that passes ask about them.

The relations are those of BladeDISC (section 3.1: dimension equality, and equality of products, "dim collapse"), extended by ranges,
divisors and inequalities. Any size may be 0 at run time, so `a * c == b * c` never yields `a == b` by itself. An answer YES or NO holds
for every assignment of the symbols that satisfies the declarations and facts; where an expression divides by zero it has no value, and
nothing is claimed about it.

How it works: each expression is rewritten into a form in which equal expressions tend to be the same object (`ShapeEnv._normal`):
substituted symbols are replaced, a symbol divisible by k is written `k * quotient`, floor quotients, remainders, minima and maxima are
resolved by bounds (`_dim_bounds.py`), and products are rewritten by the known product equalities.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from disc._dim_algebra import (
    Atom,
    Dim,
    FloorDiv,
    Max,
    Min,
    Mod,
    Monomial,
    Symbol,
    add_all,
    ceildiv,
    content,
    dim_max,
    dim_min,
    divide_coefficients,
    divide_monomials,
    divide_polynomials,
    make_atom,
    of_atom,
    of_terms,
    parse_dim,
)
from disc._dim_bounds import Bounds, End, Interval
from disc.errors import ShapeConstraintError

__all__ = [
    "Atom",
    "Dim",
    "FloorDiv",
    "Max",
    "Min",
    "Mod",
    "Monomial",
    "ShapeEnv",
    "Symbol",
    "Truth",
    "ceildiv",
    "dim_max",
    "dim_min",
    "parse_dim",
]

_MAXIMUM_REWRITES = 32
"""Product equalities may rewrite in a circle; more steps than this never help a proof."""
_MAXIMUM_ROUNDS = 6
"""Ranges tighten each other; real chains are short, and `S0 >= S1 + 1, S1 >= S0` would go on for ever."""
_MAXIMUM_RULES = 24
"""Product equalities are combined pairwise until there are this many."""
_MAXIMUM_DIVISOR = 1 << 20
"""Relations in a circle (`x = 2 * y * z, y = 2 * x`) would make the divisors of zero grow for ever."""


class Truth(Enum):
    """The answer to a question about sizes that are not known yet."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"

    def __bool__(self) -> bool:
        raise TypeError("a Truth has three values: compare it with Truth.YES, Truth.NO or Truth.UNKNOWN")


@dataclass(frozen=True)
class _Rule:
    """`coefficient * product == rest`, used from left to right."""

    coefficient: int
    product: Monomial
    rest: Dim


@dataclass
class _State:
    """All knowledge; copied before a fact is learnt, so that a contradiction leaves the environment as it was."""

    order: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, Interval] = field(default_factory=dict)
    quotient_of: dict[str, tuple[str, int]] = field(default_factory=dict)
    solutions: dict[str, Dim] = field(default_factory=dict)
    pinned: dict[str, None] = field(default_factory=dict)
    relations: list[tuple[Dim, Dim]] = field(default_factory=list)
    rules: list[_Rule] = field(default_factory=list)
    assumed: list[tuple[Dim, Dim]] = field(default_factory=list)
    inequalities: list[Dim] = field(default_factory=list)

    def copy(self) -> _State:
        return _State(
            dict(self.order),
            dict(self.ranges),
            dict(self.quotient_of),
            dict(self.solutions),
            dict(self.pinned),
            list(self.relations),
            list(self.rules),
            list(self.assumed),
            list(self.inequalities),
        )


class ShapeEnv:
    """Symbols with their ranges and divisors, the facts between them, and proofs.

    Methods that learn raise `ShapeConstraintError` when a fact contradicts what is known, and then change nothing. Every method raises
    ValueError for a symbol that was not declared.
    """

    def __init__(self) -> None:
        self._state = _State()
        self._next_fresh = 0
        self._forget_answers()

    # Declarations

    def symbol(self, name: str, lo: int | None = 0, hi: int | None = None, divisor: int = 1) -> Dim:
        """Declares a symbol, or adds the range and divisor to what is known of it. A size has `lo` 0; a value may have None."""
        if divisor < 1:
            raise ValueError(f"the divisor of {name} must be at least 1, not {divisor}")
        symbol = Dim.symbol(name)
        with _Learning(self, f"the declaration of {name} (range {lo} to {hi}, divisor {divisor})"):
            if name not in self._state.order:
                self._state.order[name] = len(self._state.order)
                self._state.ranges[name] = (-math.inf, math.inf)
            self._learn_equal(symbol % divisor, Dim.of(0))
            if lo is not None:
                self._learn_at_least(symbol, Dim.of(lo))
            if hi is not None:
                self._learn_at_least(Dim.of(hi), symbol)
        return symbol

    def fresh(self, prefix: str = "S") -> Dim:
        """Declares the next unused of S0, S1, ..."""
        number = self._next_fresh if prefix == "S" else 0
        while f"{prefix}{number}" in self._state.order:
            number += 1
        if prefix == "S":
            self._next_fresh = number + 1
        return self.symbol(f"{prefix}{number}")

    def pin(self, symbol: Dim | str) -> None:
        """Never replaces this symbol by an expression; an equality that would do so is kept as a relation."""
        name = str(symbol)
        self._check_declared(Dim.symbol(name))
        self._state.pinned[name] = None

    def names(self) -> tuple[str, ...]:
        """The symbols in the order of declaration."""
        return tuple(self._state.order)

    def parse(self, text: str) -> Dim:
        """`parse_dim`, for declared symbols only."""
        dim = parse_dim(text)
        self._check_declared(dim)
        return dim

    def copy(self) -> ShapeEnv:
        """An independent environment with the same knowledge."""
        other = ShapeEnv()
        other._state = self._state.copy()
        other._next_fresh = self._next_fresh
        other._forget_answers()
        return other

    # Facts

    def equate(self, left: Dim | int, right: Dim | int) -> None:
        """Learns `left == right`. The symbol declared later is replaced where the equation can be solved for it."""
        with _Learning(self, f"{left} == {right}"):
            self._learn_equal(Dim.of(left), Dim.of(right))

    def assume_ge(self, left: Dim | int, right: Dim | int) -> None:
        """Learns `left >= right`."""
        with _Learning(self, f"{left} >= {right}"):
            before = len(self._state.inequalities)
            self._learn_at_least(Dim.of(left), Dim.of(right))
            if len(self._state.inequalities) > before:
                self._state.assumed.append((Dim.of(left), Dim.of(right)))

    def facts(self) -> list[tuple[Dim, Dim]]:
        """The equalities (left, right), as given, that are no replacement of a symbol: product equalities and pinned symbols."""
        return list(self._state.relations)

    def inequalities(self) -> list[tuple[Dim, Dim]]:
        """The pairs `left >= right` given to `assume_ge` that no range of a symbol expresses."""
        return list(self._state.assumed)

    # Questions

    def simplify(self, dim: Dim | int) -> Dim:
        """The expression under all facts; equal results mean equal sizes."""
        dim = Dim.of(dim)
        if dim not in self._simplified:
            self._simplified[dim] = self._restore(self._normal(dim))
        return self._simplified[dim]

    def equal(self, left: Dim | int, right: Dim | int) -> Truth:
        """Whether both sizes are the same, whatever the inputs."""
        left, right = Dim.of(left), Dim.of(right)
        if left is right:
            return Truth.YES
        key = (left, right)
        if key not in self._equalities:
            self._equalities[key] = self._decide_equal(left, right)
        return self._equalities[key]

    def le(self, left: Dim | int, right: Dim | int) -> Truth:
        """Whether `left <= right`."""
        difference = self._difference(Dim.of(right), Dim.of(left))
        if self._bounds().lower(difference) >= 0:
            return Truth.YES
        return Truth.NO if self._bounds().upper(difference) < 0 else Truth.UNKNOWN

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
        normal = self._normal(Dim.of(dim))
        return _finite(self._bounds().lower(normal)), _finite(self._bounds().upper(normal))

    def divisor(self, dim: Dim | int) -> int:
        """The largest proved constant divisor; for a size proved to be 0, which every number divides, it is 1."""
        return self._constant_divisor(self._normal(Dim.of(dim))) or 1

    def exact_div(self, dividend: Dim | int, divisor: Dim | int) -> Dim | None:
        """q with `dividend == q * divisor` proved, also where the divisor is 0 at run time; else None."""
        dividend, divisor = Dim.of(dividend), Dim.of(divisor)
        direct = divide_polynomials(dividend, divisor)
        if direct is not None:
            return self.simplify(direct)
        below = self._normal(divisor)
        quotient = self._exact_quotient(self._normal(dividend), below)
        if quotient is not None:
            return self._restore(quotient)
        if below.is_const and below != 0 and self._normal(dividend % below) == 0:
            return self.simplify(dividend // below)
        return None

    def product(self, dims: Iterable[Dim | int]) -> Dim:
        """The simplified product; 1 for no dims."""
        total = Dim.of(1)
        for dim in dims:
            total = total * dim
        return self.simplify(total)

    def reshape_groups(
        self, source: Sequence[Dim | int], target: Sequence[Dim | int]
    ) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
        """The finest split of both shapes into consecutive groups of proved equal products, as dim indices; None without such a split.

        A dim of size 1 joins the group before it, or the first one.
        """
        sides = ([Dim.of(dim) for dim in source], [Dim.of(dim) for dim in target])
        kept = [[index for index, dim in enumerate(side) if self.equal(dim, 1) is not Truth.YES] for side in sides]
        reduced = [[side[index] for index in indices] for side, indices in zip(sides, kept, strict=True)]
        cuts = _GroupSearch(self, reduced[0], reduced[1]).longest(0, 0)
        if cuts is None:
            return None
        if not cuts:
            return [(tuple(range(len(source))), tuple(range(len(target))))] if source or target else []
        starts = [(0, 0), *((_start(kept[0], i, len(source)), _start(kept[1], j, len(target))) for i, j in cuts[:-1])]
        ends = [*starts[1:], (len(source), len(target))]
        return [(tuple(range(a, b)), tuple(range(c, d))) for (a, c), (b, d) in zip(starts, ends, strict=True)]

    def _decide_equal(self, left: Dim, right: Dim) -> Truth:
        difference = self._difference(left, right)
        if difference == 0:
            return Truth.YES
        if difference.is_const:
            return Truth.NO
        constant = difference.constant_term
        step = self._constant_divisor(difference - constant)
        if step and constant % step:
            return Truth.NO
        low, high = self._bounds().lower(difference), self._bounds().upper(difference)
        if low > 0 or high < 0:
            return Truth.NO
        return Truth.YES if low == high == 0 else Truth.UNKNOWN

    # Normal form

    def _forget_answers(self) -> None:
        self._normals: dict[Dim, Dim] = {}
        self._atoms: dict[Atom, Dim] = {}
        self._simplified: dict[Dim, Dim] = {}
        self._equalities: dict[tuple[Dim, Dim], Truth] = {}
        self._current_bounds: Bounds | None = None

    def _bounds(self) -> Bounds:
        if self._current_bounds is None:
            self._current_bounds = Bounds(self._state.ranges.__getitem__, self._state.inequalities)
        return self._current_bounds

    def _check_declared(self, dim: Dim) -> None:
        for name in dim.symbols():
            if name not in self._state.order and name not in self._state.quotient_of:
                raise ValueError(f"the dim symbol {name} of {dim} is not declared")

    def _difference(self, left: Dim, right: Dim) -> Dim:
        return self._rewrite(self._normal(left) - self._normal(right))

    def _normal(self, dim: Dim) -> Dim:
        if dim not in self._normals:
            self._check_declared(dim)
            self._normals[dim] = self._rewrite(dim.map_atoms(self._normal_atom))
        return self._normals[dim]

    def _normal_atom(self, atom: Atom) -> Dim:
        if atom not in self._atoms:
            self._atoms[atom] = self._compute_atom(atom)
        return self._atoms[atom]

    def _compute_atom(self, atom: Atom) -> Dim:
        if isinstance(atom, Symbol):
            solution = self._state.solutions.get(atom.name)
            return of_atom(atom) if solution is None else self._normal(solution)
        if isinstance(atom, FloorDiv):
            quotient = divide_polynomials(atom.left, atom.right)  # before a product equality hides the factor
            if quotient is not None:
                return self._normal(quotient)
        folded = make_atom(type(atom), self._normal(atom.left), self._normal(atom.right))
        return folded.map_atoms(self._resolve)

    def _resolve(self, atom: Atom) -> Dim:
        """Removes an atom with normal operands where bounds or divisors decide it."""
        if isinstance(atom, Symbol):
            return of_atom(atom)
        bounds = self._bounds()
        if isinstance(atom, Min | Max):
            difference = self._rewrite(atom.right - atom.left)
            if bounds.lower(difference) >= 0:
                return atom.left if isinstance(atom, Min) else atom.right
            if bounds.upper(difference) <= 0:
                return atom.right if isinstance(atom, Min) else atom.left
            return of_atom(atom)
        low, high = bounds.interval(of_atom(atom))
        if low == high and isinstance(low, int):
            return Dim.of(low)
        return self._resolve_quotient(atom) if isinstance(atom, FloorDiv) else self._resolve_remainder(atom)

    def _resolve_quotient(self, atom: FloorDiv) -> Dim:
        if atom.right.is_const:
            return of_atom(atom)
        exact = self._exact_quotient(atom.left, atom.right)
        if exact is not None:
            return exact
        whole = _whole_part(atom.left, atom.right)
        rest = atom.left - whole * atom.right
        if self._is_remainder(rest, atom.right):
            return whole
        return whole + of_atom(FloorDiv(rest, atom.right))

    def _resolve_remainder(self, atom: Mod) -> Dim:
        if atom.right.is_const:
            kept = [
                (coefficient, product)
                for coefficient, product in atom.left.monomials
                if not product or self._constant_divisor(of_terms([(coefficient, product)])) % atom.right.const
            ]
            rest = of_terms(kept)
            if rest is not atom.left:
                return (rest % atom.right).map_atoms(self._resolve)
        elif self._exact_quotient(atom.left, atom.right) is not None:
            return Dim.of(0)
        else:
            rest = atom.left - _whole_part(atom.left, atom.right) * atom.right
        return rest if self._is_remainder(rest, atom.right) else of_atom(Mod(rest, atom.right))

    def _is_remainder(self, dim: Dim, divisor: Dim) -> bool:
        return self._bounds().lower(dim) >= 0 and self._bounds().lower(self._rewrite(divisor - dim)) >= 1

    def _rewrite(self, dim: Dim) -> Dim:
        """Applies `c * floordiv(n, c) == n - mod(n, c)` and the product equalities to a polynomial of normal atoms."""
        for _ in range(_MAXIMUM_REWRITES):
            changed = self._apply_rule(self._merge_quotient(dim))
            if changed is dim:
                return dim
            dim = changed
        return dim

    def _merge_quotient(self, dim: Dim) -> Dim:
        for coefficient, product in dim.monomials:
            for atom, _ in product:
                if not isinstance(atom, FloorDiv) or len(atom.right.monomials) != 1:
                    continue
                scale, factor = atom.right.monomials[0]
                rest = divide_monomials(product, of_atom(atom).monomials[0][1])
                rest = None if rest is None else divide_monomials(rest, factor)
                if rest is None or coefficient % scale:
                    continue
                remainder = make_atom(Mod, atom.left, atom.right).map_atoms(self._resolve)
                whole = of_terms([(coefficient // scale, rest)]) * (atom.left - remainder)
                return dim - of_terms([(coefficient, product)]) + whole
        return dim

    def _apply_rule(self, dim: Dim) -> Dim:
        for rule in self._state.rules:
            for coefficient, product in dim.monomials:
                rest = divide_monomials(product, rule.product)
                if rest is not None and coefficient % rule.coefficient == 0:
                    replacement = of_terms([(coefficient // rule.coefficient, rest)]) * rule.rest
                    return dim - of_terms([(coefficient, product)]) + replacement
        return dim

    def _exact_quotient(self, dividend: Dim, divisor: Dim) -> Dim | None:
        """Polynomial division of normal forms, also after one product equality used from right to left."""
        quotient = divide_polynomials(dividend, divisor)
        if quotient is not None:
            return self._rewrite(quotient)
        for rule in self._state.rules:
            if len(rule.rest.monomials) != 1:
                continue
            backwards = _Rule(rule.rest.monomials[0][0], rule.rest.monomials[0][1], of_terms([(rule.coefficient, rule.product)]))
            for coefficient, product in dividend.monomials:
                rest = divide_monomials(product, backwards.product)
                if rest is None or coefficient % backwards.coefficient:
                    continue
                other = of_terms([(coefficient // backwards.coefficient, rest)]) * backwards.rest
                quotient = divide_polynomials(dividend - of_terms([(coefficient, product)]) + other, divisor)
                if quotient is not None:
                    return quotient
        return None

    def _constant_divisor(self, dim: Dim) -> int:
        """The greatest common divisor of all values, as far as known; 0 for the expression 0."""
        return math.gcd(
            *(coefficient * math.prod(self._atom_divisor(a) ** p for a, p in product) for coefficient, product in dim.monomials)
        )

    def _atom_divisor(self, atom: Atom) -> int:
        if isinstance(atom, Symbol | FloorDiv):
            return 1
        return math.gcd(self._constant_divisor(atom.left), self._constant_divisor(atom.right))

    def _restore(self, dim: Dim) -> Dim:
        """Writes the quotients of divisible symbols with the symbols themselves: 12 * (S0 / 12) is S0."""
        return add_all(self._restore_term(coefficient, product) for coefficient, product in dim.monomials)

    def _restore_term(self, coefficient: int, product: Monomial) -> Dim:
        result = Dim.of(1)
        for atom, power in product:
            for _ in range(power):
                if isinstance(atom, Symbol) and atom.name in self._state.quotient_of:
                    base, divisor = self._state.quotient_of[atom.name]
                    common = math.gcd(coefficient, divisor)
                    coefficient //= common
                    result = result * (Dim.symbol(base) // (divisor // common))
                elif isinstance(atom, Symbol):
                    result = result * of_atom(atom)
                else:
                    result = result * make_atom(type(atom), self._restore(atom.left), self._restore(atom.right))
        return result * coefficient

    # Learning

    def _learn_equal(self, left: Dim, right: Dim) -> None:
        difference = self._difference(left, right)
        if difference == 0:
            return
        if self._decide_equal(left, right) is Truth.NO:
            raise self._contradiction(left, "equal", right)
        difference = divide_coefficients(difference, content(difference))
        multiple = _as_multiple(difference)
        if multiple is not None:
            self._introduce_quotient(*multiple)
            return
        if self._spread_divisors(difference):
            self._learn_equal(left, right)
            return
        solution = self._solve(difference)
        if solution is not None:
            self._substitute(*solution)
            return
        self._state.relations.append((left, right))
        self._derive_rules()
        self._tighten(left, right)

    def _spread_divisors(self, zero: Dim) -> bool:
        """From `c * x == rest` learns that x is divisible by what divides the rest and not c."""
        for coefficient, product in zero.monomials:
            atom = of_terms([(1, product)]).sole_atom if product else None
            if not isinstance(atom, Symbol):
                continue
            rest = zero - of_terms([(coefficient, product)])
            common = self._constant_divisor(rest)
            divisor = common // math.gcd(common, coefficient) if common else 1
            known = self._state.quotient_of.get(atom.name, ("", 1))[1]
            if divisor > 1 and known * divisor <= _MAXIMUM_DIVISOR and atom.name not in rest.symbols():
                self._introduce_quotient(atom.name, divisor)
                return True
        return False

    def _solve(self, zero: Dim) -> tuple[str, Dim] | None:
        """The symbol to replace, and by what: the latest declared that is not pinned and occurs once, with coefficient 1 or -1."""
        best: tuple[int, str, Dim] | None = None
        for coefficient, product in zero.monomials:
            atom = of_terms([(1, product)]).sole_atom if product else None
            if not isinstance(atom, Symbol) or abs(coefficient) != 1 or self._is_pinned(atom.name):
                continue
            rest = zero - of_terms([(coefficient, product)])
            rank = self._rank(atom.name)
            if atom.name not in rest.symbols() and (best is None or rank > best[0]):
                best = (rank, atom.name, rest * -coefficient)
        return None if best is None else (best[1], best[2])

    def _base(self, name: str) -> str:
        return self._state.quotient_of[name][0] if name in self._state.quotient_of else name

    def _rank(self, name: str) -> int:
        return self._state.order[self._base(name)]

    def _is_pinned(self, name: str) -> bool:
        return self._base(name) in self._state.pinned

    def _substitute(self, name: str, value: Dim) -> None:
        low, high = self._state.ranges.pop(name)
        self._state.solutions[name] = value
        self._renew_facts()
        if isinstance(low, int):
            self._learn_at_least(value, Dim.of(low))
        if isinstance(high, int):
            self._learn_at_least(Dim.of(high), value)

    def _introduce_quotient(self, name: str, divisor: int) -> None:
        base, known = self._state.quotient_of.get(name, (name, 1))
        quotient = f"{base}/{known * divisor}"
        low, high = self._state.ranges.pop(name)
        self._state.quotient_of[quotient] = (base, known * divisor)
        low = -(-low // divisor) if isinstance(low, int) else low
        high = high // divisor if isinstance(high, int) else high
        if low > high:
            raise ShapeConstraintError(f"the dim {base} must be a multiple of {known * divisor}, but its range holds none")
        self._state.ranges[quotient] = (low, high)
        self._state.solutions[name] = _internal_symbol(quotient) * divisor
        self._renew_facts()

    def _learn_at_least(self, left: Dim, right: Dim) -> None:
        difference = self._difference(left, right)
        low, high = self._bounds().lower(difference), self._bounds().upper(difference)
        if low >= 0:
            return
        if high < 0:
            raise self._contradiction(left, "be at least", right)
        if high == 0:
            self._learn_equal(left, right)
            return
        self._state.inequalities.append(difference)
        self._tighten(left, right)
        if _is_symbol_bound(difference):
            self._state.inequalities = [known for known in self._state.inequalities if known is not difference]
            self._forget_answers()

    def _tighten(self, left: Dim, right: Dim) -> None:
        """Narrows the ranges of symbols by all facts, in rounds; a symbol with one value left is replaced by it."""
        for _ in range(_MAXIMUM_ROUNDS):
            self._forget_answers()
            facts = list(self._state.inequalities)
            for rule in self._state.rules:
                zero = of_terms([(rule.coefficient, rule.product)]) - rule.rest
                facts += [zero, -zero]
            narrowed = [self._tighten_by(fact, left, right) for fact in facts]
            if not any(narrowed):
                break
        self._forget_answers()
        for name, (low, high) in list(self._state.ranges.items()):
            if low == high and isinstance(low, int) and name in self._state.ranges:
                self._substitute(name, Dim.of(low))

    def _tighten_by(self, positive: Dim, left: Dim, right: Dim) -> bool:
        """From `c * x + rest >= 0` bounds x by the greatest value of the rest."""
        changed = False
        for coefficient, product in positive.monomials:
            atom = of_terms([(1, product)]).sole_atom if product else None
            if not isinstance(atom, Symbol):
                continue
            highest = self._bounds().interval(positive - of_terms([(coefficient, product)]))[1]
            if not isinstance(highest, int):
                continue
            low, high = self._state.ranges[atom.name]
            narrowed = (max(low, -(highest // coefficient)), high) if coefficient > 0 else (low, min(high, highest // -coefficient))
            if narrowed == (low, high):
                continue
            if narrowed[0] > narrowed[1]:
                raise self._contradiction(left, "relate so to", right)
            self._state.ranges[atom.name] = narrowed
            self._current_bounds = None
            changed = True
        return changed

    def _renew_facts(self) -> None:
        """After a substitution: brings all facts into the new normal form, and learns again those that can now be solved."""
        inequalities, relations = self._state.inequalities, self._state.relations
        self._state.inequalities, self._state.relations, self._state.rules = [], [], []
        self._forget_answers()
        for left, right in relations:
            self._learn_equal(left, right)
        for inequality in inequalities:
            self._learn_at_least(self._normal(inequality), Dim.of(0))

    def _derive_rules(self) -> None:
        """Makes rewrite rules of the relations, and of what two rules with a common factor imply (Buchberger's step, bounded)."""
        self._state.rules = []
        self._forget_answers()
        for left, right in self._state.relations:
            self._add_rule(self._difference(left, right))
        first = 0
        while first < len(self._state.rules) < _MAXIMUM_RULES:
            for second in range(first):
                overlap = _overlap(self._state.rules[first], self._state.rules[second])
                if overlap is not None and len(self._state.rules) < _MAXIMUM_RULES:
                    self._add_rule(self._rewrite(overlap))
            first += 1

    def _add_rule(self, zero: Dim) -> None:
        if zero.is_const:
            return  # 0 is nothing new; another constant cannot be: the relation was checked when it was learnt
        zero = divide_coefficients(zero, content(zero))
        unit = [term for term in zero.monomials if term[1] and abs(term[0]) == 1]
        for coefficient, product in sorted(unit or zero.monomials, key=lambda term: self._elimination_order(term[1]), reverse=True):
            rest = zero - of_terms([(coefficient, product)])
            if product and all(divide_monomials(other, product) is None for _, other in rest.monomials):
                sign = 1 if coefficient > 0 else -1
                self._state.rules.append(_Rule(abs(coefficient), product, rest * -sign))
                self._forget_answers()
                return

    def _elimination_order(self, product: Monomial) -> tuple[int, list[tuple[tuple[int, int, str], int]]]:
        """Which product a rule removes: of the highest degree, of atoms that are no symbols, of symbols declared last."""
        ranked = [(self._atom_rank(atom), power) for atom, power in product]
        return (sum(power for _, power in product), sorted(ranked, reverse=True))

    def _atom_rank(self, atom: Atom) -> tuple[int, int, str]:
        if not isinstance(atom, Symbol):
            return (2, 0, str(atom))
        return (0 if self._is_pinned(atom.name) else 1, self._rank(atom.name), "")

    def _contradiction(self, left: Dim, verb: str, right: Dim) -> ShapeConstraintError:
        return ShapeConstraintError(f"the dim {self._describe(left)} cannot {verb} {self._describe(right)}")

    def _describe(self, dim: Dim) -> str:
        """The expression and, where it is not a constant, its range."""
        shown = self._restore(dim)
        if shown.is_const or any(name not in self._state.order for name in dim.symbols()):
            return str(shown)
        interval = self._bounds().interval(self._normal(dim))
        low, high = (str(_finite(end)) if _finite(end) is not None else "unbounded" for end in interval)
        return f"{shown} (range {low} to {high})"


class _Learning:
    """Restores the state of an environment when learning a fact fails, and names the fact in the error."""

    def __init__(self, env: ShapeEnv, fact: str) -> None:
        self._env = env
        self._fact = fact
        self._saved = env._state.copy()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            return
        self._env._state = self._saved
        self._env._forget_answers()
        if isinstance(error, ShapeConstraintError):
            raise ShapeConstraintError(f"{self._fact} contradicts what is known: {error}") from error


class _GroupSearch:
    """Longest chain of cuts through two shapes such that the dims between neighbouring cuts have proved equal products."""

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


def _finite(end: End) -> int | None:
    return end if isinstance(end, int) else None


def _internal_symbol(name: str) -> Dim:
    """A symbol with a name that no text can hold, so that it never meets a declared one."""
    return of_atom(Symbol(name))


def _whole_part(dividend: Dim, divisor: Dim) -> Dim:
    """The quotients of those terms that a one-term divisor divides."""
    if len(divisor.monomials) != 1:
        return Dim.of(0)
    scale, factor = divisor.monomials[0]
    found: list[tuple[int, Monomial]] = []
    for coefficient, product in dividend.monomials:
        rest = divide_monomials(product, factor)
        if rest is not None and coefficient % scale == 0:
            found.append((coefficient // scale, rest))
    return of_terms(found)


def _as_multiple(zero: Dim) -> tuple[str, int] | None:
    """Reads `mod(c * x, k) == 0` as (x, a divisor of x)."""
    atom = zero.sole_atom or (-zero).sole_atom
    if not isinstance(atom, Mod) or not atom.right.is_const or len(atom.left.monomials) != 1:
        return None
    coefficient, product = atom.left.monomials[0]
    symbol = of_terms([(1, product)]).sole_atom
    divisor = atom.right.const // math.gcd(atom.right.const, coefficient)
    return (symbol.name, divisor) if isinstance(symbol, Symbol) and divisor > 1 else None


def _is_symbol_bound(difference: Dim) -> bool:
    """Whether `difference >= 0` bounds one symbol by a constant: then its range says it all."""
    variable = difference - difference.constant_term
    if len(variable.monomials) != 1:
        return False
    return isinstance(of_terms([(1, variable.monomials[0][1])]).sole_atom, Symbol)


def _overlap(first: _Rule, second: _Rule) -> Dim | None:
    """What follows from rewriting the least common multiple of two products by either rule; None without a common atom."""
    if first.coefficient != 1 or second.coefficient != 1:
        return None
    left, right = dict(first.product), dict(second.product)
    if not any(atom in right for atom in left):
        return None
    whole = tuple((atom, max(left.get(atom, 0), right.get(atom, 0))) for atom in dict.fromkeys((*left, *right)))
    by_first, by_second = divide_monomials(whole, first.product), divide_monomials(whole, second.product)
    if by_first is None or by_second is None:
        return None
    return of_terms([(1, by_first)]) * first.rest - of_terms([(1, by_second)]) * second.rest
