"""The facts behind a `ShapeEnv`: the normal form of an expression under them, and what a new fact changes.

Each expression is rewritten into a form in which equal expressions tend to be the same object (`Facts.normal`): substituted symbols
are replaced, a symbol divisible by k is written `k * quotient`, floor quotients, remainders, minima and maxima are resolved by bounds,
and products are rewritten by the known product equalities (BladeDISC, section 3.1).
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle

from disc.errors import ShapeConstraintError
from disc.shapes.algebra import (
    Atom,
    Dim,
    FloorDiv,
    Max,
    Min,
    Mod,
    Monomial,
    Symbol,
    Valuation,
    add_all,
    content,
    divide_coefficients,
    divide_monomials,
    divide_polynomials,
    inner_first,
    make_atom,
    of_atom,
    of_terms,
)
from disc.shapes.bounds import Bounds, End, Interval
from disc.shapes.recursion import Recursive, run_recursive

Group = tuple[tuple[int, ...], tuple[int, ...]]  # dims of two shapes, as indices, of one product
_MAXIMUM_REWRITES = 32
"""Product equalities may rewrite in a circle; more steps than this never help a proof."""
_MAXIMUM_ROUNDS = 6
"""Ranges tighten each other; real chains are short, and `S0 >= S1 + 1, S1 >= S0` would go on for ever."""
_MAXIMUM_RULES = 24
"""Product equalities are combined pairwise until there are this many."""
_MAXIMUM_DIVISOR = 1 << 20
"""Relations in a circle (`x = 2 * y * z, y = 2 * x`) would make the divisors of zero grow for ever."""
_SIZES = (
    (97,),
    (1,),
    (4,),
    (8,),
    (16,),
    (5, 13, 29, 3, 37, 11, 23),
    (1, 63, 1),
    (1, 2, 34),
    (1, 19, 4),
    (3, 8, 11),
    (1, 3, 2000),
    (1, 2000, 3),
)
"""Sizes of the symbols, repeated, that refute what is not so: of maps that shrink stage by stage, small ones do where larger do not."""


@dataclass(frozen=True)
class Rule:
    """`coefficient * product == rest`, used from left to right."""

    coefficient: int
    product: Monomial
    rest: Dim

    @cached_property
    def zero(self) -> Dim:
        """The difference of both sides."""
        return of_terms([(self.coefficient, self.product)]) - self.rest

    def agrees(self, values: Valuation) -> bool:
        """Whether it holds for these sizes; where it divides by zero, it does not."""
        try:
            return self.zero.evaluate(values) == 0
        except ZeroDivisionError:
            return False


@dataclass(eq=False)
class Facts:
    """All knowledge of one environment. A `learn_*` that raises leaves it half changed: the caller keeps a copy."""

    order: dict[str, int] = field(default_factory=dict)
    """The declared symbols, numbered."""
    ranges: dict[str, Interval] = field(default_factory=dict)
    """For the symbols that normal forms hold: those neither substituted nor written with a quotient."""
    quotient_of: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Internal symbols: ("S0", 12) for S0 / 12."""
    solutions: dict[str, Dim] = field(default_factory=dict)
    """The expression that replaces a symbol."""
    pinned: dict[str, None] = field(default_factory=dict)
    relations: list[tuple[Dim, Dim]] = field(default_factory=list)
    """Equalities, as given, that could not be solved for a symbol; the rules are made from them."""
    rules: list[Rule] = field(default_factory=list)
    assumed: list[tuple[Dim, Dim]] = field(default_factory=list)
    """Inequalities (greater, smaller), as given."""
    inequalities: list[Dim] = field(default_factory=list)
    """Normal forms that are at least 0."""

    def __post_init__(self) -> None:
        self.forget_answers()

    def copy(self) -> Facts:
        return Facts(
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

    def copy_with_answers(self) -> Facts:
        """A copy that need not prove again what is proved."""
        other = self.copy()
        other._normals, other._atoms, other._divisors = dict(self._normals), dict(self._atoms), dict(self._divisors)
        other.simplified, other.equalities, other.groups = dict(self.simplified), dict(self.equalities), dict(self.groups)
        if self._current_bounds is not None:
            other._current_bounds = self._current_bounds.copy(other.ranges.__getitem__)
        return other

    def forget_answers(self) -> None:
        """To be called after every change."""
        self._normals: dict[Dim, Dim] = {}
        self._atoms: dict[Atom, Dim] = {}
        self._divisors: dict[Dim, int] = {}
        self.simplified: dict[Dim, Dim] = {}
        self.equalities: dict[tuple[Dim, Dim], bool | None] = {}
        self.groups: dict[tuple[tuple[Dim, ...], tuple[Dim, ...]], tuple[Group, ...] | None] = {}
        self._forget_bounds()

    def _forget_bounds(self) -> None:
        self._current_bounds: Bounds | None = None
        self._current_witnesses: tuple[Valuation, ...] | None = None

    def bounds(self) -> Bounds:
        """The bounds under the present facts."""
        if self._current_bounds is None:
            self._current_bounds = Bounds(self.ranges.__getitem__, self.inequalities)
        return self._current_bounds

    def witnesses(self) -> tuple[Valuation, ...]:
        """Some sizes that agree with all facts: what one of them refutes is not worth the search for a proof."""
        if self._current_witnesses is None:
            found = (Valuation(dict(zip(self.ranges, map(_within, cycle(sizes), self.ranges.values()), strict=False))) for sizes in _SIZES)
            self._current_witnesses = tuple(each for each in found if self._agrees(each))
        return self._current_witnesses

    def _agrees(self, values: Valuation) -> bool:
        try:
            return all(rule.agrees(values) for rule in self.rules) and all(fact.evaluate(values) >= 0 for fact in self.inequalities)
        except ZeroDivisionError:
            return False

    def examples(self, normal: Dim) -> list[int]:
        """Values that a normal form has for sizes that agree with all facts."""
        found: list[int] = []
        for witness in self.witnesses():
            with suppress(ZeroDivisionError):
                found.append(normal.evaluate(witness))
        return found

    def never_negative(self, normal: Dim) -> bool:
        """Whether a normal form is proved to be at least 0."""
        return min(self.examples(normal), default=0) >= 0 and self.bounds().never_negative(normal)

    def at_most(self, left: Dim, right: Dim) -> bool:
        """Whether `left <= right` is proved. The two sides are evaluated one by one: a program compares few sizes with each other, and most
        answers are no."""
        low, high = self.normal(left), self.normal(right)
        for witness in self.witnesses():
            with suppress(ZeroDivisionError):
                if low.evaluate(witness) > high.evaluate(witness):
                    return False
        return self.bounds().never_negative(self._rewrite(high - low))

    def premises(self) -> list[tuple[str, Dim]]:
        """What every proof starts from: the range and divisor of each symbol that is left in normal forms, sums that are 0, sums that are
        not negative. (A relation of which no rule could be made serves no proof.)"""
        found: list[tuple[str, Dim]] = []
        for name, (low, high) in self.ranges.items():
            base, divisor = self.quotient_of.get(name, (name, 1))
            found.append((f"is {divisor} times {low} to {high}", Dim.symbol(base)))
        found += [("is 0", self.restore(rule.zero)) for rule in self.rules]
        return found + [("is not negative", self.restore(each)) for each in self.inequalities]

    def check_declared(self, dim: Dim) -> None:
        """Raises ValueError for an unknown symbol."""
        for name in dim.symbols():
            if name not in self.order and name not in self.quotient_of:
                raise ValueError(f"the dim symbol {name} of {dim} is not declared")

    def difference(self, left: Dim, right: Dim) -> Dim:
        """The normal form of `left - right`."""
        return self._rewrite(self.normal(left) - self.normal(right))

    def decide_equal(self, left: Dim, right: Dim) -> bool | None:
        """True or False where that is proved for all sizes, else None."""
        difference = self.difference(left, right)
        if difference == 0:
            return True
        if difference.is_const:
            return False
        constant = difference.constant_term
        step = self.constant_divisor(difference - constant)
        if step and constant % step:
            return False
        examples = self.examples(difference)
        least, largest = min(examples, default=0), max(examples, default=0)
        if least < largest and least <= 0 <= largest:
            return None
        if least > 0:
            return False if self.bounds().never_negative(difference - 1) else None
        if largest < 0:
            return False if self.bounds().never_negative(-1 - difference) else None
        low, high = self.bounds().lower(difference), self.bounds().upper(difference)
        if low > 0 or high < 0:
            return False
        return True if low == high == 0 else None

    def normal(self, dim: Dim) -> Dim:
        """The form that proofs use; it may hold internal symbols, which `restore` removes."""
        found = self._normals.get(dim)
        return run_recursive(self._compute_normal(dim)) if found is None else found

    def _compute_normal(self, dim: Dim) -> Recursive[Dim]:
        if dim not in self._normals:
            self.check_declared(dim)
            for atom in () if dim.is_const else dim.atoms():
                if atom not in self._atoms:
                    self._atoms[atom] = yield from self._compute_atom(atom)
            self._normals[dim] = self._rewrite(dim.map_atoms(self._atoms.__getitem__))
        return self._normals[dim]

    def _compute_atom(self, atom: Atom) -> Recursive[Dim]:
        if isinstance(atom, Symbol):
            solution = self.solutions.get(atom.name)
            return of_atom(atom) if solution is None else (yield self._compute_normal(solution))
        if isinstance(atom, FloorDiv):
            quotient = divide_polynomials(atom.left, atom.right)  # before a product equality hides the factor
            if quotient is not None:
                return (yield self._compute_normal(quotient))
        left: Dim = yield self._compute_normal(atom.left)
        right: Dim = yield self._compute_normal(atom.right)
        folded = make_atom(type(atom), left, right)
        return folded.map_atoms(self._resolve)

    def _resolve(self, atom: Atom) -> Dim:
        """Removes an atom with normal operands where bounds or divisors decide it."""
        if isinstance(atom, Symbol):
            return of_atom(atom)
        if isinstance(atom, Min | Max):
            difference = self._rewrite(atom.right - atom.left)
            if self.never_negative(difference):
                return atom.left if isinstance(atom, Min) else atom.right
            if self.never_negative(-difference):
                return atom.right if isinstance(atom, Min) else atom.left
            return of_atom(atom)
        low, high = self.bounds().interval(of_atom(atom))
        if low == high and isinstance(low, int):
            return Dim.of(low)
        return self._resolve_quotient(atom) if isinstance(atom, FloorDiv) else self._resolve_remainder(atom)

    def _resolve_quotient(self, atom: FloorDiv) -> Dim:
        if atom.right.is_const:
            return of_atom(atom)
        exact = self.exact_quotient(atom.left, atom.right)
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
                if not product or self.constant_divisor(of_terms([(coefficient, product)])) % atom.right.const
            ]
            rest = of_terms(kept)
            if rest is not atom.left:
                return (rest % atom.right).map_atoms(self._resolve)
        elif self.exact_quotient(atom.left, atom.right) is not None:
            return Dim.of(0)
        else:
            rest = atom.left - _whole_part(atom.left, atom.right) * atom.right
        return rest if self._is_remainder(rest, atom.right) else of_atom(Mod(rest, atom.right))

    def _is_remainder(self, dim: Dim, divisor: Dim) -> bool:
        return self.never_negative(dim) and self.never_negative(self._rewrite(divisor - dim) - 1)

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
                others = divide_monomials(product, of_atom(atom).monomials[0][1])
                rest = None if others is None else divide_monomials(others, factor)
                if others is None or rest is None:
                    continue
                if coefficient % scale == 0:
                    remainder = make_atom(Mod, atom.left, atom.right).map_atoms(self._resolve)
                    whole = of_terms([(coefficient // scale, rest)]) * (atom.left - remainder)
                    return dim - of_terms([(coefficient, product)]) + whole
                shorter = self._without_nested(dim, coefficient, product, atom, others)
                if shorter is not None:
                    return shorter
        return dim

    @staticmethod
    def _without_nested(dim: Dim, coefficient: int, product: Monomial, atom: FloorDiv, others: Monomial) -> Dim | None:
        """`3 * floordiv(n, 12)` as `q - mod(q, 3)` of q = floordiv(n, 4), where the sum has these already: as many terms less. others: the
        product without the quotient."""
        step = math.gcd(coefficient, atom.right.constant_term)
        if not atom.right.is_const or step == 1:
            return None
        quotient = atom.left // (atom.right.const // step)
        replacement = of_terms([(coefficient // step, others)]) * (quotient - quotient % step)
        own = {each for _, each in dim.monomials}
        if sum(each in own for _, each in replacement.monomials) < 2:
            return None
        found = dim + replacement - of_terms([(coefficient, product)])
        return found if len(found.monomials) < len(dim.monomials) else None

    def _apply_rule(self, dim: Dim) -> Dim:
        for rule in self.rules:
            for coefficient, product in dim.monomials:
                rest = divide_monomials(product, rule.product)
                if rest is not None and coefficient % rule.coefficient == 0:
                    replacement = of_terms([(coefficient // rule.coefficient, rest)]) * rule.rest
                    return dim - of_terms([(coefficient, product)]) + replacement
        return dim

    def exact_quotient(self, dividend: Dim, divisor: Dim) -> Dim | None:
        """Polynomial division of normal forms, also after one product equality used from right to left."""
        forms = (dividend, divisor), (dividend.map_atoms(_without_remainder), divisor), (_shorter(dividend), _shorter(divisor))
        for upper, lower in dict.fromkeys(forms):
            quotient = divide_polynomials(upper, lower)
            if quotient is not None:
                return self._rewrite(quotient)
        for rule in self.rules:
            if len(rule.rest.monomials) != 1:
                continue
            backwards = Rule(rule.rest.monomials[0][0], rule.rest.monomials[0][1], of_terms([(rule.coefficient, rule.product)]))
            for coefficient, product in dividend.monomials:
                rest = divide_monomials(product, backwards.product)
                if rest is None or coefficient % backwards.coefficient:
                    continue
                other = of_terms([(coefficient // backwards.coefficient, rest)]) * backwards.rest
                quotient = divide_polynomials(dividend - of_terms([(coefficient, product)]) + other, divisor)
                if quotient is not None:
                    return quotient
        return None

    def constant_divisor(self, dim: Dim) -> int:
        """The greatest common divisor of all values, as far as known; 0 for the expression 0."""
        if dim not in self._divisors:
            for inner in inner_first(dim, self._divisors.__contains__):
                self.constant_divisor(inner)
            forms = dict.fromkeys((dim, dim.map_atoms(_without_remainder)))
            self._divisors[dim] = math.lcm(*map(self._terms_divisor, forms))
        return self._divisors[dim]

    def _terms_divisor(self, dim: Dim) -> int:
        return math.gcd(
            *(coefficient * math.prod(self._atom_divisor(a) ** p for a, p in product) for coefficient, product in dim.monomials)
        )

    def _atom_divisor(self, atom: Atom) -> int:
        if isinstance(atom, Symbol | FloorDiv):
            return 1
        return math.gcd(self.constant_divisor(atom.left), self.constant_divisor(atom.right))

    def restore(self, dim: Dim) -> Dim:
        """Writes the quotients of divisible symbols with the symbols themselves: 12 * (S0 / 12) is S0."""
        known: dict[Dim, Dim] = {}
        for inner in inner_first(dim, known.__contains__):
            self._restore(inner, known)
        return self._restore(dim, known)

    def _restore(self, dim: Dim, known: dict[Dim, Dim]) -> Dim:
        if dim not in known:
            known[dim] = _shorter(add_all(self._restore_term(coefficient, product, known) for coefficient, product in dim.monomials))
        return known[dim]

    def _restore_term(self, coefficient: int, product: Monomial, known: dict[Dim, Dim]) -> Dim:
        result = Dim.of(1)
        for atom, power in product:
            for _ in range(power):
                if isinstance(atom, Symbol) and atom.name in self.quotient_of:
                    base, divisor = self.quotient_of[atom.name]
                    common = math.gcd(coefficient, divisor)
                    coefficient //= common
                    result = result * (Dim.symbol(base) // (divisor // common))
                elif isinstance(atom, Symbol):
                    result = result * of_atom(atom)
                else:
                    result = result * make_atom(type(atom), self._restore(atom.left, known), self._restore(atom.right, known))
        return result * coefficient

    # Learning

    def declare(self, name: str, low: int | None, high: int | None) -> None:
        """A new symbol. What is known and answered holds no such symbol, so it stays; the ends of the range must differ."""
        self.order[name] = len(self.order)
        self.ranges[name] = (-math.inf if low is None else low, math.inf if high is None else high)
        self._current_witnesses = None

    def define(self, name: str, value: Dim) -> None:
        """Declares a symbol with its solution. What is known and answered holds no such symbol, so it stays."""
        normal = self.normal(value)
        self.order[name] = len(self.order)
        self.solutions[name] = normal

    def learn_equal(self, left: Dim, right: Dim) -> None:
        """Raises ShapeConstraintError if both sides never agree."""
        difference = self.difference(left, right)
        if difference == 0:
            return
        if self.decide_equal(left, right) is False:
            raise self._contradiction(left, "equal", right)
        order = self._as_order(left, right) or self._as_order(right, left)
        if order is not None:
            self.assume_at_least(*order)
            return
        difference = divide_coefficients(difference, content(difference))
        multiple = _as_multiple(difference)
        if multiple is not None:
            self._introduce_quotient(*multiple)
            return
        if self._spread_divisors(difference):
            self.learn_equal(left, right)
            return
        solution = self._solve(difference)
        if solution is not None:
            self._substitute(*solution)
            return
        if (left, right) in self.relations:  # from which it does not follow by rules: there are as many of these as may be
            return
        self.relations.append((left, right))
        self._derive_rules()
        self._tighten(left, right)

    def _as_order(self, extreme: Dim, operand: Dim) -> tuple[Dim, Dim] | None:
        """Reads `min(a, b) == b` and `max(a, b) == a` as `a >= b`."""
        atom, operand = self.normal(extreme).sole_atom, self.normal(operand)
        if not isinstance(atom, Min | Max) or operand not in atom.operands():
            return None
        other = atom.right if operand is atom.left else atom.left
        return (other, operand) if isinstance(atom, Min) else (operand, other)

    def _spread_divisors(self, zero: Dim) -> bool:
        """From `c * x == rest` learns that x is divisible by what divides the rest and not c."""
        for coefficient, product in zero.monomials:
            atom = of_terms([(1, product)]).sole_atom if product else None
            if not isinstance(atom, Symbol):
                continue
            rest = zero - of_terms([(coefficient, product)])
            common = self._terms_divisor(rest)  # of the form that the equation is solved in
            divisor = common // math.gcd(common, coefficient) if common else 1
            known = self.quotient_of.get(atom.name, ("", 1))[1]
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
        return self.quotient_of[name][0] if name in self.quotient_of else name

    def _rank(self, name: str) -> int:
        return self.order[self._base(name)]

    def _is_pinned(self, name: str) -> bool:
        return self._base(name) in self.pinned

    def _substitute(self, name: str, value: Dim) -> None:
        low, high = self.ranges.pop(name)
        self.solutions[name] = value
        self._renew_facts()
        if isinstance(low, int):
            self.learn_at_least(value, Dim.of(low))
        if isinstance(high, int):
            self.learn_at_least(Dim.of(high), value)

    def _introduce_quotient(self, name: str, divisor: int) -> None:
        base, known = self.quotient_of.get(name, (name, 1))
        quotient = f"{base}/{known * divisor}"
        low, high = self.ranges.pop(name)
        self.quotient_of[quotient] = (base, known * divisor)
        low = -(-low // divisor) if isinstance(low, int) else low
        high = high // divisor if isinstance(high, int) else high
        if low > high:
            raise ShapeConstraintError(f"the dim {base} must be a multiple of {known * divisor}, but its range holds none")
        self.ranges[quotient] = (low, high)
        self.solutions[name] = _internal_symbol(quotient) * divisor
        self._renew_facts()

    def assume_at_least(self, left: Dim, right: Dim) -> None:
        """`learn_at_least` for a fact from outside: it is listed in `assumed` unless the ranges of the symbols express it."""
        self.learn_at_least(left, right)
        if Bounds(self.ranges.__getitem__, ()).lower(self.difference(left, right)) < 0:
            self.assumed.append((self.restore(left), self.restore(right)))

    def learn_at_least(self, left: Dim, right: Dim) -> None:
        """Learns `left >= right`. Raises ShapeConstraintError if that never holds."""
        difference = self.difference(left, right)
        low, high = self.bounds().lower(difference), self.bounds().upper(difference)
        if low >= 0:
            return
        if high < 0:
            raise self._contradiction(left, "be at least", right)
        if high == 0:
            self.learn_equal(left, right)
            return
        self.inequalities.append(difference)
        self._tighten(left, right)
        if _is_symbol_bound(difference):
            self.inequalities = [known for known in self.inequalities if known is not difference]
            self.forget_answers()

    def _tighten(self, left: Dim, right: Dim) -> None:
        """Narrows the ranges of symbols by all facts, in rounds; a symbol with one value left is replaced by it."""
        for _ in range(_MAXIMUM_ROUNDS):
            self.forget_answers()
            facts = list(self.inequalities)
            for rule in self.rules:
                facts += [rule.zero, -rule.zero]
            narrowed = [self._tighten_by(fact, left, right) for fact in facts]
            if not any(narrowed):
                break
        self.forget_answers()
        for name, (low, high) in list(self.ranges.items()):
            if low == high and isinstance(low, int) and name in self.ranges:
                self._substitute(name, Dim.of(low))

    def _tighten_by(self, positive: Dim, left: Dim, right: Dim) -> bool:
        """From `c * x + rest >= 0` bounds x by the greatest value of the rest."""
        changed = False
        for coefficient, product in positive.monomials:
            atom = of_terms([(1, product)]).sole_atom if product else None
            if not isinstance(atom, Symbol):
                continue
            highest = self.bounds().interval(positive - of_terms([(coefficient, product)]))[1]
            if not isinstance(highest, int):
                continue
            low, high = self.ranges[atom.name]
            narrowed = (max(low, -(highest // coefficient)), high) if coefficient > 0 else (low, min(high, highest // -coefficient))
            if narrowed == (low, high):
                continue
            if narrowed[0] > narrowed[1]:
                raise self._contradiction(left, "relate so to", right)
            self.ranges[atom.name] = narrowed
            self._forget_bounds()
            changed = True
        return changed

    def _renew_facts(self) -> None:
        """After a substitution: brings all facts into the new normal form, and learns again those that can now be solved."""
        inequalities, relations = self.inequalities, self.relations
        self.inequalities, self.relations, self.rules = [], [], []
        self.forget_answers()
        for left, right in relations:
            self.learn_equal(left, right)
        for inequality in inequalities:
            self.learn_at_least(self.normal(inequality), Dim.of(0))

    def _derive_rules(self) -> None:
        """Makes rewrite rules of the relations, and of what two rules with a common factor imply (Buchberger's step, bounded)."""
        self.rules = []
        self.forget_answers()
        for left, right in self.relations:
            self._add_rule(self.difference(left, right))
        first = 0
        while first < len(self.rules) < _MAXIMUM_RULES:
            for second in range(first):
                overlap = _overlap(self.rules[first], self.rules[second])
                if overlap is not None and len(self.rules) < _MAXIMUM_RULES:
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
                rule = Rule(abs(coefficient), product, rest * -sign)
                left = tuple(each for each in self.witnesses() if rule.agrees(each))
                self.rules.append(rule)
                self.forget_answers()
                self._current_witnesses = left
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
        shown = self.restore(dim)
        if shown.is_const or any(name not in self.order for name in dim.symbols()):
            return str(shown)
        interval = self.bounds().interval(self.normal(dim))
        low, high = (str(finite(end)) if finite(end) is not None else "unbounded" for end in interval)
        return f"{shown} (range {low} to {high})"


def _within(size: int, interval: Interval) -> int:
    low, high = interval
    return int(max(min(size, high), low))


def finite(end: End) -> int | None:
    return end if isinstance(end, int) else None


def _without_remainder(atom: Atom) -> Dim:
    """`mod(n, c)` as n - c * floordiv(n, c): a size padded to a multiple of c is then a product, which the number of chunks divides."""
    if not isinstance(atom, Mod) or not atom.right.is_const:
        return of_atom(atom)
    return atom.left - atom.left // atom.right * atom.right


def _rounded_up(atom: Atom) -> Dim:
    """`mod(n, 2)` as 2 * floordiv(n + 1, 2) - n: what n + mod(n, 2) is, a size padded to an even one, is then a product, too."""
    if not isinstance(atom, Mod) or atom.right != 2:
        return of_atom(atom)
    return (atom.left + 1) // atom.right * atom.right - atom.left


def _shorter(dim: Dim) -> Dim:
    """`n - mod(n, c)` as `c * floordiv(n, c)`, where that leaves fewer terms: the square of a size that is padded to whole windows has six
    terms, or one, and what is computed of it has more in each step."""
    if len(dim.monomials) < 2 or not any(isinstance(atom, Mod) for atom in dim.atoms()):
        return dim
    others = (dim.map_atoms(_without_remainder), dim.map_atoms(_rounded_up))
    return min(dim, *others, key=lambda each: len(each.monomials))


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


def _overlap(first: Rule, second: Rule) -> Dim | None:
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
