"""The functions in Python that a model consists of."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, MethodType, ModuleType

import torch
from torch.fx.proxy import _STACK_TRACE_ANCHORS as ANCHORS

from disc.frontend.locations import OURS, TORCH

_PATHS = sysconfig.get_paths()
_STANDARD, _INSTALLED = _PATHS["stdlib"] + os.sep, (_PATHS["purelib"] + os.sep, _PATHS["platlib"] + os.sep)


@contextmanager
def located_in(model: torch.nn.Module) -> Iterator[None]:
    """While it is exported: a node has the lines of all functions of the user's that it comes from. PyTorch keeps those of functions called
    `forward`, and none where the model is a function of another name."""
    codes = [function.__code__ for function in functions_of(model) if is_users(function)]
    new = {(code.co_filename, code.co_name) for code in codes} - ANCHORS
    ANCHORS.update(new)
    try:
        yield
    finally:
        ANCHORS.difference_update(new)


def is_users(function: FunctionType) -> bool:
    """Whether it is in no installed package."""
    return not function.__code__.co_filename.startswith(_INSTALLED)


def functions_of(model: torch.nn.Module) -> Iterator[FunctionType]:
    """The functions in Python that a call of the model may run: methods of its modules, and what these name, and so on."""
    left: list[object] = [value for module in model.modules() for value in (type(module), *vars(module).values())]
    seen: set[int] = set()
    while left:
        value = left.pop()
        if isinstance(value, MethodType):
            left.append(value.__func__)
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if isinstance(value, property):
            left += [value.fget]
        if not isinstance(value, type | FunctionType) or id(value) in seen or not _is_own(value):
            continue
        seen.add(id(value))
        if isinstance(value, type):
            left += [member for base in value.__mro__ if _is_own(base) for member in vars(base).values()]
            continue
        yield value
        left += [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        left += _named_by(value.__code__, value.__globals__)
        left += [getattr(value, "__wrapped__", None)]


def _named_by(code: CodeType, known: dict[str, object]) -> Iterator[object]:
    found = [known[name] for name in code.co_names if name in known]
    yield from found
    for module in (each for each in found if isinstance(each, ModuleType)):
        yield from (vars(module)[name] for name in code.co_names if name in vars(module))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named_by(constant, known)


def _is_filled(cell: object) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # pyright: ignore
    except ValueError:
        return False
    return True


def _is_own(value: type | FunctionType) -> bool:
    """Whether it is neither PyTorch's, nor Python's, nor ours."""
    if isinstance(value, FunctionType):
        file = value.__code__.co_filename
    else:
        file = getattr(sys.modules.get(value.__module__), "__file__", None) or ("" if value.__module__ == "__main__" else "<")
    is_standard = file.startswith(_STANDARD) and not file.startswith(_INSTALLED)
    return not (is_standard or file.startswith((TORCH, OURS)))
