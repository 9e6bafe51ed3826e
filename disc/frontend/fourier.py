"""Fourier transforms as ops on real tensors, complex numbers being pairs in the last dim: what graphs have after `complex_numbers.py`.

    _fft_c2c(z, [0, 1])   ─►   disc.fft(disc.fft(view_as_real(z), 0), 1)

The ops are PyTorch's, too, so that a graph of torch.compile that is not compiled runs there. norm: sums times 1 (0), the root of 1 / n
(1), or 1 / n (2), as in PyTorch's own ops.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

aten = torch.ops.aten
_OPS = torch.library.Library("disc", "FRAGMENT")
_OPS.define("fft(Tensor x, int dim, bool inverse, int norm) -> Tensor")
_OPS.define("rfft(Tensor x, int dim, int norm) -> Tensor")
_OPS.define("irfft(Tensor x, int dim, int norm, SymInt n) -> Tensor")


def _fft(x: Tensor, dim: int, inverse: bool, norm: int) -> Tensor:
    return torch.view_as_real(aten._fft_c2c(torch.view_as_complex(x.contiguous()), [dim], norm, not inverse)).contiguous()


def _rfft(x: Tensor, dim: int, norm: int) -> Tensor:
    return torch.view_as_real(aten._fft_r2c(x, [dim], norm, True)).contiguous()


def _irfft(x: Tensor, dim: int, norm: int, n: int) -> Tensor:
    return aten._fft_c2r(torch.view_as_complex(x.contiguous()), [dim], norm, n).contiguous()


def _fft_shape(x: Tensor, dim: int, inverse: bool, norm: int) -> Tensor:
    return x.new_empty(x.shape)


def _rfft_shape(x: Tensor, dim: int, norm: int) -> Tensor:
    return x.new_empty([*x.shape[:dim], x.shape[dim] // 2 + 1, *x.shape[dim + 1 :], 2])


def _irfft_shape(x: Tensor, dim: int, norm: int, n: int) -> Tensor:
    return x.new_empty([*x.shape[:dim], n, *x.shape[dim + 1 : -1]])


for _name, _compute, _shape in (("fft", _fft, _fft_shape), ("rfft", _rfft, _rfft_shape), ("irfft", _irfft, _irfft_shape)):
    _OPS.impl(_name, _compute, "CPU")
    _OPS.impl(_name, _shape, "Meta")

disc = torch.ops.disc


def complex_to_complex(x: Tensor, dims: Sequence[int], norm: int, forward: bool) -> Tensor:
    """x, result: pairs in the last dim."""
    for dim in dims:
        x = disc.fft(x, dim % (x.dim() - 1), not forward, norm)
    return x


def real_to_complex(x: Tensor, dims: Sequence[int], norm: int, onesided: bool) -> Tensor:
    """The last of `dims` first, which holds half of the frequencies if `onesided`. Result: pairs."""
    if not onesided:
        return complex_to_complex(torch.stack([x, torch.zeros_like(x)], -1), [dim % x.dim() for dim in dims], norm, True)
    rank = x.dim()
    return complex_to_complex(disc.rfft(x, dims[-1] % rank, norm), [dim % rank for dim in dims[:-1]], norm, True)


def complex_to_real(x: Tensor, dims: Sequence[int], norm: int, n: int) -> Tensor:
    """x: pairs; n: the size of the last of `dims` in the result."""
    rank = x.dim() - 1
    x = complex_to_complex(x, [dim % rank for dim in dims[:-1]], norm, False)
    return disc.irfft(x, dims[-1] % rank, norm, n)
