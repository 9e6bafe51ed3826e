"""Fractional max pooling (Graham, 2014): windows of one size that begin where a random number of each plane says. Shapes stay symbolic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.eager_strides import Decomposition
from disc.frontend.windows import places_of_maxima

aten = torch.ops.aten


def _starts(sample: Tensor, size: int, count: int, kernel: int) -> Tensor:
    """[planes..., count]: where each window along a dim begins, from a number in [0, 1) of each plane; the last one ends with the dim."""
    i = torch.arange(count)
    room = torch.full((), size - kernel, dtype=sample.dtype)
    step = room / torch.full((), count - 1, dtype=sample.dtype).clamp(min=1)
    drawn = sample.unsqueeze(-1)
    starts = ((i.to(sample.dtype) + drawn) * step).to(torch.int64) - (drawn * step).to(torch.int64)
    return torch.where(i == count - 1, size - kernel, starts)


def _pool(
    x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], samples: Tensor, order: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """samples: [N, C, dims]; order: which of them is that of each dim of a plane."""
    dims = len(order)
    planes = x if x.dim() == dims + 2 else x.unsqueeze(0)
    values, place = planes, torch.zeros((), dtype=torch.int64)
    split: list[int] = []
    for each, (kernel, count, drawn) in enumerate(zip(kernel_size, output_size, order, strict=True)):
        dim = each + 2
        starts = _starts(samples[..., drawn], planes.shape[dim], count, kernel)
        index = (starts.unsqueeze(-1) + torch.arange(kernel)).flatten(-2)
        index = index.reshape([*index.shape[:2], *(index.shape[-1] if other == each else 1 for other in range(dims))])
        values = values.gather(dim, index.expand([index.shape[-dims + each] if at == dim else n for at, n in enumerate(values.shape)]))
        place = place * planes.shape[dim] + index
        split += [count, kernel]
    order_of_windows = [0, 1, *range(2, 2 + 2 * dims, 2), *range(3, 2 + 2 * dims, 2)]
    values, place = (each.reshape([*planes.shape[:2], *split]).permute(order_of_windows).flatten(2 + dims) for each in (values, place))
    found, places = places_of_maxima(values, place, torch.ones((), dtype=torch.bool), -1)
    return (found, places) if planes is x else (found.squeeze(0), places.squeeze(0))


def plane_maximum(x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Tensor) -> tuple[Tensor, Tensor]:
    return _pool(x, kernel_size, output_size, random_samples, (1, 0))


def volume_maximum(x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Tensor) -> tuple[Tensor, Tensor]:
    return _pool(x, kernel_size, output_size, random_samples, (0, 1, 2))


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    aten.fractional_max_pool2d.default: plane_maximum,
    aten.fractional_max_pool3d.default: volume_maximum,
}


def _form(dims: int, indices: bool) -> Callable[..., Tensor | tuple[Tensor, Tensor]]:
    """Of torch.nn.functional: PyTorch's own code reads sizes as plain integers, to draw, for ratios, and in three dims."""

    def pool(
        x: Tensor, kernel_size: int | Sequence[int], output_size: int | Sequence[int] | None = None,
        output_ratio: float | Sequence[float] | None = None, return_indices: bool = False, _random_samples: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        if output_size is None and output_ratio is None:
            raise ValueError(f"fractional_max_pool{dims}d requires specifying either an output_size or an output_ratio")  # eager's words
        kernels = [kernel_size] * dims if isinstance(kernel_size, int) else list(kernel_size)
        if output_size is None:
            ratios = list(output_ratio) if isinstance(output_ratio, Sequence) else [output_ratio or 0.0] * dims
            counts = [cast("int", torch.sym_int(size * ratio)) for size, ratio in zip(x.shape[-dims:], ratios, strict=True)]
        else:
            counts = list(output_size) if isinstance(output_size, Sequence) else [output_size] * dims
        for size, kernel, count in zip(x.shape[-dims:], kernels, counts, strict=True):
            torch._check(count + kernel - 1 <= size, lambda: f"fractional_max_pool{dims}d: a kernel is too large relative to its dim")
        samples = _random_samples
        if samples is None:
            samples = torch.rand(1 if x.dim() == dims + 1 else x.shape[0], x.shape[-dims - 1], dims, dtype=x.dtype)
        found = _pool(x, kernels, counts, samples, (1, 0) if dims == 2 else (0, 1, 2))
        return found if indices or return_indices else found[0]

    return pool


FORMS: dict[Callable[..., object], Callable[..., object]] = {
    F.fractional_max_pool2d: _form(2, False),
    F.fractional_max_pool2d_with_indices: _form(2, True),
    F.fractional_max_pool3d: _form(3, False),
    F.fractional_max_pool3d_with_indices: _form(3, True),
    **{getattr(F, f"_fractional_max_pool{dims}d"): _form(dims, False) for dims in (2, 3)},
}
