"""`Attention` of the standard (operator sets 23 and later)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.values import NodeError, Number, Result

Rule = Callable[[Node], Result]


def split_heads(x: Tensor, count: int) -> Tensor:
    """[batch, length, heads * size] → [batch, heads, length, size]."""
    batch, length, width = x.shape
    return x.reshape(batch, length, count, width // count).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[batch, heads, length, size] → [batch, length, heads * size]."""
    batch, heads, length, size = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * size)


def in_groups(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with a head for each of the query's: each of theirs serves a group of them."""
    groups = int(query.shape[1]) // int(key.shape[1])
    return (key, value) if groups == 1 else (key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1))


def _attention(node: Node) -> Result:
    flat = node.tensor(0).dim() == 3
    query, key, value = (node.tensor(place) for place in range(3))
    if flat:
        counts = (node.attr_int("q_num_heads"), node.attr_int("kv_num_heads"), node.attr_int("kv_num_heads"))
        query, key, value = (split_heads(x, count) for x, count in zip((query, key, value), counts, strict=True))
    past: Number = 0
    if node.has(4):
        past = node.tensor(4).shape[2]
        key, value = torch.cat([node.tensor(4), key], 2), torch.cat([node.tensor(5), value], 2)
    present = (key, value)
    scale = node.attr_float("scale") if node.given("scale") else 1 / math.sqrt(int(query.shape[-1]))
    key, value = in_groups(query, key, value)
    allowed, added = _masks(node, query, key, past)
    if node.attr_float("softcap") or node.outputs > 3 or node.has(6) or node.given("softmax_precision"):
        result, scores = _in_steps(node, query, key, value, allowed, added, scale)
    else:
        result, scores = F.scaled_dot_product_attention(query, key, value, attn_mask=_one_mask(allowed, added), scale=scale), None
    result = join_heads(result) if flat else result
    return (result, *present, scores) if node.outputs > 1 else result


def _masks(node: Node, query: Tensor, key: Tensor, past: Number) -> tuple[Tensor | None, Tensor | None]:
    """What each query may see (bool), and what is added to the scores; all broadcast to [batch, heads, length, total]."""
    allowed: Tensor | None = None
    added: Tensor | None = None
    total = key.shape[2]
    if node.has(3):
        mask = node.tensor(3)
        if isinstance(total, int) and isinstance(mask.shape[-1], int) and mask.shape[-1] < total:
            mask = F.pad(mask, [0, total - mask.shape[-1]], value=False if mask.dtype == torch.bool else -math.inf)
        allowed, added = (mask, None) if mask.dtype == torch.bool else (None, mask)
    places, rows = torch.arange(total), torch.arange(query.shape[2]).unsqueeze(1)
    offset: Number | Tensor = past
    if node.has(6):
        lengths = node.tensor(6).reshape(-1, 1, 1, 1)
        allowed = _both(allowed, places < lengths)
        offset = lengths - query.shape[2]
    if node.attr_int("is_causal"):
        allowed = _both(allowed, places <= rows + offset)
    for name, ahead in (("left_window_size", False), ("right_window_size", True)):
        width = node.attr_int(name, -1)
        if width >= 0:
            apart = places - rows - offset if ahead else rows + offset - places
            allowed = _both(allowed, apart <= width)
    return allowed, added


def _both(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one & other


def _one_mask(allowed: Tensor | None, added: Tensor | None) -> Tensor | None:
    if allowed is None or added is None:
        return allowed if added is None else added
    return torch.where(allowed, added, torch.full_like(added, -math.inf))


def _in_steps(
    node: Node, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, added: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """The result, and the scores that `qk_matmul_output_mode` wants: products, capped, biased, or softmax. A query that sees nothing
    gives 0."""
    if node.attr_float("softcap") < 0:
        raise NodeError("its soft cap is negative", unsupported=False)
    kept = [torch.matmul(query * math.sqrt(scale), (key * math.sqrt(scale)).transpose(-1, -2))]
    cap = node.attr_float("softcap")
    kept.append(torch.tanh(kept[-1] / cap) * cap if cap else kept[-1])
    mask = _one_mask(allowed, added)
    if mask is None:
        kept.append(kept[-1])
    else:
        kept.append(torch.where(mask, kept[-1], -math.inf) if mask.dtype == torch.bool else kept[-1] + mask)
    dtype = node.attr_dtype("softmax_precision") if node.given("softmax_precision") else query.dtype
    wide = kept[-1].to(dtype)
    blind = torch.isneginf(wide.amax(-1, True)) if mask is not None else None
    shares = torch.softmax(wide, -1)
    shares = (torch.where(blind, torch.zeros_like(shares), shares) if blind is not None else shares).to(query.dtype)
    kept.append(shares)
    return torch.matmul(shares, value), kept[node.attr_int("qk_matmul_output_mode")]


RULES: dict[str, Rule] = {"Attention": _attention}
