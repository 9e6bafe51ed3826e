"""Caches in Python that a model fills while it is traced, by size or by name: what a trace leaves there means nothing behind it.

TABLES[n] = torch.arange(n)      # a dict that a function names; likewise what an object has, and globals
@functools.lru_cache             # a function with one
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils import _pytree as pytree

from disc.frontend.model_functions import CACHED, is_users, is_users_object, named_in
from disc.frontend.plain_numbers import KINDS

Container = dict[Any, object] | list[object] | set[object] | deque[object]
MOST_ENTRIES, DEEPEST = 4096, 3  # of what is looked at


@contextmanager
def caches_restored(model: torch.nn.Module) -> Iterator[None]:
    """Within, the model is traced. Dicts, lists, sets and deques that hold tensors or numbers of the trace afterwards are without them, and
    functions that have kept any are without results. What another thread has put there meanwhile stays."""
    named = list(named_in(model))
    functions = [(each, each.cache_info().misses) for each in named if isinstance(each, CACHED)]
    containers = {id(each): each for value in named for each in _containers(value, DEEPEST)}
    before = {name: dict(each) if isinstance(each, dict) else list(each) for name, each in containers.items()}
    try:
        yield
    finally:
        for function, misses in functions:
            if function.cache_info().misses != misses and any(map(_holds_traced, gc.get_referents(function))):
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
    if depth and isinstance(value, dict | list | set | deque) and len(cast("Container", value)) <= MOST_ENTRIES:
        container = cast("Container", value)
        yield container
        for each in container.values() if isinstance(container, dict) else () if isinstance(container, set) else container:
            yield from _containers(each, depth - 1)


def _restore(container: Container, before: dict[Any, object] | list[object]) -> None:
    if not isinstance(container, dict):
        if len(container) <= MOST_ENTRIES and any(map(_is_traced, container)):
            old = set(map(id, before))
            items = [*before, *(each for each in container if id(each) not in old and not _is_traced(each))]
            container.clear()
            container.update(items) if isinstance(container, set) else container.extend(items)
        return
    assert isinstance(before, dict)
    if any(map(_is_traced, container)):  # which have no hash outside the trace
        entries = [(key, value) for key, value in container.items() if not _is_traced(key)]
        container.clear()
        container.update(entries)
    for key in [key for key, value in container.items() if value is not before.get(key) and _is_traced(value)]:
        if key in before:
            container[key] = before[key]
        else:
            del container[key]


def _holds_traced(value: object, depth: int = DEEPEST) -> bool:
    """Whether a tensor or a number of a trace is in it, as a key or a value of its dicts, or in the user's objects."""
    parts: Iterable[object] = [*value, *value.values()] if isinstance(value, dict) else pytree.tree_leaves(value)
    return any(
        _is_traced(each)
        or (depth > 0 and isinstance(each, dict) and _holds_traced(each, depth - 1))
        or (depth > 0 and is_users_object(each) and _holds_traced(vars(each), depth - 1))
        for each in parts
    )


def _is_traced(value: object) -> bool:
    """Whether a tensor or a number of a trace is in it."""
    return any(isinstance(each, KINDS) or (isinstance(each, torch.Tensor) and is_fake(each)) for each in pytree.tree_leaves(value))
