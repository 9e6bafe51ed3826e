"""Factorizations of complex matrices and eigenvalues of any: against eager, up to the order and the phases that a factorization leaves open."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, linalg, nn

import disc
from disc.errors import InputValueError, SingularMatrixError

SHAPES = ((2, 1), (1, 2), (0, 3), (3, 5), (2, 17), (1, 33))  # batch, size


class Call(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*inputs)


def compiled(function: Callable[..., object], *example: Tensor) -> disc.Executable:
    return disc.compile(Call(function), example, options=disc.Options(cache=False))


def random(*shape: int, dtype: torch.dtype = torch.complex64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def square(batch: int, n: int) -> Tensor:
    return random(batch, n, n)


def regular(batch: int, n: int) -> Tensor:
    """Far from a singular matrix."""
    return square(batch, n) + 3 * n**0.5 * torch.eye(n)


def tall(batch: int, n: int) -> Tensor:
    return random(batch, n + 2, n)


def wide(batch: int, n: int) -> Tensor:
    return random(batch, n, n + 3)


def rank_one(batch: int, n: int) -> Tensor:
    return random(batch, n, 1) @ random(batch, n, 1).mH


def positive(batch: int, n: int) -> Tensor:
    return square(batch, n) @ square(batch, n).mH + torch.eye(n)


def near(found: Tensor, wanted: Tensor, scale: Tensor | None = None) -> None:
    """Within 2e-5 (f32) of the largest element, or of `scale`'s."""
    assert found.shape == wanted.shape
    if wanted.dtype == torch.int32:
        assert torch.equal(found, wanted)
    elif found.numel():
        limit = 2e-5 if torch.finfo(wanted.dtype).bits == 32 else 1e-12
        size = 1 + max(wanted.abs().max().item(), 0 if scale is None else scale.abs().max().item())
        assert (found - wanted).abs().max().item() <= limit * size


def orthonormal(columns: Tensor) -> None:
    near(columns.mH @ columns, torch.eye(columns.shape[-1], dtype=columns.dtype).expand(*columns.shape[:-2], -1, -1))


def checked_hermitian(x: Tensor, found: Sequence[Tensor]) -> None:
    values, vectors = found
    near(values, linalg.eigvalsh(x))
    near(vectors * values.unsqueeze(-2) @ vectors.mH, x)
    orthonormal(vectors)


def checked_singular(x: Tensor, found: Sequence[Tensor]) -> None:
    left, values, right = found
    least = min(x.shape[-2:])
    near(values, linalg.svdvals(x))
    near(left[..., :least] * values.unsqueeze(-2) @ right[..., :least, :], x)
    orthonormal(left)
    orthonormal(right.mH)


def checked_eig(x: Tensor, found: Sequence[Tensor]) -> None:
    values, vectors = (torch.view_as_complex(torch.view_as_real(each).contiguous()) for each in found)
    near(x.to(vectors.dtype) @ vectors, vectors * values.unsqueeze(-2), x)
    if x.numel():
        near(vectors.norm(dim=-2), torch.ones(values.shape, dtype=values.real.dtype))
        distances = (values.unsqueeze(-1) - linalg.eigvals(x).unsqueeze(-2)).abs()
        assert distances.min(-1).values.max() < 1e-3 * (1 + values.abs().max()) > distances.min(-2).values.max()


