"""Which results of a host program may be computed where an input lies, and what its launches wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from host_programs import COUNT, MIXES, TOTAL, Writer, below

from disc.codegen.host.memory import plan_memory
from disc.codegen.host.program import Program
from disc.codegen.host.replaced import replaced_inputs, with_last
from disc.codegen.host.steps import Function, Launch, Value
from disc.shapes import Dim


class Updates(Writer):
    """Programs whose launches may write the first result over the first operand."""

    def update(self, old: Value, *others: Value, **kernel: object) -> Value:
        new = self.launch(MIXES[0], old, *others, dims=old.dims)
        (*_, launch) = self.current()
        assert isinstance(launch, Launch)
        own = replace(launch.kernel, **kernel)  # pyright: ignore[reportArgumentType]
        self.current()[-1] = replace(launch, kernel=own, over=((new, old),))
        return new

    def replaced(self, wanted: Mapping[Value, Value], *values: Value, remote: bool = False) -> tuple[dict[int, int], list[str]]:
        """Of the outputs, the inputs in whose memory they may be computed; and what is launched, in order."""
        program = self.finish(*values).program
        block = with_last(self.env, program.entry.block, wanted)
        changed = Program(self.env, (Function("disc_entry", program.entry.parameters, block),), program.sources, [], {}, {}, str, remote)
        names = [step.name for step in block.steps if isinstance(step, Launch)]
        return replaced_inputs(changed, plan_memory(changed), wanted), names


def test_updates_come_last_and_replace() -> None:
    """One whose result another update reads stands before that; other launches come first, also those that read the old value."""
    w = Updates()
    x, first, second = (w.input(8) for _ in range(3))
    new = w.update(first, x)
    newer = w.update(second, new)
    total = w.launch(TOTAL, first)
    found, names = w.replaced({new: first, newer: second}, total, newer, new)
    assert found == {2: 1, 1: 2}
    assert names == ["total_2", "mix0_0", "mix0_1"]


def test_only_where_the_caller_puts_them() -> None:
    w = Updates()
    x, old = w.input(8), w.input(8)
    new = w.update(old, x)
    assert w.replaced({}, new)[0] == w.replaced({new: x}, new)[0] == {}
    assert w.replaced({new: old}, new, remote=True)[0] == {}
    assert w.replaced({new: old}, new)[0] == {0: 1}


def test_old_values_that_are_needed() -> None:
    """Returned as they are; read by a launch that needs the new value; read by another update."""
    w = Updates()
    old = w.input(8)
    new = w.update(old)
    assert w.replaced({new: old}, new, old)[0] == {}
    w = Updates()
    old = w.input(8)
    new = w.update(old)
    late = w.launch(MIXES[1], old, new, dims=(8,))
    assert w.replaced({new: old}, new, late)[0] == {}
    w = Updates()
    first, second = w.input(8), w.input(8)
    one, other = w.update(first, second), w.update(second, first)
    assert w.replaced({one: first, other: second}, one, other)[0] == {1: 1}


def test_results_that_are_returned_twice_or_of_other_sizes() -> None:
    w = Updates()
    old = w.input(8)
    new = w.update(old)
    assert w.replaced({new: old}, new, new)[0] == {}
    w = Updates()
    n, m = w.size(), w.size()
    old, other = w.input(n), w.input(m)
    new = w.update(old)
    assert w.replaced({new: other}, new)[0] == {}


def test_nothing_that_may_fail_stands_behind() -> None:
    """A size that is read, a kernel that checks indices, one that needs memory, one that divides."""
    w = Updates()
    old = w.input(8)
    new = w.update(old)
    size = w.read(w.launch(COUNT, new))
    assert w.replaced({new: old}, new, w.launch(MIXES[1], old, dims=(size,)))[0] == {}
    for fault in ({"checks_indices": True}, {"scratch": Dim.of(64)}, {"divisors": (Dim.of(8),)}):
        w = Updates()
        first, second = w.input(8), w.input(8)
        new = w.update(first)
        newer = w.update(second, new, **fault)
        assert w.replaced({new: first, newer: second}, new, newer)[0] == {}
    w = Updates()
    x, old = w.input(8), w.input(8)
    new = w.update(old)
    n = w.read(w.launch(COUNT, x))
    assert w.replaced({new: old}, new, w.launch(MIXES[1], x, dims=(n,)))[0] == {0: 1}


def test_memory_that_is_written_over_meanwhile() -> None:
    """What an update reads lies where a later launch puts something else: it does not wait."""
    w = Updates()
    x, old = w.input(8), w.input(8)
    made = w.launch(MIXES[1], x, dims=(8,))
    new = w.update(old, made)
    over = w.launch(MIXES[2], made, x, dims=(8,), over=made)
    found, names = w.replaced({new: old}, new, over)
    assert names == ["mix1_0", "mix0_1", "over2_2"] and found == {0: 1}


def test_old_values_that_others_are() -> None:
    """What a loop begins with is what it gives where it has no steps, or where they hand it on; what both branches give is it as well."""
    for unchanged in (False, True):
        w = Updates()
        x, old = w.input(8), w.input(8)
        n = w.read(w.launch(COUNT, x))

        def body(
            sizes: Sequence[Dim], values: Sequence[Value], w: Updates = w, x: Value = x, unchanged: bool = unchanged
        ) -> tuple[Sequence[Value], Sequence[Dim]]:
            return [values[0] if unchanged else w.launch(MIXES[1], values[0], x, dims=(8,))], [sizes[0] + 1]

        (result,), _ = w.loop([0], [old], lambda sizes, n=n: below(sizes[0], n), body)
        assert w.replaced({(new := w.update(old, x)): old}, new, result)[0] == {}
    w = Updates()
    x, old = w.input(8), w.input(8)
    n = w.read(w.launch(COUNT, x))
    (result,), _ = w.branch(below(0, n), lambda: ([old], []), lambda: ([old], []), lambda sizes: [(8,)])
    assert w.replaced({(new := w.update(old, x)): old}, new, result)[0] == {}
