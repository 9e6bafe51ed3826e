"""Where the values of host programs lie: no two that live at the same time meet, and what need not be copied is not."""

from __future__ import annotations

import itertools
import random

import pytest
from host_programs import COUNT, MIXES, Handed, Sizes, Writer, Written, below
from host_trees import TREES, random_tree

from disc.codegen.host.buffers import LINE, Plan, buffer_bytes
from disc.codegen.host.lifetimes import reads_of
from disc.codegen.host.memory import Carry, Memory, Way, plan_memory
from disc.codegen.host.program import Program
from disc.codegen.host.steps import Block, If, Step, Value, While
from disc.shapes import Dim

VALUES = (0, 1, 2, 3, 7, 8, 64, 97)


class Places:
    """Which pieces of memory each value of a block may lie in, and from which step to which each piece is needed, by brute force."""

    def __init__(self, memory: Memory, block: Block) -> None:
        self.memory, self.block = memory, block
        self.lies: dict[Value, set[Value]] = {}
        self.first: dict[Value, int] = {}
        for number, step in enumerate(block.steps):
            for result in step.results:
                self.lies[result] = self._places(step, result)
            owned = {value for result in step.results for value in self.lies[result]} - set(self.first)
            self.first.update((value, number) for value in owned)
        self.last = dict(self.first)
        for number, step in enumerate(block.steps):
            self._need(set(reads_of(step)), number)
        self._need(set(block.values), len(block.steps))

    def _need(self, values: set[Value], number: int) -> None:
        for value in values:
            for place in self.lies.get(value, {value}):
                self.last[place] = max(self.last.get(place, 0), number)

    def _at(self, value: Value) -> set[Value]:
        return self.lies.get(value, {value})

    def _places(self, step: Step, result: Value) -> set[Value]:
        ties = dict(step.reuses)
        if result in ties:
            return self._at(ties[result])
        if isinstance(step, If):
            number = step.results.index(result)
            found = {result}
            for block in step.blocks:
                if self.memory.blocks[block].ways[number] in (Way.LEND, Way.KEEP):
                    found |= Places(self.memory, block)._at(block.values[number]) | self._at(block.values[number])
            return found
        if isinstance(step, While):
            number = step.results.index(result)
            loop = self.memory.loops[step]
            own = set(loop.buffers[number]) or {result}
            return own if loop.copied[number] else self._at(step.values[number].initial) | (own if loop.buffers[number] else set())
        return {result}


def check_plan(program: Program, plan: Plan, places: Places, sizes: dict[str, int], block: Block) -> None:
    spans: list[tuple[Value, int, int, int, int]] = []
    for value, offset in plan.offsets.items():
        start, size = offset.evaluate(sizes), buffer_bytes(program.env, value).evaluate(sizes)
        assert start % LINE == 0
        assert start + size <= plan.size.evaluate(sizes)
        first, last = places.first.get(value), places.last.get(value)
        if first is None or last is None:  # memory of a step itself
            first = last = next(number for number, step in enumerate(block.steps) if step_has(places.memory, step, value))
        spans.append((value, first, last, start, start + size))
    for one, other in itertools.combinations(spans, 2):
        if one[1] <= other[2] and other[1] <= one[2]:
            assert one[4] <= other[3] or other[4] <= one[3], (one, other, sizes)


def step_has(memory: Memory, step: Step, value: Value) -> bool:
    return (isinstance(step, While) and memory.loops[step].arena == value) or any(value is each for each in memory.partials.values())


def check_memory(written: Written, seed: int) -> int:
    """Returns how many values have a place in an arena."""
    program = written.program
    memory = plan_memory(program)
    generator = random.Random(seed)
    count = 0
    for block, plan in memory.blocks.items():
        places = Places(memory, block)
        bound = {name: number for number, step in enumerate(block.steps) for name in step.binds}
        for region in plan.regions:
            for value in region.plan.offsets:
                assert all(bound.get(name, -1) < region.position for dim in value.dims for name in dim.symbols())
                assert region.position <= places.first.get(value, len(block.steps))
        for arena in (plan.around, *(region.plan for region in plan.regions)):
            count += len(arena.offsets)
            for _ in range(6):
                sizes = {name: generator.choice(VALUES) for name in program.env.names()}
                check_plan(program, arena, places, sizes, block)
    return count


@pytest.mark.parametrize("name", TREES)
def test_values_of_hand_written_programs_never_meet(name: str) -> None:
    check_memory(TREES[name](), 0)


def test_values_of_random_programs_never_meet() -> None:
    assert sum(check_memory(random_tree(seed), seed) for seed in range(20)) > 200


