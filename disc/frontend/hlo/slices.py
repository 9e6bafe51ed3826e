"""Slices and windows whose numbers are computed by the program."""

from __future__ import annotations

import numpy as np
from torch_mlir import ir

from disc.frontend.hlo.emit import Emitter, FormError, Values
from disc.ir.interp.values import constant_value
from disc.ir.ops import block_ops, rank_of, string_attr
from disc.ir.reducers import KINDS, is_identity
from disc.ir.rewriting import defining, producer

WINDOWED = ("add", "multiply", "maximum", "minimum")
SIZES = frozenset({"stablehlo.get_dimension_size", "tensor.dim", "shape.shape_of"})


def real_dynamic_slice(op: ir.Operation) -> Values | None:
    """From a place that is data, of a size that is none, which the program added to the place: a gather of one slice."""
    x, start, limit, steps = op.operands
    size = _added(limit, start)
    if not _is_data(start) or size is None:
        return None
    stride = defining(steps, "stablehlo.constant")
    if stride is not None and not np.all(constant_value(stride.attributes["value"]) == 1):
        raise FormError("a stride, from a place that is data")
    dims = list(range(rank_of(x)))
    numbers = ir.Attribute.parse(f"#stablehlo.gather<offset_dims = {dims}, start_index_map = {dims}, index_vector_dim = 0>")
    return [Emitter(op).one("stablehlo.dynamic_gather", [x, start, size], op.results[0].type, {"dimension_numbers": numbers})]


def _added(total: ir.Value, part: ir.Value) -> ir.Value | None:
    op = defining(total, "stablehlo.add")
    if op is None or part not in op.operands:
        return None
    left, right = op.operands
    return right if left == part else left


def _is_data(value: ir.Value) -> bool:
    """Whether `value` is computed from more than sizes."""
    seen: set[ir.Value] = set()
    pending = [value]
    while pending:
        each = pending.pop()
        op = producer(each)
        if op is None:
            return True
        if each not in seen and op.name not in SIZES:
            seen.add(each)
            pending += list(op.operands)
    return False


def dynamic_reduce_window(op: ir.Operation) -> Values:
    """JAX's `stablehlo.dynamic_reduce_window(%x, %initial, %windows, %strides, %dilations, %holes, %padding)`."""
    if len(op.results) != 1:
        raise FormError("a dynamic window over several tensors")
    x, initial, *numbers = op.operands
    kind = called_kind(op)
    if kind not in WINDOWED:
        raise FormError("a dynamic window with a body other than a sum, a product, a maximum or a minimum")
    if not is_identity(spread(initial), kind):
        raise FormError(f"a dynamic window that starts from another value than the identity of {kind}")
    return [Emitter(op).one("disc.dynamic_window", [x, *numbers], op.results[0].type, {"kind": kind})]


def called_kind(op: ir.Operation) -> str:
    """The one of `reducers.KINDS` that the function of a window is; "" for another one."""
    return _body_kind(_function(op, ir.FlatSymbolRefAttr(ir.ArrayAttr(op.attributes["called_computations"])[0]).value))


def spread(value: ir.Value) -> ir.Value:
    """What all elements of a broadcast are."""
    while (op := defining(value, "stablehlo.broadcast_in_dim")) is not None:
        value = op.operands[0]
    return value


def _function(op: ir.Operation, name: str) -> ir.Operation:
    parent = op.parent
    while parent is not None and parent.operation.name != "builtin.module":
        parent = parent.operation.parent
    assert parent is not None
    for each in parent.operation.regions[0].blocks[0].operations:
        if each.operation.name == "func.func" and string_attr(each.operation, "sym_name") == name:
            return each.operation
    raise FormError(f"there is no function @{name}")


def _body_kind(function: ir.Operation) -> str:
    """The one of `reducers.KINDS` that a function of two numbers is; "" for another one."""
    block = function.regions[0].blocks[0]
    ops, pair = block_ops(block), list(block.arguments)
    if len(ops) != 2 or list(ops[0].operands) not in (pair, pair[::-1]) or list(ops[1].operands) != list(ops[0].results):
        return ""
    kind = ops[0].name.partition(".")[2]
    return kind if kind in KINDS else ""
