"""Views, broadcasts, concatenation, padding, slices and creation of tensors."""

from __future__ import annotations

import math
import sys

import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import FloorDiv
from torch_mlir import ir

from disc.frontend.call import Call
from disc.frontend.locations import line_text
from disc.frontend.op_builder import OpBuilder, RuleError, Tensor, integers, is_static, wrap_dim
from disc.frontend.rules.elementwise import as_tensor, operand, scalar_tensor
from disc.frontend.rules.overrides import Fault, Override, Rule, overrides
from disc.frontend.symbols import Shape, Size, same_shape, same_size, to_shape, to_size

aten = torch.ops.aten
REFUSED, WRONG, WORSE = Fault.REFUSED, Fault.WRONG, Fault.WORSE


def reshape(e: OpBuilder, call: Call) -> Tensor:
    return e.reshape(call.tensor("self"), call.shape)


def view(e: OpBuilder, call: Call) -> Tensor:
    """Sizes that the user wrote as numbers are kept: PyTorch may know them only as quotients of symbols."""
    written = call.sizes("size" if "size" in call.arguments else "shape")
    shape = tuple(size if isinstance(size, int) and size >= 0 else found for size, found in zip(written, call.shape, strict=True))
    return e.reshape(call.tensor("self"), shape)


def squeeze(e: OpBuilder, call: Call) -> Tensor:
    """PyTorch takes a size that it does not know for one that is not 1; a size of 1 would give a result of another rank."""
    x = call.tensor("self")
    given = call.raw("dim")
    named = [call.integer("dim")] if isinstance(given, int) else [] if given is None else call.integers("dim")
    dims = range(x.rank) if given is None else [wrap_dim(dim, x.rank) for dim in named]
    for dim in dims if x.rank else ():
        if not isinstance(x.shape[dim], int):
            e.require("!=", x.shape[dim], 1, f"squeeze at {line_text(call.node)} would remove it")
    return reshape(e, call)


def swap(e: OpBuilder, x: Tensor, first: int, second: int) -> Tensor:
    order = list(range(x.rank))
    order[first], order[second] = order[second], order[first]
    return e.transpose(x, order)


def transpose(e: OpBuilder, call: Call) -> Tensor:
    x = call.tensor("self")
    if x.rank == 0:
        return x
    return swap(e, x, wrap_dim(call.integer("dim0"), x.rank), wrap_dim(call.integer("dim1"), x.rank))


def repeat(e: OpBuilder, call: Call) -> Tensor:
    x, repeats = call.tensor("self"), call.sizes("repeats")
    padded: Shape = (1,) * (len(repeats) - x.rank) + x.shape
    x = e.reshape(x, padded)
    spread = e.reshape(x, tuple(part for size in padded for part in (1, size)))
    wide = e.broadcast(spread, tuple(part for size, count in zip(padded, repeats, strict=True) for part in (count, size)))
    return e.reshape(wide, call.shape)


def _extreme(e: OpBuilder, kind: type[sympy.Max | sympy.Min], left: sympy.Expr, right: sympy.Expr, why: str) -> sympy.Expr:
    """The greater or the lesser of two sizes. Sympy takes the sizes of inputs to be positive: where it says by itself which one that is,
    it must be so in every call."""
    found = kind(left, right)
    for own, other in ((left, right), (right, left)):
        if found == own and own != other:
            e.require(">=" if kind is sympy.Max else "<=", to_size(own), to_size(other), why)
    return found


def needed_by(call: Call) -> str:
    return f"needed by {call.node.target} at {line_text(call.node)}"


def slice_start(e: OpBuilder, start: Size, size: Size, why: str) -> Size:
    """Where a slice begins: a start that may be negative counts from the end, and never falls below 0.

    A start beyond the end needs no clamp: the slice is empty then, and its size says so.
    """
    if isinstance(start, int) and isinstance(size, int):
        return min(max(start + size, 0) if start < 0 else start, size)
    if isinstance(start, int) and start < 0:
        wrapped = to_size(size + start)
        return wrapped if e.non_negative(wrapped) else to_size(sympy.Max(0, wrapped))
    if e.non_negative(start):
        return start
    return clamped(e, start, size, why)


