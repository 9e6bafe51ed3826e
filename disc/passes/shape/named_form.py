"""The rewrite behind name-dims: typed results, no shape operands, sizes used as data as `disc.dim_value`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.ir.control import REGION_OPS
from disc.ir.interp.values import constant_attribute, held_dtype
from disc.ir.op_table import BINDING, CONSTANTS, EXTERNAL, IMPORTED, WHAT, Sizes
from disc.ir.ops import (
    TERMINATORS,
    Attribute,
    array_to_dense,
    block_ops,
    build,
    dense_to_array,
    element_of,
    int_attr,
    ints_attr,
    is_tensor,
    location_text,
    main_block,
    main_function,
    rank_of,
    strings,
    strings_attr,
    tensor_type,
    terminator_of,
)
from disc.ir.reducers import IN_ORDER
from disc.ir.stages import NAMED_OPS
from disc.ir.symbols import ModuleEnv
from disc.passes.shape.dynamic_windows import rewrite_window
from disc.passes.shape.host_values import ONE, ZERO, HostValue, Ratio, elements, is_constant
from disc.passes.shape.shape_rules import Shapes, conv_paddings, gather_sizes, pad_amounts, slice_bounds
from disc.shapes import Dim, Truth, dim_max, dim_min

# Operands that are data; the others hold sizes and are dropped. Ops that are not here read all their operands as data.
DATA_OPERANDS: dict[str, int] = {
    "stablehlo.dynamic_reshape": 1, "stablehlo.dynamic_broadcast_in_dim": 1, "stablehlo.dynamic_iota": 0, "stablehlo.real_dynamic_slice": 1,
    "stablehlo.dynamic_pad": 2, "stablehlo.dynamic_gather": 2, "stablehlo.dynamic_conv": 2, "tensor.cast": 1, "chlo.constant_like": 0,
    "stablehlo.get_dimension_size": 0, "disc.dynamic_window": 1,
    **{name: len(op.operands) for name, op in IMPORTED.items() if op.sizes is Sizes.GIVEN},
}  # fmt: skip


class NamedForm:
    """Rewrites @main, whose dims and values `shapes` holds; the symbols of `env` stand in the module already."""

    def __init__(self, module: ir.Module, shapes: Shapes, env: ModuleEnv) -> None:
        self.module = module
        self.shapes = shapes
        self.env = env
        # Erased at the end: the tables of `shapes` know values by address, and a new op may get the address of an erased one.
        self.replaced: dict[ir.Operation, None] = {}
        self.made: dict[ir.Value, ir.Value] = {}
        self.types: dict[tuple[tuple[Dim, ...], ir.Type], ir.RankedTensorType] = {}

    def rewrite(self) -> None:
        dead = self._rewrite_block(main_block(self.module))
        self._write_signature()
        for op in dead:
            op.erase()

    def _rewrite_block(self, block: ir.Block) -> list[ir.Operation]:
        """Returns what is to be erased, readers first."""
        for argument in filter(is_tensor, block.arguments):
            argument.set_type(self.type_of(argument))
        ops = block_ops(block)
        live = self._live(ops)
        _refuse_scalars([op for op, is_live in zip(ops, live, strict=True) if is_live])
        dead: list[list[ir.Operation]] = []
        for op, is_live in zip(ops, live, strict=True):
            inside = self._rewrite_op(op) if is_live else []
            dead.append([*inside, *([op] if not is_live or op in self.replaced else [])])
        return [op for each in reversed(dead) for op in each]

    def type_of(self, value: ir.Value) -> ir.RankedTensorType:
        return self.typed(self.shapes.dims[value], element_of(value))

    def typed(self, dims: Sequence[Dim], element: ir.Type) -> ir.RankedTensorType:
        key = (tuple(dims), element)
        if key not in self.types:
            self.types[key] = tensor_type(dims, element, self.env)
        return self.types[key]

    def _live(self, ops: Sequence[ir.Operation]) -> list[bool]:
        """Which ops compute data that reaches the result."""
        needed: dict[ir.Value, None] = {}
        live: list[bool] = []
        for op in reversed(ops):
            is_live = op.name in TERMINATORS or op.name in BINDING or any(result in needed for result in op.results)
            live.append(is_live)
            if is_live:
                needed.update(dict.fromkeys(self._needs(op)))
        return live[::-1]

    def _needs(self, op: ir.Operation) -> list[ir.Value]:
        """The data that an op reads, in regions of control flow also."""
        found = [operand for operand in _data_operands(op) if not self._is_size(operand)]
        if op.name in REGION_OPS:
            for ops in [block_ops(region.blocks[0]) for region in op.regions]:
                found += [value for each, is_live in zip(ops, self._live(ops), strict=True) if is_live for value in self._needs(each)]
        return found

    def _is_size(self, value: ir.Value) -> bool:
        """Whether data use of `value` reads a `disc.dim_value` or constant made for it, instead of the op that defines it."""
        host = self.shapes.values.get(value)
        if host is None or not isinstance(value, ir.OpResult):
            return host is not None
        name = value.owner.name
        if name in CONSTANTS:
            return False
        if not name.startswith(("stablehlo.", "chlo.")):
            return True
        return all(isinstance(item, Dim) and (not item.is_const or -(2**31) <= item.const < 2**31) for item in elements(host))

    def _rewrite_op(self, op: ir.Operation) -> list[ir.Operation]:
        """Returns what is to be erased within."""
        for index, operand in enumerate(_data_operands(op)):
            if self._is_size(operand):
                op.operands[index] = self._materialise(operand, op)
        if op.name in TERMINATORS:
            return []
        rule = REWRITES.get(op.name)
        if rule is not None:
            rule(self, op)
            return []
        if op.name.startswith("chlo.broadcast_"):
            _rewrite_broadcast(self, op)
            return []
        for result in op.results:
            result.set_type(self.type_of(result))
        return self._rewrite_regions(op) if op.name in REGION_OPS else []

    def _rewrite_regions(self, op: ir.Operation) -> list[ir.Operation]:
        """What sizes are made of is made in each region anew: what one makes nothing outside sees."""
        dead: list[ir.Operation] = []
        outside = self.made
        for region in op.regions:
            self.made = {}
            dead += self._rewrite_block(region.blocks[0])
        self.made = outside
        return dead

    def replace(self, op: ir.Operation, name: str, operands: Sequence[ir.Value], attributes: dict[str, Attribute]) -> None:
        """Puts the op `name` with the inferred result types in the place of `op`."""
        made = build(name, operands, [self.type_of(result) for result in op.results], attributes, before=op)
        for result, value in zip(op.results, made.results, strict=True):
            result.replace_all_uses_with(value)
        self.replaced[op] = None

    def substitute(self, op: ir.Operation, value: ir.Value) -> None:
        """Gives the readers of `op` to `value`."""
        op.results[0].replace_all_uses_with(value)
        self.replaced[op] = None

    def broadcast(self, value: ir.Value, dims: Sequence[Dim], positions: Sequence[int], before: ir.Operation) -> ir.Value:
        """`value` expanded to `dims`; its dim i is dim positions[i] there."""
        kind = self.typed(dims, element_of(value))
        source = self.source_dims(value)
        maybe = [i for i, dim in enumerate(source) if dim != ONE and self.env.equal(dim, dims[positions[i]]) is not Truth.YES]
        attributes: dict[str, Attribute] = {"dims": list(positions), "maybe": maybe}
        return build("disc.broadcast_in_dim", [value], [kind], attributes, before=before).results[0]

    def source_dims(self, value: ir.Value) -> tuple[Dim, ...]:
        """The dims of an operand, also of one that this rewrite made."""
        encoding = ir.RankedTensorType(value.type).encoding
        return () if encoding is None else tuple(self.env.resolve(entry) for entry in ir.ArrayAttr(encoding))

    # Sizes as data

    def _materialise(self, value: ir.Value, before: ir.Operation) -> ir.Value:
        """A tensor with the sizes that `value` holds; made once, before its first reader."""
        if value not in self.made:
            self.made[value] = self._build_sizes(value, before)
        return self.made[value]

    def _build_sizes(self, value: ir.Value, before: ir.Operation) -> ir.Value:
        host = self.shapes.values.get(value)
        if host is None or not is_tensor(value):
            what = "a number whose form is not known" if host is None else "a scalar that is no tensor"
            raise UnsupportedOpError([UnsupportedOp(before.name, f"it reads {what}", location_text(before))])
        element = element_of(value)
        kind = self.typed(tuple(map(Dim.of, host.shape)), element)
        if is_constant(host):
            array = array_to_dense(_constant_array(host, element), kind)
            return build("stablehlo.constant", [], [kind], {"value": array}, before=before).results[0]
        parts = [self._size(_whole(item, before), before) for item in elements(host)]
        joined = parts[0]
        word = ir.IntegerType.get_signless(64)
        if host.ndim > 0:
            flat = self.typed((Dim.of(host.size),), word)
            single = self.typed((ONE,), word)
            rows = [build("disc.reshape", [part], [single], before=before).results[0] for part in parts]
            joined = rows[0] if len(rows) == 1 else build("stablehlo.concatenate", rows, [flat], {"dimension": 0}, before=before).results[0]
        if host.ndim > 1:
            joined = build("disc.reshape", [joined], [self.typed(tuple(map(Dim.of, host.shape)), word)], before=before).results[0]
        if element == word:
            return joined
        return build("stablehlo.convert", [joined], [kind], before=before).results[0]

    def _size(self, dim: Dim, before: ir.Operation) -> ir.Value:
        kind = ir.RankedTensorType.get([], ir.IntegerType.get_signless(64))
        return build("disc.dim_value", [], [kind], {"expr": str(self.env.simplify(dim))}, before=before).results[0]

    def _write_signature(self) -> None:
        block = main_block(self.module)
        results = [operand.type for operand in terminator_of(block).operands]
        kind = ir.FunctionType.get([argument.type for argument in block.arguments], results)
        main_function(self.module).attributes["function_type"] = ir.TypeAttr.get(kind)


def _data_operands(op: ir.Operation) -> list[ir.Value]:
    operands = list(op.operands)
    count = int_attr(op, "tensors") if op.name == EXTERNAL else DATA_OPERANDS.get(op.name, len(operands))
    return operands[:count]


def _whole(item: Dim | Ratio, reader: ir.Operation) -> Dim:
    if isinstance(item, Dim):
        return item
    if item.denominator == ONE:
        return item.numerator
    raise UnsupportedOpError([UnsupportedOp(reader.name, "it reads a quotient of sizes", location_text(reader))])


def _constant_array(host: HostValue, element: ir.Type) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    numbers = [item.const if isinstance(item, Dim) else item.numerator.const / item.denominator.const for item in elements(host)]
    dtype = {"i1": np.bool_, "i32": np.int32, "f64": np.float64}.get(str(element), np.int64)
    return np.array(numbers, dtype).reshape(host.shape)


# --- one function per kind of op --------------------------------------------------------------------------------------


def _rewrite_broadcast(form: NamedForm, op: ir.Operation) -> None:
    """chlo.broadcast_x → stablehlo.x on operands of one shape; operands align at their last dims."""
    dims = form.shapes.dims[op.results[0]]
    name = op.name.replace("chlo.broadcast_", "stablehlo.")
    operands: list[ir.Value] = []
    for index, operand in enumerate(op.operands):
        positions = list(range(len(dims) - rank_of(operand), len(dims)))
        is_rank0_condition = name == "stablehlo.select" and index == 0 and not positions
        same = operand.type == form.typed(dims, element_of(operand))
        operands.append(operand if same or is_rank0_condition else form.broadcast(operand, dims, positions, op))
    attributes: dict[str, Attribute] = {}
    if name == "stablehlo.compare":
        kept = [entry for entry in ("comparison_direction", "compare_type") if entry in op.attributes]
        attributes = {entry: _stablehlo_enum(op.attributes[entry]) for entry in kept}
    form.replace(op, name, operands, attributes)


def _stablehlo_enum(attribute: ir.Attribute) -> ir.Attribute:
    """#chlo<comparison_direction GE> → #stablehlo<comparison_direction GE>."""
    return ir.Attribute.parse(str(attribute).replace("#chlo<", "#stablehlo<"))


