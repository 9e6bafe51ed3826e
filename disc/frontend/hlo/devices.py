"""Exchanges between devices. A program runs on one: where that is the only member of its group, what it gets is what it gave."""

from __future__ import annotations

import math

import numpy as np
from torch_mlir import ir

from disc.frontend.hlo.emit import Emitter, FormError, Values, kind_of
from disc.ir.interp.values import constant_value
from disc.ir.ops import block_ops, rank_of
from disc.ir.rewriting import defining

SEVERAL = "it exchanges data with other devices, and a compiled program runs on one"
COUNTS = ("mhlo.num_replicas", "mhlo.num_partitions")


def number_of_device(op: ir.Operation) -> Values:
    """There is one, whose number is 0."""
    if _devices(op) != 1:
        raise FormError(f"the program is one of {_devices(op)} devices, and a compiled program runs on one")
    return [Emitter(op).array(np.zeros((), np.uint32), kind_of(op.results[0]))]


def whole(op: ir.Operation) -> Values:
    """The part of a tensor that this device has, or the tensor of such a part: the same tensor where there is one device."""
    if _devices(op) != 1:
        raise FormError(SEVERAL)
    return list(op.operands)


def collective(op: ir.Operation) -> Values:
    """Within groups of one device: gathered, reduced, scattered and broadcast values are those that it has itself."""
    if _devices(op) != 1 or _members(op, "replica_groups") not in ({0}, set()):  # without groups: all devices
        raise FormError(SEVERAL)
    return list(op.operands)


def awaited(op: ir.Operation) -> Values:
    """`async_done`: what the region of its `async_start` yields, whose collectives have become what they are here."""
    start = defining(op.operands[0], "stablehlo.async_start")
    if start is None:
        raise FormError("what it waits for is begun elsewhere")
    (block,) = start.regions[0].blocks
    known: dict[ir.Value, ir.Value] = dict(zip(block.arguments, start.operands, strict=True))
    *inside, last = block_ops(block)
    for each in inside:
        copy = each.clone(ip=ir.InsertionPoint(op)).operation
        for number, operand in enumerate(each.operands):
            copy.operands[number] = known.get(operand, operand)
        known.update(zip(each.results, copy.results, strict=True))
    return [known.get(value, value) for value in last.operands]


def permute(op: ir.Operation) -> Values:
    """What this device sends to itself; zeros where nobody sends it anything."""
    if _devices(op) != 1 or not _members(op, "source_target_pairs") <= {0}:
        raise FormError(SEVERAL)
    if _members(op, "source_target_pairs"):
        return list(op.operands)
    (x,), e = op.operands, Emitter(op)
    zero = e.constant(0, kind_of(x).element_type)
    return [zero if not rank_of(x) else e.expand(zero, x, [])]


def _devices(op: ir.Operation) -> int:
    """Those that the program is for."""
    root = op
    while root.parent is not None:
        root = root.parent.operation
    counts = [root.attributes[name] for name in COUNTS if name in root.attributes]
    return math.prod(each.value for each in counts if isinstance(each, ir.IntegerAttr))


def _members(op: ir.Operation, name: str) -> set[int]:
    """Raises: FormError for groups that are not written as numbers of devices."""
    if name not in op.attributes:
        return set()
    attribute = op.attributes[name]
    if not isinstance(attribute, ir.DenseElementsAttr):
        raise FormError(SEVERAL)
    return {int(each) for each in constant_value(attribute).reshape(-1) if each >= 0}
