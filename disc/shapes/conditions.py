"""Conditions on sizes: comparisons of `Dim` expressions, joined by `and` and `or`.

    "mod(S0, 2) == 0"      "S0 * S1 > 30 and S1 != S0"      "S0 == 0 or S1 <= S0"

The text is a disjunction of conjunctions (`and` binds tighter), without parentheses around comparisons.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from disc.shapes.algebra import Dim, FloorDiv, Max, Min, Mod, Symbol, content, divide_coefficients, of_atom, of_terms, parse_dim

NEGATED = {"==": "!=", "!=": "==", "<=": ">", ">": "<=", "<": ">=", ">=": "<"}
_SIGN = re.compile(r"==|!=|<=|>=|<|>")
_MAXIMUM_COMPARISONS = 64
"""Of one condition: negating and joining them multiplies their number."""


@dataclass(frozen=True)
class Comparison:
    """`left sign right`; the sign is a key of NEGATED."""

    sign: str
    left: Dim
    right: Dim

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right}"

    def evaluate(self, values: Mapping[str, int]) -> bool:
        """Raises KeyError or ZeroDivisionError, as `Dim.evaluate`."""
        left, right = self.left.evaluate(values), self.right.evaluate(values)
        return {
            "==": left == right, "!=": left != right, "<=": left <= right, "<": left < right, ">=": left >= right, ">": left > right,
        }[self.sign]  # fmt: skip

    def negated(self) -> Comparison:
        return Comparison(NEGATED[self.sign], self.left, self.right)

    def replace(self, values: Mapping[str, Dim | int]) -> Comparison:
        """Normalized, since the expressions may fold."""
        return Comparison(self.sign, self.left.replace(values), self.right.replace(values)).normalized()

    def normalized(self) -> Comparison:
        """One form of all comparisons with the same meaning: without common factors and negative terms, `>=` for every order."""
        if (bound := self._as_bound()) is not None:
            return bound.normalized()
        order = self.at_least()
        difference = self.left - self.right if order is None else order[0] - order[1]
        constant = difference.constant_term
        variable = difference - constant
        if not variable.monomials:
            return self
        factor = content(variable) if order is not None else content(difference)
        variable, constant = divide_coefficients(variable, factor), constant // factor  # an order of integers: rounded
        more = of_terms((value, product) for value, product in variable.monomials if value > 0)
        less = more - variable
        if order is None and more == 0:
            more, less, constant = less, more, -constant
        sign = ">=" if order is not None else self.sign
        if more == 0:
            return Comparison(sign, Dim.of(constant), less)
        if less == 0:
            return Comparison(sign, more, Dim.of(-constant))
        return Comparison(sign, more + max(constant, 0), less - min(constant, 0))

    def _as_bound(self) -> Comparison | None:
        """`n <= 4` for `min(n, 4) == n`, which says no more, and the like."""
        if self.sign not in ("==", "!="):
            return None
        for extreme, operand in ((self.left, self.right), (self.right, self.left)):
            atom = extreme.sole_atom
            if isinstance(atom, Min | Max) and operand in (atom.left, atom.right):
                other = atom.right if operand == atom.left else atom.left
                bound = Comparison("<=" if isinstance(atom, Min) else ">=", operand, other)
                return bound if self.sign == "==" else bound.negated()
        return None

    def at_least(self) -> tuple[Dim, Dim] | None:
        """(greater, smaller) of an order, as `greater >= smaller`; None for == and !=."""
        if self.sign in ("<=", "<"):
            return (self.right, self.left + int(self.sign == "<"))
        return (self.left, self.right + int(self.sign == ">")) if self.sign in (">=", ">") else None


Conjunction = tuple[Comparison, ...]


@dataclass(frozen=True)
class Condition:
    """One of the `alternatives` holds, each of them a conjunction; () never holds, ((),) always."""

    alternatives: tuple[Conjunction, ...]

    @staticmethod
    def of(sign: str, left: Dim, right: Dim) -> Condition:
        return Condition(((Comparison(sign, left, right),),))

    @property
    def sole(self) -> Comparison | None:
        """The comparison that this condition is, if it is one and nothing else."""
        return self.alternatives[0][0] if len(self.alternatives) == 1 and len(self.alternatives[0]) == 1 else None

    def bound(self) -> tuple[Dim, int | None, int | None] | None:
        """(size, least, largest), one of the two None, where the condition bounds one size by a number and says nothing else."""
        order = self.sole.at_least() if self.sole is not None else None
        if order is None or order[0].is_const == order[1].is_const:
            return None
        greater, smaller = order
        return (greater, smaller.const, None) if smaller.is_const else (smaller, None, greater.const)

    def comparisons(self) -> list[Comparison]:
        return [comparison for conjunction in self.alternatives for comparison in conjunction]

    def symbols(self) -> tuple[str, ...]:
        """The names of all symbols, sorted."""
        return tuple(sorted({name for each in self.comparisons() for side in (each.left, each.right) for name in side.symbols()}))

    def is_fact(self) -> bool:
        """Whether `ShapeEnv` can learn it: a comparison of sums of symbols, or that a number divides a symbol."""
        sole = self.sole
        if sole is None or sole.sign == "!=":
            return False
        return (_is_linear(sole.left) and _is_linear(sole.right)) or (sole.sign == "==" and _is_remainder(sole.left) and sole.right == 0)

    def root(self) -> list[Condition]:
        """Facts that follow from `x * x == 49` where x is a symbol, or a part of one by a constant (`S0 // 4`), and not negative."""
        sole = self.sole
        difference = sole.left - sole.right if sole is not None and sole.sign == "==" else Dim.of(0)
        powers = (difference - difference.constant_term).monomials
        if len(powers) != 1 or len(powers[0][1]) != 1:
            return []
        (coefficient, ((atom, power),)), number = powers[0], -difference.constant_term
        root = round(max(number // coefficient, 0) ** (1 / power))
        left, step = (atom.left, atom.right) if isinstance(atom, FloorDiv) else (of_atom(atom), Dim.of(1))
        if coefficient * root**power != number or not step.is_const or step.const < 1 or not isinstance(left.sole_atom, Symbol):
            return []
        return [Condition.of(">=", left, step * root), Condition.of("<=", left, step * (root + 1) - 1)]

    def parts(self) -> list[Condition]:
        """Conditions that hold together exactly when this one does."""
        if len(self.alternatives) != 1:
            return [self]
        return [Condition(((comparison,),)) for comparison in self.alternatives[0]]

    def negated(self) -> Condition:
        """Raises ValueError where that is too long."""
        return all_of(Condition(tuple((each.negated(),) for each in conjunction)) for conjunction in self.alternatives)

    def replace(self, values: Mapping[str, Dim | int]) -> Condition:
        return Condition(tuple(tuple(each.replace(values) for each in conjunction) for conjunction in self.alternatives))

    def evaluate(self, values: Mapping[str, int]) -> bool:
        """Raises KeyError or ZeroDivisionError, as `Dim.evaluate`."""
        return any(all(each.evaluate(values) for each in conjunction) for conjunction in self.alternatives)

    def __str__(self) -> str:
        """Raises ValueError for a condition without a comparison, which has no text."""
        if not self.alternatives or not all(self.alternatives):
            raise ValueError("a condition that always or never holds has no text")
        return " or ".join(" and ".join(map(str, conjunction)) for conjunction in self.alternatives)


def _is_linear(dim: Dim) -> bool:
    return all(isinstance(atom, Symbol) and power == 1 and len(product) == 1 for _, product in dim.monomials for atom, power in product)


def _is_remainder(dim: Dim) -> bool:
    """Whether `dim` is the remainder, by a constant, of a multiple of one symbol or of a part of one (`S0 // 2`)."""
    atom = dim.sole_atom
    if not isinstance(atom, Mod) or not atom.right.is_const or len(atom.left.monomials) != 1:
        return False
    inner = atom.left.atoms()[0] if len(atom.left.atoms()) == 1 else None
    if isinstance(inner, FloorDiv):
        return inner.right.is_const and _is_linear(inner.left)
    return _is_linear(atom.left)


ALWAYS = Condition(((),))
NEVER = Condition(())


def any_of(conditions: Iterable[Condition]) -> Condition:
    """Raises ValueError where that is too long."""
    found = dict.fromkeys(conjunction for each in conditions for conjunction in each.alternatives)
    return ALWAYS if () in found else _bounded(Condition(tuple(found)))


def all_of(conditions: Iterable[Condition]) -> Condition:
    """Raises ValueError where that is too long."""
    result = ALWAYS
    for each in conditions:
        pairs = itertools.product(result.alternatives, each.alternatives)
        result = _bounded(Condition(tuple(dict.fromkeys(tuple(dict.fromkeys(a + b)) for a, b in pairs))))
    return result


def _bounded(condition: Condition) -> Condition:
    if len(condition.comparisons()) > _MAXIMUM_COMPARISONS:
        raise ValueError(f"the condition has more than {_MAXIMUM_COMPARISONS} comparisons")
    return condition


def parse_condition(text: str) -> Condition:
    """The inverse of `str(condition)`. Raises ValueError with the text and the fault."""
    return _bounded(Condition(tuple(tuple(map(_comparison, part.split(" and "))) for part in text.split(" or "))))


def _comparison(text: str) -> Comparison:
    signs = _SIGN.findall(text)
    if len(signs) != 1:
        raise ValueError(f"cannot read the comparison {text!r}: it needs one of {', '.join(NEGATED)}")
    left, right = text.split(signs[0])
    return Comparison(signs[0], parse_dim(left), parse_dim(right))
