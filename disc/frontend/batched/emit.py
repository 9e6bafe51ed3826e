"""From steps to the function that runs: straight-line tensor code becomes calls of regions, calls of the user's functions and reads of
values are asked of the driver (`yield`), all else is Python as the user wrote it. What has not run yet runs on tensors and notes what it
sees."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from disc.frontend.batched.classify import Classes
from disc.frontend.batched.indices import only_index
from disc.frontend.batched.normal_form import is_temporary
from disc.frontend.batched.regions import Region
from disc.frontend.batched.steps import (
    Branch,
    Compute,
    Effect,
    Jump,
    Loop,
    Raise,
    Return,
    Seen,
    Step,
    Unpack,
    defines,
    live_after,
    uses,
    walk,
)
from disc.frontend.batched.values import FRESH

Statement = TypeVar("Statement", bound=ast.stmt)
CALL, READ, LEARN = 0, 1, 2  # what is asked of the driver
RUNTIME = "_disc_rt"


@dataclass
class Emitted:
    """What the function's new code needs besides the user's names: environment by name; regions by the name of their function. calls: the
    steps that became calls of the user's functions, by their statement."""

    body: list[ast.stmt]
    environment: dict[str, object]
    regions: dict[str, tuple[Region, ast.FunctionDef]]
    calls: dict[ast.stmt, Compute] = field(default_factory=dict)


@dataclass
class _Open:
    """The region that grows. later: steps that follow it and read what it computes."""

    steps: list[Step] = field(default_factory=list)
    later: list[Step] = field(default_factory=list)
    bound: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)


