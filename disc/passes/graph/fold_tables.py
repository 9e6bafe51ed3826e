"""fold-tables: what is made of one row of a constant table is made of all its rows at compile time, and read from there.

    %t = "disc.weight"() {name = "emb.weight"}                  : [1000, 256]
    %x = "disc.gather"(%t, %word)                               : [@B, 256]
    %y = stablehlo.dot_general %x, %w            ─►     %f = "disc.weight"() {name = "folded.emb.weight"} : [1000, 768]
    %z = stablehlo.add %y, %u                           %z = "disc.gather"(%f, %word)                     : [@B, 768]

CORTEX folds so what a leaf of a tree computes of its word. Where a row number is the only thing that differs from instance to instance, all
that depends on it and on constants alone is a function of rows; of each such function that something else reads there is one table. Legal
where rows are independent of each other, which `find-batch-dim` proves: row i of a value [@B, ...] then depends on the i-th number alone.
Worth it within a budget of bytes (`Options.fold_tables`, for all tables of one program) and of work. Requires and keeps stage `named`; the
module attribute `disc.folded_tables` says what was done, or why it was not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

import numpy as np
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]
from torch_mlir.passmanager import PassManager

from disc.ir.interp.oracle import can_evaluate, evaluate_op
from disc.ir.interp.values import Array, element_name, held_dtype, stored_weight
from disc.ir.op_table import OPS, Kind
from disc.ir.ops import TERMINATORS, block_ops, build, main_block, string_attr, strings
from disc.ir.passes import CompileState, Pass
from disc.ir.rewriting import close_regions, element_type, entries, erase_dead, named_type, producer, static_entry, static_size
from disc.ir.weights import ELEMENT_BYTES, WeightTable
from disc.passes.graph.find_batch_dim import NotIndependent, prove
from disc.passes.graph.lift_batch import shared_arguments

# What a row may be put through. Convolutions and what runs element after element are left out: the interpreter takes long for many rows.
FOLDABLE = frozenset({Kind.MADE, Kind.STORED, Kind.ELEMENTWISE, Kind.VIEW, Kind.STRUCTURAL, Kind.REDUCTION, Kind.DOT})


@dataclass(frozen=True)
class FoldTables(Pass):
    """Stage named → named. rows: how many are computed at once; most_work: elements of results, of dots times what is summed for each, that
    the compiler computes for the rows of all tables."""

    name: ClassVar[str] = "fold-tables"
    rows: int = 4096
    most_work: int = 10**11

    def apply(self, module: ir.Module, state: CompileState) -> None:
        budget = state.options.fold_tables
        block = main_block(module)
        if not budget or not any(map(_is_read, block_ops(block))) or not _rows_are_independent(module):
            return
        PassManager.parse("builtin.module(cse)").run(module.operation)  # one number for all reads by one word
        close_regions(block)
        fixed = _fixed(block)
        said: list[str] = []
        work = self.most_work
        for reads in _reads_by_number(block):
            functions = _Functions(block, reads, fixed)
            if not functions.wanted:
                continue
            size, taken = functions.size(), functions.work()
            if size > budget or taken > work:
                said.append(f"{functions.name}: not folded, {_why(size, budget, self.most_work)}")
                continue
            budget, work = budget - size, work - taken
            for value, table in zip(functions.wanted, functions.tables(state.weights, self.rows), strict=True):
                name = state.weights.add(f"folded.{functions.name}", stored_weight(table, element_name(value.type)))
                functions.read(value, name)
            said.append(f"{functions.name}: {functions.count:,} rows, {size:,} bytes")
        erase_dead(block)
        if said:
            module.operation.attributes["disc.folded_tables"] = strings(*said)


def _why(size: int, budget: int, most_work: int) -> str:
    if size > budget:
        return f"{size:,} bytes are more than the {budget:,} that `fold_tables` leaves"
    return f"its rows take more than {most_work:.0e} operations"


def _rows_are_independent(module: ir.Module) -> bool:
    try:
        prove(module, shared_arguments(module))
    except NotIndependent:
        return False
    return True


def _is_read(op: ir.Operation) -> bool:
    """Whether it takes rows of a weight by a vector of numbers."""
    if op.name != "disc.gather":
        return False
    table, number = op.operands
    made, rank = producer(table), len(entries(table.type))
    if made is None or made.name != "disc.weight" or len(entries(number.type)) != 1 or static_size(entries(number.type)[0]) is not None:
        return False
    numbers = _stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    whole = [static_size(entry) for entry in entries(op.results[0].type)[1:]] == [static_size(entry) for entry in entries(table.type)[1:]]
    return (
        (list(numbers.collapsed_slice_dims), list(numbers.start_index_map), numbers.index_vector_dim) == ([0], [0], 1)
        and list(numbers.offset_dims) == list(range(1, rank))
        and not list(numbers.operand_batching_dims)
        and whole
    )


def _fixed(block: ir.Block) -> dict[ir.Value, None]:
    """The values that no argument has a part in but by the number of rows."""
    found: dict[ir.Value, None] = {}
    for op in block_ops(block):
        if op.name not in TERMINATORS and _foldable(op) and all(operand in found for operand in op.operands):
            found.update(dict.fromkeys(op.results))
    return found


def _foldable(op: ir.Operation) -> bool:
    return op.name in OPS and OPS[op.name].kind in FOLDABLE and can_evaluate(op)


def _reads_by_number(block: ir.Block) -> list[list[ir.Operation]]:
    """The reads of tables with as many rows by one vector of numbers."""
    found: dict[tuple[ir.Value, int | None], list[ir.Operation]] = {}
    for op in filter(_is_read, block_ops(block)):
        found.setdefault((op.operands[1], static_size(entries(op.operands[0].type)[0])), []).append(op)
    return list(found.values())


@dataclass
class _Functions:
    """What is made of rows that one vector of numbers chooses. wanted: of these values those that something else reads, and that are more
    than what lies in the tables."""

    block: ir.Block
    reads: Sequence[ir.Operation]
    fixed: Mapping[ir.Value, None]
    wanted: list[ir.Value] = field(init=False)

    def __post_init__(self) -> None:
        first = self.reads[0]
        self._rows = entries(first.operands[1].type)[0]
        self.count = static_size(entries(first.operands[0].type)[0]) or 0
        self.name = string_attr(_producer(first.operands[0]), "name")
        self._costs: dict[ir.Value, int] = {each.results[0]: 0 for each in self.reads}  # of the op that makes it, and those behind it
        for op in block_ops(self.block):
            if self._is_function(op):
                cost = _work(op) if OPS[op.name].kind not in (Kind.VIEW, Kind.STRUCTURAL) else 0
                self._costs.update(dict.fromkeys(op.results, cost + sum(self._costs.get(each, 0) for each in op.operands)))
        self.wanted = [value for value, cost in self._costs.items() if cost and self.count and self._is_needed(value)]

    def _is_function(self, op: ir.Operation) -> bool:
        own = [operand in self._costs for operand in op.operands]
        if not any(own) or op.name in TERMINATORS or not _foldable(op):
            return False
        known = all(mine or operand in self.fixed for mine, operand in zip(own, op.operands, strict=True))
        return known and all(self._has_rows(result) for result in op.results)

    def _has_rows(self, value: ir.Value) -> bool:
        dims = entries(value.type)
        return bool(dims) and dims[0] == self._rows and all(static_size(each) is not None for each in dims[1:])

    def _is_needed(self, value: ir.Value) -> bool:
        return any(not use.owner.results or any(each not in self._costs for each in use.owner.results) for use in value.uses)

    def size(self) -> int:
        """The bytes of the tables."""
        return self.count * sum(_elements(value.type) * ELEMENT_BYTES[element_name(value.type)] for value in self.wanted)

    def work(self) -> int:
        """As of `FoldTables.most_work`."""
        return self.count * sum(_work(op) for op in self._steps())

    def tables(self, weights: WeightTable, most: int) -> list[Array]:
        """The table of each wanted value."""
        parts: list[list[Array]] = [[] for _ in self.wanted]
        symbol = ir.FlatSymbolRefAttr(self._rows).value
        number = self.reads[0].operands[1]
        steps = self._steps()
        for start in range(0, self.count, most):
            rows = np.arange(start, min(start + most, self.count)).astype(held_dtype(element_name(number.type)))
            values: dict[ir.Value, Array] = {number: rows}
            for op in steps:
                operands = [values[operand] for operand in op.operands]
                values.update(zip(op.results, evaluate_op(op, operands, {symbol: len(rows)}, weights), strict=True))
            for made, value in zip(parts, self.wanted, strict=True):
                made.append(values[value])
        return [np.concatenate(each) for each in parts]

    def _steps(self) -> list[ir.Operation]:
        """The ops that the wanted values are made by, in order."""
        number = self.reads[0].operands[1]
        needed = {*self.wanted}
        found: list[ir.Operation] = []
        for op in reversed(block_ops(self.block)):
            if any(result in needed for result in op.results):
                found.append(op)
                needed |= {operand for operand in op.operands if operand != number}
        return found[::-1]

    def read(self, value: ir.Value, table: str) -> None:
        """Takes the value from its table from now on; a number that is out of range is reported where the first read was."""
        first, op = self.reads[0], _producer(value)
        dims = entries(value.type)[1:]
        sizes = [static_size(each) or 0 for each in dims]
        kind = named_type(element_type(value.type), [static_entry(self.count), *dims])
        weight = build("disc.weight", [], [kind], {"name": table}, before=op).results[0]
        attributes = {name: first.attributes[name] for name in first.attributes}
        attributes["dimension_numbers"] = _stablehlo.GatherDimensionNumbers.get(list(range(1, len(sizes) + 1)), [0], [], [], [0], 1)
        attributes["sizes"] = strings("1", *map(str, sizes))
        made = build("disc.gather", [weight, first.operands[1]], [value.type], attributes, location=first.location, before=op)
        value.replace_all_uses_with(made.results[0])


def _work(op: ir.Operation) -> int:
    """Of one row: elements of the result, for a dot times what is summed for each."""
    summed = 1
    if OPS[op.name].kind is Kind.DOT and op.name == "stablehlo.dot_general":
        dims = _stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"]).lhs_contracting_dimensions
        summed = prod(static_size(entries(op.operands[0].type)[dim]) or 1 for dim in dims)
    return summed * sum(_elements(result.type) for result in op.results)


def _elements(kind: ir.Type) -> int:
    """Of one row."""
    return prod(size for size in map(static_size, entries(kind)) if size is not None)


def _producer(value: ir.Value) -> ir.Operation:
    op = producer(value)
    assert op is not None
    return op
