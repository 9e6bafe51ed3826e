"""Products over rows whose number differs from call to call, as gradients of weights are."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from disc.errors import DiscError

CompileProduct = Callable[[torch.nn.Module, tuple[Tensor, Tensor]], Callable[[Tensor, Tensor], object]]  # every dim is dynamic


class RowProduct(torch.nn.Module):
    """[rows, m], [rows, n] → [m, n]."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left.t() @ right


class Products:
    """The product as a compiled program, one for each dtype, made when it is first needed. refusals: why there is none for a dtype; PyTorch
    computes its products then."""

    def __init__(self, compile_product: CompileProduct) -> None:
        self._compile = compile_product
        self._compiled: dict[torch.dtype, Callable[[Tensor, Tensor], object]] = {}
        self.refusals: dict[torch.dtype, str] = {}

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        """[rows, m], [rows, n] → [m, n], in the dtype of both."""
        found = self._compiled.get(left.dtype)
        if found is None:
            found = self._compiled[left.dtype] = self._made(left.dtype)
        return cast("Tensor", found(left, right))

    def _made(self, dtype: torch.dtype) -> Callable[[Tensor, Tensor], object]:
        try:
            return self._compile(RowProduct(), (torch.ones(5, 3, dtype=dtype), torch.ones(5, 4, dtype=dtype)))
        except DiscError as error:
            self.refusals[dtype] = f"{type(error).__name__}: {error}"
            return RowProduct()
