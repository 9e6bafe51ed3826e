"""The NumPy oracle: runs modules of the stages `named` and `fused`, and plain StableHLO with static shapes.

How tensors are held in arrays is described in `values.py` (bf16: float32 arrays of bf16 values). It is written to be
correct first; `fold-constants` runs it on constant subgraphs and the tests compare every pass and the compiled code with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch_mlir import ir

from disc.errors import CompilerBug, InputRankError, InputTypeError, ShapeConstraintError
from disc.ir.bf16 import round_to_bf16
from disc.ir.interp import compute as interp_compute
from disc.ir.interp import control as interp_control
from disc.ir.interp import elementwise as interp_elementwise
from disc.ir.interp import library as interp_library
from disc.ir.interp import structure as interp_structure
from disc.ir.interp.values import Array, Rule, Scope, element_name, held_dtype
from disc.ir.op_table import rules_by_op
from disc.ir.ops import TERMINATORS, block_ops, int_attr, location_text, main_block, string_attr
from disc.ir.symbols import DEFINITIONS, KERNEL
from disc.ir.weights import WeightTable
from disc.shapes import parse_condition, parse_dim


def _merge(*tables: Mapping[str, Rule]) -> dict[str, Rule]:
    merged: dict[str, Rule] = {}
    for table in tables:
        for name, rule in rules_by_op("interpreter", table).items():
            if name in merged:
                raise CompilerBug(f"two interpreter rules for {name}")
            merged[name] = rule
    return merged


def _fusion(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return _run_block(op.regions[0].blocks[0], operands, scope, whole=True)


RULES: Mapping[str, Rule] = {
    **_merge(interp_elementwise.RULES, interp_structure.RULES, interp_compute.RULES, interp_library.RULES, interp_control.RULES),
    "kernel.fusion": _fusion,
}  # fmt: skip


def interpret(module: ir.Module, inputs: Sequence[np.ndarray[Any, Any]], weights: WeightTable | None = None) -> list[Array]:
    """Runs `@main`. Sizes of symbols come from the inputs; ranges, divisors and relations are checked as the host does."""
    block = main_block(module)
    types = [argument.type for argument in block.arguments]
    if len(inputs) != len(types):
        raise InputRankError(f"{len(inputs)} inputs given, {len(types)} expected")
    arrays = [_held_input(position, x, type_) for position, (x, type_) in enumerate(zip(inputs, types, strict=True))]
    symbols = Symbols(module, arrays)
    scope = make_scope(symbols.values, weights, symbols.bind)
    for position, (x, type_) in enumerate(zip(arrays, types, strict=True)):
        if x.shape != scope.shape(type_):
            raise ShapeConstraintError(f"input {position} has the sizes {x.shape}; {type_} requires {scope.shape(type_)}")
    return _run_block(block, arrays, scope, whole=True)


def evaluate_op(
    op: ir.Operation, operands: list[Array], symbols: Mapping[str, int] | None = None, weights: WeightTable | None = None
) -> list[Array]:
    """The results of one op on the given operands; `symbols` need to hold only what the op's types and attributes name."""
    return _evaluate(op, operands, make_scope(symbols or {}, weights), whole=True)


def evaluate_scalars(op: ir.Operation, operands: list[Array]) -> Array:
    """The result of an elementwise op on one element of each operand, whatever the types of the op."""
    return _evaluate(op, operands, make_scope({}, None), whole=False)[0]


def can_evaluate(op: ir.Operation) -> bool:
    """Has the interpreter a rule for this op, and for every op in its regions?"""
    pending = [op]
    while pending:
        current = pending.pop()
        if current.name not in RULES:
            return False
        inner = [each for region in current.regions for block in region.blocks for each in block_ops(block)]
        pending += [each for each in inner if each.name not in TERMINATORS]
    return True


def _binds_nothing(name: str, value: int) -> None:
    raise CompilerBug(f"the size {name} is bound outside of a program")


def make_scope(symbols: Mapping[str, int], weights: WeightTable | None, bind: Callable[[str, int], None] = _binds_nothing) -> Scope:
    table = weights if weights is not None else WeightTable()

    def run_block(block: ir.Block, arguments: Sequence[Array]) -> list[Array]:
        return _run_block(block, arguments, scope, whole=False)

    def run_function(block: ir.Block, arguments: Sequence[Array]) -> list[Array]:
        return _run_block(block, arguments, scope, whole=True)

    scope = Scope(symbols, table, run_block=run_block, run_function=run_function, bind=bind)
    return scope


def _run_block(block: ir.Block, arguments: Sequence[Array], scope: Scope, whole: bool) -> list[Array]:
    """Runs a block. Where not `whole`, the block is written for scalars and runs on arrays: result shapes are not checked."""
    values: dict[ir.Value, Array] = dict(zip(block.arguments, arguments, strict=True))
    for op in block_ops(block):
        operands = [values[operand] for operand in op.operands]
        if op.name in TERMINATORS:
            return operands
        values.update(zip(op.results, _evaluate(op, operands, scope, whole), strict=True))
    raise CompilerBug("a block without a terminator cannot be run")


