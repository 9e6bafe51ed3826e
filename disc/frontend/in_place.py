"""Writes in place that can be read as new values: where they touch nothing but the result of one op, or a part of it, the graph needs no
retracing."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.frontend.locations import line_text

aten = torch.ops.aten

# Ops whose result is always new memory, although PyTorch composes them of others.
NEW_MEMORY = (aten.linear.default, aten.matmul.default, aten.layer_norm.default, aten.batch_norm.default,
              aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)  # fmt: skip
# Views, whatever their schemas say.
HIDDEN_VIEWS = (aten._unsafe_view.default, aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default)
# Their results are parts of a tensor that do not overlap. PyTorch's cells write into such parts.
SPLITS = (aten.unsafe_chunk.default, aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default,
          aten.chunk.default, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)  # fmt: skip
CHANGES_NOTHING = (aten.detach_.default,)  # writes no element
DROPOUTS: Mapping[object, torch._ops.OpOverload] = {
    aten.dropout_.default: aten.dropout.default,
    aten.feature_dropout_.default: aten.feature_dropout.default,
    aten.alpha_dropout_.default: aten.alpha_dropout.default,
    aten.feature_alpha_dropout_.default: aten.feature_alpha_dropout.default,
}
# A part of a tensor → the op that gives the tensor with another such part.
PARTS: Mapping[object, torch._ops.OpOverload] = {
    aten.slice.Tensor: aten.slice_scatter.default,
    aten.select.int: aten.select_scatter.default,
}


class RetraceError(Exception):
    """The graph writes memory that may have two names, or calls another graph: PyTorch has to trace it anew."""


@dataclass(frozen=True)
class Write:
    """op: computes what is written. written: the nodes that mean this value from there on; where it is a part of their memory, `parts` are
    the views that lead to it, each of the one before."""

    op: torch._ops.OpOverload
    written: tuple[fx.Node, ...]
    parts: tuple[fx.Node, ...] = ()


def local_writes(graph: fx.Graph, mode: FakeTensorMode) -> Mapping[fx.Node, Write]:
    """Every node that writes in place, as the op that gives the same as a new value. mode: made the values of the graph.

    Raises: UnsupportedOpError for a write that does not fit.
    Raises: RetraceError when what is written may be memory of another value too (an input, a weight, a view), or no op gives the same.
    """
    writes: dict[fx.Node, Write] = {}
    names: dict[fx.Node, tuple[fx.Node, ...]] = {}  # node → all nodes so far that are the same memory, the op that made it first
    latest: dict[fx.Node, fx.Node] = {}  # op that made some memory → what wrote there last
    for node in graph.nodes:
        if not _is_writing(node):
            continue
        target = node.args[0] if node.args else None
        if not isinstance(target, fx.Node):  # a list of tensors, or given by name
            raise RetraceError(str(node.target))
        if _is_without_effect(node):
            writes[node] = Write(DROPOUTS[node.target], (node,))
            continue
        op = _functional(node, mode)
        whole, parts = _parts(target)
        same = names.get(whole, (whole,))
        written = {part for write in writes.values() for part in write.parts}  # parts that nothing reads any more
        readers = [user for each in same for user in each.users if user not in same and user < node and user not in (*parts, *written)]
        is_own = _is_new_memory(same[0]) or _is_apart(same[0], names)
        if op is None or not is_own or not all(_is_past(each, node) for each in readers):
            raise RetraceError(str(node.target))
        last = latest.get(same[0])
        if last is not None and writes[last].parts and any(user > node for user in last.users):
            raise RetraceError(str(node.target))  # the part as it was before
        if parts:
            if any(len(part.users) > 1 or (last is not None and part < last) for part in parts) or not all(
                map(_only_reads(node), node.users)
            ):
                raise RetraceError(str(node.target))
            writes[node] = Write(op, same, parts)
        else:
            writes[node] = Write(op, (*same, node))
            names |= dict.fromkeys((*same, node), (*same, node))
        latest[same[0]] = node
    return writes


def _parts(target: fx.Node) -> tuple[fx.Node, tuple[fx.Node, ...]]:
    """The tensor of which `target` is a part, and the views that lead there from it."""
    parts: list[fx.Node] = []
    while target.target in PARTS and isinstance(target.args[0], fx.Node):
        parts.insert(0, target)
        target = target.args[0]
    return target, tuple(parts)


def _is_apart(part: fx.Node, names: Mapping[fx.Node, tuple[fx.Node, ...]]) -> bool:
    """Whether it is one of the parts into which new memory was split, and nothing else has a name for it."""
    split = part.args[0] if part.target is operator.getitem else None
    if not isinstance(split, fx.Node) or split.target not in SPLITS or not isinstance(source := split.args[0], fx.Node):
        return False
    same = names.get(source, (source,))
    readers = [user for each in same for user in each.users if user not in (*same, split)]
    others = [user for user in split.users if user is not part]
    return (
        _is_new_memory(same[0])
        and all(reader < split and _is_past(reader, split) for reader in readers)
        and all(other.target is operator.getitem and other.args[1] != part.args[1] for other in others)
    )


def _is_past(reader: fx.Node, write: fx.Node) -> bool:
    """Whether nothing reads the memory by way of `reader`, which stands before `write`, after it."""
    if _is_new_memory(reader):
        return True
    return not _is_writing(reader) and all(user < write and _is_past(user, write) for user in reader.users)


def _only_reads(value: fx.Node) -> Callable[[fx.Node], bool]:
    """Whether a user of `value` gives no other name to its memory."""
    return lambda user: _is_new_memory(user) or (_is_writing(user) and value not in user.args[:1] and user.target not in CHANGES_NOTHING)


def _is_without_effect(node: fx.Node) -> bool:
    """A dropout that drops nothing."""
    return node.target in DROPOUTS and len(node.args) == 3 and (node.args[1] in (0,) or node.args[2] is False)


def _is_writing(node: fx.Node) -> bool:
    op = node.target
    return isinstance(op, torch._ops.OpOverload) and op not in CHANGES_NOTHING and op._schema.is_mutable


def _is_new_memory(node: fx.Node) -> bool:
    """Whether no result of the node is memory that another node names: by the schema of its op. Composite ops may return an input."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or op in HIDDEN_VIEWS:
        return False
    if any(result.alias_info is not None for result in op._schema.returns):
        return False
    return op in NEW_MEMORY or not op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def _functional(node: fx.Node, mode: FakeTensorMode) -> torch._ops.OpOverload | None:
    """`add` for `add_`, where it gives what the write leaves behind: of the same element type and shape."""
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    name = op._schema.name.removeprefix("aten::")
    packet = getattr(aten, name[:-1], None) if name.endswith("_") and not name.endswith("__") else None
    found = getattr(packet, op._overloadname, None)
    if found is None or [each.name for each in found._schema.arguments] != [each.name for each in op._schema.arguments]:
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])  # pyright: ignore
    try:
        with mode, torch.no_grad():
            result = found(*args, **kwargs)
    except Exception:  # PyTorch knows why the op cannot be called so
        return None
    old = node.args[0].meta["val"]  # pyright: ignore
    _check_size(node, result, old)
    return found if isinstance(result, torch.Tensor) and result.dtype == old.dtype and result.shape == old.shape else None


def _check_size(node: fx.Node, result: object, old: torch.Tensor) -> None:
    """A write cannot change the size of what it writes to; without data, PyTorch lets some ops do so.

    Raises: UnsupportedOpError.
    """
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    if torch.Tag.inplace_view in op.tags or not isinstance(result, torch.Tensor) or result.shape == old.shape:
        return
    reason = f"a result with sizes {list(result.shape)} does not fit the tensor with sizes {list(old.shape)} that it is written to"
    raise UnsupportedOpError([UnsupportedOp(str(op), reason, line_text(node))])
