"""From the source of a function to steps (`steps.py`): every operation gets a name, conditional expressions and comprehensions become
branches and loops (A-normal form; Flanagan et al., The Essence of Compiling with Continuations)."""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TypeVar, cast

from disc.frontend.batched.nested import definition_of, lift
from disc.frontend.batched.patterns import NotUnderstood, Patterns, match_arguments, meaning
from disc.frontend.batched.steps import Branch, Compute, Effect, Jump, Loop, Raise, Return, Step, Unpack, names
from disc.ir.python_source import parse_source

DRAINING = frozenset(
    {"sum", "list", "tuple", "set", "dict", "sorted", "min", "max", "frozenset", "stack", "cat"}
)  # take all of a generator
ORDERING = {"sorted": "_disc_sorted", "min": "_disc_least", "max": "_disc_greatest"}  # builtins that take a `key`, and what does with keys
# builtins, with the number of their arguments, that take a generator's items up to the one that decides
SEARCHING = {"any": 1, "all": 1, "next": 2}
CHANGING = frozenset({"append", "extend", "insert", "pop", "remove", "clear", "popitem", "appendleft", "popleft", "setdefault", "discard",
                      "update"})  # fmt: skip
NO_GRADIENTS = frozenset({"no_grad", "inference_mode", "torch.no_grad", "torch.inference_mode"})
Node = TypeVar("Node", bound=ast.AST)
Comprehension = TypeVar("Comprehension", bound=ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)


@dataclass(frozen=True)
class Source:
    """A function in steps. arguments: as in its definition; file and first line of the definition; matched: as of `Patterns`; inner: the
    functions that it defines for itself, by their names."""

    name: str
    arguments: ast.arguments
    steps: list[Step]
    file: str
    line: int
    matched: list[tuple[ast.expr, object, tuple[str, ...]]]
    inner: dict[str, FunctionType]

    def matches(self, function: FunctionType) -> bool:
        """Whether classes of patterns are those that they were."""
        return all(meaning(function, node) is kind and match_arguments(kind) == names for node, kind, names in self.matched)


def read_source(function: FunctionType, *, gradients: bool) -> Source:
    """Raises NotUnderstood for a function without source, or with statements that have no steps. gradients: whether results have some, so
    that `with torch.no_grad()` is such a statement."""
    if hasattr(function, "__wrapped__"):
        raise NotUnderstood("a decorator is around it", function.__code__.co_firstlineno)
    definition = definition_of(function) or _read_definition(function)
    lowering = _Lowering(gradients, function)
    body, inner = lift(function, definition)
    steps = lowering.block(body)
    return Source(function.__qualname__, definition.args, steps, function.__code__.co_filename, definition.lineno, lowering.matched, inner)


def _read_definition(function: FunctionType) -> ast.FunctionDef:
    try:
        lines, first = inspect.getsourcelines(function)
        tree = parse_source(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError) as error:
        raise NotUnderstood("its source cannot be read", function.__code__.co_firstlineno) from error
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef) or definition.name != function.__name__:
        raise NotUnderstood("it is no function with a `def` of its own", first)
    ast.increment_lineno(tree, first - 1)
    return definition


def is_temporary(name: str) -> bool:
    """Whether the name was made here; such a name is bound once in an iteration and read once, unless a condition binds it."""
    return name.startswith("_disc_t")


