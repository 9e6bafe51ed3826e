"""Ops whose results have as many elements as their data say: their number is computed and bound to a symbol, then they are."""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch

from disc.frontend.call import Call
from disc.frontend.locations import line_text
from disc.frontend.op_builder import OpBuilder, RuleError, Tensor, wrap_dim
from disc.frontend.rules.overrides import Rule
from disc.frontend.rules.places import INDEX, as_mask, coordinates, number, positions, scatter_at, take, with_room, without_last
from disc.frontend.rules.reductions import cumulative
from disc.frontend.rules.sorting import sized_library, sort_along
from disc.frontend.rules.views import clamped, needed_by, slice_along
from disc.frontend.symbols import Size, product, to_shape, to_size

aten = torch.ops.aten
FIRST, LAST = -(2**63), 2**63 - 1  # of i64


def _words(call: Call) -> str:
    return f"the size of {call.node.target}'s result"


def nonzero(e: OpBuilder, call: Call) -> Tensor:
    x = call.tensor("self")
    numbers = positions(e, as_mask(e, x), call.shape[0], _words(call))
    if not x.rank:
        return e.full(0, (numbers.shape[0], 0), INDEX)
    return e.concatenate([e.unsqueeze(each, 1) for each in coordinates(e, numbers, x.shape)], 1)


