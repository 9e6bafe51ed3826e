"""Sorts and what is made of them, as ops that functions of the runtime compute (`Kind.LIBRARY`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch_mlir import ir

from disc.frontend.call import Call
from disc.frontend.op_builder import OpBuilder, Tensor, tensor_type, wrap_dim
from disc.frontend.rules.overrides import Fault, Override, overrides
from disc.frontend.symbols import Shape

aten = torch.ops.aten
Result = tuple[Shape, torch.dtype]


def library(name: str, operands: Sequence[Tensor], results: Sequence[Result], **numbers: bool | int) -> tuple[Tensor, ...]:
    """A library op whose results have the shape of its first operand."""
    return _results(name, [each.value for each in operands], results, numbers)


def sized_library(
    e: OpBuilder, name: str, operands: Sequence[Tensor], results: Sequence[Result], **numbers: bool | int
) -> tuple[Tensor, ...]:
    """A library op whose results have shapes of their own (`Sizes.GIVEN`)."""
    return _results(name, [*(each.value for each in operands), *(e.shape_operand(shape) for shape, _ in results)], results, numbers)


def _results(name: str, operands: Sequence[ir.Value], results: Sequence[Result], numbers: dict[str, bool | int]) -> tuple[Tensor, ...]:
    i64 = ir.IntegerType.get_signless(64)
    attributes = {
        key: ir.BoolAttr.get(value) if isinstance(value, bool) else ir.IntegerAttr.get(i64, value) for key, value in numbers.items()
    }
    types = [tensor_type(shape, dtype) for shape, dtype in results]
    made = ir.Operation.create(name, results=types, operands=list(operands), attributes=attributes).results
    return tuple(Tensor(value, shape, dtype) for value, (shape, dtype) in zip(made, results, strict=True))


def sort_along(x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    """The values along a dim in order, and where they were; equal ones keep theirs."""
    values, indices = library("disc.sort", [x], [(x.shape, x.dtype), (x.shape, torch.int64)], dim=dim, descending=descending)
    return values, indices


def sort(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    x = call.tensor("self")
    dim = wrap_dim(call.integer("dim"), x.rank)
    if x.rank == 0:
        return x, e.scalar(0, torch.int64)
    return sort_along(x, dim, call.flag("descending"))


OVERRIDES: dict[object, Override] = {
    **overrides(Fault.REFUSED, "no lowering to ops that disc has", {
        aten.sort.default: sort, aten.sort.stable: sort,
    }),
}  # fmt: skip
