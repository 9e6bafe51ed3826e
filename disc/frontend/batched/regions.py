"""Regions: places in a function with straight-line tensor code. A region and what of its arguments is constant make a `Kind`: one block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, ClassVar

import torch

from disc.frontend.batched.blocks import Block, Lifted
from disc.frontend.batched.contents import Contents
from disc.frontend.batched.rows import Row, RowClass, row_class
from disc.frontend.batched.values import CONSTANTS
from disc.ral import _ral

INDEX = "index"  # in a key: an int that indexes a tensor and may differ from instance to instance
STRUCTURES = 8  # kinds of one region that are compiled, at most: others run in PyTorch
SAVED_STRUCTURES = 64  # the same of a model that is saved, which has no PyTorch
INDICES = 64  # arguments that only index, of calls that are recorded without being described
ENOUGH = 4  # launches of a kind before it is compiled
NUMBERS = 3  # values of a float that are constants of kinds; with one more it differs from instance to instance


Describer = Callable[["Region", Any, list[object], list[object]], None]  # (region, value, key, rows)


class NotRegular(Exception):
    """A call of a region that cannot become a launch. effects: running it does more than compute its results."""

    def __init__(self, reason: str, *, effects: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.effects = reason, effects


Outputs = Callable[[Sequence[Row], Sequence[Row], Sequence[object]], tuple[object, ...]]  # of results, rows given, and arguments


@dataclass(frozen=True)
class Views:
    """given, made: places of the rows that a kind is given and of its results, which share memory where PyTorch computes them."""

    given: tuple[int, ...]
    made: tuple[int, ...]


@dataclass(eq=False)
class Kind(_ral.Kind):
    """A region with given constants: what is one block. rows, values, results: as of `Block`.

    run: flat tensors of one instance → results. outputs: makes what the region returns of the rows of the results, of those that it was
    given and of its arguments; plain: that is the results alone. views: the rows that it is given and its results that are views of each
    other or of weights; None where there are none. weights: the tensors that it read, which all instances share, and their versions. cost:
    of a launch, however many rows it has, in microseconds. kept: arguments of a call, without their data. written: `outputs` as an
    expression, and what its names mean. crowded: whether `refusal` is that enough others of its region are compiled. sizes: how many rows
    its launches had: size → launches. eager: how many calls ran in PyTorch.

    What the recorder writes lies in C++. number: of the kinds made so far; calls: how often it was called; consumed: another block has read
    a result; slot: its block in the schedule of compiled blocks, -1 where it is none; targets: the numbers of the tables of its results.
    """

    region: Region
    rows: tuple[RowClass, ...]
    values: int
    results: tuple[RowClass, ...]
    run: Callable[..., tuple[torch.Tensor, ...]]
    outputs: Outputs
    plain: bool
    views: Views | None
    block: Block
    weights: tuple[tuple[torch.Tensor, Contents], ...]
    cost: float
    kept: Sequence[object]
    written: tuple[str, dict[str, object]]
    lifted: Lifted | None = None
    refusal: str | None = None
    crowded: bool = False
    sizes: dict[int, int] = field(default_factory=dict)
    eager: int = 0
    made: ClassVar[int] = 0  # kinds, of all models

    def __post_init__(self) -> None:
        Kind.made += 1
        self.number = Kind.made

    def stale(self) -> bool:
        return any(not contents.are_those_of(tensor) for tensor, contents in self.weights)


@dataclass(eq=False)
class Region(_ral.Site):
    """name: "TreeLSTM.forward:12". line, file: where it begins. code: the steps as a function of `inputs`, which returns a tuple.
    indices: the places of inputs that only index tensors. numbers: the places of floats that differ from instance to instance: a block
    gets them as tensors without dims; None where it cannot. steps: how many operations it has."""

    name: str
    line: int
    file: str
    code: Callable[..., tuple[object, ...]]
    inputs: tuple[str, ...]
    indices: frozenset[int]
    steps: int
    kinds: dict[tuple[object, ...], Kind] = field(default_factory=dict)
    numbers: frozenset[int] | None = frozenset()
    floats: dict[int, set[float]] = field(default_factory=dict)  # place → what its kinds have there
    describers: dict[type, Describer] = field(default_factory=dict)
    irregular: dict[str, int] = field(default_factory=dict)

    def describe(self, arguments: Sequence[object], rows: list[object], values: list[int]) -> tuple[object, ...]:
        """The key of a call; fills in the rows (and given tensors) and index values among the arguments. Raises NotRegular."""
        key: list[object] = []
        for place, each in enumerate(arguments):
            kind = type(each)
            if kind is Row:
                key.append(each.kind)  # pyright: ignore[reportAttributeAccessIssue]
                rows.append(each)
            elif kind is int and place in self.indices:
                key.append(INDEX)
                values.append(each)  # pyright: ignore[reportArgumentType]
            else:
                self.describe_part(each, key, rows)
        return tuple(key)

    def with_tensors(self, arguments: tuple[object, ...]) -> tuple[object, ...]:
        """The arguments with the floats that differ as tensors: in f64, which gives way to the dtype of what it meets, as floats do."""
        if not self.numbers:
            return arguments
        return tuple(
            torch.tensor(each, dtype=torch.float64) if place in self.numbers and type(each) is float else each
            for place, each in enumerate(arguments)
        )

    def uses(self) -> list[int]:
        """How each input's numbers are taken, as `Use` in tasks/code.h has it."""
        return [1 if place in self.indices else 2 if place in (self.numbers or ()) else 0 for place in range(len(self.inputs))]

    def has_varied(self, arguments: Sequence[object]) -> bool:
        """Notes the floats of a new kind. True where one of them differs from instance to instance, as is known from now on."""
        if self.numbers is None:
            return False
        varied = False
        for place, each in enumerate(arguments):
            if type(each) is float:
                known = self.floats.setdefault(place, set())
                known.add(each)
                if len(known) > NUMBERS:
                    self.numbers |= {place}
                    varied = True
        if varied:
            self.forget()
        return varied

    def learn(self, arguments: tuple[object, ...], kind: Kind) -> None:
        """From now on calls like this one are recorded without being described, where objects that do not change make their key."""
        if max(self.indices, default=0) < INDICES and not self.numbers:
            _ral.learn_call(self, Row, arguments, kind, sum(1 << place for place in self.indices), _is_named_by_identity)

    def note_irregular(self, reason: str) -> None:
        self.irregular[reason] = self.irregular.get(reason, 0) + 1

    def forget(self) -> None:
        """Drops its kinds."""
        self.kinds.clear()
        _ral.forget_calls(self)

    def describe_part(self, value: object, key: list[object], rows: list[object]) -> None:
        """Adds a value to the key, and the rows in it to `rows`. Raises NotRegular."""
        kind = type(value)
        describer = self.describers.get(kind)
        if describer is None:
            describer = self.describers[kind] = _describer(kind)
        describer(self, value, key, rows)


