"""`match` statements as branches: a name says whether a case's pattern fits, and its names are bound where all of it does (PEP 634)."""

from __future__ import annotations

import ast
import dataclasses
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, TypeVar

from disc.frontend.batched.steps import Branch, Step

Node = TypeVar("Node", bound=ast.AST)
Bound = list[tuple[str, ast.expr]]
Then = Callable[[], None]
OF_THEMSELVES = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)  # `int(x)` binds the number itself


class NotUnderstood(Exception):
    """A function that stays Python's. line: of the user's file, 0 where there is none."""

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.line = reason, line


def is_mapping(value: object) -> bool:
    """Whether patterns of mappings may fit."""
    return isinstance(value, Mapping)


def is_sequence(value: object) -> bool:
    """Whether patterns of sequences may fit."""
    return isinstance(value, Sequence | deque | array) and not isinstance(value, str | bytes | bytearray)


MATCHING = {"_disc_mapping": is_mapping, "_disc_sequence": is_sequence}


def meaning(function: FunctionType, node: ast.expr) -> Any:
    """What a name of a class, or an attribute of a module, means in a function now; None for others."""
    if isinstance(node, ast.Attribute):
        return getattr(meaning(function, node.value), node.attr, None)
    if not isinstance(node, ast.Name) or node.id in function.__code__.co_varnames:
        return None
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    if node.id in cells:
        return cells[node.id].cell_contents
    names: dict[str, Any] = function.__globals__
    return names.get(node.id, vars(__import__("builtins")).get(node.id))


def match_arguments(kind: object) -> tuple[str, ...]:
    """The attributes that patterns by position stand for."""
    return getattr(kind, "__match_args__", ())


