"""Which results of a host program lie where what they are made of lay, and that programs then compute the same."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pytest
from host_programs import COUNT, MIXES, PUT, TOTAL, Writer, Written, below
from host_trees import random_tree

from disc.codegen.host.in_place import in_place
from disc.codegen.host.legality import verify
from disc.codegen.host.lifetimes import overwritten
from disc.codegen.host.memory import plan_memory
from disc.codegen.host.steps import Function, Launch, Mode, Parameter, Value
from disc.errors import AliasError, WrittenError
from disc.shapes import Dim, Valuation

SIZES = ((0, 0), (0, 3), (1, 1), (7, 3), (5, 29), (97, 5))


def changed(written: Written, apart: Collection[Value] = (), donated: Collection[Value] = ()) -> Written:
    """The program with results in the memory of what they are made of."""
    program = written.program
    entry, *others = program.functions
    block = in_place(program.env, entry.block, apart, donated)
    spoiled = overwritten(block)
    parameters = tuple(Parameter(each.value, Mode.DONATED if each.value in spoiled else each.mode) for each in entry.parameters)
    functions = (Function(entry.name, parameters, block, entry.symbols, entry.results, entry.returned), *others)
    return Written(replace(program, functions=functions, checks=[]), written.kinds, written.texts)


def pairs(written: Written) -> list[tuple[str, str]]:
    """The results that lie where an operand lay, and this."""
    launches = [step for step in written.program.entry.block.walk() if isinstance(step, Launch)]
    return [(result.name, operand.name) for launch in launches for result, operand in launch.ties]


def named(*given: tuple[Value, Value]) -> list[tuple[str, str]]:
    return [(result.name, operand.name) for result, operand in given]


def check(written: Written, sizes: tuple[int, ...], before: Written) -> None:
    inputs = before.inputs(sizes)
    wanted = before.evaluate([each.copy() for each in inputs])
    for number, (one, other) in enumerate(zip(written.run(inputs), wanted, strict=True)):
        np.testing.assert_array_equal(one, other, err_msg=f"result {number} at {sizes}")


def test_a_chain_lies_in_one_place() -> None:
    """Also where the chain ends with a result, in whose memory all of it is computed."""
    w = Writer()
    x = w.input(w.size())
    first = w.launch(MIXES[0], x, dims=x.dims)
    second = w.launch(MIXES[1], first, x, dims=x.dims, may_be_over=first)
    third = w.launch(MIXES[2], second, dims=x.dims, may_be_over=second)
    total = w.finish(w.launch(TOTAL, third))
    found = changed(total)
    assert pairs(found) == named((second, first), (third, second))
    sizes = [_arena(each, 97) for each in (total, found)]
    assert sizes[0] > sizes[1] > 0
    for size in (0, 1, 7, 97):
        check(found, (size,), total)
    w = Writer()
    x = w.input(w.size())
    first = w.launch(MIXES[0], x, dims=x.dims)
    result = w.finish(w.launch(MIXES[1], first, dims=x.dims, may_be_over=first))
    assert len(pairs(changed(result))) == 1 and _arena(changed(result), 97) == 0
    check(changed(result), (97,), result)


def _arena(written: Written, size: int) -> int:
    program = written.program
    (region,) = plan_memory(program).blocks[program.entry.block].regions
    return region.plan.size.evaluate(Valuation(dict.fromkeys(program.sources, size)))


def test_what_is_read_again_stays() -> None:
    """By a later step, the launch itself, the program's caller, or as the memory of another value."""
    w = Writer()
    x = w.input(8)
    first = w.launch(MIXES[0], x, dims=(8,))
    late = w.launch(MIXES[1], first, dims=(8,), may_be_over=first)
    assert pairs(changed(w.finish(late, w.launch(TOTAL, first)))) == []
    w = Writer()
    x = w.input(8)
    first = w.launch(MIXES[0], x, dims=(8,))
    assert pairs(changed(w.finish(w.launch(MIXES[1], first, first, dims=(8,), may_be_over=first)))) == []
    w = Writer()
    x = w.input(8)
    first = w.launch(MIXES[0], x, dims=(8,))
    assert pairs(changed(w.finish(w.launch(MIXES[1], first, dims=(8,), may_be_over=first), first))) == []
    w = Writer()
    x = w.input(8)
    first = w.launch(MIXES[0], x, dims=(8,))
    second = w.launch(MIXES[1], first, dims=(8,), may_be_over=first)
    third = w.launch(MIXES[2], second, dims=(8,), may_be_over=second)
    assert pairs(changed(w.finish(third, second))) == named((second, first))


def test_what_is_not_the_blocks_own_stays() -> None:
    """An input; what a loop begins with, and gives where it has no steps; in a branch, what was made around it."""
    w = Writer()
    x = w.input(8)
    assert pairs(changed(w.finish(w.launch(MIXES[1], x, dims=(8,), may_be_over=x)))) == []
    w = Writer()
    x = w.input(8)
    n = w.read(w.launch(COUNT, x))
    first = w.launch(MIXES[0], x, dims=(8,))
    (result,), _ = w.loop([0], [first], lambda sizes: below(sizes[0], n), lambda sizes, values: ([values[0]], [sizes[0] + 1]))
    new = w.launch(MIXES[1], first, dims=(8,), may_be_over=first)
    assert pairs(changed(w.finish(new, result))) == []
    w = Writer()
    x = w.input(8)
    n = w.read(w.launch(COUNT, x))
    first = w.launch(MIXES[0], x, dims=(8,))

    def made() -> tuple[Sequence[Value], Sequence[Dim]]:
        return [w.launch(MIXES[1], first, dims=(8,), may_be_over=first)], []

    (result,), _ = w.branch(below(n, 3), made, made, lambda sizes: [(8,)])
    assert pairs(changed(w.finish(result))) == []


