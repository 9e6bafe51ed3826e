"""Operators of `com.microsoft`, as ONNX Runtime's optimizers write them; its list of contrib operators says what they are.

They have no schema here: every attribute is read with its default.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.ops.quantized import dequantized
from disc.frontend.onnx.values import NodeError, Result

Rule = Callable[[Node], Result]


def _gelu(node: Node) -> Tensor:
    return F.gelu(node.tensor(0))


def _bias_gelu(node: Node) -> Tensor:
    return F.gelu(node.tensor(0) + node.tensor(1))


def _fast_gelu(node: Node) -> Tensor:
    x = node.tensor(0)
    return F.gelu(x + node.tensor(1) if node.has(1) else x, approximate="tanh")


def _quick_gelu(node: Node) -> Tensor:
    x = node.tensor(0)
    return x * torch.sigmoid(node.attr_float("alpha", 1.702) * x)


def _fused_matmul(node: Node) -> Tensor:
    if node.attr_int("transBatchA", 0) or node.attr_int("transBatchB", 0):
        raise NodeError("transposed dims of a batch")
    a, b = node.tensor(0), node.tensor(1)
    a = a.transpose(-1, -2) if node.attr_int("transA", 0) else a
    b = b.transpose(-1, -2) if node.attr_int("transB", 0) else b
    alpha = node.attr_float("alpha", 1.0)
    y = torch.matmul(a, b)
    return y if alpha == 1 else y * alpha


def _skip_norm(node: Node, normalize: Callable[[Tensor], Tensor], bias: int) -> Result:
    """The norm of the sum of two tensors, the second of which may be broadcast; the sum is the last result."""
    x = node.tensor(0) + node.tensor(1)
    x = x + node.tensor(bias) if node.has(bias) else x
    y = normalize(x)
    if node.outputs <= 1:
        return y
    if node.outputs <= 3:
        raise NodeError("the mean and the inverse deviation as results")
    return y, None, None, x


def _skip_layer_norm(node: Node) -> Result:
    gamma, beta, epsilon = node.tensor(2), node.optional(3), node.attr_float("epsilon", 1e-12)
    return _skip_norm(node, lambda x: F.layer_norm(x, x.shape[-1:], gamma, beta, epsilon), 4)


def _skip_simplified(node: Node) -> Result:
    gamma, epsilon = node.tensor(2), node.attr_float("epsilon", 1e-12)
    return _skip_norm(node, lambda x: _root_mean_square(x, gamma, epsilon), 3)


def _simplified(node: Node) -> Tensor:
    axis = node.attr_int("axis", -1)
    if axis not in (-1, node.tensor(0).dim() - 1):
        raise NodeError("a norm over several dims")
    return _root_mean_square(node.tensor(0), node.tensor(1), node.attr_float("epsilon", 1e-5))


def _root_mean_square(x: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return (wide * torch.rsqrt((wide * wide).mean(-1, True) + epsilon)).to(x.dtype) * gamma


def _embed_layer_norm(node: Node) -> Result:
    """Inputs: ids of words and segments [batch, length], tables of words, positions and segments, gamma, beta, mask, positions.

    Results: the norm, how many places of the mask are not 0, the sum before the norm.
    """
    ids, mask = node.tensor(0), node.optional(7)
    positions = node.tensor(8) if node.has(8) else torch.arange(ids.shape[1]).unsqueeze(0)
    x = F.embedding(ids, node.tensor(2)) + F.embedding(positions, node.tensor(3))
    if node.has(1) and node.has(4):
        x = x + F.embedding(node.tensor(1), node.tensor(4))
    y = F.layer_norm(x, x.shape[-1:], node.tensor(5), node.tensor(6), node.attr_float("epsilon", 1e-12))
    seen = (mask != 0).sum(1) if mask is not None else torch.zeros(ids.shape[0], dtype=torch.int64)
    return (y, seen.to(torch.int32), x)[: max(1, node.outputs)]


def _matmul_bits(node: Node) -> Tensor:
    """Inputs: a [..., k], packed columns [n, blocks, bytes], scales [n * blocks], zero points (packed, or as scales are)."""
    a, packed, scales, k, n = node.tensor(0), node.tensor(1), node.tensor(2), node.attr_int("K"), node.attr_int("N")
    bits, block = node.attr_int("bits", 4), node.attr_int("block_size")
    if bits not in (4, 8) or node.has(4):
        raise NodeError(f"weights of {bits} bits, or in groups by an index")
    blocks = -(-k // block)
    weight = _unpacked(packed, bits).reshape(n, blocks, block)
    zero = _zero_points(node, n, blocks, bits)
    full = ((weight.to(scales.dtype) - zero) * scales.reshape(n, blocks, 1)).reshape(n, blocks * block)[:, :k]
    y = torch.matmul(a, full.t().to(a.dtype))
    return y + node.tensor(5) if node.has(5) else y


def _zero_points(node: Node, n: int, blocks: int, bits: int) -> Tensor:
    """[n, blocks, 1]."""
    scales = node.tensor(2)
    if not node.has(3):
        return torch.full([n, blocks, 1], 2.0 ** (bits - 1), dtype=scales.dtype)
    stored = node.tensor(3)
    if stored.dtype == torch.uint8:
        stored = _unpacked(stored.reshape(n, -1), bits)[:, :blocks]
    return stored.reshape(n, blocks, 1).to(scales.dtype)


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    """Two values in each byte, the low half first, as bytes; bytes as they are."""
    if bits == 8:
        return packed
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)


def _dequantize(node: Node) -> Tensor:
    return dequantized(node.tensor(0), node.tensor(1), node.optional(2), node.attr_int("axis", 1), node.attr_int("block_size", 0))


RULES: dict[str, Rule] = {
    "Gelu": _gelu, "BiasGelu": _bias_gelu, "FastGelu": _fast_gelu, "QuickGelu": _quick_gelu, "FusedMatMul": _fused_matmul,
    "SkipLayerNormalization": _skip_layer_norm, "SkipSimplifiedLayerNormalization": _skip_simplified,
    "SimplifiedLayerNormalization": _simplified, "EmbedLayerNormalization": _embed_layer_norm, "MatMulNBits": _matmul_bits,
    "DequantizeLinear": _dequantize,
}  # fmt: skip
