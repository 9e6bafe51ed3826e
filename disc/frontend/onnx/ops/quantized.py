"""Quantized operators of the standard: values of 8 and 16 bits with scales and zero points."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from disc.frontend.onnx.narrow import encoded, limits
from disc.frontend.onnx.node import Node
from disc.frontend.onnx.ops.structure import axis_of
from disc.frontend.onnx.ops.windows import convolution
from disc.frontend.onnx.tensors import NARROW, is_float
from disc.frontend.onnx.values import Narrow, NodeError, Result

Rule = Callable[[Node], Result]


def _spread(part: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """A scale or zero point in the shape of `x`: one for all, one for each place of `axis`, or one for each block along it."""
    if part.dim() == 0 or (part.dim() == 1 and isinstance(part.shape[0], int) and part.shape[0] == 1 and not block):
        return part.reshape([])
    axis = axis_of(axis, x.dim())
    if not block:
        return part.reshape([-1 if i == axis else 1 for i in range(x.dim())])
    return part.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])


def _dequantize(node: Node) -> Tensor:
    x, scale, zero = node.tensor(0), node.tensor(1), node.optional(2)
    dtype = node.attr_dtype("output_dtype") if node.attr_int("output_dtype", 0) else scale.dtype
    return dequantized(x, scale, zero, node.attr_int("axis", 1), node.attr_int("block_size", 0)).to(dtype)


def dequantized(x: Tensor, scale: Tensor, zero: Tensor | None, axis: int, block: int = 0) -> Tensor:
    if x.is_floating_point():  # decoded
        centered = x if zero is None else x - _spread(zero, x, axis, block)
        return centered.to(scale.dtype) * _spread(scale, x, axis, block)
    centered = x.to(torch.int32) if x.dtype != torch.int32 or zero is not None else x
    if zero is not None:
        centered = centered - _spread(zero, x, axis, block).to(torch.int32)
    return centered.to(scale.dtype) * _spread(scale, x, axis, block)


def _quantize(node: Node) -> Result:
    x, scale, zero = node.tensor(0), node.tensor(1), node.optional(2)
    stated, like = node.attr_int("output_dtype", 0), node.value(2)
    kind = like.kind if isinstance(like, Narrow) else stated if like is None else 0
    if kind in NARROW:
        return _narrowed(node, x, scale, zero, kind)
    dtype = zero.dtype if zero is not None else node.attr_dtype("output_dtype") if stated else torch.uint8
    return quantized(x, scale, zero, dtype, node.attr_int("axis", 1), node.attr_int("block_size", 0))


def _narrowed(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None, kind: int) -> Narrow:
    """Quantized to a type without arithmetic. zero: decoded."""
    axis, block = node.attr_int("axis", 1), node.attr_int("block_size", 0)
    if not is_float(kind):
        small = quantized(x, scale, zero, NARROW[kind], axis, block, limits(kind))
        return Narrow(small, kind)
    ratio = x / _spread(scale, x, axis, block)
    if zero is not None:
        ratio = ratio + _spread(zero, x, axis, block)
    return Narrow(encoded(ratio, kind, saturate=bool(node.attr_int("saturate", 1))), kind)


def quantized(
    x: Tensor, scale: Tensor, zero: Tensor | None, dtype: torch.dtype, axis: int = 0, block: int = 0, range_: tuple[int, int] | None = None
) -> Tensor:
    """Rounded to even, then saturated. range_: the smallest and largest result, where they are not the type's."""
    if dtype not in (torch.int8, torch.uint8, torch.int16, torch.uint16):
        raise NodeError(f"quantization to {str(dtype).removeprefix('torch.')}")
    wide = x.to(scale.dtype) if not x.is_floating_point() else x
    low, high = range_ or (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    y = torch.round(wide / _spread(scale, x, axis, block)).float()
    if zero is not None:
        y = y + _spread(zero, x, axis, block).float()
    return torch.clamp(y, low, high).to(torch.int32).to(dtype)


def _centered(node: Node, place: int, zero: int, axis: int) -> Tensor:
    """An input minus its zero point, as i32."""
    x, point = node.tensor(place).to(torch.int32), node.optional(zero)
    if point is None:
        return x
    if point.dim() == 1 and point.shape[0] != 1:
        point = point.unsqueeze(1) if axis == -2 else point
    return x - (point.reshape([]) if point.numel() == 1 else point).to(torch.int32)


def _matmul_integer(node: Node) -> Tensor:
    return torch.matmul(_centered(node, 0, 2, -2), _centered(node, 1, 3, -1))


def _qlinear_matmul(node: Node) -> Tensor:
    a = _dequantized_factor(node, 0, -2)
    b = _dequantized_factor(node, 3, -1)
    scale, zero = node.tensor(6), node.tensor(7)
    return quantized(torch.matmul(a, b), scale.to(a.dtype).reshape([]) if scale.numel() == 1 else scale, zero, zero.dtype)


def _dequantized_factor(node: Node, place: int, axis: int) -> Tensor:
    x, scale, zero = node.tensor(place), node.tensor(place + 1), node.tensor(place + 2)
    scale = scale.float()
    if scale.dim() == 1 and scale.numel() > 1:
        return dequantized(x, scale, zero, axis)
    return dequantized(x, scale.reshape([]) if scale.numel() == 1 else scale, zero.reshape([]) if zero.numel() == 1 else zero, axis)


def _per_filter(part: Tensor, weight: Tensor) -> Tensor:
    return part.reshape([]) if part.numel() == 1 else part.reshape(-1, *[1] * (weight.dim() - 1))


def _conv_integer(node: Node) -> Tensor:
    x, weight = node.tensor(0), node.tensor(1)
    filters = weight.float() - (_per_filter(node.tensor(3), weight).float() if node.has(3) else 0)
    source = x.float() - (node.tensor(2).float().reshape([]) if node.has(2) else 0)
    products = 2**16  # what the magnitude of one product is below
    count = 1
    for size in weight.shape[1:]:
        count *= int(size)
    exact = torch.float32 if count * products <= 2**24 else torch.float64
    return convolution(node, source.to(exact), filters.to(exact), None).to(torch.int32)


def _qlinear_conv(node: Node) -> Tensor:
    x, weight = node.tensor(0), node.tensor(3)
    source = dequantized(x, node.tensor(1).reshape([]), node.tensor(2).reshape([]), 0)
    scale, zero = _per_filter(node.tensor(4), weight), _per_filter(node.tensor(5), weight)
    filters = (weight.to(torch.int32) - zero.to(torch.int32)).to(scale.dtype) * scale
    bias = node.optional(8)
    if bias is not None:
        bias = bias.to(scale.dtype) * (node.tensor(1).reshape([]) * node.tensor(4).reshape(-1))
        bias = bias.expand(weight.shape[0])
    return quantized(convolution(node, source, filters, bias), node.tensor(6).reshape([]), node.tensor(7).reshape([]), node.tensor(7).dtype)


RULES: dict[str, Rule] = {
    "DequantizeLinear": _dequantize, "QuantizeLinear": _quantize, "MatMulInteger": _matmul_integer, "QLinearMatMul": _qlinear_matmul,
    "ConvInteger": _conv_integer, "QLinearConv": _qlinear_conv,
}  # fmt: skip
