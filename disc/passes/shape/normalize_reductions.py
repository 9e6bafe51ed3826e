"""normalize-reductions: every reduction starts from the identity of its op, or is marked as ordered.

    %y = stablehlo.reduce(%x init: %c) applies stablehlo.add      ─►      %r = stablehlo.reduce(%x init: 0.0) applies stablehlo.add
                                                                          %y = chlo.broadcast_add %r, %c

A kernel gives the initial value to each of its accumulators, lanes and parts, so it must change nothing. A reduction by any other body
than one associative op gets `disc.in_order`. What surrounds the source of a `reduce_window` (its padding, the holes of a dilation) is the
initial value by definition: it becomes a `stablehlo.pad`, unless it is the identity and lies at the edges.

Requires and keeps stage `imported`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch_mlir import ir

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.ir.control import REGION_OPS
from disc.ir.interp.values import constant_attribute
from disc.ir.ops import block_ops, build, element_of, ints_attr, location_text, main_block
from disc.ir.passes import CompileState, Pass
from disc.ir.reducers import IN_ORDER, REDUCTIONS, identity, reduced_kinds, starts_from_identity
from disc.ir.rewriting import close_regions
from disc.ir.weights import STORAGE


@dataclass(frozen=True)
class NormalizeReductions(Pass):
    name: ClassVar[str] = "normalize-reductions"

    def apply(self, module: ir.Module, state: CompileState) -> None:
        blocks = _blocks(main_block(module))
        found = [op for block in blocks for op in block_ops(block) if op.name in REDUCTIONS]
        refused = [
            UnsupportedOp(op.name, "its body reads a value from outside", location_text(op))
            for block in blocks
            for op in close_regions(block)
        ]
        refused += [one for one in map(_mixed_types, found) if one is not None]
        if refused:
            raise UnsupportedOpError(refused)
        for op in found:
            _normalize(op)


def _blocks(block: ir.Block) -> list[ir.Block]:
    """`block` and the regions of control flow in it."""
    inner = [region.blocks[0] for op in block_ops(block) if op.name in REGION_OPS for region in op.regions]
    return [block, *(each for one in inner for each in _blocks(one))]


def _mixed_types(op: ir.Operation) -> UnsupportedOp | None:
    """StableHLO lets a body compute in a wider type than that of the operands."""
    count = len(op.results)
    types = [str(element_of(value)) for value in (*op.operands, *op.results)]
    inside = [str(element_of(value)) for value in op.regions[0].blocks[0].arguments]
    if types[: 2 * count] == inside and types[2 * count :] == inside[:count]:
        return None
    return UnsupportedOp(op.name, f"it reduces {', '.join(types[:count])} as {', '.join(inside[:count])}", location_text(op))


def _normalize(op: ir.Operation) -> None:
    kinds = reduced_kinds(op)
    plain = kinds is not None and all(starts_from_identity(op, kinds)) and all(str(element_of(each)) in STORAGE for each in op.operands)
    if op.name == "stablehlo.reduce_window":
        _pad(op, edges=not plain)
    if kinds is None:
        op.attributes[IN_ORDER] = ir.UnitAttr.get()
    elif not plain:
        _combine_behind(op, kinds)


def _pad(op: ir.Operation, *, edges: bool) -> None:
    """The holes of a dilated source as a pad, and with `edges` the padding too."""
    rank = len(ints_attr(op, "window_dimensions"))
    base = ints_attr(op, "base_dilations", [1] * rank)
    padding = np.array(op.attributes["padding"]).reshape(rank, 2) if "padding" in op.attributes else np.zeros((rank, 2), np.int64)
    moved = padding if edges else np.zeros_like(padding)
    if all(step == 1 for step in base) and not moved.any():
        return
    count = len(op.results)
    amounts = {
        "edge_padding_low": [int(low) for low, _ in moved], "edge_padding_high": [int(high) for _, high in moved],
        "interior_padding": [step - 1 for step in base],
    }  # fmt: skip
    for number in range(count):
        source, initial = op.operands[number], op.operands[count + number]
        shape = [
            size if size < 0 else max(max(size - 1, 0) * (step - 1) + size + int(low) + int(high), 0)
            for size, step, (low, high) in zip(ir.RankedTensorType(source.type).shape, base, moved, strict=True)
        ]
        kind = ir.RankedTensorType.get(shape, element_of(source))
        attributes = {name: ir.DenseI64ArrayAttr.get(values) for name, values in amounts.items()}
        op.operands[number] = build("stablehlo.pad", [source, initial], [kind], attributes, before=op).results[0]
    op.attributes["base_dilations"] = ir.DenseI64ArrayAttr.get([1] * rank)
    op.attributes["padding"] = ir.DenseElementsAttr.get(np.ascontiguousarray(padding - moved))


def _combine_behind(op: ir.Operation, kinds: Sequence[str]) -> None:
    """Starts from identities; the initial values are combined with the results."""
    count = len(op.results)
    for number, (kind, known) in enumerate(zip(kinds, starts_from_identity(op, kinds), strict=True)):
        if known:
            continue
        initial, result = op.operands[count + number], op.results[number]
        neutral = constant_attribute(identity(kind, str(element_of(initial))), initial.type)
        op.operands[count + number] = build("stablehlo.constant", [], [initial.type], {"value": neutral}, before=op).results[0]
        with ir.InsertionPoint.after(op):
            combined = build(f"chlo.broadcast_{kind}", [result, initial], [result.type], location=op.location)
        result.replace_all_uses_except(combined.results[0], combined)
