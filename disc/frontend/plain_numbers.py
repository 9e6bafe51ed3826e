"""What code asks of a dynamic size that only a plain number has: its text, its hash, its bits, while a module is exported.

    f"{x.shape[0]}x{x.shape[1]}"        "s77xs27" of PyTorch's: here "4x6", which fixes both dims
    {4: a, 8: b}[x.shape[0]]            a TypeError of PyTorch's: here a, which fixes the dim
    print(x.shape)                      fixes nothing: what is only printed, logged or raised decides no value

What PyTorch has no symbolic form of is made of what it has (`n & 7` is `n % 8`), or fixes the dim, too. All of it is for code that is not
PyTorch's; hashes are for the user's own, since that of libraries may rely on the TypeError, as einops does.
"""

from __future__ import annotations

import ast
import functools
import json
import linecache
import operator
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import cast

import torch

from disc.frontend.locations import INSTALLED, OURS, STANDARD, TORCH, is_standard
from disc.frontend.replaced import replaced
from disc.ir.python_source import parse_source

_TRACERS = (TORCH, OURS)
KINDS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PYTHONS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
Method = Callable[..., object]
_SAYING = tuple(STANDARD + each for each in ("logging" + os.sep, "warnings.py"))
_SAYS = frozenset({"print", "log", "debug", "info", "warning", "warn", "warning_once", "error", "critical", "exception"})
_SAYERS = frozenset({"logging", "logger", "log", "warnings"})  # of whom these are methods, in small letters
_WRITTEN = (ast.JoinedStr, ast.Constant, ast.FormattedValue, ast.BinOp, ast.Attribute, ast.Name, ast.Tuple)


def plain(value: object) -> object:
    """A symbolic number as it is in the example, which from now on it is in every call, of NumPy's type where it is one of NumPy's numbers;
    anything else as it is."""
    if isinstance(value, torch.SymInt):
        return kind_of(value)(value.node.guard_int("", 0))
    if isinstance(value, torch.SymFloat):
        return kind_of(value)(value.node.guard_float("", 0))
    return bool(value) if isinstance(value, torch.SymBool) else value


