"""What the graph passes share: types by their named entries, constants seen through broadcasts, dead code, moving ops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key

import numpy as np
from torch_mlir import ir

from disc.ir.control import REGION_OPS
from disc.ir.interp.values import Array, constant_attribute, constant_value, is_splat
from disc.ir.op_table import BINDING, CONSTANTS
from disc.ir.ops import TERMINATORS, block_ops, build, is_unused


def entries(type_: ir.Type) -> list[ir.Attribute]:
    """One attribute per dim: a symbol reference or an integer."""
    tensor = ir.RankedTensorType(type_)
    if tensor.encoding is not None:
        return list(ir.ArrayAttr(tensor.encoding))
    return [ir.IntegerAttr.get(ir.IntegerType.get_signless(64), size) for size in tensor.shape]


def static_entry(size: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), size)


def static_size(entry: ir.Attribute) -> int | None:
    """The size of a static dim, None for a symbol."""
    return ir.IntegerAttr(entry).value if isinstance(entry, ir.IntegerAttr) else None


def is_one(entry: ir.Attribute) -> bool:
    return static_size(entry) == 1


def named_type(element: ir.Type, dims: Sequence[ir.Attribute]) -> ir.RankedTensorType:
    """The tensor type with these entries."""
    sizes = [static_size(entry) for entry in dims]
    shape = [ir.ShapedType.get_dynamic_size() if size is None else size for size in sizes]
    return ir.RankedTensorType.get(shape, element, ir.ArrayAttr.get(list(dims)) if dims else None)


def element_type(type_: ir.Type) -> ir.Type:
    return ir.RankedTensorType(type_).element_type


def producer(value: ir.Value) -> ir.Operation | None:
    """The op that makes `value`; None for an argument of a block."""
    return None if isinstance(value, ir.BlockArgument) else value.owner.operation  # pyright: ignore[reportAttributeAccessIssue]


def defining(value: ir.Value, *names: str) -> ir.Operation | None:
    """The op that makes `value`, if it has one of these names."""
    op = producer(value)
    return op if op is not None and op.name in names else None


def has_one_use(value: ir.Value) -> bool:
    return len(list(value.uses)) == 1


def splat_value(value: ir.Value) -> Array | None:
    """The one element (rank 0) that fills `value`, seen through broadcasts and reshapes; None where it is no such constant."""
    op = producer(value)
    while op is not None and op.name in ("disc.broadcast_in_dim", "disc.reshape", "stablehlo.transpose"):
        op = producer(op.operands[0])
    if op is None or op.name != "stablehlo.constant":
        return None
    attribute = ir.DenseElementsAttr(op.attributes["value"])
    if attribute.is_splat:
        return constant_value(attribute).reshape(-1)[:1].reshape(())
    data = constant_value(attribute)
    return data.reshape(-1)[0].reshape(()) if is_splat(data) else None


def make_splat(element: Array, type_: ir.Type, before: ir.Operation) -> ir.Value:
    """`element` (rank 0) everywhere: a constant, broadcast where the type is dynamic."""
    scalar_type = ir.RankedTensorType.get([], element_type(type_))
    tensor = ir.RankedTensorType(type_)
    if tensor.has_static_shape:
        line = np.broadcast_to(element, tensor.shape)
        attribute = constant_attribute(line if line.size < 2 else element.reshape([1] * tensor.rank), tensor)
        return build("stablehlo.constant", [], [type_], {"value": attribute}, before=before).results[0]
    scalar = build("stablehlo.constant", [], [scalar_type], {"value": constant_attribute(element, scalar_type)}, before=before)
    return build("disc.broadcast_in_dim", scalar.results, [type_], {"dims": [], "maybe": []}, before=before).results[0]


def make_reshape(value: ir.Value, type_: ir.Type, before: ir.Operation) -> ir.Value:
    """`value` as `type_`; `value` itself if it has that type."""
    return value if value.type == type_ else build("disc.reshape", [value], [type_], before=before).results[0]


def erase_dead(block: ir.Block) -> bool:
    """Erases the ops whose results nobody reads, but those that bind a symbol (every other op of these stages is free of side effects)."""
    changed = False
    for op in reversed(block_ops(block)):
        if op.name not in TERMINATORS and op.name not in BINDING and is_unused(op):
            op.erase()
            changed = True
    return changed


def close_regions(block: ir.Block) -> list[ir.Operation]:
    """Gives each body of a reduction or scatter copies of the constants outside that it reads, as merging equal ops leaves them; returns
    the ops whose bodies read other values from outside."""
    open_: list[ir.Operation] = []
    for op in block_ops(block):
        for region in op.regions if op.name not in REGION_OPS else ():
            inside = region.blocks[0]
            if not all(_close(inner, inside) for inner in block_ops(inside)):
                open_.append(op)
    return open_


def _close(op: ir.Operation, block: ir.Block) -> bool:
    closed = True
    for number, operand in enumerate(op.operands):
        if operand.owner == block if isinstance(operand, ir.BlockArgument) else producer(operand).block == block:  # pyright: ignore
            continue
        made = defining(operand, *CONSTANTS)
        closed = closed and made is not None
        if made is not None:
            attributes = {"value": made.attributes["value"]}
            op.operands[number] = build("stablehlo.constant", [], [operand.type], attributes, before=op).results[0]
    return closed


def producers_after(values: Sequence[ir.Value], first: ir.Operation) -> list[ir.Operation]:
    """The ops at or after `first` that `values` depend on, in block order."""
    found: dict[ir.Operation, None] = {}
    pending = [producer(value) for value in values]
    while pending:
        op = pending.pop()
        if op is None or op in found or op.is_before_in_block(first):
            continue
        found[op] = None
        pending += [producer(operand) for operand in op.operands]
    return sorted(found, key=cmp_to_key(lambda one, other: -1 if one.is_before_in_block(other) else 1))
