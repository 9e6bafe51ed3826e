"""Forms of ops within the transforms of `torch.func`, where PyTorch's own kernels ask for sizes as integers: graphs of torch.compile
would be compiled anew for every size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decomposition_table as _PYTORCH

aten = torch.ops.aten


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """One product and a sum. PyTorch's asks 3-D tensors with a bias for their sizes, and its derivative forward any."""
    product = torch.matmul(x, weight.t())
    return product if bias is None else product + bias


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, cudnn: bool = True
) -> Tensor:
    del cudnn
    return _PYTORCH[aten.native_layer_norm.default](x, shape, weight, bias, eps)[0]


FORMS: Mapping[tuple[torch._ops.OpOverload, DispatchKey], Callable[..., object]] = {
    (op, DispatchKey.FuncTorchDynamicLayerFrontMode): form
    for op, form in ((aten.linear.default, _linear), (aten.layer_norm.default, _layer_norm))
}