def _evaluate(op: ir.Operation, operands: list[Array], scope: Scope, whole: bool) -> list[Array]:
    rule = RULES.get(op.name)
    if rule is None:
        raise CompilerBug(f"the interpreter has no rule for {op.name} ({location_text(op)})")
    # IEEE results are wanted, not warnings about them.
    with np.errstate(all="ignore"):
        results = rule(op, operands, scope)
    for i, result in enumerate(op.results):
        element = element_name(result.type)
        if element == "bf16":
            results[i] = round_to_bf16(results[i])
        if results[i].dtype != held_dtype(element):
            raise CompilerBug(f"the interpreter got {results[i].dtype} for {element} from {op}")
        if whole and results[i].shape != scope.shape(result.type):
            raise CompilerBug(f"the interpreter got the sizes {results[i].shape} where {scope.shape(result.type)} is due: {op}")
    return results


def _held_input(position: int, x: np.ndarray[Any, Any], type_: ir.Type) -> Array:
    element, rank = element_name(type_), ir.RankedTensorType(type_).rank
    if x.dtype != held_dtype(element):
        raise InputTypeError(f"input {position} holds {x.dtype}; {held_dtype(element)} is expected ({element})")
    if x.ndim != rank:
        raise InputRankError(f"input {position} has {x.ndim} dims, {rank} are expected")
    return round_to_bf16(x) if element == "bf16" else np.asarray(x)


class Symbols:
    """values: of every symbol that is known: base ones read from the inputs or bound by ops, derived ones computed. Every stated fact is
    checked as soon as all that it holds is known."""

    def __init__(self, module: ir.Module, arrays: Sequence[Array]) -> None:
        self.values: dict[str, int] = {}
        self._pending = [op.operation for op in module.body.operations if op.operation.name in DEFINITIONS]
        for op in self._pending:
            if "source" in op.attributes and string_attr(op, "source") != KERNEL:
                self.values[string_attr(op, "sym_name")] = _read_source(string_attr(op, "source"), arrays)
        self._settle()

    def bind(self, name: str, value: int) -> None:
        """A symbol whose value an op computed."""
        self.values[name] = value
        self._settle()

    def _settle(self) -> None:
        """Computes and checks what can be by now; derived symbols may be stated before those that they hold."""
        left = len(self._pending) + 1
        while len(self._pending) < left:
            left = len(self._pending)
            self._pending = [op for op in self._pending if not self._settled(op)]

    def _settled(self, op: ir.Operation) -> bool:
        if any(name not in self.values for name in _symbols_of(op)):
            return False
        if op.name == "disc.symbolic_dim":
            name = string_attr(op, "sym_name")
            if "expr" in op.attributes:
                self.values[name] = parse_dim(string_attr(op, "expr")).evaluate(self.values)
            _check_range(op, self.values[name])
        elif op.name == "disc.relation":
            _check_relation(op, self.values)
        else:
            _check_condition(op, self.values)
        return True


def _symbols_of(op: ir.Operation) -> list[str]:
    """What must be known for a definition to be computed or checked."""
    if op.name == "disc.condition":
        return list(parse_condition(string_attr(op, "expr")).symbols())
    if op.name == "disc.symbolic_dim" and "source" in op.attributes:
        return [string_attr(op, "sym_name")]
    names = ("lhs", "rhs") if op.name == "disc.relation" else ("expr",)
    return [symbol for name in names for symbol in parse_dim(string_attr(op, name)).symbols()]


def _read_source(source: str, arrays: Sequence[Array]) -> int:
    argument, _, dim = source.removeprefix("arg").partition(".")
    array = arrays[int(argument)]
    return array.shape[int(dim)] if dim else int(array)


def _check_range(op: ir.Operation, value: int) -> None:
    name = string_attr(op, "sym_name")
    if "min" in op.attributes and value < int_attr(op, "min"):
        raise ShapeConstraintError(f"{name} is {value}, below its minimum of {int_attr(op, 'min')}")
    if "max" in op.attributes and value > int_attr(op, "max"):
        raise ShapeConstraintError(f"{name} is {value}, above its maximum of {int_attr(op, 'max')}")
    if "divisor" in op.attributes and value % int_attr(op, "divisor") != 0:
        raise ShapeConstraintError(f"{name} is {value}, not divisible by {int_attr(op, 'divisor')}")


def _check_condition(op: ir.Operation, values: Mapping[str, int]) -> None:
    try:
        holds = parse_condition(string_attr(op, "expr")).evaluate(values)
    except ZeroDivisionError as error:
        raise ShapeConstraintError(f"{string_attr(op, 'expr')} divides by 0") from error
    if not holds:
        raise ShapeConstraintError(f"{string_attr(op, 'expr')} does not hold")


def _check_relation(op: ir.Operation, values: Mapping[str, int]) -> None:
    left, right = (parse_dim(string_attr(op, side)).evaluate(values) for side in ("lhs", "rhs"))
    if left != right:
        raise ShapeConstraintError(f"{string_attr(op, 'lhs')} = {string_attr(op, 'rhs')} does not hold: {left} and {right}")
