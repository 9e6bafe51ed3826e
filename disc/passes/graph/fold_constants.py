"""Subgraphs of weights and constants alone are computed once, at compile time.

    %w = "disc.weight"() {name = "q.weight"}
    %v = "disc.weight"() {name = "k.weight"}        ─►     %c = "disc.weight"() {name = "folded.concatenate.q.weight"}
    %c = stablehlo.concatenate %w, %v, dim = 0

Requires and keeps stage `named`. Small and splat results become `stablehlo.constant`, others enter the weight table; a transposed
weight is a view of the original. What would make the artifact much larger (a broadcast, a large iota) stays.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from disc.ir.interp.oracle import evaluate_op, make_scope
from disc.ir.interp.structure import RULES as MOVES
from disc.ir.interp.values import constant_attribute, constant_value, element_name, held_weight, is_splat, stored_weight
from disc.ir.op_table import STRUCTURAL, VIEWS
from disc.ir.ops import block_ops, build, function_blocks, string_attr
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.rewriting import close_regions, erase_dead, producer
from disc.ir.weights import Weight, WeightTable
from disc.passes.graph.constants import LEAVES, constant_values

# Ops that only move elements: run on the stored bits, so that bf16 weights are not widened and views stay views.
_MOVING = VIEWS | STRUCTURAL


@dataclass(frozen=True)
class FoldConstants(FunctionPass):
    """Folds the largest constant subgraphs that pay.

    small: results of at most this many elements become constants in the IR. growth: a result may be this many times as large as the
    weights it is made of.
    """

    name: ClassVar[str] = "fold-constants"
    small: int = 16
    growth: int = 2

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        # Layers that share their weights need the same constants: each is computed and stored once.
        PassManager.parse("builtin.module(cse)").run(module.operation)
        for each in function_blocks(module):
            close_regions(each)
        folder = _Folder(constant_values(block), state.weights)
        # From the last op on: a result that is folded makes the ops before it dead, and one that is not offers its operands.
        for op in reversed(block_ops(block)):
            if not op.results or op.name in LEAVES:
                continue
            for result in op.results:
                if result not in folder.constants or not _is_read(result, folder.constants):
                    continue
                if self._should_fold(result, folder):
                    folder.fold(op, result, self.small)
                else:
                    del folder.constants[result]
        erase_dead(block)

    def _should_fold(self, result: ir.Value, folder: _Folder) -> bool:
        tensor = ir.RankedTensorType(result.type)
        size = int(np.prod(tensor.shape, dtype=np.int64))
        if size <= self.small:
            return True
        return size <= self.growth * sum(folder.sources(result).values())


def _is_read(result: ir.Value, constants: dict[ir.Value, None]) -> bool:
    """Does an op need this very value that is not constant itself, or was refused?"""
    readers = [use.owner for use in result.uses]
    return any(not reader.results or any(each not in constants for each in reader.results) for reader in readers)


def _producer(value: ir.Value) -> ir.Operation:
    op = producer(value)
    assert op is not None, "a constant value is never an argument"
    return op


def _operands_first(value: ir.Value, known: Container[ir.Value]) -> Iterator[ir.Value]:
    """The values behind `value` that are not known yet, `value` the last, each after those that it is made of: these the caller makes known
    on the way."""
    pending = [value]
    while pending:
        missing = [operand for operand in _producer(pending[-1]).operands if operand not in known] if pending[-1] not in known else []
        if missing:
            pending += reversed(missing)
            continue
        current = pending.pop()
        if current not in known:
            yield current


class _Folder:
    """Evaluates constant values, each once."""

    def __init__(self, constants: dict[ir.Value, None], weights: WeightTable) -> None:
        self.constants = constants
        self.weights = weights
        self._values: dict[ir.Value, Weight] = {}
        self._sources: dict[ir.Value, dict[str, int]] = {}

    def sources(self, value: ir.Value) -> dict[str, int]:
        """The weights that a value is made of, with their element counts."""
        for each in _operands_first(value, self._sources):
            op = _producer(each)
            found: dict[str, int] = {}
            if op.name == "disc.weight":
                found[string_attr(op, "name")] = self.weights[string_attr(op, "name")].array.size
            for operand in op.operands:
                found.update(self._sources[operand])
            self._sources[each] = found
        return self._sources[value]

    def value(self, value: ir.Value) -> Weight:
        for each in _operands_first(value, self._values):
            op = _producer(each)
            self._values.update(zip(op.results, self._evaluate(op), strict=True))
        return self._values[value]

    def _evaluate(self, op: ir.Operation) -> list[Weight]:
        elements = [element_name(result.type) for result in op.results]
        if op.name == "disc.weight":
            return [self.weights[string_attr(op, "name")]]
        if op.name == "stablehlo.constant":
            return [stored_weight(constant_value(op.attributes["value"]), elements[0])]
        operands = [self._values[operand] for operand in op.operands]
        if op.name in _MOVING:
            arrays = MOVES[op.name](op, [operand.array for operand in operands], make_scope({}, None))
            return [Weight(array, element) for array, element in zip(arrays, elements, strict=True)]
        results = evaluate_op(op, [held_weight(operand) for operand in operands])
        return [stored_weight(array, element) for array, element in zip(results, elements, strict=True)]

    def fold(self, op: ir.Operation, result: ir.Value, small: int) -> None:
        """Gives the users of `result` a constant or an entry of the weight table."""
        weight = self.value(result)
        held = held_weight(weight)
        if held.size <= small or is_splat(held):
            attributes = {"value": constant_attribute(held, result.type)}
            new = build("stablehlo.constant", [], [result.type], attributes, before=op)
        else:
            origin = next(iter(self.sources(result)), "constant")
            name = self.weights.add(f"folded.{op.name.rpartition('.')[2]}.{origin}", weight)
            new = build("disc.weight", [], [result.type], {"name": name}, before=op)
        result.replace_all_uses_with(new.results[0])
