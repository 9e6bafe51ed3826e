"""Convolutions over groups of the batch, as gradients of grouped convolutions are."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.frontend.hlo.emit import Emitter, FormError, Values, kind_of
from disc.ir.ops import Attribute, element_of, int_attr, rank_of


def convolution(op: ir.Operation) -> Values | None:
    """With g groups of the batch, output feature o is computed from the rows of group o // (outputs / g): g groups of features, whose rows
    are the others', of an image that has the groups side by side."""
    groups = int_attr(op, "batch_group_count")
    if groups == 1:
        return None
    if int_attr(op, "feature_group_count") != 1:
        raise FormError("groups of the batch and of features")
    e, (image, kernel) = Emitter(op), op.operands
    numbers = _stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    batch, feature = numbers.input_batch_dimension, numbers.input_feature_dimension
    regrouped = _side_by_side(e, image, batch, feature, groups)
    attributes: dict[str, Attribute] = {
        name: op.attributes[name] for name in op.attributes if name not in ("batch_group_count", "feature_group_count")
    }
    attributes |= {"batch_group_count": 1, "feature_group_count": groups}
    return [e.one("stablehlo.convolution", [regrouped, kernel], op.results[0].type, attributes)]


def _side_by_side(e: Emitter, x: ir.Value, batch: int, feature: int, groups: int) -> ir.Value:
    """[groups * rows, features] as [rows, groups * features]."""
    rank, dynamic = rank_of(x), ir.ShapedType.get_dynamic_size()
    shape, element, index = list(kind_of(x).shape), element_of(x), ir.IndexType.get()
    sizes: list[ir.Value | int] = [e.size(x, dim) if size == dynamic else size for dim, size in enumerate(shape)]
    if shape[batch] != dynamic:
        rows, row_size = shape[batch] // groups, shape[batch] // groups
    else:
        count = e.one("arith.constant", [], index, {"value": ir.IntegerAttr.get(index, groups)})
        rows, row_size = dynamic, e.one("arith.divui", [e.size(x, batch), count], index)
    features = shape[feature]
    width, width_size = groups * features, groups * features
    if features == dynamic:
        times = e.one("arith.constant", [], index, {"value": ir.IntegerAttr.get(index, groups)})
        width, width_size = dynamic, e.one("arith.muli", [e.size(x, feature), times], index)
    parts = [*shape[:batch], groups, rows, *shape[batch + 1 :]]
    split = e.sizes([*sizes[:batch], groups, row_size, *sizes[batch + 1 :]])
    opened = e.one("stablehlo.dynamic_reshape", [x, split], ir.RankedTensorType.get(parts, element))
    place = feature + (feature > batch)
    order = [dim for dim in range(rank + 1) if dim != batch]
    order.insert(order.index(place), batch)
    merged = [width if dim == feature else rows if dim == batch else size for dim, size in enumerate(shape)]
    wanted = e.sizes([width_size if dim == feature else row_size if dim == batch else size for dim, size in enumerate(sizes)])
    return e.one("stablehlo.dynamic_reshape", [e.transpose(opened, order), wanted], ir.RankedTensorType.get(merged, element))
