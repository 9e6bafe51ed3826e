"""`int(...)` and `float(...)` of a dynamic size, or of a tensor, and `len(...)` of a tensor, in a model's own code, while it is exported.

Python demands a plain number of these, by which torch.export fixes the dim to the example's size, and gives up at data. They
cannot be exchanged as functions of `math` are: types are more than functions. So the code of the user's functions calls `whole`, `real`
and `length` in their place:

    LOAD_GLOBAL  NULL + int          →    LOAD_GLOBAL  NULL + __disc_int__      (what loads it to be called, and nothing else)

`isinstance` and `type` say of a symbolic number there what they say of a plain one. Code of installed packages is left as it is: it may
tell the two apart.
"""

from __future__ import annotations

import builtins
import dis
import math
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType

import torch
from torch import Tensor
from typing_extensions import TypeIs

from disc.frontend.locations import OURS, TORCH
from disc.frontend.model_functions import functions_of, is_users
from disc.frontend.replaced import replaced

LOAD_GLOBAL, EXTENDED_ARG = dis.opmap["LOAD_GLOBAL"], dis.opmap["EXTENDED_ARG"]
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
MOST_NAMES = 128  # an instruction counts up to these in the one byte that it has


PLAIN: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


def conversions(told: Callable[[], None]) -> dict[str, Callable[..., object]]:
    """What is called in the place of functions of Python. told: is called where what they give of a number or a tensor
    is symbolic."""

    def whole(*args: object, **kwargs: object) -> object:
        if len(args) == 1 and isinstance(args[0], torch.SymInt | torch.SymFloat):
            told()
            return torch.sym_int(args[0])
        if len(args) == 1 and not kwargs and _is_number(args[0]):
            told()
            return whole_number(args[0])
        return int(*args, **kwargs)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def real(*args: object) -> object:
        if len(args) == 1 and isinstance(args[0], torch.SymInt | torch.SymFloat):
            told()
            return torch.sym_float(args[0])
        if len(args) == 1 and _is_number(args[0]):
            told()
            return args[0].to(torch.float64).item()
        return float(*args)  # pyright: ignore[reportArgumentType]

    def length(*args: object) -> object:
        if len(args) == 1 and isinstance(args[0], Tensor) and args[0].dim() and isinstance(args[0].shape[0], torch.SymInt):
            told()
            return args[0].shape[0]
        return len(*args)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def is_instance(value: object, kinds: type | tuple[type, ...]) -> bool:
        return isinstance(value, kinds) or (type(value) in PLAIN and issubclass(PLAIN[type(value)], kinds))

    def type_of(*args: object, **kwargs: object) -> object:
        found = type(*args, **kwargs)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return PLAIN.get(found, found) if len(args) == 1 else found

    return {"int": whole, "float": real, "len": length, "isinstance": is_instance, "type": type_of}


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
def converted(model: torch.nn.Module, forms: dict[str, Callable[..., object]]) -> Iterator[None]:
    """Within, the user's functions that the model consists of call these."""
    functions = [each for each in functions_of(model) if is_users(each)]
    if any(_matches_types(each.__code__) for each in functions):
        functions = []  # `case int():`, too, tells a symbolic number from a plain one
    names = {name: f"__disc_{name}__" for name in forms}
    changed: list[tuple[FunctionType, CodeType]] = []
    for name, form in forms.items():
        setattr(builtins, names[name], form)
    try:
        for function in functions:
            own = {name: other for name, other in names.items() if name not in function.__globals__}
            code = _exchanged(function.__code__, own)
            if code is not function.__code__:
                changed.append((function, function.__code__))
                function.__code__ = code
        yield
    finally:
        for function, code in changed:
            function.__code__ = code
        # The names stay: another thread may be in the middle of a call of the other code, where they do what Python's own do.


@contextmanager
def formatted(told: Callable[[], None]) -> Iterator[None]:
    """Within, `told` is called where code that is not PyTorch's makes a text of a symbolic number."""
    real = {(kind, name): getattr(kind, name) for kind in PLAIN for name in ("__str__", "__repr__")}

    def watched(function: Callable[[object], str]) -> Callable[[object], str]:
        def text(value: object) -> str:
            if not sys._getframe(1).f_code.co_filename.startswith((TORCH, OURS, _STANDARD)):
                told()
            return function(value)

        return text

    with replaced({place: watched(function) for place, function in real.items()}):
        yield


def _matches_types(code: CodeType) -> bool:
    inner = any(_matches_types(each) for each in code.co_consts if isinstance(each, CodeType))
    return inner or any(each.opname == "MATCH_CLASS" for each in dis.get_instructions(code))


def _exchanged(code: CodeType, names: dict[str, str]) -> CodeType:
    """The code, and that of functions in it, with other names where a global of one of `names` is loaded to be called."""
    constants = tuple(_exchanged(each, names) if isinstance(each, CodeType) else each for each in code.co_consts)
    if any(new is not old for new, old in zip(constants, code.co_consts, strict=True)):
        code = code.replace(co_consts=constants)
    known, text = list(code.co_names), bytearray(code.co_code)
    for place in range(0, len(text), 2):
        number, to_call = divmod(text[place + 1], 2)
        if text[place] != LOAD_GLOBAL or not to_call or (place and text[place - 2] == EXTENDED_ARG) or code.co_names[number] not in names:
            continue
        other = names[code.co_names[number]]
        if other not in known:
            known.append(other)
        if known.index(other) < MOST_NAMES:
            text[place + 1] = 2 * known.index(other) + 1
    return code.replace(co_names=tuple(known), co_code=bytes(text)) if len(known) > len(code.co_names) else code
