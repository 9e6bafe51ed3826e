"""Interpreter rules of library ops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch_mlir import ir

from disc.errors import InputValueError, ShapeConstraintError, SingularMatrixError
from disc.ir.interp.values import Array, Rule, Scope, element_name, held_dtype
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


def _topk(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (x,), dim = operands, int_attr(op, "dim")
    if x.ndim == 0:
        return [x, np.zeros((), np.int64)]
    count = scope.shape(op.results[0].type)[dim]
    if count > x.shape[dim]:
        raise ShapeConstraintError(f"topk: k = {count} is above the size {x.shape[dim]} of dim {dim}")
    places = stable_places(x, dim, bool_attr(op, "largest")).take(range(count), dim)
    return [np.take_along_axis(x, places, dim), places.astype(np.int64)]


def _search(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    """Asks the element in the middle of what is left, as the runtime does: with NaN the answer depends on whom one asks."""
    values, lines = operands
    right, size = bool_attr(op, "right"), lines.shape[-1] if lines.ndim else 1
    flat = lines.reshape(-1, size)
    row = np.arange(values.size).reshape(values.shape) // max(values.shape[-1] if values.ndim else 1, 1) if lines.ndim > 1 else 0
    begin, end = np.zeros(values.shape, np.int64), np.full(values.shape, size, np.int64)
    while (begin < end).any():
        middle = (begin + end) // 2
        found = flat[row, np.minimum(middle, size - 1)]
        before = ~(found > values if right else found >= values) & (begin < end)
        begin, end = np.where(before, middle + 1, begin), np.where(before, end, np.minimum(middle, end))
    return [begin.astype(held_dtype(element_name(op.results[0].type)))]


def _count(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (size,), flat = scope.shape(op.results[0].type), operands[0].reshape(-1)
    return [np.bincount(flat[(flat >= 0) & (flat < size)], minlength=size).astype(np.int64)]


def _grouped_dot(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    rows, matrices, ends = operands
    result, begin = np.zeros(scope.shape(op.results[0].type), np.float64), 0
    for matrix, end in zip(matrices, ends.tolist(), strict=True):
        if not begin <= end <= len(rows):
            raise InputValueError(f"grouped_dot: a group ends at row {end}, which must be from {begin} to {len(rows)}")
        result[begin:end] = rows[begin:end].astype(np.float64) @ matrix.astype(np.float64)
        begin = end
    return [result.astype(rows.dtype)]


def _cholesky(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [_solved(np.linalg.cholesky, operands[0])]


def _triangular_solve(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    right, matrix = operands
    triangle = np.triu(matrix) if bool_attr(op, "upper") else np.tril(matrix)
    if bool_attr(op, "unit"):
        places = np.arange(matrix.shape[-1])
        triangle[..., places, places] = 1
    return [_solved(np.linalg.solve, triangle, right)]


def _solve(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [_solved(np.linalg.solve, operands[1], operands[0])]


def _inverse(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [_solved(np.linalg.inv, operands[0])]


def _determinant(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    sign, logarithm = np.linalg.slogdet(operands[0])
    found = (np.linalg.det(operands[0]), sign, logarithm)
    return [np.asarray(each, operands[0].dtype) for each in found]


def _scaled(x: Array, count: int, norm: int) -> Array:
    """Sums over so many elements."""
    return x / (1, count**0.5, count)[norm]


def _complex(x: Array) -> Array:
    return x[..., 0] + 1j * x[..., 1]


def _parts(x: Array, like: Array) -> Array:
    return np.stack([np.real(x), np.imag(x)], -1).astype(like.dtype)


def _fft(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (x,), dim = operands, int_attr(op, "dim")
    found = np.fft.ifft(_complex(x), axis=dim, norm="forward") if bool_attr(op, "inverse") else np.fft.fft(_complex(x), axis=dim)
    return [_parts(_scaled(found, x.shape[dim], int_attr(op, "norm")), x)]


def _rfft(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (x,), dim = operands, int_attr(op, "dim")
    return [_parts(_scaled(np.fft.rfft(x, axis=dim), x.shape[dim], int_attr(op, "norm")), x)]


def _irfft(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (x,), dim = operands, int_attr(op, "dim")
    count = scope.shape(op.results[0].type)[dim]
    found = np.fft.irfft(_complex(x), count, axis=dim, norm="forward")
    return [_scaled(found, count, int_attr(op, "norm")).astype(x.dtype)]


def _solved(function: Callable[..., Array], *operands: Array) -> Array:
    """Raises SingularMatrixError, as a call of compiled code does, where there is no solution."""
    try:
        return function(*operands).astype(operands[0].dtype)
    except np.linalg.LinAlgError as error:
        raise SingularMatrixError(str(error)) from error


RULES: dict[str, Rule] = {
    "disc.cholesky": _cholesky, "disc.triangular_solve": _triangular_solve, "disc.solve": _solve, "disc.inverse": _inverse,
    "disc.determinant": _determinant, "disc.fft": _fft, "disc.rfft": _rfft, "disc.irfft": _irfft,
    "disc.count": _count, "disc.grouped_dot": _grouped_dot, "disc.search": _search, "disc.sort": _sort, "disc.topk": _topk,
}  # fmt: skip
