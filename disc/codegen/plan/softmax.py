"""Reads a softmax, and the bounds that a causal mask or packed sequences put on it, off the graph of an attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from disc.codegen.plan.contraction import Contraction, forward_indices
from disc.codegen.plan.index import ONE, Index, IndexSpace, split_linear, view_index
from disc.ir.bf16 import bf16_values
from disc.ir.graph import Body, Node
from disc.ir.op_table import IN_ORDER_VIEWS
from disc.ir.reducers import IN_ORDER
from disc.shapes import Dim
from disc.shapes.recursion import Recursive, run_recursive

REVERSED = {"LE": "GE", "LT": "GT", "GE": "LE", "GT": "LT"}


@dataclass(frozen=True)
class Softmax:
    """probability = exp(scores - max) / sum along the last dim. safe: a row of -inf alone gives zeros, not NaN."""

    safe: bool


@dataclass(frozen=True, eq=False)
class Causal:
    """`compare` holds only in columns below `columns`, an expression over gm (the row), gb and shape symbols that does not fall with gm;
    everywhere else the score is -inf."""

    compare: Node
    columns: Dim


@dataclass(frozen=True, eq=False)
class Segments:
    """Row gm sees the columns first[gm] <= gn < past[gm] alone, which `compares` say; everywhere else the score is -inf. first, past:
    arguments of the fusion, [rows] i64. Rows of one segment are neighbors, and are the columns that they see."""

    compares: tuple[Node, Node]
    first: Node
    past: Node


def read_softmax(scores: Node, probability: Node) -> Softmax | None:
    """The softmax that leads from `scores` to `probability`, None when it is something else."""
    value = probability.operands[0] if probability.op == "stablehlo.convert" else probability
    if value.op != "stablehlo.divide":
        return None
    exponential, total = value.operands[0], _of_rows(value.operands[1])
    if exponential.op != "stablehlo.exponential" or exponential.operands[0].op != "stablehlo.subtract":
        return None
    shifted = exponential.operands[0]
    maximum = _of_rows(shifted.operands[1])
    guarded_total, guarded_maximum = _guarded(total, 0.0, 1.0), _guarded(maximum, -np.inf, 0.0)
    if not _reduces(guarded_total or total, "stablehlo.add", exponential, 0.0):
        return None
    if shifted.operands[0] is not scores or not _reduces(guarded_maximum or maximum, "stablehlo.maximum", scores, -np.inf):
        return None
    return Softmax(guarded_total is not None and guarded_maximum is not None)


@dataclass(frozen=True)
class _OfRows:
    """What elements read behind views. follows: for each dim of `node` that of the elements whose positions these are, None for a dim of
    one element, or where it is no such dim's."""

    node: Node
    follows: tuple[int | None, ...]

    def behind(self, operand: Node) -> _OfRows:
        """The same for an operand, by whose elements those of `node` are computed one by one, behind views of it."""
        return _of_rows(operand, self.follows)


def _of_rows(node: Node, follows: tuple[int | None, ...] | None = None) -> _OfRows:
    follows = tuple(range(len(node.dims))) if follows is None else follows
    while node.op in IN_ORDER_VIEWS:
        source = node.operands[0]
        if node.op == "disc.broadcast_in_dim":
            places = [follows[dim] for dim in node.ints("dims")]
        else:  # a reshape: dims keep their order
            kept = [follow for follow, size in zip(follows, node.dims, strict=True) if size != ONE]
            same = [size for size in node.dims if size != ONE] == [size for size in source.dims if size != ONE]
            left = iter(kept)
            places = [next(left) if same and size != ONE else None for size in source.dims]
        node, follows = source, tuple(None if size == ONE else place for place, size in zip(places, source.dims, strict=True))
    return _OfRows(node, follows)


def _behind_views(node: Node) -> Node:
    return _of_rows(node).node


def _guarded(found: _OfRows, special: float, instead: float) -> _OfRows | None:
    """The x of select(x == special, instead, x)."""
    if found.node.op != "stablehlo.select":
        return None
    condition, value, other = found.node.operands
    if condition.op != "stablehlo.compare" or condition.attrs["comparison_direction"] != "EQ" or _splat(value) != instead:
        return None
    same = found.behind(condition.operands[0]) == found.behind(other) and _splat(condition.operands[1]) == special
    return found.behind(other) if same else None


def _splat(node: Node) -> float | None:
    """The one value of a constant behind views."""
    node = _behind_views(node)
    value = node.attrs.get("value") if node.op == "stablehlo.constant" else None
    if not isinstance(value, np.ndarray) or not value.size or (value != value.flat[0]).any():
        return None
    return float(bf16_values(value.flat[:1])[0] if node.element == "bf16" else value.flat[0])


