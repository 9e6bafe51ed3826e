"""lift-batch: a program for one instance becomes one for any number of them, which share some of its arguments.

    @main(%h: [256], %w: [256, 256] {disc.shared}) → [256]         %y = dot_general %w, %h, contracting [1] x [0]
→   @main(%h: [@B, 256], %w: [256, 256] {disc.shared}) → [@B, 256]    %y = dot_general %h, %w, contracting [1] x [1]

Row i of every result is what the program made of row i of the arguments, and of those marked `disc.shared`, as they are. What depends on
shared values alone stays as it is and is computed once. The rules are in `lift_rules`; `find-batch-dim` knows nothing of them and proves
what they make. Requires and keeps stage `named`, before the passes on the graph: these see products over all instances.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.errors import CompilerBug, DiscError
from disc.ir.op_table import BINDING, CONTROL
from disc.ir.ops import block_ops, build, main_block, main_function, string_attr, terminator_of
from disc.ir.passes import CompileState, Pass
from disc.ir.state import STATE
from disc.passes.graph.find_batch_dim import NotIndependent, prove
from disc.passes.graph.lift_rules import RULES, Lifting, refuse

SHARED = "disc.shared"  # of an argument: all instances have the same


@dataclass(frozen=True)
class LiftBatch(Pass):
    """Stage named → named. Raises UnsupportedOpError for an op that cannot be computed for several instances at once; DiscError for a
    program that keeps state, or whose sizes are numbers in an argument that is not shared."""

    name: ClassVar[str] = "lift-batch"

    def apply(self, module: ir.Module, state: CompileState) -> None:
        if STATE in module.operation.attributes:
            raise DiscError("a program that keeps tensors from call to call or draws random numbers is not computed for several instances")
        shared = shared_arguments(module)
        block = main_block(module)
        own = [number for number in range(len(block.arguments)) if number not in shared]
        if not own:
            raise DiscError("all arguments are shared by all instances: there is nothing to compute for each of them")
        lift = Lifting(_declare_symbol(module, own), state.thresholds.graph.lifted_columns)
        for number in own:
            argument = block.arguments[number]
            argument.set_type(lift.kind(argument.type))
            lift.lifted.add(argument)
        for op in block_ops(block):
            _lift(lift, op)
        _declare_types(module, lift, own)
        _prove(module, shared)


def shared_arguments(module: ir.Module) -> frozenset[int]:
    """The numbers of the arguments of @main that carry `disc.shared`."""
    main = main_function(module)
    given = list(ir.ArrayAttr(main.attributes["arg_attrs"])) if "arg_attrs" in main.attributes else []
    return frozenset(number for number, each in enumerate(given) if SHARED in ir.DictAttr(each))


def _lift(lift: Lifting, op: ir.Operation) -> None:
    """Lifts one op where it reads a lifted value; the end of the program returns nothing else."""
    if op.name == "func.return":
        for place, operand in enumerate(op.operands):
            op.operands[place] = lift.with_rows(operand, op)
        return
    if op.name in CONTROL:
        raise refuse(op, "each of them may go another way")
    if op.name in BINDING:
        raise refuse(op, "a size that depends on data is another one in each")
    if op.name != "disc.philox" and not any(operand in lift.lifted for operand in op.operands):
        return
    if op.name not in RULES:
        raise refuse(op, "there is no rule for it")
    RULES[op.name](lift, op)


def _declare_symbol(module: ir.Module, own: list[int]) -> str:
    """Adds the symbol for the number of instances; the dims of the arguments that are lifted are one further back from now on."""
    taken: set[str] = set()
    symbols = [each.operation for each in module.body.operations if each.operation.name == "disc.symbolic_dim"]
    for op in symbols:
        taken.add(string_attr(op, "sym_name"))
        source = string_attr(op, "source") if "source" in op.attributes else ""
        argument, _, dim = source.removeprefix("arg").partition(".")
        if not source.startswith("arg") or int(argument) not in own:
            continue
        if not dim:
            raise DiscError(f"the number in argument {argument} is a size: all instances have to share it")
        op.attributes["source"] = ir.StringAttr.get(f"arg{argument}.{int(dim) + 1}")
    name = next(each for each in ("B", *(f"B{number}" for number in range(len(taken) + 1))) if each not in taken)
    attributes = {"sym_name": name, "min": 0, "divisor": 1, "source": f"arg{own[0]}.0"}
    first = module.body.operations[0].operation
    build("disc.symbolic_dim", attributes=attributes, before=first, location=ir.Location.unknown())
    return name


def _declare_types(module: ir.Module, lift: Lifting, own: list[int]) -> None:
    """The type of @main, and what its arguments say of their dims."""
    main, block = main_function(module), main_block(module)
    kinds = [argument.type for argument in block.arguments]
    results = [operand.type for operand in terminator_of(block).operands]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(kinds, results))
    if "arg_attrs" not in main.attributes:
        return
    given = [{each.name: each.attr for each in ir.DictAttr(entry)} for entry in ir.ArrayAttr(main.attributes["arg_attrs"])]
    for number in own:
        if "disc.dims" in given[number]:
            dims = list(ir.ArrayAttr(given[number]["disc.dims"]))
            given[number]["disc.dims"] = ir.ArrayAttr.get([ir.StringAttr.get(lift.symbol), *dims])
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(entry) for entry in given])


def _prove(module: ir.Module, shared: frozenset[int]) -> None:
    """An independent check that instances do not influence each other."""
    try:
        prove(module, shared)
    except NotIndependent as reason:
        raise CompilerBug(f"the lifted program is not proved to keep its instances apart: {reason}") from None
