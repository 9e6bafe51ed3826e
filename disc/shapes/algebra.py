"""Integer expressions over dim symbols: polynomials whose atoms are symbols, floor quotients, remainders, minima and maxima.

A `Dim` is immutable and interned, so two expressions with the same canonical form are the same object. Only what holds without any
knowledge of the symbols is folded here; `ShapeEnv` in `disc/shapes/env.py` knows ranges, divisors and relations.

Division follows Python (towards minus infinity). A division by zero has no value: `evaluate` raises, and a simplification may replace
such an expression by anything.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, TypeVar

from disc.errors import ShapeConstraintError
from disc.shapes.recursion import Recursive, run_recursive

_T = TypeVar("_T")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_NAME_TAIL = re.compile(r"(.*?)(\d*)$", re.DOTALL)


class _Interned(type):
    """Makes each atom once, so that atoms are equal when they are the same object, and are hashed without a look at their operands.

    What was made stays: 50 random programs compiled in one process leave 1,593 atoms and 13,936 expressions, 6.6 MB; the last ten of them
    add 43 KB each, for symbols and loops have the same names in most programs. A lookup in a weak table takes twice as long.
    """

    _made: ClassVar[dict[tuple[object, ...], Any]] = {}

    def __call__(cls: type[_T], *operands: object) -> _T:
        key = (cls, *operands)
        found = _Interned._made.get(key)
        return _Interned._made.setdefault(key, super().__call__(*operands)) if found is None else found  # pyright: ignore


@dataclass(frozen=True, eq=False)
class Symbol(metaclass=_Interned):
    """A named integer, known when the inputs are known."""

    name: str

    @cached_property
    def sort_key(self) -> tuple[int, str, int, str]:
        match = _NAME_TAIL.match(self.name)
        prefix, number = match.groups() if match else (self.name, "")
        return (0, prefix, int(number or -1), self.name)

    def __str__(self) -> str:
        return self.name

    def evaluate(self, values: Mapping[str, int]) -> int:
        return values[self.name]

    def operands(self) -> tuple[Dim, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class _Binary(metaclass=_Interned):
    """An atom with two operands; the function name of its text is `spelling`."""

    spelling: ClassVar[str]
    left: Dim
    right: Dim

    @cached_property
    def sort_key(self) -> tuple[int, str, int, str]:
        return (1, self.spelling, 0, str(self))

    def __str__(self) -> str:
        return f"{self.spelling}({self.left}, {self.right})"

    def operands(self) -> tuple[Dim, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, eq=False)
class FloorDiv(_Binary):
    """`left // right`."""

    spelling = "floordiv"

    def evaluate(self, values: Mapping[str, int]) -> int:
        return self.left.evaluate(values) // self.right.evaluate(values)


@dataclass(frozen=True, eq=False)
class Mod(_Binary):
    """`left % right`: the sign is that of `right`."""

    spelling = "mod"

    def evaluate(self, values: Mapping[str, int]) -> int:
        return self.left.evaluate(values) % self.right.evaluate(values)


@dataclass(frozen=True, eq=False)
class Min(_Binary):
    """The smaller operand; a minimum of three nests on the left."""

    spelling = "min"

    def evaluate(self, values: Mapping[str, int]) -> int:
        return min(self.left.evaluate(values), self.right.evaluate(values))


@dataclass(frozen=True, eq=False)
class Max(_Binary):
    """The larger operand; a maximum of three nests on the left."""

    spelling = "max"

    def evaluate(self, values: Mapping[str, int]) -> int:
        return max(self.left.evaluate(values), self.right.evaluate(values))


class Valuation(dict[str, int]):
    """Symbol values for many expressions: what one of them has in common with another, or twice, is evaluated once."""

    def __init__(self, values: Mapping[str, int]) -> None:
        super().__init__(values)
        self.known: dict[Dim, int] = {}


Atom = Symbol | FloorDiv | Mod | Min | Max
Monomial = tuple[tuple[Atom, int], ...]
"""A product of atoms with their powers, sorted; the empty product is 1."""

_INTERNED: dict[tuple[tuple[int, Monomial], ...], Dim] = {}


class Dim:
    """An integer expression in canonical form; `==` is identity, also against an int (`Dim.of(3) == 3`).

    There is no `<` and no truth value: a question about unknown sizes goes to `ShapeEnv`.
    """

    __slots__ = ("_atoms", "_hash", "_symbols", "_text", "depth", "monomials")

    monomials: tuple[tuple[int, Monomial], ...]
    """The sum: (coefficient, product) pairs, highest degree first, the constant last; empty for 0."""

    depth: int
    """How many atoms with operands lie inside each other."""

    _hash: int
    _text: str | None
    _symbols: tuple[str, ...] | None
    _atoms: tuple[Atom, ...] | None

    def __init__(self) -> None:
        raise TypeError("make a Dim with Dim.of, Dim.symbol or parse_dim")

    @staticmethod
    def of(value: int | Dim) -> Dim:
        """The given Dim, or the constant."""
        if isinstance(value, Dim):
            return value
        return _constant(int(value))

    @staticmethod
    def symbol(name: str) -> Dim:
        """The symbol alone. Raises ValueError for a name that the text form cannot hold."""
        if not _NAME.fullmatch(name) or name in _FUNCTIONS:
            raise ValueError(f"{name!r} is not a name for a dim symbol")
        return of_atom(Symbol(name))

    @property
    def is_const(self) -> bool:
        return not self.monomials or (len(self.monomials) == 1 and not self.monomials[0][1])

    @property
    def const(self) -> int:
        """The value of a constant. Raises ValueError if there is a symbol."""
        if not self.is_const:
            raise ValueError(f"{self} is not a constant")
        return self.constant_term

    @property
    def constant_term(self) -> int:
        """What is left when every product is zero."""
        if self.monomials and not self.monomials[-1][1]:
            return self.monomials[-1][0]
        return 0

    @property
    def sole_atom(self) -> Atom | None:
        """The atom that this expression is, if it is one and nothing else."""
        if len(self.monomials) != 1 or self.monomials[0][0] != 1:
            return None
        product = self.monomials[0][1]
        return product[0][0] if len(product) == 1 and product[0][1] == 1 else None

    def coefficient(self, product: Dim) -> int:
        """The coefficient of a symbol or of a product of atoms such as `S0 * S1`. Raises ValueError for a sum or a constant."""
        if len(product.monomials) != 1 or product.is_const:
            raise ValueError(f"{product} is not a product of symbols")
        return {key: value for value, key in self.monomials}.get(product.monomials[0][1], 0)

    def atoms(self) -> tuple[Atom, ...]:
        """The atoms of the polynomial itself (not those inside other atoms), sorted."""
        if self._atoms is None:
            found = dict.fromkeys(atom for _, product in self.monomials for atom, _ in product)
            self._atoms = tuple(sorted(found, key=lambda atom: atom.sort_key))
        return self._atoms

    def symbols(self) -> tuple[str, ...]:
        """The names of all symbols, sorted, also those inside other atoms."""
        if self._symbols is None:
            for inner in inner_first(self, lambda dim: dim._symbols is not None):
                inner.symbols()
            names = {atom.name: None for atom in self.atoms() if isinstance(atom, Symbol)}
            for atom in self.atoms():
                for operand in atom.operands():
                    names.update(dict.fromkeys(operand.symbols()))
            self._symbols = tuple(sorted(names))
        return self._symbols

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The number for these symbol values. Raises KeyError (a value is missing) or ZeroDivisionError."""
        if self.depth > SHALLOW and not isinstance(values, Valuation):
            values = Valuation(values)
        known = values.known if isinstance(values, Valuation) else None
        if known is not None:
            if self in known:
                return known[self]
            for inner in inner_first(self, known.__contains__):
                inner.evaluate(values)
        total = 0
        for coefficient, product in self.monomials:
            for atom, power in product:
                coefficient *= atom.evaluate(values) ** power
            total += coefficient
        if known is not None:
            known[self] = total
        return total

    def map_atoms(self, image: Callable[[Atom], Dim]) -> Dim:
        """The polynomial with each of its atoms replaced."""
        if self.is_const:
            return self
        images = {atom: image(atom) for atom in self.atoms()}
        if all(value.sole_atom == atom for atom, value in images.items()):
            return self
        parts: list[Dim] = []
        for coefficient, product in self.monomials:
            part = _constant(coefficient)
            for atom, power in product:
                for _ in range(power):
                    part = part * images[atom]
            parts.append(part)
        return add_all(parts)

    def replace(self, values: Mapping[str, Dim | int]) -> Dim:
        """The expression with symbols replaced, at every depth."""
        known: dict[Dim, Dim] = {}

        def replaced(dim: Dim) -> Dim:
            found = known.get(dim)
            if found is None:
                found = known[dim] = dim.map_atoms(image)
            return found

        def image(atom: Atom) -> Dim:
            if isinstance(atom, Symbol):
                return Dim.of(values[atom.name]) if atom.name in values else of_atom(atom)
            return make_atom(type(atom), replaced(atom.left), replaced(atom.right))

        for inner in inner_first(self, known.__contains__):
            replaced(inner)
        return replaced(self)

    def __add__(self, other: Dim | int) -> Dim:
        return add_all((self, Dim.of(other)))

    def __radd__(self, other: int) -> Dim:
        return self + other

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim | int) -> Dim:
        total = {product: coefficient for coefficient, product in self.monomials}
        for coefficient, product in Dim.of(other).monomials:
            total[product] = total.get(product, 0) - coefficient
        return _intern(total)

    def __rsub__(self, other: int) -> Dim:
        return Dim.of(other) - self

    def __mul__(self, other: Dim | int) -> Dim:
        return _multiply(self, Dim.of(other))

    def __rmul__(self, other: int) -> Dim:
        return self * other

    def __floordiv__(self, other: Dim | int) -> Dim:
        return _floor_divide(self, Dim.of(other))

    def __rfloordiv__(self, other: int) -> Dim:
        return Dim.of(other) // self

    def __mod__(self, other: Dim | int) -> Dim:
        return _modulo(self, Dim.of(other))

    def __rmod__(self, other: int) -> Dim:
        return Dim.of(other) % self

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, int) and self.is_const and self.constant_term == other

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        raise TypeError(f"the dim {self} has no truth value: ask ShapeEnv, or compare with None")

    def __reduce__(self) -> tuple[Callable[[str], Dim], tuple[str]]:
        return (parse_dim, (str(self),))

    def __str__(self) -> str:
        if self._text is None:
            for inner in inner_first(self, lambda dim: dim._text is not None):
                inner._text = _format(inner)
            self._text = _format(self)
        return self._text

    def __repr__(self) -> str:
        return f"Dim({self})"


