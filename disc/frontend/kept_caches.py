"""Caches in Python that a model fills while it is traced, by size or by name: what a trace leaves there means nothing behind it.

TABLES[n] = torch.arange(n)      # a dict that a function names; likewise what an object has, and globals
@functools.lru_cache             # a function with one
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils import _pytree as pytree

from disc.frontend.model_functions import CACHED, is_users, is_users_object, named_in

Container = dict[Any, object] | list[object] | set[object]
MOST_ENTRIES, DEEPEST = 4096, 3  # of what is looked at


@contextmanager
def caches_restored(model: torch.nn.Module) -> Iterator[None]:
    """Within, the model is traced. Dicts, lists and sets that hold tensors or numbers of the trace afterwards are without them, and
    functions that have kept results are without any."""
    named = list(named_in(model))
    functions = [(each, each.cache_info().misses) for each in named if isinstance(each, CACHED)]
    containers = {id(each): each for value in named for each in _containers(value, DEEPEST)}
    before = {name: each.copy() for name, each in containers.items()}
    try:
        yield
    finally:
        for function, misses in functions:
            if function.cache_info().misses != misses:
                function.cache_clear()
        for name, container in containers.items():
            _restore(container, before[name])


def _containers(value: object, depth: int) -> Iterator[Container]:
    if isinstance(value, FunctionType) and is_users(value):
        yield value.__globals__
    if isinstance(value, torch.nn.Module):
        yield from (vars(module) for module in value.modules())
    elif is_users_object(value):
        yield vars(value)
    if depth and type(value) in (dict, list, set) and len(value) <= MOST_ENTRIES:  # pyright: ignore[reportArgumentType]
        yield cast("Container", value)
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from _containers(each, depth - 1)


def _restore(container: Container, before: Container) -> None:
    if not isinstance(container, dict):
        if len(container) <= MOST_ENTRIES and any(map(_is_traced, container)):
            container.clear()
            container.extend(before) if isinstance(container, list) else container.update(before)  # pyright: ignore
        return
    assert isinstance(before, dict)
    if any(map(_is_traced, container)):  # which have no hash outside the trace
        entries = [(key, value) for key, value in container.items() if not _is_traced(key)]
        container.clear()
        container.update(entries)
    for key in [key for key, value in container.items() if value is not before.get(key) and _is_traced(value)]:
        del container[key]
        container.update({key: before[key]} if key in before else {})


def _is_traced(value: object) -> bool:
    """Whether a tensor or a number of a trace is in it."""
    return any(isinstance(each, SYMBOLIC) or (isinstance(each, torch.Tensor) and is_fake(each)) for each in pytree.tree_leaves(value))


SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
