"""Results that are not computed yet: a `Row` stands for the row of a table that a block will write, and is a tensor to whoever looks
closer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from disc.ral import _ral

if TYPE_CHECKING:
    from disc.ral._ral import Launch


PLAIN = frozenset({int, float, str, bool, type(None), torch.Tensor, torch.nn.Parameter})


@dataclass(frozen=True, eq=False)
class RowClass:
    """What lies in one table: rows of one shape and dtype, whoever computed them. shape: of one instance. Made by `row_class` alone: equal
    ones are the same object."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}[{', '.join(map(str, self.shape))}]"


_classes: dict[tuple[tuple[int, ...], torch.dtype], RowClass] = {}


def row_class(tensor: torch.Tensor) -> RowClass:
    """That of rows like the tensor."""
    key = (tuple(tensor.shape), tensor.dtype)
    found = _classes.get(key)
    return found if found is not None else _classes.setdefault(key, RowClass(*key))


def own_rows(whole: torch.Tensor) -> list[torch.Tensor]:
    """The rows of a tensor [n, ...], each a tensor of its own memory's part: no views, which PyTorch lets nobody change where gradients are
    recorded. A split is half of what a tensor per row takes in Python."""
    if whole.dim() < 2 or not whole.numel():
        return [each.data for each in whole.unbind(0)]
    return list(torch.unsafe_split(whole.flatten(0, 1), whole.shape[1]))


class Row(_ral.Row):
    """One result of a launch, or a tensor that the program was given.

    kind: shape and dtype. launch: what computes it; None for a given tensor. depth: launches between it and what is given. place: its row
    in the table of its kind; -1 before it has one. value: the tensor, where there is one; version: of this tensor then. shared: another row
    is a view of its memory in PyTorch. Used as a tensor it is computed at once, with what it needs: right, but alone; `explain` counts it.
    """

    __slots__ = ()
    kind: RowClass
    launch: Launch | None
    value: torch.Tensor | None

    def __init__(self, kind: RowClass, launch: Launch | None, depth: int, value: torch.Tensor | None = None) -> None:
        self.kind = kind
        self.launch = launch
        self.depth = depth
        self.place = -1
        self.value = value
        self.version = value._version if value is not None else 0

    def tensor(self) -> torch.Tensor:
        """The value; computes it, and raises what computing it raised."""
        if self.value is None:
            assert self.launch is not None
            self.launch.recorder.compute(self)
        assert self.value is not None
        return self.value

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        del types
        return func(*settled(args), **settled(dict(kwargs or {})))

    def __getattr__(self, name: str) -> Any:
        in_place = name.endswith("_") and not name.startswith("_")
        return getattr(self.own() if in_place else self.tensor(), name)

    def __repr__(self) -> str:
        return repr(self.tensor())

    def __format__(self, spec: str) -> str:
        return format(self.tensor(), spec)

    def __hash__(self) -> int:
        return id(self)

    def __setitem__(self, index: object, value: object) -> None:
        self.own()[settled(index)] = settled(value)

    def own(self) -> torch.Tensor:
        """The value as a tensor that may be changed in place, after all that was to read the old one."""
        assert self.launch is not None
        self.launch.recorder.before_change(self)
        return self.tensor()


def _forward(name: str) -> Callable[..., object]:
    def method(self: Row, *args: object) -> object:
        return getattr(self.tensor(), name)(*settled(args))

    method.__name__ = name
    return method


def _in_place(name: str) -> Callable[..., object]:
    def method(self: Row, *args: object) -> object:
        getattr(self.own(), name)(*settled(args))
        return self

    method.__name__ = name
    return method


_OPERATORS = """
    add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand or ror xor rxor
    lshift rlshift rshift rrshift neg pos abs invert eq ne lt le gt ge getitem len iter bool float int complex index
    contains array
"""
for _name in _OPERATORS.split():
    setattr(Row, f"__{_name}__", _forward(f"__{_name}__"))
for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift"):
    setattr(Row, f"__{_name}__", _in_place(f"__{_name}__"))


def is_record(value: object) -> bool:
    """Whether it is an instance of a dataclass, whose fields are what it was made of."""
    return hasattr(type(value), "__dataclass_fields__") and not isinstance(value, type)


def containers(values: Sequence[object]) -> list[object]:
    """The containers in the values that can be changed, those inside of others behind these."""
    found: list[object] = []
    for each in values:
        if isinstance(each, list | dict) or is_record(each):
            found.append(each)
        found += containers(parts_of(each) or ())
    return found


def parts_of(value: Any) -> list[Any] | None:
    """What a container holds; None for what is none."""
    if isinstance(value, torch.Size):
        return None
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    return [getattr(value, name) for name in type(value).__dataclass_fields__] if is_record(value) else None


def settled(value: Any, change: Callable[[Row], object] = Row.tensor) -> Any:
    """The value with every row in its lists, tuples, dicts and dataclasses replaced, by tensors unless `change` says otherwise.

    Lists, dicts and dataclasses stay the same objects: who else holds them sees the same.
    """
    return _settled(value, change, set())


def _settled(value: Any, change: Callable[[Row], object], seen: set[int]) -> Any:
    kind = type(value)
    if kind is Row:
        return change(value)
    if kind in PLAIN or id(value) in seen:
        return value
    if isinstance(value, tuple):
        made = [_settled(each, change, seen) for each in value]
        if all(new is old for new, old in zip(made, value, strict=True)):
            return value
        return kind(*made) if hasattr(kind, "_fields") else kind(made)
    if isinstance(value, list | dict | deque):
        seen.add(id(value))
        for place, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
            new = _settled(each, change, seen)
            if new is not each:
                value[place] = new
    elif is_record(value):
        seen.add(id(value))
        for name in kind.__dataclass_fields__:
            each = getattr(value, name, None)
            new = _settled(each, change, seen)
            if new is not each:
                object.__setattr__(value, name, new)
    return value