MOST_TEXT = 1 << 20
"""Characters of one expression: where every step doubles it, more would fill the memory before anything else fails."""
SHALLOW = 8
"""Expressions that nest no deeper are looked at by plain recursion."""


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def inner_first(dim: Dim, is_done: Callable[[Dim], bool]) -> Iterator[Dim]:
    """The expressions inside a `dim` that nests deep, each after those inside itself, without those that `is_done` says yes to.

    What looks at each on the way, and remembers, needs no deep recursion for `dim`.
    """
    if dim.depth <= SHALLOW:
        return
    pending = [dim]
    while pending:
        operands = (operand for _, product in pending[-1].monomials for atom, _ in product for operand in atom.operands())
        missing = [operand for operand in operands if operand.depth >= SHALLOW and not is_done(operand)]
        if missing:
            pending += reversed(missing)
            continue
        inner = pending.pop()
        if inner is not dim and not is_done(inner):
            yield inner


def is_natural(dim: Dim, is_signed: Callable[[str], bool]) -> bool:
    """Whether no term can be negative, nor what it is a function of; False also of what nests deep. is_signed: of the name of a symbol,
    whether that can be."""

    def of(atom: Atom) -> bool:
        if isinstance(atom, Symbol):
            return not is_signed(atom.name)
        left, right = is_natural(atom.left, is_signed), is_natural(atom.right, is_signed)
        return right if isinstance(atom, Mod) else left or right if isinstance(atom, Max) else left and right

    return dim.depth <= SHALLOW and all(coefficient >= 0 and all(of(atom) for atom, _ in factors) for coefficient, factors in dim.monomials)


