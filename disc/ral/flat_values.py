"""Instances of a model with a skeleton → the tensors that it takes, and its tensors → results (`disc.artifact.skeletons`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from disc.artifact.manifest import STORAGE
from disc.artifact.skeletons import (
    CHOICE,
    DTYPES,
    ITEMS,
    NODE,
    NOTHING,
    OPTIONAL,
    OTHER,
    PARTS,
    REAL,
    TENSOR,
    TRUTH,
    SkeletonRecord,
    SlotRecord,
    choices_of,
    has_texts,
)
from disc.errors import MissingFieldError, NodeKindError, TooManyNodesError

Array = npt.NDArray[np.generic]
NONE = -1
_STORED = {**STORAGE, "i1": np.dtype(np.bool_)}


def dtype_of(record: SkeletonRecord, slot: SlotRecord) -> np.dtype[Any]:
    """That of a slot's tensor."""
    return _STORED[record["tables"][slot["table"]]["dtype"] if slot["kind"] == TENSOR else DTYPES[slot["kind"]]]


def flat_instances(record: SkeletonRecord, instances: Sequence[object], most: int) -> list[Array]:
    """The tensors in the order of inputs. Nodes are mappings, or objects with attributes; one that is met twice is one node.

    Raises NodeKindError for what is of another type than the model was saved for, MissingFieldError, TooManyNodesError.
    """
    return _Flattening(record, most).arrays(instances)


def _has(node: Any, name: str) -> bool:
    return name in node if isinstance(node, Mapping) else hasattr(node, name)


