"""The value that a model returns, out of the flat results of its program."""

from __future__ import annotations

import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Sequence
from typing import SupportsIndex, cast

from disc.artifact.structure import CLASSES, RETURN_TYPES, kind_of, parts_of
from disc.ral.caches import Layer, cache_of

Build = Callable[[Sequence[object]], object]


class Results(dict[str, object]):
    """Named results, where transformers, whose class has them, is not loaded: `results.logits`, `results["logits"]`, `results[0]`."""

    def __getitem__(self, key: str | SupportsIndex | slice) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By name, or by position as a tuple has them. Raises KeyError, IndexError."""
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def __getattr__(self, name: str) -> object:
        """Raises AttributeError for a name that there is not."""
        if name in self:
            return self[name]
        raise AttributeError(f"there is no result {name!r}; the results are {', '.join(self)}")

    def to_tuple(self) -> tuple[object, ...]:
        """All of them, in their order."""
        return tuple(self.values())


def builder(structure: object) -> Build:
    """The function that makes the model's value of its results. structure: as `disc.artifact.structure` has it, and not malformed.

    Classes are those that are loaded already, by the time of this call: nothing is imported because a file names it.
    """
    if isinstance(structure, int):
        number = structure
        return lambda results: results[number]
    record = cast("dict[str, object]", structure)
    kind = kind_of(record)
    if kind == "value":
        return lambda results: record["value"]
    parts = [(key, builder(part)) for key, part in parts_of(structure)]
    keys, makers = [key for key, _ in parts], [make for _, make in parts]
    if kind == "list":
        return lambda results: [make(results) for make in makers]
    if kind == "tuple":
        return lambda results: tuple(make(results) for make in makers)
    if kind == "cache":
        return lambda results: cache_of(cast("list[Layer]", [make(results) for make in makers]))
    whole = _class_of(kind, str(record[kind]), cast("list[str]", keys)) if kind in CLASSES else _MAPPINGS[kind]
    return lambda results: whole({key: make(results) for key, make in parts})


_MAPPINGS: dict[str, Callable[[dict[str | int, object]], object]] = {"dict": dict, "ordered": OrderedDict}


def _class_of(kind: str, name: str, fields: list[str]) -> Callable[[dict[str | int, object]], object]:
    """What makes a named tuple or a record of its fields."""
    module, _, path = name.partition(":")
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if kind == "record":
        known = isinstance(found, type) and _is_output(found) and set(fields) <= set(getattr(found, "__dataclass_fields__", ()))
        make = cast("Callable[..., object]", found if known else Results)
    elif isinstance(found, type) and issubclass(found, tuple) and getattr(found, "_fields", None) == tuple(fields):
        make = cast("Callable[..., object]", found)
    elif module == RETURN_TYPES and isinstance(found, type) and getattr(found, "__match_args__", None) == tuple(fields):
        of_torch = cast("Callable[[tuple[object, ...]], object]", found)
        return lambda values: of_torch(tuple(values.values()))
    else:
        last = path.rpartition(".")[2]
        make = cast("Callable[..., object]", namedtuple(last if last.isidentifier() else "Results", fields, rename=True))
    return lambda values: make(**{str(key): value for key, value in values.items()})


def _is_output(found: type) -> bool:
    return any(base.__name__ == "ModelOutput" and base.__module__.partition(".")[0] == "transformers" for base in found.__mro__)
