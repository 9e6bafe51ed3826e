"""Resize and GridSample: values between the elements of a tensor.

Resize works dim by dim: each position of the result takes a few elements of the source (taps), with weights that depend on where it lies
between them. Positions follow the standard's `Resize`, which names each way of counting them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.ops.data_sizes import counted
from disc.frontend.onnx.ops.structure import axis_of
from disc.frontend.onnx.values import NodeError, Number, Result, larger

Rule = Callable[[Node], Result]
LARGEST_DENOMINATOR = 4096  # of a scale on a dynamic dim


@dataclass(frozen=True)
class _Axis:
    """One resized dim. scale: of the result's size to the source's; start, end: of the region of interest, as shares of the source."""

    size: Number
    out: Number
    scale: float | None
    start: float = 0.0
    end: float = 1.0


@dataclass(frozen=True)
class _DataAxis:
    """One whose size in the result depends on data. What ends in `now`, the scale and the region are scalars of f64."""

    size: Number
    out: Number
    size_now: Tensor
    out_now: Tensor
    scale: Tensor
    start: Tensor
    end: Tensor


def _resize(node: Node) -> Tensor:
    x = node.tensor(0)
    axes = [axis_of(axis, x.dim()) for axis in node.attr_ints("axes", range(x.dim()))]
    outside: Tensor | None = None
    for axis, described in zip(axes, _described(node, x, axes), strict=True):
        if isinstance(described, _Axis):
            same = isinstance(described.size, int) and described.size == described.out and described.scale in (None, 1)
            if same and not _crops(node):
                continue
            at = _positions(node, described)
        else:
            at = _positions_by_data(node, described)
        x = _interpolated(node, x, axis, described, at)
        if _crops(node):
            wrong = ((at < 0) | (at > described.size - 1)).reshape([-1 if i == axis else 1 for i in range(x.dim())])
            outside = wrong if outside is None else outside | wrong
    return x if outside is None else torch.where(outside, node.attr_float("extrapolation_value"), x).to(x.dtype)


def _crops(node: Node) -> bool:
    """Whether the region of interest counts."""
    return node.attr_text("coordinate_transformation_mode") == "tf_crop_and_resize"


def _described(node: Node, x: Tensor, axes: list[int]) -> Sequence[_Axis] | Sequence[_DataAxis]:
    sizes = [x.shape[axis] for axis in axes]
    keeps_ratio = node.has(3) and node.attr_text("keep_aspect_ratio_policy", "stretch") != "stretch"
    if (
        (node.has(3) and node.sizes(3) is None)
        or (not node.has(3) and node.known(2) is None)
        or (_crops(node) and node.has(1) and node.known(1) is None)
        or (keeps_ratio and not all(isinstance(each, int) for each in (*sizes, *node.integers(3, "sizes"))))
    ):
        return _described_by_data(node, sizes, keeps_ratio)
    region = [float(each) for each in node.numbers(1, "region")] if _crops(node) and node.has(1) else []
    regions = list(zip(region[: len(axes)], region[len(axes) :], strict=True)) if region else [(0.0, 1.0)] * len(axes)
    if node.has(3):
        outs, scale = node.integers(3, "sizes"), None
        if keeps_ratio:
            outs, scale = _same_ratio(node, [int(size) for size in sizes], [int(out) for out in outs])
        return [_Axis(size, out, scale, *part) for size, out, part in zip(sizes, outs, regions, strict=True)]
    scales = [float(each) for each in node.numbers(2, "scales")]
    return [_Axis(size, _scaled(size, scale, part), scale, *part) for size, scale, part in zip(sizes, scales, regions, strict=True)]


def _same_ratio(node: Node, sizes: list[int], outs: list[int]) -> tuple[list[Number], float]:
    """The sizes of the result, and the one scale of all of them."""
    ratios = [out / size for size, out in zip(sizes, outs, strict=True)]
    scale = min(ratios) if node.attr_text("keep_aspect_ratio_policy") == "not_larger" else max(ratios)
    return [math.floor(scale * size + 0.5) for size in sizes], scale


def _described_by_data(node: Node, sizes: list[Number], keeps_ratio: bool) -> list[_DataAxis]:
    own = torch.stack([torch.scalar_tensor(size, dtype=torch.float64) for size in sizes])
    start, end = torch.zeros_like(own), torch.ones_like(own)
    if _crops(node) and node.has(1):
        region = node.tensor(1).to(torch.float64)
        start, end = region[: len(sizes)], region[len(sizes) :]
    if node.has(3):
        outs = node.tensor(3)
        scales = outs.to(torch.float64) / own
        if keeps_ratio:
            scale = scales.amin() if node.attr_text("keep_aspect_ratio_policy") == "not_larger" else scales.amax()
            scales = scale.expand(len(sizes))
            outs = torch.floor(scales * own + 0.5).to(torch.int64)
    else:
        scales = node.tensor(2).to(torch.float64)
        outs = torch.floor(own.float() * scales.float() * (end - start).float()).to(torch.int64)
    now = outs.to(torch.float64)
    return [
        _DataAxis(size, counted(outs[place]), own[place], now[place], scales[place], start[place], end[place])
        for place, size in enumerate(sizes)
    ]


def _scaled(size: Number, scale: float, region: tuple[float, float]) -> Number:
    scale *= region[1] - region[0]
    if isinstance(size, int):
        return math.floor(float(np.float32(size) * np.float32(scale)))  # 7 for 10 * 0.7, as in exact numbers and in ONNX Runtime
    exact = Fraction(scale).limit_denominator(LARGEST_DENOMINATOR)
    if abs(float(exact) - scale) > 1e-7 * scale:
        raise NodeError(f"a scale of {scale} on a dim whose size is dynamic")
    return size * exact.numerator // exact.denominator


def _positions(node: Node, axis: _Axis) -> Tensor:
    """Where each position of the result lies in the source, in elements (f64)."""
    mode = node.attr_text("coordinate_transformation_mode")
    at = torch.arange(axis.out, dtype=torch.float64)

    def shrunk(place: Tensor) -> Tensor:
        return place / axis.scale if axis.scale is not None else place * axis.size / axis.out

    if mode == "align_corners":
        if axis.scale is not None and isinstance(axis.size, int):  # the standard counts with the size before it is rounded
            return at * (axis.size - 1) / (axis.scale * axis.size - 1 if axis.out > 1 else 1)
        return at * (axis.size - 1) / larger(axis.out - 1, 1)
    if mode == "asymmetric":
        return shrunk(at)
    if mode == "tf_crop_and_resize":
        if axis.out == 1:
            return at + 0.5 * (axis.start + axis.end) * (axis.size - 1)
        return axis.start * (axis.size - 1) + at * ((axis.end - axis.start) * (axis.size - 1)) / (axis.out - 1)
    if mode == "half_pixel_symmetric" and axis.scale is not None:
        adjusted = axis.out / (axis.scale * axis.size)
        return axis.size / 2 * (1 - adjusted) + shrunk(at + 0.5) - 0.5
    if mode == "pytorch_half_pixel" and axis.out == 1:
        return at - 0.5
    if mode in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"):
        return shrunk(at + 0.5) - 0.5
    raise NodeError(f"positions counted as '{mode}'")


def _positions_by_data(node: Node, axis: _DataAxis) -> Tensor:
    """The same where data says how large the result is."""
    mode = node.attr_text("coordinate_transformation_mode")
    at = torch.arange(axis.out, dtype=torch.float64)
    if mode == "align_corners":
        return at * (axis.size_now - 1) / torch.where(axis.out_now > 1, axis.scale * axis.size_now - 1, 1.0)
    if mode == "asymmetric":
        return at / axis.scale
    if mode == "tf_crop_and_resize":
        middle = at + 0.5 * (axis.start + axis.end) * (axis.size_now - 1)
        step = (axis.end - axis.start) * (axis.size_now - 1) / (axis.out_now - 1)
        return torch.where(axis.out_now == 1, middle, axis.start * (axis.size_now - 1) + at * step)
    if mode not in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"):
        raise NodeError(f"positions counted as '{mode}'")
    places = (at + 0.5) / axis.scale - 0.5
    if mode == "half_pixel_symmetric":
        return axis.size_now / 2 * (1 - axis.out_now / (axis.scale * axis.size_now)) + places
    return torch.where(axis.out_now == 1, at - 0.5, places) if mode == "pytorch_half_pixel" else places


def _interpolated(node: Node, x: Tensor, axis: int, described: _Axis | _DataAxis, at: Tensor) -> Tensor:
    mode, last = node.attr_text("mode"), described.size - 1
    if mode == "nearest":
        return torch.index_select(x, axis, torch.clamp(_rounded(at, node.attr_text("nearest_mode")), 0, last))
    if mode not in ("linear", "cubic"):
        raise NodeError(f"mode '{mode}'")
    left = torch.floor(at)
    shrinking = _shrinking(described) if node.attr_int("antialias", 0) else 1.0
    reach = 1 if mode == "linear" else 2
    first = math.floor(-reach / shrinking) + 1
    offsets = range(first, 2 - first)
    curve = _linear if mode == "linear" else lambda d: _cubic(d, node.attr_float("cubic_coeff_a"))
    weights = [curve(((left + offset) - at) * shrinking) for offset in offsets]
    if node.attr_int("exclude_outside"):
        weights = [
            torch.where((left + offset >= 0) & (left + offset <= last), weight, torch.zeros_like(weight))
            for offset, weight in zip(offsets, weights, strict=True)
        ]
    total: Tensor | float = sum(weights) if shrinking != 1 or node.attr_int("exclude_outside") else 1.0
    shape = [-1 if i == axis else 1 for i in range(x.dim())]
    wide = x if x.dtype == torch.float64 else x.float()
    parts: list[Tensor] = []
    for offset, weight in zip(offsets, weights, strict=True):
        share = (weight / total).to(wide.dtype).reshape(shape)
        part = torch.index_select(wide, axis, torch.clamp(left + offset, 0, last).long()) * share
        # A dim may be as large as it was, and its elements infinite.
        parts.append(part if isinstance(described, _Axis) else torch.where(share == 0, torch.zeros_like(part), part))
    result = sum(parts[1:], parts[0])
    return result.to(x.dtype) if x.is_floating_point() else torch.round(result).to(x.dtype)


def _shrinking(axis: _Axis | _DataAxis) -> float:
    """How much wider the taps reach where the source is made smaller: the scale, at most 1."""
    if isinstance(axis, _DataAxis):
        raise NodeError("antialias where data says how large the result is")
    scale = axis.scale if axis.scale is not None else axis.out / axis.size
    if not isinstance(scale, float):
        raise NodeError("antialias between dims whose sizes are dynamic")
    return min(scale, 1.0)


def _rounded(at: Tensor, mode: str) -> Tensor:
    if mode == "floor":
        return torch.floor(at).long()
    if mode == "ceil":
        return torch.ceil(at).long()
    return (torch.ceil(at - 0.5) if mode == "round_prefer_floor" else torch.floor(at + 0.5)).long()


def _linear(distance: Tensor) -> Tensor:
    return torch.clamp(1 - distance.abs(), min=0)


def _cubic(distance: Tensor, a: float) -> Tensor:
    """Keys' kernel (Cubic convolution interpolation for digital image processing, 1981)."""
    d = distance.abs()
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, torch.zeros_like(d)))


