"""Blocks and steps in the host code: arenas, copies, branches, loops, and how what a block returns gets where it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from disc.codegen.host.buffers import LINE, Plan, buffer_bytes
from disc.codegen.host.flow import POINTER, Typed
from disc.codegen.host.launches import Launcher
from disc.codegen.host.lifetimes import places_of
from disc.codegen.host.memory import Carry, Memory, Way
from disc.codegen.host.program import Program
from disc.codegen.host.sizes import Sizes
from disc.codegen.host.steps import Allocate, Block, Call, Carried, Copy, Fill, If, Launch, Read, Step, Value, While
from disc.errors import CompilerBug
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim


@dataclass(frozen=True)
class Wanted:
    """What is wanted of a value that a block returns. dims: what it must have; place: the address of memory for it, "" for a block of its
    own; what: it, for messages."""

    dims: tuple[Dim, ...]
    place: str
    what: str


class Blocks:
    """Emits the blocks of one function. pointers: the addresses of values.

    owners: of values that come in blocks of memory of their own, or may (`If`, `While`): the address of that, null where it is none;
    given: those of them that steps have given the block which is emitted.
    partials: the address of memory in which the tasks of a launch hand values on, where it has none of its own.
    """

    def __init__(self, program: Program, memory: Memory, prefix: str, numbers: Mapping[Launch, int]) -> None:
        self.program, self.memory, self.env = program, memory, program.env
        self.sizes = Sizes(program)
        self.b = self.sizes.b
        self.pointers: dict[Value, str] = {}
        self.owners: dict[Value, str] = {}
        self.given: list[Value] = []
        self.launcher = Launcher(program, self.b, prefix, self.pointers, numbers)
        self.partials = ""

    def reach(self, block: Block, position: int) -> None:
        """What becomes known before a step with this number: for the block of a function to do more."""

    def block(self, block: Block, wanted: Sequence[Wanted], *, frees: bool = True) -> list[Typed]:
        """Emits a block. Returns what is to be handed on: for each value that comes in a block of its own its address and owner, then the
        sizes. frees: whether its arenas end with it, and what steps have given it."""
        plan = self.memory.blocks[block]
        for value, number in plan.direct.items():
            if wanted[number].place:
                self.pointers[value] = wanted[number].place
        around, self.given = self.given, []
        arenas: list[str] = []
        regions = {region.position: region.plan for region in plan.regions}
        for position, step in enumerate([*block.steps, None]):
            if position in regions:
                arenas.append(self.arena(regions[position]))
            self.reach(block, position)
            if step is not None:
                self._step(step, plan.blocks)
        handed = self._return(block, wanted)
        returned = [(self.sizes.value(size), "i64") for size in block.sizes]
        if frees:
            for value in self.given:
                if value not in plan.passed:
                    self._free_if_any(self.owners[value])
            for base in arenas:
                self.b.demand("free", base)
        self.given = around
        return [*handed, *returned]

    # --- memory ---------------------------------------------------------------------------------------------------------

    def arena(self, plan: Plan) -> str:
        """Allocates an arena; returns its address. Behind the values is a line, so that empty ones have an address."""
        base = self.b.demand("alloc", self.b.bytes(plan.size + LINE))
        self.place(base, plan)
        return base

    def place(self, base: str, plan: Plan, start: int = 0) -> None:
        """The addresses of values in an arena, `start` bytes behind its own."""
        for value, offset in plan.offsets.items():
            self.pointers[value] = self.b.offset(base, self.b.scalar(offset + start))

    def pointer(self, value: Value) -> str:
        """The address of a value, or of a weight."""
        slot = self.program.weight_slots.get(value)
        return self.pointers[value] if slot is None else self.launcher.weight(slot)

    def _own(self, dims: Sequence[Dim], element: str) -> str:
        """The address of a new block of memory for a value."""
        return self.b.demand("alloc", self.b.bytes(buffer_bytes(self.env, Value("", element, tuple(dims))) + LINE))

    def count(self, dims: Sequence[Dim], element: str) -> Dim:
        """Bytes of the elements."""
        return self.env.product(dims) * ELEMENT_BYTES[element]

    def _copy(self, to: str, source: Value, dims: Sequence[Dim]) -> None:
        self.b.demand("copy", to, self.pointer(source), self.b.bytes(self.count(dims, source.element)))

    def _free_if_any(self, owner: str) -> None:
        def free() -> list[str]:
            self.b.demand("free", owner)
            return []

        self.b.choose(self._is_there(owner), free, list)

    def _null(self) -> str:
        return self.b.constant("llvm.mlir.zero : !llvm.ptr")

    def _is_there(self, owner: str) -> str:
        return self.b.op(f'llvm.icmp "ne" {owner}, {self._null()} : !llvm.ptr')

    def _return(self, block: Block, wanted: Sequence[Wanted]) -> list[Typed]:
        handed: list[Typed] = []
        for value, way, each in zip(block.values, self.memory.blocks[block].ways, wanted, strict=True):
            if way is Way.DIRECT:
                continue  # proved to be what is wanted
            self.sizes.require_equal(value.dims, each.dims, each.what)
            if way is Way.KEEP:
                continue
            if way is Way.COPY and each.place:
                self.copy_out(each.place, value, each.dims)
                continue
            handed += [(pointer, POINTER) for pointer in self._handed(value, way)]
        return handed

    def copy_out(self, to: str, value: Value, dims: Sequence[Dim]) -> None:
        """Copies what a block returns to the place for it."""
        self._copy(to, value, dims)

    def _handed(self, value: Value, way: Way) -> tuple[str, str]:
        """(address, owner) of a value that is handed on in a block of memory of its own, or lent."""
        if way is Way.LEND:
            return self.pointer(value), self._null()
        if way is Way.COPY:
            new = self._own(value.dims, value.element)
            self._copy(new, value, value.dims)
            return new, new
        return self.pointers[value], self.owners[value]

    # --- steps ----------------------------------------------------------------------------------------------------------

    def _step(self, step: Step, blocks: frozenset[Value]) -> None:
        for value in step.results:
            if value in blocks:
                self.pointers[value] = self.owners[value] = self._own(value.dims, value.element)
        for result, operand in () if isinstance(step, Call | If) else step.reuses:
            what = f"{result.ref} in the memory of {operand.ref}, in bytes"
            self.sizes.require_at_most(self.count(result.dims, result.element), self.count(operand.dims, operand.element), what)
            self._same_place(result, operand)
        match step:
            case Launch():
                own = self.memory.partials.get(step)
                self.launcher.launch(step, self.partials if own is None else self.pointers[own], own is None)
            case Allocate():
                pass
            case Fill():
                size = self.b.bytes(self.count(step.made.dims, step.made.element))
                self.b.demand("fill", self.pointers[step.made], size, self.b.constant(f"arith.constant {step.byte} : i32"))
            case Copy():
                self._copy_step(step)
            case Read():
                self.sizes.bind(step.symbol, self.b.read(self.pointer(step.value)), checks=step.checks)
                self.sizes.check(step.checks)
            case Call():
                self._call(step)
            case If():
                self._if(step)
            case While():
                self._while(step)
            case _:
                raise CompilerBug(f"a host program cannot {type(step).__name__}")

    def _give(self, value: Value, pointer: str, owner: str) -> None:
        self.pointers[value], self.owners[value] = pointer, owner
        self.given.append(value)

    def _same_place(self, result: Value, operand: Value) -> None:
        self.pointers[result] = self.pointers[operand]
        if operand in self.owners:
            self.owners[result] = self.owners[operand]

    def _copy_step(self, step: Copy) -> None:
        b = self.b
        count = self.env.product(step.source.dims)
        to = self.pointers[step.made]
        if step.into is None:
            self.sizes.require_equal([count], [self.env.product(step.made.dims)], f"elements of {step.made.ref}")
        else:
            self.sizes.require_at_most(Dim.of(0), step.start, f"{step.made.ref} from an element")
            self.sizes.require_at_most(step.start + count, self.env.product(step.into.dims), f"{step.made.ref} up to an element")
            to = b.offset(to, b.scalar(step.start * ELEMENT_BYTES[step.made.element]))
        self._copy(to, step.source, step.source.dims)

    def _call(self, step: Call) -> None:
        b, function = self.b, step.function
        sizes = dict(zip(function.symbols, step.sizes, strict=True))
        for argument, parameter in zip(step.arguments, function.parameters, strict=True):
            what = f"{parameter.value.ref} of {function.name}"
            self.sizes.require_equal(argument.dims, replaced(parameter.value.dims, sizes), what)
        places = places_of(function)
        given = [(self.pointer(each), POINTER) for each in step.arguments] + [(self.sizes.value(each), "i64") for each in step.sizes]
        given += [(self.pointers[step.made[number]], POINTER) for number in places]
        blocks = [number for number in range(len(step.made)) if number not in places and number not in function.ties]
        types = ["i32", *(POINTER for _ in blocks), *("i64" for _ in step.symbols)]
        operands = [(f"%{name}", POINTER) for name in ("exec", "api", "weights", "counters")] + given
        inputs = ", ".join(type_ for _, type_ in operands)
        found = b.results(f"func.call @{function.name}({', '.join(name for name, _ in operands)}) : ({inputs}) -> ", types)
        b.leave_unless(b.op(f"arith.cmpi eq, {found[0]}, {b.constant('arith.constant 0 : i32')} : i32"))
        for number, pointer in zip(blocks, found[1:], strict=False):
            self._give(step.made[number], pointer, pointer)
        for number, parameter in function.ties.items():
            self._same_place(step.made[number], step.arguments[parameter])
        for name, value in zip(step.symbols, found[1 + len(blocks) :], strict=True):
            self.sizes.bind(name, value)
        named = sizes | dict(zip(function.returned, map(Dim.symbol, step.symbols), strict=True))
        for made, result in zip(step.made, function.results, strict=True):
            self.sizes.require_equal(made.dims, replaced(result.dims, named), made.ref)

    def _if(self, step: If) -> None:
        kept = dict(step.reuses)
        fresh = [each not in kept and bool({name for dim in each.dims for name in dim.symbols()} & set(step.symbols)) for each in step.made]

        def arm(block: Block) -> Callable[[], list[str]]:
            sizes = dict(zip(step.symbols, block.sizes, strict=True))
            wanted = [
                Wanted(replaced(made.dims, sizes), "" if new or made in kept else self.pointers[made], made.ref)
                for made, new in zip(step.made, fresh, strict=True)
            ]
            return lambda: [value for value, _ in self.block(block, wanted)]

        types = [*(POINTER for new in fresh for _ in range(2) if new), *("i64" for _ in step.symbols)]
        found = iter(self.b.choose(self.sizes.asks(step.condition), arm(step.then), arm(step.otherwise), types))
        for made, new in zip(step.made, fresh, strict=True):
            if made in kept:
                self._same_place(made, kept[made])
            elif new:
                self._give(made, next(found), next(found))
        for name, *given in zip(step.symbols, step.then.sizes, step.otherwise.sizes, strict=True):
            self.sizes.bind(name, next(found), given)

    # --- loops ----------------------------------------------------------------------------------------------------------

    def _while(self, step: While) -> None:
        """Carried are the sizes; then for a value in two buffers its address, the next one's and the other buffer's; for one in blocks its
        address and its owner."""
        b, loop = self.b, self.memory.loops[step]
        first = {each.symbol: each.initial for each in step.sizes}
        following = {each.symbol: size for each, size in zip(step.sizes, step.body.sizes, strict=True)}
        final = {each.symbol: Dim.symbol(each.result) for each in step.sizes}
        initial: list[Typed] = [(self.sizes.value(each.initial), "i64") for each in step.sizes]
        for each in step.values:
            self.sizes.require_equal(each.initial.dims, replaced(each.argument.dims, first), each.argument.ref)
        around = self.memory.blocks[step.body].around
        if around.offsets:
            self.place(self.pointers[loop.arena], around)
        places = [self._begin(step, number) for number in range(len(step.values))]
        initial += [(pointer, POINTER) for place in places for pointer in place]

        def open_(names: Sequence[str]) -> list[list[str]]:
            """The addresses by value."""
            rest = iter(names[len(step.sizes) :])
            return [[next(rest) for _ in place] for place in places]

        def condition(names: Sequence[str]) -> str:
            for each, value in zip(step.sizes, names, strict=False):
                self.sizes.bind(each.symbol, value, [each.initial, following[each.symbol]])
            return self.sizes.asks(step.condition)

        def body(names: Sequence[str]) -> list[str]:
            carried = open_(names)
            wanted: list[Wanted] = []
            for each, way, own in zip(step.values, loop.ways, carried, strict=True):
                if own:
                    self.pointers[each.argument] = own[0]
                target = own[1] if way is Carry.SWAP else ""
                wanted.append(Wanted(replaced(each.argument.dims, following), target, f"the next {each.argument.ref}"))
            handed = [value for value, _ in self.block(step.body, wanted)]
            sizes = handed[len(handed) - len(step.sizes) :]
            rest = iter(handed)
            return [*sizes, *(pointer for number, own in enumerate(carried) for pointer in self._next(step, number, own, rest))]

        names = b.repeat(initial, condition, body)
        for each, value in zip(step.sizes, names, strict=False):
            self.sizes.bind(each.result, value, [Dim.symbol(each.symbol)])
        for each, way, own in zip(step.values, loop.ways, open_(names), strict=True):
            if way is Carry.SWAP:
                self.pointers[each.result] = own[0]
            elif way is Carry.BLOCKS:
                self._give(each.result, own[0], own[1])
            self.sizes.require_equal(each.result.dims, replaced(each.argument.dims, final), each.result.ref)

    def _begin(self, step: While, number: int) -> list[str]:
        """The addresses that a value is carried with, () where it stays."""
        loop, each = self.memory.loops[step], step.values[number]
        way, copied, buffers = loop.ways[number], loop.copied[number], [self.pointers[buffer] for buffer in loop.buffers[number]]
        if way is Carry.IN_PLACE:
            if copied:
                self.pointers[each.result] = buffers[0] if buffers else self.pointers[each.result]
                self._copy(self.pointers[each.result], each.initial, each.initial.dims)
            else:
                self._take(each)
            self.pointers[each.argument] = self.pointers[each.result]
            return []
        if buffers:
            first, second = buffers
            if copied:
                self._copy(first, each.initial, each.initial.dims)
            return [first if copied else self.pointer(each.initial), second, first]
        if copied:
            new = self._own(each.initial.dims, each.initial.element)
            self._copy(new, each.initial, each.initial.dims)
            return [new, new]
        return [self.pointer(each.initial), self._null()]

    def _take(self, each: Carried) -> None:
        self.pointers[each.result] = self.pointer(each.initial)
        if each.initial in self.owners:
            self.owners[each.result] = self.owners[each.initial]

    def _next(self, step: While, number: int, own: list[str], handed: Iterator[str]) -> list[str]:
        """The addresses that a value is carried on with."""
        loop, b = self.memory.loops[step], self.b
        if loop.ways[number] is Carry.IN_PLACE:
            return []
        if loop.ways[number] is Carry.SWAP:
            return [own[1], own[2], own[1]]
        pointer, owner = next(handed), next(handed)
        if self.memory.blocks[step.body].ways[number] is not Way.PASS:
            self._free_if_any(own[1])
            return [pointer, owner]
        new = self._is_there(owner)

        def free() -> list[str]:
            self._free_if_any(own[1])
            return []

        b.choose(new, free, list)
        return [pointer, b.op(f"arith.select {new}, {owner}, {own[1]} : i1, !llvm.ptr")]


def replaced(dims: Sequence[Dim], sizes: Mapping[str, Dim]) -> tuple[Dim, ...]:
    """Dims with symbols replaced."""
    return tuple(dim.replace(sizes) for dim in dims)