def _intern(terms: Mapping[Monomial, int]) -> Dim:
    products = [product for product, value in terms.items() if value]
    products.sort(key=monomial_order)
    return _interned(tuple([(terms[product], product) for product in products]))


def _interned(key: tuple[tuple[int, Monomial], ...]) -> Dim:
    found = _INTERNED.get(key)
    if found is not None:
        return found
    dim = object.__new__(Dim)
    dim.monomials = key
    dim._text = dim._symbols = dim._atoms = None
    dim.depth = max((1 + operand.depth for _, product in key for atom, _ in product for operand in atom.operands()), default=0)
    dim._hash = hash(dim.constant_term) if dim.is_const else object.__hash__(dim)
    return _INTERNED.setdefault(key, dim)  # another thread may have been faster


@cache
def monomial_order(product: Monomial) -> tuple[object, ...]:
    """Sort key: graded lexicographic, the largest product first. It is a monomial order, so division by leading terms ends."""
    degree = sum(power for _, power in product)
    return (-degree, tuple((atom.sort_key, -power) for atom, power in product))


@cache
def _constant(value: int) -> Dim:
    return _interned(((value, ()),) if value else ())


def of_atom(atom: Atom) -> Dim:
    """The expression that is this atom. The atom must be canonical: taken from a Dim, or a symbol."""
    return _interned(((1, ((atom, 1),)),))