SAME: tuple[tuple[str, Callable[..., object], tuple[Callable[[int, int], Tensor], ...]], ...] = (
    ("solve", linalg.solve, (regular, wide)),
    ("solve, a vector", linalg.solve, (regular, lambda batch, n: random(batch, n))),
    ("solve, from the right", lambda a, b: linalg.solve(a, b, left=False), (regular, tall)),
    ("inv", linalg.inv, (regular,)),
    ("pinv", lambda x, y: (linalg.pinv(x), linalg.pinv(y, rtol=1e-3)), (tall, wide)),
    ("pinv, rank", lambda x: (linalg.pinv(x, hermitian=True), linalg.matrix_rank(x).float()), (positive,)),
    ("lstsq", lambda x, y: linalg.lstsq(x, y).solution, (tall, lambda batch, n: random(batch, n + 2, 2))),
    ("matrix_exp", linalg.matrix_exp, (square,)),
    ("cholesky", lambda x: (linalg.cholesky(x), linalg.cholesky(x, upper=True)), (positive,)),
    ("determinants", lambda x: (linalg.det(x), *linalg.slogdet(x)), (square,)),
    ("qr", lambda x: (*linalg.qr(x), *linalg.qr(x, "complete"), linalg.qr(x, "r")[1]), (tall,)),
    ("qr, wide", linalg.qr, (wide,)),
    ("lu", lambda x: (*linalg.lu(x), *torch.lu_unpack(*linalg.lu_factor(x))), (square,)),
    ("lu, tall", lambda x: (*linalg.lu(x), *linalg.lu_factor_ex(x)), (tall,)),
    ("lu, wide", lambda x: (*linalg.lu(x), *linalg.lu_factor_ex(x)), (wide,)),
    ("lu_solve", lambda x, b: by_factors(x, b, b.mH), (regular, wide)),
    ("with numbers of what failed", lambda x, b: (*linalg.inv_ex(x), *linalg.solve_ex(x, b), torch.logdet(x)), (regular, wide)),
    ("cholesky_ex", lambda x: (*linalg.cholesky_ex(x), *linalg.cholesky_ex(x, upper=True)), (positive,)),
    ("cholesky_ex, of others", lambda x: linalg.cholesky_ex(x + x.mH), (square,)),
    ("of Cholesky's factors", lambda x, b: by_cholesky(linalg.cholesky(x), b), (positive, wide)),
    ("of triangles", lambda a, b: by_triangles(a, b), (regular, wide)),
    ("reflections", lambda x, f: (linalg.householder_product(x, f), *turned_by_reflections(x, f)), (tall, lambda b, n: random(b, n) / 2)),
)


