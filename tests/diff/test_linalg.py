"""Factorizations and solutions of matrices against eager: sizes around panels and blocks, batches, singular matrices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compiled import Wrapped, assert_close

import disc
from disc.errors import DiscWarning, SingularMatrixError, UnsupportedOpError
from disc.frontend import dynamo

SIZES = ((2, 5, 3), (1, 1, 1), (3, 31, 33), (1, 64, 65), (2, 65, 1), (1, 130, 64), (0, 3, 2), (2, 3, 0))


def matrix(batch: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(batch, size, size, dtype=dtype, generator=generator) / size**0.5 + 2 * torch.eye(size, dtype=dtype)


def positive(batch: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    square = matrix(batch, size, torch.float64)
    return (square @ square.mT + torch.eye(size, dtype=torch.float64)).to(dtype)


def factors(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    lower = torch.linalg.cholesky(a)
    return (
        lower, torch.linalg.cholesky(a, upper=True), torch.cholesky_solve(b, lower),
        torch.linalg.solve_triangular(lower, b, upper=False), torch.linalg.solve_triangular(lower.mT, b, upper=True),
        torch.linalg.solve_triangular(lower, b.mT, upper=False, left=False),
        torch.linalg.solve_triangular(a / 100, b, upper=True, unitriangular=True),
    )  # fmt: skip


def solutions(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        torch.linalg.solve(a, b), torch.linalg.solve(a[0], b), torch.linalg.solve(a, b.mT, left=False), torch.linalg.inv(a),
        torch.linalg.det(a), *torch.linalg.slogdet(a),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_factors_and_solutions(dtype: torch.dtype) -> None:
    for function, make in ((factors, positive), (solutions, matrix)):
        executable = disc.compile(Wrapped(function).eval(), (make(2, 5, dtype), torch.ones(2, 5, 3, dtype=dtype)))
        for batch, size, columns in SIZES if function is factors else SIZES[:6]:
            inputs = make(batch, size, dtype), matrix(batch, max(size, columns), dtype)[:, :size, :columns].contiguous()
            for ours, theirs in zip(executable(*inputs), function(*inputs), strict=True):
                assert_close(ours, theirs, 2e-4 if dtype == torch.float32 else 1e-11, f"{function.__name__} {inputs[1].shape}")


def test_pivots() -> None:
    """Rows are exchanged; what is not a number stays in its matrix."""
    executable = disc.compile(Wrapped(torch.linalg.inv).eval(), (matrix(2, 5, torch.float32),))
    exchange = torch.eye(70).roll(1, 0).expand(2, 70, 70).contiguous()
    assert torch.equal(executable(exchange), exchange.mT)
    exchange[0, 0, 0] = float("nan")
    found = executable(exchange)
    assert torch.equal(found[1], exchange[1].mT) and found[0].isnan().any()


def test_pivots_of_other_factors() -> None:
    with pytest.raises(UnsupportedOpError, match=r"lu_unpack.* pivots of rank 3 for factors of rank 3: they have a dim less"):
        disc.compile(Wrapped(torch.lu_unpack).eval(), (torch.randn(2, 4, 4), torch.ones(2, 4, 1, dtype=torch.int32)))


def test_without_a_solution() -> None:
    """The message says which matrix and where; the next call is well."""
    good = positive(3, 5, torch.float32)
    zero, negative = good.clone(), good.clone()
    zero[1] = 0
    negative[2, 3, 3] = -1
    inverse = disc.compile(Wrapped(torch.linalg.inv).eval(), (good,))
    factor = disc.compile(Wrapped(torch.linalg.cholesky).eval(), (good,))
    with pytest.raises(SingularMatrixError, match=r"inverse.*\(batch element 1\) the matrix is singular \(diagonal element 1 "):
        inverse(zero)
    with pytest.raises(SingularMatrixError, match=r"cholesky.*\(batch element 2\).*leading minor of order 4 is not positive-definite"):
        factor(negative)
    assert_close(inverse(good), torch.linalg.inv(good), 1e-4, "after a failure")


def test_determinants_of_singular_matrices() -> None:
    executable = disc.compile(Wrapped(lambda x: (torch.linalg.det(x), *torch.linalg.slogdet(x))).eval(), (matrix(2, 5, torch.float64),))
    for x in (torch.zeros(2, 3, 3, dtype=torch.float64), torch.eye(4, dtype=torch.float64).flip(0).expand(1, 4, 4).contiguous()):
        for ours, theirs in zip(executable(x), (torch.linalg.det(x), *torch.linalg.slogdet(x)), strict=True):
            assert torch.equal(ours, theirs)


class Checked(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._higher_order_ops.print("rows: {n}", n=3)
        return torch.linalg.cholesky(x).sum(-1) + torch.linalg.lu_factor(x)[0].sum(-1)


def test_checks_on_tokens_are_made_by_the_program() -> None:
    """As torch.compile and decomposed programs have them. What a program prints is left out, with a warning."""
    x, singular = torch.eye(4).expand(3, 4, 4) * 2, -torch.eye(4).expand(2, 4, 4)
    rows = {0: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(Checked().eval(), (x,), dynamic_shapes=(rows,))
    dynamo.reset_statistics()
    compiled = torch.compile(lambda x: torch.linalg.cholesky(x) + 1, backend="disc", dynamic=True, options={"strict": True})
    programs: list[Callable[..., object]] = [compiled]
    for program in (exported, exported.run_decompositions()):
        with pytest.warns(DiscWarning, match="does not print"):
            programs.append(disc.compile(program))
    for program, wanted in zip(programs, (torch.linalg.cholesky(x) + 1, Checked()(x), Checked()(x)), strict=True):
        torch.testing.assert_close(program(x), wanted)
        with pytest.raises(SingularMatrixError, match="not positive-definite"):
            program(singular)
    assert dynamo.statistics().compiled == 1 and not dynamo.statistics().eager


def in_place(x: torch.Tensor) -> torch.Tensor:
    """[b, 2, 3] → [b, 3, 3], as warps of images make their matrices: PyTorch traces such a graph anew."""
    whole = torch.nn.functional.pad(x, (0, 0, 0, 1))
    whole[:, 2, 2] = 1.0
    return whole


@pytest.mark.parametrize("function", [torch.linalg.inv, torch.linalg.det, lambda x: torch.linalg.solve(x, x + 1), torch.linalg.svdvals,
                                      lambda x: torch.linalg.eigvalsh(x + x.mT)])  # fmt: skip
def test_matrices_written_in_place(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The checks of a graph that PyTorch traced anew stand on tokens: "argument token of type FakeTensor is not supported"."""
    executable = disc.compile(Wrapped(lambda x: function(in_place(x))).eval(), (torch.randn(2, 2, 3),))
    for count in (1, 5):
        x = torch.eye(3)[:2].repeat(count, 1, 1) * 2 + torch.randn(count, 2, 3) * 0.3
        assert_close(executable(x), function(in_place(x)), 1e-4, f"{count} matrices")
