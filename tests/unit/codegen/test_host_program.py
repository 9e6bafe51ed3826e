"""Host programs that are trees of steps, compiled and run through the runtime, against an evaluation in Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from host_programs import COUNT, MIXES, Handed, Sizes, Writer, Written, below
from host_trees import TREES, random_tree

from disc.codegen.host.steps import Mode, Value
from disc.errors import AliasError, InputTypeError, ShapeConstraintError
from disc.shapes import Condition, Dim

SIZES = ((0, 0), (0, 3), (1, 0), (1, 1), (1, 2), (2, 7), (7, 3), (5, 29), (97, 5))


def check(written: Written, sizes: tuple[int, ...]) -> None:
    inputs = written.inputs(sizes)
    wanted = written.evaluate([each.copy() for each in inputs])
    for number, (one, other) in enumerate(zip(written.run(inputs), wanted, strict=True)):
        np.testing.assert_array_equal(one, other, err_msg=f"result {number} at {sizes}")


@pytest.mark.parametrize("name", TREES)
def test_hand_written_programs_compute_what_python_does(name: str) -> None:
    written = TREES[name]()
    symbols = list(written.program.sources)
    for sizes in SIZES:
        given = sizes[: len(symbols)]
        if all(size >= (written.program.env.range(Dim.symbol(symbol))[0] or 0) for symbol, size in zip(symbols, given, strict=True)):
            check(written, given)


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_compute_what_python_does(seed: int) -> None:
    written = random_tree(seed)
    for sizes in SIZES[::2]:
        check(written, sizes)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_many_random_programs(seed: int) -> None:
    written = random_tree(seed)
    for sizes in itertools.chain(SIZES, ((13, 13), (64, 65))):
        check(written, sizes)


def test_an_initial_value_that_is_read_later_is_left_alone() -> None:
    written = TREES["in_place_loop"]()
    inputs = written.inputs((7, 3))
    before = inputs[0].copy()
    results = written.run(inputs)
    assert np.array_equal(inputs[0], before)
    assert np.array_equal(results[2], before)


def test_a_donated_cache_is_not_copied() -> None:
    written = TREES["decode_step"]()
    cache, token, _ = written.inputs((13, 4))
    wanted = written.evaluate([cache.copy(), token, np.array([3])])
    total = written.run([cache, token, np.array([3])])[1]
    assert np.array_equal(cache, wanted[0])
    assert total == wanted[1]
    stats = written.executable.stats()
    assert (stats["copied_inputs"], stats["copied_bytes"]) == (0, 0)
    assert not np.array_equal(wanted[0][3], written.inputs((13, 4))[0][3])


def test_a_state_is_kept_from_call_to_call() -> None:
    written = TREES["state_slot"]()
    state, x = written.inputs((5,))
    for _ in range(3):
        wanted = written.evaluate([state.copy(), x])
        results = written.run([state, x])
        assert np.array_equal(state, wanted[0])
        assert np.array_equal(results[0], wanted[0])


def test_memory_does_not_grow_with_iterations() -> None:
    """A thousand iterations of a loop whose buffers have a size of their own in each hold what one does."""
    w = Writer()
    n, m = w.size(), w.size()
    x, _ = w.input(n), w.input(m)

    def body(sizes: Sizes, values: Sequence[Value]) -> Handed:
        size = n + (sizes[0] + 1) % 2
        return [w.launch(MIXES[1], values[0], dims=(size,))], [sizes[0] + 1, size]

    (result,), _ = w.loop([0, n], [x], lambda sizes: below(sizes[0], m), body, lambda sizes: [(sizes[1],)])
    written = w.finish(result)
    inputs = written.inputs((1000, 1000))
    written.run(written.inputs((1000, 3)))
    held = int(written.executable.stats()["arena_bytes"])  # pyright: ignore[reportArgumentType]
    written.run(inputs)
    assert int(written.executable.stats()["arena_bytes"]) <= 2 * held  # pyright: ignore[reportArgumentType]


def test_an_input_that_is_written_to_must_be_the_memory_of_the_caller_and_of_nobody_else() -> None:
    written = TREES["state_slot"]()
    both = np.zeros(10, np.int64)
    with pytest.raises(AliasError, match=r"input 'x0' \(argument 0\): is written to, and overlaps input 'x1'"):
        written.executable(both[:6], both[4:])
    with pytest.raises(AliasError, match=r"input 'x0' \(argument 0\): is written to, and is not contiguous"):
        written.executable(both[::2], np.zeros(5, np.int64))
    with pytest.raises(AliasError, match="overlaps input 'x0'"):
        written.executable(both[:5], np.zeros(5, np.int64), out=(both[:5], np.zeros((), np.int64)))
    fixed = np.zeros(5, np.int64)
    fixed.flags.writeable = False
    with pytest.raises(InputTypeError, match=r"input 'x0' \(argument 0\): .*read-only"):
        written.executable(fixed, np.zeros(5, np.int64))
    assert not both.any()
    written.executable(both[:5], both[5:])
    assert both[:5].any()
    assert not both[5:].any()
    kept = torch.zeros(5, dtype=torch.int64)
    written.executable(kept, torch.zeros(5, dtype=torch.int64))
    assert np.array_equal(kept.numpy(), both[:5])


# --- memory that is shared only where nobody can tell -------------------------------------------------------------------


def adding_loop(w: Writer, values: list[Value], m: Dim, *others: Value) -> tuple[Value, ...]:
    """A loop of `m` iterations that writes over its values."""

    def body(sizes: Sizes, carried: Sequence[Value]) -> Handed:
        return [w.launch(MIXES[1], each, *others, dims=each.dims, over=each) for each in carried], [sizes[0] + 1]

    return w.loop([0], values, lambda sizes: below(sizes[0], m), body)[0]


def read_after_the_loop(w: Writer, own: Value, m: Dim) -> list[Value]:
    return [*adding_loop(w, [own], m), own]


def read_in_the_loop(w: Writer, own: Value, m: Dim) -> list[Value]:
    return [*adding_loop(w, [own], m, own)]


def carried_twice(w: Writer, own: Value, m: Dim) -> list[Value]:
    return [*adding_loop(w, [own, own], m)]


def written_over_after_a_loop_that_only_reads(w: Writer, own: Value, m: Dim) -> list[Value]:
    """Without an iteration the loop's result is its initial value, which is gone by then."""

    def body(sizes: Sizes, carried: Sequence[Value]) -> Handed:
        return [w.launch(MIXES[2], carried[0], dims=own.dims)], [sizes[0] + 1]

    (result,), _ = w.loop([0], [own], lambda sizes: below(sizes[0], m), body)
    return [w.launch(MIXES[3], own, dims=own.dims, over=own), result]


