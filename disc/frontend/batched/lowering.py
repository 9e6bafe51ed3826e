"""From a function's rewritten code (`emit.py`) to instructions of a skeleton, which `ral/src/tasks/` runs without Python (ACROBAT,
sections 4 and 6: its control flow is compiled ahead of time, too).

The code is straight-line assignments between `if`, `for`, `while True`, so that each statement becomes a few instructions over registers,
one register a name. What has no instruction raises `NeedsPython` with the user's line.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from disc.artifact.skeletons import BINARY, BUILTINS, COMPARE, METHODS, READS, TAGS
from disc.frontend.batched.emit import CALL, READ, RUNTIME
from disc.frontend.batched.functions import Function
from disc.frontend.batched.instructions import Instructions, NeedsPython
from disc.frontend.batched.regions import Region
from disc.frontend.batched.skeleton_values import Constants
from disc.frontend.batched.steps import Compute
from disc.ral.skeletal import dtype_number

_FUNCTIONS = {getattr(builtins, name): number for number, name in enumerate(BUILTINS) if hasattr(builtins, name)}
_ORDERED = {"_disc_sorted": "sorted_by", "_disc_least": "min_by", "_disc_greatest": "max_by"}
_MATCHED = {"_disc_mapping": dict, "_disc_sequence": (list, tuple, range)}
_DATA = (torch.tensor, torch.as_tensor)
# Dtypes of tensors that a skeleton makes of numbers; None: that of the numbers.
_MADE = {None: -1} | {getattr(torch, name): dtype_number(each) for name, each in
                      (("bool", "i1"), ("int64", "i64"), ("float32", "f32"), ("float64", "f64"))}  # fmt: skip
_MASKS: dict[object, int] = {bool: 1 << TAGS.index("bool"), int: 1 << TAGS.index("int") | 1 << TAGS.index("bool"),
                             float: 1 << TAGS.index("float"), str: 1 << TAGS.index("text"), list: 1 << TAGS.index("list"),
                             tuple: 1 << TAGS.index("tuple"), range: 1 << TAGS.index("range"), dict: 1 << TAGS.index("dict"),
                             type(None): 1 << TAGS.index("none")}  # fmt: skip


class Lowering:
    """The functions that a model's skeleton has. given: how many parameters of the model an instance gives; where it has others, the first
    function calls it with their defaults. node_mask: of a class that nodes are of → the bits of `is_instance`; tensors: the class of
    tensors; methods: names of those that classes of nodes have. partial: steps that have not run yet fail, rather than being no
    instructions."""

    def __init__(
        self, constants: Constants, given: int, node_mask: Callable[[type], int], tensor: type, methods: set[str], *, partial: bool
    ) -> None:
        self.partial = partial
        self.given = given
        self.constants = constants
        self.names: dict[str, int] = {}
        self.functions: dict[Function, int] = {}
        self.regions: dict[Region, int] = {}
        self.code: list[FunctionCode | EntryCode] = []
        self.read: list[tuple[type, str, object]] = []  # attributes of classes that became constants
        self.node_mask = node_mask
        self.methods = methods
        self.asked: set[str] = set()  # attributes whose presence is asked
        self.tensor = tensor
        self._entries = 0

    def lower_model(self, root: Function, target: object) -> None:
        """The function that instances are given to, with all that it calls; target: what a call of the model calls. Raises NeedsPython."""
        self._entries = int(has_more_parameters(root, self.given))
        if self._entries:
            self.code.append(EntryCode(self, root, target))
        self.lower(root)

    def lower(self, function: Function) -> int:
        """The number of a function, with all that it calls. Raises NeedsPython."""
        number = self.function(function)
        while len(self.code) < len(self.functions) + self._entries:
            self.code.append(FunctionCode(self, [*self.functions][len(self.code) - self._entries]))
        return number

    def function(self, function: Function) -> int:
        return self.functions.setdefault(function, len(self.functions) + self._entries)

    def name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def region(self, region: Region) -> int:
        return self.regions.setdefault(region, len(self.regions))


def parameters_of(function: Function) -> list[str]:
    """The names of those that a call can give, in the order of the registers."""
    assert function.source is not None
    return [*function.parameters(), *(each.arg for each in function.source.arguments.kwonlyargs)]


def has_more_parameters(root: Function, given: int) -> bool:
    """Whether the model has parameters that an instance does not give."""
    return root.source is not None and len(parameters_of(root)) > given


def not_understood(function: Function) -> NeedsPython:
    """The error that says why a function without steps has none."""
    assert function.refusal is not None
    return NeedsPython(function.refusal.reason, function.file, function.refusal.line or function.original.__code__.co_firstlineno)


def defaults_of(function: Function) -> dict[str, Any]:
    """The values of parameters that a call need not give."""
    names, original = function.parameters(), function.original
    defaults = original.__defaults__ or ()
    return {**dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)), **(original.__kwdefaults__ or {})}


class EntryCode(Instructions):
    """Calls the model with the defaults of the parameters that an instance does not give. target: what is called."""

    def __init__(self, whole: Lowering, root: Function, target: object) -> None:
        super().__init__(whole.constants, root, parameters_of(root)[: whole.given])
        self.memo = False  # as the model's own calls have one
        defaults = defaults_of(root)
        others = [self.constant(defaults[name]) for name in parameters_of(root)[whole.given :]]
        result = self.fresh()
        self.op("call", result, self.constant(target), 1 + len(others), whole.given - 1, *others)
        self.op("return", result)


class FunctionCode(Instructions):
    """One function's instructions."""

    def __init__(self, whole: Lowering, function: Function) -> None:
        if function.source is None or function.emitted is None:
            raise not_understood(function)
        super().__init__(whole.constants, function, parameters_of(function))
        self._whole, self._function = whole, function
        if function.source.arguments.vararg or function.source.arguments.kwarg:
            raise self.refused("a parameter that takes any number of arguments")
        self._calls = function.emitted.calls
        self._environment = function.emitted.environment
        stored = {
            each.id
            for part in function.emitted.body
            for each in ast.walk(part)
            if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)
        }
        self._registers = {name: place for place, name in enumerate(dict.fromkeys([*self.parameters, *sorted(stored)]))}
        self.count = len(self._registers)
        self._loops: list[tuple[int, list[int]]] = []  # (place of the next iteration, jumps to the end)
        self._texts = self._words(function.emitted.body)
        self._dtypes = self._dtypes_in(function.emitted.body)
        self._block(function.emitted.body)
        self.op("return", self.constant(None))

    # --- statements -------------------------------------------------------------------------------------------------------------

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for each in statements:
            self.line = getattr(each, "lineno", self.line)
            method = getattr(self, f"_{type(each).__name__.lower()}", None)
            if method is None:
                raise self.refused(f"`{ast.unparse(each)}`")
            place, registers = len(self.code), self.count
            try:
                method(each)
            except NeedsPython as needed:
                if not (needed.new and self._whole.partial):
                    raise
                del self.code[place:]
                self.count = registers
                self.lines = [each for each in self.lines if each[0] < place]
                self.op("raise", self._error(NotImplementedError, [ast.Constant("a step that has not run")]))

    def _pass(self, node: ast.Pass) -> None:
        del node

    def _delete(self, node: ast.Delete) -> None:
        """A name that nobody reads from then on, or a mistake that PyTorch would find."""
        del node

    def _expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and _is_runtime(node.value, "changing"):
            return  # what is changed is a list that the model made: others have no instruction
        self._value(node.value)

    def _assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if isinstance(node.value, ast.Call) and _is_runtime(node.value, "region"):
            self._region(node.value, cast("ast.Tuple", target))
        elif isinstance(target, ast.Name):
            if target.id not in self._texts:
                self._value(node.value, node, self._registers[target.id])
        elif isinstance(target, ast.Subscript):
            owner, index = self._value(target.value), self._index(target.slice)
            self.op("set_item", owner, index, self._value(node.value))
        else:
            self._unpack(target, self._value(node.value))

    def _unpack(self, target: ast.expr, value: int) -> None:
        if isinstance(target, ast.Name):
            self.op("move", self._registers[target.id], value)
            return
        if not isinstance(target, ast.Tuple | ast.List):
            raise self.refused(f"a value is bound to `{ast.unparse(target)}`")
        parts = [self._registers[each.id] if isinstance(each, ast.Name) else self.fresh() for each in target.elts]
        self.op("unpack", value, len(parts), *parts)
        for each, part in zip(target.elts, parts, strict=True):
            if not isinstance(each, ast.Name):
                self._unpack(each, part)

    def _augassign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            raise self.refused(f"`{ast.unparse(node)}`")
        if not isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow):
            raise self.refused(f"`{ast.unparse(node)}`")
        register, value = self._registers[node.target.id], self._value(node.value)
        if isinstance(node.op, ast.Add):  # a list is changed itself
            tested = self.fresh()
            self.op("is_instance", tested, register, _MASKS[list], 0)
            other = self.jump("jump_if_not", tested)
            self.op("method", self.fresh(), register, METHODS.index("extend"), 1, value)
            end = self.jump("jump")
            self.here(other)
            self.op("binary", register, BINARY.index("add"), register, value)
            self.here(end)
            return
        self.op("binary", register, BINARY.index(type(node.op).__name__.lower()), register, value)

    def _if(self, node: ast.If) -> None:
        other = self.jump("jump_if_not", self._value(node.test))
        self._block(node.body)
        if not node.orelse:
            self.here(other)
            return
        end = self.jump("jump")
        self.here(other)
        self._block(node.orelse)
        self.here(end)

    def _while(self, node: ast.While) -> None:
        start = len(self.code)
        self._loops.append((start, []))
        self._block(node.body)
        self.op("jump", start)
        self.here(*self._loops.pop()[1])

    def _for(self, node: ast.For) -> None:
        iterator = self.fresh()
        self.op("iter", iterator, self._value(node.iter))
        start = len(self.code)
        self._loops.append((start, []))
        end = self.jump("next", self._registers[cast("ast.Name", node.target).id], iterator)
        self._block(node.body)
        self.op("jump", start)
        self.here(end)
        jumps = self._loops.pop()[1]
        self._block(node.orelse)
        self.here(*jumps)

    def _break(self, node: ast.Break) -> None:
        del node
        self._loops[-1][1].append(self.jump("jump"))

    def _continue(self, node: ast.Continue) -> None:
        del node
        self.op("jump", self._loops[-1][0])

    def _return(self, node: ast.Return) -> None:
        self.op("return", self._value(node.value) if node.value is not None else self.constant(None))

    def _raise(self, node: ast.Raise) -> None:
        if node.exc is None:
            raise self.refused("`raise` without an error")
        value = self._found(node.exc) if isinstance(node.exc, ast.Name) and node.exc.id not in self._registers else None
        if isinstance(value, type):
            self.op("raise", self._error(value, []))
        else:
            self.op("raise", self._value(node.exc))

    # --- blocks -----------------------------------------------------------------------------------------------------------------

    def _region(self, call: ast.Call, targets: ast.Tuple) -> None:
        region = self._environment[cast("ast.Name", call.args[0]).id]
        assert isinstance(region, Region)
        if region.irregular:
            reason = next(iter(region.irregular))
            raise NeedsPython(reason, region.file, region.line)
        inputs = [self._value(each) for each in cast("ast.Tuple", call.args[1]).elts]
        outputs = [self._registers[cast("ast.Name", each).id] for each in targets.elts]
        self.op("call_block", self._whole.region(region), len(inputs), *inputs, len(outputs), *outputs)

    # --- expressions ------------------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr, place: ast.stmt | None = None, target: int | None = None) -> int:
        """The register that has the value: `target`, where one is given. place: the statement."""
        if isinstance(node, ast.Name) and node.id in self._registers:
            if node.id in self._texts:
                raise self.refused(f"`{self._texts[node.id]}`")
            if target is None:
                return self._registers[node.id]
            self.op("move", target, self._registers[node.id])
            return target
        if isinstance(node, ast.Name | ast.Constant):
            return self.constant(self._found(node), target)
        register = self.fresh() if target is None else target
        method = getattr(self, f"_{type(node).__name__.lower()}_value", None)
        if method is None:
            raise self.refused(f"`{ast.unparse(node)}`")
        if isinstance(node, ast.Yield):
            self._yield_value(node, register, place)
        else:
            method(node, register)
        return register

    def _found(self, node: ast.expr) -> Any:
        """What a name means that the function does not bind, or a constant."""
        if isinstance(node, ast.Constant):
            return node.value
        assert isinstance(node, ast.Name)
        original = self._function.original
        cells = dict(zip(original.__code__.co_freevars, original.__closure__ or (), strict=True))
        if self._function.source is not None and node.id in self._function.source.inner:
            return self._function.source.inner[node.id]
        if node.id in cells:
            return cells[node.id].cell_contents
        if node.id in original.__globals__:
            return original.__globals__[node.id]
        if not hasattr(builtins, node.id):
            raise self.refused(f"the name `{node.id}` means nothing")
        return getattr(builtins, node.id)

    def _static(self, node: ast.expr) -> Any:
        """What a name that the function does not bind means; None for others."""
        return self._found(node) if isinstance(node, ast.Name) and node.id not in self._registers else None

    def _attribute_value(self, node: ast.Attribute, register: int) -> None:
        owner = self._static(node.value)
        if owner is math or isinstance(owner, type):
            value = getattr(owner, node.attr)
            if isinstance(owner, type):
                self._whole.read.append((owner, node.attr, value))
            self.constant(value, register)
            return
        self.op("field", register, self._value(node.value), self._whole.name(node.attr))

    def _subscript_value(self, node: ast.Subscript, register: int) -> None:
        owner = self._value(node.value)
        if isinstance(node.slice, ast.Slice):
            bounds = [
                self._value(each) if each is not None else self.constant(None)
                for each in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            self.op("slice", register, owner, *bounds)
        else:
            self.op("item", register, owner, self._index(node.slice))

    def _index(self, node: ast.expr) -> int:
        if not isinstance(node, ast.Name | ast.Constant | ast.Tuple):  # a tuple may be a key of a dict
            raise self.refused(f"the index `{ast.unparse(node)}`")
        return self._value(node)

    def _binop_value(self, node: ast.BinOp, register: int) -> None:
        name = type(node.op).__name__.lower()
        if name not in BINARY:
            raise self.refused(f"`{ast.unparse(node)}`")
        self.op("binary", register, BINARY.index(name), self._value(node.left), self._value(node.right))

    def _unaryop_value(self, node: ast.UnaryOp, register: int) -> None:
        if isinstance(node.op, ast.Not):
            self.op("not", register, self._value(node.operand))
        elif isinstance(node.op, ast.USub):
            self.op("negative", register, self._value(node.operand))
        else:
            raise self.refused(f"`{ast.unparse(node)}`")

    def _compare_value(self, node: ast.Compare, register: int) -> None:
        name = type(node.ops[0]).__name__.lower()
        self.op("compare", register, COMPARE.index(name), self._value(node.left), self._value(node.comparators[0]))

    def _list_value(self, node: ast.List, register: int) -> None:
        self._display("list", node.elts, register)

    def _tuple_value(self, node: ast.Tuple, register: int) -> None:
        self._display("tuple", node.elts, register)

    def _dict_value(self, node: ast.Dict, register: int) -> None:
        if None in node.keys:
            raise self.refused("a dict with the items of another")
        values = [self._value(part) for pair in zip(node.keys, node.values, strict=True) for part in pair if part is not None]
        self.op("dict", register, len(values), *values)

    def _display(self, op: str, parts: Sequence[ast.expr], register: int) -> None:
        if not any(isinstance(each, ast.Starred) for each in parts):
            values = [self._value(each) for each in parts]
            self.op(op, register, len(values), *values)
            return
        made = self.fresh()
        self.op("list", made, 0)
        for each in parts:
            method, part = ("extend", each.value) if isinstance(each, ast.Starred) else ("append", each)
            self.op("method", self.fresh(), made, METHODS.index(method), 1, self._value(part))
        if op == "tuple":
            self.op("builtin", register, BUILTINS.index("tuple"), 1, made)
        else:
            self.op("move", register, made)

    def _yield_value(self, node: ast.Yield, register: int, place: ast.stmt | None) -> None:
        assert isinstance(node.value, ast.Tuple)
        number, *parts = node.value.elts
        request = cast("ast.Constant", number).value
        if request == READ:
            how = cast("ast.Constant", parts[0]).value
            self.op("read", register, READS.index(str(how)), self._value(parts[1]))
        elif request == CALL:
            assert place is not None
            self._call_user(self._calls[place], register)
        elif isinstance(kind := self._static(parts[1]), type) and issubclass(kind, BaseException):
            self._error(kind, cast("ast.Tuple", parts[2]).elts, register)
        else:
            raise NeedsPython("a call that has not run", self.file, self.line, new=True)

    # --- calls ------------------------------------------------------------------------------------------------------------------

    def _call_user(self, step: Compute, register: int) -> None:
        called = cast("ast.Call", step.value)
        callees = [each for each in step.seen.callees if isinstance(each, Function)]
        if step.seen.categories != {"function"} or not callees:
            raise self.refused(f"the call `{ast.unparse(called)}`")
        for each in callees:
            self._whole.function(each)
        bound = step.seen.bound == {True}
        if len(step.seen.bound) != 1 or any(isinstance(each, ast.Starred) for each in called.args):
            raise self.refused(f"the call `{ast.unparse(called)}`")
        arguments = [self._value(each) for each in self._given(called, callees, bound)]
        if isinstance(called.func, ast.Attribute) and called.func.attr in self._whole.methods:
            self.op("call_method", register, self._value(called.func.value), self._whole.name(called.func.attr), len(arguments), *arguments)
        else:
            self.op("call", register, self._value(called.func), len(arguments), *arguments)

    def _given(self, called: ast.Call, callees: Sequence[Function], bound: bool) -> list[ast.expr]:
        """The arguments by position, with defaults; all callees must take the same."""
        forms: list[list[ast.expr]] = []
        for function in callees:
            names, rest = parameters_of(function)[bound:], defaults_of(function)
            given: dict[str, ast.expr] = dict(zip(names, called.args, strict=False))
            given |= {str(each.arg): each.value for each in called.keywords}
            if (
                len(called.args) > len(function.parameters()) - bound
                or not given.keys() <= set(names)
                or any(name not in given and name not in rest for name in names)
            ):
                raise self.refused(f"the arguments of `{ast.unparse(called)}`")
            forms.append([given[name] if name in given else ast.Constant(rest[name]) for name in names])
        if any(list(map(ast.dump, each)) != list(map(ast.dump, forms[0])) for each in forms):
            raise self.refused(f"`{ast.unparse(called)}` calls functions with different parameters")
        return forms[0]

    def _call_value(self, node: ast.Call, register: int) -> None:
        if _is_runtime(node, "owned"):
            self._value(node.args[0], None, register)
            return
        if isinstance(node.func, ast.Name) and node.func.id.startswith("_disc_"):
            self._helper(node, register)
            return
        if isinstance(node.func, ast.Attribute) and not isinstance(self._static(node.func.value), type(math)):
            self._method(node, node.func, register)
            return
        callee = self._callee(node.func)
        if isinstance(callee, type) and issubclass(callee, BaseException):
            self._error(callee, node.args, register)
            return
        if callee in (getattr, hasattr):
            self._asked_by_text(node, callee is hasattr, register)
            return
        if any(callee is each for each in _DATA):
            self._tensor(node, register)
            return
        names = {str(each.arg): each.value for each in node.keywords}
        number = _FUNCTIONS.get(callee) if callee is not None else None
        if callee is zip and "strict" in names:
            strict = names.pop("strict")
            number = BUILTINS.index("zip_strict") if isinstance(strict, ast.Constant) and strict.value is True else number
        extra = [names.pop("start")] if callee in (enumerate, sum) and "start" in names else []
        if number is None or names:
            raise self.refused(f"the call `{ast.unparse(node)}`")
        given = [*node.args, *extra]
        if any(isinstance(each, ast.Starred) for each in given):
            whole = self.fresh()
            self._display("list", given, whole)
            self.op("builtin_of", register, number, whole)
            return
        values = [self._value(each) for each in given]
        self.op("builtin", register, number, len(values), *values)

    def _callee(self, node: ast.expr) -> Any:
        """What is called, where that is a name that the function does not bind, or one of a Python module; None for others."""
        if isinstance(node, ast.Attribute):
            return getattr(self._static(node.value), node.attr, None)
        return self._static(node)

    def _tensor(self, node: ast.Call, register: int) -> None:
        """`torch.tensor(data)`, `torch.tensor(data, dtype=torch.float32)`."""
        names = {str(each.arg): each.value for each in node.keywords}
        given = names.pop("dtype", None)
        dtypes = [_MADE.get(each) for each in (torch.get_default_dtype(), self._dtype(given))]
        if len(node.args) != 1 or isinstance(node.args[0], ast.Starred) or names or None in dtypes:
            raise self.refused(f"the call `{ast.unparse(node)}`")
        numbers = [self.constant(each) for each in dtypes]
        self.op("builtin", register, BUILTINS.index("tensor"), 3, self._value(node.args[0]), *numbers)

    def _dtype(self, node: ast.expr | None) -> Any:
        """The dtype that an argument is, None where there is none; no key of `_MADE` where the function does not say it itself."""
        if node is None or isinstance(node, ast.Constant):
            return node and node.value
        found = self._dtypes.get(node.id) if isinstance(node, ast.Name) else None
        found = self._static(node) if found is None else found
        return found if isinstance(found, torch.dtype) else ...

    def _asked_by_text(self, node: ast.Call, tests: bool, register: int) -> None:
        """`hasattr(x, "name")`, `getattr(x, "name")`, `getattr(x, "name", default)`."""
        text = node.args[1] if len(node.args) in ((2,) if tests else (2, 3)) and not node.keywords else None
        word = text.value if isinstance(text, ast.Constant) else None
        if not isinstance(word, str) or isinstance(self._static(node.args[0]), type | type(math)):
            raise self.refused(f"the call `{ast.unparse(node)}`")
        owner, name = self._value(node.args[0]), self._whole.name(word)
        if len(node.args) == 2 and not tests:
            self.op("field", register, owner, name)
            return
        self._whole.asked.add(word)
        found = register if tests else self.fresh()
        self.op("has", found, owner, name)
        if tests:
            return
        other = self.jump("jump_if_not", found)
        self.op("field", register, owner, name)
        end = self.jump("jump")
        self.here(other)
        self._value(node.args[2], None, register)
        self.here(end)

    def _error(self, kind: type, words: Sequence[ast.expr], target: int | None = None) -> int:
        register = self.fresh() if target is None else target
        values = [self.constant(kind.__name__)]
        for each in words:
            text = self._texts.get(each.id) if isinstance(each, ast.Name) else None
            values.append(self.constant(text) if text is not None else self._value(each))
        self.op("builtin", register, BUILTINS.index("error"), len(values), *values)
        return register

    def _method(self, node: ast.Call, called: ast.Attribute, register: int) -> None:
        if called.attr not in METHODS or node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
            raise self.refused(f"the call `{ast.unparse(node)}`")
        owner, values = self._value(called.value), [self._value(each) for each in node.args]
        self.op("method", register, owner, METHODS.index(called.attr), len(values), *values)

    def _helper(self, node: ast.Call, register: int) -> None:
        name = cast("ast.Name", node.func).id
        if name in ("_disc_note", "_disc_force"):
            raise NeedsPython("a step that has not run", self.file, self.line, new=True)
        if name in _ORDERED:
            values = [self._value(each) for each in node.args]
            self.op("builtin", register, BUILTINS.index(_ORDERED[name]), len(values), *values)
            return
        if name in _MATCHED:
            kinds = _MATCHED[name]
        elif name == "_disc_isinstance":
            kinds = self._static(node.args[1])
        else:
            raise self.refused(f"`{ast.unparse(node)}`")
        tags = nodes = 0
        for each in kinds if isinstance(kinds, tuple) else (kinds,):
            if not isinstance(each, type):
                raise self.refused(f"`{ast.unparse(node)}`")
            tags |= _MASKS.get(each, 0) | (1 << TAGS.index("row") if issubclass(self._whole.tensor, each) else 0)
            nodes |= self._whole.node_mask(each)
        self.op("is_instance", register, self._value(node.args[0]), tags, nodes)

    def _dtypes_in(self, body: Sequence[ast.stmt]) -> dict[str, torch.dtype]:
        """Names that the code binds once, to a dtype: `torch.float32`."""
        bound = [each for part in body for each in ast.walk(part) if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)]
        count = Counter(cast("ast.Name", each.targets[0]).id for each in bound)
        values = {cast("ast.Name", each.targets[0]).id: each.value for each in bound}
        found = {name: self._callee(value) for name, value in values.items() if isinstance(value, ast.Attribute) and count[name] == 1}
        return {name: value for name, value in found.items() if isinstance(value, torch.dtype)}

    @staticmethod
    def _words(body: Sequence[ast.stmt]) -> dict[str, str]:
        """Names of texts with values in them, as they are written: such texts are only made for errors."""
        found: dict[str, str] = {}
        for part in body:
            for each in ast.walk(part):
                value = each.value if isinstance(each, ast.Assign) else None
                if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "_disc_note":
                    value = value.args[1]  # that has not run
                if isinstance(each, ast.Assign) and isinstance(value, ast.JoinedStr) and isinstance(each.targets[0], ast.Name):
                    found[each.targets[0].id] = ast.unparse(value).replace("_disc_force", "")
        return found


def _is_runtime(node: ast.Call, name: str) -> bool:
    called = node.func
    return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == RUNTIME and called.attr == name