def from_the_start(e: OpBuilder, place: Size, size: Size, why: str) -> Size:
    """A place that counts from the end of `size` where it is negative."""
    if e.non_negative(place):
        return place
    whole, bound = sympy.sympify(size), sympy.sympify(place)
    behind = _extreme(e, sympy.Max, -bound, sympy.Integer(0), why)
    return to_size(bound + whole * _extreme(e, sympy.Min, behind, sympy.Integer(1), why))


def clamped(e: OpBuilder, place: Size, size: Size, why: str) -> Size:
    """A bound of a slice as a place from 0 to `size`; a negative one counts from the end."""
    bound = sympy.sympify(from_the_start(e, place, size, why))
    return to_size(_extreme(e, sympy.Max, sympy.Integer(0), _extreme(e, sympy.Min, bound, sympy.sympify(size), why), why))


def _solve_slice(e: OpBuilder, call: Call, x: Tensor, dim: int) -> None:
    """What PyTorch takes for data, since it does not know on which side of 0, or of the end, the bounds lie, is a size that follows."""
    size, meta = x.shape[dim], call.results[0]
    why = needed_by(call)
    start = clamped(e, call.size("start"), size, why) if call.has("start") else 0
    end = clamped(e, call.size("end"), size, why) if call.has("end") and call.size("end") != sys.maxsize else size
    length = _extreme(e, sympy.Max, sympy.Integer(0), sympy.sympify(end) - start, why)
    step = call.integer("step")
    e.solve(meta, call.shape[dim], length if step == 1 else to_size(FloorDiv(length + step - 1, sympy.Integer(step))))


def slice_along(e: OpBuilder, x: Tensor, dim: int, start: Size, size: Size, step: int = 1) -> Tensor:
    starts: list[Size] = [0] * x.rank
    steps = [1] * x.rank
    starts[dim], steps[dim] = start, step
    return e.slice(x, starts, (*x.shape[:dim], size, *x.shape[dim + 1 :]), steps)


def slice_tensor(e: OpBuilder, call: Call) -> Tensor:
    x = call.tensor("self")
    dim, step = wrap_dim(call.integer("dim"), x.rank), call.integer("step")
    if e.is_unknown(call.shape[dim]):
        _solve_slice(e, call, x, dim)
    if same_size(call.shape[dim], x.shape[dim]) and step == 1:
        return x
    start: Size = call.size("start") if call.has("start") else 0
    return slice_along(e, x, dim, slice_start(e, start, x.shape[dim], needed_by(call)), call.shape[dim], step)


# Ops whose result is their first argument, changed in some places.
CHANGING = frozenset((
    aten.slice_scatter.default, aten.select_scatter.default, aten.index_copy.default, aten.index_put.default, aten.scatter.src,
))  # fmt: skip


def changes_kept(e: OpBuilder, call: Call) -> bool:
    """Whether a call changes places of a buffer of which the program makes a next value: its result may then lie where that does, and an
    op that writes these places alone is the better form."""
    source = call.node.args[0]
    while isinstance(source, fx.Node) and (source.target in CHANGING or _is_whole(source)):
        source = source.args[0]
    return source in e.kept


def _is_whole(node: fx.Node) -> bool:
    """Whether a node is a slice of all of its argument."""
    source = node.args[0] if node.target == aten.slice.Tensor else None
    return isinstance(source, fx.Node) and same_shape(*(to_shape(each.meta["val"].shape) for each in (node, source)))


def _written_at(e: OpBuilder, x: Tensor, part: Tensor, dim: int, start: Size) -> Tensor:
    """`x` with a part of it written from `start` on along a dim, where there is room for it."""
    starts = [e.size_scalar(start if axis == dim else 0, torch.int64).value for axis in range(x.rank)]
    return e.op("stablehlo.dynamic_update_slice", [x.value, part.value, *starts], x.shape, x.dtype)


