"""Elements at places: gathers and scatters of StableHLO, and where a mask is true."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from torch_mlir import ir

from disc.frontend.checked_values import ROUNDED
from disc.frontend.op_builder import OpBuilder, Tensor, integers, is_static, tensor_type
from disc.frontend.rules.reductions import cumulative
from disc.frontend.rules.views import slice_along
from disc.frontend.symbols import Shape, Size, product, to_size
from disc.ir.op_table import WHAT

INDEX = torch.int64


def take(e: OpBuilder, x: Tensor, indices: Tensor, dims: Sequence[int], vector: bool) -> Tensor:
    """x at `indices`: dims named by `dims` are indexed (the last dim of indices when `vector`), the others are kept whole and come last."""
    leading = indices.shape[:-1] if vector else indices.shape
    kept = [i for i in range(x.rank) if i not in dims]
    shape = (*leading, *(x.shape[i] for i in kept))
    sizes: Shape = tuple(1 if i in dims else size for i, size in enumerate(x.shape))
    offset = list(range(len(leading), len(shape)))
    attribute = ir.Attribute.parse(
        f"#stablehlo.gather<offset_dims = {offset}, collapsed_slice_dims = {sorted(dims)}, start_index_map = {list(dims)}, "
        f"index_vector_dim = {len(leading)}>"
    )
    if is_static(sizes) and all(x.shape[i] != 0 for i in dims):  # a static slice must fit, also where none is taken
        slices = integers([int(size) for size in sizes if isinstance(size, int)])
        return e.op("stablehlo.gather", [x.value, indices.value], shape, x.dtype, dimension_numbers=attribute, slice_sizes=slices)
    operands = [x.value, indices.value, e.integer_operand(sizes)]
    return e.op("stablehlo.dynamic_gather", operands, shape, x.dtype, dimension_numbers=attribute)


def checked(e: OpBuilder, indices: Tensor, size: Size, what: str) -> Tensor:
    """`indices`, which must be from 0 to below `size`, or the call fails. what: why, in the words of `WHAT`."""
    found = take(e, e.iota((size,), 0, indices.dtype), indices, [0], vector=False)
    found.value.owner.attributes[WHAT] = ir.StringAttr.get(what)
    return found


def required(e: OpBuilder, holds: Tensor, values: Tensor, what: str) -> Tensor:
    """`values`, where `holds` is true of all of them, or the call fails. what: the message, with {actual} for how many do not, at least."""
    place = checked(e, e.select(holds, number(e, 0), number(e, 1)), 1, what)
    return e.select(e.compare("eq", place, number(e, 0)), values, e.scalar(0, values.dtype))


def between(e: OpBuilder, values: Tensor, most: float, what: str) -> Tensor:
    """`values`, floats, which must be from 0 to `most`, 1 or infinity, or the call fails. what: the message; the value is added."""
    zero, limit = (e.scalar(each, values.dtype) for each in (0.0, most))
    holds = e.binary("and", e.compare("ge", values, zero), e.compare("le", values, limit))
    outside = e.select(holds, number(e, 0), e.convert(e.unary("floor", values), INDEX))
    return e.select(e.compare("eq", checked(e, outside, 1, what + ROUNDED), number(e, 0)), values, zero)


def scatter_at(e: OpBuilder, x: Tensor, indices: Tensor, updates: Tensor, dims: Sequence[int], vector: bool, kind: str | None) -> Tensor:
    """x with `updates` ([index dims..., kept dims...]) written or combined at `indices` of `dims`."""
    leading = indices.rank - vector
    window = list(range(leading, updates.rank))
    attribute = ir.Attribute.parse(
        f"#stablehlo.scatter<update_window_dims = {window}, inserted_window_dims = {sorted(dims)}, "
        f"scatter_dims_to_operand_dims = {list(dims)}, index_vector_dim = {leading}>"
    )
    attributes = {"scatter_dimension_numbers": attribute}
    operands = [x.value, indices.value, updates.value]
    op = ir.Operation.create(
        "stablehlo.scatter", results=[tensor_type(x.shape, x.dtype)], operands=operands, attributes=attributes, regions=1
    )
    e.scalar_region(op, kind, x.dtype)
    return Tensor(op.result, x.shape, x.dtype)


def number(e: OpBuilder, value: int) -> Tensor:
    return e.scalar(value, INDEX)


def with_room(e: OpBuilder, size: Size) -> Tensor:
    """Zeros, with one place behind for what is to be dropped."""
    return e.full(0, (to_size(sympy.sympify(size) + 1),), INDEX)


def without_last(e: OpBuilder, x: Tensor, size: Size) -> Tensor:
    return slice_along(e, x, 0, 0, size)


def as_mask(e: OpBuilder, x: Tensor) -> Tensor:
    return e.compare("ne", x, e.scalar(0, x.dtype)) if x.dtype != torch.bool else x


def positions(e: OpBuilder, mask: Tensor, size: Size | None, what: str) -> Tensor:
    """[n] i64: where the elements of a mask are true, by their row-major numbers, in order.

    size: what PyTorch calls n, None where it has no name for it.
    """
    count = product(mask.shape)
    flat = e.reshape(mask, (count,))
    marks = e.convert(flat, INDEX)
    found = e.bind(e.reduce(marks, "add", 0, [0]), size, what, most=count)
    before = e.binary("subtract", cumulative(e, marks, 0, "sum"), number(e, 1))
    places = e.select(flat, before, e.size_scalar(found, INDEX))
    return without_last(e, scatter_at(e, with_room(e, found), places, e.iota((count,), 0, INDEX), [0], False, None), found)


def coordinates(e: OpBuilder, numbers: Tensor, shape: Shape) -> list[Tensor]:
    """The index along each dim of elements that are given by their row-major numbers."""
    found: list[Tensor] = []
    for dim, size in enumerate(shape):
        behind = product(shape[dim + 1 :])
        along = numbers if behind == 1 else e.binary("divide", numbers, e.size_scalar(behind, INDEX))
        found.append(along if dim == 0 else e.binary("remainder", along, e.size_scalar(size, INDEX)))
    return found
