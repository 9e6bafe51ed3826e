"""The dim symbols of a module: a `ShapeEnv` that knows the name of every symbol the module defines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch_mlir import ir

from disc.errors import ShapeConstraintError, UnsupportedFormatError
from disc.shapes import Condition, Dim, ShapeEnv, Truth

KERNEL = "kernel"  # the source of a base symbol that an op of the program binds (`disc.size_of`)
DEFINITIONS = ("disc.symbolic_dim", "disc.relation", "disc.condition")


@dataclass(frozen=True)
class Requirement:
    """A condition that every call must satisfy.

    why: where it comes from, for messages ("decided at model.py:12"). message: what the error says, in place of the condition in words;
    {0} and {1} in it stand for the values of `sizes`.
    """

    condition: Condition
    why: str = ""
    message: str = ""
    sizes: tuple[Dim, ...] = ()

    def text(self) -> str:
        """The condition and where it comes from, for errors of the compiler."""
        return f"{self.condition}" + (f" ({self.why})" if self.why else "")


class ModuleEnv(ShapeEnv):
    """The facts about the dims of `module`. Base symbols have a source; every other size gets a derived symbol with an expression.

    A derived symbol is an ordinary symbol of the `ShapeEnv`, solved by its expression, so `simplify` gives expressions in base symbols.
    """

    def __init__(self, module: ir.Module) -> None:
        super().__init__()
        self.module = module
        self.sources: dict[str, str] = {}
        self.derived: dict[str, Dim] = {}
        self.requirements: dict[Condition, Requirement] = {}
        self._names: dict[Dim, str] = {}
        self._by_reference: dict[ir.Attribute, Dim] = {}

    def add_base(self, name: str, source: str, lo: int | None, hi: int | None, divisor: int) -> Dim:
        """Declares a base symbol: the size or value that `source` ("arg0.1", "arg3", KERNEL) holds at run time."""
        self.sources[name] = source
        return self.symbol(name, lo, hi, divisor)

    @property
    def made(self) -> tuple[str, ...]:
        """The base symbols that ops of the program bind: nothing that names one stands before its op."""
        return tuple(name for name, source in self.sources.items() if source == KERNEL)

    def add_derived(self, name: str, expression: Dim) -> None:
        """Declares `name` as another word for `expression`."""
        self.derived[name] = expression
        symbol = self.define(name, expression)
        if self._names:
            self._names.setdefault(self.simplify(symbol), name)

    def require(self, requirement: Requirement) -> None:
        """Keeps the requirement, to be checked on entry, unless the facts prove it; learns what it teaches.

        Raises ShapeConstraintError for one that never holds.
        """
        condition = requirement.condition
        if condition in self.requirements:
            return
        truth = self.holds(condition)
        if truth is Truth.NO:
            raise ShapeConstraintError(f"no sizes satisfy the condition {requirement.text()}")
        if truth is Truth.UNKNOWN or self._is_declared_bound(condition):
            self.requirements[condition] = requirement
            self.learn(condition)

    def _is_declared_bound(self, condition: Condition) -> bool:
        """Whether the condition is what the range of a symbol says: the range is checked on entry, and the condition says why."""
        bound = condition.bound()
        if bound is None:
            return False
        size, least, largest = bound
        low, high = self.range(size)
        return low == least if largest is None else high == largest

    def symbol_name(self, dim: Dim) -> str:
        """The symbol that types carry for `dim`; a size without one gets a derived symbol, defined in the module at once."""
        canonical = self.simplify(dim)
        if not self._names:
            self._name_known_sizes()
        if canonical not in self._names:
            name = self._unused_name()
            self.add_derived(name, canonical)
            symbolic_dim(self, name)
            self._names[canonical] = name
        return self._names[canonical]

    def _name_known_sizes(self) -> None:
        """The first symbol of each size, base symbols before derived ones."""
        for name in (*self.sources, *self.derived):
            self._names.setdefault(self.simplify(Dim.symbol(name)), name)

    def _unused_name(self) -> str:
        number = len(self.sources) + len(self.derived)
        while f"S{number}" in self.sources or f"S{number}" in self.derived:
            number += 1
        return f"S{number}"

    def resolve(self, reference: ir.Attribute) -> Dim:
        """The size of one entry of a type's encoding (a symbol reference or an integer)."""
        found = self._by_reference.get(reference)
        if found is None:
            found = self._by_reference[reference] = self._parse_reference(reference)
        return found

    def _parse_reference(self, reference: ir.Attribute) -> Dim:
        if isinstance(reference, ir.IntegerAttr):
            return Dim.of(reference.value)
        return self.simplify(Dim.symbol(ir.FlatSymbolRefAttr(reference).value))

    def knowledge(self) -> tuple[object, ...]:
        """Equal before and after a step that taught nothing."""
        symbols = [Dim.symbol(name) for name in self.names()]
        solved = tuple((self.simplify(symbol), self.range(symbol), self.divisor(symbol)) for symbol in symbols)
        return (solved, tuple(self.facts()), tuple(self.inequalities()))

    # New facts can make two names one size, so what the names stand for is looked up again.

    def symbol(self, name: str, lo: int | None = 0, hi: int | None = None, divisor: int = 1) -> Dim:
        self._forget_names()
        return super().symbol(name, lo, hi, divisor)

    @contextmanager
    def supposing(self, conditions: Iterable[Condition]) -> Iterator[bool]:
        """Requirements within are forgotten, too."""
        requirements = dict(self.requirements)
        self._forget_names()
        try:
            with super().supposing(conditions) as are_facts:
                yield are_facts
        finally:
            self.requirements = requirements
            self._forget_names()

    def equate(self, left: Dim | int, right: Dim | int) -> None:
        super().equate(left, right)
        self._forget_names()

    def assume_ge(self, left: Dim | int, right: Dim | int) -> None:
        super().assume_ge(left, right)
        self._forget_names()

    def _forget_names(self) -> None:
        self._names = {}
        self._by_reference = {}