def test_within_blocks() -> None:
    """What a branch or an iteration makes, and reads last."""

    def arm(w: Writer, x: Value, salt: int) -> tuple[Sequence[Value], Sequence[Dim]]:
        first = w.launch(MIXES[salt], x, dims=x.dims)
        return [w.launch(MIXES[salt + 1], first, x, dims=x.dims, may_be_over=first)], []

    w = Writer()
    x, y = w.input(w.size()), w.input(w.size())
    (one,), _ = w.branch(below(x.dims[0], y.dims[0]), lambda: arm(w, x, 1), lambda: arm(w, x, 3), lambda sizes: [x.dims])
    (two,), _ = w.loop(
        [0], [one], lambda sizes: below(sizes[0], y.dims[0]), lambda sizes, values: (arm(w, values[0], 5)[0], [sizes[0] + 1])
    )
    program = w.finish(two)
    found = changed(program)
    assert len(pairs(found)) == 3
    for sizes in SIZES:
        check(found, sizes, program)


def test_results_that_are_wanted_elsewhere_and_other_sizes() -> None:
    w = Writer()
    x, y = w.input(w.size()), w.input(w.size())
    first = w.launch(MIXES[0], x, dims=x.dims)
    result = w.launch(MIXES[1], first, dims=x.dims, may_be_over=first)
    program = w.finish(result)
    assert len(pairs(changed(program))) == 1 and pairs(changed(program, apart=[result])) == []
    w = Writer()
    x, y = w.input(w.size()), w.input(w.size())
    first = w.launch(MIXES[0], x, dims=x.dims)
    assert pairs(changed(w.finish(w.launch(MIXES[1], first, dims=y.dims, may_be_over=first)))) == []


def test_donated_inputs() -> None:
    """Are written over where nothing reads them later, and by what the program does not return: nothing says where that lies."""
    w = Writer()
    x, y = w.input(w.size()), w.input(w.size())
    first = w.launch(MIXES[1], x, y, dims=x.dims, may_be_over=x)
    second = w.launch(MIXES[2], first, dims=x.dims, may_be_over=first)
    program = w.finish(second)
    found = changed(program, donated=[x, y])
    assert pairs(found) == named((first, x)) and found.program.spoiled == (0,) and found.program.updated == ()
    assert _arena(found, 97) == 0
    for sizes in SIZES:
        check(found, sizes, program)
    w = Writer()
    x = w.input(8)
    first = w.launch(MIXES[1], x, dims=(8,), may_be_over=x)
    assert pairs(changed(w.finish(first), donated=[x])) == []
    w = Writer()
    x = w.input(8)
    total = w.launch(TOTAL, w.launch(MIXES[1], x, dims=(8,), may_be_over=x))
    assert pairs(changed(w.finish(total, x), donated=[x])) == []


def test_donated_inputs_that_a_result_would_lie_in() -> None:
    """Since that is put where another value lay, before or behind it."""
    for behind in (False, True):
        w = Writer()
        x = w.input(8)
        row, place = w.input(1), w.input(1)
        first = w.launch(MIXES[1], x, dims=(8,), may_be_over=x)
        second = w.launch(PUT, first, row, place, dims=(8,), over=first)
        last = w.launch(MIXES[2], second, dims=(8,), may_be_over=second) if behind else second
        found = changed(w.finish(last), donated=[x])
        assert found.program.updated == () and len(found.program.outputs) == 1
        assert pairs(found) == (named((first, x), (second, first)) if behind else named((second, first)))


def test_a_call_that_fails_when_inputs_may_be_written_over() -> None:
    """It says so; one that is refused before has written nothing."""
    w = Writer()
    x, y = w.input(w.size()), w.input(w.size())
    first = w.launch(MIXES[1], x, y, dims=x.dims, may_be_over=x)
    size = w.read(w.launch(COUNT, first), high=3)
    program = changed(w.finish(w.launch(MIXES[2], first, dims=(size,))), donated=[x])
    assert program.program.spoiled == (0,)
    given = [np.zeros(size, np.int64) for size in (50, 3)]
    with pytest.raises(WrittenError, match=r"had begun to write over inputs.*at most 3"):
        program.executable(*given)
    memory = np.zeros(100, np.int64)
    for wrong, what in ((memory[:50], "overlaps input"), (memory[::2], "is not contiguous")):
        with pytest.raises(AliasError, match=f"is written to, and {what}"):
            program.executable(wrong, memory[:3])
    assert not memory.any()


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    _check_random(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2000, 2300))
def test_many_random_programs_in_place(seed: int) -> None:
    _check_random(seed)


def _check_random(seed: int) -> None:
    before = random_tree(seed)
    given = random.Random(seed).sample(before.program.arguments, 1)
    after = changed(before, donated=[each for each in given if each not in before.program.entry.block.values])
    verify(after.program)
    assert after.program.updated == before.program.updated  # no result lies in what was donated
    for sizes in itertools.islice(SIZES, seed % 2, None, 2):
        check(after, sizes, before)


def test_random_programs_have_such_pairs() -> None:
    assert sum(len(pairs(changed(random_tree(seed)))) for seed in range(40)) > 20