def written_over_after_a_branch_that_lends(w: Writer, own: Value, m: Dim) -> list[Value]:
    """One branch returns the value itself, of a size that the branches return."""

    def grow() -> Handed:
        return [w.launch(MIXES[2], own, dims=(m * 2,))], [m * 2]

    (result,), _ = w.branch(below(m, 2), grow, lambda: ([own], [own.dims[0]]), lambda sizes: [sizes], 1)
    return [w.launch(MIXES[3], own, dims=own.dims, over=own), result]


def carried_on_from_another_slot(w: Writer, own: Value, m: Dim) -> list[Value]:
    """The next value may be the block of memory of another slot, which is freed when that goes on."""

    def body(sizes: Sizes, carried: Sequence[Value]) -> Handed:
        count, first, second = sizes

        def grow() -> Handed:
            return [w.launch(MIXES[2], carried[0], dims=(first + 1,))], [first + 1]

        (value,), (size,) = w.branch(below(count, 1), grow, lambda: ([carried[1]], [second]), lambda own: [own], 1)
        return [value, w.launch(MIXES[3], *carried, dims=(second + 2,))], [count + 1, size, second + 2]

    size = own.dims[0]
    results, _ = w.loop([0, size, size], [own, own], lambda sizes: below(sizes[0], m), body, lambda sizes: [(sizes[1],), (sizes[2],)])
    return list(results)


def returned_by_a_branch_alone(w: Writer, own: Value, m: Dim) -> list[Value]:
    other = w.fill(1, *own.dims)
    (result,), _ = w.branch(below(m, 2), lambda: ([w.fill(0, *own.dims)], []), lambda: ([own], []), lambda _: [own.dims])
    return [w.launch(MIXES[2], result, other, dims=own.dims)]


@pytest.mark.parametrize(
    "end",
    [
        read_after_the_loop,
        read_in_the_loop,
        carried_twice,
        written_over_after_a_loop_that_only_reads,
        written_over_after_a_branch_that_lends,
        carried_on_from_another_slot,
        returned_by_a_branch_alone,
    ],
)
def test_a_value_stays_as_it_is_as_long_as_somebody_reads_it(end: Callable[[Writer, Value, Dim], list[Value]]) -> None:
    w = Writer()
    n, m = w.size(), w.size()
    x, _ = w.input(n), w.input(m)
    written = w.finish(*end(w, w.launch(MIXES[0], x, dims=(n,)), m))
    for sizes in ((5, 0), (5, 1), (7, 2), (64, 5), (0, 3)):
        check(written, sizes)