def slice_scatter(e: OpBuilder, call: Call) -> Tensor:
    x = call.tensor("self")
    source = e.convert(call.tensor("src"), x.dtype)
    if x.rank == 0 or source.rank != x.rank:
        raise RuleError(f"a part of {source.rank} dims of a tensor of {x.rank} dims; PyTorch refuses it too")
    dim = wrap_dim(call.integer("dim"), x.rank)
    why = f"{call.node.target} at {line_text(call.node)} writes all of its slice"
    start = slice_start(e, call.size("start") if call.has("start") else 0, x.shape[dim], why)
    end = call.size("end") if call.has("end") else sys.maxsize
    stop = x.shape[dim] if end == sys.maxsize else slice_start(e, end, x.shape[dim], why)
    if call.integer("step") != 1:
        if source.shape[dim] == 0:
            return x
        source = _every_nth(e, x, source, dim, (start, stop, call.integer("step")), why)
    after = to_size(sympy.sympify(start) + source.shape[dim])
    for other, (size, wanted) in enumerate(zip(source.shape, x.shape, strict=True)):
        e.require("==", *((after, stop) if other == dim else (size, wanted)), why)
    e.require(">=", x.shape[dim], after, why)
    if changes_kept(e, call) and not same_shape(source.shape, x.shape):
        return _written_at(e, x, source, dim, start)
    rest = to_size(sympy.sympify(x.shape[dim]) - after)
    pieces = [slice_along(e, x, dim, 0, start), source, slice_along(e, x, dim, after, rest)]
    kept = [piece for piece in pieces if piece.shape[dim] != 0]
    return Tensor(e.concatenate(kept, dim).value, x.shape, x.dtype)


def _every_nth(e: OpBuilder, x: Tensor, source: Tensor, dim: int, part: tuple[Size, Size, int], why: str) -> Tensor:
    """x[start:stop] with the elements of `source` at every `step`-th place."""
    start, stop, step = part
    size, shape = to_size(sympy.sympify(stop) - start), source.shape
    e.require(">=", stop, start, why)
    e.require("==", shape[dim], to_size(FloorDiv(sympy.sympify(size) + step - 1, sympy.Integer(step))), why)
    repeated = e.broadcast(e.unsqueeze(source, dim + 1), (*shape[: dim + 1], step, *shape[dim + 1 :]))
    spread = e.reshape(repeated, (*shape[:dim], to_size(sympy.sympify(shape[dim]) * step), *shape[dim + 1 :]))
    position = e.iota(tuple(size if i == dim else 1 for i in range(x.rank)), dim, torch.int64)
    hit = e.compare("eq", e.binary("remainder", position, e.scalar(step, torch.int64)), e.scalar(0, torch.int64))
    old, new = slice_along(e, x, dim, start, size), slice_along(e, spread, dim, 0, size)
    return e.select(e.broadcast(hit, new.shape), new, old)


def _with_dims(call: Call) -> Tensor:
    x = call.tensor("self")
    if not x.rank:
        raise RuleError("a tensor without dims has no dim to select from")
    return x


def _selected(e: OpBuilder, call: Call, index: Size, size: Size) -> Size:
    """The place that an index selects; a negative one counts from the end."""
    if isinstance(index, int) and index < 0:
        return to_size(sympy.sympify(size) + index)
    return from_the_start(e, index, size, needed_by(call))


def select(e: OpBuilder, call: Call) -> Tensor:
    x = _with_dims(call)
    dim = wrap_dim(call.integer("dim"), x.rank)
    index = call.size("index")
    start = _selected(e, call, index, x.shape[dim])
    return e.reshape(slice_along(e, x, dim, start, 1), call.shape)


def select_scatter(e: OpBuilder, call: Call) -> Tensor:
    x = _with_dims(call)
    dim = wrap_dim(call.integer("dim"), x.rank)
    index = call.size("index")
    if isinstance(index, int):
        least = index + 1 if index >= 0 else -index
        e.require(">=", x.shape[dim], least, f"{call.node.target} at {line_text(call.node)} writes at {index}")
    start = _selected(e, call, index, x.shape[dim])
    position = e.iota(tuple(size if i == dim else 1 for i, size in enumerate(x.shape)), dim, torch.int64)
    hit = e.compare("eq", position, e.size_scalar(start, torch.int64))
    source = e.convert(call.tensor("src"), x.dtype)
    rest = [*x.shape[:dim], *x.shape[dim + 1 :]]
    if source.rank != len(rest):
        raise RuleError(f"src has {source.rank} dims where the selected part has {len(rest)}")
    for size, wanted in zip(source.shape, rest, strict=True):
        e.require("==", size, wanted, f"{call.node.target} at {line_text(call.node)} writes all of what is selected")
    source = e.unsqueeze(source, dim)
    if changes_kept(e, call) and e.non_negative(start):
        e.require(">=", x.shape[dim], to_size(sympy.sympify(start) + 1), f"{call.node.target} at {line_text(call.node)} writes within")
        return _written_at(e, x, source, dim, start)
    return e.select(e.broadcast(hit, x.shape), e.broadcast(source, x.shape), x)


