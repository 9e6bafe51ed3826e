"""Operators that make and rearrange tensors, and those on sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.ops import data_sizes
from disc.frontend.onnx.values import (
    Constant,
    Narrow,
    NodeError,
    Number,
    Result,
    Sizes,
    any_of,
    at_most,
    larger,
    numbers,
    sizes_of,
    sizes_value,
    smaller,
    type_name,
)
from disc.frontend.slices import LEAST

Rule = Callable[[Node], Result]
END = 2**31 - 1  # ends of slices from here on mean "to the end"; exporters write this or 2**63 - 1


def axis_of(axis: int, rank: int) -> int:
    """Raises NodeError."""
    if not -rank <= axis < max(rank, 1):
        raise NodeError(f"axis {axis} of a tensor of rank {rank}", unsupported=False)
    return axis % max(rank, 1)


def _shape(node: Node) -> Result:
    value = node.value(0)
    if isinstance(value, Sizes):
        dims: Sequence[Number] = () if value.scalar else (len(value.numbers),)
    else:
        dims = (value.data if isinstance(value, Constant) else node.tensor(0)).shape
    end = node.attr_int("end") if node.given("end") else None
    return sizes_value(tuple(dims)[node.attr_int("start", 0) : end])


def _size(node: Node) -> Result:
    return sizes_value((math.prod(node.tensor(0).shape),), scalar=True)


def _constant(node: Node) -> Result:
    (name, value), *others = node.attributes.items()
    if others:
        raise NodeError("it has several values", unsupported=False)
    if isinstance(value, Tensor | Narrow):
        return value
    if name in ("value_float", "value_floats"):
        return torch.tensor(value, dtype=torch.float32)
    if name in ("value_int", "value_ints"):
        return torch.tensor(value, dtype=torch.int64)
    raise NodeError(f"constants of kind {name}")


def _reshape(node: Node) -> Result:
    if node.sizes(1) is None:
        return data_sizes.reshaped(node.tensor(0), node.tensor(1), bool(node.attr_int("allowzero", 0)))
    wanted, own = node.integers(1, "dims"), node.sizes(0)
    if own is not None and isinstance(node.value(0), Sizes) and len(wanted) < 2:
        return sizes_value(own.numbers, scalar=not wanted, dtype=own.dtype)
    x = node.tensor(0)
    dims = [
        x.shape[i] if isinstance(size, int) and size == 0 and not node.attr_int("allowzero", 0) else size for i, size in enumerate(wanted)
    ]
    return x.reshape(dims)


def _transpose(node: Node) -> Tensor:
    x = node.tensor(0)
    return x.permute(node.attr_ints("perm", range(x.dim())[::-1]))


def _slice(node: Node) -> Result:
    value = node.value(0)
    if any(node.has(place) and node.sizes(place) is None for place in (1, 2, 4)):
        return _slice_by_data(node)
    starts, ends = node.integers(1, "starts"), node.integers(2, "ends")
    rank = 1 if isinstance(value, Sizes) else node.tensor(0).dim()
    axes = node.constants(3, "axes") if node.has(3) else list(range(len(starts)))
    steps = node.constants(4, "steps") if node.has(4) else [1] * len(starts)
    if isinstance(value, Sizes) and all(isinstance(each, int) for each in (*starts, *ends)):
        return sizes_value(value.numbers[_python_slice(starts[0], ends[0], steps[0])], dtype=value.dtype)
    x = node.tensor(0)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        x = _sliced(x, axis_of(axis, rank), start, end, step)
    return x


def _slice_by_data(node: Node) -> Tensor:
    x, starts, ends = node.tensor(0), node.tensor(1), node.tensor(2)
    axes = node.constants(3, "axes") if node.has(3) else None
    if axes is None and not isinstance(starts.shape[0], int):
        raise NodeError("the number of its axes depends on data")
    axes = list(range(int(starts.shape[0]))) if axes is None else [axis_of(axis, x.dim()) for axis in axes]
    return data_sizes.sliced(x, axes, starts, ends, node.tensor(4) if node.has(4) else torch.ones_like(starts))


def _python_slice(start: Number, end: Number, step: int) -> slice:
    low = None if isinstance(end, int) and (end >= END or (step < 0 and end <= -END)) else end
    return slice(start, low, step)


def _sliced(x: Tensor, axis: int, start: Number, end: Number, step: int) -> Tensor:
    """Positions beyond an end stand for it, as the standard says; PyTorch's trace would decide by the example which do."""
    size = x.shape[axis]
    if step < 0:  # position p is position -1 - p of the reversed tensor
        x, start, end = torch.flip(x, [axis]), _mirrored(start), _mirrored(end)
    inner = step < 0 and isinstance(start, int) and start > 0  # backward, it starts at an element, not behind the last one
    if _is_plain(start, end) and not inner:
        return torch.ops.aten.slice.Tensor(x, axis, start, min(end, 2**63 - 1), abs(step))
    first = smaller(start, size - any_of(size)) if inner else _position(start, size)
    if isinstance(start, int) and isinstance(end, int) and (end > start or not inner):
        length = larger(_length(start, end, size), any_of(size)) if inner else _length(start, end, size)
    else:
        length = larger(_position(end, size), first) - first
    taken = torch.ops.aten.slice.Tensor(x, axis, first, first + length)
    return taken if abs(step) == 1 else torch.ops.aten.slice.Tensor(taken, axis, 0, 2**63 - 1, abs(step))


