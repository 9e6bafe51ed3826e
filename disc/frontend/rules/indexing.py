"""Gathers and scatters: embedding, advanced indexing, gather, scatter, index_put."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
from torch import fx
from torch_mlir import ir

from disc.frontend.call import Call
from disc.frontend.locations import line_text
from disc.frontend.op_builder import OpBuilder, RuleError, Tensor, wrap_dim
from disc.frontend.rules.elementwise import Operand, as_tensor, operand
from disc.frontend.rules.overrides import Fault, Override, Rule, overrides
from disc.frontend.rules.places import as_mask, coordinates, positions, scatter_at, take
from disc.frontend.symbols import Shape, Size, product, same_shape, same_size, to_shape, to_size

aten = torch.ops.aten
REFUSED, WRONG = Fault.REFUSED, Fault.WRONG

SHAPE_ONLY = (
    aten.unsqueeze.default, aten.expand.default, aten.view.default, aten.slice.Tensor, aten.permute.default, aten.clone.default,
    aten.squeeze.dims, aten.squeeze.dim, aten._to_copy.default, aten.reshape.default, aten.transpose.int, aten.select.int,
)  # fmt: skip


def is_non_negative(node: object) -> bool:
    """Whether an index is visibly ≥ 0: a constant, an arange from a non-negative start, sums, products and views of such."""
    pending, seen = [node], set[fx.Node]()
    while pending:
        current = pending.pop()
        if isinstance(current, fx.Node) and current in seen:
            continue
        needed = _non_negative_if(current)
        if needed is None:
            return False
        pending += needed
        if isinstance(current, fx.Node):
            seen.add(current)
    return True


def _non_negative_if(node: object) -> Sequence[object] | None:
    """What must be ≥ 0 for `node` to be; None where it may be negative all the same."""
    if isinstance(node, bool | int | float):
        return () if node >= 0 else None
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return None
    if node.target in SHAPE_ONLY:
        return node.args[:1]
    if node.target in (aten.add.Tensor, aten.mul.Tensor, aten.add.Scalar, aten.mul.Scalar, operator.add, operator.mul):
        return None if node.kwargs else node.args
    if node.target == aten.arange.start_step:
        start, _, step = (*node.args, 1)[:3]
        return () if isinstance(start, int) and start >= 0 and isinstance(step, int) and step > 0 else None
    return None


def wrapped(e: OpBuilder, index: Tensor, size: Size) -> Tensor:
    """Negative indices count from the end."""
    negative = e.compare("lt", index, e.scalar(0, index.dtype))
    return e.select(negative, e.binary("add", index, e.size_scalar(size, index.dtype)), index)


def index_vectors(e: OpBuilder, indices: Sequence[Tensor]) -> tuple[Tensor, bool]:
    """Index tensors, broadcast together, as one tensor; the flag says whether its last dim is the index vector.

    Raises: RuleError without any.
    """
    if not indices:
        raise RuleError("indexing without an index")
    if len(indices) == 1:
        return indices[0], False
    shape: Shape = ()
    for index in indices:
        shape = e.broadcast_shape(shape, index.shape)
    columns = [e.unsqueeze(e.broadcast(e.convert(index, torch.int64), shape), len(shape)) for index in indices]
    return e.concatenate(columns, len(shape)), True


def index_select(e: OpBuilder, call: Call) -> Tensor:
    x, index = call.tensor("self"), call.tensor("index")
    dim = wrap_dim(call.integer("dim"), x.rank)
    if x.rank == 0:
        if index.rank and index.shape[0] != 1:
            e.require("==", index.shape[0], 1, f"{call.node.target} at {line_text(call.node)} takes one element of a tensor without dims")
        return x
    result = take(e, x, e.reshape(index, (index.shape[0],)) if index.rank else e.reshape(index, (1,)), [dim], vector=False)
    order = [*range(1, dim + 1), 0, *range(dim + 1, x.rank)]
    return e.transpose(result, order)


def checked_indices(e: OpBuilder, call: Call, x: Tensor) -> tuple[list[int], list[Tensor]]:
    """The indexed dims and their index tensors, made non-negative. A mask stands for the indices of its dims where it is true."""
    nodes = call.node.args[1]
    assert isinstance(nodes, list | tuple)
    dims: list[int] = []
    indices: list[Tensor] = []
    given = call.optional_tensors("indices")
    dim = 0
    for place, index in enumerate(given):
        if index is not None and is_mask(index):
            found = true_positions(e, call, x, index, dim)
            indices += coordinates(e, found, index.shape)
            dims += range(dim, dim + index.rank)
        elif index is not None and dim < x.rank:
            indices.append(index if is_non_negative(nodes[place]) else wrapped(e, index, x.shape[dim]))
            dims.append(dim)
        dim += index.rank if index is not None and is_mask(index) else 1
    if dim > x.rank:
        raise RuleError(f"{dim} indices into a tensor with {x.rank} dims")
    return dims, indices


def is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def true_positions(e: OpBuilder, call: Call, x: Tensor, mask: Tensor, dim: int, size: Size | None = None) -> Tensor:
    """[n] i64: where a mask of the dims of x from `dim` on is true. size: as of `positions`.

    Raises: RuleError for a mask without dims.
    """
    if not mask.rank or dim + mask.rank > x.rank:
        raise RuleError(f"a mask with {mask.rank} dims at dim {dim} of a tensor with {x.rank}")
    for own, other in zip(mask.shape, x.shape[dim : dim + mask.rank], strict=True):
        e.require("==", own, other, f"the mask of {call.node.target} at {line_text(call.node)} is as large as what it masks")
    return positions(e, as_mask(e, mask), size, f"the number of elements that the mask of {call.node.target} selects")


def advanced_order(dims: Sequence[int], index_rank: int, rank: int) -> list[int]:
    """The permutation from [index dims..., kept dims...] to PyTorch's order: index dims stand where adjacent indexed dims stood."""
    adjacent = list(dims) == list(range(dims[0], dims[0] + len(dims)))
    before = dims[0] if adjacent else 0
    kept = rank - len(dims)
    return [*range(index_rank, index_rank + before), *range(index_rank), *range(index_rank + before, index_rank + kept)]


