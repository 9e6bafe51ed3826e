"""Functions that a function defines for itself (`def visit(node): ...`, `join = lambda a, b: ...`) as functions of their own, to which each
call hands what they capture (lambda lifting; Johnsson, Lambda lifting: transforming programs to recursive equations, 1985).

That is the same where they are only called, and bind nothing of what they capture: while such a call runs, nobody else does.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType
from typing import Any, TypeGuard

from disc.frontend.batched.patterns import NotUnderstood
from disc.frontend.batched.steps import names

DEFINITION = "__disc_definition__"  # of a function that was made here: what it is compiled from
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.ClassDef)


@dataclass
class _Inner:
    """place: of its statement in the outer function's body; captured: the outer function's own names that it needs."""

    definition: ast.FunctionDef
    place: int
    captured: set[str]
    calls: set[str] = field(default_factory=set)  # of its siblings


def lift(function: FunctionType, definition: ast.FunctionDef) -> tuple[list[ast.stmt], dict[str, FunctionType]]:
    """The body without the functions that it defines, and these. Raises NotUnderstood for a `def` that is more than called; such a lambda
    stays."""
    inner = dict(_inner(function, definition))
    _capture_for_siblings(inner)
    for name, each in list(inner.items()):
        reason = _refusal(name, each, definition, inner)
        if reason is None:
            continue
        if isinstance(definition.body[each.place], ast.FunctionDef):
            raise NotUnderstood(f"`def {name}` is not followed: {reason}", each.definition.lineno)
        if any(name in other.calls for other in inner.values()):
            raise NotUnderstood(f"`{name}` is not followed: {reason}", each.definition.lineno)
        del inner[name]
    if not inner:
        return definition.body, {}
    handing = _Handing({name: sorted(each.captured) for name, each in inner.items()})
    places = {each.place for each in inner.values()}
    body = [handing.visit(copy.deepcopy(each)) for place, each in enumerate(definition.body) if place not in places]
    return body, _functions(function, {name: handing.definition(each.definition) for name, each in inner.items()})


def _inner(function: FunctionType, definition: ast.FunctionDef) -> Iterator[tuple[str, _Inner]]:
    outer = function.__code__
    found: list[tuple[ast.FunctionDef, int, CodeType]] = []
    for place, each in enumerate(definition.body):
        made = _as_definition(each)
        own = [code for code in outer.co_consts if isinstance(code, CodeType) and made is not None and _is_of(code, each, made)]
        if made is not None and len(own) == 1:
            found.append((made, place, own[0]))
    siblings = {made.name for made, _, _ in found}
    for made, place, code in found:
        free = {*code.co_freevars} - {*outer.co_freevars}
        yield made.name, _Inner(made, place, free - siblings, free & siblings)


def _as_definition(statement: ast.stmt) -> ast.FunctionDef | None:
    if isinstance(statement, ast.FunctionDef):
        return statement
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Lambda):
        return None
    target, value = statement.targets[0], statement.value
    if len(statement.targets) > 1 or not isinstance(target, ast.Name):
        return None
    returned = ast.copy_location(ast.Return(value.body), value.body)
    return ast.copy_location(ast.FunctionDef(target.id, value.args, [returned], [], None), value)


def _is_of(code: CodeType, statement: ast.stmt, definition: ast.FunctionDef) -> bool:
    name = definition.name if isinstance(statement, ast.FunctionDef) else "<lambda>"
    return code.co_name == name and code.co_firstlineno == definition.lineno


def _capture_for_siblings(inner: dict[str, _Inner]) -> None:
    """Who calls a sibling hands on what that captures."""
    changed = True
    while changed:
        changed = False
        for each in inner.values():
            more = set().union(*(inner[name].captured for name in each.calls)) - each.captured
            each.captured |= more
            changed = changed or bool(more)


def _refusal(name: str, each: _Inner, definition: ast.FunctionDef, inner: dict[str, _Inner]) -> str | None:
    """Why calls that hand over what is captured would not be the same."""
    given = each.definition.args
    parts = [part for statement in each.definition.body for part in ast.walk(statement)]
    if each.definition.decorator_list:
        return "a decorator is around it"
    if any(isinstance(part, ast.Nonlocal | ast.Global | ast.Yield | ast.YieldFrom | ast.Await) for part in parts):
        return "it binds names of another function, or is a generator"
    if "__class__" in names(each.definition) or any(isinstance(part, ast.Name) and part.id == "super" for part in parts):
        return "it asks for `super()`"
    if not all(default is None or isinstance(default, ast.Constant) for default in (*given.defaults, *given.kw_defaults)):
        return "its defaults are more than constants"
    whole = [part for statement in definition.body for part in ast.walk(statement)]
    bound = sum(_binds(part, name) for part in whole) + (name in _parameters(definition.args))
    loads = [part for part in whole if _is_name(part, ast.Load) and part.id == name]
    called = {part.func for part in whole if isinstance(part, ast.Call)}
    if bound != 1 or not called.issuperset(loads):
        return "it is more than called"
    shadowed = each.captured & {found for part in whole if isinstance(part, _SCOPES) for found in _bound_in(part)}
    if shadowed:
        return f"`{min(shadowed)}`, which it reads, has another meaning in a scope inside"
    used = _first_use(name, definition, inner)
    if used < each.place:
        return "it may be called before it is there"
    unbound = each.captured - _bound_before(used, definition)
    return f"`{min(unbound)}`, which it reads, may not be bound when it is called" if unbound else None


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.arg):
        return node.arg == name
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name


def _parameters(given: ast.arguments) -> set[str]:
    return {each.arg for each in ast.walk(given) if isinstance(each, ast.arg)}


def _bound_in(scope: ast.AST) -> set[str]:
    """The names that a scope may bind for itself, and those inside of it for themselves."""
    found = {each.id for each in ast.walk(scope) if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}
    return found | {each.arg for each in ast.walk(scope) if isinstance(each, ast.arg)}


def _first_use(name: str, definition: ast.FunctionDef, inner: dict[str, _Inner]) -> int:
    """The place of the first statement that may call it, itself or through siblings."""
    callers, places = {name}, {each.place for each in inner.values()}
    while True:
        more = {other for other, each in inner.items() if each.calls & callers} - callers
        if not more:
            break
        callers |= more
    uses = [place for place, each in enumerate(definition.body) if place not in places and names(each) & callers]
    return min(uses, default=len(definition.body))


def _bound_before(place: int, definition: ast.FunctionDef) -> set[str]:
    """The names that are surely bound at a statement of the body: parameters, and those of plain assignments before it."""
    found = _parameters(definition.args)
    for each in definition.body[:place]:
        targets = each.targets if isinstance(each, ast.Assign) else [each.target] if isinstance(each, ast.AnnAssign) and each.value else []
        found |= {part.id for target in targets for part in ast.walk(target) if _is_name(part, ast.Store)}
    return found - {part.id for each in definition.body for part in ast.walk(each) if _is_name(part, ast.Del)}


def _is_name(node: ast.AST, context: type[ast.expr_context]) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, context)


class _Handing(ast.NodeTransformer):
    """Calls hand over what is captured."""

    def __init__(self, captured: dict[str, list[str]]) -> None:
        self._captured = captured

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in self._captured:
            given: list[ast.expr] = [ast.copy_location(ast.Name(each, ast.Load()), node) for each in self._captured[node.func.id]]
            node.args = [*given, *node.args]
        return node

    def definition(self, given: ast.FunctionDef) -> ast.FunctionDef:
        """The function with parameters for what it captures."""
        made = copy.deepcopy(given)
        made.body = [self.visit(each) for each in made.body]
        more = [ast.copy_location(ast.arg(each), made) for each in self._captured[made.name]]
        own = made.args.posonlyargs or made.args.args
        own[:0] = more
        made.returns = None
        for each in ast.walk(made.args):
            if isinstance(each, ast.arg):
                each.annotation = None
        return made


def _functions(outer: FunctionType, definitions: dict[str, ast.FunctionDef]) -> dict[str, FunctionType]:
    """The functions in the outer one's globals and closure, where they find each other, too."""
    cells = dict(zip(outer.__code__.co_freevars, outer.__closure__ or (), strict=True)) | {name: CellType() for name in definitions}
    made: dict[str, FunctionType] = {}
    for name, definition in definitions.items():
        returned = ast.Return(ast.Name(name, ast.Load()))
        inside = ast.FunctionDef("_disc_inside", ast.arguments([], [], None, [], [], None, []), [definition, returned], [], None)
        held = ast.arguments([], [ast.arg(each) for each in cells if each != name], None, [], [], None, [])
        module = ast.Module([ast.FunctionDef("_disc_make", held, [inside, ast.Return(ast.Name("_disc_inside", ast.Load()))], [], None)], [])
        scope: dict[str, Any] = {}
        exec(compile(_at_line(module, definition.lineno), outer.__code__.co_filename, "exec"), outer.__globals__, scope)
        found: FunctionType = scope["_disc_make"](*(None for _ in held.args))()
        closure = tuple(cells[each] for each in found.__code__.co_freevars)
        function = made[name] = FunctionType(found.__code__, outer.__globals__, name, found.__defaults__, closure)
        function.__kwdefaults__, function.__qualname__ = found.__kwdefaults__, f"{outer.__qualname__}.<locals>.{name}"
        function.__dict__[DEFINITION] = definition
        cells[name].cell_contents = function
    return made


def _at_line(module: ast.Module, line: int) -> ast.Module:
    for each in ast.walk(module):
        if isinstance(each, ast.stmt | ast.expr | ast.arg) and not hasattr(each, "lineno"):
            each.lineno = each.end_lineno = line
            each.col_offset = each.end_col_offset = 0
    return module


def definition_of(function: FunctionType) -> ast.FunctionDef | None:
    """What a function that was made here is compiled from; None for others."""
    found: ast.FunctionDef | None = function.__dict__.get(DEFINITION)
    return copy.deepcopy(found)
