"""Programs as users write them, that were refused at sizes which eager takes, fixed to the example's sizes, or wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from compiled import Wrapped
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import disc
from disc.errors import CompilerBug, DiscError, ShapeConstraintError

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


def test_distributions_validate(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `torch.distributions` checks was a branch on data; a call in which it does not hold is refused, as by eager."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # Dynamo turns it off for the whole process

    def scores(mean: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        of = torch.distributions
        normal, matrix = of.Normal(mean, scale), torch.diag_embed(scale.abs() + 0.1)  # which is valid where `scale` is not
        choice = of.Categorical(logits=mean)
        together = of.MultivariateNormal(mean, matrix).log_prob(mean * 0.5)
        squeezed = of.TransformedDistribution(normal, [of.TanhTransform()]).log_prob(torch.tanh(mean) * 0.5)
        kind = of.kl_divergence(normal, of.Normal(0.0, 1.0)), of.Bernoulli(logits=mean).log_prob((scale > 1).float())
        return normal.log_prob(scale), choice.log_prob(torch.zeros(mean.shape[0])), choice.entropy(), together, squeezed, *kind

    executable = None
    for shape in ((3, 4), (1, 1), (7, 2), (2, 13)):
        given = torch.randn(shape), torch.rand(shape) + 0.1
        executable = executable or disc.compile(Wrapped(scores).eval(), given, options=disc.Options(cache=False))
        torch.testing.assert_close(executable(*given), scores(*given), atol=1e-4, rtol=1e-4)
        with pytest.raises(ShapeConstraintError, match=r"scale of Normal satisfies GreaterThan\(lower_bound=0.0\).*test_programs_of_users"):
            executable(given[0], given[1] - 2)
    with pytest.raises(ShapeConstraintError, match="does not hold"):
        executable(torch.full((2, 2), torch.nan), torch.ones(2, 2))


def test_flexible_attention() -> None:
    """PyTorch gives it to Dynamo, which cannot trace it there; and numbers in a function that is mapped over every element were no tensors."""

    def attended(q: torch.Tensor, k: torch.Tensor, document: torch.Tensor) -> tuple[torch.Tensor, ...]:
        slopes = torch.tensor([0.5, 0.25])
        mask = create_block_mask(
            lambda b, h, i, j: (document[b, i] == document[b, j]) & (i >= j), q.shape[0], None, q.shape[2], k.shape[2], device="cpu"
        )
        masked = flex_attention(q, k, k, block_mask=mask, scale=0.5)
        biased, logarithms = flex_attention(
            q, k[:, :1], k[:, :1], lambda s, b, h, i, j: torch.tanh(s / 20) * 20 + slopes[h] * (j - i), enable_gqa=True, return_lse=True
        )
        return masked, biased, logarithms

    executable = None
    for batch, length in ((2, 5), (1, 1), (3, 17), (1, 140)):
        given = torch.randn(batch, 2, length, 16), torch.randn(batch, 2, length, 16), torch.randint(0, 3, (batch, length))
        executable = executable or disc.compile(Wrapped(attended).eval(), given, options=disc.Options(cache=False))
        torch.testing.assert_close(executable(*given), attended(*given), atol=1e-5, rtol=1e-5)


def test_rounded_as_if_quantized() -> None:
    """PyTorch has no shape of these, bit for bit."""
    fake = torch.fake_quantize_per_tensor_affine, torch.fake_quantize_per_channel_affine
    one, several = torch.tensor([0.1]), torch.tensor([0.1, 0.2, 0.07])
    whole, real = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0.0, 0.5, 2])

    def rounded(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors = fake[0](x, 0.1, 3, 0, 255), fake[0](x, one, torch.tensor([3]), 0, 15), fake[0](x.half(), one, whole[:1], -128, 127)
        return *tensors, fake[1](x, several, whole, 1, -8, 7), fake[1](x, several, real, 1, 0, 255)

    executable = disc.compile(Wrapped(rounded).eval(), (torch.randn(4, 3),), options=disc.Options(cache=False))
    executable.like = torch.empty(0)
    for rows in (0, 1, 7, 500):
        x = torch.randn(rows, 3) * 9
        x[:3, 0] = torch.tensor([math.nan, math.inf, -math.inf])[:rows]
        torch.testing.assert_close(executable(x), rounded(x), atol=0, rtol=0)


def test_reductions_of_segments() -> None:
    def reduced(x: torch.Tensor, lengths: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        of = torch.segment_reduce
        ways = [(of(x, how, lengths=lengths), of(x, how, offsets=offsets)) for how in ("sum", "mean", "max", "min", "prod")]
        turned = of(
            x.T.clone(memory_format=torch.contiguous_format), "mean", lengths=lengths.expand(x.shape[1], -1).contiguous(), axis=1, initial=2
        )
        return *(each for way in ways for each in way), turned, of(x, "max", lengths=lengths // 2, unsafe=True, initial=-0.5)

    executable = None
    for lengths in ([3, 0, 4], [1], [0, 0], [2, 5, 0, 1, 9]):
        count = sum(lengths)
        given = torch.randn(count, 2), torch.tensor(lengths), torch.tensor([min(1, count), count, count])
        executable = executable or disc.compile(Wrapped(reduced).eval(), given, options=disc.Options(cache=False))
        torch.testing.assert_close(executable(*given), reduced(*given), atol=1e-5, rtol=1e-5, equal_nan=True)
    for lengths, offsets in (([3, 3], [0, 5]), ([6, -1], [0, 5]), ([2, 3], [2, 1]), ([2, 3], [0, 6])):
        with pytest.raises(ShapeConstraintError, match="segment_reduce"):
            executable(torch.randn(5, 2), torch.tensor(lengths), torch.tensor(offsets))


def test_numbers_of_sizes_are_results() -> None:
    """A size may not be negative, and the line says whose it is."""

    def numbers(x: torch.Tensor) -> tuple[object, ...]:
        n, m = x.shape
        return x * (m - 3) * (2 * (n - 7) + 1), x + torch.tensor(m - 4), n - 5, n * 2.5, m > 3

    executable = disc.compile(Wrapped(numbers).eval(), (torch.randn(4, 6),), options=disc.Options(cache=False))
    executable.like = torch.empty(0)
    for shape in ((4, 6), (2, 2), (7, 3), (2, 13)):
        x = torch.randn(shape)
        wanted = [each if isinstance(each, torch.Tensor) else torch.tensor(each) for each in numbers(x)]
        torch.testing.assert_close(list(executable(x)), wanted, atol=1e-5, rtol=1e-5, check_dtype=False)
    cut = disc.compile(Wrapped(lambda x: torch.nn.functional.pad(x[:, :-1], (1, 0))).eval(), (torch.randn(4, 6),))
    with pytest.raises(ShapeConstraintError, match=r"must be at least 1 \(needed by aten.slice.Tensor at test_programs_of_users.py:\d+\)"):
        cut(torch.randn(2, 0))


@pytest.mark.parametrize("x, part", [(torch.tensor(1.0), torch.ones(2, 0, 3)), (torch.ones(2, 3), torch.ones(2))])
def test_parts_of_other_ranks_are_refused(x: torch.Tensor, part: torch.Tensor) -> None:
    """It was an IndexError in the front end."""
    with pytest.raises(DiscError) as raised:
        disc.compile(Wrapped(lambda x, y: torch.ops.aten.slice_scatter(x, y, 0, None, None, 3)).eval(), (x, part))
    assert not isinstance(raised.value, CompilerBug)