class Emitter:
    """local: the function's own names; own: those of containers that it makes. make_region: (steps, inputs, outputs, indices, tensor steps)
    → the region of these, the same one for the same steps."""

    def __init__(
        self,
        steps: Sequence[Step],
        classes: Classes,
        local: set[str],
        own: set[str],
        make_region: Callable[[tuple[Step, ...], tuple[str, ...], tuple[str, ...], frozenset[int], int], Region],
    ) -> None:
        self._classes = classes
        self._local = local
        self._own = own
        self._make_region = make_region
        self._live = live_after(steps)
        self._readers: dict[str, list[Step]] = {}
        for step in walk(steps):
            for name in uses(step):
                self._readers.setdefault(name, []).append(step)
        self._paths: dict[str, Compute] = {}
        self.emitted = Emitted([], {}, {})
        self.emitted.body = self._block(steps)

    def _block(self, steps: Sequence[Step]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        region = _Open()
        live: set[str] = set()
        for step in steps:
            region = self._step(step, region, out, live)
            live = self._live[step]
        self._close(region, out, live)
        return out or [ast.Pass()]

    def _step(self, step: Step, region: _Open, out: list[ast.stmt], live: set[str]) -> _Open:
        """Puts the step into the region, before it, or behind it; `live` is read after the step before. Returns the region that is open."""
        kind = self._classes.of(step)
        if kind == "path" and isinstance(step, Compute) and step.target.startswith("_disc_t"):
            self._paths[step.target] = step
            return region
        later = set().union(*(uses(each) | defines(each) for each in region.later))
        if kind == "tensor" or (kind == "glue" and uses(step) & region.bound):
            if uses(step) & later or defines(step) & later:
                region = self._close(region, out, live)
            self._add(step, region)
            return region
        if kind in ("plain", "path", "glue", "change") and not self._blocks(step, kind, region, later):
            if uses(step) & (region.bound | later) or (kind == "change" and region.later):
                region.later.append(step)
            else:
                self._native(step, out)
            return region
        region = self._close(region, out, live)
        self._native(step, out)
        return region

    def _blocks(self, step: Step, kind: str, region: _Open, later: set[str]) -> bool:
        """Whether the step can stand neither before the region nor behind it while the region grows."""
        if not region.steps:
            return False
        if defines(step) & (region.bound | region.read | later):
            return True
        effects = any(self._classes.of(each) == "change" for each in region.later)
        if kind != "change":
            return (
                effects and isinstance(step, Compute | Unpack | Loop) and getattr(step, "kind", "") not in ("attribute", "move", "display")
            )
        return bool(uses(step) & region.read) or any(each.seen.containers for each in region.steps)

    def _add(self, step: Step, region: _Open) -> None:
        for name in sorted(uses(step)):
            self._inline_path(name, region)
        region.steps.append(step)
        region.read |= uses(step) - region.bound
        region.bound |= defines(step)

    def _inline_path(self, name: str, region: _Open) -> None:
        """Takes a step that only finds a module or a weight into the region that reads it."""
        step = self._paths.pop(name, None)
        if step is not None:
            self._add(step, region)

    # --- regions ----------------------------------------------------------------------------------------------------------------

    def _close(self, region: _Open, out: list[ast.stmt], live: set[str]) -> _Open:
        self._leave_packing(region)
        tensors = sum(self._classes.of(each) == "tensor" for each in region.steps)
        if tensors:
            self._call_region(region, out, live, tensors)
        else:
            for step in region.steps:
                out += self._kept(step)
        for step in region.later:
            self._native(step, out)
        return _Open()

    def _leave_packing(self, region: _Open) -> None:
        """Takes out what comes last and only packs results with values from outside, such as a counter: each of these would be a constant
        of another block."""
        while region.steps and self._classes.of(region.steps[-1]) == "glue" and isinstance(region.steps[-1], Compute):
            last = region.steps[-1]
            bound = set().union(*(defines(each) for each in region.steps[:-1]))
            if not (uses(last) & bound and (uses(last) - bound) & self._local) or defines(last) & (bound | uses(last)):
                return
            region.steps.pop()
            region.later.insert(0, last)
            region.bound, region.read = set(), set()
            for each in region.steps:
                region.read |= uses(each) - region.bound
                region.bound |= defines(each)

    def _call_region(self, region: _Open, out: list[ast.stmt], live: set[str], tensors: int) -> None:
        wanted = live.union(*(uses(each) for each in region.later))
        outputs = tuple(sorted(region.bound & wanted))
        if not outputs:  # a call may change what others see, as `self.weight.mul_(2)` does: tracing tells
            calls = [each for each in region.steps if isinstance(each, Compute) and each.kind == "call"]
            outputs = tuple(sorted({name for each in calls for name in defines(each)}))
        if not outputs:
            return
        inputs = tuple(sorted(region.read & self._local))
        steps = tuple(region.steps)
        indexing = only_index(steps, self._classes)
        indices = frozenset(place for place, each in enumerate(inputs) if each in indexing)
        made = self._make_region(steps, inputs, outputs, indices, tensors)
        name = f"_disc_region{len(self.emitted.regions)}"
        self.emitted.regions[name] = (made, self._region_function(name, steps, inputs, outputs))
        called = _call(ast.Attribute(ast.Name(RUNTIME, ast.Load()), "region", ast.Load()), self._constant(made), _tuple(inputs, ast.Load()))
        out.append(_located(ast.Assign([_tuple(outputs, ast.Store())], called), steps[0].line))

    def _region_function(self, name: str, steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[str]) -> ast.FunctionDef:
        body: list[ast.stmt] = []
        for step in steps:
            if isinstance(step, Compute) and step.kind == "inplace":
                fresh = _call(ast.Name("_disc_fresh", ast.Load()), ast.Name(step.target, ast.Load()))
                body.append(_located(ast.Assign([ast.Name(step.target, ast.Store())], fresh), step.line))
            body.append(_checked(step) if self._classes.of(step) == "tensor" else _plain(step))
        body.append(_located(ast.Return(_tuple(outputs, ast.Load())), steps[-1].line))
        arguments = ast.arguments([], [ast.arg(each) for each in inputs], None, [], [], None, [])
        return _located(ast.FunctionDef(name, arguments, body, [], None), steps[0].line)

    def _constant(self, value: object) -> ast.expr:
        name = f"_disc_k{len(self.emitted.environment)}"
        self.emitted.environment[name] = value
        return ast.Name(name, ast.Load())

    # --- steps that stay Python's -----------------------------------------------------------------------------------------------

    def _native(self, step: Step, out: list[ast.stmt]) -> None:
        for name in sorted(uses(step)):
            path = self._paths.pop(name, None)
            if path is not None:
                self._native(path, out)
        kind = self._classes.of(step)
        if kind == "new":
            made = self._learning(step)
        elif kind == "read":
            made = self._read(step)
        elif kind in ("mutation", "change"):
            made = self._changed(step)
        elif kind == "call":
            made = [self._asked(cast("Compute", step), CALL)]
        elif isinstance(step, Branch):
            made = [ast.If(step.test, self._block(step.body), self._otherwise(step.otherwise))]
        elif isinstance(step, Loop):
            made = [self._loop(step, step.items)]
        else:
            made = self._kept(step)
        out += [_located(each, step.line) for each in made]

    def _changed(self, step: Step) -> list[ast.stmt]:
        """A change of a container or of a tensor; said before, unless the container was made in this function."""
        container = _container(step)
        if container is None or (isinstance(container, ast.Name) and container.id in self._own) or step.seen.only("constant"):
            return [_plain(step)]
        return [_before_change(container), _plain(step)]

    def _kept(self, step: Step) -> list[ast.stmt]:
        """The step as it is; a container that it makes may be changed from then on, unless only tensor code reads it."""
        if not isinstance(step, Compute) or not _makes_container(step) or self._is_operand(step):
            return [_plain(step)]
        if all(self._classes.of(each) == "tensor" for each in self._readers.get(step.target, ())):
            return [_plain(step)]
        return [_located(ast.Assign([ast.Name(step.target, ast.Store())], _owned(step.value, step.value)), step.line)]

    def _is_operand(self, step: Compute) -> bool:
        """Whether only operators read what it makes, so that nobody changes it."""
        readers = self._readers.get(step.target, ())
        return is_temporary(step.target) and all(isinstance(each, Compute) and each.kind in ("operator", "item") for each in readers)

    def _otherwise(self, steps: Sequence[Step]) -> list[ast.stmt]:
        return self._block(steps) if steps else []

    def _loop(self, step: Loop, items: ast.expr | None) -> ast.stmt:
        body = self._block(step.body)
        if items is None:
            return ast.While(ast.Constant(True), body, [])
        return ast.For(ast.Name(step.target, ast.Store()), items, body, self._otherwise(step.otherwise))

    def _read(self, step: Step) -> list[ast.stmt]:
        """Asks the driver for a value on the host."""
        if isinstance(step, Branch):
            name = "_disc_read"
            asked = ast.Assign([ast.Name(name, ast.Store())], _ask(READ, ast.Constant("bool"), step.test))
            return [asked, ast.If(ast.Name(name, ast.Load()), self._block(step.body), self._otherwise(step.otherwise))]
        assert isinstance(step, Compute)
        how, value = self._classes.read_of(step)
        found: ast.expr = _ask(READ, ast.Constant(how), value)
        if step.kind == "operator":
            found = ast.UnaryOp(ast.Not(), found)
        return [ast.Assign([ast.Name(step.target, ast.Store())], found)]

    def _asked(self, step: Compute, request: int, *more: ast.expr) -> ast.stmt:
        called = step.value
        assert isinstance(called, ast.Call)
        keywords: ast.expr = ast.Constant(None)
        if called.keywords:
            keys: list[ast.expr | None] = [ast.Constant(each.arg) if each.arg is not None else None for each in called.keywords]
            keywords = ast.Dict(keys, [each.value for each in called.keywords])
        arguments = ast.Tuple(list(called.args), ast.Load())
        made = ast.Assign([ast.Name(step.target, ast.Store())], _ask(request, *more, called.func, arguments, keywords))
        self.emitted.calls[made] = step
        return made

    # --- what has not run yet ---------------------------------------------------------------------------------------------------

    def _noted(self, seen: Seen, value: ast.expr, function: str = "_disc_note") -> ast.expr:
        """The value, as a tensor where it is a row, with its kind noted in `seen`."""
        return _call(ast.Name(function, ast.Load()), self._constant(seen), value)

    def _learning(self, step: Step) -> list[ast.stmt]:
        seen = step.seen
        if isinstance(step, Branch):
            return [ast.If(self._noted(seen, step.test), self._block(step.body), self._otherwise(step.otherwise))]
        if isinstance(step, Loop):
            assert step.items is not None
            return [self._loop(step, self._noted(seen, step.items))]
        if isinstance(step, Unpack):
            return [ast.Assign([step.targets], self._noted(seen, step.value))]
        if isinstance(step, Effect):
            container = _container(step)
            noted = ast.Expr(self._noted(seen, container or ast.Constant(None)))
            return [noted, *([_before_change(container)] if container is not None else []), step.statement]
        assert isinstance(step, Compute)
        target = ast.Name(step.target, ast.Store())
        if step.kind == "call":
            return [self._asked(step, LEARN, self._constant(seen))]
        if step.kind == "inplace":
            assert step.operator is not None
            changed = ast.AugAssign(target, step.operator, _forced(step.value))
            return [
                _before_change(ast.Name(step.target, ast.Load())),
                changed,
                ast.Expr(self._noted(seen, ast.Name(step.target, ast.Load()))),
            ]
        made = self._learnt_value(step)
        return [ast.Assign([target], _owned(made, step.value) if _made_of(step.value) and not self._is_operand(step) else made)]

    def _learnt_value(self, step: Compute) -> ast.expr:
        value, seen = step.value, step.seen
        if isinstance(value, ast.Attribute):
            return ast.Attribute(self._noted(seen, value.value), value.attr, ast.Load())
        if isinstance(value, ast.Subscript):
            return ast.Subscript(self._noted(seen, value.value), _forced(value.slice), ast.Load())
        if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not):
            return ast.UnaryOp(value.op, self._noted(seen, value.operand))
        return self._noted(seen, _forced(value))


