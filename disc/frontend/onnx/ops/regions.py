"""Operators of detectors: boxes that overlap, and values between the elements of an image, at places that depend on data."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.ops.control import HIGHER
from disc.frontend.onnx.values import NodeError, Result

Rule = Callable[[Node], Result]


def _corners(boxes: Tensor, by_center: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lowest and highest coordinate of both axes. boxes: two opposite corners, in any order, or center and size."""
    a, b, c, d = boxes.unbind(-1)
    if by_center:
        return a - c / 2, b - d / 2, a + c / 2, b + d / 2
    return torch.minimum(a, c), torch.minimum(b, d), torch.maximum(a, c), torch.maximum(b, d)


def _shares(one: Tensor, others: Tensor, by_center: bool) -> Tensor:
    """Intersection over union of a box with others; 0 where there is no union."""
    (low, left, high, right), (lows, lefts, highs, rights) = _corners(one, by_center), _corners(others, by_center)
    height = torch.clamp(torch.minimum(high, highs) - torch.maximum(low, lows), min=0)
    width = torch.clamp(torch.minimum(right, rights) - torch.maximum(left, lefts), min=0)
    common = height * width
    union = (high - low) * (right - left) + (highs - lows) * (rights - lefts) - common
    return torch.where(union > 0, common / union, torch.zeros_like(union))


