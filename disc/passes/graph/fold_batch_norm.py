"""Per-channel scales and shifts behind a convolution become part of its kernel and one bias.

    %0 = stablehlo.convolution(%x, %w) ...                  %v = stablehlo.multiply %w, broadcast(%scale)
    %1 = stablehlo.multiply %0, broadcast(%scale)    ─►     %0 = stablehlo.convolution(%x, %v) ...
    %2 = stablehlo.add %1, broadcast(%shift)                %2 = stablehlo.add %0, broadcast(%shift)

That is what inference leaves of a batch norm; a bias before it is scaled and added to the shift. Requires and keeps stage `named`;
`fold-constants` computes the new kernel. Only f32 and f64: in 16 bits the product would lose what the convolution's f32 sums keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.ir.costs import Costs
from disc.ir.interp.values import element_name
from disc.ir.op_table import OPS
from disc.ir.ops import block_ops, build, int_attr, ints_attr, replace_op
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.rewriting import (
    defining,
    element_type,
    entries,
    erase_dead,
    has_one_use,
    is_one,
    make_reshape,
    named_type,
)
from disc.passes.graph.constants import constant_values

STEPS = ("stablehlo.multiply", "stablehlo.add")


@dataclass(frozen=True)
class Step:
    """One op of the chain behind a convolution: its value changes by `vector`, one element per output channel."""

    op: ir.Operation
    vector: ir.Value


@dataclass(frozen=True)
class FoldBatchNorm(FunctionPass):
    """Folds the chain of constant scales and shifts behind every convolution with a constant kernel."""

    name: ClassVar[str] = "fold-batch-norm"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        constants, costs = constant_values(block), Costs.of(state.thresholds)
        for op in block_ops(block):
            if op.name != "stablehlo.convolution" or not may_fold(op, constants):
                continue
            steps = chain(op, constants)
            if should_fold(steps, costs):
                _fold(op, steps)
        erase_dead(block)


def may_fold(convolution: ir.Operation, constants: Mapping[ir.Value, None]) -> bool:
    """Legality: the kernel is constant, and every output channel has its own part of it."""
    kernel, result = convolution.operands[1], convolution.results[0]
    if "batch_group_count" in convolution.attributes and int_attr(convolution, "batch_group_count") != 1:
        return False
    return kernel in constants and element_name(kernel.type) in ("f32", "f64") and element_name(kernel.type) == element_name(result.type)


def should_fold(steps: list[Step], costs: Costs) -> bool:
    """Profit, per vector of the result: the steps as they are, or one bias where there is an addition among them. A single bias is as cheap
    as it gets."""
    names = [step.op.name for step in steps]
    before = sum(OPS[name].cost for name in names)
    after = OPS["stablehlo.add"].cost if "stablehlo.add" in names else 0
    return costs.compute(after) < costs.compute(before)


def chain(convolution: ir.Operation, constants: Mapping[ir.Value, None]) -> list[Step]:
    """The scales and shifts that read the convolution one after the other, each value read by the next alone."""
    feature = _numbers(convolution).output_feature_dimension
    value, steps = convolution.results[0], []
    while has_one_use(value):
        user = next(iter(value.uses)).owner
        user = user.operation if hasattr(user, "operation") else user
        if user.name not in STEPS:
            break
        other = user.operands[1] if user.operands[0] == value else user.operands[0]
        vector = channel_vector(other, feature, constants)
        if vector is None:
            break
        steps.append(Step(user, vector))
        value = user.results[0]
    return steps


def channel_vector(value: ir.Value, axis: int, constants: Mapping[ir.Value, None]) -> ir.Value | None:
    """The constant that `value` repeats along every dim but `axis`; None where it is something else."""
    op = defining(value, "disc.broadcast_in_dim")
    if op is None or ints_attr(op, "maybe") or op.operands[0] not in constants:
        return None
    channels = entries(value.type)[axis]
    source, dims = entries(op.operands[0].type), ints_attr(op, "dims")
    if axis not in dims or source[dims.index(axis)] != channels:
        return None
    return op.operands[0] if all(dim == axis or is_one(entry) for entry, dim in zip(source, dims, strict=True)) else None


def _fold(convolution: ir.Operation, steps: list[Step]) -> None:
    last = steps[-1].op
    source, kernel = convolution.operands
    numbers = _numbers(convolution)
    channels = entries(convolution.results[0].type)[numbers.output_feature_dimension]
    line = named_type(element_type(kernel.type), [channels])
    bias: ir.Value | None = None
    for step in steps:
        vector = make_reshape(step.vector, line, last)
        if step.op.name == "stablehlo.multiply":
            along = _broadcast(vector, numbers.kernel_output_feature_dimension, kernel.type, last)
            kernel = build(step.op.name, [kernel, along], [kernel.type], before=last).results[0]
        if bias is not None:
            bias = build(step.op.name, [bias, vector], [line], before=last).results[0]
        elif step.op.name == "stablehlo.add":
            bias = vector
    attributes = {name: convolution.attributes[name] for name in convolution.attributes}
    type_ = convolution.results[0].type
    result = build(convolution.name, [source, kernel], [type_], attributes, location=convolution.location, before=last).results[0]
    if bias is not None:
        along = _broadcast(bias, numbers.output_feature_dimension, type_, last)
        result = build("stablehlo.add", [result, along], [type_], before=last).results[0]
    replace_op(last, [result])


def _broadcast(vector: ir.Value, axis: int, type_: ir.Type, before: ir.Operation) -> ir.Value:
    attributes = {"dims": ir.DenseI64ArrayAttr.get([axis]), "maybe": ir.DenseI64ArrayAttr.get([])}
    return build("disc.broadcast_in_dim", [vector], [type_], attributes, before=before).results[0]


def _numbers(convolution: ir.Operation) -> _stablehlo.ConvDimensionNumbers:
    return _stablehlo.ConvDimensionNumbers(convolution.attributes["dimension_numbers"])