def _reduces(found: _OfRows, op: str, source: Node, initial: float) -> bool:
    """True when the elements read the reduction of `source` by `op` along its last dim, each that of its own row."""
    node = found.node
    if node.op != "stablehlo.reduce" or len(node.operands) != 2 or node.body is None:
        return False
    inside = [each for each in node.body.nodes if each.op != "input"]
    return (
        node.operands[0] is source
        and IN_ORDER not in node.attrs
        and [each.op for each in inside] == [op]
        and node.ints("dimensions") == (len(source.dims) - 1,)
        and _splat(node.operands[1]) == initial
        and all(size == ONE or follow == dim for dim, (follow, size) in enumerate(zip(found.follows, node.dims, strict=True)))
    )


def read_causal(space: IndexSpace, body: Body, contraction: Contraction, scores: Node) -> Causal | None:
    """The comparison of row and column numbers outside which `scores` are -inf, None where there is none that can be proved."""
    at = contraction.place()
    indices = forward_indices(space, body, contraction.node, at)
    node = scores
    while node in indices and node is not contraction.node:
        if node.op == "stablehlo.select" and _splat(node.operands[2]) == -np.inf:
            found = run_recursive(_bound(space, node.operands[0], indices[node]))
            if found is not None:
                return found
        elif node.op not in ("disc.reshape", "stablehlo.convert"):
            return None
        node = next(operand for operand in node.operands if operand in indices)
    return None


def read_segments(space: IndexSpace, contraction: Contraction, scores: Node) -> Segments | None:
    """The comparisons by which `pack-sequences` keeps sequences apart, None where the scores have none."""
    if scores.op != "stablehlo.select" or _splat(scores.operands[2]) != -np.inf or scores.operands[0].op != "stablehlo.and":
        return None
    if contraction.m != contraction.n or scores.dims != contraction.node.dims:
        return None
    low, high = scores.operands[0].operands
    if any(each.op != "stablehlo.compare" for each in (low, high)):
        return None
    if (low.attrs["comparison_direction"], high.attrs["comparison_direction"]) != ("LE", "LT"):
        return None
    index = contraction.place()
    first, past = (_of_row(space, each, index) for each in (low.operands[0], high.operands[1]))
    columns = [_position(space, each, index) for each in (low.operands[1], high.operands[0])]
    if first is None or past is None or columns != [Dim.symbol("gn")] * 2:
        return None
    return Segments((low, high), first, past)


def _of_row(space: IndexSpace, node: Node, index: Index) -> Node | None:
    """The argument [rows] of i64 of which `node` holds the element of the row."""
    while node.op in IN_ORDER_VIEWS:
        viewed = view_index(space, node, index)
        if viewed is None:
            return None
        node, index = node.operands[0], viewed
    return node if node.op == "input" and node.element == "i64" and index == (Dim.symbol("gm"),) else None


def _bound(space: IndexSpace, condition: Node, index: Index) -> Recursive[Causal | None]:
    if condition.op == "stablehlo.and":
        for operand in condition.operands:
            found: Causal | None = yield _bound(space, operand, index)
            if found is not None:
                return found
        return None
    if condition.op == "stablehlo.compare":
        return _compared(space, condition, index)
    viewed = view_index(space, condition, index)
    return None if viewed is None else (yield _bound(space, condition.operands[0], viewed))


def _compared(space: IndexSpace, compare: Node, index: Index) -> Causal | None:
    direction = str(compare.attrs["comparison_direction"])
    if direction not in REVERSED:
        return None
    left, right = (_position(space, operand, index) for operand in compare.operands)
    if left is None or right is None:
        return None
    if direction in ("GE", "GT"):
        left, right, direction = right, left, REVERSED[direction]
    form = split_linear(left - right, "gn")  # gn + rest <= 0, or < 0
    if form is None or form[0] != ONE:
        return None
    columns = form[1] * -1 + (1 if direction == "LE" else 0)
    row = split_linear(columns, "gm")
    if row is None or not row[0].is_const or row[0].const < 0 or "gb" in columns.symbols():
        return None
    return Causal(compare, columns)


def _position(space: IndexSpace, node: Node, index: Index) -> Dim | None:
    """An integer value as an expression over the loop variables."""
    return run_recursive(_position_of(space, node, index))


def _position_of(space: IndexSpace, node: Node, index: Index) -> Recursive[Dim | None]:
    if node.op == "disc.iota":
        return index[node.integer("dim")]
    if node.op == "disc.dim_value":
        return space.env.simplify(space.env.parse(str(node.attrs["expr"])))
    if node.op == "stablehlo.constant":
        value = _splat(node)
        return None if value is None else Dim.of(int(value))
    if node.element not in ("i64", "i32"):
        return None  # narrower ones may wrap
    if node.op in ("stablehlo.add", "stablehlo.subtract"):
        left: Dim | None = yield _position_of(space, node.operands[0], index)
        right: Dim | None = yield _position_of(space, node.operands[1], index)
        if left is None or right is None:
            return None
        return left + right if node.op == "stablehlo.add" else left - right
    if node.op == "stablehlo.convert":
        return (yield _position_of(space, node.operands[0], index))
    viewed = view_index(space, node, index)
    return None if viewed is None else (yield _position_of(space, node.operands[0], viewed))
