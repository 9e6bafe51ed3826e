"""Attention of `com.microsoft`, with rotary embeddings and caches; layouts are those of ONNX Runtime's list of contrib operators."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.ops.attention import in_groups, join_heads, split_heads
from disc.frontend.onnx.ops.quantized import dequantized
from disc.frontend.onnx.values import NodeError, Number, Result

Rule = Callable[[Node], Result]


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


def _attention(node: Node) -> Result:
    """Inputs: x [batch, length, in], weights [in, 3 * hidden], bias, mask, past [2, batch, heads, before, size], bias of the scores."""
    x, weights = node.tensor(0), node.tensor(1)
    return _projected_attention(node, x, weights, node.optional(2), node.optional(3), node.optional(4), node.optional(5))


def _q_attention(node: Node) -> Result:
    """`Attention` of x and weights of 8 bits: inputs are x, weights, bias, their scales, mask, their zero points, past."""
    x = dequantized(node.tensor(0), node.tensor(3).reshape([]), _one(node.optional(6)), -1)
    scale, zero = node.tensor(4), node.optional(7)
    columns = scale.dim() == 1 and scale.shape[0] != 1
    weights = dequantized(node.tensor(1), scale if columns else scale.reshape([]), zero if columns else _one(zero), -1)
    return _projected_attention(node, x, weights, node.tensor(2), node.optional(5), node.optional(8), None)


def _one(zero: Tensor | None) -> Tensor | None:
    return zero.reshape([]) if zero is not None else None


def _projected_attention(
    node: Node, x: Tensor, weights: Tensor, bias: Tensor | None, mask: Tensor | None, past: Tensor | None, added: Tensor | None
) -> Result:
    if node.attr_int("do_rotary", 0) or node.attr_int("past_present_share_buffer", 0):
        raise NodeError("rotary embeddings, or a cache that is written in place")
    projected = torch.matmul(x, weights)
    projected = projected + bias if bias is not None else projected
    widths = node.attr_ints("qkv_hidden_sizes", [int(weights.shape[1]) // 3] * 3)
    query, key, value = (split_heads(each, node.attr_int("num_heads")) for each in projected.split(widths, -1))
    if past is not None:
        key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
    allowed = _mask(mask, key) if mask is not None else None
    if node.attr_int("unidirectional", 0):
        allowed = _both(allowed, _causal(query.shape[2], key.shape[2]))
    result = join_heads(_attention_of(query, key, value, _masked(allowed, added), node.attr_float("scale", 0.0)))
    return (result, torch.stack([key, value])) if node.outputs > 1 else result


def _both(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one & other


def _masked(allowed: Tensor | None, added: Tensor | None) -> Tensor | None:
    """One mask of what may be seen and what is added to the scores."""
    return added if allowed is None else allowed if added is None else torch.where(allowed, added, -math.inf)


def _mask(mask: Tensor, key: Tensor) -> Tensor:
    """Which keys may be seen. mask: the number of them [batch], or not 0 where they may [batch, total], [batch, length, total]."""
    total = key.shape[2]
    if mask.dim() == 1:
        return (torch.arange(total) < mask.unsqueeze(1)).unsqueeze(1).unsqueeze(1)
    if mask.dim() == 2:
        return (mask != 0).unsqueeze(1).unsqueeze(1)
    return mask.unsqueeze(1) != 0 if mask.dim() == 3 else mask != 0


def _multi_head(node: Node) -> Result:
    """Inputs: query, key, value [batch, length, hidden], bias [3 * hidden], padding mask, bias of the scores, cached keys and values
    [batch, heads, before, size]."""
    if not (node.has(1) and node.has(2)) or node.has(8) or node.has(9) or node.outputs > 3:
        raise NodeError("packed keys and values, or a cache that is written in place")
    heads, parts = node.attr_int("num_heads"), [node.tensor(place) for place in range(3)]
    if node.has(3):
        parts = [each + bias for each, bias in zip(parts, node.tensor(3).split([int(each.shape[-1]) for each in parts]), strict=True)]
    query, key, value = (split_heads(each, heads) if each.dim() == 3 else each for each in parts)
    if node.has(6):
        key, value = torch.cat([node.tensor(6), key], 2), torch.cat([node.tensor(7), value], 2)
    allowed = _mask(node.tensor(4), key) if node.has(4) else None
    if node.attr_int("unidirectional", 0):
        allowed = _both(allowed, _causal(query.shape[2], key.shape[2]))
    result = join_heads(_attention_of(query, key, value, _masked(allowed, node.optional(5)), node.attr_float("scale", 0.0)))
    return (result, key, value) if node.outputs > 1 else result


def _group_query(node: Node) -> Result:
    """Inputs: query [batch, length, heads * size] (or keys and values behind it), key, value, cached ones [batch, heads, before, size], how
    many keys each element of the batch has less 1, how many the longest has, tables of cosines and sines, positions, bias of the scores.

    Each element's new keys lie behind its own cached ones, which may be fewer than the cache has; results of the cache are as long as
    the cache and the new ones together.
    """
    if any(node.has(place) for place in range(11, 16)) or node.outputs > 3:
        raise NodeError("sinks, scales of a cache, norms of heads, or scores as a result")
    plain = {"softcap": 0.0, "smooth_softmax": 0.0, "sliding_window_cache": 0.0, "kv_cache_bit_width": 0.0}
    if any(node.attr_float(name, default) not in (0, -1) for name, default in plain.items()):
        raise NodeError(f"one of {', '.join(plain)}")
    heads, groups = node.attr_int("num_heads"), node.attr_int("kv_num_heads")
    if node.has(1):
        query, key, value = (split_heads(node.tensor(place), count) for place, count in enumerate((heads, groups, groups)))
    else:
        packed = split_heads(node.tensor(0), heads + 2 * groups)
        query, key, value = packed.split([heads, groups, groups], 1)
    length: Number = query.shape[2]
    before = torch.clamp(node.tensor(5).reshape(-1).long() + 1 - length, min=0)  # keys that each element has cached
    at = before.unsqueeze(1) + torch.arange(length)  # [batch, length]
    if node.attr_int("do_rotary", 0):
        turned, interleaved = node.tensor(9) if node.has(9) else at, bool(node.attr_int("rotary_interleaved", 0))
        cosines, sines = (F.embedding(turned, node.tensor(place)).unsqueeze(1) for place in (7, 8))
        query, key = (_rotated(each, cosines, sines, interleaved) for each in (query, key))
    if node.has(3):
        places = at.unsqueeze(1).unsqueeze(-1).expand(key.shape)
        key, value = (torch.scatter(F.pad(node.tensor(3 + i), [0, 0, 0, length]), 2, places, new) for i, new in enumerate((key, value)))
    keys = torch.arange(key.shape[2])
    last = at if node.attr_int("causal", 1) else node.tensor(5).reshape(-1, 1).expand(-1, length)  # that each query sees
    allowed = keys <= last.unsqueeze(-1)
    window = node.attr_int("local_window_size", -1)
    if window >= 0:
        allowed = allowed & (keys > at.unsqueeze(-1) - window)
    mask = _masked(allowed.unsqueeze(1), node.optional(10))
    result = join_heads(_attention_of(query, key, value, mask, node.attr_float("scale", 0.0)))
    return (result, key, value) if node.outputs > 1 else result


RULES: dict[str, Rule] = {
    "RotaryEmbedding": _rotary, "Attention": _attention, "QAttention": _q_attention, "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _group_query,
}  # fmt: skip
