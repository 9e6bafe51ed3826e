"""Special functions against eager, in f32 and f64: on both sides of every change of approximation, at poles, infinities and NaN."""

import math

import pytest
import torch
from compiled import both_targets, module_program

S = torch.special
FUNCTIONS = (
    S.bessel_j0, S.bessel_j1, S.bessel_y0, S.bessel_y1, S.modified_bessel_i0, S.modified_bessel_i1, S.modified_bessel_k0,
    S.modified_bessel_k1, S.scaled_modified_bessel_k0, S.scaled_modified_bessel_k1, S.spherical_bessel_j0, S.i0, S.i0e, S.i1, S.i1e,
    S.erfcx, S.log_ndtr,
)  # fmt: skip
EDGES = (0.0, -0.0, 1e-6, 0.5, 1.0, 2.0, 2.1, 5.0, 5.1, 8.0, 8.1, 25.0, 26.0, 50.0, 51.0, 100.0, math.inf, -math.inf, math.nan)


def points(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.cat([torch.randn(40, generator=generator) * 3, torch.randn(20, generator=generator) * 30, torch.tensor(EDGES)]).to(dtype)


@pytest.mark.parametrize(
    ("step", "dtype"),
    [(5, torch.float32), pytest.param(1, torch.float32, marks=pytest.mark.long), pytest.param(1, torch.float64, marks=pytest.mark.long)],
)
def test_equal_to_eager(step: int, dtype: torch.dtype) -> None:
    """Every function, or one of `step`."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, share: torch.Tensor) -> list[torch.Tensor]:
            return [*(function(x) for function in FUNCTIONS[::step]), S.ndtri(share), torch.polygamma(1, share)]

    x = points(dtype)
    share = torch.cat([torch.linspace(0.01, 0.99, 30), torch.tensor([0.0, 1.0, -0.5, 2.0, 1e-20, 1e-15, math.nan])]).to(dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    for executable in both_targets(Model().eval(), (x, share)):
        executable.like = torch.empty(0)
        for ours, theirs in zip(executable(x, share), Model()(x, share), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance / 10, equal_nan=True)


def test_parts_of_a_number() -> None:
    edges = torch.tensor([0.0, -0.0, 1.0, -0.5, 2.0**-149, -(2.0**-127), 3e38, math.inf, -math.inf, math.nan])
    given = (torch.cat([edges, torch.randn(9) * 100]), torch.cat([edges.double(), torch.tensor([5e-324, 1e308])]), edges.to(torch.bfloat16))

    def parts(*numbers: torch.Tensor) -> list[torch.Tensor]:
        return [each for x in numbers for each in torch.frexp(x)]

    module_program(parts, *given).check(*given)