def _non_max_suppression(node: Node) -> Tensor:
    """boxes [batch, count, 4], scores [batch, classes, count] → [selected, 3]: batch, class, box, best first in each class.

    One box after the other, from the best down, removes all behind it that it covers; each step does so for all classes at once.
    """
    boxes, scores, by_center = node.tensor(0), node.tensor(1), bool(node.attr_int("center_point_box"))
    most = node.tensor(2).reshape([]) if node.has(2) else torch.zeros([], dtype=torch.int64)
    overlap = node.tensor(3).reshape([]) if node.has(3) else torch.zeros([], dtype=boxes.dtype)
    ranked, order = torch.sort(scores, dim=-1, descending=True, stable=True)
    batch = torch.arange(boxes.shape[0]).reshape(-1, 1, 1)
    by_rank = boxes[batch, order]  # [batch, classes, count, 4]
    ranks = torch.arange(scores.shape[-1])
    keep = ranked > node.tensor(4).reshape([]) if node.has(4) else torch.ones_like(ranked, dtype=torch.bool)

    def going(rank: Tensor, _keep: Tensor, _boxes: Tensor, _overlap: Tensor, ranks: Tensor) -> Tensor:
        return rank < ranks.shape[0]

    def once(rank: Tensor, keep: Tensor, boxes: Tensor, overlap: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
        at = rank.reshape(1)
        covered = _shares(torch.index_select(boxes, 2, at), boxes, by_center) > overlap
        removed = torch.index_select(keep, 2, at) & covered & (ranks > rank)
        return rank + 1, keep & ~removed

    first = torch.zeros([], dtype=torch.int64)
    _, keep = HIGHER.while_loop(going, once, (first, keep), (by_rank, overlap.clone(), ranks))
    keep = keep & (torch.cumsum(keep.to(torch.int64), -1) <= most)
    selected = torch.nonzero(keep)
    boxes_at = order[selected[:, 0], selected[:, 1], selected[:, 2]]
    return torch.stack([selected[:, 0], selected[:, 1], boxes_at], 1)


# --- values between elements --------------------------------------------------------------------------------------------------------


def _taps(at: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The elements before and behind positions in a line, and the share of the one behind; ends repeat."""
    at = torch.clamp(at, min=0)
    low = torch.clamp(torch.floor(at).long(), max=size - 1)
    return low, torch.clamp(low + 1, max=size - 1), torch.where(low >= size - 1, torch.zeros_like(at), at - low)


def _roi_align(node: Node) -> Tensor:
    """x [batch, channels, height, width], regions [count, 4] (x and y of two corners), the batch of each.

    The result is [count, channels, rows, columns]. Each bin takes values at a grid of points, between the elements of x, and gives their
    mean or the largest.
    """
    x, regions, batch, grid = node.tensor(0), node.tensor(1), node.tensor(2), node.attr_int("sampling_ratio")
    if grid <= 0:
        raise NodeError("a sampling_ratio of 0, with which the size of each region decides how many points are taken")
    half = node.attr_text("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel") == "half_pixel"
    placed = regions * node.attr_float("spatial_scale") - (0.5 if half else 0.0)
    rows, columns = node.attr_int("output_height"), node.attr_int("output_width")
    ys, xs = _points(placed[:, 1], placed[:, 3], rows, grid, half), _points(placed[:, 0], placed[:, 2], columns, grid, half)
    height, width = x.shape[2:]
    (top, bottom, down), (left, right, across) = _taps(ys, height), _taps(xs, width)
    inside = ((ys >= -1) & (ys <= height)).unsqueeze(2) & ((xs >= -1) & (xs <= width)).unsqueeze(1)  # [count, rows, columns]
    last = x.permute(0, 2, 3, 1)
    corners: list[Tensor] = []
    for line, share in ((top, 1 - down), (bottom, down)):
        for place, part in ((left, 1 - across), (right, across)):
            weight = torch.where(inside, share.unsqueeze(2) * part.unsqueeze(1), torch.zeros([], dtype=x.dtype))
            corners.append(last[batch.reshape(-1, 1, 1), line.unsqueeze(2), place.unsqueeze(1)] * weight.unsqueeze(-1))
    bins = (regions.shape[0], rows, grid, columns, grid, x.shape[1])
    if node.attr_text("mode") == "avg":
        pooled = sum(corners[1:], corners[0]).reshape(bins).mean((2, 4))
    else:
        pooled = torch.stack(corners).amax(0).reshape(bins).amax((2, 4))
    return pooled.permute(0, 3, 1, 2)


def _points(start: Tensor, end: Tensor, bins: int, grid: int, half: bool) -> Tensor:
    """[count, bins * grid]: positions along one axis."""
    size = end - start if half else torch.clamp(end - start, min=1.0)
    steps = (torch.arange(bins * grid, dtype=start.dtype) + 0.5) / grid
    return start.unsqueeze(1) + steps * (size / bins).unsqueeze(1)


def _deform_conv(node: Node) -> Tensor:
    """A convolution whose taps lie at places of their own: offsets [batch, groups * taps * 2, rows, columns] say where."""
    x, weight, offsets, bias, mask = node.tensor(0), node.tensor(1), node.tensor(2), node.optional(3), node.optional(4)
    if x.dim() != 4:
        raise NodeError("a deformable convolution over dims that are not two")
    (batch, channels, height, width), kernel = x.shape, [int(size) for size in weight.shape[2:]]
    strides, dilations, pads = (node.attr_ints(name, default) for name, default in (
        ("strides", [1, 1]), ("dilations", [1, 1]), ("pads", [0] * 4),
    ))  # fmt: skip
    groups, parts, taps = node.attr_int("group"), node.attr_int("offset_group"), math.prod(kernel)
    rows, columns = offsets.shape[2:]
    moved = offsets.reshape(batch, parts, taps, 2, rows, columns)
    along = [torch.arange(taps) // kernel[1] * dilations[0], torch.arange(taps) % kernel[1] * dilations[1]]
    starts = [torch.arange(size) * step - pad for size, step, pad in zip((rows, columns), strides, pads[:2], strict=True)]
    ys = moved[:, :, :, 0] + along[0].reshape(-1, 1, 1) + starts[0].unsqueeze(1)
    xs = moved[:, :, :, 1] + along[1].reshape(-1, 1, 1) + starts[1]
    scale = mask.reshape(batch, parts, taps, rows, columns) if mask is not None else None
    flat = x.reshape(batch, parts, channels // parts, height * width)
    taken = _between(flat, ys, xs, height, width, scale).reshape(batch, groups, channels // groups * taps, rows * columns)
    y = torch.matmul(weight.reshape(groups, weight.shape[0] // groups, channels // groups * taps), taken)
    y = y.reshape(batch, weight.shape[0], rows, columns)
    return y if bias is None else y + bias.reshape(-1, 1, 1)


def _between(flat: Tensor, ys: Tensor, xs: Tensor, height: int, width: int, scale: Tensor | None) -> Tensor:
    """[batch, parts, channels, taps * rows * columns]: values at places, 0 beyond the image's last elements."""
    top, left = torch.floor(ys), torch.floor(xs)
    total: Tensor | None = None
    for y, down in ((top, 1 - (ys - top)), (top + 1, ys - top)):
        for x, across in ((left, 1 - (xs - left)), (left + 1, xs - left)):
            inside = (y >= 0) & (y <= height - 1) & (x >= 0) & (x <= width - 1)
            weight = torch.where(inside, down * across, torch.zeros_like(down))
            weight = (weight if scale is None else weight * scale).flatten(2).unsqueeze(2)
            at = (torch.clamp(y, 0, height - 1) * width + torch.clamp(x, 0, width - 1)).long().flatten(2).unsqueeze(2)
            value = torch.gather(flat, 3, at.expand(-1, -1, flat.shape[2], -1)) * weight
            total = value if total is None else total + value
    assert total is not None
    return total


RULES: dict[str, Rule] = {"NonMaxSuppression": _non_max_suppression, "RoiAlign": _roi_align, "DeformConv": _deform_conv}
