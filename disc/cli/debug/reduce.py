"""Shrinks a module while a command keeps failing on it.

    disc debug reduce broken.mlir --check "disc debug opt {} --passes=simplify" --match "CompilerBug"

The command fails when its exit status is not 0 and, with --match, its output holds that text; {} stands for the file that it shall read.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torch_mlir import ir

from disc.config import child_environment
from disc.errors import DiscError
from disc.ir.dialect import disc_context
from disc.ir.ops import block_ops, is_unused, main_block, main_function, string_attr, terminator_of
from disc.ir.stages import parse_module
from disc.shapes import parse_dim

Edit = Callable[[ir.Module], None]
KEPT = frozenset({"func.return", "kernel.yield"})
_TENSOR = re.compile(r"tensor<([0-9?x]*)x(\w+), \[([^\]]*)\]>")
_SYMBOL = re.compile(r'^ *"disc\.symbolic_dim"\(\).*?sym_name = "(\w+)".*\n', re.MULTILINE)
_EXPRESSION = re.compile(r'"([^"]*)"')


def shrink(text: str, fails: Callable[[str], bool], seconds: float = 120.0) -> str:
    """The smallest module found on which `fails` stays true, within the time."""
    deadline = time.monotonic() + seconds
    best, changed = text, True
    while changed and time.monotonic() < deadline:
        changed = False
        for edits in (_result_edits, _op_edits, _module_edits):
            best, smaller = _greedy(best, edits, fails, deadline)
            changed |= smaller
        best, smaller = _simplify_symbols(best, fails, deadline)
        changed |= smaller
    return best


def _greedy(text: str, edits: Callable[[ir.Module], Iterator[Edit]], fails: Callable[[str], bool], deadline: float) -> tuple[str, bool]:
    """Applies every edit in turn that keeps the failure; starts over at the same place after one that did."""
    changed, position = False, 0
    while time.monotonic() < deadline:
        candidate, more = _edited(text, edits, position)
        if not more:
            break
        if candidate is not None and size_of(candidate) < size_of(text) and fails(candidate):
            text, changed = candidate, True
        else:
            position += 1
    return text, changed


def size_of(text: str) -> tuple[int, int]:
    """What shrinking makes smaller: the number of ops, then the length of the text."""
    return text.count(" = "), len(text)


def _edited(text: str, edits: Callable[[ir.Module], Iterator[Edit]], position: int) -> tuple[str | None, bool]:
    """The module after the edit of this number, None where that is not valid; and whether there is such an edit."""
    with disc_context():
        module = parse_module(text)
        for number, edit in enumerate(edits(module)):
            if number == position:
                try:
                    edit(module)
                    _clean(module)
                    module.operation.verify()
                    return _without_unused_symbols(module.operation.get_asm(enable_debug_info=False)), True
                except (DiscError, ir.MLIRError, ValueError):
                    return None, True
    return None, False


# --- edits --------------------------------------------------------------------------------------------------------------------


def _result_edits(module: ir.Module) -> Iterator[Edit]:
    """One result alone, one result less, or the operands of a result in its place."""
    results = list(terminator_of(main_block(module)).operands)
    if len(results) > 1:
        for value in results:
            yield lambda module, value=value: _return(module, [value])
        for place in range(len(results)):
            yield lambda module, place=place: _return(module, results[:place] + results[place + 1 :])
    for place, value in enumerate(results):
        if not isinstance(value, ir.BlockArgument):
            operands = [operand for operand in _definition(value).operands if operand not in results]
            for operand in operands:
                yield lambda module, place=place, operand=operand: _return(module, [*results[:place], operand, *results[place + 1 :]])


def _definition(value: ir.Value) -> ir.Operation:
    owner = value.owner
    return owner.operation if isinstance(owner, ir.OpView) else ir.Operation(owner) if not isinstance(owner, ir.Operation) else owner


def _op_edits(module: ir.Module) -> Iterator[Edit]:
    """For every op, last first: its result becomes an earlier value of the same type, or a new argument."""
    block = main_block(module)
    ops = block_ops(block)
    for place in reversed(range(len(ops))):
        op = ops[place]
        if op.name in KEPT or op.name == "stablehlo.constant" or is_unused(op):
            continue
        earlier = [*op.operands, *block.arguments, *(value for each in ops[:place] for value in each.results)]
        for result in op.results:
            same = [value for value in dict.fromkeys(earlier) if value.type == result.type]
            for value in same[:4]:
                yield lambda module, result=result, value=value: result.replace_all_uses_with(value)
        if op.name != "disc.weight":
            yield lambda module, op=op: _to_arguments(module, op)


def _to_arguments(module: ir.Module, op: ir.Operation) -> None:
    block = main_block(module)
    for result in op.results:
        argument = block.add_argument(result.type, op.location)
        result.replace_all_uses_with(argument)


def _module_edits(module: ir.Module) -> Iterator[Edit]:
    """What nothing reads goes; one relation less; operands of an op that are one value where they were two."""
    yield lambda module: None
    for op in module.body.operations:
        if op.operation.name == "disc.relation":
            yield lambda module, op=op.operation: op.erase()
    for op in block_ops(main_block(module)):
        operands = list(op.operands)
        for place, value in enumerate(operands):
            others = [other for other in operands[:place] if other != value and other.type == value.type]
            if others and op.name not in (*KEPT, "stablehlo.reduce"):  # a start that is not neutral may be folded in any number of times
                yield lambda module, op=op, place=place, other=others[0]: op.operands.__setitem__(place, other)


def _return(module: ir.Module, values: Sequence[ir.Value]) -> None:
    old = terminator_of(main_block(module))
    with module.context, ir.Location.unknown():
        ir.Operation.create("func.return", operands=list(values), ip=ir.InsertionPoint(old))
    old.erase()


# --- cleaning up --------------------------------------------------------------------------------------------------------------


def _clean(module: ir.Module) -> None:
    """Erases what nothing reads: ops, then arguments; makes the function's type agree."""
    block = main_block(module)
    for op in reversed(block_ops(block)):
        if op.name not in KEPT and is_unused(op):
            op.erase()
    for number in reversed(range(len(block.arguments))):
        if next(iter(block.arguments[number].uses), None) is None and _move_sources(module, number):
            block.erase_argument(number)
            _drop_argument_attributes(module, number)
    function = main_function(module)
    returned = [value.type for value in terminator_of(block).operands]
    with module.context:
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([value.type for value in block.arguments], returned))
    if "res_attrs" in function.attributes:
        del function.attributes["res_attrs"]
    _fill_argument_attributes(module)


