"""What a node of an ONNX graph takes and gives, while the graph runs under torch.export.

Sizes are numbers of Python, never tensors: `Shape` gives `Sizes`, and so does what is computed from these, so that a Reshape sees symbols
and not data. What is known when compiling is a `Constant`, whose numbers a node may read; all else is a tensor of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch
from torch.utils._python_dispatch import _disable_current_modes

Number = int  # or a torch.SymInt, which stands wherever an int does, though PyTorch's stubs do not say so
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
    """A tensor of rank 0 (`scalar`) or 1, of integers or bools that are computed from sizes, at least one of them a symbol."""

    numbers: tuple[Number, ...]
    scalar: bool = False
    dtype: torch.dtype = torch.int64

    def tensor(self) -> torch.Tensor:
        parts = [torch.scalar_tensor(number, dtype=self.dtype) for number in self.numbers]
        return parts[0] if self.scalar else torch.stack(parts)


@dataclass(frozen=True)
class Sequence:
    """A sequence of tensors, whose length is known when compiling. An empty optional is `None`."""

    items: tuple[Value, ...] = field(default_factory=tuple)


Value = torch.Tensor | Sizes | Constant | Sequence | None
Result = Value | tuple[Value, ...]


def larger(one: Number, other: Number) -> Number:
    return cast(Number, torch.sym_max(one, other))


def smaller(one: Number, other: Number) -> Number:
    return cast(Number, torch.sym_min(one, other))


def sizes_value(numbers: tuple[Number, ...], *, scalar: bool = False, dtype: torch.dtype = torch.int64) -> Sizes | Constant:
    """`Sizes`; a constant where no number is a symbol."""
    if any(isinstance(number, torch.SymInt) for number in numbers):
        return Sizes(numbers, scalar, dtype)
    return constant_of(lambda: torch.tensor(numbers[0] if scalar else numbers, dtype=dtype))


def constant_of(make: Callable[[], torch.Tensor]) -> Constant:
    """What `make` computes, outside of any trace."""
    with _disable_current_modes(), torch.no_grad():
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
    if isinstance(value, Constant):
        return value.data.dtype
    if isinstance(value, Sequence):
        return dtype_of(value.items[0]) if value.items else None
    return value.dtype if value is not None else None