def _grid_sample(node: Node) -> Tensor:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(node.attr_text("mode"), node.attr_text("mode"))
    return F.grid_sample(node.tensor(0), node.tensor(1), mode, node.attr_text("padding_mode"), bool(node.attr_int("align_corners")))


def _col2im(node: Node) -> Tensor:
    """blocks [batch, channels * block, positions] → the sums of all that lie over each place of an image."""
    x, image, block = node.tensor(0), node.integers(1, "image size"), node.constants(2, "block size")
    rank = len(image)
    pads = node.attr_ints("pads", [0] * 2 * rank)
    strides, dilations = node.attr_ints("strides", [1] * rank), node.attr_ints("dilations", [1] * rank)
    padded = [size + pads[i] + pads[i + rank] for i, size in enumerate(image)]
    if rank == 2:
        y = torch.ops.aten.col2im(x, padded, block, dilations, [0, 0], strides)
    else:
        y = _summed_blocks(x, padded, block, strides, dilations)
    return F.pad(y, [size for i in range(rank)[::-1] for size in (-pads[i], -pads[i + rank])])


def _summed_blocks(x: Tensor, image: list[Number], block: list[int], strides: list[int], dilations: list[int]) -> Tensor:
    at = torch.zeros([1, 1], dtype=torch.int64)  # the place of each element [block, positions] in the image
    for size, window, step, wide in zip(image, block, strides, dilations, strict=True):
        count = (size - (window - 1) * wide - 1) // step + 1
        own = torch.arange(window).unsqueeze(1) * wide + torch.arange(count) * step
        at = (at.reshape(at.shape[0], 1, at.shape[1], 1) * size + own.reshape(1, window, 1, count)).flatten(2).flatten(0, 1)
    taps = math.prod(block)
    parts = x.reshape(x.shape[0], x.shape[1] // taps, -1)
    total: Number = 1
    for size in image:
        total = total * size
    zeros = torch.zeros([x.shape[0], x.shape[1] // taps, total], dtype=x.dtype)
    return zeros.scatter_add(2, at.reshape(1, 1, -1).expand(parts.shape), parts).reshape(x.shape[0], x.shape[1] // taps, *image)


RULES: dict[str, Rule] = {"Resize": _resize, "GridSample": _grid_sample, "Col2Im": _col2im}
