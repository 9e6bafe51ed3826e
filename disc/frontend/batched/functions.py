"""The user's functions: read once, run on tensors while they are learnt, rewritten when more is known."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import torch

from disc.frontend.batched.classify import Classes
from disc.frontend.batched.emit import RUNTIME, Emitted, Emitter
from disc.frontend.batched.indices import only_index
from disc.frontend.batched.normal_form import NotUnderstood, Source, read_source, searching_builtins
from disc.frontend.batched.ordering import ORDERED
from disc.frontend.batched.patterns import MATCHING
from disc.frontend.batched.regions import Region
from disc.frontend.batched.rows import Row
from disc.frontend.batched.steps import Branch, Compute, Effect, Loop, Seen, Step, defines, names, uses, walk
from disc.frontend.batched.tracing import straight
from disc.frontend.batched.values import category_of, kind_of

DATA = frozenset({"constant", "tensor", "tensors", "container"})  # globals that a region takes as inputs: they may change


class Function:
    """One function of the model. code: that was read; source: None where it is not understood; refusal: then why, and the line.

    entry: its present code, called with the runtime before its own arguments. asks: whether that is a generator.
    """

    def __init__(self, original: FunctionType, find: Callable[[object], Function | None], *, gradients: bool = False) -> None:
        self.original = original
        self.code, self._searching = original.__code__, searching_builtins(original)
        self.name = original.__qualname__.replace("<locals>.", "")
        self.file = original.__code__.co_filename
        self.source: Source | None = None
        self.refusal: NotUnderstood | None = None
        self.regions: dict[tuple[object, ...], Region] = {}
        self.entry: Callable[..., Any] = original
        self.asks = False
        self.emitted: Emitted | None = None  # what `entry` was made of
        self._find = find
        self._names = self.original.__code__.co_names
        self._deciding = False
        self._changes: bool | None = None
        try:
            self.source = read_source(original, gradients=gradients)
        except NotUnderstood as error:
            self.refusal = error

    def is_as_read(self) -> bool:
        """Whether the original's code is the one that was read, and names in it that meant builtins still do."""
        matches = self.source is None or self.source.matches(self.original)
        return matches and self.code is self.original.__code__ and self._searching == searching_builtins(self.original)

    def asks_by_value(self) -> bool:
        """Whether it asks for attributes whose names it computes, as `getattr(self, "W_" + kind)`."""
        steps = walk(self.source.steps) if self.source is not None else ()
        return any("getattr" in names(getattr(each, "value", None)) for each in steps)

    # --- what it is -------------------------------------------------------------------------------------------------------------

    def is_straight(self) -> bool:
        """Whether all of it is straight-line tensor code, which a region may call: no value is read, nothing changed but containers of its
        own, no other function called that is not straight."""
        if self.source is None or self._deciding:
            return False
        self._deciding = True
        try:
            classes = self._classes()
            own = self._own_containers(self.source)
            parameters = {each.arg for each in _parameters(self.source.arguments)}
            steps = list(walk(self.source.steps))
            return not any(_reads_data(each, parameters) for each in steps) and all(self._is_straight(each, classes, own) for each in steps)
        finally:
            self._deciding = False

    @staticmethod
    def _is_straight(step: Step, classes: Classes, own: set[str]) -> bool:
        kind = classes.of(step)
        if kind == "change":
            changed = uses(step) if isinstance(step, Effect) else names(getattr(getattr(step, "value", None), "func", None))
            return bool(changed & own) and not isinstance(step, Branch)
        if kind == "mutation":
            return True  # what is changed is known when the region that calls this is traced
        if kind == "new":
            return not (isinstance(step, Effect) or (isinstance(step, Compute) and step.kind in ("call", "inplace")))
        if isinstance(step, Loop) and step.items is None:
            return False
        return kind not in ("call", "read") and "object" not in step.seen.kinds

    def _classes(self) -> Classes:
        assert self.source is not None
        return Classes(self.source.steps, lambda callee: isinstance(callee, Function) and callee.is_straight())

    def indexing_parameters(self) -> frozenset[str]:
        """The parameters of a straight function that only index tensors."""
        if self.source is None or self._deciding:
            return frozenset()
        self._deciding = True
        try:
            return only_index(walk(self.source.steps), self._classes()) & {each.arg for each in _parameters(self.source.arguments)}
        finally:
            self._deciding = False

    def parameter(self, place: int | str, *, bound: bool) -> str | None:
        """The name of the parameter that a call gives by position or by name. bound: the first one comes by itself."""
        if self.source is None or isinstance(place, str):
            return place if isinstance(place, str) else None
        found = [*self.source.arguments.posonlyargs, *self.source.arguments.args][bound:]
        return found[place].arg if place < len(found) else None

    def parameters(self) -> list[str]:
        """The names of those that a call gives by position."""
        if self.source is None:
            return []
        return [each.arg for each in (*self.source.arguments.posonlyargs, *self.source.arguments.args)]

    def _changes_more(self) -> bool:
        """Whether a call may change a container that is not its own; then its results are not kept for other callers."""
        if self._deciding:
            return False
        assert self.source is not None
        self._deciding = True
        try:
            classes = self._classes()
            own = self._own_containers(self.source)
            for step in walk(self.source.steps):
                kind = classes.of(step)
                if kind == "mutation" or (kind in ("change", "new") and not self._is_straight(step, classes, own)):
                    return True
                if any(isinstance(each, Function) and each is not self and each.changes_arguments() for each in step.seen.callees):
                    return True
            return False
        finally:
            self._deciding = False

    def changes_arguments(self) -> bool:
        """As `_changes_more`, once for each writing of the code."""
        if self._changes is None:
            self._changes = self.source is None or self._changes_more()
        return self._changes

    @staticmethod
    def _own_containers(source: Source) -> set[str]:
        """Names that are bound to containers made here, and to nothing else."""
        made, other = set[str](), {each.arg for each in _parameters(source.arguments)}
        for step in walk(source.steps):
            if isinstance(step, Compute) and step.kind == "display":
                made.add(step.target)
            else:
                other |= defines(step)
        return made - other

    # --- its code ---------------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Writes the code anew, by what is known now."""
        self._changes = None
        if self.source is not None:
            self._write(self.source)

    def _write(self, source: Source) -> None:
        local = {each.arg for each in _parameters(source.arguments)}
        local |= {name for step in walk(source.steps) for name in defines(step)}
        local |= {name for name in self._names if kind_of(self.original.__globals__.get(name, self._find)) in DATA}
        self.emitted = emitted = Emitter(source.steps, self._classes(), local, self._own_containers(source), self._region).emitted
        made = self._built(source, emitted)
        self.entry = made[0]
        for code, (region, _) in zip(made[1:], emitted.regions.values(), strict=True):
            region.code = code
        self.asks = bool(made[0].__code__.co_flags & 0x20)  # CO_GENERATOR

    def _region(
        self, steps: tuple[Step, ...], inputs: tuple[str, ...], outputs: tuple[str, ...], indices: frozenset[int], tensors: int
    ) -> Region:
        key = (steps, inputs, outputs, indices)
        found = self.regions.get(key)
        if found is None:
            lines = sorted({each.line for each in steps})
            place = f"{lines[0]}" if lines[0] == lines[-1] else f"{lines[0]}-{lines[-1]}"
            found = self.regions[key] = Region(f"{self.name}:{place}", lines[0], self.file, _not_written, inputs, indices, tensors)
        return found

    def _built(self, source: Source, emitted: Emitted) -> list[FunctionType]:
        """The function and its regions, compiled with the user's lines, in the user's globals and closure."""
        original = self.original
        helpers: dict[str, object] = {**_HELPERS, "_disc_straight": straight(self._callable_in_region), **emitted.environment}
        helpers |= source.inner
        cells = dict(zip(original.__code__.co_freevars, original.__closure__ or (), strict=True))
        # not by the user's name, which inside is the user's function: it may call itself
        definition = ast.FunctionDef("_disc_entry", _with_runtime(source.arguments), emitted.body, [], None)
        functions = [definition, *(function for _, function in emitted.regions.values())]
        returned = ast.Return(ast.Tuple([ast.Name(each.name, ast.Load()) for each in functions], ast.Load()))
        parameters = [ast.arg(name) for name in (*helpers, *cells)]
        factory = ast.FunctionDef("_disc_make", ast.arguments([], parameters, None, [], [], None, []), [*functions, returned], [], None)
        module = ast.Module([factory], [])
        for each in ast.walk(module):
            if isinstance(each, ast.stmt | ast.expr | ast.arg | ast.keyword) and not hasattr(each, "lineno"):
                each.lineno = each.end_lineno = source.line
                each.col_offset = each.end_col_offset = 0
        scope: dict[str, Any] = {}
        exec(compile(module, source.file, "exec"), original.__globals__, scope)
        made = scope["_disc_make"](*helpers.values(), *(None for _ in cells))
        return [self._with_cells(each, cells, number == 0) for number, each in enumerate(made)]

    def _with_cells(self, made: FunctionType, cells: dict[str, CellType], itself: bool) -> FunctionType:
        """The function with the user's own closure cells, whose values may change, and its defaults."""
        own = dict(zip(made.__code__.co_freevars, made.__closure__ or (), strict=True))
        closure = tuple(cells.get(name, cell) for name, cell in own.items())
        # PyTorch notes lines of functions called `forward` alone
        code = made.__code__.replace(co_name=self.original.__name__ if itself else "forward")
        built = FunctionType(code, self.original.__globals__, code.co_name, None, closure)
        if itself:
            built.__defaults__, built.__kwdefaults__ = self.original.__defaults__, self.original.__kwdefaults__
        return built

    def _callable_in_region(self, callee: object) -> bool:
        category = category_of(callee)
        if category == "function":
            function = self._find(callee)
            return function is not None and function.is_straight()
        return category in ("torch", "sum", "pure", "maker", "given")


