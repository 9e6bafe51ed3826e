"""Launches in the host code: a kernel's arguments, its version or schedule, its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from functools import reduce

from disc.artifact.manifest import DTYPES
from disc.codegen.host.abi import FEATURES
from disc.codegen.host.flow import HostBuilder, Typed
from disc.codegen.host.guards import lower_guard
from disc.codegen.host.program import Program
from disc.codegen.host.steps import Launch, Value
from disc.codegen.mlir.builder import Variable
from disc.codegen.plan.kernel import BlockChoice, Choice, Kernel, LibraryCall, Parts, Split, Version
from disc.errors import CompilerBug
from disc.shapes import Dim
from disc.speculation.guards import Guard
from disc.speculation.schedules import SCHEDULE_SYMBOLS, Schedule

COST_UNITS = 16  # of the cost of a task, in a nanosecond (ral.h)
FAULT = "fault"  # the argument where a kernel reports an index out of range
ZERO, ONE = Dim.of(0), Dim.of(1)
GRID = 3  # axes of a grid, behind the arguments
FLOAT_BYTES = 4
_AHEAD = 2 + GRID  # values that describe a launch ahead of a version's own: its function, its blocks, those along each axis
PARTIALS = "partials"  # the argument where the functions of a split kernel hand values on


class Launcher:
    """Emits the launches of one function.

    pointers: the addresses of values; tables: constant arrays of i64 → their names; fault: the address of the line where kernels report.
    """

    def __init__(self, program: Program, b: HostBuilder, prefix: str, pointers: Mapping[Value, str], numbers: Mapping[Launch, int]) -> None:
        self.program, self.b, self.prefix, self.pointers, self.numbers = program, b, prefix, pointers, numbers
        self.tables: dict[tuple[int, ...], str] = {}
        self.fault = ""
        self._partials, self._cleared = "", False

    def _cost(self, cycles: Dim) -> Dim:
        """In the runtime's unit."""
        return cycles * COST_UNITS // self.program.gigahertz

    def reserve(self, launches: Sequence[Launch]) -> None:
        """Memory on the stack for arguments and features: one launch is made at a time."""
        b = self.b
        most = max((len(self._arguments(launch)) + _further(launch.kernel) for launch in launches), default=1)
        self._args = b.op(f"llvm.alloca {b.index(max(most, 1))} x i64 : (i64) -> !llvm.ptr")
        self._features = b.op(f"llvm.alloca {b.index(len(FEATURES))} x i64 : (i64) -> !llvm.ptr")

    def launch(self, launch: Launch, partials: str, shared: bool) -> None:
        """partials: the address of memory in which tasks hand values on. shared: with other launches, all of which leave 0 where blocks
        of a GPU find 0."""
        b, kernel, number = self.b, launch.kernel, self.numbers[launch]
        self._partials, self._cleared = partials, shared
        for divisor in kernel.divisors:
            b.divisor(divisor)
        choice = kernel.choice
        number_of_version = self._schedule(choice) if choice is not None else None
        arguments = self._arguments(launch)
        for position, item in enumerate(arguments):
            self._store(position, *self._argument_value(item))
        if kernel.library is not None:
            self._call_library(number, launch, kernel.library)
            return
        if kernel.runs_in_blocks:
            self._launch_blocks(number, launch, len(arguments))
            return
        function = self._choose(launch) if number_of_version is None else self._count_schedule(launch, number_of_version)
        tasks, cost, scratch = (b.scalar(each) for each in (kernel.tasks, self._cost(kernel.cost), kernel.scratch))
        if kernel.split is not None:
            tasks, cost = self._run_split(number, launch, kernel.split, (tasks, cost))
        b.demand("launch", b.index(number), function, self._args, tasks, cost, scratch)
        if number in self.program.index_checks:
            self._check_indices(number)

    def _store(self, position: int, value: str, type_: str) -> None:
        """Puts a value into a slot of the arguments."""
        slot = self.b.op(f"llvm.getelementptr {self._args}[{position}] : (!llvm.ptr) -> !llvm.ptr, i64")
        self.b.statement(f"llvm.store {value}, {slot} : {type_}, !llvm.ptr")

    def weight(self, slot: int) -> str:
        """The address of a weight."""
        b = self.b
        place = b.op(f"llvm.getelementptr %weights[{slot}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
        return b.op(f"llvm.load {place} : !llvm.ptr -> !llvm.ptr")

    def table_texts(self) -> list[str]:
        """The definitions of the constant arrays."""
        return [
            f"llvm.mlir.global internal constant @{name}(dense<[{', '.join(map(str, values))}]> : tensor<{len(values)}xi64>) "
            f": !llvm.array<{len(values)} x i64>"
            for values, name in self.tables.items()
        ]

    # --- arguments ------------------------------------------------------------------------------------------------------

    def _arguments(self, launch: Launch) -> list[Value | str | int | Dim]:
        items: list[Value | str | int | Dim] = [launch.weights.get(number, value) for number, value in enumerate(launch.inputs)]
        if launch.kernel.library is not None:
            return _library_arguments([*items, *launch.results], launch.kernel.library)
        fault: list[str | Dim] = [ZERO if launch.kernel.runs_in_blocks else FAULT] if launch.kernel.checks_indices else []
        partials = [PARTIALS] if launch.kernel.partials is not None and not launch.kernel.runs_in_blocks else []
        return [*items, *launch.results, *launch.kernel.symbols, *fault, *partials]

    def _argument_value(self, item: Value | str | int | Dim) -> tuple[str, str]:
        if isinstance(item, Dim):
            return self.b.scalar(item), "i64"
        if item in (FAULT, PARTIALS):
            return self.fault if item == FAULT else self._partials, "!llvm.ptr"
        if isinstance(item, str):
            return self.b.variables[item].ssa, "i64"
        if isinstance(item, int):
            return self.weight(item), "!llvm.ptr"
        slot = self.program.weight_slots.get(item)  # of a weight that a loop or branch was given as a value
        return self.pointers[item] if slot is None else self.weight(slot), "!llvm.ptr"

    def _check_indices(self, launch: int) -> None:
        """Fails when the kernel has reported an index out of range."""
        b = self.b
        flag, index, size = (self._fault_word(number) for number in range(3))
        good = b.op(f"arith.cmpi eq, {flag}, {b.index(0)} : i64")
        b.leave_unless(good, self.program.index_checks[launch], index, size)

    def _fault_word(self, number: int) -> str:
        slot = self.b.op(f"llvm.getelementptr {self.fault}[{number}] : (!llvm.ptr) -> !llvm.ptr, i64")
        return self.b.read(slot) if self.program.remote else self.b.op(f"llvm.load {slot} : !llvm.ptr -> i64")

    # --- library functions ----------------------------------------------------------------------------------------------

    def _call_library(self, number: int, launch: Launch, call: LibraryCall) -> None:
        """Calls a function of the runtime, as `library` of ral_host_api has it."""
        b = self.b
        tensors = (*call.operands, *call.results)
        shape = [len(call.operands), len(call.results), len(call.numbers)]
        layout = self._table([*shape, *(each for tensor in tensors for each in (DTYPES.index(tensor.element), len(tensor.dims)))])
        self._count(b.index(launch.counters[0]))
        check, function = self.program.index_checks[number], self.program.library.index(call.function)
        b.demand("library", b.index(number), b.index(check), b.index(function), layout, self._args)

    # --- versions -------------------------------------------------------------------------------------------------------

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

    def _count(self, counter: str) -> None:
        b = self.b
        slot = b.op(f"llvm.getelementptr %counters[{counter}] : (!llvm.ptr, i64) -> !llvm.ptr, i64")
        old = b.op(f"llvm.load {slot} : !llvm.ptr -> i64")
        b.statement(f"llvm.store {b.op(f'arith.addi {old}, {b.index(1)} : i64')}, {slot} : i64, !llvm.ptr")

    def _address(self, function: str) -> str:
        b = self.b
        type_ = "(!llvm.ptr, i64, i64, !llvm.ptr) -> ()"
        value = b.op(f"func.constant @{function} : {type_}")
        return b.op(f"builtin.unrealized_conversion_cast {value} : {type_} to !llvm.ptr")

    def _guard(self, guard: Guard, launch: Launch) -> str:
        return lower_guard(self.b, guard, lambda size: self._streams(size, launch), lambda number: self._aligned(number, launch))

    def _streams(self, size: str, launch: Launch) -> str:
        """The results, of `size` bytes, are larger than the last-level cache and all begin on a cache line."""
        b = self.b
        good = self._beyond_cache(size)
        for value in launch.results:
            address = b.op(f"llvm.ptrtoint {self.pointers[value]} : !llvm.ptr to i64")
            aligned = b.op(f"arith.cmpi eq, {b.op(f'arith.andi {address}, {b.index(63)} : i64')}, {b.index(0)} : i64")
            good = b.op(f"arith.andi {good}, {aligned} : i1")
        return good

    def _beyond_cache(self, size: str) -> str:
        """Whether so many bytes are more than the last-level cache has."""
        slot = self.b.api_field("cache_bytes")
        return self.b.op(f"arith.cmpi sgt, {size}, {self.b.op(f'llvm.load {slot} : !llvm.ptr -> i64')} : i64")

    def _aligned(self, number: int, launch: Launch) -> str:
        """All arguments and results that are no weights begin at multiples of `number` bytes, a power of two."""
        b = self.b
        bits = b.index(0)
        for value in dict.fromkeys(each for each in (*launch.reads, *launch.results) if each not in self.program.weight_slots):
            bits = b.op(f"arith.ori {bits}, {b.op(f'llvm.ptrtoint {self.pointers[value]} : !llvm.ptr to i64')} : i64")
        rest = b.op(f"arith.andi {bits}, {b.index(number - 1)} : i64")
        return b.op(f"arith.cmpi eq, {rest}, {b.index(0)} : i64")

    # --- blocks of a GPU ------------------------------------------------------------------------------------------------

    def _launch_blocks(self, number: int, launch: Launch, place: int) -> None:
        """Launches the first version whose guard holds, of those for the schedule that is chosen. place: of the slot behind the arguments
        that all of them take."""
        b, versions = self.b, list(zip(launch.kernel.versions, launch.counters, strict=True))
        every = [version.blocks for version, _ in versions if version.blocks is not None]
        chosen = self._chosen(launch.kernel.block_choice, any(each.persistent for each in every))
        steps = max(len(each.ahead) for each in every)
        found = self._blocks(*versions[-1], steps)
        for version, counter in reversed(versions[:-1]):
            good = self._guard(version.guard, launch)
            if chosen and version.blocks is not None and version.blocks.schedule is not None:
                same = b.op(f"arith.cmpi eq, {chosen}, {b.index(version.blocks.schedule)} : i64")
                good = b.op(f"arith.andi {good}, {same} : i1")
            found = [
                own if own == other else (b.op(f"arith.select {good}, {own[0]}, {other[0]} : i1, {own[1]}"), own[1])
                for own, other in zip(self._blocks(version, counter, steps), found, strict=True)
            ]
        (function, _), (own_counter, _), (tasks, _), (zeroed, _), *rest = found
        slots, ahead = rest[: GRID + 1], rest[GRID + 1 :]
        self._count(own_counter)
        for offset, (slot, _) in enumerate(slots):
            self._store(place + offset, slot, "i64")
        for offset, number_of_product in enumerate(_numbers(launch.kernel)):
            self._store(place + GRID + 1 + offset, b.scalar(number_of_product), "i64")
        if launch.kernel.partials is not None and not self._cleared:
            b.demand("fill", self._partials, zeroed, b.constant("arith.constant 0 : i32"))
        for step in range(len(ahead) // _AHEAD):
            (own, _), (own_tasks, _), *own_grid = ahead[step * _AHEAD : (step + 1) * _AHEAD]
            with b.only_when(b.op(f"arith.cmpi sgt, {own_tasks}, {b.index(0)} : i64"), f"^ahead{number}_{step}"):
                for offset, (slot, _) in enumerate(own_grid, 1):
                    self._store(place + offset, slot, "i64")
                self._watch(number)
                b.demand("launch", b.index(number), own, self._args, own_tasks, b.index(0), b.index(0))
        if ahead:
            for offset, (slot, _) in enumerate(slots[1:], 1):
                self._store(place + offset, slot, "i64")
        self._watch(number)
        b.demand("launch", b.index(number), function, self._args, tasks, b.index(0), b.index(0))

    def _watch(self, number: int) -> None:
        if number in self.program.index_checks:
            self.b.demand("watch", self.b.index(self.program.index_checks[number]))

    def _blocks(self, version: Version, counter: int, steps: int) -> list[Typed]:
        """What describes a version to the device, its counter, its blocks, bytes to zero, and the slots behind the arguments: where its
        scratch lies if it takes any, blocks along x, y, z. Then of each of so many steps ahead of it the function, its blocks, and those
        along x, y, z; of one that this version has not, no blocks."""
        b, blocks = self.b, version.blocks
        assert blocks is not None
        grid = [b.scalar(size) for size in _axes(blocks.grid)]
        if blocks.persistent:
            slot = b.op(f"llvm.getelementptr {self._features}[{FEATURES.index('threads')}] : (!llvm.ptr) -> !llvm.ptr, i64")
            grid[0] = b.op(f"arith.minsi {grid[0]}, {b.op(f'llvm.load {slot} : !llvm.ptr -> i64')} : i64")
        taken = [] if blocks.scratch is None else [b.op(f"llvm.ptrtoint {self._partials} : !llvm.ptr to i64")]
        slots = [*taken, *grid, *[b.index(0)] * (1 - len(taken))]
        numbers = [b.index(counter), self._product(grid), b.scalar(ZERO if blocks.zeroed is None else blocks.zeroed), *slots]
        found: list[Typed] = [(self._address(version.function), "!llvm.ptr"), *((each, "i64") for each in numbers)]
        for step in range(steps):
            ahead = blocks.ahead[step] if step < len(blocks.ahead) else None
            own = [b.scalar(size) for size in _axes(ahead.grid if ahead is not None else (ZERO,))]
            address = self._address(ahead.function if ahead is not None else version.function)
            found += [(address, "!llvm.ptr"), *((each, "i64") for each in (self._product(own), *own))]
        return found

    def _product(self, sizes: Sequence[str]) -> str:
        return reduce(lambda product, size: self.b.op(f"arith.muli {product}, {size} : i64"), sizes)

    def _chosen(self, choice: BlockChoice | None, asked: bool) -> str:
        """The number of the schedule for this call's sizes, "" where there is one at most, unless it is asked for the number of SMs."""
        return self._ask(choice.nodes, choice.features, choice.schedules) if choice is not None and (asked or len(choice.nodes) > 1) else ""

    # --- split kernels and schedules ------------------------------------------------------------------------------------

    def _run_split(self, number: int, launch: Launch, split: Split, whole: tuple[str, str]) -> tuple[str, str]:
        """All functions of the split version but its last, where its guard holds; then tasks and cost of what is left to run.

        Raises CompilerBug where another version may come before it, which would run over its tasks.
        """
        b, version = self.b, launch.kernel.versions[0]
        if version.function != split.functions[-1]:
            raise CompilerBug(f"the split version of {launch.kernel.name} is not the first to be tried")
        good = self._guard(version.guard, launch)
        sizes = b.scalar(split.tasks), b.scalar(self._cost(split.cost))
        with b.only_when(good, f"^whole{number}"):
            for function in split.functions[:-1]:
                b.demand("launch", b.index(number), self._address(function), self._args, *sizes, b.index(0))
        tasks, cost = (b.op(f"arith.select {good}, {own}, {other} : i64") for own, other in zip(sizes, whole, strict=True))
        return tasks, cost

    def _schedule(self, choice: Choice) -> str:
        """The number of the schedule for this call's sizes; binds the symbols that tell the kernel of it."""
        b = self.b
        schedules, width = choice.tree.schedules, len(fields(Schedule))
        number = self._ask(choice.tree.nodes, choice.features, len(schedules))
        table = self._table([value for schedule in schedules for value in astuple(schedule)])
        first = b.op(f"arith.muli {number}, {b.index(width)} : i64")
        rows, depth, ahead, order, parts = (self._entry(table, first, place) for place in range(width))
        m, n, k = (b.scalar(size) for size in choice.features[:3])
        if b.loops:
            ahead = self._ahead_in_loop(ahead, (m, n, k), choice.tile)
        rows = self._even(m, rows, choice.tile)
        blocks = b.op(f"arith.ceildivui {m}, {rows} : i64")
        span, parts, own = self._parts(choice.parts, m, k, parts) if choice.parts is not None else (b.index(0), b.index(1), k)
        depth = self._even(own, depth if choice.splits else b.op(f"arith.maxsi {own}, {b.index(1)} : i64"), 16)
        for name, value in zip(SCHEDULE_SYMBOLS, (rows, blocks, depth, ahead, order, span, parts), strict=True):
            b.variables[name] = Variable(name, value, b.scope)
        return number

    def _ahead_in_loop(self, ahead: str, sizes: tuple[str, str, str], tile: int) -> str:
        """`ahead`, or 0 for one tile of rows by a B that the last level of caches holds: the iteration before has read it. From there the
        processor's own prefetchers are faster: 48 against 54 us for 1 row of 512 by 2048."""
        b, (m, n, k) = self.b, sizes
        size = b.op(f"arith.muli {b.op(f'arith.muli {n}, {k} : i64')}, {b.index(FLOAT_BYTES)} : i64")
        several = b.op(f"arith.cmpi sgt, {m}, {b.index(tile)} : i64")
        asked = b.op(f"arith.ori {self._beyond_cache(size)}, {several} : i1")
        return b.op(f"arith.select {asked}, {ahead}, {b.index(0)} : i64")

    def _ask(self, nodes: Sequence[Sequence[int]], features: Sequence[Dim], schedules: int) -> str:
        """The number of the schedule that a tree chooses."""
        b, array = self.b, self._features
        for position, size in enumerate(features):
            slot = b.op(f"llvm.getelementptr {array}[{position}] : (!llvm.ptr) -> !llvm.ptr, i64")
            b.statement(f"llvm.store {b.scalar(size)}, {slot} : i64, !llvm.ptr")
        return b.ask("choose", self._table([value for node in nodes for value in node]), array, b.index(schedules))

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
        if self.program.remote:
            b.demand("fill", self._partials, counters, b.constant("arith.constant 0 : i32"))
        else:
            zero = b.constant("arith.constant 0 : i8")
            b.statement(f'"llvm.intr.memset"({self._partials}, {zero}, {counters}) <{{isVolatile = false}}> : (!llvm.ptr, i8, i64) -> ()')
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
        name = self.tables.setdefault(key, f"{self.prefix}_table_{len(self.tables)}")
        return self.b.constant(f"llvm.mlir.addressof @{name} : !llvm.ptr")

    def _count_schedule(self, launch: Launch, number: str) -> str:
        """Counts the schedule; returns the address of the kernel, which is the same for all of them."""
        b = self.b
        self._count(b.op(f"arith.addi {number}, {b.index(launch.counters[0])} : i64"))
        return self._address(launch.kernel.versions[0].function)


def _numbers(kernel: Kernel) -> tuple[Dim, ...]:
    """Those of the version that has some."""
    return next((each.blocks.numbers for each in kernel.versions if each.blocks is not None and each.blocks.numbers), ())


def _axes(grid: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Blocks along all axes."""
    return (*grid, *[ONE] * (GRID - len(grid)))


def _further(kernel: Kernel) -> int:
    """Slots behind the arguments."""
    return GRID + 1 + len(_numbers(kernel)) if kernel.runs_in_blocks else 0


def _library_arguments(pointers: Sequence[Value | str | int | Dim], call: LibraryCall) -> list[Value | str | int | Dim]:
    """The addresses of the tensors, 0 for those that have none; the sizes of all; the numbers."""
    tensors = (*call.operands, *call.results)
    places = [pointers[tensor.place] if tensor.place is not None else ZERO for tensor in tensors]
    return [*places, *(size for tensor in tensors for size in tensor.dims), *call.numbers]