def by_factors(x: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    factors = linalg.lu_factor(x)
    return (
        linalg.lu_solve(*factors, b), linalg.lu_solve(*factors, b, adjoint=True), linalg.lu_solve(*factors, c, left=False),
        linalg.lu_solve(*factors, c, left=False, adjoint=True), torch.lu_solve(b, *factors),
    )  # fmt: skip


def by_cholesky(lower: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    upper = lower.mH.contiguous()
    return (
        torch.cholesky_solve(b, lower), torch.cholesky_solve(b, upper, upper=True), torch.cholesky_inverse(lower),
        torch.cholesky_inverse(upper, upper=True),
    )  # fmt: skip


def by_triangles(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (
        linalg.solve_triangular(a, b, upper=True), linalg.solve_triangular(a / 9, b, upper=False, unitriangular=True),
        linalg.solve_triangular(a, b.mH, upper=True, left=False),
        torch.triangular_solve(b, a, transpose=True)[0],
    )  # fmt: skip


def turned_by_reflections(x: Tensor, factors: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.ormqr(x, factors, x), torch.ormqr(x, factors, x, transpose=True), torch.ormqr(x, factors, x.mH, left=False),
        torch.ormqr(x, factors, x.mH, left=False, transpose=True),
    )  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("function", "makers"), [each[1:] for each in SAME], ids=[each[0] for each in SAME])
def test_as_in_eager(function: Callable[..., object], makers: Sequence[Callable[[int, int], Tensor]]) -> None:
    executable = compiled(function, *(make(3, 4) for make in makers))
    for shape in SHAPES:
        inputs = [make(*shape) for make in makers]
        found, wanted = executable(*inputs), function(*inputs)
        pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]  # pyright: ignore[reportArgumentType]
        for own, theirs in pairs:
            assert own.dtype == theirs.dtype  # pyright: ignore[reportAttributeAccessIssue]
            near(own, theirs)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("full", [True, False])
def test_eigh_and_svd(full: bool) -> None:
    def hermitian(x: Tensor) -> object:
        return *linalg.eigh(x + x.mH), linalg.eigvalsh(x + x.mH)

    executable = compiled(hermitian, square(3, 4))
    singular = {make: compiled(lambda x: linalg.svd(x, full_matrices=full), make(3, 4)) for make in (square, tall, wide)}
    for shape in SHAPES:
        for x in (square(*shape), rank_one(*shape), torch.zeros(*shape, shape[1], dtype=torch.complex64)):
            *pair, alone = executable(x)  # pyright: ignore[reportGeneralTypeIssues]
            checked_hermitian(x + x.mH, pair)
            near(alone, linalg.eigvalsh(x + x.mH))
            checked_singular(x, singular[square](x))  # pyright: ignore[reportArgumentType]
        for make in (tall, wide):
            checked_singular(make(*shape), singular[make](make(*shape)))  # pyright: ignore[reportArgumentType]


def hard_matrices() -> list[Tensor]:
    """A cycle, whose eigenvalues have one size, a block of Jordan's, triangles, magnitudes far from 1, equal eigenvalues."""
    cycle = torch.eye(9).roll(1, 0)
    jordan = torch.eye(12).roll(1, 1).triu() + 2 * torch.eye(12)
    x = random(6, 6, dtype=torch.float32)
    return [cycle, jordan, x.triu(), x.tril(), x * 1e25, x * 1e-25, torch.ones(5, 5), torch.zeros(4, 4), torch.eye(3), x - x.T, x + x.T]


def test_eig() -> None:
    real, whole = (compiled(linalg.eig, x) for x in (random(3, 4, 4, dtype=torch.float32), square(3, 4)))
    for shape in SHAPES:
        for x in (random(*shape, shape[1], dtype=torch.float32), rank_one(*shape).real.contiguous()):
            checked_eig(x, real(x))  # pyright: ignore[reportArgumentType]
        for x in (square(*shape), rank_one(*shape)):
            checked_eig(x, whole(x))  # pyright: ignore[reportArgumentType]
    for x in hard_matrices():
        for executable, own in ((real, x), (whole, x.to(torch.complex64) * (0.6 + 0.8j))):
            values, vectors = (each[0] for each in executable(own.unsqueeze(0)))  # pyright: ignore[reportGeneralTypeIssues]
            size = own.abs().max()
            assert (own.to(vectors.dtype) @ vectors - vectors * values).abs().max() <= 2e-5 * size
    pairs = real(torch.tensor([[[0.0, -2], [2, 0]]]))[0]  # pyright: ignore[reportIndexIssue]
    assert pairs.tolist() == [[2j, -2j]]


def test_in_f64() -> None:
    def function(a: Tensor, b: Tensor) -> object:
        return linalg.solve(a, b), linalg.eigvals(a.real.contiguous()), *linalg.svd(a), *linalg.eig(a), *linalg.eigh(a + a.mH)

    a, b = (random(2, n, 6, dtype=torch.complex128) for n in (6, 6))
    solved, alone, *others = compiled(function, a, b)(a, b)  # pyright: ignore[reportGeneralTypeIssues]
    near(a @ solved, b, solved)
    checked_singular(a, others[:3])
    checked_eig(a, others[3:5])
    near(alone.sum(-1), a.real.diagonal(dim1=-2, dim2=-1).sum(-1).to(alone.dtype), a)
    checked_hermitian(a + a.mH, others[5:])


def test_matrices_without_a_result() -> None:
    x = square(2, 3)
    with pytest.raises(SingularMatrixError, match=r"\(batch element 1\) the matrix is singular"):
        compiled(linalg.inv, x)(torch.stack([torch.eye(3), torch.ones(3, 3)]).to(x.dtype))
    for function in (linalg.lu_factor, lambda x: linalg.inv_ex(x, check_errors=True)):
        with pytest.raises(SingularMatrixError, match="diagonal element 2 of U is zero"):
            compiled(function, x)(torch.stack([torch.eye(3), torch.ones(3, 3)]).to(x.dtype))
    with pytest.raises(SingularMatrixError, match="minor of order 2 is not positive-definite"):
        compiled(linalg.cholesky, x)(torch.diag(torch.tensor([1.0, -1, 1])).to(x.dtype).unsqueeze(0))
    for function in (linalg.eigh, linalg.svd, linalg.eig):
        with pytest.raises(InputValueError, match="infinite or NaN"):
            compiled(function, x)(x * torch.nan)
