"""What code in Python keeps that a model runs, by size or by name: what a trace leaves there means nothing behind it.

TABLES[n] = torch.arange(n)      # a dict that a function names; likewise lists, sets and deques
@functools.lru_cache             # a function with one
Config.size = n                  # attributes of objects, classes, functions and modules, globals, variables of a function around
"""

from __future__ import annotations

import dis
import functools
import gc
import operator
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils import _pytree as pytree

from disc.frontend.model_functions import (
    CACHED,
    attributes_of,
    is_filled,
    is_users,
    is_users_module,
    is_users_object,
    slots_of,
    users_functions,
)
from disc.frontend.plain_numbers import KINDS

Container = dict[Any, object] | list[object] | set[object] | deque[object]
_CONTAINERS = (OrderedDict, dict, list, set, deque)
MOST_ENTRIES, DEEPEST = 4096, 3  # of what is looked at
_WHOLE = frozenset(
    {str, int, float, bool, bytes, type(None), type, FunctionType, BuiltinFunctionType, ModuleType, CodeType}
)  # nothing is in them
_NONE = object()


@contextmanager
def caches_restored(named: Sequence[object], is_dry: bool = False) -> Iterator[list[str]]:
    """Within, a model is traced. Dicts, lists, sets, deques and attributes that hold tensors or numbers of the trace afterwards are without
    them, and functions that have kept any are without results. What another thread has put there meanwhile stays. Attributes that functions
    of the model set are what they were before in any case: another trace would read the example's numbers there.

    named: what the model consists of, as `named_in` has it. is_dry: it runs with numbers for sizes, for moments: all is as it was before.
    Gives a list that in the end has the names of such attributes, and of entries of dicts that have sizes.
    """
    functions = [(each, each.cache_info().misses) for each in named if isinstance(each, CACHED)]
    containers = {id(each): each for value in named if isinstance(value, _CONTAINERS) for each in _containers(value, DEEPEST)}
    before = {name: dict(_entries(each)) if isinstance(each, dict) else [*_items(each)] for name, each in containers.items()}
    owners = {id(each): (name, each) for value in named for name, each in _owners(value)}
    members = {key: _members(each) for key, (_, each) in owners.items()}
    are_set = {"cell_contents"}.union(*(_names_set(each.__code__) for each in users_functions(named)))
    kept: list[str] = []
    try:
        yield kept
    finally:
        for function, misses in functions:
            if function.cache_info().misses != misses and any(map(_holds_traced, gc.get_referents(function))):
                function.cache_clear()
        for name, container in containers.items():
            kept += _restore(container, before[name], is_dry)
        for key, (name, owner) in owners.items():
            kept += [name.format(attribute) for attribute in _restore_members(owner, members[key], are_set)]


def _containers(value: object, depth: int) -> Iterator[Container]:
    container = cast("Container", value)
    if _length(container) > MOST_ENTRIES:
        return
    yield container
    if depth > 1 and not isinstance(container, set):
        for each in (value for _, value in _entries(container)) if isinstance(container, dict) else _items(container):
            if isinstance(each, _CONTAINERS):
                yield from _containers(each, depth - 1)


def _owners(value: object) -> Iterator[tuple[str, object]]:
    """What has attributes, or a namespace of them, and what one of them is called, with {} for it."""
    if isinstance(value, FunctionType) and is_users(value):
        yield "{}", value.__globals__
        yield value.__name__ + ".{}", vars(value)
        yield from zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    elif isinstance(value, torch.nn.Module):
        yield from ((type(module).__name__ + ".{}", vars(module)) for module in value.modules())
    elif isinstance(value, type):
        yield value.__name__ + ".{}", value
    elif isinstance(value, ModuleType):
        if is_users_module(value):
            yield value.__name__ + ".{}", vars(value)
    else:
        if type(getattr(value, "__dict__", None)) is dict:
            yield type(value).__name__ + ".{}", vars(value)
        if is_users_object(value) and slots_of(value):
            yield type(value).__name__ + ".{}", value


def _members(owner: object) -> dict[str, object]:
    """Of a namespace, a class, a variable of a function, or what has slots."""
    if isinstance(owner, dict):
        return dict(cast("dict[str, object]", owner))
    if isinstance(owner, type):
        return dict(vars(owner))
    if isinstance(owner, CellType):
        return {"cell_contents": owner.cell_contents} if is_filled(owner) else {}
    return slots_of(owner)