class _Lowering(Patterns):
    def __init__(self, gradients: bool, function: FunctionType) -> None:
        super().__init__(function)
        self._gradients, self._searching = gradients, searching_builtins(function)
        self._count = 0
        self._within: ast.stmt = ast.Pass()  # the statement that is followed

    def block(self, statements: Sequence[ast.stmt]) -> list[Step]:
        outer, self._out = self._out, []
        for statement in statements:
            self._statement(statement)
        made, self._out = self._out, outer
        return made

    def _name(self, what: str = "t") -> str:
        self._count += 1
        return f"_disc_{what}{self._count}"

    # --- statements -------------------------------------------------------------------------------------------------------------

    def _statement(self, node: ast.stmt) -> None:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise NotUnderstood(f"`{_KEYWORDS.get(type(node), type(node).__name__.lower())}` is not followed", node.lineno)
        outer, self._within = self._within, node
        method(node)
        self._within = outer

    def _pass(self, node: ast.Pass) -> None:
        del node

    def _expr(self, node: ast.Expr) -> None:
        value = node.value
        called = value.func if isinstance(value, ast.Call) else None
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Attribute) and called.attr in ("add", "sort", "reverse"):
            raise NotUnderstood(f"`{ast.unparse(called)}` may change what is not its own", node.lineno)
        if isinstance(called, ast.Attribute) and called.attr == "sort" and isinstance(called.value, ast.Name):
            assert isinstance(value, ast.Call)
            self._sort(called.value, value)
        elif not isinstance(value, ast.Constant):
            self._atom(value)

    def _sort(self, items: ast.Name, call: ast.Call) -> None:
        """`items.sort(key=..., reverse=...)`, which puts the sorted items into the list."""
        if call.args or "sorted" not in self._searching:
            raise NotUnderstood(f"`{ast.unparse(call)}` is not followed", call.lineno)
        made = self._atom(_at(ast.Call(ast.Name("sorted", ast.Load()), [items], call.keywords), call))
        for method, arguments in (("clear", []), ("extend", [made])):
            self._atom(_at(ast.Call(ast.Attribute(items, method, ast.Load()), arguments, []), call))

    def _assign(self, node: ast.Assign) -> None:
        single = node.targets[0] if len(node.targets) == 1 else None
        given = _drained(node.value) if isinstance(single, ast.Tuple | ast.List) else node.value  # all of a generator is unpacked
        value = self._atom(given, single.id if isinstance(single, ast.Name) else None)
        for target in node.targets:
            self._bind(target, value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, self._atom(node.value, node.target.id if isinstance(node.target, ast.Name) else None))

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            if not (isinstance(value, ast.Name) and value.id == target.id):
                self._out.append(Compute(target.lineno, "move", target.id, value))
        elif isinstance(target, ast.Tuple | ast.List):
            stores: list[tuple[ast.expr, ast.expr]] = []
            self._out.append(Unpack(target.lineno, self._plain_targets(target, stores), value))
            for each, temporary in stores:
                self._bind(each, temporary)
        elif isinstance(target, ast.Subscript):
            place = ast.Subscript(self._atom(target.value), self._index(target.slice), ast.Store())
            self._effect(ast.Assign([place], value), target)
        elif isinstance(target, ast.Attribute):
            raise NotUnderstood(f"it sets the attribute {ast.unparse(target)}", target.lineno)
        else:
            raise NotUnderstood(f"it binds {ast.unparse(target)}", target.lineno)

    def _plain_targets(self, target: ast.expr, stores: list[tuple[ast.expr, ast.expr]]) -> ast.expr:
        """The targets with a name in the place of whatever is none."""
        if isinstance(target, ast.Name):
            return target
        if isinstance(target, ast.Tuple | ast.List):
            return _at(ast.Tuple([self._plain_targets(each, stores) for each in target.elts], ast.Store()), target)
        if isinstance(target, ast.Starred):
            return _at(ast.Starred(self._plain_targets(target.value, stores), ast.Store()), target)
        name = self._name("u")
        stores.append((target, _at(ast.Name(name, ast.Load()), target)))
        return _at(ast.Name(name, ast.Store()), target)

    def _effect(self, statement: ast.stmt, place: ast.AST) -> None:
        self._out.append(Effect(getattr(place, "lineno", 0), _at(statement, place)))

    def _augassign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            raise NotUnderstood(f"it changes {ast.unparse(node.target)}", node.lineno)
        value = self._atom(node.value)
        self._out.append(Compute(node.lineno, "inplace", node.target.id, value, node.op))

    def _return(self, node: ast.Return) -> None:
        value = self._atom(node.value) if node.value is not None else _at(ast.Constant(None), node)
        self._out.append(Return(node.lineno, value))

    def _if(self, node: ast.If) -> None:
        test = self._atom(node.test)
        self._out.append(Branch(node.lineno, test, self.block(node.body), self.block(node.orelse)))

    def _for(self, node: ast.For) -> None:
        self._loop(node.target, self._atom(node.iter), lambda: self.block(node.body), self.block(node.orelse), node)

    def _loop(self, target: ast.expr, items: ast.expr, body: object, otherwise: list[Step], place: ast.AST) -> None:
        name = target.id if isinstance(target, ast.Name) else self._name("u")
        outer, self._out = self._out, []
        if not isinstance(target, ast.Name):
            self._bind(target, _at(ast.Name(name, ast.Load()), target))
        steps = self._out + body()  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
        self._out = outer
        self._out.append(Loop(getattr(place, "lineno", 0), name, items, steps, otherwise))

    def _while(self, node: ast.While) -> None:
        outer, self._out = self._out, []
        if not (isinstance(node.test, ast.Constant) and node.test.value):
            if _leaves(node.orelse):
                raise NotUnderstood("a `while` whose `else` leaves another loop is not followed", node.lineno)
            leave: list[Step] = [*self.block(node.orelse), Jump(node.lineno, _at(ast.Break(), node))]
            self._out.append(Branch(node.lineno, self._atom(node.test), [], leave))
        body = self._out + self.block(node.body)
        self._out = outer
        self._out.append(Loop(node.lineno, self._name("u"), None, body, []))

    def _break(self, node: ast.Break) -> None:
        self._out.append(Jump(node.lineno, node))

    def _continue(self, node: ast.Continue) -> None:
        self._out.append(Jump(node.lineno, node))

    def _raise(self, node: ast.Raise) -> None:
        error = self._atom(node.exc) if node.exc is not None else None
        cause = self._atom(node.cause) if node.cause is not None else None
        self._out.append(Raise(node.lineno, _at(ast.Raise(error, cause), node)))

    def _assert(self, node: ast.Assert) -> None:
        test = self._atom(node.test)
        outer, self._out = self._out, []
        words = [self._atom(node.msg)] if node.msg is not None else []
        error = _at(ast.Call(ast.Name("AssertionError", ast.Load()), list(words), []), node)
        failed = [*self._out, Raise(node.lineno, _at(ast.Raise(error, None), node))]
        self._out = outer
        self._out.append(Branch(node.lineno, test, [], failed))

    def _with(self, node: ast.With) -> None:
        for item in node.items:
            called = item.context_expr
            followed = item.optional_vars is None and isinstance(called, ast.Call) and ast.unparse(called.func) in NO_GRADIENTS
            if self._gradients or not followed:
                raise NotUnderstood(f"`with {ast.unparse(item)}` is not followed", node.lineno)
        for statement in node.body:  # results carry no gradients anyway
            self._statement(statement)

    def _import(self, node: ast.Import) -> None:
        self._effect(node, node)

    def _importfrom(self, node: ast.ImportFrom) -> None:
        self._effect(node, node)

    def _delete(self, node: ast.Delete) -> None:
        if not all(isinstance(each, ast.Name) for each in node.targets):
            raise NotUnderstood(f"`{ast.unparse(node)}` changes what may be the caller's", node.lineno)
        self._effect(node, node)

    # --- expressions ------------------------------------------------------------------------------------------------------------

    def _atom(self, node: ast.expr, target: str | None = None) -> ast.expr:
        """The name or constant that has the value. target: the name to bind it to, where the user's code binds it at once."""
        if isinstance(node, ast.Name | ast.Constant):
            return node
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            number = node.operand.value
            if isinstance(number, int | float | complex):
                return ast.copy_location(ast.Constant(-number), node)
        if isinstance(node, ast.BoolOp | ast.IfExp):
            return self._conditional(node)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp):
            return self._comprehension(node)
        if isinstance(node, ast.Compare) and len(node.ops) > 1:
            return self._chain(node)
        if isinstance(node, ast.Call) and self._searches(node):
            return self._search(node)
        if isinstance(node, ast.NamedExpr):
            return self._named(node)
        if isinstance(node, ast.Call) and self._orders(node):
            return self._ordered(node)
        kind, value = self._operation(node)
        name = target or self._name()
        self._out.append(Compute(node.lineno, kind, name, _at(value, node)))
        return _at(ast.Name(name, ast.Load()), node)

    def _operation(self, node: ast.expr) -> tuple[str, ast.expr]:
        if isinstance(node, ast.Attribute):
            return "attribute", ast.Attribute(self._atom(node.value), node.attr, ast.Load())
        if isinstance(node, ast.Subscript):
            base = self._atom(node.value)
            return "item", ast.Subscript(base, self._index(node.slice), ast.Load())
        if isinstance(node, ast.Call):
            return "call", self._call(node)
        if isinstance(node, ast.BinOp):
            return "operator", ast.BinOp(self._atom(node.left), node.op, self._atom(node.right))
        if isinstance(node, ast.UnaryOp):
            return "operator", ast.UnaryOp(node.op, self._atom(node.operand))
        if isinstance(node, ast.Compare):
            return "operator", ast.Compare(self._atom(node.left), node.ops, [self._atom(node.comparators[0])])
        if isinstance(node, ast.Tuple | ast.List):
            return "display", type(node)([self._element(each) for each in node.elts], ast.Load())
        if isinstance(node, ast.Set):
            return "display", ast.Set([self._element(each) for each in node.elts])
        if isinstance(node, ast.Dict):
            keys = [self._atom(key) if key is not None else None for key in node.keys]
            return "display", ast.Dict(keys, [self._atom(each) for each in node.values])
        if isinstance(node, ast.JoinedStr):
            return "operator", ast.JoinedStr([self._text(each) for each in node.values])
        if isinstance(node, ast.Lambda):
            return "operator", node
        raise NotUnderstood(f"`{ast.unparse(node)}` is not followed", node.lineno)

    def _element(self, node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.Starred):
            return self._atom(node)
        return _at(ast.Starred(self._atom(_drained(node.value)), ast.Load()), node)

    def _text(self, node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.FormattedValue):
            return node
        return _at(ast.FormattedValue(self._atom(node.value), node.conversion, node.format_spec), node)

    def _index(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Slice):
            parts = [self._atom(each) if each is not None else None for each in (node.lower, node.upper, node.step)]
            return _at(ast.Slice(*parts), node)
        if isinstance(node, ast.Tuple):
            return _at(ast.Tuple([self._index(each) for each in node.elts], ast.Load()), node)
        return self._atom(node)

    def _call(self, node: ast.Call) -> ast.expr:
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in CHANGING
            and isinstance(node.func.value, ast.Attribute | ast.Subscript)
        ):
            raise NotUnderstood(f"`{ast.unparse(node.func)}` may change what is not its own", node.lineno)
        if isinstance(node.func, ast.Attribute):
            callee: ast.expr = _at(ast.Attribute(self._atom(node.func.value), node.func.attr, ast.Load()), node.func)
        else:
            callee = self._atom(node.func)
        arguments = [self._argument(each, node) for each in node.args]
        keywords = [_at(ast.keyword(each.arg, self._atom(each.value)), each.value) for each in node.keywords]
        return ast.Call(callee, arguments, keywords)

    def _argument(self, node: ast.expr, call: ast.Call) -> ast.expr:
        if not isinstance(node, ast.GeneratorExp):
            return self._element(node)
        called = ast.unparse(call.func).rpartition(".")[2]
        if called not in DRAINING:
            raise NotUnderstood(f"`{called}` may take a part of the generator `{ast.unparse(node)}`", node.lineno)
        return self._atom(_drained(node))

    def _conditional(self, node: ast.BoolOp | ast.IfExp) -> ast.expr:
        """`a and b`, `a or b`, `a if c else b`: a name that a branch binds."""
        name = self._name("c")
        value = _at(ast.Name(name, ast.Load()), node)
        if isinstance(node, ast.IfExp):
            test = self._atom(node.test)
            self._out.append(Branch(node.lineno, test, self._into(name, node.body), self._into(name, node.orelse)))
            return value
        first, *others = node.values
        rest = others[0] if len(others) == 1 else ast.copy_location(ast.BoolOp(node.op, others), node)
        self._out += self._into(name, first)
        self._out.append(Branch(node.lineno, value, *self._sides(isinstance(node.op, ast.And), name, rest)))
        return value

    def _sides(self, first: bool, name: str, value: ast.expr) -> tuple[list[Step], list[Step]]:
        steps = self._into(name, value)
        return (steps, []) if first else ([], steps)

    def _into(self, name: str, node: ast.expr) -> list[Step]:
        """The steps that bind `name` to the expression's value."""
        outer, self._out = self._out, []
        self._bind(_at(ast.Name(name, ast.Store()), node), self._atom(node, name))
        made, self._out = self._out, outer
        return made

    def _chain(self, node: ast.Compare) -> ast.expr:
        """`a < b < c` is `a < b and b < c`, with b computed once."""
        left, middle = self._atom(node.left), self._atom(node.comparators[0])
        first = ast.copy_location(ast.Compare(left, node.ops[:1], [middle]), node)
        rest = ast.copy_location(ast.Compare(middle, node.ops[1:], node.comparators[1:]), node)
        return self._conditional(ast.copy_location(ast.BoolOp(ast.And(), [first, rest]), node))

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp) -> ast.expr:
        """A container that a loop fills; names that the comprehension binds are its own."""
        name = self._name("l")
        empty = {ast.ListComp: ast.List([], ast.Load()), ast.SetComp: ast.Call(ast.Name("set", ast.Load()), [], []),
                 ast.DictComp: ast.Dict([], [])}[type(node)]  # fmt: skip
        self._out.append(Compute(node.lineno, "display", name, _at(empty, node)))
        first = self._atom(node.generators[0].iter)
        inner = self._renamed(node)
        self._nested(node, inner.generators, first, lambda: self._element_into(inner, name))
        return _at(ast.Name(name, ast.Load()), node)

    def _renamed(self, node: Comprehension) -> Comprehension:
        """A copy whose own names no other code has."""
        bound = {each for part in node.generators for each in names(part.target)}
        return _Renaming({each: self._name(f"n_{each}_") for each in bound}).visit(copy.deepcopy(node))

    def _searches(self, node: ast.Call) -> bool:
        """Whether it is `any(...)`, `all(...)` or `next(..., default)` of a generator with one loop."""
        return (
            isinstance(node.func, ast.Name)
            and node.func.id in SEARCHING
            and node.func.id in self._searching
            and len(node.args) == SEARCHING[node.func.id]
            and not node.keywords
            and isinstance(node.args[0], ast.GeneratorExp)
            and len(node.args[0].generators) == 1
            and not isinstance(node.args[-1], ast.Starred)
        )

    def _search(self, node: ast.Call) -> ast.expr:
        """A loop that ends at the item that decides."""
        name, generator = self._name("c"), cast("ast.GeneratorExp", node.args[0])
        kind = cast("ast.Name", node.func).id
        first = self._atom(generator.generators[0].iter)
        otherwise = self._atom(node.args[1]) if kind == "next" else _at(ast.Constant(kind == "all"), node)
        self._bind(_at(ast.Name(name, ast.Store()), node), otherwise)
        inner = self._renamed(generator)
        leave = Jump(node.lineno, _at(ast.Break(), node))

        def decide() -> None:
            if kind == "next":
                self._out += [*self._into(name, inner.elt), leave]
                return
            test = self._atom(inner.elt)
            found = [*self._into(name, _at(ast.Constant(kind == "any"), node)), leave]
            self._out.append(Branch(node.lineno, test, *((found, []) if kind == "any" else ([], found))))

        self._nested(node, inner.generators, first, decide)
        return _at(ast.Name(name, ast.Load()), node)

    def _named(self, node: ast.NamedExpr) -> ast.expr:
        """`(name := value)`."""
        if any(isinstance(each, ast.Name) and each.id == node.target.id and _place(each) < _place(node) for each in ast.walk(self._within)):
            raise NotUnderstood(f"`{ast.unparse(node)}` binds a name that the statement reads before", node.lineno)
        self._bind(node.target, self._atom(node.value, node.target.id))
        return _at(ast.Name(node.target.id, ast.Load()), node)

    def _orders(self, node: ast.Call) -> bool:
        """Whether it is `sorted`, or `min` or `max` of one container by a key or with a default."""
        names = {each.arg for each in node.keywords}
        return (
            isinstance(node.func, ast.Name)
            and node.func.id in ORDERING
            and node.func.id in self._searching
            and len(node.args) == 1
            and not isinstance(node.args[0], ast.Starred)
            and (names <= {"key", "reverse"} if node.func.id == "sorted" else bool(names) and names <= {"key", "default"})
        )

    def _ordered(self, node: ast.Call) -> ast.expr:
        """The items, with a key computed for each as tensor code may be, by their keys."""
        given = {str(each.arg): each.value for each in node.keywords}
        items = self._atom(_at(ast.Call(ast.Name("list", ast.Load()), [_drained(node.args[0])], []), node))
        key, keys = given.get("key"), items
        reverse = self._atom(given.get("reverse") or _at(ast.Constant(False), node))
        if key is not None and not (isinstance(key, ast.Constant) and key.value is None):
            keys = self._atom(_at(self._keys(key, items), node))
        kind = cast("ast.Name", node.func).id
        arguments = [items, keys, *([reverse] if kind == "sorted" else [])]
        call = _at(ast.Call(ast.Name(ORDERING[kind], ast.Load()), arguments, []), node)
        if "default" not in given:
            return self._atom(call)
        name = self._name("c")
        otherwise = self._into(name, given["default"])
        self._out.append(Branch(node.lineno, items, self._into(name, call), otherwise))
        return _at(ast.Name(name, ast.Load()), node)

    def _keys(self, key: ast.expr, items: ast.expr) -> ast.ListComp:
        """A lambda of one parameter is the expression in a loop over it."""
        given = key.args if isinstance(key, ast.Lambda) else None
        if given is not None and len(given.args) == 1 and ast.unparse(given) == given.args[0].arg:
            return ast.ListComp(cast("ast.Lambda", key).body, [ast.comprehension(ast.Name(given.args[0].arg, ast.Store()), items, [], 0)])
        name = self._name("v")
        call = ast.Call(self._atom(key), [ast.Name(name, ast.Load())], [])
        return ast.ListComp(call, [ast.comprehension(ast.Name(name, ast.Store()), items, [], 0)])

    def _nested(self, node: ast.expr, parts: Sequence[ast.comprehension], items: ast.expr | None, end: Callable[[], None]) -> None:
        """The loops and conditions of a comprehension. end: adds the steps of an item."""
        if not parts:
            end()
            return
        part = parts[0]
        if part.is_async:
            raise NotUnderstood("`async` is not followed", node.lineno)

        def body() -> list[Step]:
            outer, self._out = self._out, []
            self._filtered(node, list(part.ifs), parts[1:], end)
            made, self._out = self._out, outer
            return made

        self._loop(part.target, items if items is not None else self._atom(part.iter), body, [], node)

    def _filtered(self, node: ast.expr, conditions: list[ast.expr], parts: Sequence[ast.comprehension], end: Callable[[], None]) -> None:
        if not conditions:
            self._nested(node, parts, None, end)
            return
        test = self._atom(conditions[0])
        outer, self._out = self._out, []
        self._filtered(node, conditions[1:], parts, end)
        made, self._out = self._out, outer
        self._out.append(Branch(node.lineno, test, made, []))

    def _element_into(self, node: ast.expr, name: str) -> None:
        container = _at(ast.Name(name, ast.Load()), node)
        if isinstance(node, ast.DictComp):
            key, value = self._atom(node.key), self._atom(node.value)
            self._effect(ast.Assign([ast.Subscript(container, key, ast.Store())], value), node)
            return
        assert isinstance(node, ast.ListComp | ast.SetComp)
        method = "append" if isinstance(node, ast.ListComp) else "add"
        added = ast.Call(ast.Attribute(container, method, ast.Load()), [self._atom(node.elt)], [])
        self._out.append(Compute(node.lineno, "call", self._name(), _at(added, node)))


