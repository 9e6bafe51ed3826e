"""How requests become one call of the model, and how its results are split again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from disc.artifact.bounds import SHARED
from disc.artifact.structures import ROOT, StructuresRecord
from disc.errors import ConfigurationError, InputRankError, NodeIndexError, RequestError, ShapeConstraintError
from disc.serving.cost import CallCost
from disc.serving.join_instances import JoinInstances
from disc.serving.packing import PackedLayout
from disc.serving.settings import ModelSettings
from disc.serving.settings import Sequence as SequenceSettings
from disc.serving.signature import Batch, Signature
from disc.serving.tensors import Array

Inputs = list[Array]


class Member(Protocol):
    """What joining sees of a waiting request. sizes: of every symbol."""

    @property
    def inputs(self) -> Inputs: ...

    @property
    def sizes(self) -> Mapping[str, int]: ...


class Joining(Protocol):
    """A way to join. Requests with equal keys may be joined, if `admits` finds that it pays; None = this request runs alone."""

    def rows(self, member: Member) -> int: ...

    def key(self, member: Member) -> Hashable | None: ...

    def admits(self, members: Sequence[Member], candidate: Member) -> bool: ...

    def join(self, members: Sequence[Member]) -> Inputs: ...

    def split(self, outputs: Sequence[Array], members: Sequence[Member]) -> list[list[Array]]: ...

    def learn(self, members: Sequence[Member], seconds: float) -> None: ...


class Alone:
    """No joining: the model has no proved batch dim, or its settings say no."""

    def rows(self, member: Member) -> int:
        return 1

    def key(self, member: Member) -> None:
        return None

    def admits(self, members: Sequence[Member], candidate: Member) -> bool:
        return False

    def join(self, members: Sequence[Member]) -> Inputs:
        (member,) = members
        return member.inputs

    def split(self, outputs: Sequence[Array], members: Sequence[Member]) -> list[list[Array]]:
        return [list(outputs)]

    def learn(self, members: Sequence[Member], seconds: float) -> None:
        return None


def _without(array: Array, axes: Sequence[int | None]) -> Hashable:
    """What has to be equal of an input: its other sizes, and all of one that requests have in common."""
    sizes = tuple(size for axis, size in enumerate(array.shape) if axis not in axes)
    return (sizes, array.tobytes()) if SHARED in axes else sizes


class Concatenate:
    """Requests that agree in all other sizes, concatenated along the batch dim."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def rows(self, member: Member) -> int:
        return member.sizes[self.batch.symbol]

    def key(self, member: Member) -> Hashable | None:
        if not self.joinable(member):
            return None
        return tuple(_without(array, (axis,)) for array, axis in self._with_axes(member))

    def _with_axes(self, member: Member) -> list[tuple[Array, int]]:
        return list(zip(member.inputs, self.batch.inputs, strict=True))

    def joinable(self, member: Member) -> bool:
        """Whether all inputs have the same number of rows; by itself, a request may also have, say, one mask for many rows."""
        rows = self.rows(member)
        return all(axis == SHARED or array.shape[axis] == rows for array, axis in self._with_axes(member))

    def admits(self, members: Sequence[Member], candidate: Member) -> bool:
        return True

    def join(self, members: Sequence[Member]) -> Inputs:
        return self.concatenated([member.inputs for member in members])

    def concatenated(self, given: Sequence[Inputs]) -> Inputs:
        if len(given) == 1:
            return given[0]
        columns = zip(zip(*given, strict=True), self.batch.inputs, strict=True)
        return [column[0] if axis == SHARED else np.concatenate(column, axis) for column, axis in columns]

    def split(self, outputs: Sequence[Array], members: Sequence[Member]) -> list[list[Array]]:
        if len(members) == 1:
            return [list(outputs)]
        ends = np.cumsum([self.rows(member) for member in members])[:-1]
        parts = [np.split(output, ends, axis) for output, axis in zip(outputs, self.batch.outputs, strict=True)]
        return [list(part) for part in zip(*parts, strict=True)]

    def learn(self, members: Sequence[Member], seconds: float) -> None:
        return None


@dataclass(frozen=True)
class _Lengths:
    """Where the padded symbol is. inputs, outputs: the axis of each, None where it has none. pads: the value for each input."""

    symbol: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    pads: tuple[float, ...]


