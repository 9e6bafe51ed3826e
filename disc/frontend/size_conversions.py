"""`int(...)` and `float(...)` of a dynamic size in a model's own code, while it is exported.

Python demands a plain number of these two types, by which torch.export fixes the dim to the example's size, and they cannot be exchanged
as functions of `math` are: they are types, too. So the code of the model's functions calls `whole` and `real` in their place:

    LOAD_GLOBAL  NULL + int          →    LOAD_GLOBAL  NULL + __disc_int__      (what loads it to be called, and nothing else)
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType

import torch

from disc.frontend.model_functions import functions_of

LOAD_GLOBAL, EXTENDED_ARG = dis.opmap["LOAD_GLOBAL"], dis.opmap["EXTENDED_ARG"]
MOST_NAMES = 128  # an instruction counts up to these in the one byte that it has


def conversions(told: Callable[[], None]) -> dict[str, Callable[..., object]]:
    """What is called in the place of `int` and `float`. told: is called where a number is symbolic."""

    def whole(*args: object, **kwargs: object) -> object:
        if len(args) == 1 and isinstance(args[0], torch.SymInt | torch.SymFloat):
            told()
            return torch.sym_int(args[0])
        return int(*args, **kwargs)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def real(*args: object) -> object:
        if len(args) == 1 and isinstance(args[0], torch.SymInt | torch.SymFloat):
            told()
            return torch.sym_float(args[0])
        return float(*args)  # pyright: ignore[reportArgumentType]

    return {"int": whole, "float": real}


@contextmanager
def converted(model: torch.nn.Module, forms: dict[str, Callable[..., object]]) -> Iterator[None]:
    """Within, the functions of the model call these."""
    names = {name: f"__disc_{name}__" for name in forms}
    changed: list[tuple[FunctionType, CodeType]] = []
    for name, form in forms.items():
        setattr(builtins, names[name], form)
    try:
        for function in functions_of(model):
            own = {name: other for name, other in names.items() if name not in function.__globals__}
            code = _exchanged(function.__code__, own)
            if code is not function.__code__:
                changed.append((function, function.__code__))
                function.__code__ = code
        yield
    finally:
        for function, code in changed:
            function.__code__ = code
        for name in names.values():
            delattr(builtins, name)


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
