"""map-rows: arguments that are rows of tables are read there, through vectors of row numbers, instead of being gathered before the call.

    @main(%l: [@B, 256] {disc.table = 0}, %r: [@B, 256] {disc.table = 0}, %w: [@B])
→   @main(%table: [@N, 256], %l_row: [@B], %r_row: [@B], %w: [@B])         %l = "disc.gather"(%table, %l_row) {disc.in_range, ...}

Arguments of one number are rows of one table. The tables come first, in order of first use, then a vector of i64 for each argument that is
a row, then the other arguments. Whoever calls the program sees to it that the numbers are those of rows (`ral_run_batches` checks them): no
kernel reports one that is not. Rows that are stacked for a product are copied there once; other products read them from the stack:

    %y = stablehlo.dot_general %l, %v                %s = stablehlo.concatenate %l, %r    %l2 = "disc.slice"(%s)
    %s = stablehlo.concatenate %l, %r          →     %y = stablehlo.dot_general %l2, %v
    %z = stablehlo.dot_general %w, %s                %z = stablehlo.dot_general %w, %s

Requires and keeps stage `named`, after `lift-batch`: to `find-batch-dim` a table is no argument of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.errors import CompilerBug
from disc.ir.op_table import IN_RANGE
from disc.ir.ops import build, int_attr, main_block, main_function, string_attr, strings, terminator_of
from disc.ir.passes import CompileState, Pass
from disc.ir.rewriting import element_type, entries, named_type, static_size
from disc.ir.stages import load_env
from disc.passes.graph.lift_batch import SHARED

TABLE = "disc.table"  # of an argument: the number of the table whose rows it holds; -1 = it comes as it is, for all instances


def mark_rows(module: ir.Module, tables: Sequence[int | None]) -> None:
    """Marks the arguments of a module at stage `imported` for `map-rows`: the table of which each is a row, or None. Those behind are the
    same for all instances."""
    main = main_function(module)
    given = [{each.name: each.attr for each in ir.DictAttr(entry)} for entry in ir.ArrayAttr(main.attributes["arg_attrs"])]
    for entry in given[len(tables) :]:
        entry[SHARED] = ir.UnitAttr.get()
    for entry, number in zip(given, tables, strict=False):
        entry[TABLE] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), -1 if number is None else number)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(entry) for entry in given])


def has_rows(module: ir.Module) -> bool:
    """Whether the program is for one instance, to be lifted: whether its arguments are marked."""
    main = main_function(module)
    given = list(ir.ArrayAttr(main.attributes["arg_attrs"])) if "arg_attrs" in main.attributes else []
    return any(TABLE in ir.DictAttr(entry) for entry in given)


@dataclass(frozen=True)
class MapRows(Pass):
    """Stage named → named."""

    name: ClassVar[str] = "map-rows"

    def apply(self, module: ir.Module, state: CompileState) -> None:
        if not has_rows(module):
            return
        main, block = main_function(module), main_block(module)
        given = [{each.name: each.attr for each in ir.DictAttr(entry)} for entry in ir.ArrayAttr(main.attributes["arg_attrs"])]
        marked = {place: ir.IntegerAttr(entry.pop(TABLE)).value for place, entry in enumerate(given) if TABLE in entry}
        numbers = {place: number for place, number in marked.items() if number >= 0}
        if numbers:
            _Rewrite(module, block, given, numbers).run()


class _Rewrite:
    """given: what is said of each argument; numbers: argument → table."""

    def __init__(self, module: ir.Module, block: ir.Block, given: list[dict[str, ir.Attribute]], numbers: dict[int, int]) -> None:
        self.module, self.block, self.given, self.numbers = module, block, given, numbers
        self.old = list(block.arguments)
        self.rest = [place for place in range(len(self.old)) if place not in numbers]
        self.firsts: dict[int, int] = {}  # table → the first argument of its rows
        for place, number in numbers.items():
            first = self.firsts.setdefault(number, place)
            if self.old[first].type != self.old[place].type:
                raise CompilerBug(f"arguments {first} and {place} are rows of one table, but of different types")

    def run(self) -> None:
        """Changes the module."""
        counts = self._declare_symbols()
        unknown, word = ir.Location.unknown(), ir.IntegerType.get_signless(64)
        rows = entries(self.old[next(iter(self.numbers))].type)[0]
        tables: dict[int, ir.Value] = {}
        for number, place in self.firsts.items():
            kind = self.old[place].type
            tables[number] = self.block.add_argument(named_type(element_type(kind), [counts[number], *entries(kind)[1:]]), unknown)
        vectors = {place: self.block.add_argument(named_type(word, [rows]), unknown) for place in self.numbers}
        others = {place: self.block.add_argument(self.old[place].type, unknown) for place in self.rest}
        first = self.block.operations[0].operation
        gathered: list[ir.Value] = []
        for place, argument in enumerate(self.old):
            value = others[place] if place in others else _gather(tables[self.numbers[place]], vectors[place], argument.type, first)
            argument.replace_all_uses_with(value)
            gathered += [value] if place not in others else []
        _read_stacks(gathered)
        for _ in self.old:
            self.block.erase_argument(0)
        self._declare_types()

    def _places(self) -> list[tuple[str, int, bool]]:
        """The new arguments in order: name, the old one, whether it is a table's."""
        names = [_name(entry, place) for place, entry in enumerate(self.given)]
        tables = [(f"table{number}", place, True) for number, place in self.firsts.items()]
        rows = [(f"{names[place]}_row", place, False) for place in self.numbers]
        return [*tables, *rows, *((names[place], place, False) for place in self.rest)]

    def _declare_symbols(self) -> dict[int, ir.Attribute]:
        """Says where symbols are found now, and adds one for the rows of each table."""
        new = {place: number for number, (_, place, table) in enumerate(self._places()) if not table}
        of_table = {place: number for number, (_, place, table) in enumerate(self._places()) if table}
        taken: set[str] = set()
        for op in (each.operation for each in self.module.body.operations if each.operation.name == "disc.symbolic_dim"):
            taken.add(string_attr(op, "sym_name"))
            source = string_attr(op, "source") if "source" in op.attributes else ""
            if source.startswith("arg"):
                argument, dot, dim = source.removeprefix("arg").partition(".")
                place = int(argument)
                of_row = place in self.numbers and dim != "0"  # it is a dim of the table's rows, too
                moved = of_table[self.firsts[self.numbers[place]]] if of_row else new[place]
                op.attributes["source"] = ir.StringAttr.get(f"arg{moved}{dot}{dim}")
        counts: dict[int, ir.Attribute] = {}
        first = self.module.body.operations[0].operation
        for number, place in self.firsts.items():
            name = next(each for each in (f"N{more}" for more in range(number, number + len(taken) + 1)) if each not in taken)
            taken.add(name)
            attributes = {"sym_name": name, "min": 0, "divisor": 1, "source": f"arg{of_table[place]}.0"}
            build("disc.symbolic_dim", attributes=attributes, before=first, location=ir.Location.unknown())
            counts[number] = ir.FlatSymbolRefAttr.get(name)
        return counts

    def _declare_types(self) -> None:
        main = main_function(self.module)
        kinds = [argument.type for argument in self.block.arguments]
        results = [operand.type for operand in terminator_of(self.block).operands]
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(kinds, results))
        kept = [self.given[place] if place in self.rest else {"disc.name": ir.StringAttr.get(name)} for name, place, _ in self._places()]
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(entry) for entry in kept])
        load_env(self.module)  # raises where the symbols do not fit the arguments