def searching_builtins(function: FunctionType) -> frozenset[str]:
    """The names of builtins that are followed here which mean these in a function."""
    code = function.__code__
    bound = {*code.co_varnames, *code.co_cellvars, *code.co_freevars, *function.__globals__}
    return frozenset(each for each in (*SEARCHING, *ORDERING) if each not in bound)


def _place(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _leaves(statements: Sequence[ast.stmt]) -> bool:
    """Whether statements have a `break` or `continue` of a loop that they are inside of."""
    return any(
        isinstance(each, ast.Break | ast.Continue)
        or (not isinstance(each, ast.For | ast.While) and any(_leaves(getattr(each, part, [])) for part in ("body", "orelse")))
        or (isinstance(each, ast.For | ast.While) and _leaves(each.orelse))
        for each in statements
    )


def _drained(node: ast.expr) -> ast.expr:
    """A generator whose items are all taken at once is the list of them."""
    return ast.copy_location(ast.ListComp(node.elt, node.generators), node) if isinstance(node, ast.GeneratorExp) else node


_KEYWORDS: dict[type[ast.stmt], str] = {ast.FunctionDef: "def", ast.ClassDef: "class", ast.AsyncFunctionDef: "async def"}


class _Renaming(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._names.get(node.id, node.id)
        return node


def _at(node: Node, place: ast.AST) -> Node:
    """The node at the place of another, with what it holds."""
    ast.copy_location(node, place)
    return ast.fix_missing_locations(node)