# --- what steps rely on is checked --------------------------------------------------------------------------------------


def test_a_size_that_is_read_is_checked_against_its_range() -> None:
    w = Writer()
    x = w.input(w.size())
    size = w.read(w.launch(COUNT, x), low=1, high=4)
    written = w.finish(w.launch(MIXES[0], x, dims=(size,)))
    for elements, good in ((0, False), (1, True), (4, True), (5, False)):
        given = np.arange(elements, dtype=np.int64) * 3
        if good:
            assert written.run([given])[0].shape == (elements,)
        else:
            with pytest.raises(ShapeConstraintError, match=f"N2 must be at (least 1|most 4): got {elements}"):
                written.executable(given)


def test_a_failing_step_in_a_loop_ends_the_call_and_the_next_one_runs() -> None:
    """The size that a loop carries leaves its range in the third iteration; blocks of memory are held then."""
    w = Writer()
    n, m = w.size(), w.size()
    x, _ = w.input(n), w.input(m)

    def body(sizes: Sizes, values: list[Value]) -> Handed:
        size = w.read(w.launch(COUNT, values[0]), high=8)
        return [w.launch(MIXES[0], values[0], dims=(sizes[1] * 2,))], [sizes[0] + size * 0 + 1, sizes[1] * 2]

    (result,), _ = w.loop([0, n], [x], lambda sizes: below(sizes[0], m), body, lambda sizes: [(sizes[1],)])  # pyright: ignore[reportArgumentType]
    written = w.finish(result)
    for _ in range(3):
        with pytest.raises(ShapeConstraintError, match="must be at most 8: got 12"):
            written.executable(np.zeros(12, np.int64), np.zeros(3, np.int64))
        check(written, (3, 2))


def test_shapes_of_branches_are_checked_where_they_are_not_proved() -> None:
    w = Writer()
    n, m = w.size(), w.size()
    x, z = w.input(n), w.input(m)
    (result,), _ = w.branch(below(n, 5), lambda: ([w.copy(x)], []), lambda: ([w.copy(z)], []), lambda _: [(n,)])
    written = w.finish(result)
    check(written, (3, 7))
    check(written, (7, 7))
    with pytest.raises(ShapeConstraintError, match="a dim 7 must be 9"):
        written.run(written.inputs((9, 7)))


def test_a_branch_may_ask_whether_a_size_can_be_divided_by() -> None:
    """What divides by `m` is computed in the branch alone, so `m` may be 0."""
    w = Writer()
    n, m = w.size(), w.size()
    x, _ = w.input(n), w.input(m)
    count = n // m
    (result,), _ = w.branch(
        Condition.of(">", m, Dim.of(0)), lambda: ([w.launch(MIXES[0], x, dims=(count,))], [count]), lambda: ([x], [n]), lambda own: [own], 1
    )
    written = w.finish(result)
    for sizes in ((7, 0), (7, 2), (0, 0), (2, 7)):
        check(written, sizes)


def test_a_result_larger_than_the_donated_memory_is_refused() -> None:
    w = Writer()
    n, m = w.size(), w.size()
    x, z = w.input(n, mode=Mode.DONATED), w.input(m)
    written = w.finish(w.launch(MIXES[0], x, z, dims=(m,), over=x))
    inputs = written.inputs((7, 3))
    wanted = written.evaluate([each.copy() for each in inputs])
    assert np.array_equal(written.run(inputs)[0][:3], wanted[0])
    with pytest.raises(ShapeConstraintError, match="in bytes: 64 must be at most 56"):
        written.run(written.inputs((7, 8)))


def test_a_condition_whose_sizes_do_not_fit_is_an_error() -> None:
    w = Writer()
    n, m = w.size(), w.size()
    x, _ = w.input(n), w.input(m)
    many = math.prod([m] * 10, start=Dim.of(1))
    (result,), _ = w.branch(below(many, 5), lambda: ([w.copy(x)], []), lambda: ([x], []), lambda _: [(n,)])
    written = w.finish(result)
    check(written, (3, 0))
    check(written, (3, 63))
    with pytest.raises(ShapeConstraintError, match="is too large"):
        written.run(written.inputs((3, 65)))