def _restore_members(owner: object, before: dict[str, object], are_set: Collection[str]) -> list[str]:
    """The names of those that were restored, but for marks that something was done. are_set: names that a model's functions set."""
    after = _members(owner)
    changed = [name for name, value in after.items() if value is not before.get(name, _NONE)]
    found = [name for name in changed if name in are_set or _is_traced(after[name])]
    for name in found:
        if isinstance(owner, dict):
            owner.update({name: before[name]}) if name in before else owner.pop(name)
        elif name in before:
            setattr(owner, name, before[name])
        else:
            delattr(owner, name)
    return [name for name in found if name in before or not is_mark(name, after[name])]


def is_mark(attribute: str, value: object) -> bool:
    """Whether a new attribute says no more than that something was done once, as libraries mark what they have set up."""
    return isinstance(value, bool) and attribute.startswith("_")


@functools.lru_cache(maxsize=1024)  # a model's functions are looked at in every export of it
def _names_set(code: CodeType) -> frozenset[str]:
    """Of attributes and globals."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("STORE_ATTR", "STORE_GLOBAL")}
    return frozenset(names).union(*(_names_set(constant) for constant in code.co_consts if isinstance(constant, CodeType)))


def _restore(container: Container, before: dict[Any, object] | list[object], is_dry: bool) -> list[str]:
    """The names of entries of a dict that had sizes of the trace."""
    if is_dry and (_length(container) != len(before) or any(map(operator.is_not, _parts(container), _parts(before)))):
        container.clear()
        container.extend(before) if isinstance(container, list | deque) else container.update(cast("Any", before))
    if not isinstance(container, dict):
        if _length(container) <= MOST_ENTRIES and any(map(_is_traced, _items(container))):
            old = set(map(id, before))
            items = [*before, *(each for each in _items(container) if id(each) not in old and not _is_traced(each))]
            container.clear()
            container.update(items) if isinstance(container, set) else container.extend(items)
        return []
    assert isinstance(before, dict)
    if any(map(_is_traced, _items(container))):  # which have no hash outside the trace
        entries = [(key, value) for key, value in _entries(container) if not _is_traced(key)]
        container.clear()
        container.update(entries)
    found = [key for key, value in _entries(container) if value is not before.get(key) and _is_traced(value)]
    kept = [f"[{key!r}] of a dict" for key in found if any(isinstance(each, KINDS) for each in pytree.tree_leaves(container[key]))]
    for key in found:
        if key in before:
            container[key] = before[key]
        else:
            del container[key]
    return kept


# What a container holds, not what methods of its class make of that: a table of a library may import all that it names.


def _kind(container: Container) -> Any:
    return next(kind for kind in _CONTAINERS if isinstance(container, kind))


def _length(container: Container) -> int:
    return _kind(container).__len__(container)


def _items(container: Container) -> Iterator[object]:
    """Of a dict its keys."""
    return _kind(container).__iter__(container)


def _entries(container: dict[Any, object]) -> Iterable[tuple[Any, object]]:
    return _kind(container).items(container)


def _parts(container: Container) -> Iterable[object]:
    return (part for entry in _entries(container) for part in entry) if isinstance(container, dict) else _items(container)


def _holds_traced(value: object, depth: int = DEEPEST) -> bool:
    """Whether a tensor or a number of a trace is in it, as a key or a value of its dicts, or in the user's objects."""
    parts: Iterable[object] = [*value, *value.values()] if isinstance(value, dict) else pytree.tree_leaves(value)
    return any(
        _is_traced(each)
        or (depth > 0 and isinstance(each, dict) and _holds_traced(each, depth - 1))
        or (depth > 0 and is_users_object(each) and _holds_traced(attributes_of(each), depth - 1))
        for each in parts
    )


def _is_traced(value: object) -> bool:
    """Whether a tensor or a number of a trace is in it."""
    if type(value) in _WHOLE:
        return False
    return any(isinstance(each, KINDS) or (isinstance(each, torch.Tensor) and is_fake(each)) for each in pytree.tree_leaves(value))