def _mirrored(place: Number) -> Number:
    return -1 - place if not isinstance(place, int) or -END < place < END else 0 if place > 0 else END


def _is_plain(start: Number, end: Number) -> bool:
    """Whether it takes a number of elements at an end that the trace takes to be there, and each call is checked for: so their number is
    known, as of the last one."""
    if not isinstance(start, int) or not isinstance(end, int):
        return False
    return (start == 0 and end >= END) or 0 <= start < end < LEAST or (-LEAST < start < 0 and (end >= END or start < end < 0))


def _position(place: Number, size: Number) -> Number:
    """0 to `size`; a negative place counts from the end."""
    if not isinstance(place, int):
        return larger(place + size, 0) if place < 0 else smaller(place, size)
    if place < 0:
        return 0 if place <= -END else _beyond(size, -place)
    return size if place >= END else at_most(size, place)


def _beyond(size: Number, count: int) -> Number:
    """How many elements there are but the first `count`; never negative, so that a size of 0 is no exception."""
    return size - at_most(size, count) if count < LEAST else larger(size, count) - count


def _length(start: int, end: int, size: Number) -> Number:
    if start < 0 <= end < END:
        return smaller(at_most(size, min(-start, end)), larger(end - start - size, 0))
    if start < 0:
        return smaller(_beyond(size, -end), max(end - start, 0)) if end < 0 else at_most(size, -start)
    if end < 0:
        return _beyond(size, start - end)
    return _beyond(size, start) if end >= END else smaller(_beyond(size, start), max(end - start, 0))


