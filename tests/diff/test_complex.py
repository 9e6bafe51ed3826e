"""Complex numbers against eager: each function of this file is one compile for several sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import numpy as np
import pytest
import torch
from compiled import Wrapped

import disc
from disc.errors import InputTypeError
from disc.frontend import dynamo
from disc.ral.executable import load

Results = tuple[torch.Tensor, ...]
KINDS = {torch.complex64: 2e-5, torch.complex128: 1e-12}
SIZES = ((3, 5), (1, 1), (7, 17), (0, 3), (2, 64))


def numbers(*sizes: int, dtype: torch.dtype = torch.complex64, seed: int = 0) -> torch.Tensor:
    return torch.randn(sizes, dtype=dtype, generator=torch.Generator().manual_seed(seed + sum(sizes)))


def agree(ours: object, theirs: object, tolerance: float, what: str = "") -> None:
    several = isinstance(theirs, tuple | list)
    pairs = zip(cast("Results", ours), cast("Results", theirs), strict=True) if several else [(ours, theirs)]
    for place, (found, wanted) in enumerate(cast("Iterable[Results]", pairs)):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape, f"{what} {place}: {found.dtype} {found.shape}"
        wanted = wanted.resolve_conj()
        torch.testing.assert_close(
            found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text, place=place: f"{what} {place}: {text}"
        )


def arithmetic(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        a + b, a - b * 2, 1 - a, a * b, a * 2j, 3 * b, a / b, 2 / b, a / 3, torch.add(a, b, alpha=2 + 1j), -a, a.conj(), a.conj() * b, a * b.real,
        a.real, a.imag, a.abs(), a.angle(), torch.view_as_real(a), torch.complex(a.real, b.imag), torch.polar(a.abs(), b.angle()),
        torch.view_as_complex(torch.stack([a.imag, b.real], -1)), a == b, a != a, torch.where(a.real > 0, a, b), torch.where(a.real > 0, a, 1.5),
        a.masked_fill(b.real > 0, 1j), a.reciprocal(), a.square(), a ** 2, a ** 3, torch.isnan(a), a.sgn(), torch.lerp(a, b, 0.25),
        torch.addcmul(a, a, b, value=2), a.real.to(a.dtype), a.to(torch.complex128), torch.zeros_like(a), torch.full_like(a, 1 - 2j), a.bool(),
        torch.isfinite(a) & ~torch.isinf(b), a + torch.tensor(1j), b * torch.tensor([2 - 1j]), a.conj().imag, a.mH.imag,
    )  # fmt: skip


def functions(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        a.exp(), a.log(), a.sqrt(), a.rsqrt(), a.sin(), a.cos(), a.tan(), a.sinh(), a.cosh(), a.tanh(), a.asin(), a.acos(), a.atan(), a.asinh(),
        a.acosh(), a.atanh(), a.sigmoid(), a.log2(), a.log10(), torch.log1p(a), torch.expm1(a), a ** b, a ** 0.5, torch.exp2(a), a ** 2.5,
    )  # fmt: skip


def movement(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        a.t(), a.unsqueeze(1), a.reshape(-1), a[:, 1:], a[:, -1], a.flip(1), torch.cat([a, b], 1), torch.stack([a, b]), a.repeat(2, 1),
        a.sum(), a.sum(1), a.mean(1, keepdim=True), a.cumsum(1), a.expand(2, *a.shape), torch.roll(a, 1, 1), a.tril(), a.norm(), a.var(1),
        a.index_select(1, torch.tensor([0, 0])), torch.nn.functional.pad(a, (1, 2)), a.any(1), torch.cat([a, b.real], 0), a.contiguous(),
        torch.gather(a, 1, torch.zeros_like(a.real, dtype=torch.int64)), a[:, :1].prod(1), torch.outer(a[:, 0], b[:, 0]),
    )  # fmt: skip


def products(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        a @ b.mT, a.mH @ b, torch.einsum("ij,kj->ik", a, b), torch.linalg.vecdot(a, b), torch.bmm(a[None], b.mT[None]),
        torch.nn.functional.linear(a, b), torch.addmm(b[:, :1], a, b.mT), torch.vdot(a[0], b[0]), torch.dot(a[0], b[0]), torch.mv(a, b[0]), a.prod(0), (a / a.abs().mean()).prod(), b.prod(1, keepdim=True), a.cumprod(1), b.cumprod(0),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.complex64, pytest.param(torch.complex128, marks=pytest.mark.long)])
@pytest.mark.parametrize("function", [arithmetic, functions, movement, products])
def test_against_eager(function: Callable[..., tuple[torch.Tensor, ...]], dtype: torch.dtype) -> None:
    def pair(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        return numbers(rows, columns, dtype=dtype), numbers(rows, columns, dtype=dtype, seed=9)

    executable = disc.compile(Wrapped(function).eval(), pair(3, 5))
    for rows, columns in SIZES:
        if rows == 0 and function is not arithmetic:
            continue
        given = pair(rows, columns)
        agree(
            executable(*given),
            function(*given),
            KINDS[dtype] * (1 if function is arithmetic else 8),
            f"{function.__name__} {rows} x {columns}",
        )


def test_special_values() -> None:
    """Zeros, signs of zeros on branch cuts, and magnitudes whose squares are no f32."""
    parts = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 1e-30, 1e25]
    x = torch.tensor([complex(a, b) for a in parts for b in parts], dtype=torch.complex64)

    def function(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            a.abs(),
            a.angle(),
            a.sqrt(),
            a.log(),
            a.sgn(),
            (a.conj() / 3).imag,
            torch.view_as_real(a / 2e20),
            torch.view_as_real(1 / (a + 4)),
        )

    agree(disc.compile(Wrapped(function).eval(), (x,))(x), function(x), 2e-6)


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary embeddings as the first Llama has them."""
    angles = torch.outer(positions, 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8))
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(x)