def split(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    x = call.tensor("self")
    dim = wrap_dim(call.integer("dim"), x.rank)
    pieces, start = [], sympy.Integer(0)
    for result in call.results:
        size = to_shape(result.shape)[dim]
        pieces.append(slice_along(e, x, dim, to_size(start), size))
        start = start + size
    return tuple(pieces)


def unbind(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    x = call.tensor("self")
    dim = wrap_dim(call.integer("dim"), x.rank)
    return tuple(e.reshape(slice_along(e, x, dim, i, 1), to_shape(result.shape)) for i, result in enumerate(call.results))


def roll(e: OpBuilder, call: Call) -> Tensor:
    x, shifts, dims = call.tensor("self"), call.sizes("shifts"), call.integers("dims")
    if not dims and len(shifts) == 1:
        flat = e.reshape(x, (to_size(math.prod(map(sympy.sympify, x.shape))),))
        return e.reshape(_rolled(e, flat, shifts[0], 0), call.shape)
    if len(shifts) != len(dims) or not shifts:
        raise RuleError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")  # eager's words
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(e, x, shift, wrap_dim(dim, x.rank))
    return x


def _rolled(e: OpBuilder, x: Tensor, shift: Size, dim: int) -> Tensor:
    """Of a dynamic dim a part of x behind x, as long as x: behind the elements of the first one that do not come first. These are the shift
    modulo the size, which is taken for 1 where it is 0: sympy knows nothing of that, its sizes are positive."""
    size = x.shape[dim] if x.rank else 1
    if isinstance(size, int) and isinstance(shift, int):
        moved = shift % max(size, 1)  # elements of the end that come first
        return e.concatenate([slice_along(e, x, dim, size - moved, moved), slice_along(e, x, dim, 0, size - moved)], dim)
    twice, s = e.concatenate([x, x], dim), e.sizes
    back = isinstance(shift, int) and shift < 0
    whole, distance = s.emit(size), s.emit(abs(shift) if back else shift)
    divisor = s.binary("arith.maxsi", whole, s.constant(1))
    turns = s.binary("arith.floordivsi", distance, divisor)
    rest = s.binary("arith.subi", distance, s.binary("arith.muli", turns, divisor))
    start = rest if back else s.binary("arith.subi", whole, rest)
    index = ir.RankedTensorType.get([x.rank], ir.IndexType.get())

    def along(value: ir.Value, others: list[ir.Value]) -> ir.Value:
        elements = [value if each == dim else other for each, other in enumerate(others)]
        return ir.Operation.create("tensor.from_elements", results=[index], operands=elements).result

    starts = along(start, [s.constant(0)] * x.rank)
    limits = along(s.binary("arith.addi", start, whole), [s.emit(each) for each in x.shape])
    return e.op("stablehlo.real_dynamic_slice", [twice.value, starts, limits, e.shape_operand([1] * x.rank)], x.shape, x.dtype)


def pad(e: OpBuilder, call: Call) -> Tensor:
    x, amounts = call.tensor("self"), call.sizes("pad")
    value = as_tensor(e, operand(call, "value"), x.dtype) if call.has("value") else e.scalar(0, x.dtype)
    low: list[Size] = [0] * x.rank
    high: list[Size] = [0] * x.rank
    for i in range(len(amounts) // 2):
        low[x.rank - 1 - i], high[x.rank - 1 - i] = amounts[2 * i], amounts[2 * i + 1]
    return pad_edges(e, x, value, low, high, call.shape)


def pad_edges(e: OpBuilder, x: Tensor, value: Tensor, low: list[Size], high: list[Size], shape: Shape) -> Tensor:
    interior = [0] * x.rank
    if is_static(tuple(low)) and is_static(tuple(high)):
        amounts = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": interior}
        return e.op(
            "stablehlo.pad", [x.value, value.value], shape, x.dtype, **{k: integers([int(i) for i in v]) for k, v in amounts.items()}
        )
    operands = [x.value, value.value, e.shape_operand(low), e.shape_operand(high), e.shape_operand(interior)]
    return e.op("stablehlo.dynamic_pad", operands, shape, x.dtype)


def full(e: OpBuilder, call: Call) -> Tensor:
    return e.broadcast(as_tensor(e, operand(call, "fill_value"), call.dtype), call.shape)


def filled(value: int) -> Rule:
    return lambda e, call: e.full(value, call.shape, call.dtype)


def arange(e: OpBuilder, call: Call) -> Tensor:
    """start + step * iota, in integers when the bounds are; for integer results, eager cuts the fractions off start and step first."""
    start, step = operand(call, "start"), operand(call, "step") if call.has("step") else 1
    if isinstance(start, Tensor) or isinstance(step, Tensor):
        raise RuleError("arange over tensors")
    if not call.dtype.is_floating_point:
        start, step = (math.trunc(each) if isinstance(each, float) else each for each in (start, step))
    whole = not isinstance(start, float) and not isinstance(step, float)
    values = e.iota(call.shape, 0, call.dtype if whole else torch.float64)
    if step != 1:
        values = e.binary("multiply", values, as_tensor(e, step, values.dtype))
    if start != 0:
        values = e.binary("add", values, as_tensor(e, start, values.dtype))
    return e.convert(values, call.dtype)


OVERRIDES: dict[object, Override] = {
    **overrides(REFUSED, "sizes that are products of dynamic ones", {
        aten.view.default: view, aten._unsafe_view.default: view, aten.reshape.default: view,
        aten.flatten.using_ints: reshape, aten.unflatten.int: reshape, aten.view_copy.default: reshape,
    }),
    **overrides(REFUSED, "of dynamic dims", {aten.squeeze.default: squeeze, aten.squeeze.dim: squeeze, aten.squeeze.dims: squeeze}),
    **overrides(REFUSED, "of a tensor without dims", {aten.transpose.int: transpose}),
    **overrides(REFUSED, "of bytes without dims, or a number computed from sizes", {aten.full_like.default: full}),
    **overrides(REFUSED, "no StableHLO lowering", {
        aten.repeat.default: repeat, aten.unbind.int: unbind,
    }),
    **overrides(WRONG, "-1 as the end of a dim of size 1", {aten.slice.Tensor: slice_tensor}),
    **overrides(REFUSED, "a part of another size", {aten.slice_scatter.default: slice_scatter}),
    **overrides(WRONG, "a part that does not fit", {aten.select_scatter.default: select_scatter}),
    **overrides(WORSE, "a clamp of the place", {aten.select.int: select}),
    **overrides(REFUSED, "parts of a dynamic size", {
        aten.split.Tensor: split, aten.split_with_sizes.default: split, aten.chunk.default: split,
    }),
    **overrides(WORSE, "a gather along dynamic dims", {aten.roll.default: roll}),
    **overrides(REFUSED, "padding by a dynamic size", {aten.constant_pad_nd.default: pad}),
    **overrides(REFUSED, "of bytes", {
        aten.full.default: full, aten.new_full.default: full, aten.scalar_tensor.default: scalar_tensor,
    }),
    **overrides(REFUSED, "of a dynamic size", {
        aten.zeros.default: filled(0), aten.new_zeros.default: filled(0), aten.ones.default: filled(1), aten.new_ones.default: filled(1),
    }),
    # Uninitialised memory may hold anything; zero is the reproducible choice.
    **overrides(REFUSED, "no StableHLO lowering", {
        aten.empty.memory_format: filled(0), aten.empty_like.default: filled(0), aten.new_empty.default: filled(0),
        aten.empty_strided.default: filled(0), aten.empty_permuted.default: filled(0),
    }),
    **overrides(REFUSED, "steps back", {aten.arange.start_step: arange}),
}  # fmt: skip