def _plain(step: Step) -> ast.stmt:
    """The step as the user wrote it."""
    if isinstance(step, Compute):
        target = ast.Name(step.target, ast.Store())
        if step.kind == "inplace":
            assert step.operator is not None
            made: ast.stmt = ast.AugAssign(target, step.operator, step.value)
        else:
            made = ast.Assign([target], _with_rows(step.value))
    elif isinstance(step, Unpack):
        made = ast.Assign([step.targets], step.value)
    elif isinstance(step, Return):
        made = ast.Return(step.value)
    else:
        assert isinstance(step, Effect | Jump | Raise)
        made = step.statement
    return _located(made, step.line)


def _with_rows(value: ast.expr) -> ast.expr:
    """`isinstance` of a row is that of a tensor."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "isinstance":
        return ast.Call(ast.Name("_disc_isinstance", ast.Load()), value.args, value.keywords)
    return value


def _checked(step: Step) -> ast.stmt:
    """The step in a region: what it calls is checked when the region is traced."""
    if isinstance(step, Compute) and isinstance(step.value, ast.Call):
        called = step.value
        callee = _call(ast.Name("_disc_straight", ast.Load()), called.func)
        return _located(ast.Assign([ast.Name(step.target, ast.Store())], ast.Call(callee, called.args, called.keywords)), step.line)
    return _plain(step)


def _before_change(changed: ast.expr) -> ast.stmt:
    """Says what is about to be changed."""
    return ast.Expr(_call(ast.Attribute(ast.Name(RUNTIME, ast.Load()), "changing", ast.Load()), changed))


def _container(step: Step) -> ast.expr | None:
    """What `container[index] = value`, `container.append(value)`, `container += value` and `next(container)` change."""
    if isinstance(step, Effect):
        target = step.statement.targets[0] if isinstance(step.statement, ast.Assign) else None
        return target.value if isinstance(target, ast.Subscript) else None
    if not isinstance(step, Compute) or not isinstance(step.value, ast.Call) or step.kind == "inplace":
        return ast.Name(step.target, ast.Load()) if isinstance(step, Compute) else None
    called = step.value
    return called.func.value if isinstance(called.func, ast.Attribute) else called.args[0] if called.args else None


def _makes_container(step: Compute) -> bool:
    value = step.value
    if step.kind == "display":
        return not isinstance(value, ast.Tuple)
    if _made_of(value):
        return bool(step.seen.kinds & {"container", "tensors"})
    named = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
    return named in (*_FRESH, "_disc_sorted") and step.seen.categories == {"pure"}


def _owned(made: ast.expr, value: ast.expr) -> ast.expr:
    """What `value` is computed by, noted as the model's own."""
    return _call(ast.Attribute(ast.Name(RUNTIME, ast.Load()), "owned", ast.Load()), made, *_made_of(value))


