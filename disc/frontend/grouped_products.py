"""Products of rows in groups with a matrix each, in types for which PyTorch's op tells no sizes without data.

A form of that op while a module is exported, by an op of this compiler, which is PyTorch's, too, for graphs that are not compiled.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_OPS = torch.library.Library("disc", "FRAGMENT")
_OPS.define("grouped_dot(Tensor rows, Tensor matrices, Tensor ends) -> Tensor")


def _grouped_dot(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    found, begin = rows.new_zeros(rows.shape[0], matrices.shape[2]), 0
    for matrix, end in zip(matrices, ends.tolist(), strict=True):
        found[begin:end] = rows[begin:end] @ matrix
        begin = end
    return found


def _grouped_shape(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    torch._check(rows.shape[1] == matrices.shape[1], lambda: f"rows of {rows.shape[1]} times matrices of {matrices.shape[1]} rows")
    torch._check(ends.shape[0] == matrices.shape[0], lambda: f"{ends.shape[0]} groups of rows for {matrices.shape[0]} matrices")
    return rows.new_empty(rows.shape[0], matrices.shape[2])


_OPS.impl("grouped_dot", _grouped_dot, "CPU")
_OPS.impl("grouped_dot", _grouped_shape, "Meta")


def grouped_mm(
    input: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    own_type = input.dtype == mat2.dtype and out_dtype in (None, input.dtype) and bias is None
    if own_type and (input.dim(), mat2.dim()) == (3, 3) and offs is None:
        return torch.bmm(input, mat2)
    rows = (input.dim(), mat2.dim()) == (2, 3) and offs is not None and offs.dim() == 1 and input.dtype in (torch.float32, torch.float16)
    if own_type and rows and offs is not None:
        return torch.ops.disc.grouped_dot(input, mat2, offs)
    return torch._grouped_mm(input, mat2, offs=offs, bias=bias, out_dtype=out_dtype)  # pyright: ignore  # says what is wrong


FORMS: dict[Callable[..., object], Callable[..., object]] = {torch._grouped_mm: grouped_mm}  # pyright: ignore
