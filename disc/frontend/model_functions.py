"""The functions in Python that a model consists of."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import cast

import torch
from torch.fx.proxy import _STACK_TRACE_ANCHORS as ANCHORS

from disc.frontend.locations import INSTALLED, OURS, TORCH, is_standard


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
    return not function.__code__.co_filename.startswith(INSTALLED)


def functions_of(model: torch.nn.Module) -> Iterator[FunctionType]:
    """The functions in Python that a call of the model may run: methods of its modules, and what these name, and so on."""
    return (each for each in named_in(model) if isinstance(each, FunctionType))


def named_in(model: torch.nn.Module) -> Iterator[object]:
    """Those functions, and all else that the modules hold and these functions name, each once: functions with caches, lists, dicts."""
    left: list[object] = [value for module in model.modules() for value in (type(module), *_own_values(module))]
    seen: set[int] = set()
    while left:
        value = left.pop()
        if isinstance(value, _ENDS):
            continue
        if isinstance(value, MethodType):
            left.append(value.__func__)
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if isinstance(value, property):
            left += [value.fget]
        if id(value) in seen or (isinstance(value, type | FunctionType) and not _is_own(value)):
            continue
        seen.add(id(value))
        if isinstance(value, type):
            left += [member for base in value.__mro__ if _is_own(base) for member in vars(base).values()]
            continue
        yield value
        if isinstance(value, FunctionType):
            left += [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
            left += _named_by(value.__code__, value.__globals__)
        if isinstance(value, FunctionType | CACHED):
            left += [getattr(value, "__wrapped__", None)]
        left += _held_by(value)


def _held_by(value: object) -> Iterable[object]:
    """The entries of a table of functions, and what an object has."""
    if type(value) in (list, tuple, dict, set):
        entries = value.values() if isinstance(value, dict) else cast("Collection[object]", value)
        return entries if len(entries) <= MOST_ENTRIES else ()
    if isinstance(value, torch.nn.Module):  # which a function names
        return [each for module in value.modules() for each in (type(module), *_own_values(module))]
    return (type(value), *vars(value).values()) if is_users_object(value) else ()


def is_users_object(value: object) -> bool:
    """Whether it is of a class that is in no installed package."""
    kind = type(value)
    is_other = isinstance(value, type | FunctionType | ModuleType | torch.Tensor) or not hasattr(value, "__dict__")
    return not is_other and _is_own(kind) and not _file_of(kind).startswith(INSTALLED)


MOST_ENTRIES = 256
_ENDS = (str, int, float, bytes, torch.Tensor, type(None))
CACHED = type(functools.lru_cache(int))  # of functions that keep their results
OF_EVERY_MODULE = frozenset(torch.nn.Module().__dict__)


def _own_values(module: torch.nn.Module) -> Iterator[object]:
    return (value for name, value in vars(module).items() if name not in OF_EVERY_MODULE)


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


def _file_of(kind: type) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or ("" if kind.__module__ == "__main__" else "<")


def _is_own(value: type | FunctionType) -> bool:
    """Whether it is neither PyTorch's, nor Python's, nor ours."""
    file = value.__code__.co_filename if isinstance(value, FunctionType) else _file_of(value)
    return not (is_standard(file) or file.startswith((TORCH, OURS)))
