"""How a model's instances and results lie in tensors, learnt from examples: slots of `disc.artifact.skeletons`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from types import FunctionType, SimpleNamespace
from typing import Any, cast

import torch

from disc.artifact.skeletons import (
    CHOICE,
    INSTANCES,
    INTEGER,
    ITEMS,
    NODE,
    NODES,
    NOTHING,
    OPTIONAL,
    PARTS,
    REAL,
    TENSOR,
    TRUTH,
    NodeRecord,
    SlotRecord,
)
from disc.frontend.batched.rows import RowClass, row_class
from disc.frontend.batched.skeleton_values import TEXT, Constants, NotSkeletal, Unsayable, is_plain_enum

MOST_LEARNT = 4096  # nodes that a property is tried on
MOST_CLASSES = 30  # of nodes: bits of `is_instance`
ODD = ("__bool__", "__len__", "__iter__", "__getitem__", "__getattr__")  # methods by which an object is more than its attributes
_SCALARS = (bool, int, float, str, bytes, complex, type(None))


def odd_method(kind: type) -> str:
    """A method by which objects of a class are more than their attributes, or than a named tuple or dict; empty where it has none. What its
    metaclass has is no matter."""
    if kind is dict:
        return ""
    known = (tuple,) if is_named_tuple(kind) else ()
    return next((name for name in ODD if any(name in vars(each) for each in kind.__mro__ if each not in known)), "")


def is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _like(kind: type) -> str:
    return "mapping" if kind is dict else "tuple" if is_named_tuple(kind) else "object"


def _equality(kind: type) -> str:
    """What an object of a class may equal besides itself."""
    own: Any = kind.__eq__
    if own is object.__eq__:
        return "identity"
    generated = dataclasses.is_dataclass(kind) and isinstance(own, FunctionType) and own.__code__.co_filename == "<string>"
    return "nodes" if generated or own in (SimpleNamespace.__eq__, dict.__eq__, tuple.__eq__) else "unknown"


def is_held(value: Any, name: str) -> bool:
    """Whether a node has an attribute, or a dict a key."""
    return name in value if type(value) is dict else hasattr(value, name)


def held_by(value: Any, name: str) -> Any:
    return value[name] if type(value) is dict else getattr(value, name)


class Slots:
    """Slots that are found. table: the number of a class of rows. constants: of the skeleton, which texts and enums are among."""

    def __init__(self, table: Callable[[RowClass], int], constants: Constants) -> None:
        self.records: list[SlotRecord] = []
        self.domains = 2
        self.converted: str | None = None  # what is something else than it was as it lies in tensors
        self._table = table
        self._constants = constants

    def found(self, values: Sequence[Any], name: str, domain: int, *, results: bool = False) -> int:
        """The number of the slot that these values fit, one for each of some positions. Raises NotSkeletal."""
        given = [each for each in values if each is not None]
        kinds = {type(each) for each in given}
        number = self.add(NOTHING, "", domain)
        record = self.records[number]
        if not given:
            return number
        if kinds == {str} or (not results and all(issubclass(each, Enum) for each in kinds)):
            self._fill(record, CHOICE, name)
            record["choices"] = self._choices([*dict.fromkeys(map(type, given))], given, name)
            return number
        if kinds == {bool}:
            self._fill(record, TRUTH, name)
        elif kinds == {int}:
            self._fill(record, INTEGER, name)
        elif kinds <= {int, float}:
            self._fill(record, REAL, name)
            if int in kinds:
                self.converted = f"{name} is an int or a float"
        elif all(isinstance(each, torch.Tensor) for each in given):
            self._tensor(record, given, name)
        elif kinds == {tuple} and len({len(each) for each in given}) == 1:
            record["kind"] = PARTS
            parts = list(zip(*given, strict=True))
            record["parts"] = [
                self.found(part, _part_name(name, place, results), domain, results=results) for place, part in enumerate(parts)
            ]
        elif results and kinds == {dict} and given[0]:
            self._keyed(record, given, name)
        elif kinds in ({list}, {tuple}):
            self._items(record, given, name, results)
        elif (
            results
            or any(issubclass(each, (*_SCALARS, dict, set, frozenset)) and each is not dict for each in kinds)
            or kinds & {list, tuple}
        ):
            raise NotSkeletal(f"{name} is {_names(kinds)}, which tensors cannot say")
        else:
            self._fill(record, NODE, name)
            return number
        self._check_none(record, values, given, name)
        return number

    def _check_none(self, record: SlotRecord, values: Sequence[Any], given: Sequence[Any], name: str) -> None:
        if len(given) == len(values):
            return
        if record["kind"] != INTEGER or min(given) < 0:
            raise NotSkeletal(f"{name} is sometimes None and sometimes {_names(map(type, given))}, which tensors cannot say")
        record["kind"] = OPTIONAL

    def _choices(self, kinds: Sequence[type], given: Sequence[Any], name: str) -> list[list[int]]:
        """All members of enums; texts as they have been found so far, `finish` adds others. Raises NotSkeletal."""
        odd = next((each for each in kinds if each is not str and (not is_plain_enum(each) or odd_method(each))), None)
        if odd is not None:
            raise NotSkeletal(f"{name} is a {odd.__name__}, an enum whose members are more than names: they are compared or asked by code")
        if len({each.__name__ for each in kinds}) < len(kinds):
            raise NotSkeletal(f"{name} is of several enums of the name {kinds[0].__name__}")
        members = [each for kind in kinds if kind is not str for each in cast("type[Enum]", kind)]
        values: list[Any] = members or ["", *dict.fromkeys(given)]
        found: list[list[int]] = []
        for each in values:
            try:
                found.append([*self._constants.number(each)])
            except Unsayable as reason:
                if members:
                    raise NotSkeletal(f"{name}: {reason}") from None
        return found

    def finish(self) -> None:
        """Takes all texts of the skeleton for choices, when it has them all: so another text is none that code compares with."""
        for each in self.records:
            if any(tag == TEXT for tag, _ in each.get("choices", [])):
                each["choices"] = [[TEXT, number] for number in range(len(self._constants.texts))]

    def add(self, kind: str, name: str, domain: int) -> int:
        self.records.append({"kind": kind, "name": name, "domain": domain, "inner": 0, "table": 0, "parts": [], "tuple": False})
        return len(self.records) - 1

    @staticmethod
    def _fill(record: SlotRecord, kind: str, name: str) -> None:
        record["kind"], record["name"] = kind, name

    def _tensor(self, record: SlotRecord, given: Sequence[torch.Tensor], name: str) -> None:
        classes = {row_class(each) for each in given}
        if len(classes) > 1:
            raise NotSkeletal(f"{name} is a tensor of several shapes or dtypes ({', '.join(sorted(map(str, classes)))})")
        self._fill(record, TENSOR, name)
        record["table"] = self._table(classes.pop())

    def _keyed(self, record: SlotRecord, given: Sequence[dict[Any, Any]], name: str) -> None:
        """Results that are dicts of the same texts."""
        keys = list(given[0])
        if any(list(each) != keys for each in given) or not all(type(key) is str for key in keys):
            raise NotSkeletal(f"{name} is a dict of other keys each time, or of keys that are no texts, which tensors cannot say")
        record["kind"], record["keys"] = PARTS, keys
        names = [key if name == "output" else f"{name}.{key}" for key in keys]
        record["parts"] = [
            self.found([each[key] for each in given], own, record["domain"], results=True) for key, own in zip(keys, names, strict=True)
        ]

    def _items(self, record: SlotRecord, given: Sequence[Sequence[Any]], name: str, results: bool) -> None:
        self._fill(record, ITEMS, f"{name}.offsets")
        record["inner"], record["tuple"] = self.domains, type(given[0]) is tuple
        if record["tuple"]:
            self.converted = f"{name} is a tuple of any length"
        self.domains += 1
        elements = [part for each in given for part in each]
        nested = bool(elements) and isinstance(elements[0], list | tuple)
        record["parts"] = [self.found(elements, f"{name}.items" if nested else name, record["inner"], results=results)]


def _part_name(name: str, place: int, results: bool) -> str:
    return f"{name}{place}" if results and name == "output" else f"{name}.{place}"


def _names(kinds: Iterable[type]) -> str:
    return " or ".join(sorted({each.__name__ for each in kinds}))


@dataclasses.dataclass
class Asked:
    """What the code asks of nodes. attributes: that it reads, with the "file:line"; presence: of those whose presence it asks; methods:
    that it calls; keys: texts that may be keys of dicts."""

    attributes: dict[str, str]
    presence: set[str]
    methods: set[str]
    keys: set[str]


class Instances:
    """What examples show of instances."""

    def __init__(self, name: str, examples: Sequence[Any], asked: Asked, slots: Slots) -> None:
        self.name = name
        self.slots = slots
        self.getters: dict[str, list[FunctionType]] = {}
        self.methods: dict[str, dict[type, FunctionType]] = {}
        self._asked = asked
        self._seen: list[Any] = []
        self._known: set[int] = set()
        self.classes: list[type] = []
        for each in examples:
            self._reach(each)
        self._check_classes()
        self._find_methods()
        self.attributes = [*dict.fromkeys(name for kind in self.classes for name in self._names(kind))]
        self.fields = self._fields()
        self.root = self.slots.found(examples, name, INSTANCES)
        if self._is_node(self.root):
            self.slots.records[self.root]["name"] = f"{name}.root"
        self.nodes: list[NodeRecord] = []
        self.names: dict[str, int] = {}
        self.presences: dict[str, int] = {}
        self.kind = self._node_slots()

    def _is_node(self, slot: int) -> bool:
        return self.slots.records[slot]["kind"] == NODE

    def mask(self, kind: type) -> int:
        """The bits of classes of nodes that are of a type."""
        return sum(1 << place for place, each in enumerate(self.classes) if issubclass(each, kind))

    def field_mask(self, name: str) -> int:
        """The bits of classes that hold an attribute."""
        return sum(1 << place for place, each in enumerate(self.classes) if name in self.fields[each])

    def getter_masks(self, name: str) -> list[tuple[FunctionType, int]]:
        """The functions of properties of this name, each with the bits of classes that have it."""
        owners = [(each, inspect.getattr_static(each, name, None)) for each in self.classes]
        return self._masks({kind: held.fget for kind, held in owners if isinstance(held, property) and isinstance(held.fget, FunctionType)})

    def method_masks(self, name: str) -> list[tuple[FunctionType, int]]:
        """The same of methods."""
        return self._masks(self.methods.get(name, {}))

    def methods_of(self, kind: type) -> list[tuple[str, FunctionType]]:
        """The methods that the code calls of nodes of a class."""
        return [(name, own[kind]) for name, own in self.methods.items() if kind in own]

    def _masks(self, functions: dict[type, FunctionType]) -> list[tuple[FunctionType, int]]:
        return [
            (function, sum(1 << self.classes.index(kind) for kind, own in functions.items() if own is function))
            for function in dict.fromkeys(functions.values())
        ]

    def _find_methods(self) -> None:
        for kind in self.classes:
            for name in self._asked.methods:
                held = inspect.getattr_static(kind, name, None)
                if isinstance(held, FunctionType):
                    self.methods.setdefault(name, {})[kind] = held

    def with_getter(self, name: str, getter: FunctionType) -> list[Any]:
        """Nodes whose attribute is found by a property's function."""
        found = [each for each in self._seen if getattr(inspect.getattr_static(type(each), name, None), "fget", None) is getter]
        return found[:MOST_LEARNT]

    def _reach(self, start: Any) -> None:
        """Finds the nodes that attributes lead to, without Python's stack."""
        waiting = [start]
        while waiting:
            value = waiting.pop()
            if isinstance(value, list | tuple):
                waiting += value
            odd = isinstance(value, (*_SCALARS, Enum, list, tuple, dict, set, frozenset, torch.Tensor))
            if (odd and type(value) is not dict and not is_named_tuple(type(value))) or id(value) in self._known:
                continue
            self._known.add(id(value))
            self._seen.append(value)
            if type(value) not in self.classes:
                self.classes.append(type(value))
            waiting += [held_by(value, name) for name in self._names(type(value)) if self._holds(value, name)]

    def _names(self, kind: type) -> list[str]:
        """What the code may ask of nodes of a class."""
        if kind is dict:
            return sorted(self._asked.keys)
        fields: tuple[str, ...] = kind._fields if is_named_tuple(kind) else ()  # pyright: ignore[reportAttributeAccessIssue]
        return [*dict.fromkeys([*self._asked.attributes, *fields])]

    def _holds(self, value: Any, name: str) -> bool:
        """Whether an attribute is data that the object has; notes properties. Raises NotSkeletal for methods."""
        if type(value) is dict:
            return name in value
        held = inspect.getattr_static(type(value), name, None)
        if isinstance(held, property) and isinstance(held.fget, FunctionType):
            known = self.getters.setdefault(name, [])
            if held.fget not in known:
                known.append(held.fget)
            return False
        if isinstance(held, FunctionType):
            raise NotSkeletal(f"{self._asked.attributes[name]} reads the method '{name}' of an instance's class, and does not call it")
        return hasattr(value, name)

    def _check_classes(self) -> None:
        if len(self.classes) > MOST_CLASSES:
            raise NotSkeletal(f"its instances are of {len(self.classes)} classes; at most {MOST_CLASSES} are saved")
        for each in self.classes:
            odd = odd_method(each)
            if odd:
                raise NotSkeletal(f"instances are of the class {each.__name__}, which has {odd}: only attributes are read")

    def _fields(self) -> dict[type, list[str]]:
        """The attributes of each class that its nodes may hold: whose presence is asked, all that are no properties or methods."""
        return {
            kind: [
                name
                for name in self._names(kind)
                if (name in self._asked.presence and self._is_data(kind, name))
                or any(self._holds(each, name) for each in self._seen if type(each) is kind)
            ]
            for kind in self.classes
        }

    @staticmethod
    def _is_data(kind: type, name: str) -> bool:
        return kind is dict or not isinstance(inspect.getattr_static(kind, name, None), property | FunctionType)

    def _node_slots(self) -> int:
        """The slots of attributes; the number of that of a node's class."""
        for name in self.attributes:
            holders = [each for each in self._seen if name in self.fields[type(each)]]
            if holders:
                self._field(name, holders)
        for kind in self.classes:
            self.nodes.append(
                {
                    "name": kind.__name__,
                    "fields": [[name, self.names[name], self.presences.get(name, -1)] for name in self.fields[kind]],
                    "like": _like(kind),
                    "parts": [self.names[name] for name in kind._fields] if is_named_tuple(kind) else [],  # pyright: ignore
                    "equality": _equality(kind),
                }
            )
        if len(self.classes) < 2:
            return -1
        self.slots.records.append(
            {"kind": INTEGER, "name": f"{self.name}.class", "domain": NODES, "inner": 0, "table": 0, "parts": [], "tuple": False}
        )
        return len(self.slots.records) - 1

    def _field(self, name: str, holders: Sequence[Any]) -> None:
        """The slot of an attribute, and one that says which nodes have it, where some of the classes' have not."""
        own = [each for each in holders if is_held(each, name)]
        self.names[name] = self.slots.found([held_by(each, name) for each in own], f"{self.name}.{name}", NODES)
        if name in self._asked.presence or len(own) < len(holders):
            self.presences[name] = self.slots.add(TRUTH, f"{self.name}.{name}.has", NODES)