# How a value of one type is described; which one it is depends on the type alone.


def _describe_row(region: Region, value: Row, key: list[object], rows: list[object]) -> None:
    key.append(value.kind)
    rows.append(value)


def _describe_tensor(region: Region, value: torch.Tensor, key: list[object], rows: list[object]) -> None:
    key.append(row_class(value))
    rows.append(value)


def _describe_float(region: Region, value: float, key: list[object], rows: list[object]) -> None:
    key.append(("float", value.hex()))


def _describe_constant(region: Region, value: object, key: list[object], rows: list[object]) -> None:
    key.append((type(value), value))


def _describe_by_text(region: Region, value: object, key: list[object], rows: list[object]) -> None:
    key.append((type(value), repr(value)))


def _describe_object(region: Region, value: object, key: list[object], rows: list[object]) -> None:
    key.append(("object", id(value)))


def _describe_method(region: Region, value: MethodType, key: list[object], rows: list[object]) -> None:
    key.append(("method", id(value.__func__), id(value.__self__)))


def _describe_sequence(region: Region, value: Sequence[object], key: list[object], rows: list[object]) -> None:
    key.append((type(value), len(value)))
    for each in value:
        region.describe_part(each, key, rows)


def _describe_mapping(region: Region, value: dict[object, object], key: list[object], rows: list[object]) -> None:
    key.append((type(value), tuple(value)))
    for each in value.values():
        region.describe_part(each, key, rows)


def _describe_record(region: Region, value: Any, key: list[object], rows: list[object]) -> None:
    key.append(type(value))
    for name in type(value).__dataclass_fields__:
        region.describe_part(getattr(value, name), key, rows)


def _refuse_to_describe(region: Region, value: object, key: list[object], rows: list[object]) -> None:
    raise NotRegular(f"it reads a {type(value).__name__}")


_DESCRIBERS: tuple[tuple[tuple[type, ...], Describer], ...] = (
    ((Row,), _describe_row), ((torch.nn.Parameter,), _describe_object), ((float,), _describe_float), ((slice, complex), _describe_by_text),
    (CONSTANTS, _describe_constant), ((torch.nn.Module, FunctionType, BuiltinFunctionType, type), _describe_object),
    ((MethodType,), _describe_method), ((list, tuple), _describe_sequence), ((dict,), _describe_mapping),
)  # fmt: skip


def _describer(kind: type) -> Describer:
    if kind is torch.Tensor:
        return _describe_tensor
    found = next((each for kinds, each in _DESCRIBERS if issubclass(kind, kinds)), None)
    if found is not None:
        return found
    return _describe_record if hasattr(kind, "__dataclass_fields__") else _refuse_to_describe


def _is_named_by_identity(kind: type) -> bool:
    """Whether objects of a type are described by their identity, or by a value that they keep."""
    return kind is not torch.Tensor and _describer(kind) in (_describe_object, _describe_constant, _describe_float)
