"""Factorizations of complex matrices, and eigenvalues of any, as ops on real tensors: complex numbers are pairs in the last dim.

    linalg_solve(A, b)   ─►   view_as_complex(disc.complex_solve(view_as_real(b), view_as_real(A)))

The ops are PyTorch's, too, so that a graph that is not compiled runs there. The forms are those of `complex_forms.JOINED`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

_OPS = torch.library.Library("disc", "FRAGMENT")
disc = torch.ops.disc


def _whole(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.contiguous())


def _pairs(results: Sequence[Tensor]) -> list[Tensor]:
    return [torch.view_as_real(each.resolve_conj()).contiguous() if each.is_complex() else each.contiguous() for each in results]


def _complete(x: Tensor, full: bool) -> tuple[int, int]:
    """Columns of the left and rows of the right factor of matrices [..., m, n, 2]."""
    rows, columns = x.shape[-3:-1]
    return (rows, columns) if full else (_least(x), _least(x))


def _least(x: Tensor) -> int:
    return cast("int", torch.sym_min(x.shape[-3], x.shape[-2]))


def _svd_shapes(x: Tensor, full: bool) -> list[Tensor]:
    (*batch, rows, columns, _), (left, right) = x.shape, _complete(x, full)
    return [
        x.new_empty([*batch, rows, left, 2]),
        x.new_empty([*batch, _least(x)]),
        x.new_empty([*batch, right, columns, 2]),
    ]


def _qr_shapes(x: Tensor, full: bool) -> list[Tensor]:
    (*batch, rows, columns, _), (wanted, _) = x.shape, _complete(x, full)
    return [x.new_empty([*batch, rows, wanted, 2]), x.new_empty([*batch, wanted, columns, 2])]


def _factored(x: Tensor, checked: bool) -> list[Tensor]:
    factors, pivots, zeros = torch.linalg.lu_factor_ex(_whole(x), check_errors=checked)
    return _pairs([factors, pivots, _order(pivots, x.shape[-3]), zeros])


def _order(pivots: Tensor, rows: int) -> Tensor:
    """Row i of L * U is this row of the matrix."""
    exchange = torch.lu_unpack(torch.zeros(*pivots.shape[:-1], rows, rows), pivots, unpack_data=False)[0]
    return exchange.transpose(-1, -2).argmax(-1).to(torch.int32) if rows else pivots.new_zeros([*pivots.shape[:-1], 0])


def _factored_shapes(x: Tensor, checked: bool) -> list[Tensor]:
    sizes = ([*x.shape[:-3], _least(x)], x.shape[:-2], x.shape[:-3])
    return [x.new_empty(x.shape), *(x.new_empty(each, dtype=torch.int32) for each in sizes)]


def _determinants(x: Tensor) -> list[Tensor]:
    return _pairs([torch.linalg.det(_whole(x)), *torch.linalg.slogdet(_whole(x))])


def _define(signature: str, compute: Callable[..., object], shapes: Callable[..., object]) -> None:
    name = signature.partition("(")[0]
    _OPS.define(signature)
    _OPS.impl(name, compute, "CPU")
    _OPS.impl(name, shapes, "Meta")


_define(
    "complex_solve(Tensor right, Tensor matrix) -> Tensor",
    lambda right, matrix: _pairs([torch.linalg.solve(_whole(matrix), _whole(right))])[0],
    lambda right, matrix: right.new_empty(right.shape),
)
_define("complex_cholesky(Tensor x) -> Tensor", lambda x: _pairs([torch.linalg.cholesky(_whole(x))])[0], lambda x: x.new_empty(x.shape))
_define(
    "complex_determinant(Tensor x) -> Tensor[]",
    _determinants,
    lambda x: [x.new_empty([*x.shape[:-3], 2]), x.new_empty([*x.shape[:-3], 2]), x.new_empty(x.shape[:-3])],
)
_define(
    "complex_eigh(Tensor x) -> Tensor[]",
    lambda x: _pairs(torch.linalg.eigh(_whole(x))),
    lambda x: [x.new_empty(x.shape[:-2]), x.new_empty(x.shape)],
)
_define(
    "complex_svd(Tensor x, bool full) -> Tensor[]", lambda x, full: _pairs(torch.linalg.svd(_whole(x), full_matrices=full)), _svd_shapes
)
_define(
    "complex_qr(Tensor x, bool full) -> Tensor[]",
    lambda x, full: _pairs(torch.linalg.qr(_whole(x), "complete" if full else "reduced")),
    _qr_shapes,
)
_define(
    "eig(Tensor x) -> Tensor[]",
    lambda x: _pairs(torch.linalg.eig(x)),
    lambda x: [x.new_empty([*x.shape[:-1], 2]), x.new_empty([*x.shape, 2])],
)
_define("complex_eig(Tensor x) -> Tensor[]", lambda x: _pairs(torch.linalg.eig(_whole(x))),
        lambda x: [x.new_empty([*x.shape[:-2], 2]), x.new_empty(x.shape)])  # fmt: skip
_define("complex_lu(Tensor x, bool checked) -> Tensor[]", _factored, _factored_shapes)
_define("permutation(Tensor pivots, SymInt rows) -> Tensor", _order, lambda pivots, rows: pivots.new_empty([*pivots.shape[:-1], rows]))
_define(
    "complex_triangular_solve(Tensor right, Tensor matrix, bool upper, bool unit) -> Tensor",
    lambda right, matrix, upper, unit: _pairs(
        [torch.linalg.solve_triangular(_whole(matrix), _whole(right), upper=upper, unitriangular=unit)]
    )[0],
    lambda right, matrix, upper, unit: right.new_empty(right.shape),
)
_define(
    "complex_cholesky_ex(Tensor x, bool checked) -> Tensor[]",
    lambda x, checked: _pairs(torch.linalg.cholesky_ex(_whole(x), check_errors=checked)),
    lambda x, checked: [x.new_empty(x.shape), x.new_empty(x.shape[:-3], dtype=torch.int32)],
)
_define(
    "complex_householder_product(Tensor x, Tensor factors) -> Tensor",
    lambda x, factors: _pairs([torch.linalg.householder_product(_whole(x), _whole(factors))])[0],
    lambda x, factors: x.new_empty(x.shape),
)
PLAIN = (
    "complex_solve", "complex_cholesky", "complex_determinant", "complex_eigh", "complex_svd", "complex_qr", "eig", "complex_eig",
    "complex_householder_product", "permutation",
)  # fmt: skip


def turned(x: Tensor) -> Tensor:
    """Rows become columns."""
    return x.transpose(-3, -2)


def adjoint(x: Tensor) -> Tensor:
    """The conjugate transpose."""
    return turned(x) * x.new_tensor([1, -1])


def _is_vector_of(right: Tensor, matrix: Tensor) -> bool:
    return right.dim() == 2 or (right.dim() == matrix.dim() - 1 and right.shape == (*matrix.shape[:-2], 2))


def _of_one_batch(*given: Tensor) -> list[Tensor]:
    """Matrices with the batch dims of all."""
    batch = torch.broadcast_shapes(*(each.shape[:-3] for each in given))
    return [each.expand(*batch, *each.shape[-3:]) for each in given]


def solve(matrix: Tensor, right: Tensor, left: bool) -> Tensor:
    """matrix [..., n, n, 2]; right [..., n, c, 2], or [..., n, 2], one vector for each matrix."""
    is_vector = _is_vector_of(right, matrix)
    if is_vector:
        right = right.unsqueeze(-2)
    elif not left:
        matrix, right = turned(matrix), turned(right)
    matrix, right = _of_one_batch(matrix, right)
    found = disc.complex_solve(right, matrix)
    return found.squeeze(-2) if is_vector else found if left else turned(found)


def solve_triangular(matrix: Tensor, right: Tensor, upper: bool, unit: bool = False, left: bool = True) -> Tensor:
    """X of matrix * X = right, or of X * matrix = right."""
    if not left:
        return turned(solve_triangular(turned(matrix), turned(right), not upper, unit))
    matrix, right = _of_one_batch(matrix, right)
    return disc.complex_triangular_solve(right, matrix, upper, unit)


def cholesky_solve(lower: Tensor, right: Tensor) -> Tensor:
    return solve_triangular(adjoint(lower), solve_triangular(lower, right, upper=False), upper=True)


def _one(matrix: Tensor) -> Tensor:
    """The identity, with as many rows and columns as the matrix."""
    one = torch.eye(matrix.shape[-3], matrix.shape[-2], dtype=matrix.dtype)
    return torch.stack([one, torch.zeros_like(one)], -1)


def _below(matrix: Tensor) -> Tensor:
    """[m, n, 1]: whether an element is below the diagonal."""
    rows, columns = (torch.arange(size) for size in matrix.shape[-3:-1])
    return (rows.unsqueeze(-1) > columns).unsqueeze(-1)


def unpacked(factors: Tensor, order: Tensor) -> list[Tensor]:
    """(P, L, U)."""
    rows, least = factors.shape[-3], _least(factors)
    lower, upper = factors.narrow(-2, 0, least), factors.narrow(-3, 0, least)
    exchange = (torch.arange(rows, dtype=order.dtype).unsqueeze(-1) == order.unsqueeze(-2)).to(factors.dtype)
    return [
        torch.stack([exchange, torch.zeros_like(exchange)], -1),
        torch.where(_below(lower), lower, _one(lower)),
        torch.where(_below(upper), torch.zeros_like(upper), upper),
    ]


def _by_rows(x: Tensor, order: Tensor) -> Tensor:
    """Rows in another order."""
    return x.gather(-3, order.to(torch.int64)[..., None, None].expand(x.shape))


def solved_by_factors(factors: Tensor, order: Tensor, right: Tensor, left: bool, adjoined: bool) -> Tensor:
    """X of A * X = right, with A^H if `adjoined`; of X * A = right if not `left`."""
    if not left:
        return adjoint(solved_by_factors(factors, order, adjoint(right), True, not adjoined))
    factors, right = _of_one_batch(factors, right)
    order = order.expand(right.shape[:-2])
    if not adjoined:
        half = solve_triangular(factors, _by_rows(right, order), upper=False, unit=True)
        return solve_triangular(factors, half, upper=True)
    half = solve_triangular(adjoint(factors), right, upper=False)
    found = solve_triangular(adjoint(factors), half, upper=True, unit=True)
    return _by_rows(found, order.argsort(-1))


def solve_ex(matrix: Tensor, right: Tensor, left: bool, checked: bool) -> list[Tensor]:
    """(X, L and U in one, pivots, zeros)."""
    factors, pivots, order, zeros = disc.complex_lu(matrix, checked)
    is_vector = _is_vector_of(right, matrix)
    found = solved_by_factors(factors, order, right.unsqueeze(-2) if is_vector else right, left or is_vector, False)
    return [found.squeeze(-2) if is_vector else found, factors, pivots, zeros]


def inverse_ex(matrix: Tensor, checked: bool) -> list[Tensor]:
    found, _, _, zeros = solve_ex(matrix, _one(matrix).expand(matrix.shape), True, checked)
    return [found, zeros]


def cholesky_ex(matrix: Tensor, upper: bool, checked: bool) -> list[Tensor]:
    found, minors = disc.complex_cholesky_ex(adjoint(matrix) if upper else matrix, checked)
    return [adjoint(found) if upper else found, minors]


def inverse(matrix: Tensor) -> Tensor:
    return disc.complex_solve(_one(matrix).expand(matrix.shape), matrix)


def cholesky(matrix: Tensor, upper: bool) -> Tensor:
    return adjoint(disc.complex_cholesky(adjoint(matrix))) if upper else disc.complex_cholesky(matrix)


def eigh(matrix: Tensor, uplo: str) -> list[Tensor]:
    return disc.complex_eigh(adjoint(matrix) if uplo.upper() == "U" else matrix)


def eig(matrix: Tensor, is_complex: bool) -> list[Tensor]:
    return disc.complex_eig(matrix) if is_complex else disc.eig(matrix)


def qr(matrix: Tensor, mode: str) -> list[Tensor]:
    q, r = disc.complex_qr(matrix, mode == "complete")
    return [matrix.new_empty([0, 2]) if mode == "r" else q, r]
