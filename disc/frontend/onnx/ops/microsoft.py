"""Operators of `com.microsoft`, as ONNX Runtime's optimizers write them; its list of contrib operators says what they are.

They have no schema here: every attribute is read with its default.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.ops.attention import in_groups, join_heads, split_heads
from disc.frontend.onnx.ops.quantized import dequantized
from disc.frontend.onnx.values import NodeError, Number, Result

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


# --- attention --------------------------------------------------------------------------------------------------------------------


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor, interleaved: bool) -> Tensor:
    """x: [batch, heads, length, size]; cosines, sines: [batch or 1, 1, length, half of what is rotated of size]."""
    width = 2 * int(cosines.shape[-1])
    turned, rest = x[..., :width], x[..., width:]
    if interleaved:
        even, odd = turned[..., 0::2], turned[..., 1::2]
        y = torch.stack([even * cosines - odd * sines, odd * cosines + even * sines], -1).flatten(-2)
    else:
        low, high = turned.chunk(2, -1)
        y = torch.cat([low * cosines - high * sines, high * cosines + low * sines], -1)
    return y if width == x.shape[-1] else torch.cat([y, rest], -1)


def _rotary(node: Node) -> Tensor:
    """Inputs: x [batch, length, hidden] or [batch, heads, length, size], positions [1] or [batch, length], tables of cosines and sines."""
    x, positions, cosines, sines = node.tensors()
    if node.attr_float("scale", 1.0) != 1:
        raise NodeError("a scale")
    heads = node.attr_int("num_heads", 0)
    rotated = node.attr_int("rotary_embedding_dim", 0) or 2 * int(cosines.shape[-1])
    split = x if x.dim() == 4 else split_heads(x, heads or int(x.shape[-1]) // rotated)
    if positions.dim() == 1:
        positions = (positions + torch.arange(split.shape[2])).unsqueeze(0)
    turns = [F.embedding(positions, table).unsqueeze(1) for table in (cosines, sines)]
    y = _rotated(split, turns[0], turns[1], bool(node.attr_int("interleaved", 0)))
    return y if x.dim() == 4 else join_heads(y)


def _attention_of(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """All [batch, heads, length, size]."""
    key, value = in_groups(query, key, value)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale or None)


def _causal(length: Number, total: Number) -> Tensor:
    """[length, total]: the last query sees all."""
    return torch.arange(total) <= torch.arange(length).unsqueeze(1) + (total - length)


def _attention(node: Node) -> Tensor:
    """Inputs: x [batch, length, in], weights [in, 3 * hidden], bias, mask [batch, length] of 0 and 1."""
    x, weights, mask, past = node.tensor(0), node.tensor(1), node.optional(3), node.has(4)
    if past or node.has(5) or node.outputs > 1 or node.given("qkv_hidden_sizes") or node.attr_int("do_rotary", 0):
        raise NodeError("a past, an attention bias, rotary embeddings, or hidden sizes of its own")
    projected = torch.matmul(x, weights)
    projected = projected + node.tensor(2) if node.has(2) else projected
    query, key, value = (split_heads(each, node.attr_int("num_heads")) for each in projected.chunk(3, -1))
    masked = _mask(mask, x) if mask is not None else None
    if node.attr_int("unidirectional", 0):
        causal = _causal(x.shape[1], x.shape[1])
        masked = causal if masked is None else masked & causal
    return join_heads(_attention_of(query, key, value, masked, node.attr_float("scale", 0.0)))


def _mask(mask: Tensor, x: Tensor) -> Tensor:
    if mask.dim() == 1:
        return (torch.arange(x.shape[1]) < mask.unsqueeze(1)).reshape(x.shape[0], 1, 1, x.shape[1])
    if mask.dim() == 2:
        return mask.reshape(mask.shape[0], 1, 1, mask.shape[1]) != 0
    return mask.unsqueeze(1) != 0 if mask.dim() == 3 else mask != 0


def _multi_head(node: Node) -> Result:
    """Inputs: query, key, value [batch, length, hidden], bias [3 * hidden], padding mask [batch, length], bias of the scores."""
    if not (node.has(1) and node.has(2)) or any(node.has(place) for place in (4, 6, 7)) or node.outputs > 1:
        raise NodeError("packed or cached keys and values, or a padding mask")
    heads, parts = node.attr_int("num_heads"), [node.tensor(place) for place in range(3)]
    if node.has(3):
        parts = [each + bias for each, bias in zip(parts, node.tensor(3).split([int(each.shape[-1]) for each in parts]), strict=True)]
    query, key, value = (split_heads(each, heads) if each.dim() == 3 else each for each in parts)
    mask = node.optional(5)
    if node.attr_int("unidirectional", 0):
        causal = _causal(query.shape[2], key.shape[2])
        mask = causal if mask is None else torch.where(causal, mask, -torch.inf)
    return join_heads(_attention_of(query, key, value, mask, node.attr_float("scale", 0.0)))


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
    "SimplifiedLayerNormalization": _simplified, "RotaryEmbedding": _rotary, "Attention": _attention, "MultiHeadAttention": _multi_head,
    "MatMulNBits": _matmul_bits, "DequantizeLinear": _dequantize,
}  # fmt: skip
