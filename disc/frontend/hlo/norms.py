"""Batch normalization: the three ops by their definitions in the specification."""

from __future__ import annotations

from torch_mlir import ir

from disc.frontend.hlo.emit import Emitter, Values, kind_of
from disc.ir.ops import element_of, int_attr, rank_of


class _Batch:
    """A source whose dim `feature_index` is that of the scale and the offset."""

    def __init__(self, op: ir.Operation) -> None:
        self.e, self.source = Emitter(op), op.operands[0]
        self.feature = int_attr(op, "feature_index")
        self.others = [dim for dim in range(rank_of(self.source)) if dim != self.feature]
        self.epsilon = ir.FloatAttr(op.attributes["epsilon"]).value

    def spread(self, x: ir.Value) -> ir.Value:
        return self.e.expand(x, self.source, [self.feature])

    def deviation(self, variance: ir.Value) -> ir.Value:
        return self.spread(self.e.unary("sqrt", self.e.number("add", variance, self.epsilon)))

    def count(self) -> ir.Value:
        """Elements of each feature, as a float."""
        e, word = self.e, ir.IntegerType.get_signless(32)
        total = e.constant(1, word)
        for dim in self.others:
            size = e.one("stablehlo.get_dimension_size", [self.source], ir.RankedTensorType.get([], word), {"dimension": dim})
            total = e.binary("multiply", total, size)
        return e.convert(total, element_of(self.source))

    def mean(self, x: ir.Value) -> ir.Value:
        return self.e.binary("divide", self.e.reduce("add", x, self.others), self.count())

    def normalized(self, mean: ir.Value, variance: ir.Value, scale: ir.Value, offset: ir.Value) -> ir.Value:
        e = self.e
        centered = e.binary("subtract", self.source, self.spread(mean))
        unit = e.binary("divide", centered, self.deviation(variance))
        return e.binary("add", e.binary("multiply", unit, self.spread(scale)), self.spread(offset))


def inference(op: ir.Operation) -> Values:
    _, scale, offset, mean, variance = op.operands
    return [_Batch(op).normalized(mean, variance, scale, offset)]


def training(op: ir.Operation) -> Values:
    batch, (source, scale, offset) = _Batch(op), op.operands
    mean = batch.mean(source)
    centered = batch.e.binary("subtract", source, batch.spread(mean))
    variance = batch.mean(batch.e.binary("multiply", centered, centered))
    return [batch.normalized(mean, variance, scale, offset), mean, variance]


def gradient(op: ir.Operation) -> Values:
    batch, (source, scale, mean, variance, outer) = _Batch(op), op.operands
    e = batch.e
    centered = e.binary("subtract", source, batch.spread(mean))
    deviation = batch.deviation(variance)
    scale_gradient = e.reduce("add", e.binary("multiply", outer, e.binary("divide", centered, deviation)), batch.others)
    offset_gradient = e.reduce("add", outer, batch.others)
    count = batch.count()
    all_rows = e.binary("multiply", outer, count)
    shift = batch.spread(offset_gradient)
    spread = batch.spread(e.reduce("add", e.binary("multiply", outer, centered), batch.others))
    slope = e.binary("divide", e.binary("multiply", spread, centered), batch.spread(e.number("add", variance, batch.epsilon)))
    rest = e.binary("subtract", e.binary("subtract", all_rows, shift), slope)
    factor = e.binary("divide", e.binary("divide", batch.spread(scale), deviation), count)
    assert kind_of(rest).shape == kind_of(source).shape
    return [e.binary("multiply", factor, rest), scale_gradient, offset_gradient]
