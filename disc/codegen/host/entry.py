"""The host entry: one native function that reads dims, checks relations, plans buffers and launches kernels (paper §6.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from functools import reduce

from disc.codegen.host.abi import API_OFFSETS, FEATURES, TENSOR_BYTES, TENSOR_OFFSETS
from disc.codegen.host.buffers import LINE, Lifetime, Plan
from disc.codegen.host.guards import lower_guard
from disc.codegen.mlir.builder import Builder, Variable
from disc.codegen.plan.kernel import Choice, Kernel, Parts, Split
from disc.errors import CompilerBug
from disc.ir.graph import Node
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Atom, Comparison, Condition, Dim, FloorDiv, Max, Min, Mod, ShapeEnv, Symbol, Truth, dim_max
from disc.speculation.guards import Guard
from disc.speculation.schedules import SCHEDULE_SYMBOLS, Schedule

COST_PER_CYCLE = 4  # the runtime counts in 1/16 ns, and cores run at about 4 GHz
FAULT = "fault"  # the argument where a kernel reports an index out of range
PARTIALS = "partials"  # the argument where the functions of a split kernel hand values on
API = ("alloc", "output", "launch", "fail", "choose")  # what a program calls of ral_host_api
MOST_BYTES = 1 << 60  # of an arena: far more than there can be, far less than 64 bits hold
POINTER = 8  # bytes: of an entry of ral_host_api


def _multiplies(dim: Dim) -> bool:
    """Whether sizes are multiplied in `dim`, at any depth."""
    here = any(sum(power for _, power in product) > 1 for _, product in dim.monomials)
    return here or any(_multiplies(operand) for atom in dim.atoms() for operand in atom.operands())


@dataclass(frozen=True)
class Source:
    """Where a base symbol's value is: dim `dim` of input `argument`, or its value when `dim` is None."""

    argument: int
    dim: int | None


@dataclass(frozen=True)
class Check:
    """A condition on entry: `kind` is equal, at_least, at_most, divides, broadcasts (1 or equal) or condition; "index" is one that a
    kernel reports, "divisor" one of a size by which another is divided.

    `message` says what must hold; after a last ": " it may say what came, with {actual} and {expected}. condition: of that kind alone.
    """

    kind: str
    actual: Dim | tuple[int, int]
    expected: Dim
    message: str
    condition: Condition | None = None


@dataclass(frozen=True, eq=False)
class Launch:
    """One kernel call: its operands and results as nodes of the program; `weights` maps an operand position to a weight slot."""

    kernel: Kernel
    name: str
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]
    weights: dict[int, int]
    counters: tuple[int, ...]


@dataclass(eq=False)
class Program:
    """What the host entry does, in order. index_checks: number of a launch → number of the check of its indices; describe: sizes in
    words; plan: of the arena.

    Emitting the entry adds checks of sizes that others are divided by.
    """

    env: ShapeEnv
    arguments: tuple[Node, ...]
    sources: dict[str, Source]
    checks: list[Check]
    launches: list[Launch]
    outputs: tuple[Node, ...]
    weight_slots: dict[Node, int]
    index_checks: dict[int, int]
    describe: Callable[[Dim], str]
    plan: Plan


def lifetimes(launches: Sequence[Launch], outputs: Sequence[Node]) -> tuple[Lifetime, ...]:
    """Of the values that lie in the arena: all results of kernels but the program's own."""
    last: dict[Node, int] = {}
    for number, launch in enumerate(launches):
        for node in launch.inputs:
            last[node] = number
    returned = set(outputs)
    return tuple(
        Lifetime(node, number, last.get(node, number))
        for number, launch in enumerate(launches)
        for node in launch.results
        if node not in returned
    )


def emit_host(program: Program) -> str:
    """MLIR text of `disc_entry` (see `ral_entry` in ral.h)."""
    return _Host(program).emit()


