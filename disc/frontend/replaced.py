"""Functions of other modules and classes, in the place of which there are others for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_NONE = object()


@contextmanager
def replaced(functions: Mapping[tuple[Any, str], object]) -> Iterator[None]:
    """Within, an owner's attribute, by (owner, name), is the function that is given for it. It may be one that there is none of."""
    kept = {(owner, name): vars(owner).get(name, _NONE) for owner, name in functions}
    for (owner, name), function in functions.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name), function in kept.items():
            if function is _NONE:
                delattr(owner, name)
            else:
                setattr(owner, name, function)
