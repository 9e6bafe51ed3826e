"""tabulate-distances: a value that depends on two positions through their distance alone is computed once per distance.

    %d = stablehlo.subtract %columns, %rows : [S0, S0]              %d = ... -S0 to S0 - 1 : [S1]     where S1 = S0 * 2
    ... log(%d) ...                                                 ... log(%d) ...
    %b = disc.gather(%table, %bucket) : [S0, S0, 8]          ─►     %g = disc.gather(%table, %bucket) : [S1, 8]
    %t = transpose %b, dims = [2, 0, 1] : [8, S0, S0]               %h = transpose %g, dims = [1, 0] : [8, S1], stored
                                                                    %t = "disc.diagonals"(%h) {row = 1, column = 2} : [8, S0, S0]

So the bias of T5 and the indices of DeBERTa: a kernel reads them out of a table that fits its cache, along a row out of neighboring
elements, and nothing of length x length is stored. Each distance that the table is computed for occurs in the program, so no index in it
leaves its dim that would not have left it before. Requires and keeps stage `named`; a packed program stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.ir.costs import Costs, op_cost
from disc.ir.graph import Body, Node, Snapshot
from disc.ir.op_table import OPS, STORED, VIEWS, Kind, rules_by_op
from disc.ir.ops import Attribute, build, tensor_type
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.reads import Place
from disc.ir.rewriting import element_type, entries, erase_dead, make_reshape, make_splat, named_type, splat_value
from disc.ir.stages import load_env
from disc.ir.symbols import ModuleEnv
from disc.shapes import Dim, ShapeEnv

INTEGERS = {"i32": np.int32, "i64": np.int64}  # narrower ones might not hold a position


@dataclass(frozen=True)
class TabulateDistances(FunctionPass):
    """Finds what is read of values by distance, then builds a table for each that is expensive."""

    name: ClassVar[str] = "tabulate-distances"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        if "disc.packed" in module.operation.attributes:
            return  # most distances lie between two sequences: an index of theirs may leave its dim though none of a sequence does
        env = load_env(module)
        snapshot = Snapshot(env)
        body = snapshot.block(block)
        found = read_forms(body, env)
        tables, costs = _Tables(env, snapshot), Costs.of(state.thresholds)
        replaced: list[tuple[ir.Value, ir.Value]] = []
        for node, is_index in read_by_distance(body, found).items():
            if is_index or should_tabulate(computed_by_distance(node, found), costs):
                replaced.append((snapshot.ops[node.id].results[0], tables.diagonals(node, _pair(found, node))))
        for old, new in replaced:
            old.replace_all_uses_with(new)
        erase_dead(block)


# --- which values ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """How a value depends on its index: by slopes[d] times the position in dim d, and anyhow where that is None.

    pair: (row, column), two dims of one size, of whose positions it depends on column - row alone.
    """

    slopes: tuple[int | None, ...]
    pair: tuple[int, int] | None = None


Forms = dict[Node, Form]


def read_forms(body: Body, env: ShapeEnv) -> Forms:
    """The form of every value."""
    found: Forms = {}
    for node in body.nodes:
        form = _FORMS.get(node.op, _unknown)(node, [found[operand] for operand in node.operands], env)
        found[node] = form if form.pair is not None else Form(form.slopes, _opposite(form.slopes, node.dims))
    return found


def _opposite(slopes: Sequence[int | None], dims: Sequence[Dim]) -> tuple[int, int] | None:
    """The two dims whose positions have the same factor but for the sign."""
    counted = [dim for dim, slope in enumerate(slopes) if slope]
    if len(counted) != 2 or dims[counted[0]] != dims[counted[1]] or sum(slopes[dim] or 0 for dim in counted):
        return None
    return counted[0], counted[1]


def _unknown(node: Node, operands: Sequence[Form], env: ShapeEnv) -> Form:
    return Form((None,) * len(node.dims))


def _constant(node: Node, operands: Sequence[Form], env: ShapeEnv) -> Form:
    value = node.attrs["value"]
    splat = isinstance(value, np.ndarray) and value.size > 0 and bool((value == value.flat[0]).all())
    return Form((0 if splat else None,) * len(node.dims))


def _iota(node: Node, operands: Sequence[Form], env: ShapeEnv) -> Form:
    slope = 1 if node.element in INTEGERS else None
    return Form(tuple(slope if dim == node.integer("dim") else 0 for dim in range(len(node.dims))))


def _elementwise(node: Node, operands: Sequence[Form], env: ShapeEnv) -> Form:
    """Scalars are the same everywhere."""
    forms = [form if form.slopes else Form((0,) * len(node.dims)) for form in operands]
    slopes = tuple(_slope(node, [form.slopes[dim] for form in forms]) for dim in range(len(node.dims)))
    pairs = {form.pair for form in forms} - {None}
    pair = pairs.pop() if len(pairs) == 1 else None
    alike = pair is not None and all(form.pair == pair or (form.slopes[pair[0]], form.slopes[pair[1]]) == (0, 0) for form in forms)
    return Form(slopes, pair if alike else None)


def _slope(node: Node, slopes: Sequence[int | None]) -> int | None:
    """The slope of an element-wise result along a dim from those of its operands; integers that wrap do so in a table too."""
    if all(slope == 0 for slope in slopes):
        return 0
    if None in slopes or any(operand.element not in INTEGERS for operand in (node, *node.operands)):
        return None
    first, last = slopes[0] or 0, slopes[-1] or 0
    known = {"add": first + last, "subtract": first - last, "negate": -first, "convert": first}
    return known.get(node.name)


def _moved(node: Node, source: Form, places: Sequence[int | None]) -> Form:
    """The form of a view whose dim d is dim places[d] of its source, or along which it does not change."""
    slopes = tuple(0 if place is None else source.slopes[place] for place in places)
    if source.pair is None or not set(source.pair) <= set(places):
        return Form(slopes)
    return Form(slopes, _ordered(places, source.pair))


def _ordered(places: Sequence[int | None], pair: tuple[int, int]) -> tuple[int, int]:
    """The dims that are the dims `pair` of a source: the columns come last, whatever the sign of the distance."""
    first, second = sorted(places.index(dim) for dim in pair)
    return first, second


def _move(node: Node, operands: Sequence[Form], env: ShapeEnv) -> Form:
    places = places_of(node, env)
    return _unknown(node, operands, env) if places is None else _moved(node, operands[0], places)


def places_of(view: Node, env: ShapeEnv) -> list[int | None] | None:
    """For each dim of a view the dim of its operand that it is, None where it repeats; None where one is but a part of a dim, or the call
    decides."""
    source, reads = view.operands[0].dims, OPS[view.op].reads
    if reads is None:
        inner, outer = ([dim for dim, size in enumerate(dims) if size != 1] for dims in (source, view.dims))
        if [source[dim] for dim in inner] != [view.dims[dim] for dim in outer]:
            return None
        known = dict(zip(outer, inner, strict=True))
        return [known.get(dim) for dim in range(len(view.dims))]
    found: list[int | None] = [None] * len(view.dims)
    for number, place in enumerate(reads(view, env)[0]):
        if place is None or place.undecided or (place.same is None and place != Place()):
            return None
        if place.same is not None:
            found[place.same] = number
            if not OPS[view.op].repeats and view.dims[place.same] != source[number]:
                return None
    return found


def _gather(node: Node, operands: Sequence[Form], env: ShapeEnv) -> Form:
    """Element by element of the indices, but for those that count along dims of the operand."""
    pair = operands[1].pair
    places = _index_places(node)
    if pair is None or not set(pair) <= set(places):
        return _unknown(node, operands, env)
    return Form((None,) * len(node.dims), _ordered(places, pair))


def _index_places(gather: Node) -> list[int | None]:
    """For each dim of the result the dim of the indices that alone it is, None for none."""
    numbers = gather.attrs["dimension_numbers"]
    assert isinstance(numbers, dict)
    offsets, batch = numbers["offset_dims"], numbers["indices_batch"]
    assert isinstance(offsets, tuple) and isinstance(batch, tuple)
    left = iter(dim for dim in range(len(gather.operands[1].dims)) if dim != numbers["vector_dim"])
    places = [None if dim in offsets else next(left) for dim in range(len(gather.dims))]
    return [None if place in batch else place for place in places]


_FORMS: dict[str, Callable[[Node, Sequence[Form], ShapeEnv], Form]] = rules_by_op(
    "tabulate-distances", {"stablehlo.constant": _constant, "disc.iota": _iota, "disc.gather": _gather},
    {Kind.ELEMENTWISE: _elementwise, Kind.VIEW: _move},
)  # fmt: skip


def read_by_distance(body: Body, found: Forms) -> dict[Node, bool]:
    """The values by distance that something reads otherwise, behind broadcasts, in program order; True: as indices."""
    wanted: dict[Node, bool] = {}
    reads = [(user, number, operand) for user in body.nodes for number, operand in enumerate(user.operands)]
    for user, number, operand in reads:
        passed = found[user].pair is not None and not (user.op == "disc.gather" and number == 0)
        if found[operand].pair is not None and not passed:
            node = _before_broadcasts(operand)
            wanted[node] = wanted.get(node, False) or (user.op == "disc.gather" and number == 1)
    wanted.update({node: wanted.get(node, False) for node in map(_before_broadcasts, body.yields) if found[node].pair is not None})
    order = {node: number for number, node in enumerate(body.nodes)}
    return dict(sorted(wanted.items(), key=lambda item: order[item[0]]))


def _before_broadcasts(node: Node) -> Node:
    """What `node` is a view of, with the views that add no elements."""
    path = [node]
    while path[-1].op in VIEWS:
        path.append(path[-1].operands[0])
    node = path.pop()
    while path and len([size for size in path[-1].dims if size != 1]) == len([size for size in node.dims if size != 1]):
        node = path.pop()
    return node


def computed_by_distance(node: Node, found: Forms) -> list[Node]:
    """The values by distance that `node` is computed from, and itself."""
    pending, seen = [node], {node: None}
    while pending:
        fresh = [operand for operand in pending.pop().operands if operand not in seen and found[operand].pair is not None]
        pending.extend(fresh)
        seen.update(dict.fromkeys(fresh))
    return list(seen)


def should_tabulate(nodes: Sequence[Node], costs: Costs) -> bool:
    """Profit, per vector of the value: to compute it in every reader, or to load it from a table that another kernel made. What looks
    something up is loaded in any case, and then better along a row than element by element. A mask must stay a comparison: it is cheap."""
    again = costs.compute(sum(op_cost(node) for node in nodes))
    return any(node.op == "disc.gather" for node in nodes) or again > costs.load_shared()


def _pair(found: Forms, node: Node) -> tuple[int, int]:
    pair = found[node].pair
    assert pair is not None
    return pair


# --- the tables -----------------------------------------------------------------------------------------------------------------


class _Tables:
    """Builds values with a dim of distances, S * 2 of them from 1 - S (which is there twice) to S - 1, instead of rows and columns."""

    def __init__(self, env: ModuleEnv, snapshot: Snapshot) -> None:
        self.env, self.ops = env, snapshot.ops
        self._known: dict[tuple[Node, int | None, int | None], ir.Value] = {}
        self._before: ir.Operation | None = None
        own: dict[str, Callable[[Node, int | None, int | None], ir.Value]] = {
            "stablehlo.constant": self._constant, "disc.iota": self._iota, "disc.gather": self._gather,
            "disc.broadcast_in_dim": self._broadcast, "disc.reshape": self._reshape,
        }  # fmt: skip
        self._rules = rules_by_op("tables", own, {Kind.ELEMENTWISE: self._elementwise, Kind.VIEW: self._permuted})

    def diagonals(self, node: Node, pair: tuple[int, int]) -> ir.Value:
        """`node`, read out of a table."""
        op = self._before = self.ops[node.id]
        table = self._table(node, *pair)
        if node.op == "stablehlo.transpose":
            self._store(table)
        attributes = {"row": pair[0], "column": pair[1]}
        return build("disc.diagonals", [table], [op.results[0].type], attributes, before=op).results[0]

    def _store(self, table: ir.Value) -> None:
        """Has a transposed table written in the order in which rows read it."""
        op = table.owner.operation  # pyright: ignore[reportAttributeAccessIssue]
        order = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
        if order[-1] != len(order) - 1:
            op.attributes[STORED] = ir.UnitAttr.get()

    def _table(self, node: Node, row: int | None, column: int | None) -> ir.Value:
        """`node` in row 0, with the distances as columns: one by distance is the same in every row. Not both are None."""
        key = (node, row, column)
        if key not in self._known:
            self._known[key] = self._rules[node.op](node, row, column)
        return self._known[key]

    def _operand(self, node: Node, number: int, row: int | None, column: int | None) -> ir.Value:
        """Operand `number` of `node` likewise; as it is where it has neither dim."""
        if row is None and column is None:
            return self.ops[node.id].operands[number]
        return self._table(node.operands[number], row, column)

    def _dims(self, node: Node, row: int | None, column: int | None) -> list[ir.Attribute]:
        """The entries of the type of a table."""
        dims = entries(self.ops[node.id].results[0].type)
        if column is not None:
            dims[column] = entries(tensor_type([node.dims[column] * 2], ir.IntegerType.get_signless(64), self.env))[0]
        return dims[:row] + dims[row + 1 :] if row is not None else dims

    def _type(self, node: Node, row: int | None, column: int | None) -> ir.RankedTensorType:
        return named_type(element_type(self.ops[node.id].results[0].type), self._dims(node, row, column))

    def _make(self, name: str, operands: Sequence[ir.Value], type_: ir.Type, **attributes: Attribute) -> ir.Value:
        return build(name, operands, [type_], attributes, before=self._before).results[0]

    def _copy(self, node: Node, operands: Sequence[ir.Value], type_: ir.Type) -> ir.Operation:
        """The op of `node` with other operands and another type."""
        assert self._before is not None
        copy = self.ops[node.id].clone(ip=ir.InsertionPoint(self._before)).operation
        for number, operand in enumerate(operands):
            copy.operands[number] = operand
        copy.results[0].set_type(type_)
        return copy

    def _elementwise(self, node: Node, row: int | None, column: int | None) -> ir.Value:
        dims = [(row, column) if operand.dims else (None, None) for operand in node.operands]
        operands = [self._operand(node, number, *each) for number, each in enumerate(dims)]
        return self._copy(node, operands, self._type(node, row, column)).results[0]

    def _constant(self, node: Node, row: int | None, column: int | None) -> ir.Value:
        element = splat_value(self.ops[node.id].results[0])
        assert element is not None and self._before is not None
        return make_splat(element, self._type(node, row, column), self._before)

    def _iota(self, node: Node, row: int | None, column: int | None) -> ir.Value:
        dim, type_ = node.integer("dim"), self._type(node, row, column)
        if dim == row:
            assert self._before is not None
            return make_splat(np.zeros((), INTEGERS[node.element]), type_, self._before)
        place = dim - (row is not None and dim > row)
        numbers = self._make("disc.iota", [], type_, dim=place)
        return self._distances(numbers, node.dims[dim]) if dim == column else numbers

    def _distances(self, numbers: ir.Value, size: Dim) -> ir.Value:
        """Entry t is for the distance t - size. No row and column are -size apart: 1 - size takes its place."""
        scalar = ir.RankedTensorType.get([], element_type(numbers.type))

        def everywhere(value: Dim) -> ir.Value:
            only = self._make("disc.dim_value", [], scalar, expr=str(value))
            return self._make("disc.broadcast_in_dim", [only], numbers.type, dims=[], maybe=[])

        distances = self._make("stablehlo.subtract", [numbers, everywhere(size)], numbers.type)
        return self._make("stablehlo.maximum", [distances, everywhere(size * -1 + 1)], numbers.type)

    def _broadcast(self, node: Node, row: int | None, column: int | None) -> ir.Value:
        """A dim of size 1 of the operand that the rows repeat goes."""
        places = self._places(node)
        inner = None if row is None else places[row]
        source = self._operand(node, 0, inner, None if column is None else places[column])
        type_, dims = self._type(node, row, column), list(node.ints("dims"))
        if row in dims and inner is None:
            sizes = entries(source.type)
            number = dims.index(row)
            assert self._before is not None
            source = make_reshape(source, named_type(element_type(source.type), sizes[:number] + sizes[number + 1 :]), self._before)
        kept = [dim - (row is not None and dim > row) for dim in dims if dim != row]
        if source.type == type_ and kept == sorted(kept):
            return source
        return self._make("disc.broadcast_in_dim", [source], type_, dims=kept, maybe=[])

    def _reshape(self, node: Node, row: int | None, column: int | None) -> ir.Value:
        assert self._before is not None
        return make_reshape(self._operand(node, 0, *self._inner(node, row, column)), self._type(node, row, column), self._before)

    def _permuted(self, node: Node, row: int | None, column: int | None) -> ir.Value:
        """Of a view that has each dim of its operand once."""
        order = [dim for dim in self._places(node) if dim is not None]
        source = self._operand(node, 0, *self._inner(node, row, column))
        kept = [dim - (row is not None and dim > order[row]) for place, dim in enumerate(order) if place != row]
        return self._make("stablehlo.transpose", [source], self._type(node, row, column), permutation=kept)

    def _inner(self, node: Node, row: int | None, column: int | None) -> tuple[int | None, int | None]:
        """Which dims of the operand of a view `row` and `column` are."""
        places = self._places(node)
        return None if row is None else places[row], None if column is None else places[column]

    def _places(self, view: Node) -> list[int | None]:
        places = places_of(view, self.env)
        assert places is not None, "a value by distance is seen through views of whole dims"
        return places

    def _gather(self, node: Node, row: int | None, column: int | None) -> ir.Value:
        """One dim fewer in the indices and in the result."""
        assert row is not None and column is not None
        places = _index_places(node)
        inner = places[row]
        assert inner is not None
        indices = self._operand(node, 1, inner, places[column])
        numbers = _stablehlo.GatherDimensionNumbers(self.ops[node.id].attributes["dimension_numbers"])
        fewer = _stablehlo.GatherDimensionNumbers.get(
            offset_dims=[dim - (dim > row) for dim in numbers.offset_dims],
            collapsed_slice_dims=list(numbers.collapsed_slice_dims),
            operand_batching_dims=list(numbers.operand_batching_dims),
            start_indices_batching_dims=[dim - (dim > inner) for dim in numbers.start_indices_batching_dims],
            start_index_map=list(numbers.start_index_map),
            index_vector_dim=numbers.index_vector_dim - (numbers.index_vector_dim > inner),
        )
        copy = self._copy(node, [self._operand(node, 0, None, None), indices], self._type(node, row, column))
        copy.attributes["dimension_numbers"] = fewer
        return copy.results[0]
