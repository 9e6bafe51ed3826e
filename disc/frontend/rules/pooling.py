"""Pooling as `reduce_window`: windows, and averages over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils._sympy.functions import FloorDiv
from torch_mlir import ir

from disc.frontend.call import Call
from disc.frontend.op_builder import OpBuilder, Tensor, integers, tensor_type
from disc.frontend.rules.contractions import repeated
from disc.frontend.rules.overrides import Fault, Override, overrides
from disc.frontend.symbols import Shape, Size, to_size

aten = torch.ops.aten


@dataclass(frozen=True)
class PoolingWindow:
    """The sliding window over the last dims; `ceil`: a last window may hang over the end."""

    size: list[int]  # elements, one number per dim, as the others
    stride: list[int]  # elements
    padding: list[int]  # elements on either side
    dilation: list[int]  # elements from tap to tap
    ceil: bool


def window_of(call: Call, count: int) -> PoolingWindow:
    size = repeated(call.integers("kernel_size"), count)
    stride = repeated(call.integers("stride"), count) if call.has("stride") and call.raw("stride") != [] else size
    dilation = repeated(call.integers("dilation"), count) if call.has("dilation") else [1] * count
    return PoolingWindow(size, stride, repeated(call.integers("padding"), count), dilation, call.flag("ceil_mode"))


def reduce_window(
    e: OpBuilder, x: Tensor, window: PoolingWindow, kind: str, initial: bool | int | float, padding: Sequence[int], shape: Shape
) -> Tensor:
    """Slides `window` over the last dims of x; `shape` is PyTorch's result, to which a window in the overhang alone is cut."""
    lead = x.rank - len(window.size)
    # Reaching stride - 1 further gives the rounded-up count of windows.
    high = [pad + (step - 1 if window.ceil else 0) for pad, step in zip(padding, window.stride, strict=True)]
    edges = np.array([(0, 0)] * lead + list(zip(padding, high, strict=True)), dtype=np.int64).reshape(x.rank, 2)
    attributes = {
        "window_dimensions": integers([1] * lead + window.size),
        "window_strides": integers([1] * lead + window.stride),
        "window_dilations": integers([1] * lead + window.dilation),
        "base_dilations": integers([1] * x.rank),
        "padding": ir.DenseElementsAttr.get(edges),
    }
    result_shape = shape
    if window.ceil:
        result_shape = (*shape[:lead], *(ceil_count(size, i, window, padding) for i, size in enumerate(x.shape[lead:])))
    operands = [x.value, e.scalar(initial, x.dtype).value]
    kind_type = tensor_type(result_shape, x.dtype)
    op = ir.Operation.create("stablehlo.reduce_window", results=[kind_type], operands=operands, attributes=attributes, regions=1)
    e.scalar_region(op, kind, x.dtype)
    result = Tensor(op.result, result_shape, x.dtype)
    return e.slice(result, [0] * x.rank, shape, [1] * x.rank)


def ceil_count(size: Size, i: int, window: PoolingWindow, padding: Sequence[int]) -> Size:
    """How many windows start inside, or in the overhang of, a padded dim."""
    reach = window.dilation[i] * (window.size[i] - 1) + 1
    windows: Any = FloorDiv(size + 2 * padding[i] + window.stride[i] - 1 - reach, window.stride[i])
    return to_size(windows + 1)


def spatial(call: Call) -> int:
    return spatial_dims(call.node)


def spatial_dims(node: fx.Node) -> int:
    """How many dims an ATen pooling op slides over, from its name: max_pool2d → 2."""
    return next(count for count in (1, 2, 3) if f"{count}d" in str(node.target))


def average_pool(e: OpBuilder, call: Call) -> Tensor:
    original = call.tensor("self")
    x = e.convert(original, torch.float32) if original.dtype in (torch.float16, torch.bfloat16) else original
    window = window_of(call, spatial(call))
    summed = reduce_window(e, x, window, "add", 0, window.padding, call.shape)
    if call.has("divisor_override"):
        divisor = e.scalar(call.integer("divisor_override"), x.dtype)
    elif not window.ceil and (call.flag("count_include_pad") or not any(window.padding)):
        divisor = e.scalar(math.prod(window.size), x.dtype)
    else:  # positions of the padding count or not, those of the overhang never
        lead, counted = x.rank - len(window.size), call.flag("count_include_pad")
        sizes = [to_size(size + 2 * pad) if counted else size for size, pad in zip(x.shape[lead:], window.padding, strict=True)]
        ones = e.full(1, (*[1] * lead, *sizes), x.dtype)
        padding = [0] * len(sizes) if counted else window.padding
        divisor = reduce_window(e, ones, window, "add", 0, padding, (*[1] * lead, *call.shape[lead:]))
    return e.convert(e.binary("divide", summed, divisor), original.dtype)


OVERRIDES: dict[object, Override] = {
    **overrides(Fault.REFUSED, "windows that hang over the end", {
        aten.avg_pool1d.default: average_pool, aten.avg_pool2d.default: average_pool, aten.avg_pool3d.default: average_pool,
    }),
}  # fmt: skip
