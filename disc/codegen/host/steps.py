"""The steps of host programs: functions of blocks of steps, over values in memory and symbols for sizes.

    function disc_entry(%0: f32[S0]) {
      launch count(%0) -> %1: i64[]
      read N0 = %1
      launch gather(%0, %1) -> %2: f32[N0]
      return %2
    }

A value is written by one step, and its name says which memory it means from there on: a step may put a result into the memory of a value
that nothing reads afterwards (`-> %3 in %2`). A symbol is bound once: by an input, by a step (a size that a kernel wrote, the sizes that a
loop carries, what a branch or a call gives back), or as a parameter of a function. What is in a block is seen in it and in the blocks
within, and nowhere else.

Everything here is frozen, and `str` prints it. Where values lie in memory is planned in `codegen/host/memory.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from disc.codegen.plan.kernel import Kernel
from disc.shapes import Condition, Dim

INDENT = "  "
ZERO = Dim.of(0)


@dataclass(frozen=True)
class Value:
    """A row-major tensor in memory. name: one of its own in the program; element: MLIR element type text ("f32", "ui8")."""

    name: str
    element: str
    dims: tuple[Dim, ...]

    @property
    def ref(self) -> str:
        """How steps name it."""
        return f"%{self.name}"

    def __str__(self) -> str:
        return f"{self.ref}: {self.element}[{', '.join(map(str, self.dims))}]"


def weight_name(name: str) -> str:
    """The name of the value that is a weight."""
    return f"weight {name}"


class Mode(Enum):
    """What a function may do with the memory of a parameter: read it; keep a result there, the parameter being gone afterwards; or change
    it in place for the calls to come."""

    READ = ""
    DONATED = "donated"
    STATE = "state"


@dataclass(frozen=True)
class Parameter:
    """One argument of a function."""

    value: Value
    mode: Mode = Mode.READ

    def __str__(self) -> str:
        return f"{self.value} {self.mode.value}".rstrip()


class Step:
    """What a block does next. `results` are written into memory of their own, but those that `reuses` pairs with a value whose memory they
    take; `reads` are the values that it needs, without what its blocks read of the blocks around; `spoils` are those in whose memory it
    puts something else; `binds` are new symbols."""

    __slots__ = ()

    @property
    def results(self) -> tuple[Value, ...]:
        return ()

    @property
    def reads(self) -> tuple[Value, ...]:
        return ()

    @property
    def reuses(self) -> tuple[tuple[Value, Value], ...]:
        return ()

    @property
    def spoils(self) -> tuple[Value, ...]:
        return tuple(operand for _, operand in self.reuses)

    @property
    def binds(self) -> tuple[str, ...]:
        return ()

    @property
    def blocks(self) -> tuple[Block, ...]:
        return ()

    def lines(self) -> list[str]:
        """The text, as lines."""
        raise NotImplementedError

    def _given(self) -> str:
        places = dict(self.reuses)
        return ", ".join(f"{each} in {places[each].ref}" if each in places else str(each) for each in self.results)


@dataclass(frozen=True, eq=False)
class Launch(Step):
    """One kernel call. `weights` maps an operand position to a weight slot, `names` to its name; counters: the number of the counter of
    each version. over: pairs of a result and an operand in whose memory it may lie as well, where nothing reads that afterwards."""

    kernel: Kernel
    name: str
    inputs: tuple[Value, ...]
    made: tuple[Value, ...]
    weights: dict[int, int]
    counters: tuple[int, ...]
    ties: tuple[tuple[Value, Value], ...] = ()
    names: Mapping[int, str] = field(default_factory=dict[int, str])
    over: tuple[tuple[Value, Value], ...] = ()

    @property
    def results(self) -> tuple[Value, ...]:
        return self.made

    @property
    def reads(self) -> tuple[Value, ...]:
        return tuple(value for number, value in enumerate(self.inputs) if number not in self.weights)

    @property
    def reuses(self) -> tuple[tuple[Value, Value], ...]:
        return self.ties

    def lines(self) -> list[str]:
        operands = (f"weight {self.weights[number]}" if number in self.weights else each.ref for number, each in enumerate(self.inputs))
        return [f"launch {self.name}({', '.join(operands)}) -> {self._given()}"]


@dataclass(frozen=True, eq=False)
class Allocate(Step):
    """Memory that nothing has been written to."""

    made: Value

    @property
    def results(self) -> tuple[Value, ...]:
        return (self.made,)

    def lines(self) -> list[str]:
        return [f"allocate {self.made}"]


@dataclass(frozen=True, eq=False)
class Fill(Step):
    """Every byte is `byte`, 0 to 255."""

    made: Value
    byte: int = 0

    @property
    def results(self) -> tuple[Value, ...]:
        return (self.made,)

    def lines(self) -> list[str]:
        return [f"fill {self.made} with {self.byte}"]


@dataclass(frozen=True, eq=False)
class Copy(Step):
    """The elements of `source`, alone, or written from element `start` on over `into`, whose memory the result takes."""

    made: Value
    source: Value
    into: Value | None = None
    start: Dim = ZERO

    @property
    def results(self) -> tuple[Value, ...]:
        return (self.made,)

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.source,) if self.into is None else (self.source, self.into)

    @property
    def reuses(self) -> tuple[tuple[Value, Value], ...]:
        return () if self.into is None else ((self.made, self.into),)

    def lines(self) -> list[str]:
        place = f" at {self.start}" if self.into is not None else ""
        return [f"copy {self.source.ref}{place} -> {self._given()}"]


@dataclass(frozen=True, eq=False)
class Read(Step):
    """Binds a symbol to the i64 at the start of `value`, which a kernel wrote. What is declared of the symbol is checked; checks: the
    numbers of the program's checks that are made here, too."""

    symbol: str
    value: Value
    checks: tuple[int, ...] = ()

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.value,)

    @property
    def binds(self) -> tuple[str, ...]:
        return (self.symbol,)

    def lines(self) -> list[str]:
        return [f"read {self.symbol} = {self.value.ref}"]


