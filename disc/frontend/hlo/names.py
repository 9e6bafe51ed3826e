"""What the arguments and results of a StableHLO program are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir

from disc.ir.ops import string_attr

_NAME = re.compile(r'^loc\("([^"]+)"\)$')  # not a place in a file, which has a line
RESULT = "jax.result_info"


@dataclass(frozen=True)
class Names:
    inputs: tuple[str, ...]
    results: tuple[str, ...]


def names_of(module: ir.Module, function: ir.Operation) -> Names:
    """Those that JAX gives them: arguments by their locations, also where @main passes them on, results by an attribute. Else numbers."""
    arguments = list(function.regions[0].blocks[0].arguments)
    functions = {string_attr(op.operation, "sym_name"): op.operation for op in module.body.operations if op.operation.name == "func.func"}
    kinds = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
    attributes = (
        list(ir.ArrayAttr(function.attributes["res_attrs"])) if "res_attrs" in function.attributes else [ir.DictAttr.get({})] * len(kinds)
    )
    results = [{entry.name: entry.attr for entry in ir.DictAttr(each)}.get(RESULT) for each in attributes]
    return Names(
        _distinct([_argument_name(each, functions) for each in arguments], "arg"),
        _distinct([ir.StringAttr(each).value if each is not None else "" for each in results], "result"),
    )


def _argument_name(argument: ir.Value, functions: dict[str, ir.Operation]) -> str:
    found = _NAME.match(str(argument.location))
    if found is not None:
        return found[1]
    for use in argument.uses:
        op = use.owner.operation
        if op.name == "func.call":
            callee = functions.get(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
            passed = (
                list(callee.regions[0].blocks[0].arguments)[use.operand_number] if callee is not None and callee.regions[0].blocks else None
            )
            found = _NAME.match(str(passed.location)) if passed is not None else None
            if found is not None:
                return found[1]
    return ""


def _distinct(names: Sequence[str], kind: str) -> tuple[str, ...]:
    """Numbers instead, where one has no name or two share one."""
    if all(names) and len(set(names)) == len(names):
        return tuple(names)
    return tuple(f"{kind}{number}" for number in range(len(names)))
