"""Sorts and what is made of them, as ops that functions of the runtime compute (`Kind.LIBRARY`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch_mlir import ir

from disc.frontend.call import Call
from disc.frontend.locations import line_text
from disc.frontend.op_builder import OpBuilder, RuleError, Tensor, tensor_type, wrap_dim
from disc.frontend.rules.elementwise import as_tensor, operand
from disc.frontend.rules.indexing import gathered
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


def topk(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    x, count = call.tensor("self"), call.size("k")
    dim = wrap_dim(call.integer("dim"), x.rank)
    if x.dtype == torch.bool:
        raise RuleError("the first of bools, which eager refuses, too")
    if x.rank == 0:
        if count != 1:
            raise RuleError(f"{count} elements of a tensor without dims")
        return x, e.scalar(0, torch.int64)
    e.require("<=", count, x.shape[dim], f"{call.node.target} at {line_text(call.node)} takes k = {count} elements of dim {dim}")
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    return sized_library(e, "disc.dynamic_topk", [x], [(shape, x.dtype), (shape, torch.int64)], dim=dim, largest=call.flag("largest"))


def places_of(e: OpBuilder, call: Call, values: Tensor, lines: Tensor) -> Tensor:
    """How many elements of the sorted lines come before each value."""
    side = call.text("side")
    right = call.flag("right") if side is None else side == "right"
    if call.has("sorter"):
        lines = gathered(e, lines, call.tensor("sorter"), lines.rank - 1)
    if lines.dtype != values.dtype:
        values, lines = (e.convert(each, torch.promote_types(values.dtype, lines.dtype)) for each in (values, lines))
    return library("disc.search", [values, lines], [(values.shape, call.dtype)], right=right)[0]


def search_sorted(e: OpBuilder, call: Call) -> Tensor:
    lines = call.tensor("sorted_sequence")
    return places_of(e, call, searched(e, call, lines), lines)


def bucketize(e: OpBuilder, call: Call) -> Tensor:
    lines = call.tensor("boundaries")
    return places_of(e, call, searched(e, call, lines), lines)


def searched(e: OpBuilder, call: Call, lines: Tensor) -> Tensor:
    """What is searched for; a number as an element, but a fraction among integers, which are compared as floats then."""
    value = operand(call, "self")
    if isinstance(value, Tensor):
        return value
    return as_tensor(e, value, torch.float32 if isinstance(value, float) and not lines.dtype.is_floating_point else lines.dtype)


def grouped(e: OpBuilder, rows: Tensor, matrices: Tensor, ends: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Rows in groups, each group times a matrix of its own."""
    if ends is None or (rows.rank, matrices.rank, ends.rank) != (2, 3, 1):
        raise RuleError("only rows in groups, times a matrix for each group, are multiplied")
    if rows.dtype != matrices.dtype or dtype != rows.dtype:
        raise RuleError(f"groups of {rows.dtype} times {matrices.dtype} as {dtype}")
    return sized_library(e, "disc.dynamic_grouped_dot", [rows, matrices, ends], [((rows.shape[0], matrices.shape[2]), dtype)])[0]


def grouped_mm(e: OpBuilder, call: Call) -> Tensor:
    if call.has("bias"):
        raise RuleError("groups with a bias")
    return grouped(e, call.tensor("self"), call.tensor("mat2"), call.optional_tensor("offs"), call.dtype)


def grouped_dot(e: OpBuilder, call: Call) -> Tensor:
    return grouped(e, call.tensor("rows"), call.tensor("matrices"), call.tensor("ends"), call.dtype)


def grouped_mm_fallback(e: OpBuilder, call: Call) -> Tensor:
    return grouped(e, call.tensor("input"), call.tensor("weight"), call.tensor("offs"), call.dtype)


OVERRIDES: dict[object, Override] = {
    **overrides(Fault.REFUSED, "no lowering to ops that disc has", {
        aten.sort.default: sort, aten.sort.stable: sort, aten.topk.default: topk,
        aten.searchsorted.Tensor: search_sorted, aten.searchsorted.Scalar: search_sorted, aten.bucketize.Scalar: bucketize,
        aten._grouped_mm.default: grouped_mm,
    }),
    **overrides(Fault.WRONG, "other places of NaN, and a comparison of every value with every boundary", {
        aten.bucketize.Tensor: bucketize,
    }),
}  # fmt: skip
# Ops that other packages, or this compiler, register when they are imported, by name.
OF_PACKAGES: dict[str, Override] = {
    "disc.grouped_dot.default": Override(grouped_dot, Fault.REFUSED, "an op of this compiler (frontend/grouped_products.py)"),
    "transformers.grouped_mm_fallback.default": Override(grouped_mm_fallback, Fault.REFUSED, "an op of the package transformers"),
}