class Patterns(ABC):
    """What `_Lowering` has for `match`. matched: the classes of patterns, and what positions meant: (class, its meaning, attributes)."""

    def __init__(self, function: FunctionType) -> None:
        self.matched: list[tuple[ast.expr, object, tuple[str, ...]]] = []
        self._out: list[Step] = []
        self._function = function

    @abstractmethod
    def block(self, statements: Sequence[ast.stmt]) -> list[Step]: ...

    @abstractmethod
    def _name(self, what: str = "t") -> str: ...

    @abstractmethod
    def _atom(self, node: ast.expr, target: str | None = None) -> ast.expr: ...

    @abstractmethod
    def _bind(self, target: ast.expr, value: ast.expr) -> None: ...

    @abstractmethod
    def _into(self, name: str, node: ast.expr) -> list[Step]: ...

    def _match(self, node: ast.Match) -> None:
        name = self._name("c")
        self._out += self._into(name, node.subject)
        self._cases(_at(ast.Name(name, ast.Load()), node.subject), node.cases)

    def _cases(self, subject: ast.expr, cases: Sequence[ast.match_case]) -> None:
        if not cases:
            return
        case, fits, bound = cases[0], self._name("c"), Bound()
        if isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and case.guard is None:  # the last one
            if case.pattern.name is not None:
                self._bind(_at(ast.Name(case.pattern.name, ast.Store()), case.pattern), subject)
            self._out += self.block(case.body)
            return

        def end() -> None:
            for name, value in bound:
                self._bind(_at(ast.Name(name, ast.Store()), case.pattern), value)
            self._out += self._into(fits, case.guard or _at(ast.Constant(True), case.pattern))

        self._out += self._into(fits, _at(ast.Constant(False), case.pattern))
        self._pattern(case.pattern, subject, bound, end)
        body, otherwise = self.block(case.body), self._apart(lambda: self._cases(subject, cases[1:]))
        self._out.append(Branch(case.pattern.lineno, _at(ast.Name(fits, ast.Load()), case.pattern), body, otherwise))

    def _apart(self, then: Then) -> list[Step]:
        """The steps that `then` adds."""
        outer, self._out = self._out, []
        then()
        made, self._out = self._out, outer
        return made

    def _when(self, test: ast.expr, place: ast.pattern, then: Then) -> None:
        """The steps of `then` where a test holds."""
        atom = self._atom(_at(test, place))
        self._out.append(Branch(place.lineno, atom, self._apart(then), []))

    def _pattern(self, pattern: ast.pattern, subject: ast.expr, bound: Bound, then: Then) -> None:
        """Steps that come to `then`'s where the pattern fits. bound: gets what its names mean."""
        if isinstance(pattern, ast.MatchValue):
            self._when(ast.Compare(subject, [ast.Eq()], [pattern.value]), pattern, then)
        elif isinstance(pattern, ast.MatchSingleton):
            self._when(ast.Compare(subject, [ast.Is()], [ast.Constant(pattern.value)]), pattern, then)
        elif isinstance(pattern, ast.MatchAs):
            bound += [(pattern.name, subject)] if pattern.name is not None else []
            if pattern.pattern is None:
                then()
            else:
                self._pattern(pattern.pattern, subject, bound, then)
        elif isinstance(pattern, ast.MatchOr):
            self._alternatives(pattern, subject, then)
        elif isinstance(pattern, ast.MatchClass):
            self._class(pattern, subject, bound, then)
        elif isinstance(pattern, ast.MatchMapping) and pattern.rest is None:
            keys = zip(pattern.keys, pattern.patterns, strict=True)
            parts = [(ast.Compare(key, [ast.In()], [subject]), each, ast.Subscript(subject, key, ast.Load())) for key, each in keys]
            self._when(_call("_disc_mapping", subject), pattern, lambda: self._parts(parts, bound, then))
        elif isinstance(pattern, ast.MatchSequence) and not any(isinstance(each, ast.MatchStar) for each in pattern.patterns):
            items = [(None, each, ast.Subscript(subject, ast.Constant(at), ast.Load())) for at, each in enumerate(pattern.patterns)]
            length = ast.Compare(_call("len", subject), [ast.Eq()], [ast.Constant(len(items))])
            inner = lambda: self._when(length, pattern, lambda: self._parts(items, bound, then))  # noqa: E731
            self._when(_call("_disc_sequence", subject), pattern, inner)
        else:
            raise NotUnderstood(f"the pattern `{ast.unparse(pattern)}` is not followed", pattern.lineno)

    def _parts(self, parts: Sequence[tuple[ast.expr | None, ast.pattern, ast.expr]], bound: Bound, then: Then) -> None:
        """Patterns of parts, one after another: (a test whether there is the part, pattern, part)."""
        if not parts:
            then()
            return
        test, pattern, value = parts[0]

        def part() -> None:
            wild = isinstance(pattern, ast.MatchAs) and pattern.name is None and pattern.pattern is None
            subject = value if wild else self._atom(_at(value, pattern))
            self._pattern(pattern, subject, bound, lambda: self._parts(parts[1:], bound, then))

        if test is None:
            part()
        else:
            self._when(test, pattern, part)

    def _alternatives(self, pattern: ast.MatchOr, subject: ast.expr, then: Then) -> None:
        found, names = self._name("c"), Bound()
        self._out += self._into(found, _at(ast.Constant(False), pattern))

        def fits() -> None:
            self._out += self._into(found, _at(ast.Constant(True), pattern))

        for number, each in enumerate(pattern.patterns):
            alternative = lambda each=each: self._pattern(each, subject, names, fits)  # noqa: E731
            if number:
                self._when(ast.UnaryOp(ast.Not(), ast.Name(found, ast.Load())), each, alternative)
            else:
                alternative()
        if names:
            raise NotUnderstood(f"the pattern `{ast.unparse(pattern)}` binds names", pattern.lineno)
        self._when(ast.Name(found, ast.Load()), pattern, then)

    def _class(self, pattern: ast.MatchClass, subject: ast.expr, bound: Bound, then: Then) -> None:
        kind = meaning(self._function, pattern.cls)
        names = match_arguments(kind)
        if not isinstance(kind, type) or len(pattern.patterns) > (1 if kind in OF_THEMSELVES else len(names)):
            raise NotUnderstood(f"the class of `{ast.unparse(pattern)}` is not followed", pattern.lineno)
        self.matched.append((pattern.cls, kind, names))
        wanted = [*zip(names, pattern.patterns, strict=False), *zip(pattern.kwd_attrs, pattern.kwd_patterns, strict=True)]
        always = {each.name for each in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {*getattr(kind, "_fields", ())}
        parts: list[tuple[ast.expr | None, ast.pattern, ast.expr]] = [
            (None if name in always else _call("hasattr", subject, ast.Constant(name)), each, ast.Attribute(subject, name, ast.Load()))
            for name, each in wanted
        ]
        if kind in OF_THEMSELVES and pattern.patterns:
            parts = [(None, pattern.patterns[0], subject)]
        self._when(_call("isinstance", subject, pattern.cls), pattern, lambda: self._parts(parts, bound, then))


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _at(node: Node, place: ast.AST) -> Node:
    """The node at the place of another, with what it holds."""
    ast.copy_location(node, place)
    return ast.fix_missing_locations(node)