def _rewrite_reshape(form: NamedForm, op: ir.Operation) -> None:
    form.replace(op, "disc.reshape", [op.operands[0]], {})


def _rewrite_broadcast_in_dim(form: NamedForm, op: ir.Operation) -> None:
    dims = form.shapes.dims[op.results[0]]
    made = form.broadcast(op.operands[0], dims, ints_attr(op, "broadcast_dimensions"), op)
    form.substitute(op, made)


def _rewrite_iota(form: NamedForm, op: ir.Operation) -> None:
    form.replace(op, "disc.iota", [], {"dim": int_attr(op, "iota_dimension")})


def _rewrite_slice(form: NamedForm, op: ir.Operation) -> None:
    starts, _, strides = slice_bounds(form.shapes, op)
    simplified = strings(*(form.env.simplify(start) for start in starts))
    form.replace(op, "disc.slice", [op.operands[0]], {"starts": simplified, "strides": ir.DenseI64ArrayAttr.get(list(strides))})


def _rewrite_dynamic_slice(form: NamedForm, op: ir.Operation) -> None:
    """With starts that are sizes it is a disc.slice, the starts clamped; with computed starts it stays."""
    values = [form.shapes.values.get(operand) for operand in list(op.operands)[1:]]
    known = [value.item() for value in values if value is not None]
    if len(known) != len(values):
        op.results[0].set_type(form.type_of(op.results[0]))
        return
    starts: list[Dim] = []
    for start, dim, size in zip(known, form.source_dims(op.operands[0]), ints_attr(op, "slice_sizes"), strict=True):
        starts.append(form.env.simplify(dim_max(dim_min(start, dim - size), ZERO)))
    strides = ir.DenseI64ArrayAttr.get([1] * len(starts))
    form.replace(op, "disc.slice", [op.operands[0]], {"starts": strings(*starts), "strides": strides})


