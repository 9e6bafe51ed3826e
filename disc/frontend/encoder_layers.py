"""Decompositions of the ops that `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call on their fast paths in inference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules import transformer

from disc.frontend.eager_strides import Decomposition

aten = torch.ops.aten
# What a mask says, by the number that PyTorch gives its kind.
OF_POSITIONS, OF_PADDING = 0, 1


@contextmanager
def masks_as_given() -> Iterator[None]:
    """`nn.TransformerEncoder` and `nn.TransformerDecoder` compare a mask with the causal one, and branch on the result; whether they use a
    mask or know that it is the causal one, the result is the same. Here they use it, unless they are told `is_causal=True`."""
    original = transformer._detect_is_causal_mask  # pyright: ignore[reportPrivateUsage]

    def told(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    transformer._detect_is_causal_mask = told  # pyright: ignore[reportPrivateUsage]
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = original  # pyright: ignore[reportPrivateUsage]


def heads_of(x: Tensor, heads: int) -> Tensor:
    """[batch, length, heads * size] → [batch, heads, length, size]"""
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(1, 2)


def hidden(mask: Tensor, kind: int | None) -> Tensor:
    """The mask against [batch, heads, queries, keys]. True, or any number but 0, as eager has it: the key is not looked at."""
    mask = mask.to(torch.bool)
    if kind == OF_POSITIONS:
        return mask.reshape(1, 1, *mask.shape)
    return mask[:, None, None, :] if kind == OF_PADDING else mask


def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor,
    proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True, average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The projected result, and the weights of the heads or their mean."""
    if query.dim() != 3:
        return NotImplemented
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (heads_of(F.linear(x, weight, bias), num_head) for x, weight, bias in parts)
    scores = torch.matmul(q * (1 / math.sqrt(q.shape[-1])), k.transpose(-2, -1))
    if mask is not None:
        scores = torch.where(hidden(mask, mask_type), -math.inf, scores)
    weights = torch.softmax(scores, -1)
    result = F.linear(torch.matmul(weights, v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, weights.mean(1) if average_attn_weights else weights


def encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor,
    use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor,
    ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor, mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    def first_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    activation: Callable[[Tensor], Tensor] = F.gelu if use_gelu else F.relu
    x = first_norm(src) if norm_first else src
    both = multi_head_attention(
        x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, need_weights=False, mask_type=mask_type
    )
    if both is NotImplemented:
        return NotImplemented
    x = both[0] + src
    x = x if norm_first else first_norm(x)
    inner = activation(F.linear(second_norm(x) if norm_first else x, ffn_weight_1, ffn_bias_1))
    x = F.linear(inner, ffn_weight_2, ffn_bias_2) + x
    return x if norm_first else second_norm(x)


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    aten._native_multi_head_attention.default: multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
