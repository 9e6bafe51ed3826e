"""Factorizations and solutions of matrices, as ops that functions of the runtime compute (`Kind.LIBRARY`): f32 and f64."""

from __future__ import annotations

import torch

from disc.frontend.call import Call
from disc.frontend.op_builder import OpBuilder, RuleError, Tensor
from disc.frontend.rules.overrides import Fault, Override, overrides
from disc.frontend.rules.sorting import library, sized_library

aten = torch.ops.aten


def real(x: Tensor) -> Tensor:
    if x.dtype not in (torch.float32, torch.float64):
        raise RuleError(f"linear algebra of {x.dtype}")
    return x


def transposed(e: OpBuilder, x: Tensor) -> Tensor:
    """Rows become columns."""
    return e.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


def factor(e: OpBuilder, x: Tensor, upper: bool) -> Tensor:
    """L of L * L^T, or its transpose, from the triangle where it is put."""
    x = transposed(e, real(x)) if upper else real(x)
    found = library("disc.cholesky", [x], [(x.shape, x.dtype)])[0]
    return transposed(e, found) if upper else found


def cholesky(e: OpBuilder, call: Call) -> Tensor:
    return factor(e, call.tensor("self"), call.flag("upper"))


def _both(e: OpBuilder, matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """With the batch dims of either."""
    batch = e.broadcast_shape(matrix.shape[:-2], right.shape[:-2])
    return e.broadcast(matrix, (*batch, *matrix.shape[-2:])), e.broadcast(right, (*batch, *right.shape[-2:]))


def triangular(e: OpBuilder, matrix: Tensor, right: Tensor, upper: bool, unit: bool) -> Tensor:
    """X of matrix * X = right."""
    matrix, right = _both(e, real(matrix), right)
    return library("disc.triangular_solve", [right, matrix], [(right.shape, right.dtype)], upper=upper, unit=unit)[0]


def solve_triangular(e: OpBuilder, call: Call) -> Tensor:
    matrix, right, upper, unit = call.tensor("self"), call.tensor("B"), call.flag("upper"), call.flag("unitriangular")
    if call.flag("left"):
        return triangular(e, matrix, right, upper, unit)
    return transposed(e, triangular(e, transposed(e, matrix), transposed(e, right), not upper, unit))


def cholesky_solve(e: OpBuilder, call: Call) -> Tensor:
    right, matrix, upper = call.tensor("self"), call.tensor("input2"), call.flag("upper")
    lower = transposed(e, matrix) if upper else matrix
    half = triangular(e, lower, right, upper=False, unit=False)
    return triangular(e, transposed(e, lower), half, upper=True, unit=False)


def is_vector_of(right: Tensor, matrix: Tensor) -> bool:
    """Whether a right side is one vector for each matrix."""
    return right.rank == 1 or (right.rank == matrix.rank - 1 and right.shape == matrix.shape[:-1])


def solve(e: OpBuilder, call: Call) -> Tensor:
    matrix, right, left = real(call.tensor("A")), call.tensor("B"), call.flag("left")
    is_vector = is_vector_of(right, matrix)
    if is_vector:
        right = e.unsqueeze(right, right.rank)
    elif not left:
        matrix, right = transposed(e, matrix), transposed(e, right)
    matrix, right = _both(e, matrix, right)
    found = library("disc.solve", [right, matrix], [(right.shape, right.dtype)])[0]
    return e.reshape(found, call.shape) if is_vector else found if left else transposed(e, found)


def inverse(e: OpBuilder, call: Call) -> Tensor:
    x = real(call.tensor("A" if "A" in call.arguments else "self"))
    return library("disc.inverse", [x], [(x.shape, x.dtype)])[0]


def _determinants(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    x = real(call.tensor("A" if "A" in call.arguments else "self"))
    return sized_library(e, "disc.dynamic_determinant", [x], [(x.shape[:-2], x.dtype)] * 3)


def determinant(e: OpBuilder, call: Call) -> Tensor:
    return _determinants(e, call)[0]


def sign_and_logarithm(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    return _determinants(e, call)[1:]


OVERRIDES: dict[object, Override] = {
    **overrides(Fault.REFUSED, "no lowering to ops that disc has", {
        aten.linalg_cholesky.default: cholesky, aten.cholesky.default: cholesky, aten.cholesky_solve.default: cholesky_solve,
        aten.linalg_solve_triangular.default: solve_triangular, aten.linalg_solve.default: solve,
        aten.linalg_inv.default: inverse, aten.inverse.default: inverse,
        aten.linalg_det.default: determinant, aten.det.default: determinant, aten.linalg_slogdet.default: sign_and_logarithm,
    }),
}  # fmt: skip
