"""Layers within `torch.func`, by plain ops: PyTorch's own derivatives and batches of these read sizes as plain integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend import layer_formulas


def is_transformed() -> bool:
    """Whether a transform of `torch.func` is computed."""
    return torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]


def layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *others: object
) -> Tensor:
    shape = list(normalized_shape)
    if not is_transformed() or list(x.shape[x.dim() - len(shape) :]) != shape:
        return torch.layer_norm(x, shape, weight, bias, eps)
    return layer_formulas.native_layer_norm(x, shape, weight, bias, eps)[0]


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *others: object
) -> Tensor:
    if not is_transformed() or x.dim() < 2 or x.shape[1] % num_groups:
        return torch.group_norm(x, num_groups, weight, bias, eps)
    batch, channels, *sizes = x.shape
    space = 1
    for size in sizes:
        space = space * size
    return layer_formulas.native_group_norm(x, weight, bias, batch, channels, space, num_groups, eps)[0]


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return layer_formulas.gelu(x, approximate=approximate) if is_transformed() else F.gelu(x, approximate=approximate)


FORMS: dict[Callable[..., object], Callable[..., object]] = {
    F.layer_norm: layer_norm, torch.layer_norm: layer_norm, F.group_norm: group_norm, torch.group_norm: group_norm, F.gelu: gelu,
}  # fmt: skip