def symbolic_dim(env: ModuleEnv, name: str) -> None:
    """Writes the `disc.symbolic_dim` of one symbol, after those already in the module."""
    word = ir.IntegerType.get_signless(64)
    symbol = Dim.symbol(name)
    low, high = env.range(symbol)
    if any(bound is not None and not -(1 << 63) <= bound < 1 << 63 for bound in (low, high)):
        raise UnsupportedFormatError(f"the size {env.simplify(symbol)} does not fit 64 bits")
    attributes: dict[str, ir.Attribute] = {"sym_name": ir.StringAttr.get(name)}
    if low is not None:
        attributes["min"] = ir.IntegerAttr.get(word, low)
    if high is not None:
        attributes["max"] = ir.IntegerAttr.get(word, high)
    attributes["divisor"] = ir.IntegerAttr.get(word, env.divisor(symbol))
    if name in env.sources:
        attributes["source"] = ir.StringAttr.get(env.sources[name])
    else:
        attributes["expr"] = ir.StringAttr.get(str(env.simplify(env.derived[name])))
    _write(env, "disc.symbolic_dim", attributes)


def relation(env: ModuleEnv, left: Dim, right: Dim) -> None:
    """Writes a `disc.relation`: a fact among base symbols that is checked on entry."""
    _write(env, "disc.relation", {"lhs": ir.StringAttr.get(str(left)), "rhs": ir.StringAttr.get(str(right))})


def condition(env: ModuleEnv, requirement: Requirement) -> None:
    """Writes a `disc.condition`: what every call is checked for on entry, whether or not it is a fact, too."""
    texts = {"expr": str(requirement.condition), "why": requirement.why, "message": requirement.message}
    attributes: dict[str, ir.Attribute] = {name: ir.StringAttr.get(text) for name, text in texts.items() if text}
    if requirement.sizes:
        attributes["sizes"] = ir.ArrayAttr.get([ir.StringAttr.get(str(size)) for size in requirement.sizes])
    _write(env, "disc.condition", attributes)


def _write(env: ModuleEnv, name: str, attributes: dict[str, ir.Attribute]) -> None:
    """Definitions stand before the first op that is none."""
    for op in env.module.body.operations:
        if op.operation.name not in DEFINITIONS:
            ir.Operation.create(name, attributes=attributes, loc=ir.Location.unknown(env.module.context), ip=ir.InsertionPoint(op))
            return
