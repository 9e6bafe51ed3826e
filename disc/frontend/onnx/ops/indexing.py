"""Operators that read or write at indices, and those that order elements. A negative index counts from the end."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.ops.data_sizes import counted
from disc.frontend.onnx.ops.structure import axis_of
from disc.frontend.onnx.values import Constant, NodeError, Number, Result, Sizes, sizes_of, sizes_value

Rule = Callable[[Node], Result]
MOST_COLUMNS = 64  # of slices that are ordered: each is a sort


def _from_start(indices: Tensor, size: Number) -> Tensor:
    indices = indices.long()
    return torch.where(indices < 0, indices + size, indices)


def _gather(node: Node) -> Result:
    value, at = node.value(0), sizes_of(node.value(1))
    if isinstance(value, Sizes) and at is not None and all(isinstance(each, int) for each in at.numbers):
        if not all(-len(value.numbers) <= each < len(value.numbers) for each in at.numbers):
            raise NodeError(f"index {at.numbers} of {len(value.numbers)} sizes", unsupported=False)
        return sizes_value(tuple(value.numbers[each] for each in at.numbers), scalar=at.scalar, dtype=value.dtype)
    x = node.tensor(0)
    axis = axis_of(node.attr_int("axis"), x.dim())
    if at is not None and at.scalar:
        return x.select(axis, at.numbers[0])
    indices = _from_start(node.tensor(1), x.shape[axis])
    if axis == 0 and x.dim() == 2 and x.is_floating_point():
        return F.embedding(indices, x)
    picked = torch.index_select(x, axis, indices.reshape(-1))
    return picked.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _gather_elements(node: Node) -> Tensor:
    x = node.tensor(0)
    axis = axis_of(node.attr_int("axis"), x.dim())
    return torch.gather(x, axis, _from_start(node.tensor(1), x.shape[axis]))


def _batched_index(x: Tensor, indices: Tensor, batch: int) -> tuple[Tensor, ...]:
    """The indices of each dim that the last dim of `indices` has, behind those that name the place in each of the first `batch` dims."""
    depth = indices.shape[-1]
    if not isinstance(depth, int) or batch + depth > x.dim():
        raise NodeError(f"indices of {depth} dims into a tensor of rank {x.dim()}", unsupported=False)
    parts = [_from_start(part, x.shape[batch + i]) for i, part in enumerate(indices.unbind(-1))]
    places = [torch.arange(x.shape[dim]).reshape([-1 if i == dim else 1 for i in range(indices.dim() - 1)]) for dim in range(batch)]
    return (*places, *parts)


def _gather_nd(node: Node) -> Tensor:
    x, indices = node.tensor(0), node.tensor(1)
    return x[_batched_index(x, indices, node.attr_int("batch_dims"))]


def _scatter_elements(node: Node) -> Tensor:
    x, updates, how = node.tensor(0), node.tensor(2), node.attr_text("reduction", "none")
    axis = axis_of(node.attr_int("axis"), x.dim())
    indices = _from_start(node.tensor(1), x.shape[axis])
    if how == "none":
        return torch.scatter(x, axis, indices, updates)
    if how == "add":
        return torch.scatter_add(x, axis, indices, updates)
    return torch.scatter_reduce(x, axis, indices, updates, REDUCTIONS[how])


REDUCTIONS = {"mul": "prod", "max": "amax", "min": "amin"}


def _scatter_nd(node: Node) -> Tensor:
    x, indices, updates, how = node.tensor(0), node.tensor(1), node.tensor(2), node.attr_text("reduction", "none")
    places = _batched_index(x, indices, 0)
    if how in ("none", "add"):
        return torch.index_put(x, places, updates, accumulate=how == "add")
    rest = x.shape[len(places) :]
    flat = torch.zeros_like(places[0])  # rows of x by number, so that the reduction is along one dim
    for place, size in zip(places, x.shape, strict=False):
        flat = flat * size + place
    rows, values = x.reshape(-1, *rest), updates.reshape(-1, *rest)
    at = flat.reshape(-1, *[1] * len(rest)).expand(values.shape)
    return torch.scatter_reduce(rows, 0, at, values, REDUCTIONS[how]).reshape(x.shape)


def _tensor_scatter(node: Node) -> Tensor:
    """Writes `update` into a cache, for each element of the batch from its own position on."""
    cache, update = node.tensor(0), node.tensor(1)
    axis = axis_of(node.attr_int("axis"), cache.dim())
    at = torch.arange(update.shape[axis]).unsqueeze(0)
    starts = node.optional(2)
    at = at + starts.unsqueeze(1) if starts is not None else at.expand(cache.shape[0], -1)
    if node.attr_text("mode") == "circular":
        at = torch.remainder(at, cache.shape[axis])
    shape = [size if i == 0 else update.shape[axis] if i == axis else 1 for i, size in enumerate(cache.shape)]
    return torch.scatter(cache, axis, at.reshape(shape).expand(update.shape), update)


def _arg(function: Callable[..., Tensor]) -> Rule:
    def rule(node: Node) -> Tensor:
        x, keep = node.tensor(0), bool(node.attr_int("keepdims"))
        axis = axis_of(node.attr_int("axis"), x.dim())
        if not node.attr_int("select_last_index"):
            return function(x, axis, keep)
        return x.shape[axis] - 1 - function(torch.flip(x, [axis]), axis, keep)

    return rule


def _hardmax(node: Node) -> Tensor:
    x = node.tensor(0)
    axis = axis_of(node.attr_int("axis"), x.dim())
    places = torch.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.dim())])
    return (places == torch.argmax(x, axis, keepdim=True)).to(x.dtype)


def _top_k(node: Node) -> Result:
    x = node.tensor(0)
    k = counted(node.tensor(1)) if node.sizes(1) is None else node.integer(1, "number of elements")
    axis = axis_of(node.attr_int("axis"), x.dim())
    return tuple(torch.topk(x, k, axis, bool(node.attr_int("largest")), bool(node.attr_int("sorted"))))


def _cumulative(function: Callable[[Tensor, int], Tensor], identity: int) -> Rule:
    def rule(node: Node) -> Tensor:
        x = node.tensor(0)
        axis = axis_of(int(node.constants(1, "axis")[0]), x.dim())
        x = torch.flip(x, [axis]) if node.attr_int("reverse") else x
        if node.attr_int("exclusive"):
            first = torch.full([1 if dim == axis else size for dim, size in enumerate(x.shape)], identity, dtype=x.dtype)
            x = torch.cat([first, x], axis).narrow(axis, 0, x.shape[axis])
        y = function(x, axis).to(x.dtype)
        return torch.flip(y, [axis]) if node.attr_int("reverse") else y

    return rule


def _nonzero(node: Node) -> Tensor:
    return torch.nonzero(node.tensor(0)).t()


def _compress(node: Node) -> Tensor:
    x, condition = node.tensor(0), node.known(1)
    if not node.given("axis"):
        x, axis = x.reshape(-1), 0
    else:
        axis = axis_of(node.attr_int("axis"), x.dim())
    if isinstance(condition, Constant):
        kept = [i for i, take in enumerate(node.numbers(1, "condition")) if take]
        return torch.index_select(x, axis, torch.tensor(kept, dtype=torch.int64))
    kept = torch.nonzero(node.tensor(1)).squeeze(1)
    return torch.index_select(x, axis, kept)


def _unique(node: Node) -> Result:
    """The elements, or slices along `axis`; where each is first; for each of the input's which one it is; how often each is there."""
    x = node.tensor(0)
    axis = axis_of(node.attr_int("axis"), x.dim()) if node.given("axis") else None
    lines = x.reshape(-1, 1) if axis is None else x.movedim(axis, 0).flatten(1)
    order = _order(lines)
    ordered = torch.index_select(lines, 0, order)
    place = torch.arange(order.shape[0])
    new = (ordered != torch.index_select(ordered, 0, torch.clamp(place - 1, min=0))).any(1) | (place == 0)
    group = torch.cumsum(new.to(torch.int64), 0) - 1
    which = torch.zeros_like(order).scatter(0, order, group)
    starts = torch.nonzero(new).squeeze(1)
    ends = torch.cat([starts, torch.full([1], x.numel() if axis is None else x.shape[axis])]).narrow(0, 1, starts.shape[0])
    first, counts = torch.index_select(order, 0, starts), ends - starts
    if not node.attr_int("sorted"):
        by_place = torch.argsort(first, stable=True)
        rank = torch.zeros_like(by_place).scatter(0, by_place, torch.arange(by_place.shape[0]))
        first, counts, which = torch.index_select(first, 0, by_place), torch.index_select(counts, 0, by_place), rank[which]
    values = torch.index_select(x.reshape(-1), 0, first) if axis is None else torch.index_select(x, axis, first)
    return (values, first, which, counts)[: max(1, node.outputs)]


def _order(lines: Tensor) -> Tensor:
    """The order of rows, the first column before the second; equal ones stay in order."""
    columns = lines.shape[1]
    if not isinstance(columns, int) or columns > MOST_COLUMNS:
        raise NodeError(f"slices of {columns} elements, more than {MOST_COLUMNS} or a number that sizes decide")
    order = torch.arange(lines.shape[0])
    for column in range(columns)[::-1]:
        order = order[torch.argsort(lines[:, column][order], stable=True)]
    return order


RULES: dict[str, Rule] = {
    "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd, "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd, "TensorScatter": _tensor_scatter, "ArgMax": _arg(torch.argmax), "ArgMin": _arg(torch.argmin),
    "Hardmax": _hardmax, "TopK": _top_k, "CumSum": _cumulative(torch.cumsum, 0), "CumProd": _cumulative(torch.cumprod, 1),
    "NonZero": _nonzero, "Compress": _compress, "Unique": _unique,
}  # fmt: skip
