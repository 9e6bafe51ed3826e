"""Constants of a skeleton: what its code names besides its own variables, as numbers of a manifest."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import Enum
from types import FunctionType, MethodType
from typing import Any, cast

import torch

from disc.artifact.skeletons import TAGS
from disc.frontend.batched.functions import Function
from disc.frontend.batched.values import CONSTANTS

Number = tuple[int, int]  # (tag, number); of a float its bits
NONE, BOOL, INT, FLOAT, TEXT, OBJECT = (TAGS.index(each) for each in ("none", "bool", "int", "float", "text", "object"))
LIST, TUPLE, UNSET = TAGS.index("list"), TAGS.index("tuple"), TAGS.index("unset")
_LARGEST = 1 << 63
MOST_OBJECTS = 4096


class Unsayable(Exception):
    """A value that a skeleton has no constant for."""


class NotSkeletal(Exception):
    """Why a model has no skeleton. new: only because some of it has not run yet."""

    def __init__(self, reason: str, *, new: bool = False) -> None:
        super().__init__(reason)
        self.new = new


class Entry:
    """What instances are given to where that is not the call of the model, `target`: the skeleton's first function."""

    def __init__(self, target: object) -> None:
        self.target = target


class Held:
    """An object among the constants. value is kept, so that its identity stays its own."""

    def __init__(self, value: Any, like: int, text: str) -> None:
        self.value, self.like, self.text = value, like, text
        self.items: list[Number] = []
        self.keys: list[Number] | None = None  # of a dict, whose values are the items
        self.attributes: dict[int, Number] = {}
        self.function = -1
        self.bound: list[Number] = []


class Constants:
    """The constants, objects and texts of one skeleton."""

    def __init__(self, find: Callable[[Any], Function | None]) -> None:
        self.numbers: list[Number] = []
        self.texts: list[str] = []
        self._text_numbers: dict[str, int] = {}
        self.objects: list[Held] = []
        self._find = find
        self._places: dict[Number, int] = {}
        self._known: dict[object, int] = {}

    def place(self, number: Number) -> int:
        """The place of a constant in the table."""
        if number not in self._places:
            self._places[number] = len(self.numbers)
            self.numbers.append(number)
        return self._places[number]

    def number(self, value: Any) -> Number:
        """Raises Unsayable."""
        if value is None:
            return NONE, 0
        if isinstance(value, bool):
            return BOOL, int(value)
        if isinstance(value, int):
            if not -_LARGEST <= value < _LARGEST:
                raise Unsayable(f"{value} has more than 64 bits")
            return INT, int(value)
        if isinstance(value, float):
            return FLOAT, struct.unpack("<q", struct.pack("<d", value))[0]
        if isinstance(value, str):
            return TEXT, self._text(value)
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            raise Unsayable("a tensor that is no parameter")
        return OBJECT, self.object(value)

    def _text(self, value: str) -> int:
        number = self._text_numbers.get(value)
        if number is None:
            if any("\ud800" <= each <= "\udfff" for each in value):
                raise Unsayable(f"{value!r} is not Unicode")
            number = self._text_numbers[value] = len(self.texts)
            self.texts.append(value)
        return number

    def key(self, value: Any) -> object:
        """What names an object."""
        if isinstance(value, MethodType):
            return "method", id(value.__func__), id(value.__self__)
        return id(value)

    def known(self, key: object) -> int | None:
        """The number of the object that a key names."""
        return self._known.get(key)

    def object(self, value: Any) -> int:
        """The number of an object. Raises Unsayable."""
        key = self.key(value)
        if key in self._known:
            return self._known[key]
        if len(self.objects) >= MOST_OBJECTS:
            raise Unsayable("more constant objects than a skeleton has")
        plain = type(value) in (list, tuple, torch.Size)
        # a container comes behind what it holds
        items = [self.number(each) for each in cast("Sequence[Any]", value)] if plain else []
        like = OBJECT if not plain else LIST if isinstance(value, list) else TUPLE
        self._known[key] = len(self.objects)
        held = Held(value, like, _text_of(value))
        self.objects.append(held)
        held.items = items
        if type(value) is dict:
            held.keys, held.items = self._dict(value)
        if not plain and isinstance(value, torch.nn.ModuleList | torch.nn.Sequential | tuple | list):
            held.items = [self.number(each) for each in value]
        return self._known[key]

    def _dict(self, value: dict[Any, Any]) -> tuple[list[Number] | None, list[Number]]:
        """The keys and values of a dict that is only asked; no keys where the runtime could not find one as Python does."""
        if not all(type(each) in (str, int) or (isinstance(each, Enum) and is_plain_enum(type(each))) for each in value):
            return None, []
        try:
            return [self.number(each) for each in value], [self.number(each) for each in value.values()]
        except Unsayable:
            return None, []

    def finish(self, names: dict[str, int], functions: dict[Function, int], asked: set[str]) -> None:
        """Fills in what the code may ask of objects: attributes of these names, and calls. asked: names of those whose presence it asks."""
        done = 0
        while done < len(self.objects):
            held = self.objects[done]
            done += 1
            if held.like != OBJECT or isinstance(held.value, (*CONSTANTS, dict)):
                continue
            if isinstance(held.value, Entry):
                target = held.value.target
                held.function, held.bound = 0, [self.number(target)] if isinstance(target, torch.nn.Module) else []
                continue
            for name, number in names.items():
                self._attribute(held, name, number, name in asked)
            function = self._find(held.value)
            if function is not None and function in functions:
                held.function = functions[function]
                owner = getattr(held.value, "__self__", held.value if isinstance(held.value, torch.nn.Module) else None)
                held.bound = [] if isinstance(held.value, FunctionType) else [self.number(owner)]

    def _attribute(self, held: Held, name: str, number: int, asked: bool) -> None:
        unknown = {number: (UNSET, 0)} if asked else {}
        if isinstance(getattr(type(held.value), name, None), property):
            held.attributes |= unknown  # may tell something else later
            return
        try:
            held.attributes[number] = self.number(getattr(held.value, name))
        except AttributeError:
            return  # nobody asks for it, or the call fails with its name
        except Unsayable:
            held.attributes |= unknown

    def records(self) -> list[list[object]]:
        """The objects as the manifest has them."""
        return [
            [
                each.like,
                each.text,
                each.items,
                sorted(each.attributes.items()),
                each.function,
                each.bound,
                each.keys is None and (bool(each.items) or each.like != OBJECT),
                *([] if each.keys is None else [each.keys]),
            ]
            for each in self.objects
        ]


def is_plain_enum(kind: type) -> bool:
    """Whether members of an enum equal themselves alone."""
    return kind.__eq__ is object.__eq__ and kind.__hash__ is Enum.__hash__


def _text_of(value: Any) -> str:
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    return str(getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__name__)
