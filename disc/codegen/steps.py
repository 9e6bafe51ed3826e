"""The steps of a host program, of the functions of a module of stage `fused`.

A function that is the body of control flow becomes a block wherever it runs. A loop runs its condition before it and at the end of its
body, each time with a kernel that writes an i64, which the host reads; one that runs a known number of times is counted by the host:

    launch condition(%a) -> %c
    read N0 = %c
    while N1 != 0 with N1 = N0 -> N2, %b = %a -> %r {
      launch body(%b) -> %n
      launch condition(%n) -> %d
      read N3 = %d
      return %n, N3
    }
    while N4 < S0 with N4 = 0 -> N5, %b = %a -> %r {
      launch body(%b) -> %n
      return %n, N4 + 1
    }
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from disc.codegen.host.steps import Block, Carried, CarriedSize, If, Launch, Read, Step, Value, While, weight_name
from disc.ir.control import CASE, WHILE
from disc.ir.graph import Body, Node
from disc.ir.op_table import BINDING
from disc.shapes import Condition, Dim, ShapeEnv

ValueOf = Callable[[Node], Value]
ZERO = Dim.of(0)


@dataclass(eq=False)
class StepMaker:
    """Makes the steps of one program.

    functions: by name, `main` among them; launch: makes that of a fusion, None for one that another fusion's kernel computes; env: gets
    the symbols that steps bind; read_weight: is told each weight that a step other than a launch reads; read_size: makes the step that
    binds a symbol of the program to a value.
    """

    functions: Mapping[str, Body]
    launch: Callable[[Node, ValueOf], Launch | None]
    env: ShapeEnv
    read_weight: Callable[[Node], None]
    read_size: Callable[[str, Value], Read]
    _blocks: int = 0  # made so far
    _symbols: int = 0  # made so far

    def block(self, name: str, arguments: Sequence[Value]) -> Block:
        """A function as a block, for these arguments."""
        body = self.functions[name]
        own = f"{self._blocks}." if self._blocks else ""  # a function that runs at two places has its values at each
        self._blocks += 1
        values = dict(zip(body.arguments, arguments, strict=True))

        def value_of(node: Node) -> Value:
            if node.op == "disc.weight":
                return weight_value(node)
            return values.setdefault(node, Value(f"{own}{node.id}", node.element, node.dims))

        steps: list[Step] = []
        for node in body.nodes:
            if node.result:
                continue
            if node.op == "kernel.fusion":
                launch = self.launch(node, value_of)
                steps += [] if launch is None else [launch]
            elif node.op in BINDING:
                steps.append(self.read_size(str(node.attrs["symbol"]), *self._given(node.operands, value_of)))
            elif node.op == WHILE:
                steps += self._while(node, value_of)
            elif node.op == CASE:
                steps += self._case(node, value_of)
        return Block(tuple(steps), self._given(body.yields, value_of))

    def _given(self, nodes: Sequence[Node], value_of: ValueOf) -> tuple[Value, ...]:
        for node in nodes:
            if node.op == "disc.weight":
                self.read_weight(node)
        return tuple(map(value_of, nodes))

    def _while(self, node: Node, value_of: ValueOf) -> list[Step]:
        operands = self._given(node.operands, value_of)
        count = node.integer("carried")
        initial, captured = operands[:count], operands[count:]
        results = [value_of(each) for each in node.siblings]
        arguments = [Value(f"carried {result.name}", result.element, result.dims) for result in results]
        carried = tuple(Carried(*each) for each in zip(arguments, initial, results, strict=True))
        body = str(node.attrs["body"]).removeprefix("@")
        if "trips" in node.attrs:
            again, last = self._symbol(), self._symbol()
            inner = self.block(body, (*arguments, *captured))
            block = Block(inner.steps, inner.values, (Dim.symbol(again) + 1,))
            trips = self.env.simplify(self.env.parse(str(node.attrs["trips"])))
            return [While(Condition.of("<", Dim.symbol(again), trips), carried, (CarriedSize(again, ZERO, last),), block)]
        condition = str(node.attrs["condition"]).removeprefix("@")
        first, last, again, after = (self._symbol() for _ in range(4))
        before = self._read(condition, operands, first)
        inner = self.block(body, (*arguments, *captured))
        steps = (*inner.steps, *self._read(condition, (*inner.values, *captured), after))
        size = CarriedSize(again, Dim.symbol(first), last)
        block = Block(steps, inner.values, (Dim.symbol(after),))
        return [*before, While(Condition.of("!=", Dim.symbol(again), ZERO), carried, (size,), block)]

    def _read(self, condition: str, arguments: Sequence[Value], symbol: str) -> list[Step]:
        block = self.block(condition, arguments)
        return [*block.steps, Read(symbol, block.values[0])]

    def _case(self, node: Node, value_of: ValueOf) -> list[Step]:
        names = run_by(node)
        index, *captured = self._given(node.operands, value_of)
        symbol = self._symbol()
        made = tuple(value_of(each) for each in node.siblings)
        names = names * 2 if len(names) == 1 else names
        return [Read(symbol, index), *self._branches(names, 0, Dim.symbol(symbol), captured, made)]

    def _branches(
        self, names: Sequence[str], number: int, index: Dim, captured: Sequence[Value], made: tuple[Value, ...]
    ) -> Sequence[Step]:
        """The steps that write what the branch of the index makes, of those from `number` on."""
        then = self.block(names[number], captured)
        if number == len(names) - 2:
            otherwise = self.block(names[-1], captured)
        else:
            inner = tuple(Value(f"{each.name}.{number}", each.element, each.dims) for each in made)
            otherwise = Block(tuple(self._branches(names, number + 1, index, captured, inner)), inner)
        return [If(Condition.of("==", index, Dim.of(number)), then, otherwise, made)]

    def _symbol(self) -> str:
        """One that a step binds, to any number."""
        name = f"N{self._symbols}"
        self._symbols += 1
        self.env.symbol(name, None, None)
        return name


def weight_value(node: Node) -> Value:
    """What a weight is in memory."""
    return Value(weight_name(str(node.attrs["name"])), node.element, node.dims)


def run_by(node: Node) -> list[str]:
    """The functions that an op of control flow runs."""
    names = [str(node.attrs[name]) for name in ("condition", "body") if node.op == WHILE and name in node.attrs]
    return [name.removeprefix("@") for name in (*names, *(node.texts("branches") if node.op == CASE else ()))]
