"""Control flow: ops that run functions of the module.

    %y:2 = "control.while"(%a, %b, %w) {carried = 2 : i64, condition = @main_while_0_condition, body = @main_while_0_body}
    %z = "control.case"(%index, %a, %w) {branches = [@main_case_1_0, @main_case_1_1]}

A `control.while` carries its first `carried` operands: as long as the condition, called with them and with the other operands, returns
an i64 that is not 0, the body makes the next ones, of the same types. With `trips`, an expression, in the place of a condition the body
runs so many times. A `control.case` calls the branch of the i64 number `%index`, the
last one for a number that none has, with all other operands. The functions are private, each is the body of one op, and they see
nothing but their arguments, the weights and the symbols of the module. That of a branch which sizes choose says when it runs: `disc.when`,
a condition, of which what it needs of sizes may make use. Both ops are unregistered, as `kernel.fusion` is, since IRDL
demands one type of all variadic operands.
"""

from __future__ import annotations

from torch_mlir import ir

from disc.errors import CompilerBug
from disc.ir.op_table import CONTROL, IMPORTED, Kind
from disc.ir.ops import block_ops, function_blocks, functions_of, int_attr, location_text, string_attr, terminator_of

WHILE, CASE = "control.while", "control.case"
WHEN = "disc.when"  # of a function that is a branch: the condition on sizes under which it runs
REGION_OPS = frozenset(name for name, op in IMPORTED.items() if op.kind is Kind.CONTROL)  # how front ends deliver them


def callees(op: ir.Operation) -> list[str]:
    """The names of the functions that a control op runs, () for any other op; of a loop its condition, where it has one, and its body."""
    if op.name == WHILE:
        return [ir.FlatSymbolRefAttr(op.attributes[name]).value for name in ("condition", "body") if name in op.attributes]
    if op.name == CASE:
        return [ir.FlatSymbolRefAttr(each).value for each in ir.ArrayAttr(op.attributes["branches"])]
    return []


def body_blocks(op: ir.Operation) -> list[ir.Block]:
    """The blocks of the functions that a control op of a module runs."""
    names = callees(op)
    if not names:
        return []
    module = op.parent
    while module is not None and module.operation.name != "builtin.module":
        module = module.operation.parent
    if module is None:
        raise CompilerBug(f"{op.name} stands in no module")
    found = {string_attr(each.operation, "sym_name"): each.operation for each in module.regions[0].blocks[0].operations
             if each.operation.name == "func.func"}  # fmt: skip
    return [found[name].regions[0].blocks[0] for name in names]


def has_control(module: ir.Module) -> bool:
    """Whether a module of stage `named` or later branches or loops."""
    return len(functions_of(module)) > 1


def erase_unrun(module: ir.Module) -> None:
    """Erases the functions of control ops that are there no more, and what only these ran."""
    while True:
        run = {name for block in function_blocks(module) for op in block_ops(block) for name in callees(op)}
        unrun = [each for each in functions_of(module)[1:] if string_attr(each, "sym_name") not in run]
        for function in unrun:
            function.erase()
        if not unrun:
            return


def check_control(module: ir.Module) -> None:
    """Raises CompilerBug where a control op and the functions that it runs do not fit, or where two run one function."""
    run: set[str] = set()
    names = {string_attr(each, "sym_name") for each in functions_of(module)[1:]}
    for op in [op for block in function_blocks(module) for op in block_ops(block) if op.name in CONTROL]:
        called = callees(op)
        if not set(called) <= names - run or len(set(called)) != len(called):
            raise CompilerBug(f"{op.name} at {location_text(op)} runs {', '.join(called)}: not there, or run by another op")
        run.update(called)
        fault = _fault(op)
        if fault is not None:
            raise CompilerBug(f"{op.name} at {location_text(op)}: {fault}")
    if run != names:
        raise CompilerBug(f"nothing runs the functions {', '.join(sorted(names - run))}")


def _fault(op: ir.Operation) -> str | None:
    operands, results = [each.type for each in op.operands], [each.type for each in op.results]
    blocks = body_blocks(op)
    given = operands if op.name == WHILE else operands[1:]
    if any([each.type for each in block.arguments] != given for block in blocks):
        return "its functions take other arguments"
    returned = [[each.type for each in terminator_of(block).operands] for block in blocks]
    word = "tensor<i64>"
    if op.name == CASE:
        return "its branches return something else" if str(operands[0]) != word or any(each != results for each in returned) else None
    if ("condition" in op.attributes) == ("trips" in op.attributes):
        return "it has a condition and a number of trips, or neither"
    asked = returned[:-1]
    if operands[: int_attr(op, "carried")] != results or any(list(map(str, each)) != [word] for each in asked) or returned[-1] != results:
        return "it does not carry what its functions return"
    return None