def nonzero_columns(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    """The columns of `nonzero`; a tensor without dims is taken for one of one element."""
    x = call.tensor("self" if "self" in call.arguments else "condition")
    numbers = positions(e, as_mask(e, x), to_shape(call.results[0].shape)[0], _words(call))
    return tuple(coordinates(e, numbers, x.shape or (1,)))


def masked_select(e: OpBuilder, call: Call) -> Tensor:
    x, mask = call.tensor("self"), as_mask(e, call.tensor("mask"))
    shape = e.broadcast_shape(x.shape, mask.shape)
    numbers = positions(e, e.broadcast(mask, shape), call.shape[0], _words(call))
    return take(e, e.reshape(e.broadcast(x, shape), (product(shape),)), numbers, [0], vector=False)


def item(e: OpBuilder, call: Call) -> None:
    """The number becomes what its symbol means. Where the trace found it to be an expression of other sizes, calls must agree."""
    x = call.tensor("self")
    value, found = e.reshape(x, ()), call.node.meta["val"]
    expression = sympy.sympify(found.node.expr)
    if isinstance(expression, sympy.logic.boolalg.Boolean) and not isinstance(expression, sympy.Symbol):  # a symbol is both
        expression = _truth(expression, found)
    if x.dtype.is_floating_point:
        if not isinstance(expression, sympy.Symbol):
            raise RuleError(f"its value is {found}, which is no number of its own")
        e.reals[expression] = e.convert(value, torch.float64)
        return
    size = to_size(expression)
    parts = [] if isinstance(size, int | sympy.Symbol) else [each for each in size.free_symbols if isinstance(each, sympy.Symbol)]
    if any(map(e.is_unknown, parts)):
        raise RuleError(f"its value is {found}, which says what another number is")
    e.bind(e.convert(value, INDEX), size, f"the value of {call.node.target}")


def _truth(expression: sympy.logic.boolalg.Boolean, found: object) -> sympy.Expr:
    """The number that a condition says is 1; 0 or 1 where the trace found the value to be known."""
    if isinstance(expression, sympy.Eq) and expression.rhs == 1:
        return expression.lhs  # pyright: ignore[reportReturnType]  # of an equation between numbers
    if expression in (sympy.true, sympy.false):
        return sympy.Integer(bool(expression))
    raise RuleError(f"its value is {found}, which is no number of its own")


def _not_negative(e: OpBuilder, total: Tensor, parts: Tensor) -> Tensor:
    """`total`, or -1, which is no size, where one of the parts is negative."""
    negative = e.compare("lt", e.reduce(parts, "minimum", LAST, [0]), number(e, 0))
    return e.select(negative, number(e, -1), total)


def repeated(e: OpBuilder, repeats: Tensor, size: Size, what: str) -> Tensor:
    """[n] i64: number i as often as repeats[i] says, in order. Every number ends where those up to it end: n is where the last does."""
    counts = e.convert(repeats, INDEX)
    total = e.bind(
        _not_negative(e, e.reduce(counts, "add", 0, [0]), counts), size, f"{what} (-1: a number of repeats is negative)", least=0
    )
    ends = cumulative(e, counts, 0, "sum")
    marks = scatter_at(e, with_room(e, total), ends, e.full(1, counts.shape, INDEX), [0], False, "add")
    return cumulative(e, without_last(e, marks, total), 0, "sum")


def repeat_interleave(e: OpBuilder, call: Call) -> Tensor:
    return e.convert(repeated(e, call.tensor("repeats"), call.shape[0], _words(call)), call.dtype)


def repeat_interleave_self(e: OpBuilder, call: Call) -> Tensor:
    x, repeats = call.tensor("self"), call.tensor("repeats")
    if not call.has("dim") or not x.rank:
        x = e.reshape(x, (product(x.shape),))
    dim = wrap_dim(call.integer("dim") if call.has("dim") else 0, x.rank)
    if not repeats.rank or repeats.shape[0] == 1:
        repeats = e.broadcast(e.reshape(repeats, (1,)), (x.shape[dim],))
    e.require(
        "==", repeats.shape[0], x.shape[dim], f"{call.node.target} at {line_text(call.node)} has a number of repeats for each element"
    )
    taken = take(e, x, repeated(e, repeats, call.shape[dim], _words(call)), [dim], vector=False)
    return e.transpose(taken, [*range(1, dim + 1), 0, *range(dim + 1, x.rank)])


def bincount(e: OpBuilder, call: Call) -> Tensor:
    numbers, least = e.convert(call.tensor("self"), INDEX), call.size("minlength")
    if not e.non_negative(least):
        raise RuleError(f"a least length of {least}, which may be negative")
    shortest = e.size_scalar(least, INDEX)
    past = e.binary("add", e.reduce(numbers, "maximum", FIRST, [0]), number(e, 1))
    nothing = e.compare("eq", e.size_scalar(numbers.shape[0], INDEX), number(e, 0))
    wanted = e.select(nothing, shortest, e.binary("maximum", past, shortest))
    words = f"{_words(call)} (-1: a number is negative)"
    size = e.bind(_not_negative(e, wanted, numbers), call.shape[0], words, least=least if isinstance(least, int) else 0)
    weights = call.optional_tensor("weights")
    if weights is not None:
        where = f"{call.node.target} at {line_text(call.node)}"
        e.require("==", weights.shape[0], numbers.shape[0], f"{where} has a weight for each number")
        e.require(">=", numbers.shape[0], 1, f"{where} gives integers for no numbers, whatever the weights")
    added = e.full(1, numbers.shape, call.dtype) if weights is None else e.convert(weights, call.dtype)
    return scatter_at(e, e.full(0, (size,), call.dtype), numbers, added, [0], False, "add")


def starts_of_runs(e: OpBuilder, x: Tensor) -> Tensor:
    """[n] bool: where an element of x, [n, ...], differs from the one before. NaN differs from itself, as in eager mode."""
    place = e.iota((x.shape[0],), 0, INDEX)
    before = take(e, x, e.binary("maximum", e.binary("subtract", place, number(e, 1)), number(e, 0)), [0], vector=False)
    differs = e.reduce(e.compare("ne", x, before), "or", False, list(range(1, x.rank)))
    return e.binary("or", differs, e.compare("eq", place, number(e, 0)))


def runs(e: OpBuilder, x: Tensor, size: Size, what: str) -> tuple[Tensor, Tensor, Tensor]:
    """(first element of each run of equal ones along dim 0, the run that each element is in, the length of each run)."""
    starts = starts_of_runs(e, x)
    places = positions(e, starts, size, what)
    inverse = e.binary("subtract", cumulative(e, e.convert(starts, INDEX), 0, "sum"), number(e, 1))
    counts = scatter_at(e, e.full(0, places.shape, INDEX), inverse, e.full(1, inverse.shape, INDEX), [0], False, "add")
    return take(e, x, places, [0], vector=False), inverse, counts


def unique_consecutive(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    x = call.tensor("self")
    dim = wrap_dim(call.integer("dim"), x.rank) if call.has("dim") else None
    if dim is not None:
        if len(call.results[0].shape) != x.rank:
            raise RuleError("PyTorch's trace of a negative dim gives a result of other dims")
        _require_elements(e, call, x, dim)
    rows = e.reshape(x, (product(x.shape),)) if dim is None else e.transpose(x, [dim, *(i for i in range(x.rank) if i != dim)])
    values, inverse, counts = runs(e, rows, call.shape[dim or 0], _words(call))
    back = [*range(1, (dim or 0) + 1), 0, *range((dim or 0) + 1, values.rank)]
    return _asked_for(e, call, e.transpose(values, back), e.reshape(inverse, x.shape if dim is None else inverse.shape), counts)


def _require_elements(e: OpBuilder, call: Call, x: Tensor, dim: int) -> None:
    """Eager compares no slices without elements."""
    for other, size in enumerate(x.shape):
        if other != dim:
            e.require(">=", size, 1, f"{call.node.target} at {line_text(call.node)} compares slices that have elements")


def _asked_for(e: OpBuilder, call: Call, *results: Tensor) -> tuple[Tensor, ...]:
    """The results; where PyTorch was not asked for one behind the first, nothing."""
    first, *others = results
    shapes = [to_shape(each.shape) for each in call.results[1:]]
    return (first, *(e.full(0, (0,), INDEX) if shape == (0,) else each for each, shape in zip(others, shapes, strict=True)))


def unique(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    """The runs of the sorted elements. Eager sorts, too, whether or not it is asked to."""
    x = call.tensor("self")
    flat = e.reshape(x, (product(x.shape),))
    ordered, places = sort_along(e.convert(flat, torch.uint8) if x.dtype == torch.bool else flat, 0, False)
    values, inverse, counts = runs(e, ordered, call.shape[0], _words(call))
    back = scatter_at(e, e.full(0, inverse.shape, INDEX), places, inverse, [0], False, None)
    return _asked_for(e, call, e.convert(values, x.dtype), e.reshape(back, x.shape), counts)


def unique_rows(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    """The runs of the slices along a dim in lexicographic order."""
    x = call.tensor("self")
    dim = wrap_dim(call.integer("dim"), x.rank)
    _require_elements(e, call, x, dim)
    slices = e.transpose(x, [dim, *(i for i in range(x.rank) if i != dim)])
    flat = e.reshape(slices, (slices.shape[0], product(slices.shape[1:])))
    flat = e.convert(flat, torch.uint8) if x.dtype == torch.bool else flat
    order = sized_library(e, "disc.dynamic_order_rows", [flat], [((slices.shape[0],), INDEX)])[0]
    values, inverse, counts = runs(e, take(e, slices, order, [0], vector=False), call.shape[dim], _words(call))
    back = scatter_at(e, e.full(0, inverse.shape, INDEX), order, inverse, [0], False, None)
    return _asked_for(e, call, e.transpose(values, [*range(1, dim + 1), 0, *range(dim + 1, values.rank)]), back, counts)


def tensor_split(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    """Parts between places that are data, each read as a size; as everywhere, a negative place counts from the end."""
    x, places = call.tensor("self"), call.tensor("tensor_indices_or_sections")
    count, dim = len(call.results) - 1, wrap_dim(call.integer("dim"), x.rank)
    if places.rank != 1 or places.shape[0] != count:
        raise RuleError("the number of parts depends on data")
    what, numbers, whole = f"a place of {call.node.target}", e.convert(places, INDEX), x.shape[dim]
    found = [e.bind(e.reshape(e.slice(numbers, [place], (1,), [1]), ()), None, what) for place in range(count)]
    ends = [*(clamped(e, each, whole, needed_by(call)) for each in found), whole]
    parts: list[Tensor] = []
    for start, end, meta in zip([0, *ends[:-1]], ends, call.results, strict=True):
        size = to_size(sympy.Max(sympy.Integer(0), sympy.sympify(end) - sympy.sympify(start)))
        if e.is_unknown(to_shape(meta.shape)[dim]):
            e.solve(meta, to_shape(meta.shape)[dim], size)
        parts.append(slice_along(e, x, dim, start, size))
    return tuple(parts)


# No overrides: torch-mlir has no name for a size that an op computes.
RULES: dict[object, Rule] = {
    aten.nonzero.default: nonzero, aten.argwhere.default: nonzero,
    aten.nonzero_numpy.default: nonzero_columns, aten.where.default: nonzero_columns,
    aten.masked_select.default: masked_select,
    aten.repeat_interleave.Tensor: repeat_interleave, aten.repeat_interleave.self_Tensor: repeat_interleave_self,
    aten.bincount.default: bincount, aten.unique_consecutive.default: unique_consecutive,
    aten._unique2.default: unique, aten.unique_dim.default: unique_rows, aten.tensor_split.tensor_indices_or_sections: tensor_split,
}  # fmt: skip
# Results that are no tensors.
NUMBERS: dict[object, Callable[[OpBuilder, Call], None]] = {aten.item.default: item, aten._local_scalar_dense.default: item}
