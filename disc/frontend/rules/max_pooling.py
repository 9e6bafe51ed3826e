"""Max pooling: the maxima as `reduce_window`, their places by comparing the elements of each window with its maximum, one by one."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence

import torch
from torch import fx

from disc.frontend.call import Call, arguments_by_name
from disc.frontend.op_builder import OpBuilder, RuleError, Tensor
from disc.frontend.rules.contractions import repeated
from disc.frontend.rules.overrides import Fault, Override, overrides
from disc.frontend.rules.pooling import PoolingWindow, reduce_window, spatial, spatial_dims, window_of
from disc.frontend.rules.reductions import lowest
from disc.frontend.rules.views import pad_edges
from disc.frontend.symbols import Shape, Size, to_size

aten = torch.ops.aten
MOST_TAPS = 64  # elements of a window: for each there is code


def max_pool(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    x, window = call.tensor("self"), window_of(call, spatial(call))
    values = reduce_window(e, x, window, "maximum", lowest(x.dtype), window.padding, call.shape)
    if not any(user.args[1] == 1 and user.users for user in call.node.users):
        return (values,)
    if math.prod(window.size) > MOST_TAPS:
        raise RuleError(f"the places of maxima in windows of more than {MOST_TAPS} elements")
    return values, places_of_maxima(e, x, window, values)


def looks_in_large_windows(node: fx.Node) -> bool:
    """Whether a call of max pooling wants places in windows of more elements than code is made for, one by one."""
    sizes = arguments_by_name(node)["kernel_size"]
    count = math.prod(repeated(sizes if isinstance(sizes, list | tuple) else [sizes], spatial_dims(node)))  # pyright: ignore[reportArgumentType]
    return count > MOST_TAPS and any(user.args[1] == 1 and user.users for user in node.users)


def places_of_maxima(e: OpBuilder, x: Tensor, window: PoolingWindow, values: Tensor) -> Tensor:
    """i64: where the maximum of each window is, row-major over the last dims of x: the first one, or the last NaN."""
    lead, taps = x.rank - len(window.size), list(itertools.product(*map(range, window.size)))
    low: list[Size] = [*[0] * lead, *window.padding]
    high: list[Size] = [*[0] * lead, *(pad + (step - 1) * window.ceil for pad, step in zip(window.padding, window.stride, strict=True))]
    wide = tuple(to_size(size + before + after) for size, before, after in zip(x.shape, low, high, strict=True))
    padded = pad_edges(e, x, e.scalar(lowest(x.dtype), x.dtype), low, high, wide)
    seen = [
        e.slice(padded, [*[0] * lead, *map(operator.mul, tap, window.dilation)], values.shape, [*[1] * lead, *window.stride])
        for tap in taps
    ]
    found = e.full(0, values.shape, torch.int32)
    for number in reversed(range(len(taps))):
        hit = e.compare("eq", seen[number], values)
        for inside in _inside(e, x, window, taps[number], values.shape):
            hit = e.binary("and", hit, inside)
        found = e.select(hit, e.full(number, values.shape, torch.int32), found)
    for number, each in enumerate(seen if x.dtype.is_floating_point else ()):
        found = e.select(e.compare("ne", each, each), e.full(number, values.shape, torch.int32), found)
    return _row_major(e, x, window, found)


def _inside(e: OpBuilder, x: Tensor, window: PoolingWindow, tap: Sequence[int], shape: Shape) -> Iterator[Tensor]:
    """Whether elements at one place of all windows lie in x, for each dim and side where they may not."""
    lead = x.rank - len(tap)
    for i, (at, pad, spread) in enumerate(zip(tap, window.padding, window.dilation, strict=True)):
        position = _first(e, window, i, lead, shape)
        if at * spread < pad:
            yield e.compare("ge", position, e.scalar(-at * spread, torch.int64))
        if window.ceil or (window.size[i] - 1 - at) * spread < pad:
            yield e.compare("lt", position, e.size_scalar(to_size(x.shape[lead + i] - at * spread), torch.int64))


def _first(e: OpBuilder, window: PoolingWindow, i: int, lead: int, shape: Shape) -> Tensor:
    """i64: where each window begins along a dim of its own."""
    place = e.binary("multiply", e.iota(shape, lead + i, torch.int64), e.scalar(window.stride[i], torch.int64))
    return e.binary("subtract", place, e.scalar(window.padding[i], torch.int64)) if window.padding[i] else place


def _row_major(e: OpBuilder, x: Tensor, window: PoolingWindow, taps: Tensor) -> Tensor:
    """i64: numbers of elements of windows as numbers of elements of x."""
    lead, place = x.rank - len(window.size), e.full(0, taps.shape, torch.int64)
    for i, (size, spread) in enumerate(zip(window.size, window.dilation, strict=True)):
        behind = math.prod(window.size[i + 1 :])
        along = e.binary("divide", taps, e.scalar(behind, torch.int32)) if behind > 1 else taps
        along = e.convert(e.binary("remainder", along, e.scalar(size, torch.int32)) if i else along, torch.int64)
        position = e.binary("add", _first(e, window, i, lead, taps.shape), e.binary("multiply", along, e.scalar(spread, torch.int64)))
        place = e.binary("add", e.binary("multiply", place, e.size_scalar(x.shape[lead + i], torch.int64)), position)
    return place


OVERRIDES: dict[object, Override] = overrides(Fault.REFUSED, "a reduction whose body is several ops", {
    aten.max_pool2d_with_indices.default: max_pool, aten.max_pool3d_with_indices.default: max_pool,
})  # fmt: skip
