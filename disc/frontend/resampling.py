"""Decompositions of resampling without aliasing: each element is a weighted mean of a window whose width grows as the image shrinks.

Dim by dim, the last one first, as eager does; but last where the other one shrinks, as its elements are gathered. Shapes stay symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._decomp import decompositions
from torch.fx.experimental.symbolic_shapes import statically_known_true

from disc.frontend.eager_strides import Decomposition
from disc.frontend.replaced import replaced

aten = torch.ops.aten
Number = float  # or torch.SymFloat, which PyTorch's declarations leave out


@dataclass(frozen=True)
class Filter:
    """weight: of distances in elements of the smaller image; reach: beyond which it is 0."""

    weight: Callable[[Tensor], Tensor]
    reach: int


def triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def cubic(x: Tensor) -> Tensor:
    """R. G. Keys, "Cubic Convolution Interpolation for Digital Image Processing", 1981, with a = -1/2."""
    size = x.abs()
    near = (1.5 * size - 2.5) * size * size + 1
    far = -0.5 * (((size - 5) * size + 8) * size - 4)
    return torch.where(size < 1, near, torch.where(size < 2, far, 0.0))


def lanczos(x: Tensor) -> Tensor:
    """C. E. Duchon, "Lanczos Filtering in One and Two Dimensions", 1979, with three lobes."""
    return torch.where(x.abs() < 3, torch.sinc(x) * torch.sinc(x / 3), 0.0)


def _ratio(size: int, count: int, align_corners: bool, scale: float | None) -> Number:
    """Elements of the source for each of the result."""
    if align_corners:
        return (size - 1) / torch.sym_max(count - 1, 1) * torch.sym_min(count - 1, 1)
    return 1 / scale if scale is not None and scale > 0 else size / count


_SCALE, _LINEAR, _NEAREST = decompositions._compute_scale, decompositions._upsample_linear, decompositions._compute_upsample_nearest_indices


@contextmanager
def eager_scales() -> Iterator[None]:
    """Within, decompositions of PyTorch's resample as eager does where a dynamic size is 1 in a call (with `align_corners` they divide by
    one less), and where a factor leaves a size as it is, or doubles it: eager's kernels then read by the sizes, not by the factor."""
    linear = False

    def scale(size: int, count: int, align_corners: bool, scale: float | None = None) -> Number:
        if align_corners:
            return (
                _ratio(size, count, align_corners, scale) if isinstance(count, torch.SymInt) else _SCALE(size, count, align_corners, scale)
            )
        found = _SCALE(size, count, align_corners, scale)
        return _unless_equal(found, size, count, 1.0) if linear and scale is not None else found

    def upsample_linear(*args: object, **kwargs: object) -> Tensor:
        nonlocal linear
        linear = True
        try:
            return _LINEAR(*args, **kwargs)  # pyright: ignore[reportArgumentType]
        finally:
            linear = False

    def nearest(x: Tensor, counts: Sequence[int], scales: Sequence[float | None], exact: bool = False) -> list[Tensor]:
        if exact or len(counts) != 2:  # of one dim, and of three row-major ones, the kernels read by the factor
            return _NEAREST(x, counts, scales, exact)
        sizes = x.shape[-2:]
        ratios = [
            size / count if scale is None or scale <= 0 else 1.0 / scale for size, count, scale in zip(sizes, counts, scales, strict=True)
        ]
        found: list[Tensor] = []
        for size, count, ratio in zip(sizes, counts, ratios, strict=True):
            ratio = _unless_equal(_unless_equal(ratio, size, count, 1.0), 2 * size, count, 0.5)
            found.append((torch.arange(count, dtype=torch.float32, device=x.device) * ratio).to(torch.int64))
        return [found[0].unsqueeze(-1), found[1]]

    patched = {"_compute_scale": scale, "_upsample_linear": upsample_linear, "_compute_upsample_nearest_indices": nearest}
    with replaced({(decompositions, name): function for name, function in patched.items()}):
        yield


def _unless_equal(ratio: Number, size: int, count: int, otherwise: Number) -> Number:
    """`ratio`, or `otherwise` where the two are equal."""
    if not isinstance(size, torch.SymInt) and not isinstance(count, torch.SymInt):
        return otherwise if size == count else ratio
    if (isinstance(ratio, float) and ratio == otherwise) or statically_known_true(size != count):
        return ratio
    differ = torch.sym_min(1, torch.sym_max(size - count, count - size))
    return ratio * differ + otherwise * (1 - differ)


def _taps(size: int, count: int, align_corners: bool, scale: float | None, reach: int) -> int:
    """How many elements a window has at most."""
    if not align_corners and scale is not None and scale > 0:
        return 2 * math.ceil(reach * max(1 / scale, 1.0)) + 1
    if align_corners:
        size, count = size - 1, torch.sym_max(count - 1, 1)  # pyright: ignore[reportAssignmentType]
    return (reach * torch.sym_max(size, count) + count - 1) // count * 2 + 1  # pyright: ignore


def _resampled(x: Tensor, dim: int, count: int, align_corners: bool, scale: float | None, kernel: Filter) -> Tensor:
    """x with `count` elements along `dim`, which counts from the end."""
    size, ratio = x.shape[dim], _ratio(x.shape[dim], count, align_corners, scale)
    widened = torch.sym_max(ratio, 1.0)
    center = (torch.arange(count).to(x.dtype) + 0.5) * ratio
    first = (center - kernel.reach * widened + 0.5).to(torch.int64).clamp(min=0)
    end = (center + kernel.reach * widened + 0.5).to(torch.int64).clamp(max=size)
    # [taps, count]: neighbors are elements of the result, and none has a sum of lanes
    index = first + torch.arange(_taps(size, count, align_corners, scale, kernel.reach)).unsqueeze(-1)
    inside = index < end
    weight = torch.where(inside, kernel.weight((index.to(x.dtype) - center + 0.5) / widened), 0.0)
    total = weight.sum(0)
    weight = weight / torch.where(total == 0, 1.0, total)
    values = x.index_select(dim, index.clamp(max=size - 1).flatten()).unflatten(dim, index.shape)
    shape = [*index.shape, *[1] * (-dim - 1)]
    return torch.where(inside.reshape(shape), values * weight.reshape(shape), 0.0).sum(dim - 1)


def _without_aliasing(kernel: Filter) -> Decomposition:
    def decomposition(
        x: Tensor, output_size: Sequence[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
    ) -> Tensor:
        if x.dtype not in (torch.float32, torch.float64):
            return NotImplemented  # eager computes bytes in a fixed-point arithmetic that depends on the CPU, and has no 16-bit floats
        result, along = x, [(-1, output_size[1], scales_w), (-2, output_size[0], scales_h)]
        if statically_known_true(output_size[0] < x.shape[-2]):
            along.reverse()
        for dim, count, scale in along:
            result = _resampled(result, dim, count, align_corners, scale, kernel)
        return result

    return decomposition


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    aten._upsample_bilinear2d_aa.default: _without_aliasing(Filter(triangle, 1)),
    aten._upsample_bicubic2d_aa.default: _without_aliasing(Filter(cubic, 2)),
    aten._upsample_lanczos2d_aa.default: _without_aliasing(Filter(lanczos, 3)),
}