def _reads_data(step: Step, parameters: set[str]) -> bool:
    """Whether it takes numbers or texts out of a list or dict that is given, or makes a tensor of data: a region that did so would have
    them as constants, a block for each."""
    if isinstance(step, Compute) and step.seen.categories & {"given"}:
        return True
    part = step.value if isinstance(step, Compute) and isinstance(step.value, ast.Subscript) else None
    whole = step.items if isinstance(step, Loop) else part.value if part is not None else None
    return isinstance(whole, ast.Name) and whole.id in parameters and "container" in step.seen.kinds


def _not_written(*arguments: object) -> tuple[object, ...]:
    raise AssertionError("a region without code")


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    single = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *single]


def _with_runtime(arguments: ast.arguments) -> ast.arguments:
    """The parameters behind one for the runtime; the defaults are set by `_with_cells`."""
    made = copy.deepcopy(arguments)
    (made.posonlyargs or made.args).insert(0, ast.arg(RUNTIME))
    for each in _parameters(made):
        each.annotation = None
    made.defaults = [ast.Constant(None) for _ in made.defaults]
    made.kw_defaults = [ast.Constant(None) if each is not None else None for each in made.kw_defaults]
    return made


# --- what rewritten code calls -----------------------------------------------------------------------------------------------------


def _force(value: Any) -> Any:
    return value.tensor() if type(value) is Row else value


def _note(seen: Seen, value: Any) -> Any:
    value = _force(value)
    seen.note(kind_of(value))
    return value


def _fresh(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _isinstance(value: object, kinds: Any) -> bool:
    return isinstance(_LIKE if type(value) is Row else value, kinds)


_LIKE = torch.empty(0)
_HELPERS: dict[str, object] = {
    "_disc_force": _force, "_disc_note": _note, "_disc_fresh": _fresh, "_disc_isinstance": _isinstance,
    **ORDERED, **MATCHING,
}  # fmt: skip
