"""Gradients of losses, element by element, where PyTorch scatters into a table of zeros: three more passes over memory. And of normed
weights, which PyTorch has as one op."""

from __future__ import annotations

import torch
from torch import Tensor

from disc.frontend.eager_strides import Decomposition

aten = torch.ops.aten
MEAN = 1  # of PyTorch's numbers of reductions


def negative_log_likelihood_backward(
    gradient: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total_weight: Tensor
) -> Tensor:
    """-gradient at the class that is meant, 0 elsewhere. x: [classes] or [batch, classes, ...]."""
    dim = 0 if x.dim() < 2 else 1
    if reduction == MEAN:
        gradient = gradient / total_weight
    if x.dim() == 1 and target.dim() > 0:
        target = target[0]
    target = target.unsqueeze(dim)
    if x.dim() > gradient.dim() > 0:
        gradient = gradient.unsqueeze(dim)
    classes = [1] * dim + [-1] + [1] * (x.dim() - dim - 1)
    if weight is not None:
        gradient = gradient * weight.reshape(classes)
    meant = (torch.arange(x.shape[dim]).reshape(classes) == target) & (target != ignore_index)
    return torch.where(meant, -gradient, 0.0).to(x.dtype)


def weight_norm_backward(gradient: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """By v and g, of the weight g * v / norms, where norms are those of v over all dims but `dim`."""
    others = [each for each in range(v.dim()) if each != dim % v.dim()]
    along = (gradient * v).sum(others, keepdim=True) / norms
    return g / norms * (gradient - v * (along / norms)), along


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    aten.nll_loss_backward.default: negative_log_likelihood_backward,
    aten.nll_loss2d_backward.default: negative_log_likelihood_backward,
    aten._weight_norm_interface_backward.default: weight_norm_backward,
}
