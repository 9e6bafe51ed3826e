"""Programs that write what is a copy for some sizes and a view for others: of `reshape`, `flatten` and `contiguous`, sizes decide that.

    y = x[:, 1:-1].reshape(-1)      # a copy, but a view of x where that has one row
    y.add_(1)                       # so that x has changed after it, or has not

A graph has the one or the other for all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx
from torch.export import ExportedProgram

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.frontend.locations import line_text
from disc.frontend.symbols import to_size

aten = torch.ops.aten
EITHER = (aten.reshape.default, aten.reshape_as.default, aten.flatten.using_ints, aten.ravel.default, aten.contiguous.default)
REASON = "its result is written, or what it is made of, and the other read; sizes decide whether it is a view: call clone() before"


def refuse_copies_or_views(program: ExportedProgram) -> None:
    """Raises: UnsupportedOpError where a result of EITHER, or a view of it, is written and its source read afterwards, or the other way
    around; of what lies densely it is a view for all sizes."""
    graph, buffers = program.graph, program.graph_signature.inputs_to_buffers
    place = {node: number for number, node in enumerate(graph.nodes)}
    writes = [(place[node], target) for node in graph.nodes for target in _written(node)]
    if not writes:
        return
    roots = dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        source = _viewed(node)
        roots[node] = roots[source] if source is not None else node
    either = [node for node in graph.nodes if node.target in EITHER and not _is_dense(node.args[0])]
    found = [node for node in either if _is_shared(node, writes, roots, place, is_kept=roots[node].name in buffers)]
    if found:
        raise UnsupportedOpError([UnsupportedOp(str(node.target), REASON, line_text(node)) for node in found])


def _is_shared(
    node: fx.Node, writes: Sequence[tuple[int, fx.Node]], roots: Mapping[fx.Node, fx.Node], place: Mapping[fx.Node, int], *, is_kept: bool
) -> bool:
    """is_kept: what is written into its source is there in the next call."""
    own = {node}
    for each in roots:  # in the order of the graph
        if _viewed(each) in own:
            own.add(each)
    source = {each for each, root in roots.items() if root is roots[node]} - own
    for when, target in writes:
        if target not in own | source or when < place[node]:
            continue
        users = (user for other in (source if target in own else own) for user in other.users if place[user] > when)
        if (is_kept and target in own) or any(not isinstance(user.meta.get("val"), torch.SymInt) for user in users):
            return True
    return False


def _is_dense(node: object) -> bool:
    """Whether it has no symbolic size, or its strides are those of rows one behind the other whatever the sizes."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or all(isinstance(size, int) for size in value.shape):
        return True
    expected = to_size(1)
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if to_size(stride) != expected:
            return False
        expected = expected * to_size(size)
    return True


def _viewed(node: fx.Node) -> fx.Node | None:
    """What the result of a call may be a view of."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    arguments, returns = node.target._schema.arguments, node.target._schema.returns
    is_view = arguments[0].alias_info is not None and bool(returns) and returns[0].alias_info is not None
    return node.args[0] if is_view else None


def _written(node: fx.Node) -> list[fx.Node]:
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    arguments = node.target._schema.arguments
    given = {**dict(zip((each.name for each in arguments), node.args, strict=False)), **node.kwargs}
    changed = [given.get(each.name) for each in arguments if each.alias_info is not None and each.alias_info.is_write]
    return [value for value in changed if isinstance(value, fx.Node)]