def _move_sources(module: ir.Module, gone: int) -> bool:
    """Lets symbols that are read off argument `gone` be read off another, and renumbers; False (and nothing done) where one cannot be."""
    block = main_block(module)
    text = str(module)
    sources: list[tuple[ir.Operation, str]] = []
    for view in module.body.operations:
        op = view.operation
        if op.name != "disc.symbolic_dim" or "source" not in op.attributes:
            continue
        name, source = string_attr(op, "sym_name"), string_attr(op, "source")
        if source == f"arg{gone}" or source.startswith(f"arg{gone}."):
            found = _place_of(block, name, gone)
            if found is None and len(re.findall(rf"\b{name}\b", text)) > 1 + str(block.arguments[gone].type).count(f"@{name},") * 2:
                return False
            source = found or "arg0.0"
        sources.append((op, source))
    for op, source in sources:
        number = int(re.findall(r"\d+", source)[0])
        moved = source if number < gone else source.replace(f"arg{number}", f"arg{number - 1}", 1)
        with module.context:
            op.attributes["source"] = ir.StringAttr.get(moved)
    return True


def _place_of(block: ir.Block, name: str, gone: int) -> str | None:
    """Another argument's dim that is exactly this symbol."""
    for number, argument in enumerate(block.arguments):
        kind = argument.type
        if number == gone or not isinstance(kind, ir.RankedTensorType) or ir.RankedTensorType(kind).encoding is None:
            continue
        for axis, entry in enumerate(ir.ArrayAttr(ir.RankedTensorType(kind).encoding)):
            if isinstance(entry, ir.FlatSymbolRefAttr) and entry.value == name:
                return f"arg{number}.{axis}"
    return None