@dataclass(frozen=True, eq=False)
class Call(Step):
    """Runs a function of the program. sizes: of its symbols; made: what it returns, `symbols` the sizes that it returns.

    An argument for a donated parameter is gone afterwards; a result that lies there takes its memory.
    """

    function: Function
    arguments: tuple[Value, ...]
    sizes: tuple[Dim, ...]
    made: tuple[Value, ...]
    symbols: tuple[str, ...] = ()

    @property
    def results(self) -> tuple[Value, ...]:
        return self.made

    @property
    def reads(self) -> tuple[Value, ...]:
        return self.arguments

    @property
    def reuses(self) -> tuple[tuple[Value, Value], ...]:
        ties = self.function.ties
        return tuple((result, self.arguments[ties[number]]) for number, result in enumerate(self.made) if number in ties)

    @property
    def spoils(self) -> tuple[Value, ...]:
        given = zip(self.arguments, self.function.parameters, strict=True)
        return tuple(argument for argument, parameter in given if parameter.mode is Mode.DONATED)

    @property
    def binds(self) -> tuple[str, ...]:
        return self.symbols

    def lines(self) -> list[str]:
        sizes = f"[{', '.join(map(str, self.sizes))}]" if self.sizes else ""
        given = ", ".join([*([self._given()] if self.made else []), *self.symbols])
        return [f"call {self.function.name}{sizes}({', '.join(each.ref for each in self.arguments)}) -> {given}"]


@dataclass(frozen=True, eq=False)
class If(Step):
    """One of two blocks; made: what they return, `symbols` the sizes that they return."""

    condition: Condition
    then: Block
    otherwise: Block
    made: tuple[Value, ...] = ()
    symbols: tuple[str, ...] = ()

    @property
    def results(self) -> tuple[Value, ...]:
        return self.made

    @property
    def reuses(self) -> tuple[tuple[Value, Value], ...]:
        """Results that lie in the memory of one value of the blocks around, whichever branch is taken."""
        found: list[tuple[Value, Value]] = []
        roots = [roots_of(block) for block in self.blocks]
        own = {result for block in self.blocks for step in block.steps for result in step.results if result not in dict(step.reuses)}
        for result, *returned in zip(self.made, self.then.values, self.otherwise.values, strict=True):
            places = {places.get(value, value) for places, value in zip(roots, returned, strict=True)}
            found += [(result, place) for place in places if len(places) == 1 and place not in own]
        return tuple(found)

    @property
    def spoils(self) -> tuple[Value, ...]:
        return ()

    @property
    def binds(self) -> tuple[str, ...]:
        return self.symbols

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.then, self.otherwise)

    def lines(self) -> list[str]:
        given = ", ".join([*([self._given()] if self.made else []), *self.symbols])
        head = f"if {self.condition}" + (f" -> {given}" if given else "")
        return [f"{head} {{", *_indented(self.then), "} else {", *_indented(self.otherwise), "}"]