def _split(node: Node) -> Result:
    x = node.tensor(0)
    axis = axis_of(node.attr_int("axis"), x.dim())
    if node.has(1) and node.sizes(1) is None:
        return data_sizes.split(x, node.tensor(1), axis)
    if node.has(1):
        sizes = node.integers(1, "sizes")
        return tuple(torch.split(x, sizes, axis))
    if node.given("split"):
        return tuple(torch.split(x, node.attr_ints("split"), axis))
    count = node.attr_int("num_outputs") if node.given("num_outputs") else node.outputs
    if isinstance(x.shape[axis], int):
        chunk = -(-x.shape[axis] // count)
        return tuple(torch.split(x, [min(chunk, max(0, x.shape[axis] - chunk * i)) for i in range(count)], axis))
    chunk = (x.shape[axis] + count - 1) // count
    return tuple(x.narrow(axis, i * chunk, chunk if i < count - 1 else x.shape[axis] - chunk * (count - 1)) for i in range(count))


def _concat(node: Node) -> Result:
    known = [sizes_of(value) for value in node.inputs]
    if any(isinstance(value, Sizes) for value in node.inputs) and all(known):
        return sizes_value(tuple(number for each in known if each for number in each.numbers))
    return torch.cat(node.tensors(), node.attr_int("axis"))


def _axes(node: Node, rank: int) -> list[int]:
    return sorted(axis_of(axis, rank) for axis in node.constants(1, "axes"))


def _squeeze(node: Node) -> Result:
    value = node.value(0)
    if isinstance(value, Sizes):
        return sizes_value(value.numbers, scalar=True, dtype=value.dtype)
    x = node.tensor(0)
    if not node.has(1):
        if any(isinstance(size, torch.SymInt) for size in x.shape):
            raise NodeError("it removes every dim that is 1, and so its rank depends on sizes; give it `axes`")
        return x.reshape([size for size in x.shape if size != 1])
    axes = _axes(node, x.dim())
    for axis in axes:
        torch._check(x.shape[axis] == 1)
    return x.reshape([size for i, size in enumerate(x.shape) if i not in axes])


def _unsqueeze(node: Node) -> Result:
    value = node.value(0)
    axes = node.constants(1, "axes")
    if isinstance(value, Sizes) and value.scalar and len(axes) == 1:
        return sizes_value(value.numbers, dtype=value.dtype)
    x = node.tensor(0)
    for axis in sorted(axis_of(axis, x.dim() + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _expand(node: Node) -> Tensor:
    x = node.tensor(0)
    if node.sizes(1) is None:
        return data_sizes.expanded(x, node.tensor(1))
    wanted = node.integers(1, "dims")
    rank = max(x.dim(), len(wanted))
    own = [1] * (rank - x.dim()) + list(x.shape)
    other = [1] * (rank - len(wanted)) + wanted
    return x.expand([mine if isinstance(size, int) and size == 1 else size for mine, size in zip(own, other, strict=True)])


def _flatten(node: Node) -> Tensor:
    x = node.tensor(0)
    axis = node.attr_int("axis")
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _tile(node: Node) -> Tensor:
    return node.tensor(0).repeat(data_sizes.dims(node, 1, "repeats"))


def _range(node: Node) -> Tensor:
    dtype = node.as_tensor(node.value(0)).dtype
    if any(node.known(place) is None and node.sizes(place) is None for place in range(3)):
        return data_sizes.counted_range(*node.tensors())
    if dtype.is_floating_point:
        start, limit, step = (node.number(place, "range") for place in range(3))
    else:
        start, limit, step = (node.integer(place, "range") for place in range(3))
    if isinstance(step, int | float) and step == 0:
        raise NodeError("its step is 0", unsupported=False)
    return torch.arange(start, limit, step, dtype=dtype)


def _constant_of_shape(node: Node) -> Result:
    dims = data_sizes.dims(node, 0, "dims")
    value = node.attributes.get("value")
    if isinstance(value, Narrow):
        raise NodeError(f"a tensor of {type_name(value)}")
    fill = numbers(Constant(value))[0] if isinstance(value, Tensor) else 0.0
    dtype = value.dtype if isinstance(value, Tensor) else torch.float32
    if dtype == torch.int64 and len(dims) == 1 and isinstance(dims[0], int) and dims[0] <= END:
        return sizes_value((int(fill),) * dims[0]) if dims[0] < 64 else torch.full(dims, fill, dtype=dtype)
    return torch.full(dims, fill, dtype=dtype)


def _pad(node: Node) -> Tensor:
    x, mode = node.tensor(0), node.attr_text("mode")
    pads = data_sizes.dims(node, 1, "pads")
    axes = [axis_of(axis, x.dim()) for axis in node.constants(3, "axes")] if node.has(3) else list(range(x.dim()))
    both: list[tuple[Number, Number]] = [(0, 0)] * x.dim()
    for i, axis in enumerate(axes):
        both[axis] = (pads[i], pads[i + len(axes)])
    if mode == "constant":
        return _padded(node, x, [size for low, high in reversed(both) for size in (low, high)])
    if mode not in ("reflect", "edge", "wrap"):
        raise NodeError(f"mode '{mode}'")
    for axis, (low, high) in enumerate(both):
        x = _padded_by_index(x, axis, low, high, mode) if not (isinstance(low, int) and isinstance(high, int) and low == high == 0) else x
    return x


def _padded(node: Node, x: Tensor, pads: list[Number]) -> Tensor:
    if not node.has(2):
        return F.pad(x, pads, value=0)
    if node.known(2) is not None:
        return F.pad(x, pads, value=node.number(2, "value"))
    inside = F.pad(torch.ones_like(x, dtype=torch.bool), pads, value=False)
    return torch.where(inside, F.pad(x, pads, value=0), node.tensor(2))


def _padded_by_index(x: Tensor, axis: int, low: Number, high: Number, mode: str) -> Tensor:
    """The elements at positions -low to size + high of the line that the mode makes of `axis`."""
    size = x.shape[axis]
    at = torch.arange(-low, size + high)
    if mode == "edge":
        at = torch.clamp(at, 0, size - 1)
    elif mode == "wrap":
        at = torch.remainder(at, size)
    else:
        period = 2 * (size - 1)
        at = torch.remainder(at, larger(period, 1))
        at = torch.where(at < size, at, period - at)
    return torch.index_select(x, axis, at)


def _depth_to_space(node: Node) -> Tensor:
    x, block = node.tensor(0), node.attr_int("blocksize")
    batch, depth, height, width = x.shape
    if node.attr_text("mode", "DCR") == "DCR":
        split, order = x.reshape(batch, block, block, depth // block**2, height, width), (0, 3, 4, 1, 5, 2)
    else:
        split, order = x.reshape(batch, depth // block**2, block, block, height, width), (0, 1, 4, 2, 5, 3)
    return split.permute(order).reshape(batch, depth // block**2, height * block, width * block)


def _space_to_depth(node: Node) -> Tensor:
    x, block = node.tensor(0), node.attr_int("blocksize")
    batch, depth, height, width = x.shape
    split = x.reshape(batch, depth, height // block, block, width // block, block)
    order = (0, 3, 5, 1, 2, 4) if node.attr_text("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return split.permute(order).reshape(batch, depth * block**2, height // block, width // block)


def _eye(node: Node) -> Tensor:
    x, offset = node.tensor(0), node.attr_int("k")
    dtype = node.attr_dtype("dtype") if node.given("dtype") else x.dtype
    rows, columns = torch.arange(x.shape[0]).unsqueeze(1), torch.arange(x.shape[1])
    return (columns - rows == offset).to(dtype)


def _triangle(node: Node) -> Tensor:
    diagonal = node.integer(1, "diagonal") if node.has(1) else 0
    x = node.tensor(0)
    if isinstance(diagonal, int):
        return torch.triu(x, diagonal) if node.attr_int("upper") else torch.tril(x, diagonal)
    apart = torch.arange(x.shape[-1]) - torch.arange(x.shape[-2]).unsqueeze(1)
    kept = apart >= diagonal if node.attr_int("upper") else apart <= diagonal
    return torch.where(kept, x, torch.zeros_like(x))


def _depth(node: Node) -> Number:
    return int(node.number(1, "depth")) if node.known(1) is not None else node.integer(1, "depth")


def _one_hot(node: Node) -> Tensor:
    indices, values = node.tensor(0), node.tensor(2)
    is_data = node.known(1) is None and node.sizes(1) is None
    depth = data_sizes.counted(node.tensor(1)) if is_data else _depth(node)
    axis = node.attr_int("axis") % (indices.dim() + 1)
    at = torch.where(indices < 0, indices + depth, indices).long().unsqueeze(axis)
    classes = torch.arange(depth).reshape([-1 if i == axis else 1 for i in range(indices.dim() + 1)])
    return torch.where(at == classes, values[1], values[0])


def _reverse_sequence(node: Node) -> Tensor:
    x, lengths = node.tensor(0), node.tensor(1)
    batch, time = node.attr_int("batch_axis"), node.attr_int("time_axis")
    moved = x.movedim((batch, time), (0, 1))
    steps = torch.arange(moved.shape[1])
    at = torch.where(steps < lengths.unsqueeze(1), lengths.unsqueeze(1) - 1 - steps, steps)
    at = at.reshape(*at.shape, *[1] * (x.dim() - 2)).expand(moved.shape)
    return torch.gather(moved, 1, at).movedim((0, 1), (batch, time))


def _carried(rule: Rule) -> Rule:
    """The same on tensors of narrow types, whose elements it moves and does not read."""

    def moved(node: Node) -> Result:
        kinds = [each.kind for each in node.inputs if isinstance(each, Narrow)]
        if not kinds:
            return rule(node)
        inputs = [each.stored if isinstance(each, Narrow) else each for each in node.inputs]
        results = rule(replace(node, inputs=inputs))
        parts = results if isinstance(results, tuple) else (results,)
        wrapped = tuple(Narrow(each, kinds[0]) if isinstance(each, Tensor) else each for each in parts)
        return wrapped if isinstance(results, tuple) else wrapped[0]

    return moved


RULES: dict[str, Rule] = {
    "Shape": _shape, "Size": _size, "Constant": _constant, "Reshape": _reshape, "Transpose": _transpose, "Slice": _slice, "Split": _split,
    "Concat": _concat, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Expand": _expand, "Flatten": _flatten, "Tile": _tile,
    "Range": _range, "ConstantOfShape": _constant_of_shape, "Pad": _pad, "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth, "EyeLike": _eye, "Trilu": _triangle, "OneHot": _one_hot, "ReverseSequence": _reverse_sequence,
}  # fmt: skip
MOVING = ("Shape", "Size", "Reshape", "Transpose", "Slice", "Split", "Concat", "Squeeze", "Unsqueeze", "Expand", "Flatten")
RULES |= {op: _carried(RULES[op]) for op in MOVING}
