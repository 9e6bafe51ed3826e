"""stablehlo.sort and chlo.top_k as sorts of the library.

    %s:2 = sort(%x, %y) by %x         ─►       %v, %i = "disc.sort"(%x)
                                               %s#1 = gather(%y, %i)

Several keys are stable sorts one after the other, the last key first. A comparator that is none of keys (`comparators.py`) gets the rank
of each element by comparing it with all others: quadratic in the length of a line, but without memory, as it fuses into its sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from disc.frontend.hlo.comparators import Key, plain_key, sort_keys
from disc.frontend.hlo.emit import Emitter, FormError, Values, is_float, kind_of, like, signless, width_of
from disc.ir.ops import Attribute, block_ops, element_of, int_attr, rank_of
from disc.ir.rewriting import defining, producer


def sort(op: ir.Operation) -> Values:
    e, operands = Emitter(op), list(op.operands)
    if rank_of(operands[0]) == 0:
        return operands
    dim, block = int_attr(op, "dimension") % rank_of(operands[0]), op.regions[0].blocks[0]
    keys = sort_keys(block)
    if keys is None:
        order, values = _sorted(e, _ranks(e, block, operands, dim), dim, descending=False)[1], {}
    else:
        order, values = _by_keys(e, block, operands, keys, dim)
    return [values[each] if each in values else _taken(e, each, order, dim) for each in operands]


def _sorted(e: Emitter, x: ir.Value, dim: int, descending: bool) -> Values:
    """The values in order, and where they were."""
    attributes: dict[str, Attribute] = {"dim": dim, "descending": descending}
    return e.make("disc.sort", [x], [like(x), like(x, signless(64))], attributes)


def _by_keys(e: Emitter, block: ir.Block, operands: Values, keys: Sequence[Key], dim: int) -> tuple[ir.Value, dict[ir.Value, ir.Value]]:
    """The order, and operands that are sorted already."""
    order: ir.Value | None = None
    for key in reversed(keys):
        plain, is_canonical = plain_key(key)
        source = _computed(e, block, operands, plain)
        compared = _total(e, source) if key.total and is_float(element_of(source)) and not is_canonical else source
        lines = compared if order is None else _taken(e, compared, order, dim)
        values, places = _sorted(e, lines, dim, key.descending)
        order = places if order is None else _taken(e, order, places, dim)
        if len(keys) == 1 and compared in operands:
            return order, {compared: values}
    assert order is not None
    return order, {}


def _computed(e: Emitter, block: ir.Block, operands: Values, value: ir.Value) -> ir.Value:
    """A key of the first position, for all elements."""
    known = {argument: operands[number // 2] for number, argument in enumerate(block.arguments) if number % 2 == 0}

    def made(each: ir.Value) -> ir.Value:
        op = producer(each)
        if each not in known:
            assert op is not None
            is_inside = op.operation.block == block  # pyright: ignore[reportAttributeAccessIssue]
            known[each] = e.lifted(op, [made(operand) for operand in op.operands])[0] if is_inside else each
        return known[each]

    return made(value)


def _total(e: Emitter, x: ir.Value) -> ir.Value:
    """Signed integers in the order that IEEE 754's totalOrder gives floats: of negative ones all bits but the sign are inverted."""
    bits = width_of(element_of(x))
    word = signless(bits)
    number = e.bitcast(x, word)
    negative = e.compare("LT", number, e.constant(0, word))
    return e.select(negative, e.number("xor", number, 2 ** (bits - 1) - 1), number)


def _taken(e: Emitter, x: ir.Value, places: ir.Value, dim: int) -> ir.Value:
    """Along a dim, the elements of each line at its places."""
    counted = defining(x, "stablehlo.iota", "stablehlo.dynamic_iota")
    if counted is not None and int_attr(counted, "iota_dimension") == dim and kind_of(x).shape == kind_of(places).shape:
        return e.convert(places, element_of(x))
    others = [each for each in range(rank_of(x)) if each != dim]
    batching = f"operand_batching_dims = {others}, start_indices_batching_dims = {others}, " if others else ""
    numbers = f"#stablehlo.gather<collapsed_slice_dims = [{dim}], {batching}start_index_map = [{dim}], index_vector_dim = {rank_of(x)}>"
    attributes: dict[str, Attribute] = {"dimension_numbers": ir.Attribute.parse(numbers), "slice_sizes": [1] * rank_of(x)}
    return e.one("stablehlo.gather", [x, places], like(places, element_of(x)), attributes)