class _Flattening:
    """columns: of each slot, its elements. nodes: in the order of their numbers."""

    def __init__(self, record: SkeletonRecord, most: int) -> None:
        self._record, self._slots, self._most = record, record["slots"], most
        self._columns: list[list[Any]] = [[0] if each["kind"] == ITEMS else [] for each in self._slots]
        self._counts = [0] * len(self._slots)  # elements of lists so far
        self._nodes: list[Any] = []
        self._paths: list[str] = []
        self._numbers: dict[int, int] = {}
        fields = [cast("list[tuple[str, int, int]]", node["fields"]) for node in record["nodes"]]
        self._own = [{name for name, _, _ in own} for own in fields]
        self._open = [node["like"] == "mapping" for node in record["nodes"]]  # dicts may hold more than is read
        self._needed = [{name for name, _, presence in own if presence < 0} for own in fields]
        self._fields = {name: (slot, presence) for own in fields for name, slot, presence in own}
        self._choices = {
            slot["name"]: {text: number for number, text in enumerate(choices_of(record, slot))}
            for slot in self._slots
            if slot["kind"] == CHOICE
        }

    def arrays(self, instances: Sequence[object]) -> list[Array]:
        for number, each in enumerate(instances):
            self._write(self._record["root"], each, f"[{number}]")
        at = 0
        while at < len(self._nodes):  # grows by what each leads to
            self._node(at)
            at += 1
        return [self._array(slot, column) for slot, column in zip(self._slots, self._columns, strict=True) if slot["name"]]

    def _array(self, slot: SlotRecord, column: list[Any]) -> Array:
        dtype = dtype_of(self._record, slot)
        if slot["kind"] != TENSOR:
            return np.array(column, dtype)
        dims = self._record["tables"][slot["table"]]["dims"]
        return np.stack(column).astype(dtype, copy=False) if column else np.empty((0, *dims), dtype)

    def _node(self, number: int) -> None:
        node, path = self._nodes[number], self._paths[number]
        kind = self._class(node, path)
        for name, (slot, presence) in self._fields.items():
            here = name in self._own[kind] and (presence < 0 or _has(node, name))
            if here:
                self._write(slot, self._held(node, name, path), f"{path}.{name}")
            else:
                self._write_nothing(slot)
            if presence >= 0:
                self._columns[presence].append(here)
        if self._record["kind"] >= 0:
            self._columns[self._record["kind"]].append(kind)

    def _class(self, node: Any, path: str) -> int:
        """By name; else by what it has."""
        names = [each["name"] for each in self._record["nodes"]]
        if len(names) == 1:
            if isinstance(node, Mapping) and not node.keys() <= self._own[0] and not self._open[0]:
                self._refuse(
                    path, f"it has {sorted(map(str, node.keys() - self._own[0]))[0]!r}; nodes have {', '.join(sorted(self._own[0]))}"
                )
            return 0
        named = node.get("class") if isinstance(node, Mapping) else type(node).__name__
        if named in names:
            return names.index(named)
        keys = set(node) if isinstance(node, Mapping) else {name for name in self._fields if hasattr(node, name)}
        fitting = [place for place, own in enumerate(self._own) if self._needed[place] <= keys and (self._open[place] or keys <= own)]
        unknown = not any(self._open) and sorted(str(each) for each in keys if each not in self._fields and each != "class")
        if unknown:
            wanted = "; ".join(f"a {name} has {', '.join(sorted(own)) or 'nothing'}" for name, own in zip(names, self._own, strict=True))
            self._refuse(path, f"it has {unknown[0]!r}; {wanted}")
        if len(fitting) != 1:
            self._refuse(path, f'it is none of {", ".join(names)}, or may be several: name its "class"')
        return fitting[0]

    def _held(self, node: Any, name: str, path: str) -> object:
        slot = self._slots[self._fields[name][0]]
        if isinstance(node, Mapping):
            if name in node or slot["kind"] in (NODE, OPTIONAL, NOTHING):
                return node.get(name)
            if slot["kind"] == ITEMS:
                return ()
        elif hasattr(node, name):
            return getattr(node, name)
        raise MissingFieldError(f"{self._record['name']}{path}: it has no '{name}'")

    def _number(self, node: Any, path: str) -> int:
        known = self._numbers.get(id(node))
        if known is not None:
            return known
        if isinstance(node, str | bytes | int | float | list | tuple) and not hasattr(node, "_fields"):
            self._refuse(path, f"it is {str(node)[:40]!r}, not a node")
        if len(self._nodes) >= self._most:
            raise TooManyNodesError(f"the structures have more than {self._most} nodes")
        self._nodes.append(node)
        self._paths.append(path if len(path) < 200 else f"...{path[-120:]}")
        return self._numbers.setdefault(id(node), len(self._nodes) - 1)

    def _write(self, number: int, value: Any, path: str) -> None:
        slot = self._slots[number]
        kind, column = slot["kind"], self._columns[number]
        if kind == NODE:
            column.append(NONE if value is None else self._number(value, path))
        elif kind == ITEMS:
            if not isinstance(value, list | tuple):
                self._refuse(path, f"it is a {type(value).__name__}, not a list")
            for place, each in enumerate(value):
                self._write(slot["parts"][0], each, f"{path}[{place}]")
            column.append(column[-1] + len(value))
        elif kind == PARTS:
            if not isinstance(value, list | tuple) or len(value) != len(slot["parts"]):
                self._refuse(path, f"it is no tuple of {len(slot['parts'])}")
            for place, (part, each) in enumerate(zip(slot["parts"], value, strict=True)):
                self._write(part, each, f"{path}[{place}]")
        elif kind == NOTHING:
            if value is not None:
                self._refuse(path, f"it is a {type(value).__name__}; when the model was saved there was nothing")
        else:
            column.append(self._scalar(slot, value, path))

    def _scalar(self, slot: SlotRecord, value: Any, path: str) -> Any:
        kind = slot["kind"]
        if kind == TENSOR:
            return self._tensor(slot, value, path)
        if kind in (OPTIONAL, CHOICE) and value is None:
            return NONE
        if kind == CHOICE:
            return self._choice(slot, value, path)
        if isinstance(value, np.bool_ | np.integer | np.floating):
            value = value.item()
        good = {TRUTH: isinstance(value, bool), REAL: isinstance(value, int | float) and not isinstance(value, bool)}.get(
            kind, isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63
        )
        if kind == OPTIONAL and good and value < 0:
            self._refuse(path, f"it is {value}: where it may be None, integers are 0 or more")
        if not good:
            self._refuse(
                path, f"it is {str(value)[:40]!r}, not {'a bool' if kind == TRUTH else 'a number' if kind == REAL else 'an integer'}"
            )
        return value

    def _choice(self, slot: SlotRecord, value: Any, path: str) -> int:
        """The number of a text, or of an enum's member: itself, its name, or that with its class's."""
        known, texts = self._choices[slot["name"]], has_texts(slot)
        named = f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else value
        if texts and type(value) is str:
            return known.get(value, OTHER)
        if not texts and isinstance(named, str):
            found = [number for text, number in known.items() if named == text or (value is named and text.endswith(f".{named}"))]
            if len(found) == 1:
                return found[0]
        self._refuse(path, f"it is {str(value)[:40]!r}, not {'a text' if texts else 'one of ' + ', '.join(known)}")

    def _tensor(self, slot: SlotRecord, value: Any, path: str) -> Array:
        table, dtype = self._record["tables"][slot["table"]], dtype_of(self._record, slot)
        torch = sys.modules.get("torch")
        array = value.detach().numpy() if torch is not None and isinstance(value, torch.Tensor) else np.asarray(value)
        if list(array.shape) != table["dims"] or (array.dtype != dtype and not isinstance(value, list)):
            found = "None" if value is None else f"{array.dtype}{list(array.shape)}"
            self._refuse(path, f"it is {found}, not {np.dtype(dtype)}{table['dims']}")
        return array.astype(dtype, copy=False)

    def _write_nothing(self, number: int) -> None:
        """A position of an attribute that the node's class has not."""
        slot = self._slots[number]
        if slot["kind"] == ITEMS:
            self._columns[number].append(self._columns[number][-1])
        elif slot["kind"] == PARTS:
            for part in slot["parts"]:
                self._write_nothing(part)
        elif slot["kind"] == TENSOR:
            self._columns[number].append(np.zeros(self._record["tables"][slot["table"]]["dims"], dtype_of(self._record, slot)))
        elif slot["kind"] != NOTHING:
            self._columns[number].append(NONE if slot["kind"] in (NODE, OPTIONAL, CHOICE) else 0)

    def _refuse(self, path: str, what: str) -> NoReturn:
        raise NodeKindError(f"{self._record['name']}{path}: {what}")


def results_of(record: SkeletonRecord, arrays: Sequence[Array], count: int, made: Any = None) -> list[object]:
    """The result of each of `count` instances, from the tensors in the order of outputs. made: what makes the user's tensor of an array."""
    slots = record["results"]
    named = dict(zip((number for number, slot in enumerate(slots) if slot["name"]), arrays, strict=True))

    def read(number: int, position: int) -> object:
        slot = slots[number]
        kind = slot["kind"]
        if kind == PARTS:
            parts = [read(part, position) for part in slot["parts"]]
            return dict(zip(slot["keys"], parts, strict=True)) if "keys" in slot else tuple(parts)
        if kind == NOTHING:
            return None
        array = named[number]
        if kind == ITEMS:
            found = [read(slot["parts"][0], each) for each in range(int(array[position]), int(array[position + 1]))]
            return tuple(found) if slot["tuple"] else found
        if kind == TENSOR:
            return made(array[position]) if made is not None else array[position]
        found = array[position].item()
        return found if kind != CHOICE else texts[number][found] if found >= 0 else None

    texts = {number: choices_of(record, slot) for number, slot in enumerate(slots) if slot["kind"] == CHOICE}
    return [read(record["result"], each) for each in range(count)]