def _rewrite_pad(form: NamedForm, op: ir.Operation) -> None:
    low, _, interior = pad_amounts(form.shapes, op)
    simplified = strings(*(form.env.simplify(amount) for amount in low))
    form.replace(op, "disc.pad", list(op.operands)[:2], {"low": simplified, "interior": ir.DenseI64ArrayAttr.get(list(interior))})


def _rewrite_gather(form: NamedForm, op: ir.Operation) -> None:
    sizes = strings(*(form.env.simplify(size) for size in gather_sizes(form.shapes, op)))
    kept = {name: op.attributes[name] for name in ("dimension_numbers", WHAT) if name in op.attributes}
    form.replace(op, "disc.gather", list(op.operands)[:2], {**kept, "sizes": sizes})


def _rewrite_dot(form: NamedForm, op: ir.Operation) -> None:
    last = rank_of(op.operands[0]) - 1
    numbers = ir.Attribute.parse(f"#stablehlo.dot<lhs_contracting_dimensions = [{last}], rhs_contracting_dimensions = [0]>")
    form.replace(op, "stablehlo.dot_general", list(op.operands), {"dot_dimension_numbers": numbers})


def _rewrite_dynamic_conv(form: NamedForm, op: ir.Operation) -> None:
    """Padding of sizes is put around the source before."""
    rank = rank_of(op.operands[0]) - 2
    kept: dict[str, Attribute] = {name: op.attributes[name] for name in op.attributes if name != "padding"}
    kind = ir.RankedTensorType.get([rank, 2], ir.IntegerType.get_signless(64))
    padding, source = conv_paddings(form.shapes, op, rank), op.operands[0]
    if not all(each.is_const for pair in padding for each in pair):
        source = _padded_image(form, op, padding)
        padding = [(ZERO, ZERO)] * rank
    numbers = np.array([[each.const for each in pair] for pair in padding], np.int64).reshape(rank, 2)
    kept["padding"] = array_to_dense(numbers, kind)
    form.replace(op, "stablehlo.convolution", [source, op.operands[1]], kept)