def _gather(table: ir.Value, rows: ir.Value, kind: ir.Type, before: ir.Operation) -> ir.Value:
    """Rows of a table; sizes of what is taken are those of the table."""
    rest = entries(kind)[1:]
    numbers = _stablehlo.GatherDimensionNumbers.get(list(range(1, len(rest) + 1)), [0], [], [], [0], 1)
    sizes = [_text(entry) for entry in rest]
    attributes = {"dimension_numbers": numbers, "sizes": strings("1", *sizes), IN_RANGE: ir.UnitAttr.get()}
    return build("disc.gather", [table, rows], [kind], attributes, before=before).results[0]


def _read_stacks(gathered: Sequence[ir.Value]) -> None:
    """Products that read gathered rows which are stacked for another product read the stack."""
    for stack in dict.fromkeys(op for value in gathered for op in _readers(value) if op.name == "stablehlo.concatenate"):
        parts, dim = list(stack.operands), int_attr(stack, "dimension")
        sizes = [static_size(entries(part.type)[dim]) for part in parts]
        others = [[op for op in _readers(part) if op != stack] for part in parts]
        products = all(op.name == "stablehlo.dot_general" for each in (_readers(stack.results[0]), *others) for op in each)
        apart = len(set(parts)) == len(parts) and all(part in gathered for part in parts)
        if not (products and apart and any(others)) or None in sizes[:-1]:
            continue
        stack.move_after(gathered[-1].owner)
        start = 0
        for part, size, readers in zip(parts, sizes, others, strict=True):
            if readers:
                own = _part(stack.results[0], part.type, dim, start)
                for op in readers:
                    for place in [place for place, each in enumerate(op.operands) if each == part]:
                        op.operands[place] = own
            start += size or 0


def _readers(value: ir.Value) -> list[ir.Operation]:
    return list(dict.fromkeys(use.owner.operation for use in value.uses))


def _part(stack: ir.Value, kind: ir.Type, dim: int, start: int) -> ir.Value:
    """The part of a stack that begins at `start`, behind it."""
    rank = len(entries(kind))
    attributes = {
        "starts": strings(*(str(start if each == dim else 0) for each in range(rank))),
        "strides": ir.DenseI64ArrayAttr.get([1] * rank),
    }
    made = build("disc.slice", [stack], [kind], attributes, before=stack.owner)
    made.move_after(stack.owner)
    return made.results[0]


def _name(entry: dict[str, ir.Attribute], place: int) -> str:
    return ir.StringAttr(entry["disc.name"]).value if "disc.name" in entry else f"arg{place}"


def _text(entry: ir.Attribute) -> str:
    return str(ir.IntegerAttr(entry).value) if isinstance(entry, ir.IntegerAttr) else ir.FlatSymbolRefAttr(entry).value
