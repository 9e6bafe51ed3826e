"""Programs as users write them, that were refused at sizes which eager takes, fixed to the example's sizes, or wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from compiled import Wrapped

import disc
from disc.errors import CompilerBug, DiscError

Function = Callable[..., tuple[torch.Tensor, ...]]
SIZES = ((3, 5), (1, 1), (0, 4), (4, 0), (2, 1), (7, 13), (20, 45))
SOME_ROWS = ((5, 3), (4, 6), (1, 5), (13, 7), (3, 1), (2, 2))


def rolled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """PyTorch's own form takes a remainder by a size."""
    return x.roll(3), x.roll((1, -2), (0, 1)), x.roll(x.shape[0] // 2, 1)


def spread(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Divided by a size less 1, which is negative for 0."""
    return x.var(0), x.std(1), *torch.var_mean(x, 0, correction=3), torch.cov(x.reshape(-1))


def even(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.linspace(0, 1, x.shape[0]), torch.linspace(-3, 5, x.shape[1])


def frequencies(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[1]
    whole = torch.fft.fftfreq(n), torch.fft.fftfreq(n, 0.3, dtype=torch.float64), torch.fft.fftshift(torch.fft.fftfreq(n, d=7))
    return *whole, torch.fft.rfftfreq(n), torch.fft.rfftfreq(n, d=1 / 16000)


def members(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.where(x > 1, math.inf, torch.where(x > 0, x.round(), math.nan))
    return (
        torch.isin(y, y),
        torch.isin(y, 2 * y, invert=True),
        torch.isin(x.to(torch.int32), torch.tensor([1, 2, -1])),
        torch.isin(x.round(), torch.arange(-40, 2)),
        torch.isin(x.round(), 1),
        torch.isin(1.0, x.round()),
    )


def of_several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """opt_einsum, where it is installed, reads the sizes of three operands and more."""
    return (
        torch.einsum("ij,j,kj->ik", x, x[0], x),
        torch.einsum("ij,kj,kj->ik", [x, x, x]),
        torch.einsum(x, [0, 1], x, [0, 1], x, [2, 1], [0, 2]),
        torch.einsum("...j,...j,...j,kj->...k", x, x, x, x),
    )


def factors(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of integers: eager converts beta and alpha to their type."""
    y = (x * 9).to(torch.int64)
    square = y.T @ y
    return (
        torch.addbmm(square, square[None], square[None], beta=1.6, alpha=1.2),
        torch.addbmm(square, square[None], square[None], beta=0.6, alpha=2.9),
    )


@pytest.mark.parametrize(
    "function, shapes",
    [
        (rolled, SIZES),
        (spread, SIZES),
        (even, SIZES),
        (frequencies, SIZES),
        (members, SIZES),
        (of_several, SOME_ROWS),
        (factors, SOME_ROWS),
    ],
)
def test_one_compile_serves_all_sizes(function: Function, shapes: tuple[tuple[int, ...], ...]) -> None:
    executable = disc.compile(Wrapped(function).eval(), (torch.randn(shapes[0]),), options=disc.Options(cache=False))
    executable.like = torch.empty(0)
    for shape in shapes:
        x = torch.randn(shape)
        torch.testing.assert_close(executable(x), function(x), atol=1e-4, rtol=1e-4, equal_nan=True)


def test_calls_that_were_refused_for_all_sizes() -> None:
    """Groups of heads, where symbols of sizes are joined while their broadcast is traced (a RecursionError); transforms back to real numbers
    of what is real; `take` at an index without dims."""

    def all_three(q: torch.Tensor, k: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        place = torch.arange(q.shape[2])
        near = (place[:, None] >= place) & (place[:, None] - place < 4)
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=near, enable_gqa=True)
        return attended, torch.fft.irfft(k[0, 0], n=16), torch.take(k, index)

    executable = None
    for batch, heads, length in ((2, 2, 5), (1, 1, 1), (3, 3, 13)):
        given = torch.randn(batch, 2 * heads, length, 8), torch.randn(batch, heads, length, 8), torch.tensor(-batch)
        executable = executable or disc.compile(Wrapped(all_three).eval(), given, options=disc.Options(cache=False))
        torch.testing.assert_close(executable(*given), all_three(*given), atol=1e-5, rtol=1e-5)


def test_layers_of_transformers_take_masks() -> None:
    """`nn.TransformerEncoder` asks whether a mask is the causal one, which was a branch on data."""
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()
    decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1).eval()

    def both(x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        causal = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        memory = encoder(x, mask=causal)
        return memory, encoder(x, mask=bias), decoder(x, memory, tgt_mask=causal)

    executable = disc.compile(Wrapped(both).eval(), (torch.randn(2, 5, 8), torch.randn(5, 5)), options=disc.Options(cache=False))
    for batch, length in ((2, 5), (1, 1), (3, 2), (2, 17)):
        given = torch.randn(batch, length, 8), torch.randn(length, length)
        torch.backends.mha.set_fastpath_enabled(False)  # which takes any number but 0 of a mask for minus infinity
        try:
            wanted = both(*given)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        torch.testing.assert_close(executable(*given), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("x, part", [(torch.tensor(1.0), torch.ones(2, 0, 3)), (torch.ones(2, 3), torch.ones(2))])
def test_parts_of_other_ranks_are_refused(x: torch.Tensor, part: torch.Tensor) -> None:
    """It was an IndexError in the front end."""
    with pytest.raises(DiscError) as raised:
        disc.compile(Wrapped(lambda x, y: torch.ops.aten.slice_scatter(x, y, 0, None, None, 3)).eval(), (x, part))
    assert not isinstance(raised.value, CompilerBug)
