"""Fourier transforms, and what stands around them in models of sound.

A transform of n values is a product with a constant matrix of cosines and sines, n x n, which is fast for the frames of sound that models
have, of some hundred values; the sums are those of a product of matrices, in the type of the signal. A longer one, or one whose length a
size decides, is a fast transform (torch.fft).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.ops.structure import axis_of
from disc.frontend.onnx.values import NodeError, Number, Result

Rule = Callable[[Node], Result]
LONGEST = 4096  # values of a transform that is a product


def _is_product(length: Number) -> bool:
    return isinstance(length, int) and length <= LONGEST


def _turns(rows: int, columns: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi row column / length."""
    # Whole turns are taken off while numbers are integers: cosines of large angles would lose digits.
    places = torch.remainder(torch.arange(rows).unsqueeze(1) * torch.arange(columns), length)
    angles = places.to(torch.float64) * (2 * math.pi / length)
    return torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)


def _fitted(x: Tensor, length: int) -> Tensor:
    """The last dim cut or padded with zeros to `length`."""
    size = x.shape[-1]
    return x if isinstance(size, int) and size == length else F.pad(x, [0, length - size])


def _wide(x: Tensor) -> Tensor:
    """As a type that torch.fft takes on CPUs."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _fast(real: Tensor, imaginary: Tensor | None, length: Number, one_sided: bool, inverse: bool) -> tuple[Tensor, Tensor]:
    dtype, real = real.dtype, _wide(real)
    if imaginary is None and one_sided and not inverse:
        found = torch.fft.rfft(real, n=length)
    else:
        signal = torch.complex(real, torch.zeros_like(real) if imaginary is None else _wide(imaginary))
        found = torch.fft.ifft(signal, n=length) if inverse else torch.fft.fft(signal, n=length)
        found = found[..., : length // 2 + 1] if one_sided else found
    return found.real.to(dtype), found.imag.to(dtype)


def _transformed(real: Tensor, imaginary: Tensor | None, length: Number, one_sided: bool, inverse: bool) -> tuple[Tensor, Tensor]:
    """The transform along the last dim, or its first `length // 2 + 1` values."""
    if not _is_product(length):
        return _fast(real, imaginary, length, one_sided, inverse)
    count = length // 2 + 1 if one_sided else length
    cosines, sines = _turns(length, count, length, real.dtype)
    sines = sines if inverse else -sines
    real = _fitted(real, length)
    parts = (torch.matmul(real, cosines), torch.matmul(real, sines))
    if imaginary is not None:
        imaginary = _fitted(imaginary, length)
        parts = (parts[0] - torch.matmul(imaginary, sines), parts[1] + torch.matmul(imaginary, cosines))
    return (parts[0] / length, parts[1] / length) if inverse else parts


def _real_inverse(real: Tensor, imaginary: Tensor, length: Number) -> Tensor:
    """The real signal whose transform begins with these values: the others are their mirror's conjugates."""
    if not _is_product(length):
        return torch.fft.irfft(torch.complex(_wide(real), _wide(imaginary)), n=length).to(real.dtype)
    count = length // 2 + 1
    cosines, sines = _turns(count, length, length, real.dtype)
    twice = torch.tensor([1.0 if k == 0 or 2 * k == length else 2.0 for k in range(count)], dtype=real.dtype).unsqueeze(1) / length
    return torch.matmul(_fitted(real, count), cosines * twice) - torch.matmul(_fitted(imaginary, count), sines * twice)


def _dft(node: Node) -> Tensor:
    x, inverse, one_sided = node.tensor(0), bool(node.attr_int("inverse")), bool(node.attr_int("onesided"))
    axis = node.attr_int("axis", 1) if node.opset < 20 else int(node.constants(2, "axis")[0]) if node.has(2) else -2
    axis = axis_of(axis, x.dim())
    if axis == x.dim() - 1:
        raise NodeError("its axis is that of the real and imaginary parts", unsupported=False)
    moved = x.movedim(axis, -2)
    real, imaginary = moved[..., 0], moved[..., 1] if isinstance(x.shape[-1], int) and x.shape[-1] == 2 else None
    size: Number = x.shape[axis]
    default = 2 * (size - 1) if inverse and one_sided else size
    length = node.integer(1, "length") if node.has(1) else default
    if inverse and one_sided:
        signal = _real_inverse(real, imaginary if imaginary is not None else torch.zeros_like(real), length)
        return signal.unsqueeze(-1).movedim(-2, axis)
    return torch.stack(_transformed(real, imaginary, length, one_sided, inverse), -1).movedim(-2, axis)


def _stft(node: Node) -> Tensor:
    """signal [batch, length, 1 or 2] → [batch, frames, values, 2]."""
    x, step, window = node.tensor(0), node.integer(1, "step"), node.optional(2)
    if window is None and not node.has(3):
        raise NodeError("it has neither a window nor a length of its frames", unsupported=False)
    length = node.integer(3, "length of its frames") if node.has(3) else window.shape[0] if window is not None else 0
    if not isinstance(step, int):
        raise NodeError("its step depends on sizes")
    one_sided = bool(node.attr_int("onesided"))
    frames = x.unfold(1, length, step)  # [batch, frames, parts, length]
    frames = frames if window is None else frames * _fitted(window, length)
    imaginary = frames[:, :, 1] if isinstance(x.shape[-1], int) and x.shape[-1] == 2 else None
    if imaginary is not None and one_sided:
        raise NodeError("one side of the transform of a complex signal", unsupported=False)
    return torch.stack(_transformed(frames[:, :, 0], imaginary, length, one_sided, False), -1)


def _mel_weights(node: Node) -> Tensor:
    """[length // 2 + 1, bands]: triangles whose corners lie evenly on the mel scale, 2595 log10(1 + hertz / 700)."""
    bands, length = int(node.number(0, "number of bands")), int(node.number(1, "length"))
    rate, lowest, highest = (float(node.number(place, "frequency")) for place in (2, 3, 4))
    first, last = (2595 * math.log10(1 + hertz / 700) for hertz in (lowest, highest))
    step = (last - first) / (bands + 2)
    hertz = [700 * (10 ** ((first + i * step) / 2595) - 1) for i in range(bands + 2)]
    corners = [int((length + 1) * each // rate) for each in hertz]
    weights = torch.zeros(length // 2 + 1, bands, dtype=torch.float64)
    for band in range(bands):
        low, middle, high = corners[band : band + 3]
        for place in range(low, middle + 1):
            weights[place, band] = (place - low) / (middle - low) if middle > low else 1
        for place in range(middle, high):
            weights[place, band] = (high - place) / (high - middle)
    return weights.to(node.attr_dtype("output_datatype"))


RULES: dict[str, Rule] = {"DFT": _dft, "STFT": _stft, "MelWeightMatrix": _mel_weights}
