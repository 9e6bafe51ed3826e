"""Rows of tensors beside a rolled loop: a tensor that the loop goes over, and a tensor that is made of the rows of others.

cat([unsqueeze(select(%all, 0, 7), 1), ..., unsqueeze(select(%all, 0, 0), 1)], 1)   →   permute(flip(%all, [0]), [1, 0, 2])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx
from torch.utils import _pytree as pytree

from disc.frontend.loops_found import Rows, row_of

aten = torch.ops.aten
Call = Callable[..., fx.Node]


def call(graph: fx.Graph, place: fx.Node, target: object, *args: object, **kwargs: object) -> fx.Node:
    """A node where the graph inserts, from the place of another, and what it gives for fake operands."""
    op = cast("Callable[..., object]", target)
    node = graph.call_function(op, args, kwargs)  # pyright: ignore[reportArgumentType]
    values, named = pytree.tree_map(lambda each: each.meta["val"] if isinstance(each, fx.Node) else each, (args, kwargs))
    node.meta = {**place_of(place), "val": op(*values, **named)}
    return node


def place_of(node: fx.Node) -> dict[str, object]:
    """What says which line a node is from."""
    return {name: value for name, value in node.meta.items() if name in ("stack_trace", "nn_module_stack", "source_fn_stack")}


def all_rows(rows: Rows, count: int, make: Call) -> fx.Node:
    """The first `count` rows along a first dim."""
    value = rows.source
    begin = rows.first if rows.step == 1 else rows.first - count + 1
    size = value.meta["val"].shape[rows.dim]
    if begin or not isinstance(size, int) or size != count:
        value = make(aten.slice.Tensor, value, rows.dim, begin, begin + count)
    if rows.dim:
        rank = value.meta["val"].dim()
        value = make(aten.permute.default, value, [rows.dim, *(dim for dim in range(rank) if dim != rows.dim)])
    return make(aten.flip.default, value, [0]) if rows.step == -1 else value


def join_rows(graph: fx.Graph) -> None:
    """What stacks rows of a tensor that lie one behind the other, or puts them together along a dim, takes them as one."""
    for node in list(graph.nodes):
        joining = _joining(node)
        runs = _runs(joining.rows) if joining is not None else []
        if joining is None or len(runs) == len(joining.rows):
            continue
        with graph.inserting_before(node):

            def make(target: object, *args: object, place: fx.Node = node) -> fx.Node:
                return call(graph, place, target, *args)

            parts = [_part(run, joining, make) for run in runs]
            joined = make(aten.cat.default, parts, joining.dim) if len(parts) > 1 else parts[0]
        node.replace_all_uses_with(joined)
        graph.erase_node(node)


@dataclass(frozen=True)
class _Joining:
    """rows: that are put together along `dim`, a new one or (merged) one that they have."""

    rows: list[fx.Node]
    dim: int
    merged: bool


def _joining(node: fx.Node) -> _Joining | None:
    if node.target not in (aten.cat.default, aten.stack.default) or not isinstance(node.args[0], list | tuple):
        return None
    values, dim = cast("list[fx.Node]", list(node.args[0])), node.args[1] if len(node.args) > 1 else 0
    shape = node.meta["val"].shape
    assert isinstance(dim, int)
    dim %= len(shape)
    if node.target is aten.stack.default:
        return _Joining(values, dim, merged=False)
    if all(each.target is aten.unsqueeze.default and cast("int", each.args[1]) % len(shape) == dim for each in values):
        return _Joining([each.all_input_nodes[0] for each in values], dim, merged=False)
    unknown = [size for size in shape if not isinstance(size, int)]
    return _Joining(values, dim, merged=True) if len(unknown) < 2 and isinstance(shape[dim], int) else None


def _runs(values: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """The values in their order, those together that are rows of one tensor, forwards or backwards."""
    runs: list[list[fx.Node]] = []
    for value in values:
        if runs and _goes_on(runs[-1], value):
            runs[-1].append(value)
        else:
            runs.append([value])
    return runs


def _goes_on(run: Sequence[fx.Node], value: fx.Node) -> bool:
    last, row = row_of(run[-1]), row_of(value)
    if last is None or row is None or last[:2] != row[:2]:
        return False
    before = row_of(run[-2]) if len(run) > 1 else None
    step = row[2] - last[2]
    return step in (1, -1) and (before is None or step == last[2] - before[2])


def _part(run: Sequence[fx.Node], joining: _Joining, make: Call) -> fx.Node:
    """The rows of a run along the dim."""
    dim = joining.dim
    if len(run) == 1:
        return run[0] if joining.merged else make(aten.unsqueeze.default, run[0], dim)
    first, second = (cast("tuple[fx.Node, int, int]", row_of(each)) for each in run[:2])
    value = all_rows(Rows(*first, second[2] - first[2]), len(run), make)
    rank = value.meta["val"].dim()
    if dim:
        value = make(aten.permute.default, value, [*range(1, dim + 1), 0, *range(dim + 1, rank)])
    if not joining.merged:
        return value
    shape = [size if isinstance(size, int) else -1 for size in run[0].meta["val"].shape]
    shape[dim] *= len(run)
    return make(aten.reshape.default, value, shape)
