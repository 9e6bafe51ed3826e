"""What the bodies of reductions compute, and from which value a reduction may start once per accumulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch_mlir import ir

from disc.ir.interp.values import Array, constant_value, held_dtype
from disc.ir.op_table import CONSTANTS
from disc.ir.ops import block_ops, ints_attr
from disc.ir.weights import STORAGE

# On a reduction whose body may be anything: elements are combined one after the other, in the order in which they lie, beginning with
# the initial value. All others may be computed in any order, from any number of accumulators.
IN_ORDER = "disc.in_order"
REDUCTIONS = ("stablehlo.reduce", "stablehlo.reduce_window")
# Associative and commutative ops.
KINDS = ("add", "multiply", "maximum", "minimum", "and", "or", "xor")


def reduced_kinds(op: ir.Operation) -> list[str] | None:
    """For each operand the one of KINDS by which the body combines it; None for any other body."""
    block = op.regions[0].blocks[0]
    count, arguments = len(op.results), list(block.arguments)
    *_, last = block_ops(block)
    kinds: list[str] = []
    for number, value in enumerate(last.operands):
        if isinstance(value, ir.BlockArgument):
            return None
        made = value.owner.operation  # pyright: ignore[reportAttributeAccessIssue]
        dialect, _, kind = made.name.partition(".")
        pair = [arguments[number], arguments[count + number]]
        if dialect != "stablehlo" or kind not in KINDS or list(made.operands) not in (pair, pair[::-1]):
            return None
        kinds.append(kind)
    return kinds


def identity(kind: str, element: str) -> Array:
    """What `kind` combines with any value to that value, as the interpreter holds it (rank 0)."""
    dtype = held_dtype(element)
    if kind in ("add", "or", "xor"):
        return np.zeros((), dtype)
    if kind == "multiply":
        return np.ones((), dtype)
    if kind == "and":
        return np.invert(np.zeros((), dtype))
    if dtype.kind == "b":
        return np.array(kind == "minimum")
    if dtype.kind == "f":
        return np.array(-np.inf if kind == "maximum" else np.inf, dtype)
    limits = np.iinfo(str(np.dtype(STORAGE[element])))
    return np.array(limits.min if kind == "maximum" else limits.max, dtype)


def starts_from_identity(op: ir.Operation, kinds: Sequence[str]) -> list[bool]:
    """For each operand, whether its initial value is surely the identity of its op."""
    initials = list(op.operands)[len(op.results) :]
    return [is_identity(initial, kind) for initial, kind in zip(initials, kinds, strict=True)]


def is_identity(value: ir.Value, kind: str) -> bool:
    """Whether `value` (rank 0) is a constant that holds the identity of `kind`; of zeros either."""
    if isinstance(value, ir.BlockArgument):
        return False
    made = value.owner.operation  # pyright: ignore[reportAttributeAccessIssue]
    if made.name not in CONSTANTS:
        return False
    element = str(ir.ShapedType(value.type).element_type)
    return element in STORAGE and bool(constant_value(made.attributes["value"]).reshape(()) == identity(kind, element))


def reduction_fault(op: ir.Operation) -> str | None:
    """Why a reduction of stage `named` or later must not be there; None where it may."""
    if any(step != 1 for step in ints_attr(op, "base_dilations")):
        return "its source is dilated"
    if IN_ORDER in op.attributes:
        return "its padding is not explicit" if _is_padded(op) else None
    kinds = reduced_kinds(op)
    if kinds is None:
        return f"its body is no plain op, and it lacks {IN_ORDER!r}"
    initials = list(op.operands)[len(op.results) :]
    known = [_from_outside(value) or is_identity(value, kind) for value, kind in zip(initials, kinds, strict=True)]
    return None if all(known) else "it does not start from the identity of its op"


def _from_outside(value: ir.Value) -> bool:
    """Whether a fusion reads the value from memory: a constant that the program returns too. It was checked before fusions were formed."""
    return isinstance(value, ir.BlockArgument) and value.owner.owner.name == "kernel.fusion"


def _is_padded(op: ir.Operation) -> bool:
    return "padding" in op.attributes and bool(np.array(op.attributes["padding"]).any())
