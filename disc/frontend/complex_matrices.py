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
NAMES = ("complex_solve", "complex_cholesky", "complex_determinant", "complex_eigh", "complex_svd", "complex_qr", "eig", "complex_eig")


def turned(x: Tensor) -> Tensor:
    """Rows become columns."""
    return x.transpose(-3, -2)


def adjoint(x: Tensor) -> Tensor:
    """The conjugate transpose."""
    return turned(x) * x.new_tensor([1, -1])


def solve(matrix: Tensor, right: Tensor, left: bool) -> Tensor:
    """matrix [..., n, n, 2]; right [..., n, c, 2], or [..., n, 2], one vector for each matrix."""
    is_vector = right.dim() == 2 or (right.dim() == matrix.dim() - 1 and right.shape == (*matrix.shape[:-2], 2))
    if is_vector:
        right = right.unsqueeze(-2)
    elif not left:
        matrix, right = turned(matrix), turned(right)
    batch = torch.broadcast_shapes(matrix.shape[:-3], right.shape[:-3])
    matrix, right = (each.expand(*batch, *each.shape[-3:]) for each in (matrix, right))
    found = disc.complex_solve(right, matrix)
    return found.squeeze(-2) if is_vector else found if left else turned(found)


def inverse(matrix: Tensor) -> Tensor:
    one = torch.eye(matrix.shape[-2], dtype=matrix.dtype)
    return disc.complex_solve(torch.stack([one, torch.zeros_like(one)], -1).expand(matrix.shape), matrix)


def cholesky(matrix: Tensor, upper: bool) -> Tensor:
    return adjoint(disc.complex_cholesky(adjoint(matrix))) if upper else disc.complex_cholesky(matrix)


def eigh(matrix: Tensor, uplo: str) -> list[Tensor]:
    return disc.complex_eigh(adjoint(matrix) if uplo.upper() == "U" else matrix)


def eig(matrix: Tensor, is_complex: bool) -> list[Tensor]:
    return disc.complex_eig(matrix) if is_complex else disc.eig(matrix)


def qr(matrix: Tensor, mode: str) -> list[Tensor]:
    q, r = disc.complex_qr(matrix, mode == "complete")
    return [matrix.new_empty([0, 2]) if mode == "r" else q, r]
