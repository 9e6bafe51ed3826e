"""How each op is converted to channels-last values: its operands transposed before it, its result transposed back behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.ir.interp.values import element_name
from disc.ir.ops import build, int_attr, ints_attr, replace_op, strings
from disc.ir.rewriting import defining, element_type, entries, make_reshape, make_splat, named_type, static_entry, static_size
from disc.ir.symbols import ModuleEnv
from disc.passes.graph.dot_numbers import DotNumbers
from disc.shapes import Dim, Truth

ELEMENTS = ("f32", "f64")


def last_order(rank: int) -> list[int]:
    """The permutation from channels first to channels last."""
    return [0, *range(2, rank), 1]


def first_order(rank: int) -> list[int]:
    """The permutation from channels last to channels first."""
    return [0, rank - 1, *range(1, rank - 1)]


def to_last(transpose: ir.Operation) -> bool:
    """Does this transpose make a channels-last value of a channels-first one?"""
    permutation = ints_attr(transpose, "permutation")
    return len(permutation) >= 3 and permutation == last_order(len(permutation))


def turned(value: ir.Value) -> ir.Value | None:
    """The channels-last value that `value` is the transpose of, if there is one."""
    op = defining(value, "stablehlo.transpose")
    if op is None:
        return None
    permutation = ints_attr(op, "permutation")
    return op.operands[0] if len(permutation) >= 3 and permutation == first_order(len(permutation)) else None


@dataclass(frozen=True)
class Convolution:
    """A channels-first convolution with one output per input channel (depthwise) or per group. inputs, outputs: channels of all groups.
    window, strides, dilations: in elements, per spatial dim; pads: (low, high), likewise.

    plain: no holes in the source, no reversed window, no batch groups, one element type throughout; element: of the result.
    """

    inputs: int
    outputs: int
    groups: int
    window: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    dilations: tuple[int, ...]
    plain: bool
    element: str

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.outputs and self.inputs == 1

    @property
    def is_product(self) -> bool:
        """Every output position sees one input position: a product of matrices."""
        return self.groups == 1 and all(size == 1 for size in self.window) and all(pad == (0, 0) for pad in self.pads)

    @property
    def is_patches(self) -> bool:
        """The windows of the output positions lie side by side: where they cover the source too, a product of matrices, a row per patch."""
        flush = self.window == self.strides and all(pad == (0, 0) for pad in self.pads) and all(step == 1 for step in self.dilations)
        return self.groups == 1 and flush and any(size > 1 for size in self.window)


def read_convolution(op: ir.Operation) -> Convolution | None:
    """None for other layouts, and where a size of the kernel is not static."""
    numbers = _stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    rank = len(entries(op.operands[0].type))
    spatial = list(range(2, rank))
    first = (
        (numbers.input_batch_dimension, numbers.input_feature_dimension, list(numbers.input_spatial_dimensions)),
        (numbers.output_batch_dimension, numbers.output_feature_dimension, list(numbers.output_spatial_dimensions)),
        (numbers.kernel_output_feature_dimension, numbers.kernel_input_feature_dimension, list(numbers.kernel_spatial_dimensions)),
    )
    sizes = [static_size(entry) for entry in entries(op.operands[1].type)]
    if any(each != (0, 1, spatial) for each in first) or None in sizes or not spatial:
        return None
    outputs, inputs, *window = (size for size in sizes if size is not None)
    ones = [1] * len(spatial)
    padding = np.array(op.attributes["padding"]) if "padding" in op.attributes else np.zeros((len(spatial), 2), np.int64)
    holes = any(step != 1 for step in ints_attr(op, "lhs_dilation", ones))
    reversed_ = "window_reversal" in op.attributes and any(ir.DenseBoolArrayAttr(op.attributes["window_reversal"]))
    batches = int_attr(op, "batch_group_count") if "batch_group_count" in op.attributes else 1
    elements = {element_name(value.type) for value in (*op.operands, *op.results)}
    return Convolution(
        inputs, outputs, int_attr(op, "feature_group_count") if "feature_group_count" in op.attributes else 1, tuple(window),
        tuple(ints_attr(op, "window_strides", ones)), tuple((int(low), int(high)) for low, high in padding.reshape(-1, 2)),
        tuple(ints_attr(op, "rhs_dilation", ones)),
        not holes and not reversed_ and batches == 1 and len(elements) == 1, element_name(op.results[0].type),
    )  # fmt: skip


def is_pool(op: ir.Operation) -> bool:
    """A window that slides over spatial dims alone."""
    if op.name != "stablehlo.reduce_window" or len(op.operands) != 2:
        return False
    rank = len(entries(op.operands[0].type))
    still = ints_attr(op, "window_dimensions")[:2] == [1, 1] and ints_attr(op, "window_strides", [1] * rank)[:2] == [1, 1]
    padding = np.array(op.attributes["padding"]) if "padding" in op.attributes else np.zeros((rank, 2), np.int64)
    return rank >= 3 and still and not padding.reshape(-1, 2)[:2].any()


def is_flattening(op: ir.Operation) -> bool:
    """A reshape that joins all spatial dims, or takes them apart again."""
    if op.name != "disc.reshape":
        return False
    source, result = entries(op.operands[0].type), entries(op.results[0].type)
    return min(len(source), len(result)) == 3 < max(len(source), len(result)) and source[:2] == result[:2]


class Rewriter:
    """Turns one op after the other, in program order. image_channels: of a source, at most, that is read channels first,
    padded in memory."""

    def __init__(self, env: ModuleEnv, image_channels: int) -> None:
        self.image_channels = image_channels
        self.env = env

    def turn(self, op: ir.Operation, convolution: Convolution | None) -> None:
        """Replaces `op` by its channels-last form between transposes; `convolution`: what was read of it, if it is one."""
        if convolution is not None:
            result = self._convolution(op, convolution)
        elif op.name == "stablehlo.reduce":
            result = self._reduce(op)
        elif op.name == "disc.reshape":
            result = self._flattened(op)
        else:
            result = self._same_op(op)
        replace_op(op, [result])

    # --- ops ------------------------------------------------------------------------------------------------------------

    def _convolution(self, op: ir.Operation, convolution: Convolution) -> ir.Value:
        type_ = _last_type(op.results[0].type)
        if convolution.is_product:
            return _first(self._product(op, convolution, _last(op.operands[0], op), type_), op)
        if convolution.is_patches and self._is_covered(op, convolution):
            return _first(_patch_product(op, convolution, type_), op)
        rank = len(convolution.window) + 2
        # An image keeps its few channels first: a line of the window is longer than they are.
        image = convolution.groups == 1 and convolution.inputs <= self.image_channels and turned(op.operands[0]) is None
        source = op.operands[0] if image else _last(op.operands[0], op)
        attributes = {name: op.attributes[name] for name in op.attributes}
        if image and any(any(pad) for pad in convolution.pads):
            source = self._padded(source, convolution, op)
            zeros = np.zeros((rank - 2, 2), np.int64)
            attributes["padding"] = ir.DenseElementsAttr.get(zeros, type=ir.RankedTensorType.get([rank - 2, 2], _index_type()))
        spatial = list(range(1, rank - 1))
        attributes["dimension_numbers"] = _stablehlo.ConvDimensionNumbers.get(
            input_batch_dimension=0, input_feature_dimension=1 if image else rank - 1,
            input_spatial_dimensions=list(range(2, rank)) if image else spatial,
            kernel_input_feature_dimension=0 if image else rank - 2, kernel_output_feature_dimension=rank - 1,
            kernel_spatial_dimensions=spatial if image else list(range(rank - 2)),
            output_batch_dimension=0, output_feature_dimension=rank - 1, output_spatial_dimensions=spatial,
        )  # fmt: skip
        kernel = _transposed(op.operands[1], [1, *range(2, rank), 0] if image else [*range(2, rank), 1, 0], op)
        return _first(build(op.name, [source, kernel], [type_], attributes, before=op).results[0], op)

    def _product(self, op: ir.Operation, convolution: Convolution, source: ir.Value, type_: ir.RankedTensorType) -> ir.Value:
        """A 1x1 convolution: a dot of the positions that the stride leaves."""
        rank = len(entries(source.type))
        if any(step != 1 for step in convolution.strides):
            dims = [*entries(type_)[:-1], entries(source.type)[-1]]
            kept = {"starts": strings(*["0"] * rank), "strides": ir.DenseI64ArrayAttr.get([1, *convolution.strides, 1])}
            source = build("disc.slice", [source], [named_type(element_type(source.type), dims)], kept, before=op).results[0]
        flat = named_type(element_type(type_), [static_entry(convolution.outputs), static_entry(convolution.inputs)])
        kernel = make_reshape(op.operands[1], flat, op)
        numbers = DotNumbers(((), ()), ((rank - 1,), (1,)))
        return build("stablehlo.dot_general", [source, kernel], [type_], {"dot_dimension_numbers": numbers.attribute()}, before=op).results[
            0
        ]

    def _is_covered(self, op: ir.Operation, convolution: Convolution) -> bool:
        """Do the patches leave nothing of the source out?"""
        sizes, counts = ([self.env.resolve(entry) for entry in entries(value.type)[2:]] for value in (op.operands[0], op.results[0]))
        return all(
            self.env.equal(size, count * window) is Truth.YES for size, count, window in zip(sizes, counts, convolution.window, strict=True)
        )

    def _padded(self, source: ir.Value, convolution: Convolution, op: ir.Operation) -> ir.Value:
        """The channels-first source with its padding in memory: every line of the window is then one run of elements."""
        dims = entries(source.type)
        sizes = [self.env.resolve(entry) for entry in dims]
        for axis, (low, high) in enumerate(convolution.pads):
            dims[axis + 2] = self._entry(sizes[axis + 2] + (low + high))
        zero = make_splat(np.zeros((), np.dtype(element_name(source.type).replace("f", "float"))), _scalar_type(source.type), op)
        low = strings("0", "0", *(pad[0] for pad in convolution.pads))
        attributes = {"low": low, "interior": ir.DenseI64ArrayAttr.get([0] * len(dims))}
        return build("disc.pad", [source, zero], [named_type(element_type(source.type), dims)], attributes, before=op).results[0]

    def _entry(self, size: Dim) -> ir.Attribute:
        size = self.env.simplify(size)
        return static_entry(size.const) if size.is_const else ir.FlatSymbolRefAttr.get(self.env.symbol_name(size))

    def _reduce(self, op: ir.Operation) -> ir.Value:
        rank = len(entries(op.operands[0].type))
        dims = sorted(last_order(rank).index(dim) for dim in ints_attr(op, "dimensions"))
        source = _last(op.operands[0], op)
        new = op.clone(ir.InsertionPoint(op))
        new.operands[0] = source
        new.attributes["dimensions"] = ir.DenseI64ArrayAttr.get(dims)
        return new.results[0]

    def _flattened(self, op: ir.Operation) -> ir.Value:
        type_ = _last_type(op.results[0].type)
        return _first(make_reshape(_last(op.operands[0], op), type_, op), op)

    def _same_op(self, op: ir.Operation) -> ir.Value:
        """An element-wise op, a concatenation or a pool: the same op on transposed operands, its own dims in the new order."""
        rank = len(entries(op.results[0].type))
        operands = [_last(operand, op) if len(entries(operand.type)) == rank else operand for operand in op.operands]
        new = op.clone(ir.InsertionPoint(op))
        for number, operand in enumerate(operands):
            new.operands[number] = operand
        if op.name == "stablehlo.concatenate":
            new.attributes["dimension"] = ir.IntegerAttr.get(_index_type(), last_order(rank).index(int_attr(op, "dimension")))
        if op.name == "stablehlo.reduce_window":
            _turn_window(new, rank)
        new.results[0].set_type(_last_type(op.results[0].type))
        return _first(new.results[0], op)


def _turn_window(op: ir.Operation, rank: int) -> None:
    order = last_order(rank)
    for name in ("window_dimensions", "window_strides", "base_dilations", "window_dilations"):
        if name in op.attributes:
            values = ints_attr(op, name)
            op.attributes[name] = ir.DenseI64ArrayAttr.get([values[dim] for dim in order])
    if "padding" in op.attributes:
        padding = np.array(op.attributes["padding"]).reshape(-1, 2)[order]
        op.attributes["padding"] = ir.DenseElementsAttr.get(
            np.ascontiguousarray(padding), type=ir.RankedTensorType.get([rank, 2], _index_type())
        )


def _patch_product(op: ir.Operation, convolution: Convolution, type_: ir.RankedTensorType) -> ir.Value:
    """A convolution whose patches tile its source: a dot of the patches as rows; type_: of its channels-last result."""
    last, count = turned(op.operands[0]), len(convolution.window)
    source = op.operands[0] if last is None else last
    dims, batch, channels = entries(type_), entries(source.type)[0], static_entry(convolution.inputs)
    axes = [entry for pair in zip(dims[1:-1], map(static_entry, convolution.window), strict=True) for entry in pair]
    wide = [batch, channels, *axes] if last is None else [batch, *axes, channels]
    split = make_reshape(source, named_type(element_type(source.type), wide), op)
    first = 2 if last is None else 1  # the first of `axes`
    outer, inner = (list(range(start, start + 2 * count, 2)) for start in (first, first + 1))
    rows = _transposed(split, [0, *outer, 1, *inner] if last is None else [0, *outer, *inner, len(wide) - 1], op)
    kernel = op.operands[1] if last is None else _transposed(op.operands[1], [0, *range(2, count + 2), 1], op)
    numbers = DotNumbers(((), ()), (tuple(range(count + 1, len(wide))), tuple(range(1, count + 2))))
    attributes = {"dot_dimension_numbers": numbers.attribute()}
    return build("stablehlo.dot_general", [rows, kernel], [type_], attributes, before=op).results[0]


# --- values -------------------------------------------------------------------------------------------------------------


def _index_type() -> ir.Type:
    return ir.IntegerType.get_signless(64)


def _scalar_type(type_: ir.Type) -> ir.RankedTensorType:
    return ir.RankedTensorType.get([], element_type(type_))


def _last_type(type_: ir.Type) -> ir.RankedTensorType:
    dims = entries(type_)
    return named_type(element_type(type_), [dims[dim] for dim in last_order(len(dims))])


def _transposed(value: ir.Value, permutation: Sequence[int], before: ir.Operation) -> ir.Value:
    dims = entries(value.type)
    type_ = named_type(element_type(value.type), [dims[dim] for dim in permutation])
    attributes = {"permutation": ir.DenseI64ArrayAttr.get(list(permutation))}
    return build("stablehlo.transpose", [value], [type_], attributes, before=before).results[0]


def _last(value: ir.Value, before: ir.Operation) -> ir.Value:
    """`value` channels last."""
    found = turned(value)
    return found if found is not None else _transposed(value, last_order(len(entries(value.type))), before)


def _first(value: ir.Value, before: ir.Operation) -> ir.Value:
    """`value` channels first again."""
    return _transposed(value, first_order(len(entries(value.type))), before)