class _HostBuilder(Builder):
    """Leaves instead of dividing by zero, which would end the process. check: emits that a size is not 0.

    checked: all that the program relies on has been checked in this call, so that what is proved from it holds.
    """

    def __init__(self, env: ShapeEnv, check: Callable[[Dim, str], None]) -> None:
        super().__init__(1)
        self._env, self._check = env, check
        self._checked: set[Dim] = set()
        self.checked = False

    def divisor(self, dim: Dim) -> str:
        value = self.scalar(dim)
        if not dim.is_const and dim not in self._checked and not (self.checked and self._env.le(1, dim) is Truth.YES):
            self._checked.add(dim)
            self._check(dim, value)
        return value


class _Host:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.b = _HostBuilder(program.env, self._check_divisor)
        self.pointers: dict[Node, str] = {}
        self.blocks = 0
        self.copies: list[tuple[str, Node]] = []
        self.tables: dict[tuple[int, ...], str] = {}
        self.estimates: dict[Atom, str] = {}

    def emit(self) -> str:
        """The whole function; every failing call leaves at once with status 1."""
        b = self.b
        self._load_api()
        self._load_inputs()
        for number, check in enumerate(tuple(self.program.checks)):
            if check.kind != "index":
                self._check(number, check)
        b.checked = True
        self._allocate()
        most = max((len(self._arguments(launch)) for launch in self.program.launches), default=1)
        args = b.op(f"llvm.alloca {b.index(max(most, 1))} x i64 : (i64) -> !llvm.ptr")
        self.features = b.op(f"llvm.alloca {b.index(len(FEATURES))} x i64 : (i64) -> !llvm.ptr")
        for number, launch in enumerate(self.program.launches):
            self._launch(number, launch, args)
        for target, node in self.copies:
            self._copy(target, node)
        ok = b.constant("arith.constant 0 : i32")
        parameters = ", ".join(f"%{name}: !llvm.ptr" for name in ("exec", "api", "inputs", "weights", "counters"))
        head = f"func.func @disc_entry({parameters}) -> i32 {{"
        failed = ["^failed:", "  %one = arith.constant 1 : i32", "  return %one : i32"]
        tables = [
            f"llvm.mlir.global internal constant @{name}(dense<[{', '.join(map(str, values))}]> : tensor<{len(values)}xi64>) "
            f": !llvm.array<{len(values)} x i64>"
            for values, name in self.tables.items()
        ]
        return "\n".join([*tables, head, *b.globals, *b.root.lines, f"return {ok} : i32", *failed, "}"]) + "\n"

    # --- pieces ---------------------------------------------------------------------------------------------------------

    def _load_api(self) -> None:
        b = self.b
        self.api: dict[str, str] = {}
        for name in API:
            slot = b.op(f"llvm.getelementptr %api[{API_OFFSETS[name] // POINTER}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
            self.api[name] = b.op(f"llvm.load {slot} : !llvm.ptr -> !llvm.ptr")

    def _input_field(self, argument: int, field: str) -> str:
        b = self.b
        slot = b.op(f"llvm.getelementptr %inputs[{argument * TENSOR_BYTES + TENSOR_OFFSETS[field]}] : (!llvm.ptr) -> !llvm.ptr, i8")
        return b.op(f"llvm.load {slot} : !llvm.ptr -> !llvm.ptr")

    def _load_inputs(self) -> None:
        b = self.b
        for number, node in enumerate(self.program.arguments):
            self.pointers[node] = self._input_field(number, "data")
        for name, source in self.program.sources.items():
            signed = self.program.env.le(0, Dim.symbol(name)) is not Truth.YES
            b.variables[name] = Variable(name, self._source_value(source), b.root, signed=signed)

    def _source_value(self, source: Source) -> str:
        b = self.b
        if source.dim is None:
            return b.op(f"llvm.load {self._input_field(source.argument, 'data')} : !llvm.ptr -> i64")
        return self._input_dim(source.argument, source.dim)

    def _input_dim(self, argument: int, dim: int) -> str:
        b = self.b
        slot = b.op(f"llvm.getelementptr {self._input_field(argument, 'dims')}[{dim}] : (!llvm.ptr) -> !llvm.ptr, i64")
        return b.op(f"llvm.load {slot} : !llvm.ptr -> i64")

    def _check(self, number: int, check: Check) -> None:
        b = self.b
        if check.condition is not None:
            assert isinstance(check.actual, Dim)
            good = self._holds(check.condition)
            self._fail_unless(good, number, b.scalar(check.actual), b.scalar(check.expected))
            return
        actual = self._input_dim(*check.actual) if isinstance(check.actual, tuple) else b.scalar(check.actual)
        expected = b.scalar(check.expected)
        if check.kind == "divides":
            rest = b.op(f"arith.remsi {actual}, {expected} : i64")
            good = b.op(f"arith.cmpi eq, {rest}, {b.index(0)} : i64")
        elif check.kind == "broadcasts":
            one = b.op(f"arith.cmpi eq, {actual}, {b.index(1)} : i64")
            good = b.op(f"arith.ori {one}, {b.op(f'arith.cmpi eq, {actual}, {expected} : i64')} : i1")
        else:
            comparison = {"equal": "eq", "at_least": "sge", "at_most": "sle"}[check.kind]
            good = b.op(f"arith.cmpi {comparison}, {actual}, {expected} : i64")
        self._fail_unless(good, number, actual, expected)

    def _holds(self, condition: Condition) -> str:
        """The i1 of a condition; false where 64 bits may not hold one of its sizes."""
        b = self.b
        alternatives = [[self._comparison(each) for each in conjunction] for conjunction in condition.alternatives]
        every = [reduce(lambda left, right: b.op(f"arith.andi {left}, {right} : i1"), each) for each in alternatives]
        return reduce(lambda left, right: b.op(f"arith.ori {left}, {right} : i1"), every)

    def _comparison(self, comparison: Comparison) -> str:
        b = self.b
        sides = (comparison.left, comparison.right)
        name = {"==": "eq", "!=": "ne", "<=": "sle", "<": "slt", ">=": "sge", ">": "sgt"}[comparison.sign]
        good = b.op(f"arith.cmpi {name}, {b.scalar(sides[0])}, {b.scalar(sides[1])} : i64")
        for side in sides:
            if not _multiplies(side):
                continue
            size = b.op(f"math.absf {self._estimate(side)} : f64")
            fits = b.op(f"arith.cmpf ole, {size}, {b.constant(f'arith.constant {MOST_BYTES}.0 : f64')} : f64")
            good = b.op(f"arith.andi {good}, {fits} : i1")
        return good

    def _check_divisor(self, size: Dim, value: str) -> None:
        b = self.b
        self.program.checks.append(Check("divisor", size, Dim.of(0), f"{self.program.describe(size)} must not be {{expected}}"))
        good = b.op(f"arith.cmpi ne, {value}, {b.index(0)} : i64")
        self._fail_unless(good, len(self.program.checks) - 1, value, b.index(0))

    def _fail_unless(self, good: str, number: int, actual: str, expected: str) -> None:
        """Reports check `number` and leaves when `good` does not hold."""
        b = self.b
        failed = f"^check{number}"
        self._branch(good, failed)
        b.statement(f"{failed}:")
        operands = f"%exec, {b.index(number)}, {actual}, {expected}"
        b.op(f"llvm.call {self.api['fail']}({operands}) : !llvm.ptr, (!llvm.ptr, i64, i64, i64) -> i32")
        b.statement("cf.br ^failed")
        b.statement(f"^next{self.blocks - 1}:")

    def _branch(self, condition: str, otherwise: str) -> None:
        """Goes on in a new block when `condition` holds. The caller writes `otherwise` and then the new block's label."""
        self.b.statement(f"cf.cond_br {condition}, ^next{self.blocks}, {otherwise}")
        self.blocks += 1

    def _continue_if(self, condition: str) -> None:
        self._branch(condition, "^failed")
        self.b.statement(f"^next{self.blocks - 1}:")

    def _non_null(self, pointer: str) -> None:
        b = self.b
        null = b.op("llvm.mlir.zero : !llvm.ptr")
        self._continue_if(b.op(f'llvm.icmp "ne" {pointer}, {null} : !llvm.ptr'))

    def _allocate(self) -> None:
        b, program = self.b, self.program
        plan = program.plan
        # Before the buffers a line where kernels report an index out of range, behind them one so that empty ones have an address, and
        # what split kernels need, one at a time.
        splits = dict.fromkeys(launch.kernel.partials for launch in program.launches if launch.kernel.partials is not None)
        behind = plan.size + 2 * LINE
        total = self._bytes(behind + reduce(dim_max, splits, Dim.of(0)))
        base = b.op(f"llvm.call {self.api['alloc']}(%exec, {total}) : !llvm.ptr, (!llvm.ptr, i64) -> !llvm.ptr")
        self._non_null(base)
        self.base = base
        self.partials = b.op(f"llvm.getelementptr {base}[{b.scalar(behind)}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
        b.statement(f"llvm.store {b.index(0)}, {base} : i64, !llvm.ptr")
        for node, offset in plan.offsets.items():
            self.pointers[node] = b.op(f"llvm.getelementptr {base}[{b.scalar(offset + LINE)}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
        for node in program.arguments:  # an empty input may have no memory; kernels may still form its address
            null = b.op("llvm.mlir.zero : !llvm.ptr")
            missing = b.op(f'llvm.icmp "eq" {self.pointers[node]}, {null} : !llvm.ptr')
            self.pointers[node] = b.op(f"arith.select {missing}, {base}, {self.pointers[node]} : i1, !llvm.ptr")
        self._make_outputs()

    def _bytes(self, size: Dim) -> str:
        """The value of `size`, or more than any memory where computing it in 64 bits might wrap."""
        b = self.b
        exact = b.scalar(size)
        if size.is_const:
            return exact
        good = b.op(f"arith.cmpf ole, {self._estimate(size)}, {b.constant(f'arith.constant {MOST_BYTES}.0 : f64')} : f64")
        return b.op(f"arith.select {good}, {exact}, {b.index(MOST_BYTES)} : i64")

    def _estimate(self, dim: Dim) -> str:
        """About the value of `dim` in f64, which does not wrap; not ordered where it has none."""
        b = self.b
        total = b.constant("arith.constant 0.0 : f64")
        for coefficient, factors in dim.monomials:
            value = b.constant(f"arith.constant {coefficient}.0 : f64")
            for atom, power in factors:
                for _ in range(power):
                    value = b.op(f"arith.mulf {value}, {self._estimate_atom(atom)} : f64")
            total = b.op(f"arith.addf {total}, {value} : f64")
        return total

    def _estimate_atom(self, atom: Atom) -> str:
        b = self.b
        if atom not in self.estimates:
            if isinstance(atom, Symbol):
                self.estimates[atom] = b.op(f"arith.sitofp {b.variables[atom.name].ssa} : i64 to f64")
            else:
                op = {FloorDiv: "divf", Mod: "remf", Min: "minimumf", Max: "maximumf"}[type(atom)]
                left, right = (self._estimate(each) for each in (atom.left, atom.right))
                self.estimates[atom] = b.op(f"arith.{op} {left}, {right} : f64")
        return self.estimates[atom]

    def _make_outputs(self) -> None:
        """Results of kernels are computed in place; inputs, weights and values returned twice are copied at the end."""
        b = self.b
        computed = {node for launch in self.program.launches for node in launch.results}
        most = max((len(node.dims) for node in self.program.outputs), default=1)
        dims = b.op(f"llvm.alloca {b.index(max(most, 1))} x i64 : (i64) -> !llvm.ptr")
        for number, node in enumerate(self.program.outputs):
            for axis, size in enumerate(node.dims):
                slot = b.op(f"llvm.getelementptr {dims}[{axis}] : (!llvm.ptr) -> !llvm.ptr, i64")
                b.statement(f"llvm.store {b.scalar(size)}, {slot} : i64, !llvm.ptr")
            text = f"llvm.call {self.api['output']}(%exec, {b.index(number)}, {dims}) : !llvm.ptr, (!llvm.ptr, i64, !llvm.ptr) -> !llvm.ptr"
            pointer = b.op(text)
            self._non_null(pointer)
            if node in computed:
                computed.remove(node)
                self.pointers[node] = pointer
            else:
                self.copies.append((pointer, node))

    def _copy(self, target: str, node: Node) -> None:
        b = self.b
        slot = self.program.weight_slots.get(node)
        source = self.pointers[node] if slot is None else self._argument_value(slot)[0]
        count = b.scalar(self.program.env.product(node.dims) * ELEMENT_BYTES[node.element])
        b.statement(f'"llvm.intr.memcpy"({target}, {source}, {count}) <{{isVolatile = false}}> : (!llvm.ptr, !llvm.ptr, i64) -> ()')

    def _arguments(self, launch: Launch) -> list[Node | str | int]:
        items: list[Node | str | int] = [launch.weights.get(number, node) for number, node in enumerate(launch.inputs)]
        fault = [FAULT] if launch.kernel.checks_indices else []
        partials = [PARTIALS] if launch.kernel.partials is not None else []
        return [*items, *launch.results, *launch.kernel.symbols, *fault, *partials]

    def _argument_value(self, item: Node | str | int) -> tuple[str, str]:
        b = self.b
        if item in (FAULT, PARTIALS):
            return self.base if item == FAULT else self.partials, "!llvm.ptr"
        if isinstance(item, str):
            return b.variables[item].ssa, "i64"
        if isinstance(item, int):
            slot = b.op(f"llvm.getelementptr %weights[{item}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
            return b.op(f"llvm.load {slot} : !llvm.ptr -> !llvm.ptr"), "!llvm.ptr"
        return self.pointers[item], "!llvm.ptr"

    def _launch(self, number: int, launch: Launch, args: str) -> None:
        b, kernel = self.b, launch.kernel
        choice = kernel.choice
        number_of_version = self._schedule(choice) if choice is not None else None
        for position, item in enumerate(self._arguments(launch)):
            value, type_ = self._argument_value(item)
            slot = b.op(f"llvm.getelementptr {args}[{position}] : (!llvm.ptr) -> !llvm.ptr, i64")
            b.statement(f"llvm.store {value}, {slot} : {type_}, !llvm.ptr")
        function = self._choose(launch) if number_of_version is None else self._count_schedule(launch, number_of_version)
        tasks, cost, scratch = (b.scalar(each) for each in (kernel.tasks, kernel.cost * COST_PER_CYCLE, kernel.scratch))
        if kernel.split is not None:
            tasks, cost = self._run_split(number, launch, kernel.split, args, (tasks, cost))
        self._run(number, function, args, (tasks, cost, scratch))
        if number in self.program.index_checks:
            self._check_indices(number)

    def _run(self, number: int, function: str, args: str, sizes: tuple[str, str, str]) -> None:
        """sizes: number of tasks, cost of each, bytes of scratch per thread."""
        b = self.b
        status = b.op(
            f"llvm.call {self.api['launch']}(%exec, {b.index(number)}, {function}, {args}, {', '.join(sizes)}) : "
            "!llvm.ptr, (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64) -> i32"
        )
        zero = b.constant("arith.constant 0 : i32")
        self._continue_if(b.op(f"arith.cmpi eq, {status}, {zero} : i32"))

    def _run_split(self, number: int, launch: Launch, split: Split, args: str, whole: tuple[str, str]) -> tuple[str, str]:
        """All functions of the split version but its last, where its guard holds; then tasks and cost of what is left to run.

        Raises CompilerBug where another version may come before it, which would run over its tasks.
        """
        b, version = self.b, launch.kernel.versions[0]
        if version.function != split.functions[-1]:
            raise CompilerBug(f"the split version of {launch.kernel.name} is not the first to be tried")
        good = self._guard(version.guard, launch)
        sizes = b.scalar(split.tasks), b.scalar(split.cost * COST_PER_CYCLE)
        after = f"^whole{number}"
        self._branch(good, after)
        b.statement(f"^next{self.blocks - 1}:")
        for function in split.functions[:-1]:
            self._run(number, self._address(function), args, (*sizes, b.index(0)))
        b.statement(f"cf.br {after}")
        b.statement(f"{after}:")
        tasks, cost = (b.op(f"arith.select {good}, {own}, {other} : i64") for own, other in zip(sizes, whole, strict=True))
        return tasks, cost

    def _schedule(self, choice: Choice) -> str:
        """The number of the schedule for this call's sizes; binds the symbols that tell the kernel of it."""
        b = self.b
        array = self.features
        for position, size in enumerate(choice.features):
            slot = b.op(f"llvm.getelementptr {array}[{position}] : (!llvm.ptr) -> !llvm.ptr, i64")
            b.statement(f"llvm.store {b.scalar(size)}, {slot} : i64, !llvm.ptr")
        schedules, width = choice.tree.schedules, len(fields(Schedule))
        nodes = self._table([value for node in choice.tree.nodes for value in node])
        operands = f"%exec, {nodes}, {array}, {b.index(len(schedules))}"
        number = b.op(f"llvm.call {self.api['choose']}({operands}) : !llvm.ptr, (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> i64")
        table = self._table([value for schedule in schedules for value in astuple(schedule)])
        first = b.op(f"arith.muli {number}, {b.index(width)} : i64")
        rows, depth, ahead, order, parts = (self._entry(table, first, place) for place in range(width))
        m, k = b.scalar(choice.features[0]), b.scalar(choice.features[2])
        rows = self._even(m, rows, choice.tile)
        blocks = b.op(f"arith.ceildivui {m}, {rows} : i64")
        span, parts, own = self._parts(choice.parts, m, k, parts) if choice.parts is not None else (b.index(0), b.index(1), k)
        depth = self._even(own, depth if choice.splits else b.op(f"arith.maxsi {own}, {b.index(1)} : i64"), 16)
        for name, value in zip(SCHEDULE_SYMBOLS, (rows, blocks, depth, ahead, order, span, parts), strict=True):
            b.variables[name] = Variable(name, value, b.root)
        return number

    def _parts(self, parts: Parts, m: str, rows: str, wanted: str) -> tuple[str, str, str]:
        """(values of k in a part, number of parts, its share of `rows` of a panel) for `m` rows and at most `wanted` parts; zeroes the
        counters where there are several."""
        b = self.b
        k = b.op(f"arith.maxsi {b.scalar(parts.k)}, {b.index(1)} : i64")
        fits = b.op(f"arith.cmpi sle, {m}, {b.scalar(parts.rows)} : i64")
        wanted = b.op(f"arith.select {fits}, {wanted}, {b.index(1)} : i64")
        span = self._even(k, b.op(f"arith.ceildivui {k}, {wanted} : i64"), parts.multiple)
        count = b.op(f"arith.ceildivui {k}, {span} : i64")
        own = b.op(f"arith.ceildivui {b.op(f'arith.muli {rows}, {span} : i64')}, {k} : i64")
        split = b.op(f"arith.cmpi ugt, {count}, {b.index(1)} : i64")
        counters = b.op(f"arith.select {split}, {b.scalar(parts.counters)}, {b.index(0)} : i64")
        zero = b.constant("arith.constant 0 : i8")
        b.statement(f'"llvm.intr.memset"({self.partials}, {zero}, {counters}) <{{isVolatile = false}}> : (!llvm.ptr, i8, i64) -> ()')
        return span, count, b.op(f"arith.minsi {own}, {rows} : i64")

    def _even(self, total: str, most: str, multiple: int) -> str:
        """The size of parts of `total` that are as equal as multiples of `multiple` can be, of about `most` each; at least one such."""
        b = self.b
        parts = b.op(f"arith.maxsi {b.op(f'arith.ceildivui {total}, {most} : i64')}, {b.index(1)} : i64")
        part = b.op(f"arith.ceildivui {b.op(f'arith.ceildivui {total}, {parts} : i64')}, {b.index(multiple)} : i64")
        return b.op(f"arith.muli {b.op(f'arith.maxsi {part}, {b.index(1)} : i64')}, {b.index(multiple)} : i64")

    def _entry(self, table: str, first: str, place: int) -> str:
        b = self.b
        slot = b.op(
            f"llvm.getelementptr {table}[{b.op(f'arith.addi {first}, {b.index(place)} : i64')}] : (!llvm.ptr, i64) -> !llvm.ptr, i64"
        )
        return b.op(f"llvm.load {slot} : !llvm.ptr -> i64")

    def _table(self, values: Sequence[int]) -> str:
        """The address of a constant array of i64, one for equal contents."""
        key = tuple(values)
        name = self.tables.setdefault(key, f"disc_table_{len(self.tables)}")
        return self.b.constant(f"llvm.mlir.addressof @{name} : !llvm.ptr")

    def _count_schedule(self, launch: Launch, number: str) -> str:
        """Counts the schedule; returns the address of the kernel, which is the same for all of them."""
        b = self.b
        self._count(b.op(f"arith.addi {number}, {b.index(launch.counters[0])} : i64"))
        return self._address(launch.kernel.versions[0].function)

    def _count(self, counter: str) -> None:
        b = self.b
        slot = b.op(f"llvm.getelementptr %counters[{counter}] : (!llvm.ptr, i64) -> !llvm.ptr, i64")
        old = b.op(f"llvm.load {slot} : !llvm.ptr -> i64")
        b.statement(f"llvm.store {b.op(f'arith.addi {old}, {b.index(1)} : i64')}, {slot} : i64, !llvm.ptr")

    def _check_indices(self, launch: int) -> None:
        """Fails when the kernel has reported an index out of range."""
        b = self.b
        flag, index, size = (self._fault_word(number) for number in range(3))
        good = b.op(f"arith.cmpi eq, {flag}, {b.index(0)} : i64")
        self._fail_unless(good, self.program.index_checks[launch], index, size)

    def _fault_word(self, number: int) -> str:
        slot = self.b.op(f"llvm.getelementptr {self.base}[{number}] : (!llvm.ptr) -> !llvm.ptr, i64")
        return self.b.op(f"llvm.load {slot} : !llvm.ptr -> i64")

    def _choose(self, launch: Launch) -> str:
        """The first version whose guard holds; counts it."""
        b = self.b
        versions = launch.kernel.versions
        address = self._address(versions[-1].function)
        counter = b.index(launch.counters[-1])
        for version, number in reversed(list(zip(versions, launch.counters, strict=True))[:-1]):
            good = self._guard(version.guard, launch)
            candidate = self._address(version.function)
            address = b.op(f"arith.select {good}, {candidate}, {address} : i1, !llvm.ptr")
            counter = b.op(f"arith.select {good}, {b.index(number)}, {counter} : i64")
        self._count(counter)
        return address

    def _address(self, function: str) -> str:
        b = self.b
        type_ = "(!llvm.ptr, i64, i64, !llvm.ptr) -> ()"
        value = b.op(f"func.constant @{function} : {type_}")
        return b.op(f"builtin.unrealized_conversion_cast {value} : {type_} to !llvm.ptr")

    def _guard(self, guard: Guard, launch: Launch) -> str:
        return lower_guard(self.b, guard, lambda size: self._streams(size, launch))

    def _streams(self, size: str, launch: Launch) -> str:
        """The results, of `size` bytes, are larger than the last-level cache and all begin on a cache line."""
        b = self.b
        slot = b.op(f"llvm.getelementptr %api[{API_OFFSETS['cache_bytes'] // POINTER}] : (!llvm.ptr) -> !llvm.ptr, i64")
        good = b.op(f"arith.cmpi sgt, {size}, {b.op(f'llvm.load {slot} : !llvm.ptr -> i64')} : i64")
        for node in launch.results:
            address = b.op(f"llvm.ptrtoint {self.pointers[node]} : !llvm.ptr to i64")
            aligned = b.op(f"arith.cmpi eq, {b.op(f'arith.andi {address}, {b.index(63)} : i64')}, {b.index(0)} : i64")
            good = b.op(f"arith.andi {good}, {aligned} : i1")
        return good


def counter_names(launches: Sequence[Launch]) -> list[str]:
    """Names of the counters in order: kernel and guard."""
    names: dict[int, str] = {}
    for launch in launches:
        for version, number in zip(launch.kernel.versions, launch.counters, strict=True):
            names[number] = f"{launch.kernel.name}[{version.describe() or 'any shape'}]"
    return [names[number] for number in sorted(names)]
