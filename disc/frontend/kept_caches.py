"""Caches in Python that a model fills while it is traced, by size or by name: what a trace leaves there means nothing behind it.

TABLES[n] = torch.arange(n)          # a dict of the module, or of the model
@functools.lru_cache                 # a function with one
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils import _pytree as pytree

from disc.frontend.model_functions import CACHED, named_in

Container = dict[object, object] | list[object] | set[object]
MOST_ENTRIES, DEEPEST = 4096, 3  # of what is looked at


@contextmanager
def caches_restored(model: torch.nn.Module) -> Iterator[None]:
    """Within, the model is traced. Dicts, lists and sets that hold tensors or numbers of the trace afterwards are what they were, and
    functions that have kept results are without any."""
    named = list(named_in(model))
    functions = [(each, each.cache_info().misses) for each in named if isinstance(each, CACHED)]
    containers = [(each, each.copy()) for value in named for each in _containers(value, DEEPEST)]
    try:
        yield
    finally:
        for function, misses in functions:
            if function.cache_info().misses != misses:
                function.cache_clear()
        for container, before in containers:
            if len(container) <= MOST_ENTRIES and any(map(_is_traced, _entries(container))):
                _fill(container, before)


def _containers(value: object, depth: int) -> Iterator[Container]:
    if depth and type(value) in (dict, list, set) and len(value) <= MOST_ENTRIES:  # pyright: ignore[reportArgumentType]
        yield value  # pyright: ignore[reportReturnType]
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from _containers(each, depth - 1)


def _entries(container: Container) -> Iterator[object]:
    for each in container.items() if isinstance(container, dict) else container:
        yield from pytree.tree_leaves(each)


def _is_traced(value: object) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) or (isinstance(value, torch.Tensor) and is_fake(value))


def _fill(container: Container, before: Container) -> None:
    container.clear()
    container.extend(before) if isinstance(container, list) else container.update(before)  # pyright: ignore
