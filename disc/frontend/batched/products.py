"""What whole weights take part in: products over rows whose number differs from call to call, as their gradients are, and transposes, which
programs read along their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from disc.errors import DiscError

CompileProduct = Callable[[torch.nn.Module, tuple[Tensor, ...]], Callable[..., object]]  # every dim is dynamic


class RowProduct(torch.nn.Module):
    """[rows, m], [rows, n] → [m, n]."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left.t() @ right


class Transpose(torch.nn.Module):
    """[m, n] → [n, m], row-major."""

    def forward(self, matrix: Tensor) -> Tensor:
        return matrix.t().contiguous()


TITLES = {RowProduct: "gradients of products", Transpose: "transposes of weights"}


class Products:
    """These as compiled programs, one for each dtype, made when it is first needed. refusals: of what there is none, so that
    PyTorch computes it, and why."""

    def __init__(self, compile_product: CompileProduct) -> None:
        self._compile = compile_product
        self._compiled: dict[tuple[type[torch.nn.Module], torch.dtype], Callable[..., object]] = {}
        self.refusals: list[tuple[str, str]] = []

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        """[rows, m], [rows, n] → [m, n], in the dtype of both."""
        return self._found(RowProduct, left, right)

    def transpose(self, matrix: Tensor) -> Tensor:
        """[m, n] → [n, m], row-major."""
        return self._found(Transpose, matrix)

    def _found(self, kind: type[torch.nn.Module], *given: Tensor) -> Tensor:
        name = kind, given[0].dtype
        found = self._compiled.get(name)
        if found is None:
            found = self._compiled[name] = self._made(
                kind, *(torch.ones(5, 3 + place, dtype=each.dtype) for place, each in enumerate(given))
            )
        return cast("Tensor", found(*given))

    def _made(self, kind: type[torch.nn.Module], *example: Tensor) -> Callable[..., object]:
        try:
            return self._compile(kind(), example)
        except DiscError as error:
            self.refusals.append((TITLES[kind], f"{type(error).__name__}: {error}"))
            return kind()