def of_terms(terms: Iterable[tuple[int, Monomial]]) -> Dim:
    """The sum of these (coefficient, product) pairs."""
    total: dict[Monomial, int] = {}
    for coefficient, product in terms:
        total[product] = total.get(product, 0) + coefficient
    return _intern(total)


def add_all(dims: Iterable[Dim]) -> Dim:
    """The sum."""
    total: dict[Monomial, int] = {}
    for dim in dims:
        for coefficient, product in dim.monomials:
            total[product] = total.get(product, 0) + coefficient
    return _intern(total)


@cache
def multiply_monomials(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: item[0].sort_key))


@cache
def divide_monomials(left: Monomial, right: Monomial) -> Monomial | None:
    """`left / right` where that is a product again, else None."""
    powers = dict(left)
    for atom, power in right:
        rest = powers.get(atom, 0) - power
        if rest < 0:
            return None
        powers[atom] = rest
    return tuple((atom, power) for atom, power in powers.items() if power)


def _multiply(left: Dim, right: Dim) -> Dim:
    if left == 1 or not right.monomials:
        return right
    if right == 1 or not left.monomials:
        return left
    if len(left.monomials) == 1:
        left, right = right, left
    if len(right.monomials) == 1:  # leaves the order of products as it is
        ((factor, product),) = right.monomials
        return _interned(tuple([(number * factor, multiply_monomials(own, product)) for number, own in left.monomials]))
    return of_terms((a * b, multiply_monomials(m, n)) for a, m in left.monomials for b, n in right.monomials)


