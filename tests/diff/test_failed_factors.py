"""What is left of matrices that have no factors, against eager."""

from __future__ import annotations

import pytest
import torch
from compiled import Wrapped, assert_close
from torch import Tensor, linalg

import disc


@pytest.mark.parametrize("upper", [False, True])
def test_factors_of_matrices_that_are_not_positive_definite(upper: bool) -> None:
    """The columns before the minor that is not, its pivot, and what LAPACK leaves behind it; up to sizes that MKL computes without blocks."""

    def function(a: Tensor) -> tuple[Tensor, ...]:
        return tuple(linalg.cholesky_ex(a, upper=upper))

    def make(batch: int, size: int) -> Tensor:
        a = torch.randn(batch, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
        a = a @ a.mT + size * torch.eye(size)
        for number, bad in enumerate(dict.fromkeys((0, size // 2, size - 1))):
            a[number % batch, bad, bad] = float("nan") if number == 1 else -1
        return a

    executable = disc.compile(Wrapped(function).eval(), (make(2, 5),))
    for sizes in ((1, 1), (3, 3), (4, 16), (2, 33), (3, 65)):
        for ours, theirs in zip(executable.flat(make(*sizes)), function(make(*sizes)), strict=True):
            assert isinstance(ours, Tensor)
            assert_close(ours.nan_to_num(7), theirs.nan_to_num(7), 1e-10, f"{sizes}")
