"""Where the values of a host program lie: lifetimes over the tree of blocks, an arena per region, and how values leave their block.

A block's values live within it: from the step that writes them to the last that reads them, where a step reads whatever the blocks in it
read. So a value of a block around lives through the whole loop that reads it, and a value of a loop's body ends with the iteration, but
for what the body returns.

A region is an arena: for the values whose sizes are known when a block begins, and for those whose sizes become known at one of its
steps. What is in a loop's body and has a size that the loop does not change lies in the region around, in the place of one value that
lives while the loop runs; so it is allocated once. All else is freed when its block ends.

What a block returns is computed where its caller wants it if it can be (`Way.DIRECT`). A loop carries a value whose size stays in two
buffers that swap places, or in one where each iteration writes into the value of the last; a value whose size changes gets a block of
memory in each iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from disc.codegen.host.buffers import Lifetime, Plan, plan_buffers
from disc.codegen.host.lifetimes import last_reads, places_of, reads_of, risky, same_dims, stays, symbols_of, written_by
from disc.codegen.host.program import Program
from disc.codegen.host.steps import Block, Call, Function, If, Launch, Mode, Value, While, roots_of
from disc.shapes import Dim, ShapeEnv


class Way(Enum):
    """How a returned value gets where the caller wants it."""

    KEEP = auto()  # it lies where the caller knows: in an argument, or in a value of a block around
    DIRECT = auto()  # it is computed in the caller's memory
    COPY = auto()  # it is copied there, or into a block of memory of its own
    OWN = auto()  # in a block of memory of its own, which the caller gets
    PASS = auto()  # as a call, branch or loop within gave it back: in a block of its own, or where the caller knows
    LEND = auto()  # it lies in a block around and stays there: the caller gets the address alone


class Carry(Enum):
    """How a loop carries a value."""

    IN_PLACE = auto()  # where it was in the iteration before
    SWAP = auto()  # in two buffers that change places
    BLOCKS = auto()  # in a block of memory for each iteration


@dataclass(frozen=True)
class Region:
    """An arena, allocated before the step with number `position`."""

    position: int
    plan: Plan


@dataclass(frozen=True)
class Slot:
    """What a caller wants of a returned value. dims: of the memory that the caller has for it; None: it is to come in a block of its own.

    lent: whether it may stay in a block around instead, but in none of `written`, which are changed. argument: of a loop, which may be
    returned as it is. keep: as `Way.KEEP`.
    """

    dims: tuple[Dim, ...] | None
    lent: bool = False
    written: frozenset[Value] = frozenset()
    argument: Value | None = None
    keep: bool = False


@dataclass(frozen=True)
class Loop:
    """How a loop carries its values.

    copied: those that begin as a copy of their initial value, since that is to stay as it is; buffers: two for each value that swaps, and
    one for such a copy whose size is not the result's; arena: stands for the memory of the body in the region around.
    """

    ways: tuple[Carry, ...]
    copied: tuple[bool, ...]
    buffers: tuple[tuple[Value, ...], ...]
    arena: Value


@dataclass(frozen=True)
class BlockMemory:
    """Of one block. around: where the values lie that have their place in a region around (of a loop's body alone); blocks: values that
    lie in blocks of their own; passed: those that came in one which the block hands on; direct: value → number of the slot in whose memory
    it is computed; ways: of what it returns."""

    regions: tuple[Region, ...]
    around: Plan
    blocks: frozenset[Value]
    passed: frozenset[Value]
    direct: Mapping[Value, int]
    ways: tuple[Way, ...]


Plans = dict[tuple[Lifetime, ...], Plan]
"""Plans of arenas that were made before."""


@dataclass(eq=False)
class Memory:
    """Of a program. partials: memory in which the tasks of a launch hand values on, where the function's own will not do; plans: of arenas
    that were made before."""

    blocks: dict[Block, BlockMemory] = field(default_factory=dict)
    loops: dict[While, Loop] = field(default_factory=dict)
    partials: dict[Launch, Value] = field(default_factory=dict)
    plans: Plans = field(default_factory=dict)

    def plan(self, env: ShapeEnv, lifetimes: Sequence[Lifetime]) -> Plan:
        """Of one arena."""
        key = tuple(lifetimes)
        if key not in self.plans:
            self.plans[key] = plan_buffers(env, key)
        return self.plans[key]


def plan_memory(program: Program, plans: Plans | None = None) -> Memory:
    """Of all functions. plans: to look up in and add to, for one environment."""
    memory = Memory(plans={} if plans is None else plans)
    for function in program.functions:
        slots = _entry_slots(function) if function is program.entry else _function_slots(function)
        _Block(program.env, memory, function.block, slots, function).plan()
    return memory


def _entry_slots(function: Function) -> tuple[Slot, ...]:
    ties = function.ties
    return tuple(Slot(value.dims, keep=number in ties) for number, value in enumerate(function.block.values))


def _function_slots(function: Function) -> tuple[Slot, ...]:
    places, ties = places_of(function), function.ties
    return tuple(Slot(result.dims if number in places else None, keep=number in ties) for number, result in enumerate(function.results))


class _Block:
    """Plans one block, those within first. function: whose block it is, None for one within; loop: whose body it is."""

    def __init__(
        self,
        env: ShapeEnv,
        memory: Memory,
        block: Block,
        slots: Sequence[Slot],
        function: Function | None = None,
        loop: While | None = None,
    ) -> None:
        self.env, self.memory, self.block, self.slots, self.function, self.loop = env, memory, block, slots, function, loop
        self.roots = dict(roots_of(block))
        self.first: dict[Value, int] = {}  # of values that get memory here → the step that writes them
        self.borrowed: dict[Value, set[Value]] = {}  # may lie where these do
        self.passed: set[Value] = set()  # come in blocks of their own, or borrowed
        self.bound = {name: number + 1 for number, step in enumerate(block.steps) for name in step.binds}
        self.written = {self.root(value) for step in block.steps for value in written_by(step)}

    def root(self, value: Value) -> Value:
        return self.roots.get(value, value)

    def plan(self) -> Plan:
        """Returns the plan of what lies in a region around."""
        reads = last_reads(self.block)
        inner: list[tuple[int, Value]] = []  # memory of steps themselves, while they run
        buffers: list[tuple[int, Value, Value]] = []  # that end with the third
        for number, step in enumerate(self.block.steps):
            match step:
                case Launch():
                    self._partials(number, step, inner)
                case If():
                    self._branches(step)
                case While():
                    self._loop(number, step, reads, inner, buffers)
                case Call():
                    placed = places_of(step.function)
                    self.passed |= {each for place, each in enumerate(step.made) if place not in placed and each not in self.roots}
                case _:
                    pass
            for result in step.results:
                if result not in self.roots and result not in self.passed and result not in self.borrowed:
                    self.first[result] = number
        last = self._last(reads)
        ways, direct, blocks = self._ways()
        passed = {self.root(value) for value, way in zip(self.block.values, ways, strict=True) if way is Way.PASS}
        lifetimes = [Lifetime(value, number, max(last.get(value, number), number)) for value, number in self.first.items()
                     if value not in direct and value not in blocks]  # fmt: skip
        lifetimes += [Lifetime(value, number, number) for number, value in inner]
        lifetimes += [Lifetime(value, number, max(last.get(until, number), number)) for number, value, until in buffers]
        around, regions = self._regions(lifetimes)
        self.memory.blocks[self.block] = BlockMemory(regions, around, frozenset(blocks), frozenset(passed), direct, ways)
        return around

    # --- steps with blocks ----------------------------------------------------------------------------------------------

    def _branches(self, step: If) -> None:
        ties = dict(step.reuses)
        own = set(step.symbols)
        slots: list[Slot] = []
        for result in step.made:
            known = not symbols_of(result.dims) & own
            keep = result in ties
            lent = result not in self.written
            slots.append(Slot(result.dims if known else None, lent=lent, written=frozenset(self.written), keep=keep))
            if not known and not keep:
                self.passed.add(result)
        for block in step.blocks:
            _Block(self.env, self.memory, block, slots).plan()
            for result, value, way in zip(step.made, block.values, self.memory.blocks[block].ways, strict=True):
                if way is Way.LEND:
                    place = roots_of(block).get(value, value)
                    self.borrowed.setdefault(result, set()).add(self.root(place))

    def _loop(
        self, number: int, step: While, reads: Mapping[Value, int], inner: list[tuple[int, Value]], buffers: list[tuple[int, Value, Value]]
    ) -> None:
        carried = {each.symbol for each in step.sizes}
        written = {value for each in step.body.steps for value in written_by(each)}
        written = {roots_of(step.body).get(value, value) for value in written}
        ways: list[Carry] = []
        copied: list[bool] = []
        pairs: list[tuple[Value, ...]] = []
        for each in step.values:
            grows = bool(symbols_of(each.argument.dims) & carried)
            way = Carry.IN_PLACE if stays(step, each.argument) else Carry.BLOCKS if grows else Carry.SWAP
            touched = each.argument in written or not self.written.isdisjoint((each.result, self.root(each.initial)))
            free = way is Carry.IN_PLACE and self._free(number, step, each.initial, reads)
            ways.append(way)
            copied.append(touched and not free)
            late = way is Carry.IN_PLACE and copied[-1] and bool(symbols_of(each.result.dims) & set(step.binds))
            sides = ("a", "b") if way is Carry.SWAP else ("a",) if late else ()
            own = tuple(replace(each.initial, name=f"{each.result.name}.{side}") for side in sides)
            buffers += [(number, buffer, each.result) for buffer in own]
            pairs.append(own)
            if way is Carry.IN_PLACE and not copied[-1]:
                self.roots[each.result] = self.root(each.initial)
            elif own:
                self.borrowed[each.result] = set() if copied[-1] else {self.root(each.initial)}
            elif way is Carry.BLOCKS:
                self.passed.add(each.result)
                self.borrowed[each.result] = set() if copied[-1] else {self.root(each.initial)}
        slots = [
            Slot(None if way is Carry.BLOCKS else each.argument.dims, argument=each.argument, keep=way is Carry.IN_PLACE)
            for each, way in zip(step.values, ways, strict=True)
        ]
        plan = _Block(self.env, self.memory, step.body, slots, loop=step).plan()
        arena = Value(f"arena of {step.values[0].result.name if step.values else step.sizes[0].result}", "i8", (plan.size,))
        if plan.offsets:
            inner.append((number, arena))
        self.memory.loops[step] = Loop(tuple(ways), tuple(copied), tuple(pairs), arena)

    def _free(self, number: int, step: While, initial: Value, reads: Mapping[Value, int]) -> bool:
        """Whether a loop may write over an initial value: it has memory here, and nothing else reads it from now on."""
        root = self.root(initial)
        group = self._sharing(root)
        inside = {value for each in step.body.steps for value in reads_of(each)} | set(step.body.values)
        others = sum(self.root(each.initial) == root for each in step.values) > 1
        later = any(reads.get(value, -1) > number for value in group)
        return self._writable(root) and not others and not later and not group & inside

    def _sharing(self, root: Value) -> set[Value]:
        """The values that lie, or may lie, in the memory of a root."""
        places = {root}
        while True:
            more = {value for value, around in self.borrowed.items() if self.root(value) not in places and around & places}
            if not more:
                return {value for value in (*self.roots, *self.borrowed, root) if self.root(value) in places}
            places |= more

    def _writable(self, root: Value) -> bool:
        if self.function is not None:
            modes = {each.value: each.mode for each in self.function.parameters}
            if root in modes:
                return modes[root] is not Mode.READ
        arguments = {each.argument for each in self.loop.values} if self.loop is not None else set[Value]()
        return root in self.first or root in arguments

    def _partials(self, number: int, step: Launch, inner: list[tuple[int, Value]]) -> None:
        """The memory in which the tasks of a launch hand values on; a function's block has one for all, unless its size comes late."""
        size = step.kernel.partials
        if size is None or (self.function is not None and not symbols_of([size]) & set(self.bound)):
            return
        value = Value(f"partials of {step.results[0].name}", "i8", (size,))
        self.memory.partials[step] = value
        inner.append((number, value))

    # --- lifetimes, places ----------------------------------------------------------------------------------------------

    def _last(self, reads: Mapping[Value, int]) -> dict[Value, int]:
        """Of every memory, by its root: the last step that reads what is in it."""
        last: dict[Value, int] = {}
        for value, number in reads.items():
            last[self.root(value)] = max(last.get(self.root(value), 0), number)
        for step in reversed(self.block.steps):
            for result in step.results:
                for place in self.borrowed.get(result, ()):
                    last[place] = max(last.get(place, 0), last.get(self.root(result), 0))
        return last

    def _ways(self) -> tuple[tuple[Way, ...], dict[Value, int], set[Value]]:
        """(how each returned value leaves, what is computed in the memory of a slot, what in blocks of its own)."""
        ways: list[Way] = []
        direct: dict[Value, int] = {}
        blocks: set[Value] = set()
        for number, (value, slot) in enumerate(zip(self.block.values, self.slots, strict=True)):
            root = self.root(value)
            taken = root in direct or root in blocks
            if slot.keep:
                ways.append(Way.KEEP)
            elif slot.dims is not None:
                fits = same_dims(self.env, root.dims, slot.dims) and root.element == value.element
                ways.append(Way.DIRECT if root in self.first and not taken and fits else Way.COPY)
            elif root in self.first and not taken and root not in self._lent():
                ways.append(Way.OWN)
            elif root in self.passed and root not in self._lent() and self.borrowed.get(root, set()) <= self._lendable(slot):
                ways.append(Way.PASS)
                self.passed.remove(root)  # to one alone
            else:
                ways.append(Way.LEND if slot.lent and root not in slot.written and self._is_around(root) else Way.COPY)
            if ways[-1] is Way.DIRECT:
                direct[root] = number
            elif ways[-1] is Way.OWN:
                blocks.add(root)
        return tuple(ways), direct, blocks

    def _lent(self) -> set[Value]:
        """What another value may lie in without having memory of its own."""
        return {place for places in self.borrowed.values() for place in places}

    def _lendable(self, slot: Slot) -> set[Value]:
        return {slot.argument} if slot.argument is not None else set()

    def _is_around(self, root: Value) -> bool:
        return root not in self.first and root not in self.passed and root not in self.borrowed

    def _regions(self, lifetimes: Sequence[Lifetime]) -> tuple[Plan, tuple[Region, ...]]:
        """(what lies in a region around, own regions in order). The entry of a function always has one."""
        around: list[Lifetime] = []
        at: dict[int, list[Lifetime]] = {0: []} if self.function is not None else {}
        carried = {each.symbol for each in self.loop.sizes} if self.loop is not None else set[str]()
        for each in lifetimes:
            names = symbols_of(each.value.dims)
            position = max((self.bound.get(name, 0) for name in names), default=0)
            fixed = self.loop is not None and position == 0 and not names & carried
            if fixed and not any(risky(self.env, dim) for dim in each.value.dims):
                around.append(each)
            else:
                at.setdefault(position, []).append(each)
        regions = (Region(position, self.memory.plan(self.env, at[position])) for position in sorted(at))
        return self.memory.plan(self.env, around), tuple(regions)