def kind_of(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> Callable[[object], object]:
    """The class of the plain number; symbols of NumPy's numbers have a `dtype`."""
    dtype = getattr(value, "dtype", None)
    return dtype.type if dtype is not None else _PYTHONS[next(kind for kind in KINDS if isinstance(value, kind))]


@contextmanager
def plain_where_asked() -> Iterator[None]:
    """Within, symbolic numbers answer as above."""
    methods: dict[tuple[type, str], Method] = {}
    for kind in KINDS:
        methods |= {(kind, name): _text(getattr(kind, name)) for name in ("__str__", "__repr__")}
        methods[kind, "__format__"] = _text(kind.__format__)
        methods |= {(kind, "__getattribute__"): _attribute, (kind, "__copy__"): _itself, (kind, "__deepcopy__"): _itself}
    methods[torch.SymInt, "__hash__"] = _hash(torch.SymInt.__hash__)
    methods |= {(torch.SymInt, name): _arithmetic(name, form) for name, form in _FORMS.items()}
    methods |= {(torch.SymInt, name): _of_number(name) for name in ("bit_count", "to_bytes")}
    methods |= {(torch.SymBool, name): _of_truth(name, form) for name, form in _OF_TRUTHS.items()}
    parts: dict[tuple[type, str], object] = {
        (torch.SymInt, "real"): property(lambda n: n), (torch.SymInt, "numerator"): property(lambda n: n),
        (torch.SymInt, "imag"): 0, (torch.SymInt, "denominator"): 1,
        (torch.SymFloat, "real"): property(lambda n: n), (torch.SymFloat, "imag"): 0.0,
    }  # fmt: skip
    with replaced({**methods, **parts, (json.JSONEncoder, "default"): _of_json(json.JSONEncoder.default)}):
        yield


def _of_json(real: Method) -> Method:
    return lambda encoder, value: plain(value) if isinstance(value, KINDS) else real(encoder, value)


# --- texts and hashes -----------------------------------------------------------------------------------------------------------


def _text(real: Method) -> Method:
    name = real.__name__

    def text(value: object, *spec: str) -> object:
        frame = asking()
        if frame is None or _is_said(frame.f_code, frame.f_lasti):
            return real(value) if name != "__format__" else format(repr(value))
        known = plain(value)
        return format(known, *spec) if name == "__format__" else str(known) if name == "__str__" else repr(known)

    return text


def _hash(real: Method) -> Method:
    def hash_of(value: object) -> object:
        frame = asking()
        return real(value) if frame is None or frame.f_code.co_filename.startswith(INSTALLED) else hash(plain(value))

    return hash_of


def _attribute(value: object, name: str) -> object:
    """`n.__class__`, of which `isinstance` and patterns ask, too, and `functools.singledispatch`."""
    if name == "__class__":
        frame = asking()
        if frame is not None and not frame.f_code.co_filename.startswith(INSTALLED):
            return kind_of(cast("torch.SymInt", value))
    return object.__getattribute__(value, name)


def _itself(value: object, *_: object) -> object:
    return value


def asking() -> FrameType | None:
    """The code that asks a number, where it is none of PyTorch's or of this package; None, too, where Python's own only says it."""
    frame: FrameType | None = sys._getframe(2)
    if frame.f_code.co_filename.startswith(_TRACERS):  # nearly always
        return None
    while frame is not None and is_standard(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_SAYING):
            return None
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(_TRACERS):
        return None
    written = str(frame.f_globals.get("__name__", "torch")).partition(".")[0]  # code that PyTorch writes itself is in no module
    return None if frame.f_code.co_filename.startswith("<") and written in ("torch", "disc") else frame


def _is_said(code: CodeType, instruction: int) -> bool:
    """Whether what an instruction makes is only printed, logged, or by a name part of an error."""
    linecache.checkcache(code.co_filename)  # a module may have been written anew, and loaded
    return _is_said_in("".join(linecache.getlines(code.co_filename)), code, instruction)


@functools.lru_cache(maxsize=1024)
def _is_said_in(text: str, code: CodeType, instruction: int) -> bool:
    line, end, column, end_column = list(code.co_positions())[instruction // 2]
    tree = _tree(text)
    if tree is None or line is None or end is None or column is None or end_column is None:
        return False
    return _says(tree, (line, column), (end, end_column))


def _says(tree: ast.Module, start: tuple[int, int], end: tuple[int, int], through_name: bool = True) -> bool:
    """Also by a name of the function, which only such statements read. Errors that the function itself may catch do not count, nor what is
    made as it is raised: that ends the trace, unless who calls the function catches it and reads the text."""
    path = _around(tree, start, end)
    place = next((number for number in reversed(range(len(path))) if isinstance(path[number], ast.stmt)), None)
    if place is None:
        return False
    statement, before, inner = path[place], path[:place], path[place + 1 :]
    if isinstance(statement, ast.Raise | ast.Assert):
        is_said = isinstance(statement, ast.Raise) or statement.msg in inner
        return is_said and not through_name and not any(isinstance(each, ast.Try | ast.With) for each in before)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _is_saying(statement.value) and all(isinstance(each, _WRITTEN) or _is_text(each) for each in inner[1:])
    scope = next((each for each in reversed(before) if isinstance(each, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)), None)
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if not through_name or not isinstance(target, ast.Name) or not isinstance(scope, ast.FunctionDef):
        return False
    nodes = list(ast.walk(scope))
    names = [each for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
    if any(isinstance(each, ast.Global | ast.Nonlocal) for each in nodes) or any(each.id in ("locals", "eval", "exec") for each in names):
        return False
    read = [each for each in names if each.id == target.id]
    return bool(read) and all(_says(tree, *_span(each), through_name=False) for each in read)


def _is_saying(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in ("print", "warn") and not any(each.arg in ("file", None) for each in call.keywords)
    if not isinstance(function, ast.Attribute) or function.attr not in _SAYS:
        return False
    owner = function.value
    name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    return name.strip("_").lower() in _SAYERS


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr", "format")


def _around(tree: ast.AST, start: tuple[int, int], end: tuple[int, int]) -> list[ast.AST]:
    """The nodes that hold a place in a text, from the outermost on."""
    for each in ast.iter_child_nodes(tree):
        if not isinstance(each, ast.stmt | ast.expr):
            if found := _around(each, start, end):
                return [each, *found]
            continue
        first, last = _span(each)
        if first <= start and end <= last:
            return [each, *_around(each, start, end)]
    return []


def _span(node: ast.stmt | ast.expr) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)


@functools.lru_cache(maxsize=16)
def _tree(text: str) -> ast.Module | None:
    try:
        return parse_source(text)
    except (SyntaxError, ValueError):
        return None


# --- arithmetic -----------------------------------------------------------------------------------------------------------------


def _of_number(name: str) -> Method:
    return lambda value, *args, **kwargs: getattr(plain(value), name)(*args, **kwargs)


def _of_truth(name: str, form: Method) -> Method:
    """A method of conditions: of True and False, which are numbers to Python; PyTorch's own where it asks, or both are conditions."""
    real = getattr(torch.SymBool, name, None)
    symbolic = real is not None and name in _OF_CONDITIONS

    def method(value: torch.SymBool, *others: object) -> object:
        if asking() is None or (symbolic and isinstance(others[0], torch.SymBool)):
            return real(value, *others) if real is not None else NotImplemented
        return form(plain(value), *(plain(each) if isinstance(each, torch.SymBool) else each for each in others))

    return method


def _arithmetic(name: str, form: Method) -> Method:
    """A method of sizes: `form` of the method that there is and of the operands; where that is nothing, of plain numbers."""
    real = getattr(torch.SymInt, name, None)

    def method(value: torch.SymInt, *others: object) -> object:
        if asking() is None or not all(isinstance(each, int | torch.SymInt | None) for each in others):
            return real(value, *others) if real is not None else NotImplemented
        found = form(real, value, *others)
        return getattr(plain(value), name)(*map(plain, others)) if found is None else found

    return method


def _masked(real: Method | None, value: torch.SymInt, mask: object) -> object:
    """The last bits are a remainder, for negative numbers, too."""
    return value % (mask + 1) if type(mask) is int and mask >= 0 and mask & (mask + 1) == 0 else None


def _power(real: Method, value: torch.SymInt, *others: object) -> object:
    return real(value, *others) if len(others) == 1 and isinstance(others[0], int) else None


def _rounded(real: Method | None, value: torch.SymInt, digits: object = 0) -> object:
    """To tens, hundreds and so on for negative digits."""
    return value if isinstance(digits, int) and digits >= 0 else None


def _nothing(real: Method | None, value: torch.SymInt, *others: object) -> object:
    return None


_OF_CONDITIONS = ("__eq__", "__ne__", "__and__", "__or__")
_BINARY = ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "lshift", "rshift", "xor", "and", "or")
_OTHERS = ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "index")


def _reflected(form: Method) -> Method:
    return lambda truth, other: form(other, truth)


_OF_TRUTHS: dict[str, Method] = {
    **{name: getattr(operator, name) for name in (f"__{each}__" for each in (*_BINARY, *_OTHERS))},
    **{f"__r{name}__": _reflected(getattr(operator, f"__{name}__")) for name in _BINARY},
    "__divmod__": divmod, "__rdivmod__": _reflected(divmod), "__float__": float, "__round__": round,
}  # fmt: skip
_FORMS: dict[str, Method] = {
    "__and__": _masked, "__rand__": _masked, "__or__": _nothing, "__ror__": _nothing, "__xor__": _nothing, "__rxor__": _nothing,
    "__invert__": lambda real, value: -value - 1, "__abs__": lambda real, value: torch.sym_max(value, -value),
    "__pow__": _power, "__rpow__": _nothing, "__rlshift__": _nothing, "__round__": _rounded,
}  # fmt: skip
