"""Short-time Fourier transforms as PyTorch computes them, of functions whose sizes stay symbolic."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.finite import finite

LEAST_WEIGHT = 1e-11  # of the squared windows at a place, in eager


def _window(window: Tensor | None, length: int, n_fft: int, like: Tensor) -> Tensor:
    """In the middle of `n_fft` elements, zeros around it."""
    if window is None:
        window = torch.ones(length, dtype=like.dtype, device=like.device)
    before = (n_fft - length) // 2
    return window if length == n_fft else F.pad(window, (before, n_fft - length - before))


def stft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Tensor | None = None,
    center: bool = True, pad_mode: str = "reflect", normalized: bool = False, onesided: bool | None = None,
    return_complex: bool | None = None, align_to_window: bool | None = None,
) -> Tensor:  # fmt: skip
    hop, length = n_fft // 4 if hop_length is None else hop_length, n_fft if win_length is None else win_length
    unusual = return_complex is None or align_to_window is not None or input.dim() > 2 or hop <= 0 or not 0 < length <= n_fft
    if unusual or (window is not None and (tuple(window.shape) != (length,) or window.is_complex())):
        return torch.stft(
            input, n_fft, hop_length, win_length, window, center, pad_mode, normalized, onesided, return_complex, align_to_window
        )  # which says what is wrong
    lines = input.unsqueeze(0) if input.dim() == 1 else input
    if center:
        lines = F.pad(lines.unsqueeze(1), (n_fft // 2, n_fft // 2), pad_mode).squeeze(1)
    frames = lines.unfold(-1, n_fft, hop) * _window(window, length, n_fft, lines if not lines.is_complex() else lines.real)
    half = onesided if onesided is not None else not frames.is_complex()
    transform = torch.fft.rfft if half else torch.fft.fft
    found = transform(frames, norm="ortho" if normalized else None).transpose(1, 2)
    found = found.squeeze(0) if input.dim() == 1 else found
    return found if return_complex else torch.view_as_real(found)


def istft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Tensor | None = None,
    center: bool = True, normalized: bool = False, onesided: bool | None = None, length: int | None = None, return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """The frames added where they overlap, over the squares of the window there. A gap between windows fails the call, as in eager."""
    hop, width = n_fft // 4 if hop_length is None else hop_length, n_fft if win_length is None else win_length
    unusual = return_complex or input.dim() not in (2, 3) or hop <= 0 or not 0 < width <= n_fft
    if unusual or not input.is_complex() or (window is not None and tuple(window.shape) != (width,)):
        return torch.istft(input, n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex)
    spectra = (input.unsqueeze(0) if input.dim() == 2 else input).transpose(1, 2)
    norm = "ortho" if normalized else None
    frames = torch.fft.ifft(spectra, n_fft, norm=norm).real if onesided is False else torch.fft.irfft(spectra, n_fft, norm=norm)
    taper = _window(window, width, n_fft, frames)
    batch, count = frames.shape[0], frames.shape[1]
    total = n_fft + hop * (count - 1)
    places = (torch.arange(count).unsqueeze(1) * hop + torch.arange(n_fft)).reshape(-1)
    sums = frames.new_zeros(batch, total).index_add(1, places, (frames * taper).reshape(batch, -1))
    weights = frames.new_zeros(total).index_add(0, places, (taper * taper).expand(count, n_fft).reshape(-1))
    start = n_fft // 2 if center else 0
    if length is None:
        found, weights = (each.narrow(-1, start, total - 2 * start) for each in (sums, weights))
    else:
        found, weights = (torch.cat([each[..., start:], each.new_full((*each.shape[:-1], length), rest)], -1).narrow(-1, 0, length)
                          for each, rest in ((sums, 0.0), (weights, 1.0)))  # fmt: skip
    found = found / finite(torch.where(weights.abs() > LEAST_WEIGHT, weights, math.inf))
    return found.squeeze(0) if input.dim() == 2 else found


SPECTROGRAMS = {torch.stft: stft, torch.istft: istft, torch.Tensor.stft: stft, torch.Tensor.istft: istft}