class JoinStructures:
    """Structures of several requests as those of one, by numbers of nodes that count on. No number may lead to another's nodes: each
    request's are checked before."""

    def __init__(self, record: StructuresRecord, batching: bool, most_nodes: int) -> None:
        self._record = record
        self._batching = batching
        self._most_nodes = most_nodes

    def rows(self, member: Member) -> int:
        return len(member.inputs[-1])

    def key(self, member: Member) -> Hashable | None:
        """Raises NodeIndexError."""
        nodes = self._nodes(member)
        for name, each in zip(self._names(), self._numbers(member.inputs), strict=True):
            least = 0 if name == ROOT else -1
            wrong = np.flatnonzero((each < least) | (each >= nodes))
            if len(wrong):
                raise NodeIndexError(f"{self._record['name']}.{name}[{wrong[0]}]: {each[wrong[0]]} is no node; there are {nodes}")
        return "structures" if self._batching else None

    def _nodes(self, member: Member) -> int:
        return len(member.inputs[0])

    def _names(self) -> list[str]:
        return [*self._record["fields"], ROOT]

    def _numbers(self, inputs: Inputs) -> list[npt.NDArray[np.int64]]:
        """Of these, what holds numbers of nodes."""
        return cast("list[npt.NDArray[np.int64]]", inputs[len(self._record["columns"]) :])

    def admits(self, members: Sequence[Member], candidate: Member) -> bool:
        return sum(map(self._nodes, (*members, candidate))) <= self._most_nodes

    def join(self, members: Sequence[Member]) -> Inputs:
        if len(members) == 1:
            return members[0].inputs
        first = np.cumsum([0, *map(self._nodes, members)])
        moved = [self._moved(member.inputs, start) for member, start in zip(members, first[:-1].tolist(), strict=True)]
        return [np.concatenate(column) for column in zip(*moved, strict=True)]

    def _moved(self, inputs: Inputs, start: int) -> Inputs:
        numbers = [np.where(each < 0, each, each + start) for each in self._numbers(inputs)]
        return [*inputs[: len(inputs) - len(numbers)], *numbers]

    def split(self, outputs: Sequence[Array], members: Sequence[Member]) -> list[list[Array]]:
        ends = np.cumsum([self.rows(member) for member in members])[:-1]
        return [list(part) for part in zip(*(np.split(output, ends) for output in outputs), strict=True)]

    def learn(self, members: Sequence[Member], seconds: float) -> None:
        return None


class PadToLongest(Concatenate):
    """Requests of different lengths too: padded to the longest, the mask with zeros, when the measured times say that it pays.

    That the model ignores what the mask hides is taken from the configuration; it cannot be proved here.
    """

    def __init__(self, batch: Batch, lengths: _Lengths) -> None:
        super().__init__(batch)
        self._lengths = lengths
        self.cost = CallCost()

    def key(self, member: Member) -> Hashable | None:
        if not self.joinable(member):
            return None
        return tuple(
            _without(array, (axis, gone)) for (array, axis), gone in zip(self._with_axes(member), self._lengths.inputs, strict=True)
        )

    def _length(self, member: Member) -> int:
        return member.sizes[self._lengths.symbol]

    def admits(self, members: Sequence[Member], candidate: Member) -> bool:
        """Whether one padded call is expected to take less time than two calls."""
        lengths = [self._length(member) for member in members]
        length, longest, rows = self._length(candidate), max(lengths), sum(self.rows(member) for member in members)
        if length == longest == min(lengths):
            return True
        more = self.rows(candidate)
        joined = self.cost.seconds(rows + more, max(longest, length))
        apart = self.cost.seconds(rows, longest), self.cost.seconds(more, length)
        return joined is not None and None not in apart and joined < sum(each for each in apart if each is not None)

    def join(self, members: Sequence[Member]) -> Inputs:
        longest = max(self._length(member) for member in members)
        return self.concatenated(
            [[self._pad(array, position, longest) for position, array in enumerate(member.inputs)] for member in members]
        )

    def _pad(self, array: Array, position: int, longest: int) -> Array:
        axis = self._lengths.inputs[position]
        if axis is None or array.shape[axis] == longest:
            return array
        wide = np.full((*array.shape[:axis], longest, *array.shape[axis + 1 :]), self._lengths.pads[position], array.dtype)
        wide[(slice(None),) * axis + (slice(array.shape[axis]),)] = array
        return wide

    def split(self, outputs: Sequence[Array], members: Sequence[Member]) -> list[list[Array]]:
        parts = super().split(outputs, members)
        return [
            [self._cut(output, axis, self._length(member)) for output, axis in zip(part, self._lengths.outputs, strict=True)]
            for part, member in zip(parts, members, strict=True)
        ]

    def _cut(self, output: Array, axis: int | None, length: int) -> Array:
        return output if axis is None else output[(slice(None),) * axis + (slice(length),)]

    def learn(self, members: Sequence[Member], seconds: float) -> None:
        self.cost.add(sum(self.rows(member) for member in members), max(self._length(member) for member in members), seconds)


