"""Text of a Triton function: statements in scopes, names for values, sizes and positions as integer expressions.

A value is a scalar or a block. Blocks of one kernel all have the same rank; a variable of a loop over lanes is a block that runs along one
axis and has length 1 along the others, so that whatever is computed from several of them broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from disc.errors import CompilerBug
from disc.shapes import Dim, FloorDiv, Mod
from disc.shapes.algebra import Atom, Max, Min, Symbol, inner_first, is_natural

INDENT = "    "


@dataclass(eq=False)
class Scope:
    """Statements that run one after the other, and what is known of them. depth: how many scopes are around it."""

    depth: int
    lines: list[str] = field(default_factory=list)
    memo: dict[object, object] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Variable:
    """An integer of the kernel. name: in the text; axes: of a block, along which it varies (none: a scalar); live: the name of the mask of
    its lanes that count, "" where all do. signed: it may be negative."""

    name: str
    scope: Scope
    axes: frozenset[int] = frozenset()
    live: str = ""
    signed: bool = False


@dataclass(eq=False)
class Writer:
    """The text of one function. shape: of a whole block, as text; wide: whether positions need 64 bits."""

    shape: str
    wide: bool = False
    root: Scope = field(default_factory=lambda: Scope(0))
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)  # further ones that it calls, by name
    _open: list[Scope] = field(default_factory=list)
    _current: Scope | None = None
    _least: Scope | None = None
    _names: int = 0  # given so far

    @property
    def scope(self) -> Scope:
        """Where statements go."""
        return self._current or self.root

    def name(self, prefix: str = "v") -> str:
        """One that no other value has."""
        self._names += 1
        return f"{prefix}{self._names}"

    def statement(self, text: str) -> None:
        """Adds a line."""
        self.scope.lines.append(text)

    def let(self, expression: str, prefix: str = "v") -> str:
        """A name for the value of an expression, the same for the same one."""
        key = ("let", expression)
        found = self.known(key)
        if found is None:
            found = self.name(prefix)
            self.statement(f"{found} = {expression}")
            self.scope.memo[key] = found
        assert isinstance(found, str)
        return found

    def known(self, key: object) -> object | None:
        """What a scope around the current one, or this, remembers."""
        return next((scope.memo[key] for scope in (self.root, *self._open) if scope.depth <= self.scope.depth and key in scope.memo), None)

    @contextmanager
    def at(self, scope: Scope) -> Iterator[None]:
        """Statements go to an open scope further out, before what is being written within it."""
        before, self._current = self._current, scope
        try:
            yield
        finally:
            self._current = before

    @contextmanager
    def block(self, head: str) -> Iterator[Scope]:
        """The scope behind a line that ends with a colon."""
        outer = self.scope
        with self._within() as inner:
            yield inner
        outer.lines.append(head)
        outer.lines.extend(INDENT + line for line in inner.lines or ["pass"])

    @contextmanager
    def part(self) -> Iterator[Scope]:
        """A scope of its own for statements that follow: what it remembers ends with it."""
        outer = self.scope
        with self._within() as inner:
            yield inner
        outer.lines.extend(inner.lines)

    @contextmanager
    def _within(self) -> Iterator[Scope]:
        """A new scope, open meanwhile, that statements go to."""
        inner = Scope(self.scope.depth + 1)
        self._open.append(inner)
        try:
            with self.at(inner):
                yield inner
        finally:
            self._open.pop()

    @contextmanager
    def shaped(self, rows: int, columns: int) -> Iterator[None]:
        """Values are blocks of another shape."""
        before, self.shape = self.shape, f"[{rows}, {columns}]"
        try:
            yield
        finally:
            self.shape = before

    @contextmanager
    def not_before(self, scope: Scope) -> Iterator[None]:
        """What is computed meanwhile is computed in this open scope or within it, whatever knows its index further out."""
        before, self._least = self._least, scope
        try:
            yield
        finally:
            self._least = before

    def bind(self, symbol: str, variable: Variable) -> Dim:
        """Gives a symbol its value."""
        self.variables[symbol] = variable
        return Dim.symbol(symbol)

    def scope_of(self, symbols: Collection[str]) -> Scope:
        """The outermost scope that knows all of them, and that is not further out than `not_before` says."""
        scopes = [self._least or self.root, *(self._variable(name).scope for name in symbols)]
        return max(scopes, key=lambda scope: scope.depth)

    def axes_of(self, symbols: Collection[str]) -> frozenset[int]:
        """The axes along which an expression of them varies."""
        return frozenset[int]().union(*(self._variable(name).axes for name in symbols))

    def _variable(self, name: str) -> Variable:
        if name not in self.variables:
            raise CompilerBug(f"the kernel has no variable {name}")
        return self.variables[name]

    def number(self, dim: Dim) -> str:
        """The value of an expression."""
        if dim.is_const:
            return str(dim.const)
        key = ("dim", dim, tuple(self._variable(name).name for name in dim.symbols()))
        found = self.known(key)
        if found is None:
            done: set[Dim] = set()
            for inner in inner_first(dim, done.__contains__):
                self.number(inner)
                done.add(inner)
            scope = self.scope_of(dim.symbols())
            with self.at(scope):
                text = " + ".join(self._product(coefficient, factors) for coefficient, factors in dim.monomials)
                plain = dim.sole_atom
                found = text if isinstance(plain, Symbol) else self.let(text, "i")
            scope.memo[key] = found
        assert isinstance(found, str)
        return found

    def _product(self, coefficient: int, factors: tuple[tuple[Atom, int], ...]) -> str:
        parts = [self._atom(atom) for atom, power in factors for _ in range(power)]
        if coefficient != 1 or not parts:
            parts.append(str(coefficient) if coefficient >= 0 else f"({coefficient})")
        return " * ".join(parts)

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Symbol):
            return self._variable(atom.name).name
        left, right = self.number(atom.left), self.number(atom.right)
        if isinstance(atom, Min | Max):
            return f"tl.{'minimum' if isinstance(atom, Min) else 'maximum'}({left}, {right})"
        if self.is_natural(atom.left) and self.is_natural(atom.right):
            return f"({left} {'//' if isinstance(atom, FloorDiv) else '%'} {right})"
        # Triton divides towards zero, and a remainder has the sign of the left side.
        rest = self.let(f"{left} % {right}", "i")
        differs = f"{rest} < 0" if self.is_natural(atom.right) else f"({rest} != 0) & (({rest} < 0) != ({right} < 0))"
        modulo = f"tl.where({differs}, {rest} + {right}, {rest})"
        return self.let(modulo if isinstance(atom, Mod) else f"({left} - {modulo}) // {right}", "i")

    def is_natural(self, dim: Dim) -> bool:
        """True when no term can be negative."""
        return is_natural(dim, lambda name: self._variable(name).signed)

    def helper(self, name: str, make: Callable[[], str]) -> str:
        """A further function of the text, made once."""
        if name not in self.functions:
            self.functions[name] = make()
        return name
