"""Functions of matrices that are made of factorizations: decompositions, and forms of functions whose results PyTorch cannot trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from disc.frontend.checked_values import required
from disc.frontend.eager_strides import Decomposition

aten = torch.ops.aten


def _default_limit(x: Tensor) -> float:
    """By which a singular value is small, as a part of the largest: machine precision times the larger size."""
    return torch.finfo(x.dtype).eps * torch.sym_max(x.shape[-2], x.shape[-1])


def _limit(x: Tensor, sizes: Tensor, atol: Tensor | None, rtol: Tensor | None) -> Tensor:
    """[..., 1]: what is no larger counts as 0. sizes: magnitudes [..., k]."""
    largest = sizes.amax(-1, keepdim=True)
    if rtol is not None:
        relative = largest * rtol.unsqueeze(-1)
    elif atol is None:
        relative = largest * _default_limit(x)
    else:
        relative = torch.where(atol.unsqueeze(-1) > 0, torch.zeros_like(largest), largest * _default_limit(x))
    return relative if atol is None else torch.maximum(relative, atol.unsqueeze(-1).to(relative.dtype))


def pinv(x: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    if hermitian:
        values, vectors = torch.linalg.eigh(x)
        sizes, left, right = values.abs(), vectors, vectors.mH
    else:
        left, values, right = torch.linalg.svd(x, full_matrices=False)
        sizes = values
    kept = torch.where(sizes > _limit(x, sizes, atol, rtol), 1 / values, torch.zeros_like(values))
    return (right.mH * kept.unsqueeze(-2)) @ left.mH


def matrix_rank(x: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    sizes = torch.linalg.eigvalsh(x).abs() if hermitian else torch.linalg.svdvals(x)
    return (sizes > _limit(x, sizes, atol, rtol)).sum(-1)


def by_limits(original: Callable[..., Tensor], function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function`, with limits that may be numbers; PyTorch's own C++ code decides by the example which of two sizes is the larger."""

    def form(A: Tensor, *args: object, atol: object = None, rtol: object = None, hermitian: bool = False, **others: object) -> Tensor:
        if args or others or A.dim() < 2 or not (A.is_complex() or A.is_floating_point()):
            return original(A, *args, atol=atol, rtol=rtol, hermitian=hermitian, **others)
        atol, rtol = (torch.tensor(each, dtype=A.dtype.to_real()) if isinstance(each, int | float) else each for each in (atol, rtol))
        return function(A, atol=atol, rtol=rtol, hermitian=hermitian)

    return form


def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mH if upper else factor
    diagonal = lower.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    lower = required(lower, diagonal != 0, "cholesky_inverse: a diagonal element is zero, so the matrix is singular: got {actual} or more")
    half = torch.linalg.solve_triangular(lower, torch.eye(factor.shape[-1], dtype=factor.dtype).expand(factor.shape), upper=False)
    return half.mH @ half


def ormqr(reflections: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """With the whole orthogonal matrix, whose columns are as many as its rows."""
    rows, columns = reflections.shape[-2:]
    room = reflections.new_zeros([*reflections.shape[:-1], rows])
    whole = torch.cat([reflections, room], -1).narrow(-1, 0, rows) if rows != columns else reflections
    q = torch.linalg.householder_product(whole, tau)
    q = q.mH if transpose else q
    return q @ other if left else other @ q


class LeastSquares(NamedTuple):
    """As `torch.return_types.linalg_lstsq`."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


DRIVERS = ("gelsy", "gels", "gelsd", "gelss")


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """The solution of least norm, by singular values, for any driver. PyTorch's own has results whose sizes depend on data.

    Residuals are there where eager's LAPACK driver gives them whatever the rank: for "gels" and more rows than columns.
    """
    wanted = "gelsy" if driver is None else driver
    known = isinstance(A.shape[-2], int) and isinstance(A.shape[-1], int)
    if wanted not in DRIVERS or (wanted != "gelsy" and not (known and (wanted == "gels" or A.shape[-2] <= A.shape[-1]))):
        return torch.linalg.lstsq(A, B, rcond, driver=driver)  # pyright: ignore[reportReturnType]  # which says what is wrong, or is refused
    is_vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and A.shape[:-1] == B.shape)
    right = B.unsqueeze(-1) if is_vector else B
    left, values, turned = torch.linalg.svd(A, full_matrices=False)
    kept = values > values.amax(-1, keepdim=True) * (_default_limit(A) if rcond is None else rcond)
    kept = torch.ones_like(kept) if wanted == "gels" else kept
    inverse = torch.where(kept, 1 / values, torch.zeros_like(values))
    solution = turned.mH @ (inverse.unsqueeze(-1) * (left.mH @ right))
    residuals = A.new_empty([0])
    if wanted == "gels" and A.shape[-2] > A.shape[-1]:
        residuals = (A @ solution - right).abs().square().sum(-2)
    rank = kept.sum(-1) if wanted != "gels" else torch.empty([0], dtype=torch.int64)
    singular = values if wanted in ("gelsd", "gelss") else values.new_empty([0])
    return LeastSquares(solution.squeeze(-1) if is_vector else solution, residuals, rank, singular)


def matrix_exp(x: Tensor) -> Tensor:
    """exp(A + iB) is U + iV where exp([[A, -B], [B, A]]) is [[U, -V], [V, U]]."""
    if not x.is_complex():
        return torch.linalg.matrix_exp(x)
    re, im = x.real, x.imag
    whole = torch.linalg.matrix_exp(torch.cat((torch.cat((re, -im), -1), torch.cat((im, re), -1)), -2))
    return torch.complex(*(part.narrow(-1, 0, x.shape[-1]) for part in (whole[..., : x.shape[-1], :], whole[..., x.shape[-1] :, :])))


def matrix_norm(
    A: Tensor, ord: float | str = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Those of sums and of singular values; PyTorch's own C++ code reads sizes as plain integers."""
    if isinstance(ord, str) or abs(ord) not in (1, 2, math.inf) or A.dim() < 2:
        return torch.linalg.matrix_norm(A, ord, dim, keepdim, dtype=dtype)  # pyright: ignore[reportCallIssue, reportArgumentType]
    places = [each % A.dim() for each in dim]
    x = (A if dtype is None else A.to(dtype)).movedim(places, (-2, -1))
    values = torch.linalg.svdvals(x) if abs(ord) == 2 else x.abs().sum(-2 if abs(ord) == 1 else -1)
    norm = values.amax(-1) if ord > 0 else values.amin(-1)
    for place in sorted(places) if keepdim else ():
        norm = norm.unsqueeze(place)
    return norm


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    aten.linalg_pinv.atol_rtol_tensor: pinv,
    aten.cholesky_inverse.default: cholesky_inverse,
    aten.ormqr.default: ormqr,
}
FORMS: dict[Callable[..., object], Callable[..., object]] = {
    torch.linalg.lstsq: lstsq,
    torch.linalg.matrix_norm: matrix_norm,
    **dict.fromkeys((torch.linalg.matrix_exp, torch.matrix_exp, torch.Tensor.matrix_exp), matrix_exp),
    torch.linalg.pinv: by_limits(torch.linalg.pinv, pinv),
    torch.linalg.matrix_rank: by_limits(torch.linalg.matrix_rank, matrix_rank),
}
