"""`int(...)` and `float(...)` of a dynamic size, or of a tensor, and `len(...)` of a tensor, in a model's own code, while it is exported.

Python demands a plain number of these, by which torch.export fixes the dim to the example's size, and gives up at data. They
cannot be exchanged as functions of `math` are: types are more than functions. So the code of the user's functions calls `whole`, `real`
and `length` in their place:

    LOAD_GLOBAL  NULL + int          →    LOAD_GLOBAL  NULL + __disc_int__          (what loads it to be called)
    LOAD_GLOBAL  int                 →    LOAD_GLOBAL  __disc_int__                 (behind what loads `map` to be called)

`type` says of a symbolic number there what it says of a plain one. Code of installed packages is left as it is: it may tell the two apart.
"""

from __future__ import annotations

import builtins
import dis
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType

import torch
from torch import Tensor
from typing_extensions import TypeIs

from disc.frontend.model_functions import users_functions
from disc.frontend.numpy_numbers import of_python
from disc.frontend.plain_numbers import KINDS, kind_of, plain

LOAD_GLOBAL, EXTENDED_ARG = dis.opmap["LOAD_GLOBAL"], dis.opmap["EXTENDED_ARG"]
CACHE, IS_OP, LOAD_CONST = (dis.opmap[name] for name in ("CACHE", "IS_OP", "LOAD_CONST"))
MOST_NAMES = 128  # an instruction counts up to these in the one byte that it has


def conversions(told: Callable[[], None]) -> dict[str, Callable[..., object]]:
    """What is called in the place of functions of Python. told: is called where what they give of a number or a tensor
    is symbolic."""

    def whole(*args: object, **kwargs: object) -> object:
        if len(args) == 1 and isinstance(args[0], torch.SymInt | torch.SymFloat):
            told()
            return torch.sym_int(of_python(args[0]))
        if len(args) == 1 and not kwargs and _is_number(args[0]):
            told()
            return whole_number(args[0])
        return int(*args, **kwargs)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def real(*args: object) -> object:
        if len(args) == 1 and isinstance(args[0], torch.SymInt | torch.SymFloat):
            told()
            return torch.sym_float(of_python(args[0]))
        if len(args) == 1 and isinstance(args[0], torch.SymBool):
            return float(plain(args[0]))  # pyright: ignore[reportArgumentType]
        if len(args) == 1 and _is_number(args[0]):
            told()
            return args[0].to(torch.float64).item()
        return float(*args)  # pyright: ignore[reportArgumentType]

    def length(*args: object) -> object:
        if len(args) == 1 and isinstance(args[0], Tensor) and args[0].dim() and isinstance(args[0].shape[0], torch.SymInt):
            told()
            return args[0].shape[0]
        return len(*args)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def type_of(*args: object, **kwargs: object) -> object:
        if len(args) == 1 and isinstance(args[0], KINDS):
            return kind_of(args[0])
        return type(*args, **kwargs)  # pyright: ignore[reportArgumentType, reportCallIssue]

    return {"int": whole, "float": real, "len": length, "type": type_of}


def _is_number(value: object) -> TypeIs[Tensor]:
    """Whether it is a tensor that Python can make a number of."""
    return isinstance(value, Tensor) and not value.is_complex() and all(isinstance(size, int) and size == 1 for size in value.shape)


def whole_number(x: Tensor) -> object:
    """`int(x)`: towards zero, where it is a number that int64 has."""
    if x.is_floating_point():
        x = x.to(torch.float64)
        x = torch.ops.disc.check_finite(torch.where(x.abs() < 2.0**63, x, math.nan))
    return x.to(torch.int64).item()


@contextmanager
def converted(named: Sequence[object], forms: dict[str, Callable[..., object]]) -> Iterator[None]:
    """Within, the user's functions among `named` call these."""
    names = {name: f"__disc_{name}__" for name in forms}
    changed: list[tuple[FunctionType, CodeType]] = []
    for name, form in forms.items():
        setattr(builtins, names[name], form)
    try:
        for function in users_functions(named):
            called = {key: name for key, name in names.items() if key not in function.__globals__}
            code = _exchanged(function.__code__, called, "map" not in function.__globals__)
            if code is not function.__code__:
                changed.append((function, function.__code__))
                function.__code__ = code
        yield
    finally:
        for function, code in changed:
            function.__code__ = code
        # The names stay: another thread may be in the middle of a call of the other code, where they do what Python's own do.


