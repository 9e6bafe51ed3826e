"""The functions in Python that a model consists of."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import cast

import torch
from torch.fx.proxy import _STACK_TRACE_ANCHORS as ANCHORS

from disc.frontend.locations import INSTALLED, OURS, TORCH, is_standard


@contextmanager
def located_in(named: Sequence[object]) -> Iterator[None]:
    """While a model is exported that consists of these: a node has the lines of all functions of the user's that it comes from. PyTorch
    keeps those of functions called `forward`, and none where the model is a function of another name."""
    codes = [function.__code__ for function in users_functions(named)]
    new = {(code.co_filename, code.co_name) for code in codes} - ANCHORS
    ANCHORS.update(new)
    try:
        yield
    finally:
        ANCHORS.difference_update(new)


def is_users(function: FunctionType) -> bool:
    """Whether it is in no installed package."""
    return not function.__code__.co_filename.startswith(INSTALLED)


def users_functions(named: Sequence[object]) -> list[FunctionType]:
    """The user's functions among what `named_in` found: what a call of the model may run."""
    return [each for each in named if isinstance(each, FunctionType) and is_users(each)]


def named_in(model: torch.nn.Module) -> Iterator[object]:
    """The functions in Python that a call of the model may run (methods of its modules, what these name, and so on), and all else that the
    modules hold and these functions name, each once: classes, functions with caches, lists, dicts."""
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
        if id(value) in seen:
            continue
        seen.add(id(value))
        left += _behind(value)
        if isinstance(value, type | FunctionType) and not _is_own(value):
            continue
        yield value
        if isinstance(value, type):
            left += [base for base in value.__mro__ if base is not value] + list(vars(value).values())
        if isinstance(value, FunctionType):
            left += [cell.cell_contents for cell in value.__closure__ or () if is_filled(cell)]
            left += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            left += _named_by(value.__code__, value.__globals__)
        left += _held_by(value)


def _behind(value: object) -> Iterable[object]:
    """What is called by a call of what Python's own modules and decorators have made, or by reading an attribute."""
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, functools.partial | functools.partialmethod):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, functools.singledispatchmethod):
        return [value.func, value.dispatcher]
    if isinstance(value, functools.cached_property):
        return [value.func]
    if isinstance(value, FunctionType | CACHED):
        registry = getattr(value, "registry", None)  # of functions with single dispatch
        return [getattr(value, "__wrapped__", None), *(registry.values() if isinstance(registry, MappingProxyType) else ())]
    return ()


def _held_by(value: object) -> Iterable[object]:
    """The entries of a table of functions, and what an object has."""
    if type(value) in (list, tuple, dict, set):
        entries = value.values() if isinstance(value, dict) else cast("Collection[object]", value)
        return entries if len(entries) <= MOST_ENTRIES else ()
    if isinstance(value, torch.nn.Module):  # which a function names
        return [each for module in value.modules() for each in (type(module), *_own_values(module))]
    return (type(value), *attributes_of(value).values()) if is_users_object(value) else ()


def is_users_object(value: object) -> bool:
    """Whether it is of a class that is in no installed package."""
    kind = type(value)
    is_other = isinstance(value, type | FunctionType | ModuleType | torch.Tensor)
    return (
        not is_other
        and (hasattr(value, "__dict__") or hasattr(kind, "__slots__"))
        and _is_own(kind)
        and not _file_of(kind).startswith(INSTALLED)
    )


def attributes_of(value: object) -> dict[str, object]:
    return {**getattr(value, "__dict__", {}), **slots_of(value)}


def slots_of(value: object) -> dict[str, object]:
    """The attributes that an object has a place for of its own, and no dict."""
    given = (vars(kind).get("__slots__", ()) for kind in type(value).__mro__)
    names = [name for each in given for name in ([each] if isinstance(each, str) else each)]
    return {name: getattr(value, name) for name in names if not name.startswith("__") and hasattr(value, name)}


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


def is_filled(cell: object) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # pyright: ignore
    except ValueError:
        return False
    return True


def is_users_module(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None) or ""
    return not (is_standard(file) or file.startswith((TORCH, OURS, *INSTALLED)))


def _file_of(kind: type) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or ("" if kind.__module__ == "__main__" else "<")


def _is_own(value: type | FunctionType) -> bool:
    """Whether it is neither PyTorch's, nor Python's, nor ours."""
    file = value.__code__.co_filename if isinstance(value, FunctionType) else _file_of(value)
    return not (is_standard(file) or file.startswith((TORCH, OURS)))
