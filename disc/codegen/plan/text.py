"""Plans as text: `name{field = value, ...}`, read back exactly. What `disc.plan` holds.

A plan is a frozen dataclass whose fields are integers, booleans, words, further plans, or tuples of one of these; a field that may be
absent is `none`.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Union, cast, get_args, get_origin, get_type_hints

_TOKEN = re.compile(r"\s*([\w.+>?:/@-]+|[{}\[\],=])")


@dataclass(frozen=True)
class Plan:
    """One decision, or all of a kernel. name: of what it is a plan; values: the fields that hold numbers of values of the fusion; joins:
    as of `KernelPlan`."""

    name: ClassVar[str] = ""
    values: ClassVar[tuple[str, ...]] = ()

    @property
    def joins(self) -> int | None:
        """None but for plans of kernels that compute an argument as well."""
        return None

    def renumbered(self, numbers: Mapping[int, int]) -> Plan:
        """As of `KernelPlan`."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{name: _renumbered(value, numbers, name in self.values) for name, value in found.items()})

    def __str__(self) -> str:
        inner = ", ".join(f"{each.name} = {_text(getattr(self, each.name))}" for each in fields(self))
        return f"{self.name}{{{inner}}}"


class IllegalPlan(ValueError):
    """A plan that its fusion cannot have. field: the one that is to blame, "" for all of it."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field, self.reason = field, reason


def _renumbered(value: object, numbers: Mapping[int, int], holds: bool) -> object:
    """holds: whether the integers in it are numbers of values. Those of one tuple come in ascending order."""
    if isinstance(value, Plan):
        return value.renumbered(numbers)
    if isinstance(value, tuple):
        every = tuple(_renumbered(each, numbers, holds) for each in cast("tuple[object, ...]", value))
        return tuple(sorted(cast("tuple[int, ...]", every))) if holds and all(isinstance(each, int) for each in every) else every
    return numbers[value] if holds and isinstance(value, int) else value


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, cast('tuple[object, ...]', value)))}]"
    return str(value)


def read_plan(text: str, kinds: Mapping[str, type[Plan]]) -> Plan:
    """The plan of a text. kinds: all plans by their names. Raises ValueError for a text that is no plan."""
    reader = _Reader(text, kinds)
    plan = reader.plan()
    if reader.position != len(text.rstrip()):
        raise ValueError(f"{text!r} goes on behind the plan of {plan.name}")
    return plan


class _Reader:
    def __init__(self, text: str, kinds: Mapping[str, type[Plan]]) -> None:
        self.text, self.kinds = text, kinds
        self.position = 0

    def take(self, wanted: str = "") -> str:
        """The next token; `wanted`, where that is given."""
        found = _TOKEN.match(self.text, self.position)
        if found is None or (wanted and found[1] != wanted):
            raise ValueError(f"at {self.position} of the plan {self.text!r}: {wanted or 'a word'} was expected")
        self.position = found.end()
        return found[1]

    def peek(self) -> str:
        found = _TOKEN.match(self.text, self.position)
        return found[1] if found is not None else ""

    def plan(self) -> Plan:
        name = self.take()
        if name not in self.kinds:
            raise ValueError(f"there is no plan {name!r}; there are {', '.join(self.kinds)}")
        kind = self.kinds[name]
        hints, values = get_type_hints(kind), dict[str, object]()
        self.take("{")
        for number, field in enumerate(fields(kind)):
            if number:
                self.take(",")
            self.take(field.name)
            self.take("=")
            values[field.name] = self.value(hints[field.name], f"{name}.{field.name}")
        self.take("}")
        return kind(**values)

    def value(self, hint: object, where: str) -> object:
        options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        if type(None) in options and self.peek() == "none":
            self.take()
            return None
        (kind,) = (each for each in options if each is not type(None))
        if get_origin(kind) is tuple:
            return self.values(get_args(kind)[0], where)
        if isinstance(kind, type) and issubclass(kind, Plan):
            plan = self.plan()
            if not isinstance(plan, kind):
                raise ValueError(f"{where} must be {kind.name}, not {plan.name}")
            return plan
        word = self.take()
        if kind is bool and word in ("true", "false"):
            return word == "true"
        if kind is int and re.fullmatch(r"-?\d+", word):
            return int(word)
        if kind is str and word not in ("{", "}", "[", "]", ",", "="):
            return word
        raise ValueError(f"{where}: {word!r} is no {getattr(kind, '__name__', kind)}")

    def values(self, hint: object, where: str) -> tuple[object, ...]:
        self.take("[")
        found: list[object] = []
        while self.peek() != "]":
            if found:
                self.take(",")
            found.append(self.value(hint, where))
        self.take("]")
        return tuple(found)
