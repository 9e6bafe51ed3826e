"""Zeros around the source of a convolution become padding of the convolution.

    %p = "disc.pad"(%x, %zero) {low = ["0", "0", "1", "1"], ...}
    %y = stablehlo.convolution(%p, %w), pad = [[0, 0], [0, 0]]     ─►     %y = stablehlo.convolution(%x, %w), pad = [[1, 2], [1, 2]]

Frameworks pad apart where the convolution's own attribute is symmetric (TensorFlow's "same" padding by strides of 2). Nothing is copied
then, and what computes %x is no longer separated from what reads it. Requires and keeps stage `named`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.ir.ops import block_ops, build, ints_attr, replace_op, strings_attr
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.rewriting import defining, entries, erase_dead, splat_value
from disc.ir.stages import load_env
from disc.ir.symbols import ModuleEnv
from disc.shapes import parse_dim


@dataclass(frozen=True)
class FoldPads(FunctionPass):
    """Folds every pad of zeros, of a known number of positions along spatial dims, into the convolution that reads it."""

    name: ClassVar[str] = "fold-pads"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        env = load_env(module)
        for op in block_ops(block):
            while op.name == "stablehlo.convolution" and (pad := defining(op.operands[0], "disc.pad")) is not None:
                added = added_padding(op, pad, env)
                if added is None:
                    break
                op = _fold(op, pad, added)
        erase_dead(block)


def added_padding(convolution: ir.Operation, pad: ir.Operation, env: ModuleEnv) -> list[tuple[int, int]] | None:
    """What the pad adds (low, high) to each spatial dim of the convolution, None where it is not such a pad: of anything but zeros (-0 adds
    like 0), of other dims, a crop, holes between the elements, a number of positions that changes from call to call."""
    value = splat_value(pad.operands[1])
    if value is None or float(value) != 0 or any(ints_attr(pad, "interior")):
        return None
    source, padded = ([env.resolve(entry) for entry in entries(each.type)] for each in (pad.operands[0], pad.results[0]))
    amounts: list[tuple[int, int]] = []
    for before, after, text in zip(source, padded, strings_attr(pad, "low"), strict=True):
        low = env.simplify(parse_dim(text))
        high = env.simplify(after - before - low)
        if not (low.is_const and high.is_const) or low.const < 0 or high.const < 0:
            return None
        amounts.append((low.const, high.const))
    spatial = _stablehlo.ConvDimensionNumbers(convolution.attributes["dimension_numbers"]).input_spatial_dimensions
    if any(step != 1 for step in ints_attr(convolution, "lhs_dilation", [1] * len(spatial))):
        return None
    if any(any(amount) for dim, amount in enumerate(amounts) if dim not in spatial):
        return None
    return [amounts[dim] for dim in spatial]


def _fold(convolution: ir.Operation, pad: ir.Operation, added: list[tuple[int, int]]) -> ir.Operation:
    attributes = {name: convolution.attributes[name] for name in convolution.attributes}
    shape = [len(added), 2]
    own = np.array(attributes["padding"]).reshape(shape) if "padding" in attributes else np.zeros(shape, np.int64)
    type_ = ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(64))
    attributes["padding"] = ir.DenseElementsAttr.get(np.ascontiguousarray(own + np.array(added)), type=type_)
    operands, types = [pad.operands[0], convolution.operands[1]], [convolution.results[0].type]
    new = build(convolution.name, operands, types, attributes, location=convolution.location, before=convolution)
    replace_op(convolution, new.results)
    return new
