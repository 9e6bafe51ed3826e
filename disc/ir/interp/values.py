"""Values of the interpreter: how a tensor is held in NumPy, and what a rule may query about sizes and regions.

A tensor of element type bf16 is held as a float32 array whose values are all representable in bf16; every other element type
is held as its NumPy dtype (`weights.STORAGE`). Weights of bf16 are widened on reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch_mlir import ir

from disc.errors import CompilerBug
from disc.ir import ops
from disc.ir.bf16 import bf16_bits, bf16_values
from disc.ir.weights import STORAGE, Weight, WeightTable
from disc.shapes import parse_dim

Array = npt.NDArray[Any]


def element_name(type_: ir.Type) -> str:
    """The element type of a tensor type as text ("f32", "bf16", "i1", ...)."""
    return str(ir.ShapedType(type_).element_type)


def held_dtype(element: str) -> np.dtype[Any]:
    """The NumPy dtype in which the interpreter holds elements of this type."""
    if element not in STORAGE:
        raise CompilerBug(f"the interpreter holds no tensors of {element}")
    return np.dtype(np.float32 if element == "bf16" else STORAGE[element])


def held_weight(weight: Weight) -> Array:
    """A weight as the interpreter holds it (no copy, except for bf16)."""
    return bf16_values(weight.array) if weight.dtype == "bf16" else weight.array


def stored_weight(array: Array, element: str) -> Weight:
    """The inverse of `held_weight`."""
    return Weight(bf16_bits(array), element) if element == "bf16" else Weight(array, element)


def constant_value(attribute: ir.Attribute) -> Array:
    """The data of a `dense<...>` attribute."""
    dense = ir.DenseElementsAttr(attribute)
    type_ = ir.ShapedType(dense.type)
    element, shape = str(type_.element_type), list(type_.shape)
    if element != "bf16":
        return np.array(dense).astype(held_dtype(element), copy=False).reshape(shape)
    return bf16_values(ops.dense_to_array(dense))


def constant_attribute(array: Array, type_: ir.Type) -> ir.Attribute:
    """The `dense<...>` attribute of `type_` for data as the interpreter holds it; one value repeated becomes a splat."""
    data = bf16_bits(array) if element_name(type_) == "bf16" else np.ascontiguousarray(array)
    if data.size > 1 and is_splat(array):
        data = data.reshape(-1)[:1]
    return ops.array_to_dense(data.reshape(array.shape if data.size == array.size else [1] * array.ndim), ir.RankedTensorType(type_))


def is_splat(array: Array) -> bool:
    """Is every element the same, bit for bit (so that -0.0 is not 0.0, and NaN is itself)?"""
    if array.size == 0:
        return False
    flat = np.ascontiguousarray(array).reshape(-1)
    bits = flat.view(np.dtype(f"u{flat.dtype.itemsize}"))
    return bool((bits == bits[0]).all())


def integers(attribute: ir.Attribute) -> list[int]:
    """The numbers of an `array<i64: ...>`, a `dense<...> : tensor<..xi64>` (flattened) or an array of integers."""
    if isinstance(attribute, ir.DenseElementsAttr):
        return [int(x) for x in np.array(attribute).reshape(-1)]
    if isinstance(attribute, ir.ArrayAttr):
        return [ir.IntegerAttr(x).value for x in attribute]
    return [int(x) for x in ir.DenseI64ArrayAttr(attribute)]


def optional_integers(op: ir.Operation, name: str, default: Sequence[int]) -> list[int]:
    """Attribute `name` of `op`, or `default` where it is left out."""
    return integers(op.attributes[name]) if name in op.attributes else list(default)


@dataclass(frozen=True)
class Scope:
    """What a rule may use besides its operands.

    symbols: the value of every symbol, base and derived; run_block: evaluates a region's block on arrays; run_function: a function's, whose
    types say which sizes are due; bind: gives a symbol that an op binds its value, and those that are derived from it.
    """

    symbols: Mapping[str, int] = field(default_factory=dict)
    weights: WeightTable = field(default_factory=WeightTable)
    run_block: Callable[[ir.Block, Sequence[Array]], list[Array]] = field(kw_only=True)
    run_function: Callable[[ir.Block, Sequence[Array]], list[Array]] = field(kw_only=True)
    bind: Callable[[str, int], None] = field(kw_only=True)

    def shape(self, type_: ir.Type) -> tuple[int, ...]:
        """The sizes of a tensor type under these symbols."""
        tensor = ir.RankedTensorType(type_)
        if tensor.has_static_shape:
            return tuple(tensor.shape)
        if tensor.encoding is None:
            raise CompilerBug(f"{type_} has a dynamic dim without a symbol")
        return tuple(self._entry(entry) for entry in ir.ArrayAttr(tensor.encoding))

    def evaluate(self, expression: str) -> int:
        """The value of a dim expression."""
        return parse_dim(expression).evaluate(self.symbols)

    def _entry(self, entry: ir.Attribute) -> int:
        return self.symbols[entry.value] if isinstance(entry, ir.FlatSymbolRefAttr) else ir.IntegerAttr(entry).value


Rule = Callable[[ir.Operation, list[Array], Scope], list[Array]]