def loop_of(written: Written) -> While:
    return next(step for step in written.program.entry.block.walk() if isinstance(step, While))


def test_what_a_loop_does_not_change_is_allocated_once() -> None:
    """The body's value of an unchanged size lies in the arena of the function, the one of a size that it carries in one of its own."""
    w = Writer()
    n = w.size()
    x = w.input(n)

    def body(sizes: Sizes, values: Sizes) -> Handed:
        fixed = w.launch(MIXES[0], values[0], dims=(n,))  # pyright: ignore[reportArgumentType]
        moving = w.launch(MIXES[1], fixed, dims=(sizes[0],))
        return [w.launch(MIXES[2], moving, fixed, dims=(n,))], [sizes[0] + 1]

    (result,), _ = w.loop([0], [x], lambda sizes: below(sizes[0], n), body)  # pyright: ignore[reportArgumentType]
    written = w.finish(result)
    memory, loop = plan_memory(written.program), loop_of(written)
    fixed, moving, _ = (step.results[0] for step in loop.body.steps)
    plan = memory.blocks[loop.body]
    assert set(plan.around.offsets) == {fixed}
    assert [(region.position, set(region.plan.offsets)) for region in plan.regions] == [(0, {moving})]
    assert memory.loops[loop].arena in memory.blocks[written.program.entry.block].regions[0].plan.offsets


def test_how_loops_carry_values() -> None:
    ways = {}
    for name in ("carried_loop", "in_place_loop", "growing_buffer", "append_loop"):
        written = TREES[name]()
        loop = plan_memory(written.program).loops[loop_of(written)]
        ways[name] = list(zip(loop.ways, loop.copied, strict=True))
    assert ways == {
        "carried_loop": [(Carry.SWAP, False)] * 2,
        "in_place_loop": [(Carry.IN_PLACE, True), (Carry.IN_PLACE, False)],
        "growing_buffer": [(Carry.BLOCKS, False)],
        "append_loop": [(Carry.BLOCKS, False)],
    }


def test_a_buffer_that_has_room_is_handed_on_without_a_copy() -> None:
    written = TREES["append_loop"]()
    memory, loop = plan_memory(written.program), loop_of(written)
    (branch,) = loop.body.steps
    assert isinstance(branch, If)
    assert memory.blocks[branch.then].ways == (Way.OWN,)
    assert memory.blocks[branch.otherwise].ways == (Way.LEND,)
    assert memory.blocks[loop.body].ways == (Way.PASS,)


def test_results_are_computed_where_the_caller_wants_them() -> None:
    written = TREES["branches"]()
    memory = plan_memory(written.program)
    same, sized = (step for step in written.program.entry.block.steps if isinstance(step, If))
    assert memory.blocks[same.then].ways == (Way.DIRECT,)
    assert memory.blocks[same.otherwise].ways == (Way.COPY,)
    assert memory.blocks[sized.then].ways == (Way.OWN,)
    assert memory.blocks[sized.otherwise].ways == (Way.LEND,)
    assert memory.blocks[written.program.entry.block].ways == (Way.DIRECT, Way.COPY, Way.DIRECT)


def test_a_size_that_may_not_be_computed_before_its_loop_stays_in_it() -> None:
    """`n // m` divides by 0 where the loop does not run."""
    w = Writer()
    n, m = w.size(), w.size()
    x, _ = w.input(n), w.input(m)

    def body(sizes: Sizes, values: Sizes) -> Handed:
        inner = w.launch(MIXES[0], values[0], dims=(n // m,))  # pyright: ignore[reportArgumentType]
        return [w.launch(MIXES[1], inner, dims=(n,))], [sizes[0] + 1]

    (result,), _ = w.loop([0], [x], lambda sizes: below(sizes[0], m), body)  # pyright: ignore[reportArgumentType]
    written = w.finish(result)
    loop = loop_of(written)
    assert not plan_memory(written.program).blocks[loop.body].around.offsets
    for sizes in ((5, 0), (5, 2)):
        inputs = written.inputs(sizes)
        assert (written.run(inputs)[0] == written.evaluate(inputs)[0]).all()


def test_arenas_begin_where_sizes_become_known() -> None:
    w = Writer()
    x = w.input(w.size())
    size = w.read(w.launch(COUNT, x))
    own = w.launch(MIXES[0], x, dims=(size,))
    written = w.finish(w.launch(MIXES[1], own, dims=(size + 1,)))
    regions = plan_memory(written.program).blocks[written.program.entry.block].regions
    assert [(region.position, [value.dims for value in region.plan.offsets]) for region in regions] == [(0, [()]), (2, [(size,)])]
    assert size == Dim.symbol("N2")
