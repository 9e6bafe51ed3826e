"""Structures as nested mappings, such as JSON has them, → the arrays that a model over structures takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from disc.artifact.structures import StructuresRecord
from disc.errors import NodeKindError, TooManyNodesError
from disc.ral.schedule import Numbers

NONE = -1
Node = Mapping[str, object]


def flat_arrays(record: StructuresRecord, instances: Sequence[Node], most: int) -> list[Numbers]:
    """The arrays in the order of `tensor_names`: columns, fields [nodes], roots [instances]. A mapping that is met twice is one node.

    Raises NodeKindError for keys that nodes do not have, numbers that are no integers, and children that are no mappings, with the path;
    TooManyNodesError.
    """
    return _Flattening(record, most).arrays(instances)


class _Flattening:
    """nodes: in the order of their numbers, parents before children; path: of each the parent's number and the field."""

    def __init__(self, record: StructuresRecord, most: int) -> None:
        self._record, self._most = record, most
        self._known = {*record["columns"], *record["fields"]}
        self._nodes: list[Node] = []
        self._path: list[tuple[int, str]] = []
        self._numbers: dict[int, int] = {}

    def arrays(self, instances: Sequence[Node]) -> list[Numbers]:
        roots = [self._number(each, NONE, f"[{place}]") for place, each in enumerate(instances)]
        fields: dict[str, list[int]] = {name: [] for name in self._record["fields"]}
        columns: dict[str, list[int]] = {name: [] for name in self._record["columns"]}
        number = 0
        while number < len(self._nodes):  # grows by the children of each
            node = self._nodes[number]
            if not node.keys() <= self._known:
                self._refuse(
                    number, f"it has {sorted(map(str, node.keys() - self._known))[0]!r}; nodes have {', '.join(sorted(self._known))}"
                )
            for name, children in fields.items():
                children.append(self._child(number, name, node.get(name)))
            for name, numbers in columns.items():
                numbers.append(self._value(number, name, node.get(name)))
            number += 1
        return [np.array(each, np.int64) for each in (*columns.values(), *fields.values(), roots)]

    def _number(self, node: Node, parent: int, name: str) -> int:
        known = self._numbers.get(id(node))
        if known is not None:
            return known
        if len(self._nodes) >= self._most:
            raise TooManyNodesError(f"the structures have more than {self._most} nodes")
        self._nodes.append(node)
        self._path.append((parent, name))
        return self._numbers.setdefault(id(node), len(self._nodes) - 1)

    def _child(self, number: int, name: str, child: object) -> int:
        if child is None:
            return NONE
        if not isinstance(child, Mapping):
            self._refuse(number, f"{name} is a {type(child).__name__}, not a node")
        return self._number(child, number, name)

    def _value(self, number: int, name: str, value: object) -> int:
        if value is None:
            return NONE
        if isinstance(value, np.integer):
            value = int(value)
        if not isinstance(value, int) or not NONE <= value < 1 << 63:
            self._refuse(number, f"{name} is {str(value)[:40]!r}, not an integer from 0")
        return int(value)

    def _refuse(self, number: int, what: str) -> NoReturn:
        steps: list[str] = []
        while number != NONE:
            number, name = self._path[number]
            steps.append(name)
        path = steps[::-1] if len(steps) <= 10 else [*steps[:-6:-1], "...", *steps[4::-1]]
        raise NodeKindError(f"{self._record['name']}{'.'.join(path)}: {what}")
