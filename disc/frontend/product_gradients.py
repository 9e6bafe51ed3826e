"""The gradient of running products, in a few scans. PyTorch traces a product for each element of a row, and fixes how many there are.

With y = cumprod(x) and g its gradient, that of x is the sum of all g y from there on, over x, before the first zero; behind it nothing. The
zero itself has the sum of g times the products without it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from disc.frontend.python_kernels import python_kernels

OP = torch.ops.aten.cumprod.default


def cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """`aten.cumprod` of what may have a gradient."""
    if torch._C._are_functorch_transforms_active():  # which differentiate by PyTorch's kernel
        with python_kernels({(OP, DispatchKey.Autograd): None}):
            return OP(x, dim, dtype=dtype)
    return _Products.apply(x if dtype is None else x.to(dtype), dim)  # pyright: ignore[reportReturnType]


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            products = OP(x, dim)
        ctx.dim = dim
        ctx.save_for_backward(x, products)
        return products

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, products = ctx.saved_tensors
        return _by_elements(gradients[0], x, products, ctx.dim), None


def _by_elements(gradient: Tensor, x: Tensor, products: Tensor, dim: int) -> Tensor:
    if not x.dim():
        return gradient
    zeros = x == 0
    count = zeros.cumsum(dim)
    first = zeros & (count == 1)
    without = torch.where(first, 1, x).cumprod(dim)
    before = _from_there_on(gradient * products.conj(), dim) / torch.where(zeros, 1, x).conj()
    return torch.where(first, _from_there_on(gradient * without.conj(), dim), torch.where(count == 0, before, 0))


def _from_there_on(x: Tensor, dim: int) -> Tensor:
    return x.flip(dim).cumsum(dim).flip(dim)