@dataclass(frozen=True)
class Carried:
    """A value that a loop carries: `argument` stands for it in the body, which returns the next; `result` is the last."""

    argument: Value
    initial: Value
    result: Value

    def __str__(self) -> str:
        return f"{self.argument} = {self.initial.ref} -> {self.result}"


@dataclass(frozen=True)
class CarriedSize:
    """A size that a loop carries: `symbol` stands for it in the condition and the body, which returns the next; `result` is the last."""

    symbol: str
    initial: Dim
    result: str

    def __str__(self) -> str:
        return f"{self.symbol} = {self.initial} -> {self.result}"


@dataclass(frozen=True, eq=False)
class While(Step):
    """Runs the body as long as the condition, on sizes, holds. The body returns the next of every value and size, in order."""

    condition: Condition
    values: tuple[Carried, ...]
    sizes: tuple[CarriedSize, ...]
    body: Block

    @property
    def results(self) -> tuple[Value, ...]:
        return tuple(each.result for each in self.values)

    @property
    def reads(self) -> tuple[Value, ...]:
        return tuple(each.initial for each in self.values)

    @property
    def binds(self) -> tuple[str, ...]:
        return tuple(each.result for each in self.sizes)

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.body,)

    def lines(self) -> list[str]:
        carried = ", ".join(map(str, (*self.sizes, *self.values)))
        return [f"while {self.condition} with {carried} {{", *_indented(self.body), "}"]


@dataclass(frozen=True, eq=False)
class Block:
    """Steps in order, and the values and sizes that it returns: to the caller of the function, the step around it, the next iteration."""

    steps: tuple[Step, ...]
    values: tuple[Value, ...] = ()
    sizes: tuple[Dim, ...] = ()

    def lines(self) -> list[str]:
        """The text, as lines."""
        returned = ", ".join([*(each.ref for each in self.values), *map(str, self.sizes)])
        return [*(line for step in self.steps for line in step.lines()), f"return {returned}".rstrip()]

    def walk(self) -> Iterator[Step]:
        """All steps, also those of the blocks within, in the order of the text."""
        for step in self.steps:
            yield step
            for block in step.blocks:
                yield from block.walk()


@dataclass(frozen=True, eq=False)
class Function:
    """symbols: those that the caller binds; of the entry they come from its inputs. results: what the block's values are to a caller, in
    terms of `symbols`, and of `returned`, which stand for the sizes that the block returns; the entry has neither."""

    name: str
    parameters: tuple[Parameter, ...]
    block: Block
    symbols: tuple[str, ...] = ()
    results: tuple[Value, ...] = ()
    returned: tuple[str, ...] = ()

    @property
    def ties(self) -> dict[int, int]:
        """Number of a returned value → number of the donated parameter whose memory it lies in."""
        roots = roots_of(self.block)
        donated = {each.value: number for number, each in enumerate(self.parameters) if each.mode is Mode.DONATED}
        found = ((number, donated.get(roots.get(value, value))) for number, value in enumerate(self.block.values))
        return {number: parameter for number, parameter in found if parameter is not None}

    def __str__(self) -> str:
        symbols = f"[{', '.join(self.symbols)}]" if self.symbols else ""
        given = ", ".join([*map(str, self.results), *self.returned])
        head = f"function {self.name}{symbols}({', '.join(map(str, self.parameters))})" + (f" -> {given} {{" if given else " {")
        return "\n".join([head, *_indented(self.block), "}"])


def roots_of(block: Block) -> dict[Value, Value]:
    """The values of a block that lie in the memory of another → the value whose memory it is; not those of the blocks within."""
    roots: dict[Value, Value] = {}
    for step in block.steps:
        for result, operand in step.reuses:
            roots[result] = roots.get(operand, operand)
    return roots


def _indented(block: Block) -> list[str]:
    return [INDENT + line for line in block.lines()]
