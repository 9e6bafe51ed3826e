"""QR, LU, eigenvalue and singular value decompositions against eager: by reconstruction, and up to signs; batches, sizes 0 and 1, both shapes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compiled import Wrapped, assert_close
from torch import Tensor

import disc
from disc.errors import InputValueError, SingularMatrixError

linalg = torch.linalg
RECTANGLES = ((2, 5, 3), (1, 1, 1), (3, 3, 5), (2, 33, 33), (1, 70, 9), (1, 9, 70), (0, 3, 2), (1, 2, 40), (1, 40, 1))


def matrices(batch: int, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(rows * columns)
    return torch.randn(batch, rows, columns, dtype=torch.float64, generator=generator).to(dtype)


def tolerance(dtype: torch.dtype) -> float:
    return 2e-4 if dtype == torch.float32 else 1e-11


def qr_and_lu(a: Tensor) -> tuple[Tensor, ...]:
    factors, pivots, _ = linalg.lu_factor_ex(a)
    return (
        *linalg.qr(a), *linalg.qr(a, mode="complete"), linalg.qr(a, mode="r").R, factors, pivots, *linalg.lu(a),
        *torch.lu_unpack(factors, pivots),
    )  # fmt: skip


def singular(a: Tensor) -> tuple[Tensor, ...]:
    return (*linalg.svd(a, full_matrices=False), *linalg.svd(a), linalg.svdvals(a), linalg.pinv(a), linalg.matrix_rank(a))


def symmetric(a: Tensor) -> tuple[Tensor, ...]:
    return (*linalg.eigh(a), *linalg.eigh(a, UPLO="U"), linalg.eigvalsh(a), torch.matrix_exp(a), linalg.cond(a))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_qr_and_lu(dtype: torch.dtype) -> None:
    executable = disc.compile(Wrapped(qr_and_lu).eval(), (matrices(2, 5, 4, dtype),))
    for sizes in RECTANGLES:
        a = matrices(*sizes, dtype)
        for number, (ours, theirs) in enumerate(zip(executable(a), qr_and_lu(a), strict=True)):
            assert_close(ours, theirs, tolerance(dtype), f"result {number} of {sizes}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_singular_values(dtype: torch.dtype) -> None:
    executable = disc.compile(Wrapped(singular).eval(), (matrices(2, 5, 4, dtype),))
    for sizes in RECTANGLES:
        a, close = matrices(*sizes, dtype), tolerance(dtype) * 4
        if sizes[1:] == (33, 33):
            a = a[:, :, :4] @ a[:, :4]  # of rank 4
        u, s, v, whole_u, _, whole_v, values, inverse, rank = executable(a)
        assert_close((u * s.unsqueeze(-2)) @ v, a, close, f"U S V of {sizes}")
        for number, basis in enumerate((u.mT, v, whole_u.mT, whole_v)):
            assert_close(
                basis @ basis.mT, torch.eye(basis.shape[-2], dtype=dtype).expand(basis.shape[0], -1, -1), close, f"{number}, {sizes}"
            )
        assert_close(whole_u[..., : s.shape[-1]].abs(), u.abs(), close, f"{sizes}")
        assert_close(values, linalg.svdvals(a), close, f"values of {sizes}")
        assert torch.equal(rank, linalg.matrix_rank(a))
        assert_close(a @ inverse @ a, a, close * 4, f"the pseudo-inverse of {sizes}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_symmetric_matrices(dtype: torch.dtype) -> None:
    executable = disc.compile(Wrapped(symmetric).eval(), (matrices(2, 5, 5, dtype),))
    for batch, size in ((2, 5), (1, 1), (3, 2), (1, 64), (2, 33), (0, 3)):
        a = matrices(batch, size, size, dtype)
        a = (a + a.mT) / 2
        if size == 33:
            a = torch.ones_like(a)  # one eigenvalue many times
        elif size == 64:
            a = torch.diag_embed(torch.arange(64, dtype=dtype).expand(1, 64)) / 16
        values, vectors, uppers, upper_vectors, alone, exponential, _ = executable(a)
        theirs = linalg.eigvalsh(a)
        for each in (values, uppers, alone):
            assert_close(each, theirs, tolerance(dtype), f"eigenvalues of {size}")
        for each in (vectors, upper_vectors):
            assert_close(a @ each, each * values.unsqueeze(-2), tolerance(dtype) * 4, f"eigenvectors of {size}")
            assert_close(each.mT @ each, torch.eye(size, dtype=dtype).expand(batch, -1, -1), tolerance(dtype), f"basis of {size}")
        wanted = torch.matrix_exp(a.double()).to(dtype)
        largest = wanted.abs().amax() if batch else 1
        assert_close(exponential / largest, wanted / largest, tolerance(dtype), f"exponential of {size}")


def solutions(a: Tensor, b: Tensor, packed: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
    factors, pivots, _ = linalg.lu_factor_ex(a)
    lower, failed = linalg.cholesky_ex(a @ a.mT)
    inverse, zeros = linalg.inv_ex(a)
    return (
        linalg.lu_solve(factors, pivots, b), linalg.lu_solve(factors, pivots, b, adjoint=True),
        linalg.lu_solve(factors, pivots, b.mT, left=False), linalg.lstsq(a, b).solution, lower, failed, inverse, zeros,
        linalg.solve_ex(a, b)[0], torch.cholesky_inverse(lower), torch.ormqr(packed, tau, b),
        torch.ormqr(packed, tau, b.mT, left=False, transpose=True), linalg.householder_product(packed, tau),
    )  # fmt: skip


def test_solutions_by_factors() -> None:
    def make(batch: int, size: int) -> tuple[Tensor, ...]:
        a = matrices(batch, size, size, torch.float64) + 2 * size * torch.eye(size)
        return a, matrices(batch, size, 3, torch.float64), *torch.geqrf(a)

    executable = disc.compile(Wrapped(solutions).eval(), make(2, 5))
    for sizes in ((3, 5), (1, 1), (1, 33)):
        for number, (ours, theirs) in enumerate(zip(executable(*make(*sizes)), solutions(*make(*sizes)), strict=True)):
            assert_close(ours, theirs, 1e-9, f"result {number} of {sizes}")


def test_least_squares_of_deficient_matrices() -> None:
    """The solution of least norm, and the rank; singular matrices have numbers of what failed, and no error."""

    def function(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        found = linalg.lstsq(a, b)
        return found.solution, found.rank, linalg.inv_ex(a @ a.mT).info, linalg.cholesky_ex(-a @ a.mT).info

    a, b = matrices(2, 6, 4, torch.float64), matrices(2, 6, 3, torch.float64)
    executable = disc.compile(Wrapped(function).eval(), (a, b))
    a[1, :, 3] = 2 * a[1, :, 0]
    a[1, 2] = 0
    for ours, theirs in zip(executable(a, b), function(a, b), strict=True):
        assert_close(ours, theirs, 1e-10, "deficient")


def test_factors_with_a_zero_on_the_diagonal_are_refused() -> None:
    """Where `lu_factor_ex` has its place."""
    executable = disc.compile(
        Wrapped(lambda a: (*linalg.lu_factor(a), *linalg.lu_factor_ex(a))).eval(), (matrices(3, 4, 4, torch.float32),)
    )
    a = matrices(2, 5, 5, torch.float32)
    for ours, theirs in zip(executable(a), (*linalg.lu_factor(a), *linalg.lu_factor_ex(a)), strict=True):
        assert_close(ours, theirs, tolerance(torch.float32), "factors")
    a[1, :, 2] = 0
    with pytest.raises(SingularMatrixError, match=r"lu_checked.*\(batch element 1\) diagonal element 3 of U is zero"):
        executable(a)


@pytest.mark.parametrize("function", [linalg.svdvals, linalg.eigvalsh])
def test_what_is_not_finite_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    a = matrices(3, 4, 4, torch.float32)
    executable = disc.compile(Wrapped(function).eval(), (a,))
    a[1, 2, 0] = float("nan")
    with pytest.raises(InputValueError, match=r"\(batch element 1\) the matrix has elements that are infinite or NaN"):
        executable(a)


def test_under_torch_compile() -> None:
    """AOTAutograd opens composite functions; what they check is left to PyTorch, which ends the call."""

    def function(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return linalg.solve(a, b), linalg.inv(a), linalg.cholesky(a @ a.mT), linalg.det(a), *linalg.slogdet(a), *linalg.qr(a)

    compiled = torch.compile(function, backend="disc", dynamic=True, fullgraph=True)
    a, b = matrices(2, 5, 5, torch.float64) + 5 * torch.eye(5), matrices(2, 5, 3, torch.float64)
    for ours, theirs in zip(compiled(a, b), function(a, b), strict=True):
        assert_close(ours, theirs, 1e-10, "torch.compile")
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(torch.zeros_like(a), b)