def index(e: OpBuilder, call: Call) -> Tensor:
    x = call.tensor("self")
    given = [(dim, each) for dim, each in enumerate(call.optional_tensors("indices")) if each is not None]
    if len(given) == 1 and is_mask(given[0][1]):
        return masked(e, call, x, given[0][1], given[0][0])
    dims, indices = checked_indices(e, call, x)
    vectors, vector = index_vectors(e, indices)
    result = take(e, x, vectors, dims, vector)
    return e.transpose(result, advanced_order(dims, vectors.rank - vector, x.rank))


def masked(e: OpBuilder, call: Call, x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """What a mask of the dims from `dim` on selects: the dims that it masks are one in the result."""
    found = true_positions(e, call, x, mask, dim, call.shape[dim])
    behind = x.shape[dim + mask.rank :]
    taken = take(e, e.reshape(x, (*x.shape[:dim], product(mask.shape), *behind)), found, [dim], vector=False)
    return e.transpose(taken, [*range(1, dim + 1), 0, *range(dim + 1, dim + 1 + len(behind))])


def element_vectors(e: OpBuilder, index: Tensor, dim: int) -> Tensor:
    """The full coordinate of each element of `index`, which replaces the coordinate along `dim`."""
    index = e.convert(index, torch.int64)
    columns = [e.unsqueeze(index if i == dim else e.iota(index.shape, i, torch.int64), index.rank) for i in range(index.rank)]
    return e.concatenate(columns, index.rank)


def gather(e: OpBuilder, call: Call) -> Tensor:
    x, position = call.tensor("self"), call.tensor("index")
    if x.rank == 0:
        return e.reshape(x, position.shape)
    return gathered(e, x, position, wrap_dim(call.integer("dim"), x.rank))


def gathered(e: OpBuilder, x: Tensor, position: Tensor, dim: int) -> Tensor:
    """The elements of `x` at positions along a dim, in their places along the other dims."""
    if x.rank == 1:
        return take(e, x, position, [0], vector=False)
    return take(e, x, element_vectors(e, position, dim), list(range(x.rank)), vector=True)


def _with_dims(e: OpBuilder, x: Tensor) -> Tensor:
    """A tensor without dims as one of one element, as PyTorch treats it among others with a dim."""
    return x if x.rank else e.reshape(x, (1,))


def scatter_rule(kind: str | None) -> Rule:
    def rule(e: OpBuilder, call: Call) -> Tensor:
        source = operand(call, "src" if "src" in call.arguments else "value")
        return _scattered(e, call, call.tensor("self"), source, kind)

    return rule


def _scattered(e: OpBuilder, call: Call, x: Tensor, source: Operand, kind: str | None) -> Tensor:
    """`x`, a tensor like `self`, with the elements of `source` written where `index` says, or combined with what stands there."""
    x, position = _with_dims(e, x), _with_dims(e, call.tensor("index"))
    dim = wrap_dim(call.integer("dim"), x.rank)
    if isinstance(source, Tensor):
        source = _with_dims(e, source)
        updates = e.slice(source, [0] * source.rank, position.shape, [1] * source.rank)
    else:
        updates = e.broadcast(as_tensor(e, source, x.dtype), position.shape)
    written = scatter_at(e, x, element_vectors(e, position, dim), updates, list(range(x.rank)), True, kind)
    return e.reshape(written, call.shape)


def index_write(kind: str | None) -> Rule:
    """Slices of `source` written or added along a dim; a negative index is out of range, other than for `index_put`."""

    def rule(e: OpBuilder, call: Call) -> Tensor:
        given = [call.tensor(name) for name in ("self", "index", "source")]
        x, index, source = (_with_dims(e, each) for each in given)
        dim, source = wrap_dim(call.integer("dim"), x.rank), e.convert(source, call.dtype)
        if source.rank != x.rank or index.rank != 1 or (kind == "add" and given[0].rank != given[2].rank):
            raise RuleError(f"a source with {given[2].rank} dims, an index with {index.rank}, for a tensor with {given[0].rank}")
        e.require("==", source.shape[dim], index.shape[0], f"{call.node.target} at {line_text(call.node)} has an index for each slice")
        if call.has("alpha") and (scale := operand(call, "alpha")) != 1:
            source = e.binary("multiply", source, as_tensor(e, scale, source.dtype))
        updates = e.transpose(source, [dim, *(i for i in range(x.rank) if i != dim)])
        return e.reshape(scatter_at(e, x, e.convert(index, torch.int64), updates, [dim], False, kind), call.shape)

    return rule


def scatter_reduce(e: OpBuilder, call: Call) -> Tensor:
    """With include_self=False what is written over begins at the identity; a mean is the sum over the count."""
    kinds = {"sum": "add", "mean": "add", "prod": "multiply", "amax": "maximum", "amin": "minimum"}
    reduction, included, x = call.text("reduce") or "", call.flag("include_self"), call.tensor("self")
    if reduction not in kinds or (reduction == "mean" and not x.dtype.is_floating_point):
        raise RuleError(f"scatter_reduce of kind {reduction!r} of {x.dtype}")
    source = operand(call, "src")
    if included and reduction != "mean":
        return _scattered(e, call, x, source, kinds[reduction])
    touched = _scattered(e, call, e.full(False, x.shape, torch.bool), True, None)
    start = x if included else e.select(touched, e.full(_identity(reduction, x.dtype), x.shape, x.dtype), x)
    result = _scattered(e, call, start, source, kinds[reduction])
    if reduction != "mean":
        return result
    count = _scattered(e, call, e.full(int(included), x.shape, x.dtype), 1, "add")
    return e.select(touched, e.binary("divide", result, count), x)


def _identity(reduction: str, dtype: torch.dtype) -> int | float:
    if reduction not in ("amax", "amin"):
        return int(reduction == "prod")
    if dtype.is_floating_point:
        return -math.inf if reduction == "amax" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if reduction == "amax" else limits.max


def index_put(e: OpBuilder, call: Call) -> Tensor:
    x, values = call.tensor("self"), call.tensor("values")
    given = call.optional_tensors("indices")
    if len(given) == 1 and given[0] is not None and is_mask(given[0]) and all(size == 1 for size in values.shape):
        return put_mask(e, call, x, as_mask(e, given[0]), e.convert(values, x.dtype))
    dims, indices = checked_indices(e, call, x)
    vectors, vector = index_vectors(e, indices)
    index_shape = vectors.shape[:-1] if vector else vectors.shape
    canonical = (*index_shape, *(size for i, size in enumerate(x.shape) if i not in dims))
    order = advanced_order(dims, len(index_shape), x.rank)
    if values.rank > len(canonical):
        raise RuleError(f"values with {values.rank} dims do not fit {len(canonical)} indexed dims")
    spread = e.broadcast(e.convert(values, x.dtype), tuple(canonical[i] for i in order))
    updates = e.transpose(spread, sorted(range(len(order)), key=order.__getitem__))
    return scatter_at(e, x, vectors, updates, dims, vector, "add" if call.flag("accumulate") else None)


def put_mask(e: OpBuilder, call: Call, x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    """x[mask] = one value."""
    value = e.reshape(values, ())
    if call.flag("accumulate"):
        value = e.binary("add", x, value)
    condition = e.broadcast(e.reshape(mask, (*mask.shape, *[1] * (x.rank - mask.rank))), x.shape)
    return e.select(condition, value, x)


def as_strided(e: OpBuilder, call: Call) -> Tensor:
    """The same elements under strides that differ in dims of size 1 alone, as pooling writes for channels-last images; or any elements of
    what the program has computed itself, whose memory no caller has laid out."""
    source, after = call.node.args[0], call.node.meta["val"]
    before = source.meta["val"] if isinstance(source, fx.Node) else after
    if same_shape(to_shape(before.shape), call.shape) and same_size(to_size(before.storage_offset()), to_size(after.storage_offset())):
        strides = zip(call.shape, to_shape(before.stride()), to_shape(after.stride()), strict=True)
        if all(size == 1 or same_size(old, new) for size, old, new in strides):
            return call.tensor("self")
    if not isinstance(source, fx.Node) or not _owns_memory(source):
        raise RuleError("it reads memory in another order, or under other sizes")
    x = call.tensor("self")
    position = e.broadcast(e.size_scalar(to_size(after.storage_offset()), torch.int64), call.shape)
    for dim, stride in enumerate(to_shape(after.stride())):
        step = e.binary("multiply", e.iota(call.shape, dim, torch.int64), e.size_scalar(stride, torch.int64))
        position = e.binary("add", position, step)
    return take(e, e.reshape(x, (product(x.shape),)), position, [0], vector=False)


def _owns_memory(node: fx.Node) -> bool:
    """Whether the op writes a new tensor, whose elements lie one after the other."""
    if not isinstance(node.target, torch._ops.OpOverload) or any(each.alias_info for each in node.target._schema.arguments):
        return False
    x, size = node.meta["val"], 1
    for length, stride in reversed(list(zip(to_shape(x.shape), to_shape(x.stride()), strict=True))):
        if length != 1 and not same_size(stride, size):
            return False
        size = product((length, size))
    return same_size(to_size(x.storage_offset()), 0)


def diagonal(e: OpBuilder, call: Call) -> Tensor:
    x = call.tensor("self")
    first, second = wrap_dim(call.integer("dim1"), x.rank), wrap_dim(call.integer("dim2"), x.rank)
    offset = call.integer("offset")
    along = e.iota((call.shape[-1],), 0, torch.int64)
    shifted = e.binary("add", along, e.scalar(abs(offset), torch.int64)) if offset else along
    rows, columns = (shifted, along) if offset < 0 else (along, shifted)
    vectors, _ = index_vectors(e, [rows, columns])
    result = take(e, x, vectors, [first, second], vector=True)
    return e.transpose(result, [*range(1, result.rank), 0])


def unfold(e: OpBuilder, call: Call) -> Tensor:
    """Windows of `size` elements every `step` along a dim; the elements of a window come last."""
    x, size, step = call.tensor("self"), call.size("size"), call.integer("step")
    if x.rank == 0:  # as if it had one element, whether or not a window of `size` finds room
        return e.slice(e.reshape(x, (1,)), [0], call.shape, [1])
    dim = wrap_dim(call.integer("dimension"), x.rank)
    e.require(">=", x.shape[dim], size, f"{call.node.target} at {line_text(call.node)} finds room for a window")
    shape = (*x.shape[:dim], call.shape[dim], *x.shape[dim + 1 :], size)
    i64 = ir.IntegerType.get_signless(64)
    attributes = {"dim": ir.IntegerAttr.get(i64, dim), "step": ir.IntegerAttr.get(i64, step)}
    return e.op("disc.dynamic_unfold", [x.value, e.shape_operand(shape)], shape, x.dtype, **attributes)


OVERRIDES: dict[object, Override] = {
    **overrides(REFUSED, "an index, or a tensor, without dims", {aten.index_select.default: index_select, aten.gather.default: gather}),
    **overrides(REFUSED, "a single index; several are wrong where they are negative", {aten.index.Tensor: index}),
    **overrides(WRONG, "negative indices", {
        aten.index_put.default: index_put, aten._unsafe_index_put.default: index_put,
    }),
    **overrides(REFUSED, "a tensor without dims", {
        aten.scatter.src: scatter_rule(None), aten.scatter.value: scatter_rule(None), aten.scatter_add.default: scatter_rule("add"),
    }),
    **overrides(REFUSED, "no StableHLO lowering", {
        aten._unsafe_index.Tensor: index, aten.as_strided.default: as_strided, aten.diagonal.default: diagonal, aten.unfold.default: unfold,
        aten.index_add.default: index_write("add"), aten.index_copy.default: index_write(None), aten.scatter_reduce.two: scatter_reduce,
    }),
}  # fmt: skip