def _ranks(e: Emitter, block: ir.Block, operands: Values, dim: int) -> ir.Value:
    """For each element, how many of its line come before it: those that the comparator puts there, and of equal ones the earlier."""
    rank = rank_of(operands[0])
    sizes = [e.size(operands[0], each) for each in range(rank)]
    shape = list(kind_of(operands[0]).shape)
    square = [*shape[: dim + 1], shape[dim], *shape[dim + 1 :]]
    full = e.sizes([*sizes[: dim + 1], sizes[dim], *sizes[dim + 1 :]])

    def spread(x: ir.Value, own: bool) -> ir.Value:
        kept = [each if each < dim or (each == dim and own) else each + 1 for each in range(rank)]
        kind = ir.RankedTensorType.get(square, element_of(x))
        return e.one("stablehlo.dynamic_broadcast_in_dim", [x, full], kind, {"broadcast_dimensions": kept})

    mine, others = ([spread(each, own) for each in operands] for own in (True, False))
    before, behind = (
        e.inlined(block, [each for pair in zip(*sides, strict=True) for each in pair])[0] for sides in ((others, mine), (mine, others))
    )
    place = e.iota(operands[0], dim, signless(64))
    earlier = e.compare("LT", spread(place, own=False), spread(place, own=True))
    tied = e.binary("and", e.unary("not", behind), earlier)
    first = e.binary("or", before, tied)
    return e.reduce("add", e.convert(first, signless(64)), [dim + 1])


def top_k(op: ir.Operation) -> Values:
    return _first(op, int_attr(op, "k"), largest=True)


def top_k_composite(op: ir.Operation) -> Values:
    """`stablehlo.composite "chlo.top_k"`, as JAX writes it."""
    given = {entry.name: entry.attr for entry in ir.DictAttr(op.attributes["composite_attributes"])}
    largest = "largest" not in given or ir.BoolAttr(given["largest"]).value
    return _first(op, ir.IntegerAttr(given["k"]).value, largest)


def dynamic_top_k(op: ir.Operation) -> Values:
    """JAX's `stablehlo.dynamic_top_k(%x, %k)`."""
    e = Emitter(op)
    number = e.one("tensor.extract", [op.operands[1]], element_of(op.operands[1]))
    return _first(op, e.one("arith.index_cast", [number], ir.IndexType.get()), largest=True)


def approximate_top_k(op: ir.Operation) -> Values:
    """JAX's `approx_max_k` and `approx_min_k`, exactly: any recall allows that."""
    given = {entry.name: entry.attr for entry in ir.DictAttr(op.attributes["mhlo.backend_config"])}
    dim, places = ir.IntegerAttr(given["reduction_dim"]).value, producer(op.operands[1])
    if not ir.BoolAttr(given["aggregate_to_topk"]).value:
        raise FormError("parts of which the largest are not taken yet (aggregate_to_topk=False)")
    if places is None or places.name not in ("stablehlo.iota", "stablehlo.dynamic_iota") or int_attr(places, "iota_dimension") != dim:
        raise FormError("its second operand is not the places along the dim")
    return _first(op, ir.IntegerAttr(given["top_k"]).value, _takes_larger(op), dim)


def _takes_larger(op: ir.Operation) -> bool:
    """What the function says that the op compares by."""
    name = ir.FlatSymbolRefAttr(ir.ArrayAttr(op.attributes["called_computations"])[0]).value
    module = op
    while module.name != "builtin.module":
        module = module.parent.operation
    block = ir.SymbolTable(module)[name].operation.regions[0].blocks[0]
    first = block_ops(block)[0]
    directions = {f"#stablehlo<comparison_direction {each}>": each == "GT" for each in ("GT", "LT")}
    direction = str(first.attributes["comparison_direction"]) if first.name == "stablehlo.compare" else ""
    if direction not in directions or list(first.operands) != list(block.arguments)[:2] or len(block_ops(block)) != 2:
        raise FormError("it compares by something else than which number is larger")
    return directions[direction]


def _first(op: ir.Operation, k: int | ir.Value, largest: bool, dim: int | None = None) -> Values:
    """The k largest along a dim, the last unless another is given, equal ones in their order. NaN is the largest number, as in a sort."""
    e, x = Emitter(op), op.operands[0]
    shape = kind_of(x).shape
    dim = rank_of(x) - 1 if dim is None else dim
    if isinstance(k, int) and 0 <= shape[dim] < k:
        raise FormError(f"it takes {k} of {shape[dim]} elements")
    count = k if isinstance(k, int) else ir.ShapedType.get_dynamic_size()
    kinds = [ir.RankedTensorType.get([*shape[:dim], count, *shape[dim + 1 :]], each) for each in (element_of(x), signless(64))]
    sizes = e.sizes([k if each == dim else e.size(x, each) for each in range(rank_of(x))])
    values, places = e.make("disc.dynamic_topk", [x, sizes, sizes], kinds, {"dim": dim, "largest": largest})
    return [values, e.convert(places, element_of(op.results[1]))]
