"""convert-dots: f32 dots read operands rounded to bf16 or f16, and still give f32 (automatic mixed precision).

    %s = "disc.slice"(%x)                          %c = stablehlo.convert %x : bf16
    %d = dot_general %s, %w : f32           ─►     %s = "disc.slice"(%c) : bf16
                                                   %v = stablehlo.convert %w : bf16           (folded into the weight table)
                                                   %d = dot_general %s, %v : (bf16, bf16) -> f32

Requires and keeps stage `named`. A conversion goes before the views of a value, next to the op that computes it: there it is fused into
that op's kernel, one conversion serves every reader, and the dot reads its operand where it lies. So do convolutions over channels-last
values to bf16, whose kernels read pairs of channels where they lie; those of an odd number of channels, of images and over channels-first
values stay f32, for pairs of narrow elements would be gathered (3x3 of 64 channels: 2.9 times as long).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.ir.interp.values import element_name
from disc.ir.op_table import VIEWS
from disc.ir.ops import block_ops, build, int_attr, ints_attr, replace_op
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.rewriting import entries, erase_dead, named_type, producer, static_size
from disc.passes.graph.constants import constant_values
from disc.passes.graph.dot_numbers import DotNumbers


@dataclass(frozen=True)
class ConvertDots(FunctionPass):
    """Converts every dot that gains.

    dtype: "bf16" or "f16". least: a dot that contracts fewer elements stays f32: it is no product of matrices but, say, positions times
    frequencies, where nothing is won and positions above 256 would be rounded.
    """

    name: ClassVar[str] = "convert-dots"
    dtype: str = "bf16"
    least: int = 8

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        narrowed = _Narrowed(block, self.dtype)
        constants = constant_values(block)
        for op in block_ops(block):
            if may_convert(op) and self._should_convert(op, constants):
                _convert(op, narrowed)
        erase_dead(block)

    def _should_convert(self, op: ir.Operation, constants: Mapping[ir.Value, None]) -> bool:
        if op.name == "stablehlo.convolution":
            return self.dtype == "bf16" and op.operands[1] in constants and reads_pairs(op)
        return contracts_enough(op, self.least)


def may_convert(op: ir.Operation) -> bool:
    """Legal? An f32 dot or convolution of f32 operands."""
    products = ("stablehlo.dot_general", "stablehlo.convolution")
    return op.name in products and all(element_name(value.type) == "f32" for value in (*op.operands, *op.results))


def contracts_enough(op: ir.Operation, least: int) -> bool:
    """Profitable? Unless so little is contracted that there is nothing to win."""
    sizes = entries(op.operands[0].type)
    contracted = [static_size(sizes[dim]) for dim in DotNumbers.of(op).contracting[0]]
    total = 1
    for size in contracted:
        if size is None:
            return True
        total *= size
    return total >= least


def reads_pairs(op: ir.Operation) -> bool:
    """Profitable? Where the kernel of a convolution reads an even number of neighboring channels at every position of its windows."""
    numbers = _stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    rank = len(entries(op.operands[0].type))
    features = (numbers.input_feature_dimension, numbers.output_feature_dimension, numbers.kernel_output_feature_dimension)
    inputs = numbers.kernel_input_feature_dimension
    channels = static_size(entries(op.operands[1].type)[inputs])
    ordered = features == (rank - 1,) * 3 and inputs == rank - 2 and list(numbers.kernel_spatial_dimensions) == list(range(rank - 2))
    dense = "feature_group_count" not in op.attributes or int_attr(op, "feature_group_count") == 1
    holes = any(step != 1 for step in ints_attr(op, "lhs_dilation", [1] * (rank - 2)))
    mirrored = "window_reversal" in op.attributes and any(ir.DenseBoolArrayAttr(op.attributes["window_reversal"]))
    return ordered and dense and not holes and not mirrored and channels is not None and channels % 2 == 0


def _convert(op: ir.Operation, narrowed: _Narrowed) -> None:
    operands = [narrowed.value(operand) for operand in op.operands]
    attributes = {name: op.attributes[name] for name in op.attributes}
    new = build(op.name, operands, [result.type for result in op.results], attributes, location=op.location, before=op)
    replace_op(op, new.results)


@dataclass
class _Narrowed:
    """The narrow form of every value that is needed, each made once."""

    block: ir.Block
    dtype: str
    made: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def value(self, value: ir.Value) -> ir.Value:
        if value not in self.made:
            self.made[value] = self._make(value)
        return self.made[value]

    def _make(self, value: ir.Value) -> ir.Value:
        op = producer(value)
        type_ = named_type(self._element(), entries(value.type))
        if op is None:
            return build("stablehlo.convert", [value], [type_], before=self.block.operations[0].operation).results[0]
        if op.name == "stablehlo.convert" and element_name(op.operands[0].type) == self.dtype:
            return op.operands[0]
        if op.name in VIEWS:
            attributes = {name: op.attributes[name] for name in op.attributes}
            return build(op.name, [self.value(op.operands[0])], [type_], attributes, location=op.location, before=op).results[0]
        new = build("stablehlo.convert", [value], [type_], location=op.location, before=op)
        new.move_after(op)
        return new.results[0]

    def _element(self) -> ir.Type:
        return ir.BF16Type.get() if self.dtype == "bf16" else ir.F16Type.get()