def _drop_argument_attributes(module: ir.Module, number: int) -> None:
    attributes = main_function(module).attributes
    if "arg_attrs" in attributes:
        kept = [each for place, each in enumerate(ir.ArrayAttr(attributes["arg_attrs"])) if place != number]
        attributes["arg_attrs"] = ir.ArrayAttr.get(kept, context=module.context)


def _fill_argument_attributes(module: ir.Module) -> None:
    """New arguments have no attributes."""
    attributes, count = main_function(module).attributes, len(main_block(module).arguments)
    if "arg_attrs" in attributes:
        held = list(ir.ArrayAttr(attributes["arg_attrs"]))
        empty = ir.DictAttr.get({}, context=module.context)
        attributes["arg_attrs"] = ir.ArrayAttr.get(held + [empty] * (count - len(held)), context=module.context)


def _without_unused_symbols(text: str) -> str:
    """Drops the definitions of symbols that nothing names."""
    while True:
        for match in _SYMBOL.finditer(text):
            if len(re.findall(rf"\b{match[1]}\b", text)) == 1:
                text = text.replace(match[0], "", 1)
                break
        else:
            return text


# --- symbols ------------------------------------------------------------------------------------------------------------------


def _simplify_symbols(text: str, fails: Callable[[str], bool], deadline: float) -> tuple[str, bool]:
    """Symbols become constants or other symbols."""
    changed = False
    for name in [match[1] for match in _SYMBOL.finditer(text)]:
        others = [match[1] for match in _SYMBOL.finditer(text) if match[1] != name and "source =" in match[0]]
        for value in (4, 1, *others[:2]):
            if time.monotonic() > deadline or f'sym_name = "{name}"' not in text:
                break
            candidate = substitute(text, name, value)
            if candidate is not None and fails(candidate):
                text, changed = candidate, True
                break
    return text, changed


def substitute(text: str, name: str, value: int | str) -> str | None:
    """The module of stage `named` with `value` for the symbol `name`; None where that is not valid IR."""
    definition = next((match[0] for match in _SYMBOL.finditer(text) if match[1] == name), "")
    text, word = text.replace(definition, "", 1), re.compile(rf"\b{name}\b")

    def rewrite_type(match: re.Match[str]) -> str:
        sizes, entries = match[1].split("x"), match[3].split(", ")
        for place, entry in enumerate(entries):
            if entry == f"@{name}":
                sizes[place], entries[place] = ("?", f"@{value}") if isinstance(value, str) else (str(value), str(value))
        return f"tensor<{'x'.join(sizes)}x{match[2]}, [{', '.join(entries)}]>"

    def rewrite_expression(match: re.Match[str]) -> str:
        if not word.search(match[1]):
            return match[0]
        replaced = parse_dim(word.sub(str(value), match[1]))
        return f'"{replaced}"'

    text = _EXPRESSION.sub(rewrite_expression, _TENSOR.sub(rewrite_type, text))
    text = _constants_inlined(text)
    try:
        with disc_context():
            module = parse_module(text)
            module.operation.verify()
            return _without_unused_symbols(module.operation.get_asm(enable_debug_info=False))
    except (DiscError, ir.MLIRError):
        return None


def _constants_inlined(text: str) -> str:
    """Derived symbols whose expression has become a number go too."""
    for match in _SYMBOL.finditer(text):
        expression = re.search(r'expr = "(\d+)"', match[0])
        if expression:
            return substitute(text, match[1], int(expression[1])) or text
    return text


# --- command line -------------------------------------------------------------------------------------------------------------


def command_check(command: str, match: str) -> Callable[[str], bool]:
    """A check that runs a shell command on a file with the module. What the command leaves for temporary files goes with it: a report for
    each time that it fails."""

    def fails(text: str) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "candidate.mlir"
            path.write_text(text)
            line = command.replace("{}", str(path)) if "{}" in command else f"{command} {path}"
            temporary = child_environment({"TMPDIR": folder})
            done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False, env=temporary)
        return done.returncode != 0 and match in done.stdout + done.stderr

    return fails