def _made_of(value: ast.expr) -> list[ast.expr]:
    """The operands of `a + b`, `a * n` and `a[i:j]`, which make a new list of lists; empty for other values."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Mult):
        return [value.left, value.right]
    return [value.value] if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice) else []


_FRESH = {each.__name__ for each in FRESH}


def _forced(value: ast.expr) -> ast.expr:
    """The expression with tensors in the place of rows."""
    if isinstance(value, ast.Lambda):
        return value
    if isinstance(value, ast.Compare) and isinstance(value.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn):
        return value
    return cast("ast.expr", _Forcing().visit(copy.deepcopy(value)))


class _Forcing(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _call(ast.Name("_disc_force", ast.Load()), node) if isinstance(node.ctx, ast.Load) else node


def _ask(request: int, *parts: ast.expr) -> ast.expr:
    return ast.Yield(ast.Tuple([ast.Constant(request), *parts], ast.Load()))


def _call(function: ast.expr, *arguments: ast.expr) -> ast.expr:
    return ast.Call(function, list(arguments), [])


def _tuple(bound: Sequence[str], context: ast.expr_context) -> ast.expr:
    return ast.Tuple([ast.Name(each, context) for each in bound], context)


def _located(node: Statement, line: int) -> Statement:
    for each in ast.walk(node):
        if not hasattr(each, "lineno") and isinstance(each, ast.stmt | ast.expr | ast.arg | ast.keyword):
            each.lineno = each.end_lineno = line
            each.col_offset = each.end_col_offset = 0
    return node
