"""Ops of chlo that no rule knows: StableHLO's own pass makes them of others, each alone, so that it leaves the others as they are."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from disc.frontend.hlo.emit import FormError, Values
from disc.ir.ops import block_ops, build

LEGALIZED = (
    "_asin_acos_kernel", "bessel_i1e", "broadcast_next_after", "broadcast_polygamma", "broadcast_zeta", "next_after", "polygamma", "zeta",
)  # fmt: skip


def legalized(op: ir.Operation) -> Values:
    module = ir.Module.create(op.location)
    kind = ir.FunctionType.get([value.type for value in op.operands], [value.type for value in op.results])
    with ir.InsertionPoint(module.body):
        function = build(
            "func.func", attributes={"sym_name": "op", "function_type": ir.TypeAttr.get(kind)}, regions=1, location=op.location
        )
    block = ir.Block.create_at_start(function.regions[0], list(kind.inputs), [op.location] * len(kind.inputs))
    with ir.InsertionPoint(block):
        inner = op.clone().operation
        for number, argument in enumerate(block.arguments):
            inner.operands[number] = argument
        build("func.return", list(inner.results), location=op.location)
    try:
        PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(module.operation)
    except ir.MLIRError as error:
        raise FormError("StableHLO has no form of it for these types") from error
    values: dict[ir.Value, ir.Value] = dict(zip(block.arguments, op.operands, strict=True))
    *ops, end = block_ops(block)
    for each in ops:
        copy = each.clone(ip=ir.InsertionPoint(op)).operation
        for number, operand in enumerate(each.operands):
            copy.operands[number] = values[operand]
        values.update(zip(each.results, copy.results, strict=True))
    return [values[value] for value in end.operands]