def test_rotary_embeddings_fuse() -> None:
    def inputs(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        return numbers(batch, length, 2, 8, dtype=torch.float32), torch.arange(length, dtype=torch.float32)

    executable = disc.compile(Wrapped(rotated).eval(), inputs(2, 5))
    for batch, length in ((2, 5), (1, 1), (3, 33)):
        agree(executable(*inputs(batch, length)), rotated(*inputs(batch, length)), 2e-5)
    assert len(executable.manifest["kernels"]) <= 3  # cosines, sines, and all else


class Filter(torch.nn.Module):
    """A complex parameter, a conjugated buffer, and one that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.turn: torch.Tensor
        self.last: torch.Tensor
        self.weight = torch.nn.Parameter(numbers(4))
        self.register_buffer("turn", numbers(4, seed=1).conj())
        self.register_buffer("last", torch.zeros(4, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = x * self.weight + self.turn + self.last
        self.last.copy_(found.sum(0))
        return found


def test_what_crosses_the_boundary(tmp_path: object) -> None:
    model = Filter().eval()
    executable = disc.compile(model, (numbers(3, 4),))
    assert executable.manifest["inputs"][0]["dtype"] == "complex64" and executable.manifest["inputs"][0]["dims"][1:] == [4]
    assert executable.manifest["outputs"][0]["dtype"] == "complex64"
    path = f"{tmp_path}/filter.disc"
    executable.save(path)
    for run in (executable, load(path)):
        eager = Filter().eval()
        eager.load_state_dict({"weight": model.weight, "turn": model.turn, "last": torch.zeros(4, dtype=torch.complex64)})
        for x in (numbers(3, 4), numbers(4, 5).t(), numbers(2, 4).conj(), numbers(6, 4)[::2]):
            agree(run(x), eager(x), 2e-5)
    found = load(path)(numbers(3, 4).numpy())
    assert isinstance(found, np.ndarray) and found.dtype == np.complex64
    with pytest.raises(InputTypeError, match="expected dtype complex64, got f32"):
        executable(numbers(3, 4).real.contiguous())
    with pytest.raises(InputTypeError, match="expected dtype complex64, got complex128"):
        executable(numbers(3, 4, dtype=torch.complex128))


def test_torch_compile_trains() -> None:
    """Complex inputs, weights, views of inputs as results, and gradients, without an eager region."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x * w).abs().square() + torch.view_as_real(x @ w.mT.conj() @ w)[..., 0]
        return y, x.conj(), (x * w).t(), torch.view_as_real(x)

    dynamo.reset_statistics()
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="disc", dynamic=True, options={"strict": True})
    for rows in (3, 5):
        both = [(numbers(rows, 4).requires_grad_(), numbers(rows, 4, seed=2).requires_grad_()) for _ in range(2)]
        results = [run(*given) for run, given in zip((compiled, function), both, strict=True)]
        agree(results[0], results[1], 2e-5)
        for (y, *_), _given in zip(results, both, strict=True):
            y.sum().backward()
        agree([each.grad for each in both[0]], [each.grad for each in both[1]], 2e-4)
    assert not dynamo.statistics().eager and not dynamo.statistics().failed
