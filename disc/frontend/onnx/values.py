"""What a node of an ONNX graph takes and gives, while the graph runs under torch.export.

Sizes are numbers of Python, never tensors: `Shape` gives `Sizes`, and so does what is computed from these, so that a Reshape sees symbols
and not data. What is known when compiling is a `Constant`, whose numbers a node may read; all else is a tensor of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

import torch
from onnx import TensorProto
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from disc.frontend.untraced import untraced

Number = int  # or a torch.SymInt, which stands wherever an int does, though PyTorch's stubs do not say so
TYPE_NAMES = {
    torch.float32: "float", torch.float64: "double", torch.float16: "float16", torch.bfloat16: "bfloat16", torch.bool: "bool",
    torch.int8: "int8", torch.int16: "int16", torch.int32: "int32", torch.int64: "int64", torch.uint8: "uint8", torch.uint16: "uint16",
    torch.uint32: "uint32", torch.uint64: "uint64", torch.complex64: "complex64", torch.complex128: "complex128",
}  # fmt: skip
INTEGERS = (torch.int64, torch.int32)
MOST_SIZES = 1024  # elements of a constant that may stand for sizes


class NodeError(Exception):
    """Why a node cannot be compiled; `unsupported`: it is valid ONNX all the same."""

    def __init__(self, reason: str, *, unsupported: bool = True) -> None:
        super().__init__(reason)
        self.unsupported = unsupported


@dataclass(frozen=True)
class Constant:
    """A tensor known when compiling. data: with values, also within a trace. buffer: its name in the module, where it is one."""

    data: torch.Tensor
    buffer: str | None = None


@dataclass(frozen=True)
class Sizes:
    """A tensor of rank 0 (`scalar`) or 1, of integers or bools (0 and 1) that are computed from sizes, at least one of them a symbol.

    decided: of a comparison of two numbers, what it is for the example's sizes, which each call is checked for.
    """

    numbers: tuple[Number, ...]
    scalar: bool = False
    dtype: torch.dtype = torch.int64
    decided: Callable[[], bool] | None = None

    def tensor(self) -> torch.Tensor:
        parts = [torch.scalar_tensor(number, dtype=self.dtype) for number in self.numbers]
        return parts[0] if self.scalar else torch.stack(parts)


@dataclass(frozen=True)
class Sequence:
    """A sequence of tensors, whose length is known when compiling. An empty optional is `None`."""

    items: tuple[Value, ...] = field(default_factory=tuple)


@dataclass(frozen=True)
class Narrow:
    """A tensor of a type that PyTorch has no arithmetic for (`narrow.py`). kind: the type's number in the standard."""

    stored: torch.Tensor | Constant
    kind: int


Value = torch.Tensor | Sizes | Constant | Narrow | Sequence | None
Result = Value | tuple[Value, ...]


Leaf = torch.Tensor | int  # or a torch.SymInt


def leaves(value: Value, materialize: Callable[[Constant], torch.Tensor]) -> list[Leaf]:
    """The tensors and symbols that a value consists of, constants too."""
    if isinstance(value, Sequence):
        return [leaf for each in value.items for leaf in leaves(each, materialize)]
    if isinstance(value, Narrow):
        return leaves(value.stored, materialize)
    if isinstance(value, Sizes):
        return [each for each in value.numbers if isinstance(each, torch.SymInt)]
    if isinstance(value, Constant):
        return [materialize(value).clone()]  # a tensor of the trace, also where the constant is none
    return [value] if value is not None else []


def distinct(given: Iterable[Leaf]) -> tuple[list[Leaf], list[int]]:
    """Each leaf once, as PyTorch's control flow wants its operands, and for each given one its place among these."""
    places: dict[object, int] = {}
    kept: list[Leaf] = []
    order: list[int] = []
    for leaf in given:
        key = id(leaf) if isinstance(leaf, torch.Tensor) else str(leaf)
        if key not in places:
            places[key] = len(kept)
            kept.append(leaf)
        order.append(places[key])
    return kept, order