class Pack:
    """Requests of any lengths one behind the other, without padding: for packed programs, which take a single request so too."""

    def __init__(self, layout: PackedLayout, batching: bool, most_tokens: int) -> None:
        self._layout = layout
        self._batching = batching
        self._most_tokens = most_tokens

    def _shape(self, member: Member) -> tuple[int, int]:
        """Raises RequestError for a request that the program cannot take."""
        try:
            return self._layout.shape(member.inputs)
        except (InputRankError, ShapeConstraintError) as error:
            raise RequestError(str(error)) from error

    def rows(self, member: Member) -> int:
        return self._shape(member)[0]

    def key(self, member: Member) -> Hashable | None:
        rows, length = self._shape(member)
        if not self._batching or not rows * length:
            return None
        return tuple(each.shape[2:] if kind == "tokens" else each.shape[1:] for each, kind in self._kinds(member))

    def _kinds(self, member: Member) -> zip[tuple[Array, str]]:
        return zip(member.inputs, self._layout.inputs, strict=True)

    def admits(self, members: Sequence[Member], candidate: Member) -> bool:
        return sum(rows * length for rows, length in map(self._shape, (*members, candidate))) <= self._most_tokens

    def join(self, members: Sequence[Member]) -> Inputs:
        return self._layout.join([member.inputs for member in members])

    def split(self, outputs: Sequence[Array], members: Sequence[Member]) -> list[list[Array]]:
        return self._layout.split(outputs, [self._shape(member) for member in members])

    def learn(self, members: Sequence[Member], seconds: float) -> None:
        return None


def joining_of(signature: Signature, settings: ModelSettings) -> Joining:
    """The way to join for one model. Raises ConfigurationError for a `sequence` table that does not fit it."""
    batching, sequence = settings.batching, settings.sequence
    if signature.structures is not None:
        if sequence is not None:
            raise ConfigurationError("sequence: this model takes structures, which have no padding; leave the table out")
        return JoinStructures(signature.structures, batching, settings.max_tokens)
    if signature.skeleton is not None:
        if sequence is not None:
            raise ConfigurationError("sequence: this model takes instances, which have no padding; leave the table out")
        return JoinInstances(signature.skeleton, batching, settings.max_tokens)
    if signature.packed is not None:
        if sequence is not None:
            raise ConfigurationError("sequence: this program is packed, so that requests need no padding; leave the table out")
        return Pack(signature.packed, batching, settings.max_tokens)
    if signature.batch is None or not batching:
        return Alone()
    if sequence is None:
        return Concatenate(signature.batch)
    return PadToLongest(signature.batch, _lengths(signature, sequence))


def _lengths(signature: Signature, sequence: SequenceSettings) -> _Lengths:
    name, _, axis = sequence.length.rpartition(".")
    for given in (name, sequence.mask, *sequence.pad):
        if given not in signature.positions:
            raise ConfigurationError(f"sequence: the model has no input '{given}'; it has {', '.join(signature.positions)}")
    dims = signature.inputs[signature.positions[name]].dims
    dim = dims[int(axis)] if axis.isdecimal() and int(axis) < len(dims) else 0
    if isinstance(dim, int):
        raise ConfigurationError(f"sequence: '{sequence.length}' is no dynamic dim of an input; write INPUT.AXIS")
    symbol = str(dim)
    inputs = tuple(_axis(spec.dims, symbol, spec.name) for spec in signature.inputs)
    outputs = tuple(_axis(spec.dims, symbol, spec.name) for spec in signature.outputs)
    if inputs[signature.positions[sequence.mask]] is None:
        raise ConfigurationError(f"sequence: the mask '{sequence.mask}' does not have the length {sequence.length}")
    pads = tuple(0.0 if spec.name == sequence.mask else float(sequence.pad.get(spec.name, 0)) for spec in signature.inputs)
    return _Lengths(symbol, inputs, outputs, pads)


def _axis(dims: Sequence[object], symbol: str, name: str) -> int | None:
    """The one axis of this size, None where no dim depends on it."""
    found = [axis for axis, dim in enumerate(dims) if not isinstance(dim, int) and symbol in dim.symbols()]  # pyright: ignore[reportAttributeAccessIssue]
    if not found:
        return None
    if len(found) > 1 or str(dims[found[0]]) != symbol:
        raise ConfigurationError(f"sequence: the sizes of '{name}' depend on the length in a way that cannot be padded")
    return found[0]