def _padded_image(form: NamedForm, op: ir.Operation, padding: Sequence[tuple[Dim, Dim]]) -> ir.Value:
    source, element = op.operands[0], element_of(op.operands[0])
    spatial = list(_stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"]).input_spatial_dimensions)
    dims, lows = list(form.source_dims(source)), [ZERO] * rank_of(source)
    for dim, (low, high) in zip(spatial, padding, strict=True):
        dims[dim], lows[dim] = form.env.simplify(dims[dim] + low + high), form.env.simplify(low)
    scalar = ir.RankedTensorType.get([], element)
    zero = build(
        "stablehlo.constant", [], [scalar], {"value": constant_attribute(np.zeros((), held_dtype(str(element))), scalar)}, before=op
    )
    amounts: dict[str, Attribute] = {"low": strings(*lows), "interior": ir.DenseI64ArrayAttr.get([0] * len(lows))}
    return build("disc.pad", [source, zero.results[0]], [form.typed(dims, element)], amounts, before=op).results[0]


def _rewrite_select_and_scatter(form: NamedForm, op: ir.Operation) -> None:
    """Every window finds the number of the element that it selects, which an ordinary scatter then updates."""
    source_dims, update_dims = form.source_dims(op.operands[0]), form.source_dims(op.operands[1])
    word, element = ir.IntegerType.get_signless(64), element_of(op.operands[0])
    count, updates = _product(source_dims), _product(update_dims)
    flat = build("disc.iota", [], [form.typed((count,), word)], {"dim": 0}, before=op).results[0]
    numbers = build("disc.reshape", [flat], [form.typed(source_dims, word)], before=op).results[0]
    number_type, value_type = (ir.RankedTensorType.get([], each) for each in (word, element))
    initials = [
        build("stablehlo.constant", [], [type_], {"value": constant_attribute(np.array(value, held_dtype(str(each))), type_)}, before=op)
        for type_, each, value in ((value_type, element, 0), (number_type, word, -1))
    ]
    windows = {name: op.attributes[name] for name in ("window_dimensions", "window_strides") if name in op.attributes}
    operands, low, high = [op.operands[0], numbers], *np.array(_window_padding(op, len(source_dims))).T.tolist()
    if any((*low, *high)):
        padded = [dim + below + above for dim, below, above in zip(source_dims, low, high, strict=True)]
        amounts: dict[str, Attribute] = {"low": strings(*low), "interior": ir.DenseI64ArrayAttr.get([0] * len(low))}
        operands = [
            build("disc.pad", [each, initial.results[0]], [form.typed(padded, element_of(each))], amounts, before=op).results[0]
            for each, initial in zip(operands, initials, strict=True)
        ]
    chosen = build(
        "stablehlo.reduce_window", [*operands, *(each.results[0] for each in initials)],
        [form.typed(update_dims, element), form.typed(update_dims, word)], {**windows, IN_ORDER: ir.UnitAttr.get()}, 1, before=op,
    )  # fmt: skip
    _selection(chosen, op.regions[0].blocks[0], [value_type, number_type])
    places = build("disc.reshape", [chosen.results[1]], [form.typed((updates, ONE), word)], before=op).results[0]
    values = build("disc.reshape", [op.operands[1]], [form.typed((updates,), element)], before=op).results[0]
    target = form.broadcast(op.operands[2], (count,), [], op)
    dimensions = ir.Attribute.parse(
        "#stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>"
    )
    scattered = build("stablehlo.scatter", [target, places, values], [target.type], {"scatter_dimension_numbers": dimensions}, 1, before=op)
    block = ir.Block.create_at_start(scattered.regions[0], [value_type] * 2, [op.location] * 2)
    with ir.InsertionPoint(block):
        build("stablehlo.return", _inlined(op.regions[1].blocks[0], list(block.arguments)), location=op.location)
    form.replace(op, "disc.reshape", scattered.results[:1], {})


def _window_padding(op: ir.Operation, rank: int) -> list[tuple[int, int]]:
    if "padding" not in op.attributes:
        return [(0, 0)] * rank
    return [(int(low), int(high)) for low, high in dense_to_array(op.attributes["padding"])]


def _selection(op: ir.Operation, select: ir.Block, types: Sequence[ir.Type]) -> None:
    """The body of `op`: of two (value, number) the one that `select` keeps; a number of -1 means that there is no value."""
    block = ir.Block.create_at_start(op.regions[0], [*types, *types], [op.location] * 4)
    value, number, other, other_number = block.arguments
    bit = ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
    with ir.InsertionPoint(block):

        def make(name: str, operands: Sequence[ir.Value], type_: ir.Type, attributes: dict[str, Attribute] | None = None) -> ir.Value:
            return build(name, operands, [type_], attributes, location=op.location).results[0]

        zero = make("stablehlo.constant", [], types[1], {"value": constant_attribute(np.zeros((), np.int64), types[1])})
        less: dict[str, Attribute] = {"comparison_direction": ir.Attribute.parse("#stablehlo<comparison_direction LT>")}
        absent = [make("stablehlo.compare", [each, zero], bit, less) for each in (number, other_number)]
        kept = _inlined(select, [value, other])[0]
        loses = make("stablehlo.or", [absent[0], make("stablehlo.not", [kept], bit)], bit)
        taken = make("stablehlo.and", [make("stablehlo.not", [absent[1]], bit), loses], bit)
        pairs = ((other, value, types[0]), (other_number, number, types[1]))
        build("stablehlo.return", [make("stablehlo.select", [taken, new, old], kind) for new, old, kind in pairs], location=op.location)


def _inlined(block: ir.Block, arguments: Sequence[ir.Value]) -> list[ir.Value]:
    """A copy of the ops of `block`, for `arguments`, at the insertion point; returns what the block yields."""
    values: dict[ir.Value, ir.Value] = dict(zip(block.arguments, arguments, strict=True))
    *inside, last = block_ops(block)
    for op in inside:
        copy = op.clone()
        for number, operand in enumerate(op.operands):
            copy.operands[number] = values.get(operand, operand)
        values.update(zip(op.results, copy.results, strict=True))
    return [values.get(value, value) for value in last.operands]


def _product(dims: Sequence[Dim]) -> Dim:
    return math.prod(dims, start=ONE)


def _rewrite_constant(form: NamedForm, op: ir.Operation) -> None:
    """The value takes the type with named dims too, so that the two agree."""
    kind = form.type_of(op.results[0])
    value = op.attributes["value"]
    if isinstance(value, ir.DenseElementsAttr) and value.is_splat:
        value = ir.DenseElementsAttr.get_splat(kind, value.get_splat_value())
    elif kind.rank > 0:
        value = array_to_dense(dense_to_array(value), kind)
    made = build("stablehlo.constant", [], [kind], {"value": value}, before=op)
    form.substitute(op, made.results[0])


def _rewrite_constant_like(form: NamedForm, op: ir.Operation) -> None:
    dims = form.shapes.dims[op.results[0]]
    kind = form.typed((), element_of(op.results[0]))
    value = ir.DenseElementsAttr.get_splat(kind, op.attributes["value"])
    made = build("stablehlo.constant", [], [kind], {"value": value}, before=op).results[0]
    form.substitute(op, form.broadcast(made, dims, [], op) if dims else made)


def _rewrite_size_of(form: NamedForm, op: ir.Operation) -> None:
    """The symbol by its name in the module."""
    size = form.shapes.made[op.results[0]].item()
    assert isinstance(size, Dim)
    op.attributes["symbol"] = ir.StringAttr.get(str(size))
    if "most" in op.attributes:
        del op.attributes["most"]  # a relation by now


def _rewrite_cast(form: NamedForm, op: ir.Operation) -> None:
    form.substitute(op, op.operands[0])


def _rewrite_external(form: NamedForm, op: ir.Operation) -> None:
    """The sizes of results are in the types; those among the numbers become expressions in the place of each "?"."""
    data = int_attr(op, "tensors")
    given = list(op.operands)[data + len(op.results) :]
    sizes = iter(form.shapes.sizes(given[0]) if given else ())
    numbers = [str(form.env.simplify(next(sizes))) if text == "?" else text for text in strings_attr(op, "numbers")]
    kept: dict[str, Attribute] = {name: op.attributes[name] for name in ("function", "target")}
    form.replace(op, EXTERNAL, _data_operands(op), {**kept, "numbers": strings(*numbers)})


def _rewrite_given(form: NamedForm, op: ir.Operation) -> None:
    """The sizes are in the types."""
    attributes: dict[str, Attribute] = {name: op.attributes[name] for name in op.attributes}
    form.replace(op, IMPORTED[op.name].name, _data_operands(op), attributes)


REWRITES: dict[str, Callable[[NamedForm, ir.Operation], None]] = {
    "stablehlo.reshape": _rewrite_reshape, "stablehlo.dynamic_reshape": _rewrite_reshape,
    "stablehlo.broadcast_in_dim": _rewrite_broadcast_in_dim, "stablehlo.dynamic_broadcast_in_dim": _rewrite_broadcast_in_dim,
    "stablehlo.iota": _rewrite_iota, "stablehlo.dynamic_iota": _rewrite_iota, "stablehlo.slice": _rewrite_slice,
    "stablehlo.real_dynamic_slice": _rewrite_slice, "stablehlo.dynamic_slice": _rewrite_dynamic_slice, "stablehlo.pad": _rewrite_pad,
    "stablehlo.dynamic_pad": _rewrite_pad, "stablehlo.gather": _rewrite_gather, "stablehlo.dynamic_gather": _rewrite_gather,
    "stablehlo.dot": _rewrite_dot, "stablehlo.dynamic_conv": _rewrite_dynamic_conv, "stablehlo.constant": _rewrite_constant,
    "arith.constant": _rewrite_constant, "chlo.constant": _rewrite_constant, "chlo.constant_like": _rewrite_constant_like,
    "disc.dynamic_window": rewrite_window,
    "stablehlo.select_and_scatter": _rewrite_select_and_scatter, "tensor.cast": _rewrite_cast, "disc.size_of": _rewrite_size_of,
    EXTERNAL: _rewrite_external,
    **{name: _rewrite_given for name, op in IMPORTED.items() if op.sizes is Sizes.GIVEN},
}  # fmt: skip


def _refuse_scalars(ops: Sequence[ir.Operation]) -> None:
    """Raises UnsupportedOpError naming each of these ops, which make data, that is no op on tensors."""
    others = {*REGION_OPS, *TERMINATORS, *REWRITES}
    known = [op.name in NAMED_OPS or op.name in others or op.name.startswith("chlo.broadcast_") for op in ops]
    reason = "there is no rule for this op where it computes data"
    refused = [UnsupportedOp(op.name, reason, location_text(op)) for op, is_known in zip(ops, known, strict=True) if not is_known]
    if refused:
        raise UnsupportedOpError(refused)
