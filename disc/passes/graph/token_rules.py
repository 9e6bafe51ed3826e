"""Which tokens each value of a program depends on: the proof behind `pack-sequences`.

A program takes rows (B) of tokens (L). By its sizes alone a value is *uniform* (of neither), of *sequences* (B), of *tokens* (L, or B and
L, or both merged as B * L) or of *pairs* of tokens (two L: attention scores). The rules prove that element (b, l) of every value of tokens
depends on sequence b alone, at the same place in each op, so that the sequences may lie one behind the other along one L:
element-wise ops, sums over features, products with weights and table look-ups keep to their token; pairs are made by a dot and by
broadcasts, and only a softmax or the dot that follows brings them together again, where pairs of two sequences can be hidden. A sum or
maximum over all tokens of a sequence is one over its segment of the tokens, and a value of the sequence; what follows from the length
alone is one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import cast

import numpy as np

from disc.ir import op_table
from disc.ir.graph import Body, Node
from disc.ir.op_table import OPS, VIEWS, rules_by_op
from disc.ir.reads import Place, dims_in, numbers_of
from disc.ir.reducers import IN_ORDER
from disc.shapes import Dim, ShapeEnv, Truth

ONE = Dim.of(1)
SUMMED = ("f32", "f64", "bf16", "f16", "i32", "i64")  # what is reduced over the tokens of a sequence


class NotPacked(Exception):
    """Why sequences of different lengths cannot be computed one behind the other."""


def named(node: Node) -> str:
    """The op and its line, where it has one."""
    return f"{node.op}{f' at {node.line}' if node.line else ''}"


class Kind(Enum):
    UNIFORM = "uniform"
    SEQUENCES = "sequences"
    TOKENS = "tokens"
    PAIRS = "pairs"


class Number(Enum):
    """What the values of an iota over rows or tokens, and of views of it, may be used for besides their value; and what follows from the
    number of tokens."""

    ROW = "row"
    POSITION = "position"
    PLACE = "place"  # a row and a position: the index of a token
    LENGTH = "length"  # a scalar that follows from the number of tokens: each sequence has its own


@dataclass(frozen=True)
class Selection:
    """One token of each sequence: `offset` from its start, or from behind its end."""

    offset: int
    from_end: bool


@dataclass
class Findings:
    """What the rewrite has to do. hidden: fill of each value of pairs whose pairs of two sequences must be hidden. own: gathers of each
    token's own element; raw: comparisons of positions of a pair, which hold for places among all tokens as well; segments: reductions over
    the tokens of a sequence, true for maxima; spread: broadcasts of what follows from a sequence's length, and the axis of sequences;
    least: the fewest tokens that a sequence may have."""

    kinds: dict[Node, Kind] = field(default_factory=dict)
    numbers: dict[Node, Number] = field(default_factory=dict)
    hidden: dict[Node, tuple[float, int]] = field(default_factory=dict)
    tables: dict[Node, tuple[int, int]] = field(default_factory=dict)
    selections: dict[Node, Selection] = field(default_factory=dict)
    segments: dict[Node, bool] = field(default_factory=dict)
    spread: dict[Node, int] = field(default_factory=dict)
    own: set[Node] = field(default_factory=set)
    raw: set[Node] = field(default_factory=set)
    least: int = 0


class Tokens:
    """Walks over a body of stage `named`. rows, length: the symbols of B and L."""

    def __init__(self, env: ShapeEnv, rows: str, length: str) -> None:
        self.env = env
        self.names = (rows, length)
        self.rows = Dim.symbol(rows)
        self.length = Dim.symbol(length)
        self.found = Findings(least=env.range(self.length)[0] or 0)
        self.outside: dict[Node, float] = {}  # of values of pairs: what every pair of two sequences holds

    def run(self, body: Body) -> Findings:
        """Raises NotPacked with the op and the line."""
        for number, node in enumerate(body.arguments):
            self._input(number, node)
        for node in body.nodes:
            if node.op != "input":
                self._visit(node)
        for number, node in enumerate(body.yields):
            self._output(number, node)
        return self.found

    def _input(self, number: int, node: Node) -> None:
        kind = self.kind(node)
        leading = node.dims[: 2 if kind is Kind.TOKENS else 1]
        if kind not in (Kind.TOKENS, Kind.SEQUENCES) or leading != (self.rows, self.length)[: len(leading)]:
            raise NotPacked(f"input {number} does not begin with the dims of rows and tokens")
        self.found.kinds[node] = kind

    def _output(self, number: int, node: Node) -> None:
        kind = self.found.kinds[node]
        leading = node.dims[: 2 if kind is Kind.TOKENS else 1]
        if kind not in (Kind.TOKENS, Kind.SEQUENCES) or leading != (self.rows, self.length)[: len(leading)]:
            raise NotPacked(f"result {number} does not begin with the dims of rows and tokens")

    def _visit(self, node: Node) -> None:
        try:
            self.found.kinds[node] = self.kind(node)
            RULES[node.op](self, node)
            self._check_kinds(node)
            numbers = {self.found.numbers.get(each) for each in node.operands} if node not in self.found.numbers else set()
            if numbers & {Number.ROW, Number.PLACE} and node not in self.found.own:
                raise NotPacked("it uses the place of a row as data")
            if Number.LENGTH in numbers and node not in self.found.spread:
                raise NotPacked("the number of tokens is used as data other than of a sequence")
        except NotPacked as reason:
            raise NotPacked(f"{named(node)}: {reason}") from None

    def _check_kinds(self, node: Node) -> None:
        """What holds independent of the rule: nothing is less apart than what it is computed from, but for what reads a sequence."""
        kinds = self.found.kinds
        given = {kinds[each] for each in node.operands if self.found.numbers.get(each) is not Number.ROW}
        kind = kinds[node]
        if kind is Kind.UNIFORM and given - {Kind.UNIFORM}:
            raise NotPacked("its result is one for all rows and tokens")
        of_sequence = node in self.found.selections or node in self.found.segments
        if kind is Kind.SEQUENCES and given - {Kind.UNIFORM, Kind.SEQUENCES} and not of_sequence:
            raise NotPacked("its result is one for all tokens")
        if kind in (Kind.TOKENS, Kind.PAIRS) and Kind.SEQUENCES in given:
            raise NotPacked("it gives all tokens of a sequence a value of the sequence")

    # --- sizes --------------------------------------------------------------------------------------------------------------

    def mentions(self, dim: Dim) -> bool:
        return any(name in dim.symbols() for name in self.names)

    def mentioned(self, text: str) -> bool:
        return self.mentions(self.env.simplify(self.env.parse(text)))

    def letters(self, dim: Dim) -> tuple[str, Dim]:
        """("", dim), ("B", factor), ("L", 1) or ("BL", factor)."""
        if not self.mentions(dim):
            return "", dim
        for letters, size in (("BL", self.rows * self.length), ("L", self.length), ("B", self.rows)):
            factor = self.env.exact_div(dim, size)
            if factor is not None and not self.mentions(factor) and (letters != "L" or factor == ONE):
                return letters, factor
        raise NotPacked(f"the size {dim} depends on the numbers of rows and tokens in a way of its own")

    def kind(self, node: Node) -> Kind:
        found = "".join(sorted(self.letters(dim)[0] for dim in node.dims))
        kinds = {"": Kind.UNIFORM, "B": Kind.SEQUENCES, "L": Kind.TOKENS, "BL": Kind.TOKENS, "LL": Kind.PAIRS, "BLL": Kind.PAIRS}
        if found not in kinds or (found == "BLL" and any(self.letters(dim)[0] == "BL" for dim in node.dims)):
            raise NotPacked("its sizes hold the numbers of rows and tokens too often")
        return kinds[found]

    def marked(self, node: Node) -> list[int]:
        """The axes of rows and tokens."""
        return [axis for axis, dim in enumerate(node.dims) if self.mentions(dim)]

    def token_axes(self, node: Node) -> list[int]:
        return [axis for axis, dim in enumerate(node.dims) if self.letters(dim)[0] == "L"]

    def order(self, dims: Sequence[Dim]) -> list[object]:
        """Rows, tokens and the numbers of other elements between them, in row-major order: equal for two views of the same elements."""
        parts: list[object] = []
        between = ONE
        for dim in dims:
            letters, factor = self.letters(dim)
            if not letters:
                between = self.env.simplify(between * dim)
                continue
            for letter in letters:
                parts += [between, letter]
                between = ONE
            between = factor
        return parts


# --- rules ------------------------------------------------------------------------------------------------------------------

Rule = Callable[[Tokens, Node], None]


def _same(tokens: Tokens, node: Node) -> None:
    """Element by element: values with dims have those of the result."""
    kinds = tokens.found.kinds
    if any(not operand.dims and kinds[operand] is not Kind.UNIFORM for operand in node.operands):
        raise NotPacked("a scalar operand depends on tokens")
    if kinds[node] is Kind.PAIRS:
        _pairs(tokens, node)
    numbers = tokens.found.numbers
    if not node.dims and any(numbers.get(operand) is Number.LENGTH for operand in node.operands):
        numbers[node] = Number.LENGTH


def _pairs(tokens: Tokens, node: Node) -> None:
    """What is known of pairs of two sequences; and positions that may stay places among all tokens, being compared with each other."""
    outside, operands = tokens.outside, node.operands
    relates = len(operands) == 2 and node.op in ("stablehlo.compare", "stablehlo.subtract")
    if relates and all(tokens.found.numbers.get(each) is Number.POSITION for each in operands):
        tokens.found.raw.add(node)
    known = outside.get(operands[0]) if operands else None
    if known is None:
        return
    if node.op == "stablehlo.convert":
        outside[node] = known
    elif node.op == "stablehlo.subtract" and known == -np.inf and _reduced(operands[1], operands[0]):
        outside[node] = known  # where the maximum is -inf, the row is NaN with and without the other sequences
    elif node.op == "stablehlo.exponential" and known == -np.inf:
        outside[node] = 0.0
    elif node.op == "stablehlo.divide" and known == 0 and _reduced(operands[1], operands[0]):
        outside[node] = 0.0  # where the sum is 0, likewise


def _reduced(node: Node, source: Node) -> bool:
    """Whether `node` is a reduction of `source` over its rows, perhaps guarded against one special value, given to all of the row."""
    found = _behind_views(node)
    if found.op == "stablehlo.select":
        found = _behind_views(found.operands[2])
    return found.op == "stablehlo.reduce" and found.operands[0] is source


def _behind_views(node: Node) -> Node:
    while node.op in ("disc.reshape", "disc.broadcast_in_dim"):
        node = node.operands[0]
    return node


def _made(tokens: Tokens, node: Node) -> None:
    if tokens.found.kinds[node] is not Kind.UNIFORM:
        raise NotPacked("its size depends on the rows or tokens")


def _dim_value(tokens: Tokens, node: Node) -> None:
    value = tokens.env.simplify(tokens.env.parse(str(node.attrs["expr"])))
    if value == tokens.length:
        tokens.found.numbers[node] = Number.LENGTH
    elif tokens.mentions(value):
        raise NotPacked("the number of rows or tokens is used as data")


def _iota(tokens: Tokens, node: Node) -> None:
    letters = tokens.letters(node.dims[node.integer("dim")])
    if letters[0] == "L":
        tokens.found.numbers[node] = Number.POSITION
    elif letters == ("B", ONE):
        tokens.found.numbers[node] = Number.ROW
    elif letters[0]:
        raise NotPacked("it numbers the rows")


def _broadcast(tokens: Tokens, node: Node) -> None:
    (source,) = node.operands
    if tokens.found.numbers.get(source) is Number.LENGTH:
        _spread(tokens, node)
        return
    targets, undecided = node.ints("dims"), node.ints("maybe")
    for axis, target in enumerate(targets):
        size, wide = source.dims[axis], node.dims[target]
        if tokens.env.equal(size, wide) is Truth.YES:
            continue
        if axis in undecided and (tokens.mentions(size) or tokens.mentions(wide)):
            raise NotPacked("whether it broadcasts is decided by the number of rows or tokens")
        if tokens.mentions(size):
            raise NotPacked("it spreads rows or tokens")
    if tokens.found.kinds[source] is Kind.PAIRS and source in tokens.outside:
        tokens.outside[node] = tokens.outside[source]
    _number_of_view(tokens, node)


def _spread(tokens: Tokens, node: Node) -> None:
    """What follows from the length of a sequence, given to values of sequences."""
    axes = tokens.marked(node)
    if tokens.found.kinds[node] is Kind.SEQUENCES and tokens.letters(node.dims[axes[0]]) == ("B", ONE):
        tokens.found.spread[node] = axes[0]


def _number_of_view(tokens: Tokens, node: Node) -> None:
    number = tokens.found.numbers.get(node.operands[0])
    if number in (Number.ROW, Number.POSITION):
        tokens.found.numbers[node] = number


def _reshape(tokens: Tokens, node: Node) -> None:
    (source,) = node.operands
    if tokens.found.kinds[source] is Kind.UNIFORM and tokens.found.kinds[node] is Kind.UNIFORM:
        return
    if tokens.order(source.dims) != tokens.order(node.dims):
        raise NotPacked("it mixes rows or tokens with another dim")
    if source in tokens.outside:
        tokens.outside[node] = tokens.outside[source]
    _number_of_view(tokens, node)


def _by_reads(tokens: Tokens, node: Node) -> None:
    """Rows and tokens keep their places; what pairs of two sequences hold is seen through a view."""
    reads = OPS[node.op].reads
    if reads is None:
        _unknown(tokens, node)
        return
    for operand, places in zip(node.operands, reads(node, tokens.env), strict=True):
        for axis, place in enumerate(places):
            size = operand.dims[axis]
            kept = place is not None and place.same is not None and tokens.env.equal(size, node.dims[place.same]) is Truth.YES
            if tokens.mentions(size) and not kept:
                raise NotPacked(f"{OPS[node.op].mixing} rows or tokens")
            if not kept and place is not None and (tokens.mentions(place.offset) or _follows_marked(tokens, node, place)):
                raise NotPacked("rows or tokens decide what it reads")
    if node.op in VIEWS and node.operands[0] in tokens.outside:
        tokens.outside[node] = tokens.outside[node.operands[0]]


def _follows_marked(tokens: Tokens, node: Node, place: Place) -> bool:
    return any(place.follows(axis) for axis in tokens.marked(node))


def _unknown(tokens: Tokens, node: Node) -> None:
    if any(tokens.found.kinds[each] is not Kind.UNIFORM for each in node.operands):
        raise NotPacked("there is no rule for it")


def _reduce(tokens: Tokens, node: Node) -> None:
    count = len(node.siblings)
    if any(tokens.found.kinds[each] is not Kind.UNIFORM for each in node.operands[count:]):
        raise NotPacked("its initial value depends on tokens")
    for source in node.operands[:count]:
        axes = [axis for axis in node.ints("dimensions") if axis in tokens.marked(source)]
        if not axes:
            continue
        if len(axes) > 1 or axes[0] not in tokens.token_axes(source):
            raise NotPacked("it reduces over rows or tokens")
        if tokens.found.kinds[source] is Kind.PAIRS:
            _hide(tokens, source, axes[0], _neutral(node))
        else:
            _segment(tokens, node)


def _segment(tokens: Tokens, node: Node) -> None:
    """A reduction of values of tokens to one value of each sequence."""
    source = node.operands[0]
    if len(node.ints("dimensions")) != 1 or tokens.letters(source.dims[0])[0] != "B" or source.element not in SUMMED:
        raise NotPacked("it reduces over rows or tokens")
    tokens.found.segments[node] = _neutral(node) == -np.inf


def _neutral(node: Node) -> float:
    """The value that changes nothing in a sum or a maximum."""
    inside = [each.op for each in node.body.nodes if each.op != "input"] if node.body is not None else []
    fill = {"stablehlo.add": 0.0, "stablehlo.maximum": -np.inf}.get(inside[0]) if len(inside) == 1 else None
    if len(node.operands) != 2 or IN_ORDER in node.attrs or fill is None or splat(node.operands[1]) != fill:
        raise NotPacked("it reduces over tokens, neither as a sum nor as a maximum")
    return fill


def _hide(tokens: Tokens, source: Node, axis: int, fill: float) -> None:
    """Sees to it that pairs of two sequences hold `fill` where `source` is reduced along `axis`."""
    if tokens.outside.get(source) == fill:
        return
    if source.op == "input" or source in tokens.found.hidden or source.element not in ("f32", "f64", "bf16", "f16"):
        raise NotPacked("pairs of two sequences cannot be hidden from it")
    tokens.found.hidden[source] = (fill, axis)
    tokens.outside[source] = fill


def splat(node: Node) -> float | None:
    """The one value of a constant behind views."""
    node = _behind_views(node)
    value = node.attrs.get("value") if node.op == "stablehlo.constant" else None
    if not isinstance(value, np.ndarray) or not value.size or node.element == "bf16" or (value != value.flat[0]).any():
        return None
    return float(cast("float", value.flat[0]))


def _concatenate(tokens: Tokens, node: Node) -> None:
    along = node.integer("dimension")
    _by_reads(tokens, node)
    numbers = [tokens.found.numbers.get(each) for each in node.operands]
    if numbers == [Number.ROW, Number.POSITION] and all(each.dims[along] == ONE for each in node.operands):
        tokens.found.numbers[node] = Number.PLACE


def _slice(tokens: Tokens, node: Node) -> None:
    (source,) = node.operands
    starts, strides = [tokens.env.simplify(tokens.env.parse(text)) for text in node.texts("starts")], node.ints("strides")
    whole = [
        start == 0 and stride == 1 and tokens.env.equal(size, taken) is Truth.YES
        for start, stride, size, taken in zip(starts, strides, source.dims, node.dims, strict=True)
    ]
    partial = [axis for axis, each in enumerate(whole) if not each]
    marked = [axis for axis in partial if tokens.mentions(source.dims[axis]) or tokens.mentions(node.dims[axis])]
    if not marked:
        if any(tokens.mentions(start) for start in starts):
            raise NotPacked("the number of rows or tokens decides where it begins")
        return
    (axis,) = marked if len(marked) == 1 else [-1]
    if axis < 0 or partial != marked or strides[axis] != 1:
        raise NotPacked("it takes some of the rows or tokens")
    if tokens.found.kinds[source] is Kind.UNIFORM and tokens.found.kinds[node] is Kind.TOKENS and starts[axis].is_const:
        tokens.found.tables[node] = (axis, starts[axis].const)
        return
    _select(tokens, node, axis, starts[axis])


def _select(tokens: Tokens, node: Node, axis: int, start: Dim) -> None:
    """One token of each sequence."""
    (source,) = node.operands
    back = tokens.env.simplify(tokens.length - start)
    from_end = back.is_const
    leads = tokens.order(source.dims) == [ONE, "B", ONE, "L"] and source.dims[0] == tokens.rows
    if node.dims[axis] != ONE or not leads or source.dims[axis] != tokens.length or not (from_end or start.is_const):
        raise NotPacked("it takes some of the rows or tokens")
    if tokens.found.kinds[node] is not Kind.SEQUENCES:
        raise NotPacked("it takes some of the rows or tokens")
    offset = back.const if from_end else start.const
    tokens.found.selections[node] = Selection(offset, from_end)
    tokens.found.least = max(tokens.found.least, offset + (not from_end))


def _dot(tokens: Tokens, node: Node) -> None:
    numbers = numbers_of(node, "dot_dimension_numbers")
    left, right = node.operands[:2]
    kinds = tokens.found.kinds
    if any(kinds[each] is not Kind.UNIFORM for each in node.operands[2:]):
        raise NotPacked("its scales depend on tokens")
    contracted = list(zip(dims_in(numbers, "lhs_contract"), dims_in(numbers, "rhs_contract"), strict=True))
    summed = [(one, other) for one, other in contracted if tokens.mentions(left.dims[one]) or tokens.mentions(right.dims[other])]
    if Kind.UNIFORM in (kinds[left], kinds[right]):
        if summed or any(axis in tokens.marked(left) for axis in dims_in(numbers, "lhs_batch")):
            raise NotPacked("it sums over rows or tokens")
        return
    if Kind.SEQUENCES in (kinds[left], kinds[right]) and kinds[left] is not kinds[right]:
        raise NotPacked("it multiplies tokens with values of a sequence")
    batch = list(zip(dims_in(numbers, "lhs_batch"), dims_in(numbers, "rhs_batch"), strict=True))
    for side, axes in ((left, {one for one, _ in batch}), (right, {other for _, other in batch})):
        rows = [axis for axis in tokens.marked(side) if "B" in tokens.letters(side.dims[axis])[0]]
        if any(axis not in axes for axis in rows) and (len(rows) != 1 or kinds[left] is Kind.SEQUENCES or _has_rows(tokens, left, right)):
            raise NotPacked("it multiplies rows with other rows")
    if summed:
        _sum_of_pairs(tokens, node, summed)


def _has_rows(tokens: Tokens, left: Node, right: Node) -> bool:
    """Whether both sides have rows, not positions alone."""
    return all(any("B" in tokens.letters(dim)[0] for dim in side.dims) for side in (left, right))


def _sum_of_pairs(tokens: Tokens, node: Node, summed: list[tuple[int, int]]) -> None:
    """The second dot of an attention: sums over the tokens that a token sees."""
    left, right = node.operands[:2]
    kinds = tokens.found.kinds
    if len(summed) != 1 or Kind.PAIRS not in (kinds[left], kinds[right]) or kinds[node] is not Kind.TOKENS:
        raise NotPacked("it sums over tokens")
    pairs, axis = (left, summed[0][0]) if kinds[left] is Kind.PAIRS else (right, summed[0][1])
    if axis not in tokens.token_axes(pairs):
        raise NotPacked("it sums over rows")
    _hide(tokens, pairs, axis, 0.0)


def _gather(tokens: Tokens, node: Node) -> None:
    numbers = numbers_of(node, "dimension_numbers")
    table, indices = node.operands
    kinds = tokens.found.kinds
    marked = tokens.marked(table)
    if tokens.found.numbers.get(indices) is Number.PLACE:
        plain = table.dims == (tokens.rows, tokens.length) and node.texts("sizes") == ("1", "1")
        maps = dims_in(numbers, "start_map") == (0, 1) and dims_in(numbers, "collapsed") == (0, 1)
        if not plain or not maps or tokens.order(node.dims) != tokens.order(table.dims):
            raise NotPacked("it uses the place of a token as data")
        tokens.found.own.add(node)
        return
    if any(tokens.mentioned(size) for axis, size in enumerate(node.texts("sizes")) if axis not in marked):
        raise NotPacked("the number of rows or tokens decides how much it takes")
    if kinds[table] is Kind.UNIFORM:
        if kinds[indices] is not kinds[node] or numbers["vector_dim"] in tokens.marked(indices):
            raise NotPacked("it takes as much as there are rows or tokens")
        return
    used = {*dims_in(numbers, "start_map"), *dims_in(numbers, "collapsed"), *dims_in(numbers, "operand_batch")}
    taken = [tokens.env.simplify(tokens.env.parse(size)) for size in node.texts("sizes")]
    if kinds[indices] is not Kind.UNIFORM or any(axis in used or taken[axis] != table.dims[axis] for axis in marked):
        raise NotPacked("it gathers from other rows or tokens")


def _size_of(tokens: Tokens, node: Node) -> None:
    raise NotPacked("a size that depends on data")


def _control(tokens: Tokens, node: Node) -> None:
    raise NotPacked("what it runs is not looked into")


RULES: dict[str, Rule] = rules_by_op(
    "pack-sequences",
    {"disc.dim_value": _dim_value, "disc.iota": _iota, "disc.broadcast_in_dim": _broadcast, "disc.reshape": _reshape,
     "disc.size_of": _size_of, "stablehlo.reduce": _reduce, "stablehlo.concatenate": _concatenate, "disc.slice": _slice,
     "disc.gather": _gather},
    {**dict.fromkeys(op_table.Kind, _by_reads), op_table.Kind.CONTROL: _control, op_table.Kind.ELEMENTWISE: _same,
     op_table.Kind.MADE: _made, op_table.Kind.STORED: _made, op_table.Kind.DOT: _dot},
)  # fmt: skip
