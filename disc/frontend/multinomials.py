"""`torch.multinomial`, of weights that are checked: an op of this compiler, and PyTorch's, too, for graphs that are not compiled."""

from __future__ import annotations

import torch
from torch import Tensor

from disc.frontend.eager_strides import Decomposition

aten = torch.ops.aten
_OPS = torch.library.Library("disc", "FRAGMENT")
_OPS.define("check_weights(Tensor weights) -> Tensor")


def _check_weights(weights: Tensor) -> Tensor:
    if not torch.isfinite(weights).all() or (weights < 0).any() or (weights.sum(-1) == 0).any():
        raise RuntimeError("weights must be finite, none negative, and not all 0")
    return weights.clone()


_OPS.impl("check_weights", _check_weights, "CPU")
_OPS.impl("check_weights", torch.empty_like, "Meta")


def multinomial(weights: Tensor, num_samples: int, replacement: bool = False, generator: None = None) -> Tensor:
    """Indices drawn by weight: a place in the cumulative sums, or, without replacement, the first of exponential races."""
    if generator is not None:
        return NotImplemented
    values = weights.to(torch.float32) if weights.dtype in (torch.float16, torch.bfloat16) else weights
    values = torch.ops.disc.check_weights(values)
    if not replacement and num_samples != 1:
        times = aten.exponential(torch.empty_like(values))
        return torch.topk(values / times, num_samples).indices
    ends = values.cumsum(-1)
    places = torch.rand([*values.shape[:-1], num_samples], dtype=values.dtype, device=values.device) * ends[..., -1:]
    index = (ends.unsqueeze(-2) <= places.unsqueeze(-1)).sum(-1)
    return torch.minimum(index, torch.full_like(index, weights.shape[-1] - 1))


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {aten.multinomial.default: multinomial}
