"""Interpreter rules of ops that only move data: shapes, slices, padding, gathers, constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.errors import CompilerBug, ShapeConstraintError
from disc.ir.interp.values import Array, Rule, Scope, constant_value, element_name, held_dtype, held_weight, integers
from disc.ir.ops import int_attr, ints_attr, string_attr, strings_attr


def _constant(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [constant_value(op.attributes["value"])]


def _diagonals(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    shape = scope.shape(op.results[0].type)
    row, column = int_attr(op, "row"), int_attr(op, "column")
    places = np.arange(shape[column])[None, :] - np.arange(shape[row])[:, None] + shape[row]
    at = column - (column > row)
    return [np.moveaxis(operands[0].take(places, at), at, row)]


def _unfold(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    shape, dim = scope.shape(op.results[0].type), int_attr(op, "dim")
    places = np.arange(shape[dim])[:, None] * int_attr(op, "step") + np.arange(shape[-1])[None, :]
    return [np.moveaxis(operands[0].take(places, dim), dim + 1, -1)]


def _constant_like(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    attribute = op.attributes["value"]
    value = ir.FloatAttr(attribute).value if isinstance(attribute, ir.FloatAttr) else ir.IntegerAttr(attribute).value
    return [np.full(operands[0].shape, value, held_dtype(element_name(op.results[0].type)))]


def _weight(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [held_weight(scope.weights[string_attr(op, "name")])]


def _size_of(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    scope.bind(string_attr(op, "symbol"), int(operands[0]))
    return [operands[0]]


def _reshape(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [operands[0].reshape(scope.shape(op.results[0].type))]


def _transpose(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [operands[0].transpose(ints_attr(op, "permutation"))]


def _concatenate(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [np.concatenate(operands, int_attr(op, "dimension"))]


def _reverse(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [np.flip(operands[0], tuple(ints_attr(op, "dimensions")))]


def _broadcast(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    """Also of stablehlo.broadcast_in_dim, whose dims are in `broadcast_dimensions`."""
    source, shape = operands[0], scope.shape(op.results[0].type)
    dims = ints_attr(op, "dims") if "dims" in op.attributes else ints_attr(op, "broadcast_dimensions")
    may_expand = set(ints_attr(op, "maybe"))
    static = ir.RankedTensorType(op.operands[0].type).shape
    placed = [1] * len(shape)
    for i, dim in enumerate(dims):
        expands = source.shape[i] == 1 and (i in may_expand or static[i] == 1)
        if not expands and source.shape[i] != shape[dim]:
            raise ShapeConstraintError(f"a dim of size {source.shape[i]} cannot be broadcast to size {shape[dim]} ({op})")
        placed[dim] = source.shape[i]
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    return [np.broadcast_to(source.transpose(order).reshape(placed), shape)]


def _iota(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    shape = scope.shape(op.results[0].type)
    dim = int_attr(op, "dim") if "dim" in op.attributes else int_attr(op, "iota_dimension")
    line = np.arange(shape[dim]).astype(held_dtype(element_name(op.results[0].type)))
    return [np.broadcast_to(line.reshape([-1 if i == dim else 1 for i in range(len(shape))]), shape)]


def _dim_value(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [np.array(scope.evaluate(string_attr(op, "expr")), held_dtype(element_name(op.results[0].type)))]


def _window(source: Array, starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> Array:
    for dim, (start, size, stride) in enumerate(zip(starts, sizes, strides, strict=True)):
        if size > 0 and (start < 0 or start + (size - 1) * stride >= source.shape[dim]):
            raise ShapeConstraintError(f"a slice of {size} from {start} by {stride} leaves dim {dim} of size {source.shape[dim]}")
    return source[tuple(slice(b, b + n * stride, stride) for b, n, stride in zip(starts, sizes, strides, strict=True))]


def _slice(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    starts = [scope.evaluate(text) for text in strings_attr(op, "starts")]
    return [_window(operands[0], starts, scope.shape(op.results[0].type), ints_attr(op, "strides"))]


def _static_slice(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [_window(operands[0], ints_attr(op, "start_indices"), scope.shape(op.results[0].type), ints_attr(op, "strides"))]


def pad_array(source: Array, value: Array, low: Sequence[int], interior: Sequence[int], shape: Sequence[int]) -> Array:
    """Element i of a dim goes to place `low + i * (interior + 1)`; what falls outside of `shape` is dropped."""
    result = np.full(shape, value, source.dtype)
    places = [start + np.arange(n) * (gap + 1) for n, start, gap in zip(source.shape, low, interior, strict=True)]
    kept = [np.flatnonzero((place >= 0) & (place < size)) for place, size in zip(places, shape, strict=True)]
    if not kept:
        return source
    result[np.ix_(*(place[keep] for place, keep in zip(places, kept, strict=True)))] = source[np.ix_(*kept)]
    return result


def _pad(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    low = [scope.evaluate(text) for text in strings_attr(op, "low")]
    return [pad_array(operands[0], operands[1], low, ints_attr(op, "interior"), scope.shape(op.results[0].type))]


def _static_pad(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    low, interior = ints_attr(op, "edge_padding_low"), ints_attr(op, "interior_padding")
    return [pad_array(operands[0], operands[1], low, interior, scope.shape(op.results[0].type))]


def _clamped_starts(starts: Sequence[Array], shape: Sequence[int], sizes: Sequence[int]) -> list[int]:
    return [min(max(int(start), 0), size - taken) for start, size, taken in zip(starts, shape, sizes, strict=True)]


def _dynamic_slice(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    sizes = integers(op.attributes["slice_sizes"])
    starts = _clamped_starts(operands[1:], operands[0].shape, sizes)
    return [operands[0][tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]]


def _dynamic_update_slice(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    result, update = operands[0].copy(), operands[1]
    starts = _clamped_starts(operands[2:], result.shape, update.shape)
    result[tuple(slice(start, start + size) for start, size in zip(starts, update.shape, strict=True))] = update
    return [result]


def index_vectors(indices: Array, index_vector_dim: int) -> Array:
    """The start indices with the dim of the index vector last (added when it is implicit)."""
    return indices[..., None] if index_vector_dim == indices.ndim else np.moveaxis(indices, index_vector_dim, -1)


def _gather_places(operand: Array, indices: Array, numbers: _stablehlo.GatherDimensionNumbers, sizes: Sequence[int]) -> list[Array]:
    """For each operand dim an index array that broadcasts to [batch dims..., window dims of the operand...]."""
    vectors = index_vectors(indices, numbers.index_vector_dim)
    batch = vectors.shape[:-1]
    places: list[Array] = []
    for dim in range(operand.ndim):
        start = np.zeros(batch, np.int64)
        if dim in numbers.start_index_map:
            wanted = vectors[..., list(numbers.start_index_map).index(dim)].astype(np.int64)
            start = np.clip(wanted, 0, operand.shape[dim] - sizes[dim])
        if dim in numbers.operand_batching_dims:
            axis = numbers.start_indices_batching_dims[list(numbers.operand_batching_dims).index(dim)]
            axis -= axis > numbers.index_vector_dim
            start = np.arange(batch[axis]).reshape([-1 if i == axis else 1 for i in range(len(batch))])
        offset = np.arange(sizes[dim]).reshape([-1 if i == dim else 1 for i in range(operand.ndim)])
        places.append(start.reshape(start.shape + (1,) * operand.ndim) + offset)
    return places


def _gather_with(op: ir.Operation, operands: list[Array], sizes: Sequence[int]) -> list[Array]:
    operand, indices = operands
    numbers = _stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    places = _gather_places(operand, indices, numbers, sizes)
    gathered = operand[tuple(places)] if places else np.broadcast_to(operand, index_vectors(indices, numbers.index_vector_dim).shape[:-1])
    batch_rank = gathered.ndim - operand.ndim
    dropped = [*numbers.collapsed_slice_dims, *numbers.operand_batching_dims]
    gathered = gathered.reshape(gathered.shape[:batch_rank] + tuple(size for dim, size in enumerate(sizes) if dim not in dropped))
    offset_dims = list(numbers.offset_dims)
    return [np.moveaxis(gathered, range(batch_rank, gathered.ndim), offset_dims) if offset_dims else gathered]


def _gather(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return _gather_with(op, operands, [scope.evaluate(text) for text in strings_attr(op, "sizes")])


def _static_gather(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return _gather_with(op, operands, integers(op.attributes["slice_sizes"]))


_SCANS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _cumulative(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    kind, source = string_attr(op, "kind"), operands[0]
    if kind not in _SCANS:
        raise CompilerBug(f"disc.cumulative of kind {kind}")
    wide = source.astype(np.float64) if source.dtype.kind == "f" else source
    return [_SCANS[kind].accumulate(wide, axis=int_attr(op, "dim")).astype(source.dtype)]


RULES: dict[str, Rule] = {
    "stablehlo.constant": _constant, "chlo.constant": _constant, "chlo.constant_like": _constant_like, "disc.weight": _weight,
    "disc.size_of": _size_of, "stablehlo.reshape": _reshape, "disc.reshape": _reshape,
    "stablehlo.transpose": _transpose, "stablehlo.concatenate": _concatenate, "stablehlo.reverse": _reverse,
    "stablehlo.broadcast_in_dim": _broadcast, "disc.broadcast_in_dim": _broadcast,
    "stablehlo.iota": _iota, "disc.iota": _iota, "disc.dim_value": _dim_value,
    "disc.slice": _slice, "disc.diagonals": _diagonals, "disc.unfold": _unfold,
    "stablehlo.slice": _static_slice, "disc.pad": _pad, "stablehlo.pad": _static_pad,
    "stablehlo.dynamic_slice": _dynamic_slice, "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "disc.gather": _gather, "stablehlo.gather": _static_gather, "disc.cumulative": _cumulative,
}  # fmt: skip
