"""Operators of `com.microsoft` on values of 8 bits, as ONNX Runtime's tools for quantizing a model write them.

A value is three inputs: x, scale, zero point, which may be left out. Scales and zero points are one for all elements, but those of weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.ops.quantized import dequantized, quantized
from disc.frontend.onnx.ops.structure import axis_of
from disc.frontend.onnx.values import NodeError

Rule = Callable[[Node], Tensor]


def _value(node: Node, place: int) -> Tensor:
    """The numbers that input `place` stands for, in f32."""
    return dequantized(node.tensor(place), _one(node, place + 1), _zero(node, place + 2), 0)


def _one(node: Node, place: int) -> Tensor:
    """A scale."""
    scale = node.tensor(place)
    if scale.numel() != 1:
        raise NodeError(f"input {place}: a scale for each channel")
    return scale.reshape([])


def _zero(node: Node, place: int) -> Tensor | None:
    return node.tensor(place).reshape([]) if node.has(place) else None


def _stored(node: Node, y: Tensor, place: int) -> Tensor:
    """`y` in the type of the first quantized input, by the scale at `place` and the zero point behind it."""
    zero = _zero(node, place + 1)
    dtype = zero.dtype if zero is not None else node.tensor(0).dtype
    return quantized(y, _one(node, place), zero, dtype)


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    return lambda node: _stored(node, function(_value(node, 0), _value(node, 3)), 6)


def _unary(function: Callable[[Node, Tensor], Tensor]) -> Rule:
    return lambda node: _stored(node, function(node, _value(node, 0)), 3)


def _global_average(node: Node, x: Tensor) -> Tensor:
    places = range(1, x.dim() - 1) if node.attr_int("channels_last", 0) else range(2, x.dim())
    return x.mean(list(places), keepdim=True)


def _softmax(node: Node, x: Tensor) -> Tensor:
    """Before set 13 of the standard, over all dims from the axis on."""
    axis, opset = axis_of(node.attr_int("axis", -1), x.dim()), node.attr_int("opset")
    if opset < 13 and axis != x.dim() - 1:
        raise NodeError("a softmax over several dims")
    return torch.softmax(x, axis)


def _concatenate(node: Node) -> Tensor:
    """Inputs: scale and zero point of the result, then the values."""
    parts = [_value(node, place) for place in range(2, len(node.inputs), 3)]
    return quantized(torch.cat(parts, node.attr_int("axis")), _one(node, 0), _zero(node, 1), node.tensor(1).dtype)


def _gemm(node: Node) -> Tensor:
    """Inputs: a, b, whose columns may have a scale each, a bias in i32 by the product of the scales, scale and zero point of the result;
    without these the result is f32."""
    a, b, scale = _value(node, 0), node.tensor(3), node.tensor(4)
    columns = scale.numel() != 1
    b = b.t() if node.attr_int("transB", 0) else b
    zero = node.optional(5)
    weight = dequantized(b, scale if columns else scale.reshape([]), zero if columns or zero is None else zero.reshape([]), 1)
    y = torch.matmul(a.t() if node.attr_int("transA", 0) else a, weight) * node.attr_float("alpha", 1.0)
    if node.has(6):
        y = y + node.tensor(6).to(y.dtype) * (_one(node, 1) * (scale if columns else scale.reshape([])))
    return _stored(node, y, 7) if node.has(7) else y


def _centered(x: Tensor, zero: Tensor | None) -> Tensor:
    """In i32."""
    return x.to(torch.int32) - (zero.to(torch.int32) if zero is not None else 0)


def _product(a: Tensor, b: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Of centered integers, as numbers."""
    y = torch.matmul(a, b).to(scale.dtype) * scale
    return y + bias if bias is not None else y


def _integer_to_float(node: Node) -> Tensor:
    """Inputs: a, b, their scales, their zero points, bias."""
    a, b = _centered(node.tensor(0), _zero(node, 4)), _centered(node.tensor(1), node.optional(5))
    return _product(a, b, _one(node, 2) * node.tensor(3), node.optional(6))


def _dynamic_matmul(node: Node) -> Tensor:
    """Inputs: a in f32, which is quantized to u8 by its own range, b, its scale, its zero point, bias."""
    x = node.tensor(0)
    low, high = torch.clamp(x.amin(), max=0), torch.clamp(x.amax(), min=0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, 1.0, scale)
    zero = torch.clamp(torch.round(-low / scale), 0, 255).to(torch.int32).to(torch.uint8)
    left = _centered(quantized(x, scale, zero, torch.uint8), zero)
    return _product(left, _centered(node.tensor(1), node.optional(3)), scale * node.tensor(2), node.optional(4))


def _quantize(node: Node) -> Tensor:
    x, zero = node.tensor(0), node.optional(2)
    return quantized(x, node.tensor(1), zero, zero.dtype if zero is not None else torch.uint8, node.attr_int("axis", 1))


RULES: dict[str, Rule] = {
    "QLinearAdd": _binary(torch.add), "QLinearMul": _binary(torch.mul), "QLinearSigmoid": _unary(lambda node, x: torch.sigmoid(x)),
    "QLinearLeakyRelu": _unary(lambda node, x: F.leaky_relu(x, node.attr_float("alpha", 0.01))), "QLinearSoftmax": _unary(_softmax),
    "QLinearGlobalAveragePool": _unary(_global_average), "QLinearConcat": _concatenate, "QGemm": _gemm,
    "MatMulIntegerToFloat": _integer_to_float, "DynamicQuantizeMatMul": _dynamic_matmul, "QuantizeLinear": _quantize,
}  # fmt: skip
