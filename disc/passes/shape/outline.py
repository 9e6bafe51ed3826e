"""The regions of control flow become private functions, and what they read from outside becomes operands.

    %y = stablehlo.while(%i = %a) cond {...} do {... %w ...}      ─►      %y = "control.while"(%a, %w) {carried = 1 : i64, ...}
                                                                          func.func private @main_while_0_body(%i: T, %arg1: W) -> T

What takes no operands (a constant, a weight, a size as data) is made in each function anew, so that weights are packed and constants
folded there as everywhere. The condition of a loop and the index of a branch become i64, which the host program reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from disc.ir.control import CASE, REGION_OPS, WHEN, WHILE
from disc.ir.ops import Attribute, block_ops, build, element_of, replace_op, string_attr, terminator_of
from disc.ir.rewriting import producer
from disc.shapes import Condition


def outline(module: ir.Module, when: Mapping[ir.Block, Condition]) -> None:
    """Of all functions of a module whose dims are named; those within first. when: branch that sizes choose → when it runs."""
    functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    outliner = _Outliner(module, when)
    for function in functions:
        outliner.block(function.regions[0].blocks[0], string_attr(function, "sym_name"))


@dataclass
class _Outliner:
    module: ir.Module
    when: Mapping[ir.Block, Condition]
    count: int = 0  # functions made so far

    def block(self, block: ir.Block, name: str) -> None:
        for op in block_ops(block):
            if op.name in REGION_OPS:
                self._outline(op, f"{name}_{op.name.partition('.')[2]}_{self._number()}")

    def _number(self) -> int:
        self.count += 1
        return self.count - 1

    def _outline(self, op: ir.Operation, name: str) -> None:
        blocks = [region.blocks[0] for region in op.regions]
        for block in blocks:
            self.block(block, name)
            _make_anew(block)
        captured = list(dict.fromkeys(value for block in blocks for value in _captured(block)))
        if op.name == "stablehlo.while":
            _return_number(blocks[0])
            names = [f"{name}_condition", f"{name}_body"]
            attributes: dict[str, Attribute] = {"carried": len(op.results)}
            attributes |= {key: ir.FlatSymbolRefAttr.get(each) for key, each in zip(("condition", "body"), names, strict=True)}
            operands, target = [*op.operands, *captured], WHILE
        else:
            is_if = op.name == "stablehlo.if"
            blocks = blocks[::-1] if is_if else blocks  # false is 0
            names = [f"{name}_{number}" for number in range(len(blocks))]
            attributes = {"branches": ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(each) for each in names])}
            operands, target = [_as_number(op.operands[0], op), *captured], CASE
        made = build(target, operands, [result.type for result in op.results], attributes, before=op)
        for each, block in zip(names, blocks, strict=True):
            self._function(each, block, captured)
        replace_op(op, list(made.results))

    def _function(self, name: str, block: ir.Block, captured: Sequence[ir.Value]) -> None:
        """Moves a region into a function of its own."""
        places = {value: block.add_argument(value.type, ir.Location.unknown()) for value in captured}
        for inner in block_ops(block):
            for number, operand in enumerate(inner.operands):
                if operand in places:
                    inner.operands[number] = places[operand]
        end = terminator_of(block)
        with ir.InsertionPoint(end):
            build("func.return", list(end.operands), location=end.location)
        returned = [each.type for each in end.operands]
        end.erase()
        kind = ir.FunctionType.get([each.type for each in block.arguments], returned)
        attributes: dict[str, Attribute] = {"sym_name": name, "function_type": ir.TypeAttr.get(kind), "sym_visibility": "private"}
        if block in self.when:
            attributes[WHEN] = str(self.when[block])
        with ir.InsertionPoint(self.module.body):
            function = build("func.func", attributes=attributes, regions=1, location=ir.Location.unknown())
        block.append_to(function.regions[0])


def _is_inside(value: ir.Value, block: ir.Block) -> bool:
    made = producer(value)
    return (value.owner if made is None else made.block) == block  # pyright: ignore[reportAttributeAccessIssue]


def _captured(block: ir.Block) -> list[ir.Value]:
    return [operand for op in block_ops(block) for operand in op.operands if not _is_inside(operand, block)]


def _make_anew(block: ir.Block) -> None:
    """Copies, at the start of the block, of what it reads from outside and takes no operands."""
    first = block_ops(block)[0]
    copies: dict[ir.Value, ir.Value] = {}
    for op in block_ops(block):
        for number, operand in enumerate(op.operands):
            made = producer(operand)
            if made is None or made.block == block or list(made.operands):  # pyright: ignore[reportAttributeAccessIssue]
                continue
            if operand not in copies:
                copies[operand] = made.clone(ip=ir.InsertionPoint(first)).operation.results[0]
            op.operands[number] = copies[operand]


def _return_number(block: ir.Block) -> None:
    end = terminator_of(block)
    end.operands[0] = _as_number(end.operands[0], end)


def _as_number(value: ir.Value, before: ir.Operation) -> ir.Value:
    """A scalar of i1 or of a signed integer as i64. An index below 0 is one that no branch has, as any beyond the last."""
    word = ir.IntegerType.get_signless(64)
    kind = ir.RankedTensorType.get([], word)
    if element_of(value) == word:
        return value
    return build("stablehlo.convert", [value], [kind], before=before).results[0]
