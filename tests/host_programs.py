"""Host programs written by hand, for the tests of what `codegen/host` makes of them: a writer, kernels, and an evaluation in Python.

All elements are i64. A kernel is a small MLIR function, and a Python function that says what it computes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from disc.artifact.manifest import InputRecord, Manifest, OutputRecord
from disc.codegen.backend import backend_of
from disc.codegen.host.entry import ENTRY, emit_host
from disc.codegen.host.program import Program, Source
from disc.codegen.host.steps import (
    Allocate,
    Block,
    Call,
    Carried,
    CarriedSize,
    Copy,
    Fill,
    Function,
    If,
    Launch,
    Mode,
    Parameter,
    Read,
    Step,
    Value,
    While,
)
from disc.codegen.mlir.builder import Builder, Variable
from disc.codegen.plan.kernel import Kernel, Version
from disc.codegen.plan.listing import Listing, Means
from disc.ral.executable import Executable
from disc.shapes import Condition, Dim, ShapeEnv
from disc.targets.x86 import read_target

TARGET = "x86-64-v3"
Array = npt.NDArray[np.int64]
Sizes = Sequence[Dim]
Handed = tuple[Sequence[Value], Sequence[Dim]]
ONE = Dim.of(1)

# mix: result[i] = salt + i + the sum over inputs j of (j + 2) * input_j[(i + 1) % n_j], of those with elements: a task reads elements of
# other tasks. over: the same, but for input 0, of which a task reads its own element alone, so that the result may lie there.
# count: how many elements are multiples of 3. pick: these elements, in order. total: the sum of all. put: input 1 at position input 2[0].


@dataclass(frozen=True)
class Kind:
    """A kernel: what it computes of the inputs and the dims of the result; `parallel`: its tasks are elements."""

    name: str
    compute: Callable[[Sequence[Array], tuple[int, ...]], Array]
    parallel: bool


def _mix(salt: int, over: bool = False) -> Kind:
    def compute(inputs: Sequence[Array], dims: tuple[int, ...]) -> Array:
        count = int(np.prod(dims, dtype=np.int64))
        result = np.arange(count, dtype=np.int64) + salt
        for number, each in enumerate(inputs):
            if each.size:
                places = np.arange(count) + (0 if over and number == 0 else 1)
                result = result + (number + 2) * each.reshape(-1)[places % each.size]
        return (result % 1_000_003).reshape(dims)

    return Kind(f"{'over' if over else 'mix'}{salt}", compute, True)


def _put(inputs: Sequence[Array], dims: tuple[int, ...]) -> Array:
    result = inputs[0].copy().reshape(-1)
    rows = inputs[1].reshape(-1)
    place = int(inputs[2].reshape(-1)[0])
    result[place * rows.size : (place + 1) * rows.size] = rows
    return result.reshape(dims)


MIXES = [_mix(salt) for salt in range(8)]
OVERS = [_mix(salt, over=True) for salt in range(8)]
COUNT = Kind("count", lambda inputs, dims: np.array((inputs[0] % 3 == 0).sum()).reshape(dims), False)
PICK = Kind("pick", lambda inputs, dims: inputs[0].reshape(-1)[inputs[0].reshape(-1) % 3 == 0].reshape(dims), False)
TOTAL = Kind("total", lambda inputs, dims: np.array(inputs[0].sum() % 1_000_003).reshape(dims), False)
PUT = Kind("put", _put, False)


class _Text:
    """The MLIR text of a kernel."""

    def __init__(self, name: str, kind: Kind, inputs: Sequence[Value], result: Value, symbols: Sequence[str]) -> None:
        self.b = Builder(1)
        self.name, self.kind, self.inputs, self.result = name, kind, inputs, result
        for number, symbol in enumerate(symbols, len(inputs) + 1):
            self.b.variables[symbol] = Variable(symbol, self._argument(number, "i64"), self.b.root, signed=True)

    def _argument(self, number: int, type_: str) -> str:
        slot = self.b.op(f"llvm.getelementptr %args[{number}] : (!llvm.ptr) -> !llvm.ptr, i64")
        return self.b.op(f"llvm.load {slot} : !llvm.ptr -> {type_}")

    def _count(self, value: Value) -> str:
        size = ONE
        for dim in value.dims:
            size = size * dim
        return self.b.scalar(size)

    def _at(self, pointer: str, index: str) -> str:
        return self.b.op(f"llvm.getelementptr {pointer}[{index}] : (!llvm.ptr, i64) -> !llvm.ptr, i64")

    def _load(self, pointer: str, index: str) -> str:
        return self.b.op(f"llvm.load {self._at(pointer, index)} : !llvm.ptr -> i64")

    def _store(self, value: str, pointer: str, index: str) -> None:
        self.b.statement(f"llvm.store {value}, {self._at(pointer, index)} : i64, !llvm.ptr")

    def write(self) -> str:
        b = self.b
        self.pointers = [self._argument(number, "!llvm.ptr") for number in range(len(self.inputs) + 1)]
        body = (
            self._mix
            if self.kind.parallel
            else {"count": self._scan, "pick": self._scan, "total": self._scan, "put": self._put}[self.kind.name]
        )
        body()
        head = f"func.func @{self.name}(%args: !llvm.ptr, %begin: i64, %end: i64, %scratch: !llvm.ptr) {{"
        return "\n".join([head, *b.globals, *b.root.lines, "return", "}"]) + "\n"

    def _mix(self) -> None:
        b = self.b
        counts = [self._count(each) for each in self.inputs]
        with b.loop("%begin", "%end", b.index(1)) as loop:
            value = b.op(f"arith.addi {loop.index}, {b.index(int(self.kind.name[-1]))} : i64")
            after = b.op(f"arith.addi {loop.index}, {b.index(1)} : i64")
            for number, count in enumerate(counts):
                some = b.op(f"arith.cmpi sgt, {count}, {b.index(0)} : i64")
                divisor = b.op(f"arith.maxsi {count}, {b.index(1)} : i64")
                own = number == 0 and self.kind.name.startswith("over")
                place = b.op(f"arith.remui {loop.index if own else after}, {divisor} : i64")
                pointer = b.op(f"arith.select {some}, {self.pointers[number]}, %args : i1, !llvm.ptr")
                read = b.op(f"arith.muli {self._load(pointer, place)}, {b.index(number + 2)} : i64")
                value = b.op(f"arith.addi {value}, {b.op(f'arith.select {some}, {read}, {b.index(0)} : i64')} : i64")
            self._store(b.op(f"arith.remui {value}, {b.index(1_000_003)} : i64"), self.pointers[-1], loop.index)

    def _scan(self) -> None:
        b, kind = self.b, self.kind.name
        zero = b.index(0)
        with b.loop(zero, self._count(self.inputs[0]), b.index(1), [(zero, "i64")]) as loop:
            value = self._load(self.pointers[0], loop.index)
            rest = b.op(f"arith.remsi {value}, {b.index(3)} : i64")
            good = b.op(f"arith.cmpi eq, {rest}, {zero} : i64")
            if kind == "pick":
                with b.when(good):
                    self._store(value, self.pointers[-1], loop.carried[0])
            added = value if kind == "total" else b.op(f"arith.select {good}, {b.index(1)}, {zero} : i64")
            total = b.op(f"arith.addi {loop.carried[0]}, {added} : i64")
            loop.yields = [b.op(f"arith.remui {total}, {b.index(1_000_003)} : i64") if kind == "total" else total]
        if kind != "pick":
            self._store(loop.results[0], self.pointers[-1], zero)

    def _put(self) -> None:
        b = self.b
        count = self._count(self.inputs[1])
        first = b.op(f"arith.muli {self._load(self.pointers[2], b.index(0))}, {count} : i64")
        with b.loop(b.index(0), count, b.index(1)) as loop:
            self._store(self._load(self.pointers[1], loop.index), self.pointers[-1], b.op(f"arith.addi {first}, {loop.index} : i64"))


@dataclass(eq=False)
class Writer:
    """Writes a program, step by step; `finish` ends it. kinds: what each kernel computes, by its name."""

    env: ShapeEnv = field(default_factory=ShapeEnv)
    kinds: dict[str, Kind] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = 0
        self._sizes = 0
        self._parameters: list[Parameter] = []
        self._sources: dict[str, Source] = {}
        self._functions: list[Function] = []
        self._steps: list[list[Step]] = [[]]
        self._counters = 0

    # --- values and symbols ---------------------------------------------------------------------------------------------

    def value(self, *dims: Dim | int) -> Value:
        self._names += 1
        return Value(str(self._names), "i64", tuple(map(Dim.of, dims)))

    def size(self, low: int = 0, high: int | None = None, divisor: int = 1) -> Dim:
        """A new symbol."""
        self._sizes += 1
        return self.env.symbol(f"N{self._sizes}", lo=low, hi=high, divisor=divisor)

    def input(self, *dims: Dim | int, mode: Mode = Mode.READ) -> Value:
        """An input; a dim that is a symbol not yet bound gets its value here."""
        value = self.value(*dims)
        for axis, dim in enumerate(value.dims):
            if not dim.is_const and str(dim) not in self._sources:
                self._sources[str(dim)] = Source(len(self._parameters), axis)
        self._parameters.append(Parameter(value, mode))
        return value

    # --- steps ----------------------------------------------------------------------------------------------------------

    def add(self, step: Step) -> None:
        self._steps[-1].append(step)

    def current(self) -> list[Step]:
        """The steps of the block that is written."""
        return self._steps[-1]

    def launch(
        self, kind: Kind, *inputs: Value, dims: Sequence[Dim | int] = (), over: Value | None = None, may_be_over: Value | None = None
    ) -> Value:
        """over: the input in whose memory the result lies, may_be_over: the one in whose memory it may; of a mix, the first."""
        kind = OVERS[MIXES.index(kind)] if (over or may_be_over) is not None and kind in MIXES else kind
        result = self.value(*dims)
        name = f"{kind.name}_{len(self.kinds)}"
        names = {symbol for value in (*inputs, result) for dim in value.dims for symbol in dim.symbols()}
        symbols = tuple(sorted(names))
        self.texts[name] = _Text(name, kind, inputs, result, symbols).write()
        self.kinds[name] = kind
        tasks = ONE
        for dim in result.dims if kind.parallel else ():
            tasks = tasks * dim
        kernel = Kernel(name, "test", (Version(name),), symbols, tasks, Dim.of(50), Dim.of(0), self.texts[name], (), ())
        ties = () if over is None else ((result, over),)
        able = () if may_be_over is None else ((result, may_be_over),)
        self.add(Launch(kernel, name, inputs, (result,), {}, (self._counters,), ties, over=able))
        self._counters += 1
        return result

    def read(self, value: Value, low: int = 0, high: int | None = None) -> Dim:
        symbol = self.size(low, high)
        self.add(Read(str(symbol), value))
        return symbol

    def fill(self, byte: int, *dims: Dim | int) -> Value:
        result = self.value(*dims)
        self.add(Fill(result, byte))
        return result

    def allocate(self, *dims: Dim | int) -> Value:
        result = self.value(*dims)
        self.add(Allocate(result))
        return result

    def copy(self, source: Value, into: Value | None = None, start: Dim | int = 0) -> Value:
        result = self.value(*(source if into is None else into).dims)
        self.add(Copy(result, source, into, Dim.of(start)))
        return result

    def block(self, write: Callable[[], Handed]) -> Block:
        self._steps.append([])
        values, sizes = write()
        return Block(tuple(self._steps.pop()), tuple(values), tuple(map(Dim.of, sizes)))

    def branch(
        self,
        condition: Condition,
        then: Callable[[], Handed],
        otherwise: Callable[[], Handed],
        made: Callable[[Sizes], Sequence[Sequence[Dim | int]]] = lambda _: (),
        sizes: int = 0,
    ) -> tuple[tuple[Value, ...], tuple[Dim, ...]]:
        """made: the dims of the results, by the sizes that the branches return."""
        blocks = self.block(then), self.block(otherwise)
        bound = tuple(self.size() for _ in range(sizes))
        results = tuple(self.value(*dims) for dims in made(bound))
        self.add(If(condition, *blocks, results, tuple(map(str, bound))))
        return results, bound

    def loop(
        self,
        sizes: Sequence[Dim | int],
        values: Sequence[Value],
        condition: Callable[[Sizes], Condition],
        body: Callable[[Sizes, Sequence[Value]], Handed],
        dims: Callable[[Sizes], Sequence[Sequence[Dim | int]]] | None = None,
    ) -> tuple[tuple[Value, ...], tuple[Dim, ...]]:
        """dims: of the carried values, by the carried sizes; without, they stay as they begin."""
        of = dims or (lambda _: [value.dims for value in values])
        inner, last = tuple(self.size() for _ in sizes), tuple(self.size() for _ in sizes)
        arguments = [self.value(*each) for each in of(inner)]
        block = self.block(lambda: body(inner, arguments))
        results = tuple(self.value(*each) for each in of(last))
        carried = [Carried(*each) for each in zip(arguments, values, results, strict=True)]
        named = [CarriedSize(str(symbol), Dim.of(first), str(after)) for symbol, first, after in zip(inner, sizes, last, strict=True)]
        self.add(While(condition(inner), tuple(carried), tuple(named), block))
        return results, last

    def function(
        self,
        name: str,
        sizes: int,
        parameters: Callable[[Sizes], Sequence[tuple[Sequence[Dim | int], Mode]]],
        body: Callable[[Sizes, Sequence[Value]], Handed],
        made: Callable[[Sizes, Sizes], Sequence[Sequence[Dim | int]]],
        returned: int = 0,
    ) -> Function:
        own = tuple(self.size() for _ in range(sizes))
        values = [Parameter(self.value(*dims), mode) for dims, mode in parameters(own)]
        block = self.block(lambda: body(own, [each.value for each in values]))
        bound = tuple(self.size() for _ in range(returned))
        results = tuple(self.value(*dims) for dims in made(own, bound))
        function = Function(name, tuple(values), block, tuple(map(str, own)), results, tuple(map(str, bound)))
        self._functions.append(function)
        return function

    def call(
        self,
        function: Function,
        arguments: Sequence[Value],
        sizes: Sequence[Dim | int],
        made: Callable[[Sizes], Sequence[Sequence[Dim | int]]],
    ) -> tuple[tuple[Value, ...], tuple[Dim, ...]]:
        bound = tuple(self.size() for _ in function.returned)
        results = tuple(self.value(*dims) for dims in made(bound))
        self.add(Call(function, tuple(arguments), tuple(map(Dim.of, sizes)), results, tuple(map(str, bound))))
        return results, bound

    def finish(self, *values: Value) -> Written:
        """The program that returns these values."""
        entry = Function(ENTRY, tuple(self._parameters), Block(tuple(self._steps[0]), values))
        program = Program(self.env, (entry, *self._functions), self._sources, [], {}, {}, str)
        return Written(program, self.kinds, self.texts)


@dataclass(eq=False)
class Written:
    """A program with its kernels."""

    program: Program
    kinds: Mapping[str, Kind]
    texts: Mapping[str, str]

    @functools.cached_property
    def source(self) -> str:
        """The MLIR text of all."""
        return "\n".join([*self.texts.values(), emit_host(self.program)])

    @functools.cached_property
    def code(self) -> bytes:
        target = read_target(TARGET)
        return backend_of(target).assemble(Listing((), (), self.source), target, Means()).code

    def manifest(self) -> Manifest:
        """To be made after the code, which adds checks."""
        self.code  # noqa: B018
        inputs: list[InputRecord] = [
            {
                "name": f"x{number}",
                "dtype": "i64",
                "dims": [dim.const if dim.is_const else str(dim) for dim in each.value.dims],
                "written": each.mode is not Mode.READ,
                "spoiled": number in self.program.spoiled,
            }
            for number, each in enumerate(self.program.entry.parameters)
        ]
        outputs: list[OutputRecord] = [
            {"name": f"y{number}", "dtype": "i64", "rank": len(value.dims)} for number, value in enumerate(self.program.outputs)
        ]
        names = [launch.name for launch in self.program.launches]
        return {
            "compiler": "test",
            "inputs": inputs,
            "outputs": outputs,
            "single": False,
            "symbols": [],
            "checks": [{"message": check.message} for check in self.program.checks],
            "kernels": [{"name": name} for name in names],
            "counters": names,
            "options": {},
        }

    @functools.cached_property
    def executable(self) -> Executable:
        return Executable.from_parts(self.manifest(), {TARGET: self.code}, threads=2)

    def inputs(self, sizes: Sequence[int], seed: int = 0) -> list[Array]:
        """Arguments for values of the symbols of inputs, in order; one with a single element is 0."""
        named = dict(zip(self.program.sources, sizes, strict=True))
        found: list[Array] = []
        for number, value in enumerate(self.program.arguments):
            shape = tuple(dim.evaluate(named) for dim in value.dims)
            elements = (np.arange(np.prod(shape, dtype=np.int64), dtype=np.int64) + number + seed) * 7 % 11
            found.append(elements.reshape(shape) * (value.dims != (ONE,)))
        return found

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """What compiled code returns; results in donated inputs, too. Inputs that may be written to are changed."""
        given = self.executable(*inputs)
        outputs = iter(given if isinstance(given, tuple) else (given,))
        ties = self.program.entry.ties
        count = len(self.program.entry.block.values)
        return [inputs[ties[number]] if number in ties else np.asarray(next(outputs)) for number in range(count)]

    def evaluate(self, inputs: Sequence[Array]) -> list[Array]:
        """What it returns, by Python."""
        sizes = {name: inputs[source.argument].shape[source.dim or 0] for name, source in self.program.sources.items()}
        values = dict(zip(self.program.arguments, inputs, strict=True))
        returned, _ = _Evaluation(self.kinds).block(self.program.entry.block, values, sizes)
        return returned


class _Evaluation:
    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self.kinds = kinds

    def block(self, block: Block, values: dict[Value, Array], sizes: dict[str, int]) -> tuple[list[Array], list[int]]:
        """values, sizes: get what the block defines."""
        for step in block.steps:
            self.step(step, values, sizes)
        return [values[each] for each in block.values], [each.evaluate(sizes) for each in block.sizes]

    def inner(self, block: Block, values: Mapping[Value, Array], sizes: Mapping[str, int]) -> tuple[list[Array], list[int]]:
        return self.block(block, dict(values), dict(sizes))

    def step(self, step: Step, values: dict[Value, Array], sizes: dict[str, int]) -> None:
        def dims(value: Value) -> tuple[int, ...]:
            return tuple(dim.evaluate(sizes) for dim in value.dims)

        match step:
            case Launch():
                (result,) = step.results
                values[result] = self.kinds[step.name].compute([values[each] for each in step.inputs], dims(result))
            case Allocate(made):
                values[made] = np.full(dims(made), -1, np.int64)
            case Fill(made, byte):
                values[made] = np.frombuffer(bytes([byte]) * 8 * int(np.prod(dims(made), dtype=np.int64)), np.int64).reshape(dims(made))
            case Copy(made, source, into, start):
                whole = values[source if into is None else into].copy().reshape(-1)
                first = start.evaluate(sizes)
                whole[first : first + values[source].size] = values[source].reshape(-1)
                values[made] = whole.reshape(dims(made))
            case Read(symbol, value):
                sizes[symbol] = int(values[value].reshape(-1)[0])
            case If(condition, then, otherwise, made, symbols):
                good = any(all(each.evaluate(sizes) for each in conjunction) for conjunction in condition.alternatives)
                returned, handed = self.inner(then if good else otherwise, values, sizes)
                values.update(zip(made, returned, strict=True))
                sizes.update(zip(symbols, handed, strict=True))
            case While():
                self.loop(step, values, sizes)
            case Call(function, arguments, given, made, symbols):
                own = dict(zip((each.value for each in function.parameters), (values[each] for each in arguments), strict=True))
                returned, handed = self.block(
                    function.block, own, dict(zip(function.symbols, (each.evaluate(sizes) for each in given), strict=True))
                )
                values.update(zip(made, returned, strict=True))
                sizes.update(zip(symbols, handed, strict=True))
            case _:
                raise AssertionError(step)

    def loop(self, step: While, values: dict[Value, Array], sizes: dict[str, int]) -> None:
        carried = [values[each.initial] for each in step.values]
        counts = [each.initial.evaluate(sizes) for each in step.sizes]
        while True:
            inside = sizes | dict(zip((each.symbol for each in step.sizes), counts, strict=True))
            if not any(all(each.evaluate(inside) for each in conjunction) for conjunction in step.condition.alternatives):
                break
            named = values | dict(zip((each.argument for each in step.values), carried, strict=True))
            carried, counts = self.inner(step.body, named, inside)
        values.update(zip((each.result for each in step.values), carried, strict=True))
        sizes.update(zip((each.result for each in step.sizes), counts, strict=True))


def below(left: Dim | int, right: Dim | int) -> Condition:
    """`left < right`."""
    return Condition.of("<", Dim.of(left), Dim.of(right))
