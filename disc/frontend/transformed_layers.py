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


def is_batched() -> bool:
    """Whether the innermost transform is `vmap`."""
    transform = torch._C._functorch.peek_interpreter_stack()  # pyright: ignore[reportAttributeAccessIssue]
    return transform is not None and transform.key() == torch._C._functorch.TransformType.Vmap  # pyright: ignore[reportAttributeAccessIssue]


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    shape = list(normalized_shape)
    if not is_transformed() or list(input.shape[input.dim() - len(shape) :]) != shape:
        return torch.layer_norm(input, shape, weight, bias, eps)
    return layer_formulas.native_layer_norm(input, shape, weight, bias, eps)[0]


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Tensor:
    # Sizes of a batch's elements that are no numbers cannot be read again when a graph is decomposed: PyTorch's own code fixes them.
    plain = is_batched() and any(isinstance(size, torch.SymInt) for size in input.shape)
    if plain or not is_transformed() or input.dim() < 2 or input.shape[1] % num_groups:
        return torch.group_norm(input, num_groups, weight, bias, eps)
    batch, channels, *sizes = input.shape
    space = 1
    for size in sizes:
        space = space * size
    return layer_formulas.native_group_norm(input, weight, bias, batch, channels, space, num_groups, eps)[0]


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    return layer_formulas.gelu(input, approximate=approximate) if is_transformed() else F.gelu(input, approximate=approximate)


FORMS: dict[Callable[..., object], Callable[..., object]] = {
    F.layer_norm: layer_norm, torch.layer_norm: layer_norm, F.group_norm: group_norm, torch.group_norm: group_norm, F.gelu: gelu,
}  # fmt: skip
