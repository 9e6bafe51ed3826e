"""The host code: a native function for each function of the program, which reads dims, checks relations, makes arenas and launches kernels.

`disc_entry` is what the runtime calls (`ral_entry` in ral.h; paper §6.1). Whatever fails, the function returns at once, with status 1;
what it has allocated the runtime gives back at the end of the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from disc.codegen.host.blocks import Blocks, Wanted, replaced
from disc.codegen.host.buffers import LINE, Plan
from disc.codegen.host.flow import API, LIBRARY_API, POINTER, WATCH_API, Typed
from disc.codegen.host.legality import verify
from disc.codegen.host.lifetimes import places_of
from disc.codegen.host.memory import Memory, Way, plan_memory
from disc.codegen.host.program import Program
from disc.codegen.host.steps import Block, Function, Launch, Value
from disc.shapes import Dim, dim_max

ENTRY = "disc_entry"


def emit_host(program: Program, memory: Memory | None = None) -> str:
    """MLIR text of `disc_entry` and of the functions that it calls. memory: what `plan_memory` says of the program.

    Raises CompilerBug for a program that is not well formed.
    """
    verify(program)
    memory = memory or plan_memory(program)
    numbers = {launch: number for number, launch in enumerate(program.launches)}
    hosts = [(_Entry if function is program.entry else _Function)(program, memory, function, numbers) for function in program.functions]
    return "".join(host.emit() for host in hosts)


def counter_names(launches: Sequence[Launch]) -> list[str]:
    """Names of the counters in order: kernel and guard."""
    names: dict[int, str] = {}
    for launch in launches:
        for version, number in zip(launch.kernel.versions, launch.counters, strict=True):
            names[number] = f"{launch.kernel.name}[{version.describe() or 'any shape'}]"
    return [names[number] for number in sorted(names)]


class _Function(Blocks):
    """Emits a function that the entry, or another, calls. Its results it writes where it is told, or hands back in blocks of memory."""

    common = ("exec", "api", "weights", "counters")

    def __init__(self, program: Program, memory: Memory, function: Function, numbers: Mapping[Launch, int]) -> None:
        super().__init__(program, memory, function.name if function.name != ENTRY else "disc", numbers)
        self.function = function
        self.steps = list(function.block.walk())
        self.launches = [step for step in self.steps if isinstance(step, Launch)]

    def emit(self) -> str:
        """The text of the function, behind that of its tables."""
        b = self.b
        b.load_api(API)
        if self._uses_memory():
            b.load_memory_api()
        if any(launch.kernel.library is not None for launch in self.launches):
            b.load_api(LIBRARY_API)
        if any(launch.kernel.runs_in_blocks and launch.kernel.checks_indices for launch in self.launches):
            b.load_api(WATCH_API)
        self._load()
        returned = self._run()
        ok = b.constant("arith.constant 0 : i32")
        types = ["i32", *(type_ for _, type_ in returned)]
        nulls = [b.constant("llvm.mlir.zero : !llvm.ptr") if type_ == POINTER else b.index(0) for type_ in types[1:]]
        parameters = ", ".join(
            [*(f"%{name}: !llvm.ptr" for name in self.common), *(f"{name}: {type_}" for name, type_ in self._parameters())]
        )
        result = types[0] if len(types) == 1 else f"({', '.join(types)})"
        head = f"func.func @{self.function.name}({parameters}) -> {result} {{"
        last = f"return {', '.join([ok, *(value for value, _ in returned)])} : {', '.join(types)}"
        failed = ["^failed:", "  %one = arith.constant 1 : i32", f"  return {', '.join(['%one', *nulls])} : {', '.join(types)}"]
        return "\n".join([*self.launcher.table_texts(), head, *b.globals, *b.root.lines, last, *failed, "}"]) + "\n"

    def _uses_memory(self) -> bool:
        return True

    def _parameters(self) -> list[Typed]:
        return [
            *((f"%arg{number}", POINTER) for number in range(len(self.function.parameters))),
            *((f"%size{number}", "i64") for number in range(len(self.function.symbols))),
            *((f"%result{number}", POINTER) for number in places_of(self.function)),
        ]

    def _load(self) -> None:
        self.b.checked = True  # by the entry, and here what is declared of its symbols
        for number, parameter in enumerate(self.function.parameters):
            self.pointers[parameter.value] = f"%arg{number}"
        for number, name in enumerate(self.function.symbols):
            self.sizes.bind(name, f"%size{number}")

    def _run(self) -> list[Typed]:
        function = self.function
        places = places_of(function)
        sizes = dict(zip(function.returned, function.block.sizes, strict=True))
        wanted = [
            Wanted(replaced(result.dims, sizes), f"%result{number}" if number in places else "", f"{result.ref} of {function.name}")
            for number, result in enumerate(function.results)
        ]
        handed = self.block(function.block, wanted)
        pairs = [each for each in handed if each[1] == POINTER]
        return [*pairs[::2], *(each for each in handed if each[1] != POINTER)]

    def arena(self, plan: Plan) -> str:
        if self.launcher.fault:
            return super().arena(plan)
        b = self.b
        # Before the buffers a line where kernels report an index out of range, behind them one so that empty ones have an address, and
        # what split kernels need, one at a time.
        sharing = [each.kernel for each in self.launches if each.kernel.partials is not None and each not in self.memory.partials]
        splits = dict.fromkeys(kernel.partials for kernel in sharing if kernel.partials is not None)
        behind = plan.size + 2 * LINE
        base = b.demand("alloc", b.bytes(behind + reduce(dim_max, splits, Dim.of(0))))
        self.launcher.fault = base
        self.partials = b.offset(base, b.scalar(behind))
        # What blocks of a GPU find 0 is 0 again once they have run: it is cleared for all launches at once.
        blocks = [each.blocks for kernel in sharing for each in kernel.versions if each.blocks is not None]
        zeroed = dict.fromkeys(each.zeroed for each in blocks if each.zeroed is not None)
        if zeroed:
            b.demand("fill", self.partials, b.scalar(reduce(dim_max, zeroed)), b.constant("arith.constant 0 : i32"))
        if self.program.remote:
            if any(launch.kernel.checks_indices and not launch.kernel.runs_in_blocks for launch in self.launches):
                b.demand("fill", base, b.index(LINE), b.constant("arith.constant 0 : i32"))
        else:
            b.statement(f"llvm.store {b.index(0)}, {base} : i64, !llvm.ptr")
        self.place(base, plan, LINE)
        return base

    def reach(self, block: Block, position: int) -> None:
        if block is self.function.block and position == 0:
            self.launcher.reserve(self.launches)


class _Entry(_Function):
    """Emits `disc_entry`. Its results are outputs of the runtime."""

    common = ("exec", "api", "inputs", "weights", "counters")

    def _uses_memory(self) -> bool:
        return self.program.remote or any(not isinstance(step, Launch) for step in self.steps)

    def _parameters(self) -> list[Typed]:
        return []

    def _load(self) -> None:
        for number, value in enumerate(self.program.arguments):
            self.pointers[value] = self.sizes.input_field(number, "data")
        self.sizes.load_symbols()
        self.sizes.check_entry()

    def _run(self) -> list[Typed]:
        values = self.function.block.values
        self.outputs = [Wanted(value.dims, "", f"output {number}") for number, value in enumerate(values)]
        self.due = self._due()
        self.block(self.function.block, self.outputs, frees=False)
        return []

    def arena(self, plan: Plan) -> str:
        first = not self.launcher.fault
        base = super().arena(plan)
        if first:
            b = self.b
            for value in self.program.arguments:  # an empty input may have no memory; kernels may still form its address
                null = b.op("llvm.mlir.zero : !llvm.ptr")
                missing = b.op(f'llvm.icmp "eq" {self.pointers[value]}, {null} : !llvm.ptr')
                self.pointers[value] = b.op(f"arith.select {missing}, {base}, {self.pointers[value]} : i1, !llvm.ptr")
            most = max((len(value.dims) for value in self.program.outputs), default=1)
            self.dims = b.op(f"llvm.alloca {b.index(max(most, 1))} x i64 : (i64) -> !llvm.ptr")
        return base

    def reach(self, block: Block, position: int) -> None:
        if block is self.function.block:
            self._make_outputs(position)
        super().reach(block, position)

    def _due(self) -> dict[int, list[tuple[int, int]]]:
        """By the number of the step before which their sizes become known: the outputs that get memory of their own, as (place among those,
        number)."""
        block = self.function.block
        bound = {name: number + 1 for number, step in enumerate(block.steps) for name in step.binds}
        due: dict[int, list[tuple[int, int]]] = {}
        for place, number in enumerate(number for number, way in enumerate(self.memory.blocks[block].ways) if way is not Way.KEEP):
            names = (name for dim in block.values[number].dims for name in dim.symbols())
            due.setdefault(max((bound.get(name, 0) for name in names), default=0), []).append((place, number))
        return due

    def _make_outputs(self, position: int) -> None:
        """Those that are due before the step with this number. Results of steps are computed in place; what lies elsewhere is copied at the
        end."""
        b, block = self.b, self.function.block
        direct = {number: value for value, number in self.memory.blocks[block].direct.items()}
        for place, number in self.due.get(position, ()):
            value = block.values[number]
            for axis, size in enumerate(value.dims):
                slot = b.op(f"llvm.getelementptr {self.dims}[{axis}] : (!llvm.ptr) -> !llvm.ptr, i64")
                b.statement(f"llvm.store {b.scalar(size)}, {slot} : i64, !llvm.ptr")
            pointer = b.demand("output", b.index(place), self.dims)
            if number in direct:
                self.pointers[direct[number]] = pointer
            self.outputs[number] = Wanted(value.dims, pointer, f"output {number}")

    def copy_out(self, to: str, value: Value, dims: Sequence[Dim]) -> None:
        if self.program.remote:
            super().copy_out(to, value, dims)
            return
        source, count = self.pointer(value), self.b.scalar(self.count(dims, value.element))
        self.b.statement(f'"llvm.intr.memcpy"({to}, {source}, {count}) <{{isVolatile = false}}> : (!llvm.ptr, !llvm.ptr, i64) -> ()')