def divide_polynomials(dividend: Dim, divisor: Dim) -> Dim | None:
    """q with `dividend == q * divisor` as polynomials over the integers, or None."""
    if not divisor.monomials:
        return None
    lead, lead_product = divisor.monomials[0]
    quotient: list[tuple[int, Monomial]] = []
    while dividend.monomials:
        coefficient, product = dividend.monomials[0]
        rest = divide_monomials(product, lead_product)
        if rest is None or coefficient % lead:
            return None
        term = (coefficient // lead, rest)
        quotient.append(term)
        dividend = dividend - of_terms([term]) * divisor
    return of_terms(quotient)


def content(dim: Dim) -> int:
    """The greatest common divisor of the coefficients; 0 for the expression 0."""
    return math.gcd(*(coefficient for coefficient, _ in dim.monomials))


def divide_coefficients(dim: Dim, divisor: int) -> Dim:
    """`dim / divisor`, where every coefficient is a multiple."""
    return of_terms((coefficient // divisor, product) for coefficient, product in dim.monomials)


def _without_remainders(dim: Dim, divisor: int) -> tuple[Dim, Dim]:
    """(plain, multiple) with `dim == plain + divisor * multiple`, where plain has no remainder that its quotient could make up for.

    k * mod(y, d) is k * y - k * d * floordiv(y, d), a multiple of the divisor behind k * y if that divides k * d. So a size that is padded
    to a multiple of a chunk has one form, however its padding was computed. mod(y, 2) is its own padding: behind k * y it is made of the
    quotient that is rounded up.
    """
    plain: list[Dim] = []
    multiple: list[Dim] = []
    for coefficient, product in dim.monomials:
        for atom, power in product:
            if not isinstance(atom, Mod) or power > 1 or not atom.right.is_const or coefficient * atom.right.const % divisor:
                continue
            factor = of_terms([(1, tuple(item for item in product if item[0] != atom))])
            sign = -1 if _has_padded(dim, factor * atom.left * coefficient, atom) else 1
            quotient = (atom.left + 1) // atom.right if sign < 0 else atom.left // atom.right
            plain.append(factor * atom.left * (coefficient * sign))
            multiple.append(factor * quotient * (-sign * (coefficient * atom.right.const // divisor)))
            break
        else:
            plain.append(of_terms([(coefficient, product)]))
    return add_all(plain), add_all(multiple)


def _has_padded(dim: Dim, size: Dim, padding: Mod) -> bool:
    """Whether the sum has the size that `mod(y, 2)` rounds up to an even one. size: y, with the factor of the remainder."""
    if padding.right != 2:
        return False
    lead, product = size.monomials[0]
    return any(other == product and coefficient * lead > 0 for coefficient, other in dim.monomials)


@cache
def _floor_divide(left: Dim, right: Dim) -> Dim:
    if right == 0 or not right.is_const:
        return of_atom(FloorDiv(left, right))
    divisor = right.const
    if divisor < 0:
        left, divisor = -left, -divisor
    plain, multiple = _without_remainders(left, divisor)
    if multiple.monomials:
        return plain // divisor + multiple
    whole = of_terms((c // divisor, product) for c, product in left.monomials if c % divisor == 0 or not product)
    rest = left - whole * divisor
    constant = rest.constant_term
    variable = rest - constant
    if not variable.monomials:
        return whole
    common = math.gcd(content(variable), divisor)
    variable, constant, divisor = divide_coefficients(variable, common), constant // common, divisor // common
    if divisor == 1:
        return whole + variable + constant
    inner = variable.sole_atom
    if isinstance(inner, FloorDiv) and inner.right.is_const and inner.right.const > 0:
        return whole + (inner.left + constant * inner.right.const) // (inner.right * divisor)
    if variable.monomials[0][0] < 0:
        # floor(-m / c) is -ceil(m / c): one form for both spellings of a rounded-up quotient.
        return whole - (-variable + (divisor - 1 - constant)) // divisor
    return whole + of_atom(FloorDiv(variable + constant, Dim.of(divisor)))


@cache
def _modulo(left: Dim, right: Dim) -> Dim:
    if right == 0 or not right.is_const:
        return of_atom(Mod(left, right))
    divisor = right.const
    if divisor < 0:
        return -(-left % -divisor)
    plain, multiple = _without_remainders(left, divisor)
    if multiple.monomials:
        return plain % divisor
    rest = of_terms((coefficient % divisor, product) for coefficient, product in left.monomials)
    constant = rest.constant_term
    variable = rest - constant
    if not variable.monomials:
        return rest
    common = math.gcd(content(variable), divisor)
    if divisor == common:
        return Dim.of(constant % divisor)
    if common > 1:
        inner = (divide_coefficients(variable, common) + constant // common) % (divisor // common)
        return inner * common + constant % common
    if 2 * variable.monomials[0][0] > divisor:
        # The padding to a multiple, -n % c, is c - 1 - (n + c - 1) % c: the remainder that belongs to the rounded-up quotient.
        return divisor - 1 - (divisor - 1 - rest) % divisor
    return of_atom(Mod(rest, Dim.of(divisor)))


def dim_min(left: Dim | int, right: Dim | int) -> Dim:
    """The minimum, folded where the operands differ by a constant."""
    return _extreme(Min, Dim.of(left), Dim.of(right))


def dim_max(left: Dim | int, right: Dim | int) -> Dim:
    """The maximum, folded where the operands differ by a constant."""
    return _extreme(Max, Dim.of(left), Dim.of(right))


def ceildiv(left: Dim | int, right: Dim | int) -> Dim:
    """The quotient rounded up; the divisor must be positive."""
    return (Dim.of(left) + right - 1) // right


def floordiv(left: Dim | int, right: Dim | int) -> Dim:
    return Dim.of(left) // right


def modulo(left: Dim | int, right: Dim | int) -> Dim:
    return Dim.of(left) % right


_FUNCTIONS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "floordiv": floordiv,
    "mod": modulo,
    "min": dim_min,
    "max": dim_max,
    "ceildiv": ceildiv,
}


def make_atom(kind: type[FloorDiv | Mod | Min | Max], left: Dim, right: Dim) -> Dim:
    """The canonical expression of an operation on these operands."""
    return _FUNCTIONS[kind.spelling](left, right)  # pyright: ignore[reportArgumentType, reportCallIssue]


@cache
def _extreme(kind: type[Min | Max], left: Dim, right: Dim) -> Dim:
    kept: list[Dim] = []
    for candidate in (*_flatten(kind, left), *_flatten(kind, right)):
        _keep_extreme(kind, kept, candidate)
    kept.sort(key=lambda dim: (dim.is_const, [(monomial_order(product), value) for value, product in dim.monomials]))
    result = kept[0]
    for operand in kept[1:]:
        result = of_atom(kind(result, operand))
    return result


def _flatten(kind: type[Min | Max], dim: Dim) -> tuple[Dim, ...]:
    operands: list[Dim] = []
    while isinstance(atom := dim.sole_atom, kind):
        operands.append(atom.right)
        dim = atom.left
    return (dim, *reversed(operands))


def _keep_extreme(kind: type[Min | Max], kept: list[Dim], candidate: Dim) -> None:
    """Adds a candidate, unless one that differs by a constant is there: then the better of the two stays."""
    for index, other in enumerate(kept):
        difference = candidate - other
        if difference.is_const:
            if (difference.const < 0) == (kind is Min):
                kept[index] = candidate
            return
    kept.append(candidate)


def _format(dim: Dim) -> str:
    if not dim.monomials:
        return "0"
    text = ""
    for coefficient, product in dim.monomials:
        factors = [str(atom) for atom, power in product for _ in range(power)]
        if len(text) + sum(map(len, factors)) > MOST_TEXT:
            raise ShapeConstraintError(f"a size is computed in so many steps that its expression has more than {MOST_TEXT} characters")
        if abs(coefficient) != 1 or not factors:
            factors.append(str(abs(coefficient)))
        term = " * ".join(factors)
        if text:
            text += f" - {term}" if coefficient < 0 else f" + {term}"
        else:
            text = f"-{term}" if coefficient < 0 else term
    return text


_TOKEN = re.compile(r"\s*(?:(?P<number>\d+)|(?P<name>[A-Za-z_][A-Za-z0-9_.]*)|(?P<sign>//|[-+*%(),]))")


def parse_dim(text: str) -> Dim:
    """The inverse of `str(dim)`; it also takes `//`, `%`, parentheses and `ceildiv(a, b)`.

    Raises ValueError with the text and the position of the fault.
    """
    parser = _Parser(text)
    result = run_recursive(parser.sum())
    if parser.token:
        raise parser.error(f"{parser.token!r} after the end of the expression")
    return result


class _Parser:
    """Recursive descent: sum = product (+|- product)*, product = factor (*|//|% factor)*."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.start = 0
        self.end = 0
        self.token = ""
        self.advance()

    def error(self, message: str) -> ValueError:
        return ValueError(f"cannot read the dim expression {self.text!r} at character {self.start}: {message}")

    def advance(self) -> None:
        self.start = self.end
        match = _TOKEN.match(self.text, self.end)
        if match:
            self.start, self.end = match.span(match.lastgroup or 0)
            self.token = match[match.lastgroup or 0]
            return
        if self.text[self.end :].strip():
            raise self.error(f"unknown character {self.text[self.end :].strip()[0]!r}")
        self.token = ""

    def accept(self, *tokens: str) -> str:
        """Steps over one of the tokens and gives it back, or the empty string."""
        if self.token not in tokens or not self.token:
            return ""
        token = self.token
        self.advance()
        return token

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.error(f"expected {token!r}, found {self.token or 'the end'!r}")

    def sum(self) -> Recursive[Dim]:
        result = yield from self.product()
        while sign := self.accept("+", "-"):
            operand = yield from self.product()
            result = result + operand if sign == "+" else result - operand
        return result

    def product(self) -> Recursive[Dim]:
        result = yield from self.factor()
        while sign := self.accept("*", "//", "%"):
            operand = yield from self.factor()
            result = {"*": operator.mul, "//": operator.floordiv, "%": operator.mod}[sign](result, operand)
        return result

    def factor(self) -> Recursive[Dim]:
        if self.accept("-"):
            return -(yield self.factor())
        if self.accept("("):
            result: Dim = yield self.sum()
            self.expect(")")
            return result
        token = self.token
        if token.isdigit():
            self.advance()
            return Dim.of(int(token))
        if not _NAME.fullmatch(token):
            raise self.error(f"expected a number, a name or '(', found {token or 'the end'!r}")
        self.advance()
        if token not in _FUNCTIONS:
            return Dim.symbol(token)
        return (yield from self.call(token))

    def call(self, name: str) -> Recursive[Dim]:
        self.expect("(")
        left: Dim = yield self.sum()
        self.expect(",")
        right: Dim = yield self.sum()
        self.expect(")")
        return _FUNCTIONS[name](left, right)
