"""Requests of a model with a skeleton as one call: instances one behind the other, by numbers of nodes and offsets of lists that count
on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from disc.artifact.skeletons import (
    CHOICE,
    INSTANCES,
    ITEMS,
    NODE,
    NODES,
    OTHER,
    PARTS,
    SkeletonRecord,
    SlotRecord,
    has_texts,
    tensors_of,
)
from disc.errors import NodeIndexError, ShapeConstraintError, StructureError

Array = npt.NDArray[np.generic]
Numbers = npt.NDArray[np.int64]


class Member(Protocol):
    """As of `disc.serving.joining`."""

    @property
    def inputs(self) -> list[Array]: ...

    @property
    def sizes(self) -> Mapping[str, int]: ...


class JoinInstances:
    """A way to join. No number of a request may lead to another's nodes or elements: each request's are checked before."""

    def __init__(self, record: SkeletonRecord, batching: bool, most_nodes: int) -> None:
        self._record = record
        self._slots = tensors_of(record["slots"])
        self._batching = batching
        self._most_nodes = most_nodes

    def rows(self, member: Member) -> int:
        return self._sizes(member)[INSTANCES]

    def _sizes(self, member: Member) -> list[int]:
        """How many positions each domain has. Raises ShapeConstraintError, StructureError."""
        sizes = [-1] * self._record["domains"]
        for slot, array in zip(self._slots, member.inputs, strict=True):
            count = len(array)
            if slot["kind"] == ITEMS:
                self._agree(sizes, slot, slot["inner"], self._elements(slot, array))
                count -= 1
            self._agree(sizes, slot, slot["domain"], count)
        return [max(each, 0) for each in sizes]

    @staticmethod
    def _agree(sizes: list[int], slot: SlotRecord, domain: int, count: int) -> None:
        if sizes[domain] not in (-1, count):
            raise ShapeConstraintError(f"input '{slot['name']}' has {count} elements where others have {sizes[domain]}")
        sizes[domain] = count

    @staticmethod
    def _elements(slot: SlotRecord, offsets: Array) -> int:
        if len(offsets) == 0 or offsets[0] != 0 or np.any(np.diff(offsets) < 0):
            raise StructureError(f"input '{slot['name']}' has offsets that do not ascend from 0: there is one more than there are lists")
        return int(offsets[-1])

    def key(self, member: Member) -> Hashable | None:
        """Raises NodeIndexError, StructureError, ShapeConstraintError."""
        nodes = self._sizes(member)[NODES]
        for slot, array in zip(self._slots, member.inputs, strict=True):
            if slot["kind"] not in (NODE, CHOICE):
                continue
            numbers, choices = cast("Numbers", array), slot.get("choices", [])
            count = nodes if slot["kind"] == NODE else len(choices)
            wrong = np.flatnonzero((numbers < (OTHER if has_texts(slot) else -1)) | (numbers >= count))
            if len(wrong):
                error, what = (NodeIndexError, "node") if slot["kind"] == NODE else (StructureError, "choice")
                raise error(f"{slot['name']}[{wrong[0]}]: {array[wrong[0]]} is no {what}; there are {count}")
        return "instances" if self._batching else None

    def admits(self, members: Sequence[Member], candidate: Member) -> bool:
        return sum(max(self._sizes(each)) for each in (*members, candidate)) <= self._most_nodes

    def join(self, members: Sequence[Member]) -> list[Array]:
        if len(members) == 1:
            return members[0].inputs
        nodes = np.cumsum([0, *(self._sizes(each)[NODES] for each in members)])
        joined: list[Array] = []
        for place, slot in enumerate(self._slots):
            parts = [each.inputs[place] for each in members]
            if slot["kind"] == NODE:
                numbers = cast("list[Numbers]", parts)
                parts = [np.where(each < 0, each, each + start) for each, start in zip(numbers, nodes.tolist(), strict=False)]
            elif slot["kind"] == ITEMS:
                starts = np.cumsum([0, *(int(each[-1]) for each in parts)]).tolist()
                parts = [(each + start)[bool(number) :] for number, (each, start) in enumerate(zip(parts, starts, strict=False))]
            joined.append(np.concatenate(parts))
        return joined

    def split(self, outputs: Sequence[Array], members: Sequence[Member]) -> list[list[Array]]:
        ends = np.cumsum([0, *map(self.rows, members)]).tolist()
        return [self._part(outputs, begin, end) for begin, end in pairwise(ends)]

    def _part(self, outputs: Sequence[Array], begin: int, end: int) -> list[Array]:
        """The results of instances [begin, end)."""
        ranges = {self._record["result"]: (begin, end)}
        found: list[Array] = []
        arrays = iter(outputs)
        for number, slot in enumerate(self._record["results"]):  # parts come behind what they are of
            first, last = ranges.get(number, (0, 0))
            if slot["kind"] == PARTS:
                ranges |= dict.fromkeys(slot["parts"], (first, last))
            if not slot["name"]:
                continue
            array = next(arrays)
            if slot["kind"] == ITEMS:
                ranges[slot["parts"][0]] = (int(array[first]), int(array[last]))
                found.append(array[first : last + 1] - array[first])
            else:
                found.append(array[first:last])
        return found

    def learn(self, members: Sequence[Member], seconds: float) -> None:
        return None
