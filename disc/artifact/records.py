"""Checks a value from JSON against the type of a TypedDict. For untrusted files."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping

_UNIONS = (typing.Union, types.UnionType)


def mismatch(value: object, kind: object, where: str) -> str | None:
    """What is wrong with `value`, beginning with its place ("inputs[0].name: expected a str, got a list"); None if it is a `kind`.

    kind: a TypedDict, int, str, bool, object, or a list, str-keyed dict or union of these. Keys that a TypedDict does not name are
    accepted: later versions add some. A bool is no int here.
    """
    if kind is object:
        return None
    origin = typing.get_origin(kind)
    if typing.is_typeddict(kind):
        return _record(value, typing.cast("type", kind), where)
    if origin in _UNIONS:
        problems = [mismatch(value, each, where) for each in typing.get_args(kind)]
        return None if None in problems else f"{where}: expected {' or '.join(map(_name, typing.get_args(kind)))}, got {_what(value)}"
    expected = origin or kind
    if not isinstance(value, typing.cast("type", expected)) or (isinstance(value, bool) and expected is not bool):
        return f"{where}: expected {_name(expected)}, got {_what(value)}"
    if isinstance(value, list):
        return _first(mismatch(each, typing.get_args(kind)[0], f"{where}[{index}]") for index, each in enumerate(value))
    if isinstance(value, dict):
        return _first(mismatch(each, typing.get_args(kind)[1], f"{where}.{name}") for name, each in value.items())
    return None


def _record(value: object, kind: type, where: str) -> str | None:
    if not isinstance(value, dict):
        return f"{where}: expected an object, got {_what(value)}"
    fields, required = _fields(kind)
    missing = sorted(name for name in required if name not in value)
    if missing:
        return f"{where}: {', '.join(map(repr, missing))} is missing"
    return _first(mismatch(value[name], each, f"{where}.{name}") for name, each in fields.items() if name in value)


@functools.cache
def _fields(kind: type) -> tuple[Mapping[str, object], frozenset[str]]:
    """The types of the keys, and those that are required. `__required_keys__` does not see NotRequired in annotations that are strings."""
    fields: Mapping[str, object] = typing.get_type_hints(kind)
    required = typing.cast("frozenset[str]", getattr(kind, "__required_keys__"))  # noqa: B009 - not known to type checkers
    qualified = typing.get_type_hints(kind, include_extras=True)
    asked = {name for name in fields if name in required and typing.get_origin(qualified[name]) is not typing.NotRequired}
    return fields, frozenset(asked)


def _first(problems: typing.Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def _name(kind: object) -> str:
    return {dict: "an object", int: "an int"}.get(typing.cast("type", kind), f"a {getattr(kind, '__name__', kind)}")


def _what(value: object) -> str:
    return "null" if value is None else _name(type(value))
