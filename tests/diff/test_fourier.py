"""Fourier transforms against eager: one compile of each function for all lengths, primes and 1 among them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from compiled import Wrapped

import disc
from disc.errors import InputValueError, ShapeConstraintError
from disc.frontend import dynamo
from disc.ral.executable import Executable

fft = torch.fft
SIZES = ((3, 8), (2, 5), (1, 2), (9, 101), (17, 17), (2, 1009), (0, 4), (33, 3))
TOLERANCE = {torch.float32: 5e-6, torch.float64: 1e-13}


def numbers(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(sizes, dtype=dtype, generator=torch.Generator().manual_seed(sum(sizes)))


def run(executable: Executable, *inputs: torch.Tensor) -> Any:
    return executable(*inputs)


def of_complex(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        fft.fft(z), fft.ifft(z), fft.fft(z, dim=0), fft.fft(z, norm="ortho"), fft.ifft(z, norm="forward"), fft.fft2(z), fft.ifftn(z, norm="ortho"),
        fft.irfft(z), fft.hfft(z), fft.irfft2(z), fft.irfft(z, n=7), fft.fft(z, n=6), fft.fftshift(z), fft.ifftshift(z, 1), fft.fft(z).abs(),
    )  # fmt: skip


def of_real(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        fft.rfft(x), fft.fft(x), fft.rfft(x, dim=0), fft.rfft(x, norm="forward"), fft.rfft2(x), fft.rfftn(x, norm="ortho"), fft.ihfft(x),
        fft.rfft(x, n=9), fft.irfft(fft.rfft(x), n=x.shape[1]), fft.irfft(fft.rfft(x), n=x.shape[1], norm="ortho") * 2, fft.rfft(x).abs().square().sum(1),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("function", [of_complex, of_real])
def test_against_eager(function: Callable[..., tuple[torch.Tensor, ...]], dtype: torch.dtype) -> None:
    kind = dtype if function is of_real else dtype.to_complex()
    executable = disc.compile(Wrapped(function).eval(), (numbers(3, 8, dtype=kind),))
    for rows, columns in SIZES:
        if rows == 0:
            continue
        x = numbers(rows, columns, dtype=kind)
        for place, (ours, theirs) in enumerate(zip(run(executable, x), function(x), strict=True)):
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            scale = max(float(theirs.abs().max()), 1.0)
            torch.testing.assert_close(
                ours,
                theirs.resolve_conj(),
                rtol=0,
                atol=TOLERANCE[dtype] * scale,
                msg=lambda text, where=f"{place} {rows}x{columns}": f"{where}: {text}",
            )


def test_long_lines_and_few() -> None:
    """Lines longer than are transformed together, and batches of none."""
    executable = disc.compile(Wrapped(lambda z: fft.fft(z)).eval(), (numbers(3, 8, dtype=torch.complex64),))
    for sizes in ((9, 40000), (1, 65536), (40, 4)):
        z = numbers(*sizes, dtype=torch.complex64)
        torch.testing.assert_close(executable(z), fft.fft(z), rtol=0, atol=5e-6 * max(sizes[1], 1) ** 0.5 * 4)
    assert run(executable, torch.zeros(0, 16, dtype=torch.complex64)).shape == (0, 16)
    with pytest.raises(ShapeConstraintError, match="no elements"):
        executable(torch.zeros(3, 0, dtype=torch.complex64))


# Lengths and counts of lines for each way: side by side, also in memory, with a last group that is not full; alone; in two steps, with factors
# that are as many as lanes, less, and more.
LENGTHS = (1, 2, 3, 9, 16, 31, 64, 65, 120, 500, 1009, 1155, 4096, 9000)
OUTER_AND_INNER = ((1, 1), (3, 1), (8, 1), (9, 1), (1, 3), (3, 2), (1, 8), (2, 9), (1, 21))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_lines_anywhere(dtype: torch.dtype) -> None:
    """Along a dim between others; the imaginary parts of the spectrum's ends, which a real line has not, are ignored."""

    def both(z: torch.Tensor, x: torch.Tensor, half: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return fft.fft(z, dim=1), fft.ifft(z, dim=1, norm="ortho"), fft.rfft(x, dim=1), fft.irfft(half, n=x.shape[1], dim=1)

    def given(outer: int, length: int, inner: int) -> tuple[torch.Tensor, ...]:
        z = numbers(outer, length, inner, dtype=dtype.to_complex())
        return z, numbers(outer, length, inner, dtype=dtype), z[:, : length // 2 + 1].clone()

    executable = disc.compile(Wrapped(both).eval(), given(2, 8, 3))
    for length in LENGTHS:
        for outer, inner in OUTER_AND_INNER:
            if length * outer * inner > 40000:
                continue
            inputs = given(outer, length, inner)
            for place, (ours, theirs) in enumerate(zip(run(executable, *inputs), both(*inputs), strict=True)):
                scale = max(float(theirs.abs().max()), 1.0)
                torch.testing.assert_close(
                    ours,
                    theirs,
                    rtol=0,
                    atol=TOLERANCE[dtype] * scale,
                    msg=lambda text, where=(place, outer, length, inner): f"{where}: {text}",
                )


def test_plans_are_shared_by_threads() -> None:
    """Two calls at once find the plan of a length, or make one each; a length that takes the place of another is transformed as before."""
    executable = disc.compile(Wrapped(lambda z: fft.fft(z)).eval(), (numbers(3, 8, dtype=torch.complex64),))
    inputs = [numbers(1 + n % 3, 240 + n % 7, dtype=torch.complex64) for n in range(60)]
    with ThreadPoolExecutor(4) as pool:
        for ours, z in zip(pool.map(partial(run, executable), inputs), inputs, strict=True):
            torch.testing.assert_close(ours, fft.fft(z), rtol=0, atol=1e-4)


def spectral_layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    modes = fft.rfft(x)[..., : w.shape[-1]] * w
    return fft.irfft(modes, n=x.shape[-1])


@pytest.mark.long
def test_torch_compile_trains() -> None:
    dynamo.reset_statistics()
    torch._dynamo.reset()
    compiled = torch.compile(spectral_layer, backend="disc", dynamic=True, options={"strict": True})
    for length in (16, 21):
        both = [
            (numbers(2, length, dtype=torch.float32).requires_grad_(), numbers(4, dtype=torch.complex64).requires_grad_()) for _ in range(2)
        ]
        results = [each(*given) for each, given in zip((compiled, spectral_layer), both, strict=True)]
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
        for result in results:
            result.square().sum().backward()
        for ours, theirs in zip(*both, strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)
    assert not dynamo.statistics().eager and not dynamo.statistics().failed


def spectrograms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    window = torch.hann_window(16, dtype=x.dtype)
    plain = torch.stft(x, 16, window=window, return_complex=True)
    return (
        plain, torch.stft(x, 16, 5, 12, center=False, normalized=True, return_complex=True), torch.stft(x[0], 9, 3, onesided=False, return_complex=True),
        torch.stft(x, 16, pad_mode="constant", window=window, return_complex=False), plain.abs().square().mean(2),
        torch.istft(plain, 16, window=window), torch.istft(plain, 16, window=window, length=x.shape[1]),
        torch.istft(torch.stft(x, 16, window=window, onesided=False, return_complex=True), 16, window=window, onesided=False),
        torch.istft(torch.stft(x, 12, normalized=True, return_complex=True), 12, normalized=True, length=50),
    )  # fmt: skip


def test_a_spectrogram_and_back() -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        window = torch.hann_window(16, dtype=x.dtype)
        found = torch.stft(x, 16, window=window, return_complex=True)
        return found, torch.istft(found, 16, window=window)

    executable = disc.compile(Wrapped(both).eval(), (numbers(2, 64, dtype=torch.float32),))
    for rows, length in ((1, 17), (3, 101)):
        x = numbers(rows, length, dtype=torch.float32)
        for ours, theirs in zip(run(executable, x), both(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_gap_between_windows_is_refused() -> None:
    """As in eager: there the sum of the windows is 0, by which the frames would be divided."""
    window = torch.tensor([0.0] + [1.0] * 6 + [0.0])
    model = Wrapped(lambda z: torch.istft(torch.view_as_complex(z), 8, 8, window=window, center=False)).eval()
    spectrum = torch.ones(5, 3, 2)
    executable = disc.compile(model, (spectrum,))
    with pytest.raises(RuntimeError, match="window overlap add min"):
        model(spectrum)
    with pytest.raises(InputValueError, match=r"check_finite.*a number is inf"):
        executable(spectrum)


@pytest.mark.long
def test_spectrograms() -> None:
    executable = disc.compile(Wrapped(spectrograms).eval(), (numbers(2, 64, dtype=torch.float32),))
    for rows, length in ((2, 64), (1, 17), (3, 101), (2, 80)):
        x = numbers(rows, length, dtype=torch.float32)
        for place, (ours, theirs) in enumerate(zip(run(executable, x), spectrograms(x), strict=True)):
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, (place, rows, length, ours.shape, theirs.shape)
            torch.testing.assert_close(
                ours, theirs, rtol=1e-4, atol=1e-4, msg=lambda text, where=f"{place} {rows}x{length}": f"{where}: {text}"
            )