def rebuilt(value: Value, given: Iterator[Leaf], constants: dict[int, torch.Tensor]) -> Value:
    """A value like this one, of other leaves. constants: id of a constant → the tensor that stands for it is added."""
    if isinstance(value, Sequence):
        return Sequence(tuple(rebuilt(each, given, constants) for each in value.items))
    if isinstance(value, Narrow):
        return Narrow(cast("torch.Tensor | Constant", rebuilt(value.stored, given, constants)), value.kind)
    if isinstance(value, Sizes):
        numbers = tuple(cast(Number, next(given)) if isinstance(each, torch.SymInt) else each for each in value.numbers)
        return Sizes(numbers, value.scalar, value.dtype)
    if isinstance(value, Constant):
        constants[id(value)] = cast(torch.Tensor, next(given))
        return value
    return cast(torch.Tensor, next(given)) if value is not None else None


def larger(one: Number, other: Number) -> Number:
    return cast(Number, torch.sym_max(one, other))


def smaller(one: Number, other: Number) -> Number:
    return cast(Number, torch.sym_min(one, other))


def at_most(count: Number, most: int) -> Number:
    """The lesser of both. PyTorch takes every size to be at least 2, and the lesser of it and 1 or 2 to be that."""
    if isinstance(count, torch.SymInt) and 0 < most <= 2:
        env, size = count.node.shape_env, count.node.expr
        if env.bound_sympy(size).lower >= most:
            known = {each: env.var_to_range[each] for each in size.free_symbols}
            from_zero = {each: ValueRanges(min(values.lower, 0), values.upper) for each, values in known.items()}
            return most if bound_sympy(size, from_zero).lower >= most else (most + 1) * count // (count + 1)
    return smaller(count, most)


def any_of(count: Number) -> Number:
    """1, or 0 for a count of 0."""
    return at_most(count, 1)


def sizes_value(numbers: tuple[Number, ...], *, scalar: bool = False, dtype: torch.dtype = torch.int64) -> Sizes | Constant:
    """`Sizes`; a constant where no number is a symbol."""
    if any(isinstance(number, torch.SymInt) for number in numbers):
        return Sizes(numbers, scalar, dtype)
    return constant_of(lambda: torch.tensor(numbers[0] if scalar else numbers, dtype=dtype))


def constant_of(make: Callable[[], torch.Tensor]) -> Constant:
    """What `make` computes, outside of any trace."""
    with untraced():
        return Constant(make())


def sizes_of(value: Value) -> Sizes | None:
    """The numbers of sizes, and of constants that can stand for such; None for all else."""
    if isinstance(value, Sizes):
        return value
    if not isinstance(value, Constant) or value.data.dim() > 1 or value.data.numel() > MOST_SIZES:
        return None
    if value.data.dtype not in (*INTEGERS, torch.bool):
        return None
    return Sizes(tuple(map(int, numbers(value))), value.data.dim() == 0, value.data.dtype)


def numbers(value: Constant) -> list[int | float | bool]:
    """The elements of a constant, row by row."""
    with _disable_current_modes():
        return value.data.reshape(-1).tolist()


def dtype_of(value: Value) -> torch.dtype | None:
    """None for what is no tensor of a type of PyTorch's."""
    if isinstance(value, Constant):
        return value.data.dtype
    return value.dtype if isinstance(value, torch.Tensor | Sizes) else None


def is_constant(value: Value) -> bool:
    return isinstance(value.stored if isinstance(value, Narrow) else value, Constant)


def type_name(value: Value) -> str | None:
    """The type of its elements as the standard's schemas write it; None for an empty sequence, and what is left out."""
    if isinstance(value, Narrow):
        return TensorProto.DataType.Name(value.kind).lower()
    if isinstance(value, Sequence):
        return type_name(value.items[0]) if value.items else None
    dtype = dtype_of(value)
    return TYPE_NAMES[dtype] if dtype is not None else None