def asks_for_identity(named: Sequence[object]) -> bool:
    """Whether the user's functions among `named` ask what something is, and not whether it is None: no symbolic truth is True
    or False. A truth may be asked elsewhere than where it is made."""
    return any(_asks_for_identity(each.__code__) for each in users_functions(named))


def _asks_for_identity(code: CodeType) -> bool:
    if any(name in ("is_", "is_not") for name in code.co_names):  # of `operator`
        return True
    if IS_OP in code.co_code[::2] and any(_is_identity(*pair) for pair in itertools.pairwise(dis.get_instructions(code))):
        return True
    return any(_asks_for_identity(each) for each in code.co_consts if isinstance(each, CodeType))


def _is_identity(before: dis.Instruction, step: dis.Instruction) -> bool:
    return step.opcode == IS_OP and not (before.opcode == LOAD_CONST and before.argval is None)


@functools.lru_cache(maxsize=1024)
def taken_symbolic(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions whose results only `torch.cond` or `torch._check` takes: in its call, or by a name that is used in such
    calls alone."""
    steps = list(dis.get_instructions(code))
    named = {_span(step)[0] for step in steps if step.argval in ("cond", "_check") and step.opname.startswith("LOAD_")}
    if not named:
        return frozenset()
    calls = [_span(step) for step in steps if step.opname.startswith("CALL")]
    within = {step.offset for step in steps if _innermost(calls, step) in named}
    for before, step in itertools.pairwise(steps):
        if step.opname == "STORE_FAST":
            read = [each.offset for each in steps if each.opname.startswith("LOAD_FAST") and _names(each, step.argval)]
            within |= {before.offset} if read and within.issuperset(read) else set()
    return frozenset(within)


Place = tuple[int, int]
NOWHERE = (-1, -1)


def _innermost(calls: list[tuple[Place, Place]], step: dis.Instruction) -> Place:
    """Where the call begins among whose arguments an instruction is."""
    start, end = _span(step)
    return max((first for first, last in calls if first < start and end <= last), default=NOWHERE)


def _span(step: dis.Instruction) -> tuple[Place, Place]:
    places = step.positions
    if places is None or places.lineno is None or places.col_offset is None or places.end_lineno is None or places.end_col_offset is None:
        return NOWHERE, NOWHERE
    return (places.lineno, places.col_offset), (places.end_lineno, places.end_col_offset)


def _names(step: dis.Instruction, name: str) -> bool:
    return name in (step.argval if isinstance(step.argval, tuple) else (step.argval,))


def _exchanged(code: CodeType, called: dict[str, str], maps: bool) -> CodeType:
    """The code, and that of functions in it, with other names where a global is loaded to be called. maps: whether `map` is Python's."""
    constants = tuple(_exchanged(each, called, maps) if isinstance(each, CodeType) else each for each in code.co_consts)
    if any(new is not old for new, old in zip(constants, code.co_consts, strict=True)):
        code = code.replace(co_consts=constants)
    known, text = list(code.co_names), bytearray(code.co_code)
    loaded = ""  # to be called, by the last instruction
    for place in range(0, len(text), 2):
        if text[place] in (CACHE, EXTENDED_ARG):
            continue
        before, loaded = loaded, ""
        if text[place] != LOAD_GLOBAL or (place and text[place - 2] == EXTENDED_ARG):
            continue
        number, to_call = divmod(text[place + 1], 2)
        name = code.co_names[number]
        loaded = name if to_call else ""
        other = called.get(name) if to_call or (maps and before == "map") else None
        if other is None:
            continue
        if other not in known:
            known.append(other)
        if known.index(other) < MOST_NAMES:
            text[place + 1] = 2 * known.index(other) + to_call
    return code.replace(co_names=tuple(known), co_code=bytes(text)) if len(known) > len(code.co_names) else code
