"""Interpreter rules of library ops."""

from __future__ import annotations

import numpy as np
from torch_mlir import ir

from disc.ir.interp.values import Array, Rule, Scope
from disc.ir.ops import int_attr


def bool_attr(op: ir.Operation, name: str) -> bool:
    """A bool attribute of an op."""
    return ir.BoolAttr(op.attributes[name]).value


def stable_places(x: Array, dim: int, descending: bool) -> Array:
    """Where the elements of each line along `dim` are, in their order: equal ones in that of the line, NaN as the largest."""
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    return np.flip(x.shape[dim] - 1 - np.argsort(np.flip(x, dim), axis=dim, kind="stable"), dim)


def _sort(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (x,), dim = operands, int_attr(op, "dim")
    if x.ndim == 0:
        return [x, np.zeros((), np.int64)]
    places = stable_places(x, dim, bool_attr(op, "descending"))
    return [np.take_along_axis(x, places, dim), places.astype(np.int64)]


RULES: dict[str, Rule] = {
    "disc.sort": _sort,
}  # fmt: skip
