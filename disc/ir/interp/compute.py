"""Interpreter rules of reductions, contractions, convolutions and scatters.

Sums and contractions of floats are accumulated in f64 and rounded once. Other reduction bodies are run on halves of the data at
a time, adjacent elements paired (StableHLO leaves the order of a reduction open); those that are no plain op one element after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.ir.interp.structure import index_vectors, pad_array
from disc.ir.interp.values import Array, Rule, Scope, element_name, held_dtype, integers, optional_integers
from disc.ir.ops import block_ops, int_attr
from disc.ir.reducers import reduced_kinds
from disc.ir.weights import SCALED_BLOCK


def body_is_add(block: ir.Block) -> bool:
    """Does the block return the sum of its two arguments?"""
    body = block_ops(block)
    if [op.name for op in body] != ["stablehlo.add", "stablehlo.return"] or body[1].operands[0] != body[0].results[0]:
        return False
    return {block.arguments[0], block.arguments[1]} == set(body[0].operands)


def _reduce_first_axis(op: ir.Operation, operands: list[Array], starts: list[Array], scope: Scope) -> list[Array]:
    """Reduces axis 0 of every operand with the body, then folds the starting values in."""
    block = op.regions[0].blocks[0]
    if reduced_kinds(op) is None:
        values = [np.broadcast_to(start, operands[0].shape[1:]) for start in starts]
        for place in range(operands[0].shape[0]):
            values = scope.run_block(block, [*values, *(x[place] for x in operands)])
        return values
    if len(operands) == 1 and operands[0].dtype.kind == "f" and body_is_add(block):
        return [(operands[0].sum(axis=0, dtype=np.float64) + starts[0]).astype(operands[0].dtype)]
    while operands[0].shape[0] > 1:
        even = operands[0].shape[0] // 2 * 2
        rest = [x[even:] for x in operands]
        operands = scope.run_block(block, [x[0:even:2] for x in operands] + [x[1:even:2] for x in operands])
        operands = [np.concatenate([x, tail]) for x, tail in zip(operands, rest, strict=True)]
    shape = operands[0].shape[1:]
    starts = [np.broadcast_to(start, shape) for start in starts]
    return starts if operands[0].shape[0] == 0 else scope.run_block(block, starts + [x[0] for x in operands])


def _reduce(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    count, dims = len(operands) // 2, integers(op.attributes["dimensions"])
    front = []
    for x in operands[:count]:
        kept = [size for dim, size in enumerate(x.shape) if dim not in dims]
        length = int(np.prod([x.shape[dim] for dim in dims], dtype=np.int64))
        front.append(np.moveaxis(x, dims, range(len(dims))).reshape([length, *kept]))
    return _reduce_first_axis(op, front, operands[count:], scope)


def _paddings(op: ir.Operation, rank: int) -> list[tuple[int, int]]:
    flat = optional_integers(op, "padding", [0] * (2 * rank))
    return [(flat[2 * i], flat[2 * i + 1]) for i in range(rank)]


def _spread(x: Array, value: Array, paddings: Sequence[tuple[int, int]], dilations: Sequence[int]) -> Array:
    """`x` with `dilation - 1` values between neighbors, then padded (or cut, where the padding is negative)."""
    shape = [max((n - 1) * d + 1, 0) + low + high for n, d, (low, high) in zip(x.shape, dilations, paddings, strict=True)]
    return pad_array(x, value, [low for low, _ in paddings], [d - 1 for d in dilations], [max(size, 0) for size in shape])


def _window_places(x: Array, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[Array]:
    """For each offset inside the window (row-major), the view of `x` that each window sees there."""
    reach = [(size - 1) * d + 1 for size, d in zip(sizes, dilations, strict=True)]
    counts = [(n - r) // s + 1 if n >= r else 0 for n, r, s in zip(x.shape, reach, strides, strict=True)]
    views = []
    for offset in itertools.product(*(range(size) for size in sizes)):
        starts = [o * d for o, d in zip(offset, dilations, strict=True)]
        views.append(x[tuple(slice(b, b + c * s, s) for b, c, s in zip(starts, counts, strides, strict=True))])
        assert views[-1].shape == tuple(counts)
    return views


def _reduce_window(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    count = len(operands) // 2
    rank, ones = operands[0].ndim, [1] * operands[0].ndim
    sizes, strides = integers(op.attributes["window_dimensions"]), optional_integers(op, "window_strides", ones)
    base, dilations = optional_integers(op, "base_dilations", ones), optional_integers(op, "window_dilations", ones)
    stacked = []
    for x, start in zip(operands[:count], operands[count:], strict=True):
        stacked.append(np.stack(_window_places(_spread(x, start, _paddings(op, rank), base), sizes, strides, dilations)))
    return _reduce_first_axis(op, stacked, operands[count:], scope)


def _wide(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _dot_general(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    numbers = _stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    target = held_dtype(element_name(op.results[0].type))
    left, left_free = _as_matrices(operands[0], numbers.lhs_batching_dimensions, numbers.lhs_contracting_dimensions)
    right, right_free = _as_matrices(operands[1], numbers.rhs_batching_dimensions, numbers.rhs_contracting_dimensions)
    batch = tuple(operands[0].shape[dim] for dim in numbers.lhs_batching_dimensions)
    if target.kind != "f":
        left, right = left.astype(target), right.astype(target)
    return [np.matmul(left, right.swapaxes(1, 2)).astype(target).reshape(batch + left_free + right_free)]


def _scaled_dot(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    numbers = _stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left, left_free = _as_matrices(operands[0], [], numbers.lhs_contracting_dimensions)
    right, right_free = _as_matrices(operands[1], [], numbers.rhs_contracting_dimensions)
    scales = operands[2].reshape(right.shape[1], -1).T
    result = np.zeros((left.shape[1], right.shape[1]), np.float64)
    for block, scale in enumerate(scales):
        part = slice(block * SCALED_BLOCK, (block + 1) * SCALED_BLOCK)
        result += np.matmul(left[0, :, part].astype(np.int64), right[0, :, part].astype(np.int64).T) * scale
    return [result.astype(np.float32).reshape(left_free + right_free)]


def _as_matrices(x: Array, batching: Sequence[int], contracting: Sequence[int]) -> tuple[Array, tuple[int, ...]]:
    """`x` as [batch, free, contracted] and the sizes of the free dims."""
    free = [dim for dim in range(x.ndim) if dim not in batching and dim not in contracting]
    sizes = [int(np.prod([x.shape[dim] for dim in dims], dtype=np.int64)) for dims in (batching, free, contracting)]
    moved = _wide(x).transpose([*batching, *free, *contracting]).reshape(sizes)
    return moved, tuple(x.shape[dim] for dim in free)


def _convolution(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    n = _stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = len(n.input_spatial_dimensions)
    ones = [1] * spatial
    groups, batch_groups = int_attr(op, "feature_group_count"), int_attr(op, "batch_group_count")
    x = _wide(operands[0]).transpose([n.input_batch_dimension, n.input_feature_dimension, *n.input_spatial_dimensions])
    kernel = _wide(operands[1]).transpose(
        [n.kernel_output_feature_dimension, n.kernel_input_feature_dimension, *n.kernel_spatial_dimensions]
    )
    if "window_reversal" in op.attributes:
        reversed_dims = [i + 2 for i, flag in enumerate(ir.DenseBoolArrayAttr(op.attributes["window_reversal"])) if flag]
        kernel = np.flip(kernel, tuple(reversed_dims))
    x = _spread(x, np.zeros((), x.dtype), [(0, 0), (0, 0), *_paddings(op, spatial)], [1, 1, *optional_integers(op, "lhs_dilation", ones)])
    views = _window_places(
        x, [1, 1, *kernel.shape[2:]], [1, 1, *optional_integers(op, "window_strides", ones)],
        [1, 1, *optional_integers(op, "rhs_dilation", ones)],
    )  # fmt: skip
    result = _grouped_sum(views, kernel, groups, batch_groups)
    order = [n.output_batch_dimension, n.output_feature_dimension, *n.output_spatial_dimensions]
    target = held_dtype(element_name(op.results[0].type))
    return [result.transpose([int(i) for i in np.argsort(order)]).astype(target)]


def _grouped_sum(views: list[Array], kernel: Array, groups: int, batch_groups: int) -> Array:
    """Sum over the kernel's places of view [N, C, out...] times kernel [O, C / groups, place] → [N / batch_groups, O, out...]."""
    batch, features, *out = views[0].shape
    outputs, inputs = kernel.shape[:2]
    parts = groups * batch_groups
    places = kernel.reshape(parts, outputs // parts, inputs, len(views))
    total = np.zeros((parts, outputs // parts, batch // batch_groups, int(np.prod(out, dtype=np.int64))), views[0].dtype)
    for place, view in enumerate(views):
        # [batch group, batch, group, feature, out] → [part, feature, batch, out]; one of the two counts is 1.
        split = view.reshape(batch_groups, batch // batch_groups, groups, features // groups, total.shape[3])
        split = split.transpose(0, 2, 3, 1, 4).reshape(parts, features // groups, batch // batch_groups, total.shape[3])
        total += np.einsum("poi,pibs->pobs", places[:, :, :, place], split, optimize=True)
    return total.transpose(2, 0, 1, 3).reshape([batch // batch_groups, outputs, *out])


def _scatter_places(operand: Array, indices: Array, updates: Array, numbers: _stablehlo.ScatterDimensionNumbers) -> tuple[Array, Array]:
    """For every element of `updates`: its flat place in the operand, and whether that lies inside."""
    vectors = index_vectors(indices, numbers.index_vector_dim)
    window_dims = list(numbers.update_window_dims)
    scatter_dims = [dim for dim in range(updates.ndim) if dim not in window_dims]
    skipped = [*numbers.inserted_window_dims, *numbers.input_batching_dims]
    windowed = [dim for dim in range(operand.ndim) if dim not in skipped]
    grid = np.indices(updates.shape, dtype=np.int64)
    flat, inside = np.zeros(updates.shape, np.int64), np.ones(updates.shape, np.bool_)
    for dim, size in enumerate(operand.shape):
        place = np.zeros(updates.shape, np.int64)
        if dim in numbers.scattered_dims_to_operand_dims:
            column = vectors[..., list(numbers.scattered_dims_to_operand_dims).index(dim)]
            place = place + column[tuple(grid[axis] for axis in scatter_dims)].astype(np.int64)
        if dim in numbers.input_batching_dims:
            axis = numbers.scatter_indices_batching_dims[list(numbers.input_batching_dims).index(dim)]
            place = place + grid[scatter_dims[axis - (axis > numbers.index_vector_dim)]]
        if dim in windowed:
            place = place + grid[window_dims[windowed.index(dim)]]
        inside &= (place >= 0) & (place < size)
        flat = flat * size + place
    return flat, inside


def _scatter(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    count = len(operands) // 2
    results, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    numbers = _stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    flat, inside = _scatter_places(results[0], indices, updates[0], numbers)
    lines = [x.reshape(-1).copy() for x in results]
    _combine_at(op.regions[0].blocks[0], lines, flat[inside], [x[inside] for x in updates], scope)
    return [line.reshape(x.shape) for line, x in zip(lines, results, strict=True)]


def _combine_at(block: ir.Block, lines: list[Array], places: Array, updates: list[Array], scope: Scope) -> None:
    """Runs the body at every place, in the order of the updates: round k takes the k-th update of each place."""
    order = np.argsort(places, kind="stable")
    places, updates = places[order], [x[order] for x in updates]
    first = np.searchsorted(places, places, side="left")
    turn = np.arange(places.size) - first
    for k in range(int(turn.max(initial=-1)) + 1):
        chosen = turn == k
        at = places[chosen]
        combined = scope.run_block(block, [line[at] for line in lines] + [x[chosen] for x in updates])
        for line, value in zip(lines, combined, strict=True):
            line[at] = value


def _select_and_scatter(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    operand, source, start = operands
    ones = [1] * operand.ndim
    sizes, strides = optional_integers(op, "window_dimensions", ones), optional_integers(op, "window_strides", ones)
    paddings = _paddings(op, operand.ndim)
    numbered = np.arange(operand.size).reshape(operand.shape)
    places = _window_places(_spread(numbered, np.array(-1), paddings, ones), sizes, strides, ones)
    values = _window_places(_spread(operand, np.zeros((), operand.dtype), paddings, ones), sizes, strides, ones)
    best, best_value = places[0].copy(), values[0].copy()
    for place, value in zip(places[1:], values[1:], strict=True):
        keep = scope.run_block(op.regions[0].blocks[0], [best_value, value])[0]
        # A place of -1 is padding and never chosen.
        replace = (place >= 0) & ((best < 0) | ~keep)
        best, best_value = np.where(replace, place, best), np.where(replace, value, best_value)
    line = np.full(operand.size, start, operand.dtype)
    _combine_at(op.regions[1].blocks[0], [line], best[best >= 0], [source[best >= 0]], scope)
    return [line.reshape(operand.shape)]


RULES: dict[str, Rule] = {
    "stablehlo.reduce": _reduce, "stablehlo.reduce_window": _reduce_window, "stablehlo.dot_general": _dot_general,
    "disc.scaled_dot": _scaled_dot,
    "stablehlo.convolution": _convolution, "stablehlo.scatter": _scatter, "stablehlo.select_and_scatter": _select_and_scatter,
}  # fmt: skip
