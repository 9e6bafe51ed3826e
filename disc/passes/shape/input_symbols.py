"""Base symbols: what the sizes and scalars of the arguments are called, from the front end's symbols."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_mlir import ir

from disc.errors import UnsupportedFormatError
from disc.ir.op_table import BINDING
from disc.ir.ops import all_ops, main_block, main_function, shape_of, string_attr
from disc.ir.symbols import KERNEL, ModuleEnv, Requirement
from disc.passes.shape.host_values import HostValue, scalar
from disc.shapes import Dim, parse_condition, parse_dim

Entry = str | int | None


@dataclass
class InputSizes:
    """Dims of the tensor arguments, values of the scalar arguments and of the sizes that depend on data; the conditions under which the
    front end made the program."""

    dims: dict[ir.Value, tuple[Dim, ...]] = field(default_factory=dict)
    values: dict[ir.Value, HostValue] = field(default_factory=dict)
    made: dict[ir.Value, HostValue] = field(default_factory=dict)
    conditions: list[Requirement] = field(default_factory=list)


@dataclass(frozen=True)
class _Bounds:
    low: int | None  # elements, as all sizes; None: without end
    high: int | None  # elements; None: without end
    divisor: int  # of every size


def declare_inputs(module: ir.Module, env: ModuleEnv) -> InputSizes:
    """Declares the base symbols S0, S1, ... in argument order, then those that ops bind, in theirs.

    A scalar without a name may be negative.
    A front-end symbol is the first dim or scalar argument that is this symbol and nothing else. One that occurs only inside
    `2 * s1` makes that dim the base symbol, with divisor 2, and is its half. A dim without a name gets a symbol of its own.
    """
    reader = _Reader(module, env)
    entries = [reader.entries(index) for index in range(len(reader.arguments))]
    reader.declare_plain(entries)
    reader.declare_scaled(entries)
    found = reader.sizes(entries)
    found.made = reader.made_sizes()
    found.conditions = reader.conditions()
    return found


class _Reader:
    def __init__(self, module: ir.Module, env: ModuleEnv) -> None:
        self.env = env
        self.arguments = list(main_block(module).arguments)
        function = main_function(module)
        given = ir.ArrayAttr(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else [None] * len(self.arguments)
        self.attributes = [{} if item is None else {entry.name: entry.attr for entry in ir.DictAttr(item)} for item in given]
        self.bounds = _read_bounds(module)
        self.meaning: dict[str, Dim] = {}

    def entries(self, index: int) -> list[Entry]:
        """One entry per dim of a tensor argument, one for a scalar: an expression, a size, or None where nothing is given."""
        argument, attributes = self.arguments[index], self.attributes[index]
        if not isinstance(argument.type, ir.RankedTensorType):
            return [ir.StringAttr(attributes["disc.symbol"]).value if "disc.symbol" in attributes else None]
        sizes = list(shape_of(argument))
        if "disc.dims" not in attributes:
            return list(sizes)
        named = [_entry(item) for item in ir.ArrayAttr(attributes["disc.dims"])]
        if len(named) != len(sizes):
            raise UnsupportedFormatError(f"argument {index} has {len(sizes)} dims, but disc.dims names {len(named)}")
        return [name if size is None else size for name, size in zip(named, sizes, strict=True)]

    def declare_plain(self, entries: list[list[Entry]]) -> None:
        """Entries that are a front-end symbol alone, and those without a name."""
        for index, row in enumerate(entries):
            for position, entry in enumerate(row):
                if entry is None:
                    row[position] = hidden = f"?{index}.{position}"
                    self._declare(hidden, index, position)
                elif isinstance(entry, str) and _parsed(entry).symbols() == (entry,) and entry not in self.meaning:
                    self._declare(entry, index, position)

    def _declare(self, name: str, index: int, position: int, scale: int = 1, offset: int = 0) -> None:
        """A base symbol `scale * name + offset` for this dim."""
        is_tensor = isinstance(self.arguments[index].type, ir.RankedTensorType)
        source = f"arg{index}.{position}" if is_tensor else f"arg{index}"
        bounds = self.bounds.get(name, _Bounds(0 if is_tensor or not name.startswith("?") else None, None, 1))
        low = None if bounds.low is None else bounds.low * scale + offset
        high = None if bounds.high is None else bounds.high * scale + offset
        divisor = bounds.divisor * scale if offset == 0 else 1
        base = self.env.add_base(f"S{len(self.env.sources)}", source, low, high, divisor)
        self.meaning[name] = base if (scale, offset) == (1, 0) else (base - offset) // scale
        if offset:
            self.env.equate((base - offset) % scale, 0)

    def declare_scaled(self, entries: list[list[Entry]]) -> None:
        """Entries `c * s + d` of a symbol that is nowhere plain."""
        for index, row in enumerate(entries):
            for position, entry in enumerate(row):
                if not isinstance(entry, str) or entry.startswith("?"):
                    continue
                unknown = [name for name in _parsed(entry).symbols() if name not in self.meaning]
                if unknown:
                    scale, offset = self._linear(entry, unknown)
                    self._declare(unknown[0], index, position, scale, offset)

    def _linear(self, entry: str, unknown: list[str]) -> tuple[int, int]:
        dim = _parsed(entry)
        scale = dim.coefficient(Dim.symbol(unknown[0]))
        if len(dim.symbols()) != 1 or scale < 1 or dim != Dim.symbol(unknown[0]) * scale + dim.constant_term:
            raise UnsupportedFormatError(f"the program's symbol {unknown[0]} cannot be found from the input size {entry!r}")
        return scale, dim.constant_term

    def made_sizes(self) -> dict[ir.Value, HostValue]:
        """The symbols that ops of @main bind to what kernels compute. An upper bound of theirs (`most`) may name those before them.

        An equality that holds a symbol is solved for the one declared last: so none of an input becomes one of a kernel.
        """
        found: dict[ir.Value, HostValue] = {}
        for op in all_ops(main_block(self.env.module)):
            if op.name not in BINDING:
                continue
            name = string_attr(op, "symbol")
            bounds = self.bounds.get(name, _Bounds(None, None, 1))
            size = self.env.add_base(f"S{len(self.env.sources)}", KERNEL, bounds.low, bounds.high, bounds.divisor)
            if name in self.meaning:
                raise UnsupportedFormatError(f"two ops bind the program's symbol {name}")
            if "most" in op.attributes:
                most = _parsed(string_attr(op, "most"))
                unknown = [each for each in most.symbols() if each not in self.meaning]
                if unknown:
                    raise UnsupportedFormatError(f"the bound {most} of the size {name} holds {unknown[0]}, which nothing has bound before")
                self.env.assume_ge(self.env.simplify(most.replace(self.meaning)), size)
            self.meaning[name] = size
            found[op.results[0]] = scalar(size)
        return found

    def conditions(self) -> list[Requirement]:
        """The module attribute `disc.conditions` in base symbols: under these conditions the program was made."""
        attributes = self.env.module.operation.attributes
        given = [ir.DictAttr(each) for each in ir.ArrayAttr(attributes["disc.conditions"])] if "disc.conditions" in attributes else []
        texts = [{entry.name: ir.StringAttr(entry.attr).value for entry in each} for each in given]
        try:
            found = [
                Requirement(parse_condition(each["expr"]).replace(self.meaning), each.get("why", ""), each.get("message", ""))
                for each in texts
            ]
        except (KeyError, ValueError) as error:
            raise UnsupportedFormatError(f"a condition of the program cannot be read: {error}") from error
        for requirement in found:  # a program may come from a file, or from a client
            unknown = [name for name in requirement.condition.symbols() if name not in self.env.sources]
            if unknown:
                raise UnsupportedFormatError(f"a condition of the program, {requirement.text()}, holds {unknown[0]}, which nothing binds")
        return found

    def sizes(self, entries: list[list[Entry]]) -> InputSizes:
        found = InputSizes()
        for argument, row in zip(self.arguments, entries, strict=True):
            dims = tuple(self._dim(entry) for entry in row)
            if isinstance(argument.type, ir.RankedTensorType):
                found.dims[argument] = dims
            else:
                found.values[argument] = scalar(dims[0])
        return found

    def _dim(self, entry: Entry) -> Dim:
        if isinstance(entry, int):
            return Dim.of(entry)
        assert entry is not None, "every entry without a name was given one"
        if entry in self.meaning:
            return self.meaning[entry]
        return self.env.simplify(_parsed(entry).replace(self.meaning))


def _entry(attribute: ir.Attribute) -> str | int:
    """A dim expression; a constant one as an integer."""
    if isinstance(attribute, ir.IntegerAttr):
        return attribute.value
    dim = _parsed(ir.StringAttr(attribute).value)
    return dim.const if dim.is_const else str(dim)


def _read_bounds(module: ir.Module) -> dict[str, _Bounds]:
    """The module attribute `disc.symbols`."""
    attributes = module.operation.attributes
    if "disc.symbols" not in attributes:
        return {}
    found: dict[str, _Bounds] = {}
    for entry in ir.DictAttr(attributes["disc.symbols"]):
        values = {item.name: ir.IntegerAttr(item.attr).value for item in ir.DictAttr(entry.attr)}
        found[entry.name] = _Bounds(values.get("min"), values.get("max"), values.get("divisor", 1))
    return found


def _parsed(entry: str) -> Dim:
    """The size of a text, which may come from a file. Raises UnsupportedFormatError."""
    try:
        return parse_dim(entry)
    except ValueError as error:
        raise UnsupportedFormatError(f"a size of the program cannot be read: {error}") from error
