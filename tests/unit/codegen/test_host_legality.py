"""Host programs that are refused, each for the rule that it breaks; and what a program's text looks like."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from host_programs import COUNT, MIXES, Handed, Sizes, Writer, Written, below
from host_trees import TREES

from disc.codegen.host.legality import verify
from disc.codegen.host.steps import Fill, Mode, Read, Value
from disc.errors import CompilerBug


def unwritten() -> Written:
    w = Writer()
    w.input(w.size())
    return w.finish(w.value(3))


def late_symbol() -> Written:
    w = Writer()
    return w.finish(w.launch(MIXES[0], w.input(w.size()), dims=(w.size(),)))


def value_of_a_branch() -> Written:
    w = Writer()
    n = w.size()
    x = w.input(n)
    inner: list[Value] = []

    def arm() -> Handed:
        inner.append(w.copy(x))
        return [], []

    w.branch(below(n, 3), arm, arm)
    return w.finish(inner[0])


def written_twice() -> Written:
    w = Writer()
    x = w.input(w.size())
    w.add(Fill(x))
    return w.finish(x)


def bound_twice() -> Written:
    w = Writer()
    n = w.size()
    x = w.input(n)
    w.add(Read(str(n), w.launch(COUNT, x)))
    return w.finish(x)


def input_written_over() -> Written:
    w = Writer()
    n = w.size()
    x = w.input(n)
    return w.finish(w.launch(MIXES[0], x, dims=(n,), over=x))


def read_while_it_is_written_over() -> Written:
    w = Writer()
    n = w.size()
    x = w.input(n, mode=Mode.DONATED)
    return w.finish(w.launch(MIXES[0], x, x, dims=(n,), over=x))


def read_after_it_was_written_over() -> Written:
    w = Writer()
    n = w.size()
    x = w.input(n, mode=Mode.DONATED)
    return w.finish(w.launch(MIXES[0], x, dims=(n,), over=x), x)


def donated_and_read_again() -> Written:
    w = Writer()
    n = w.size()
    own = w.copy(w.input(n))

    def body(sizes: Sizes, values: Sequence[Value]) -> Handed:
        return [w.launch(MIXES[0], values[0], dims=sizes)], []

    function = w.function("f", 1, lambda sizes: [(sizes, Mode.DONATED)], body, lambda sizes, _: [sizes])
    (result,), _ = w.call(function, [own], [n], lambda _: [(n,)])
    return w.finish(result, own)


def outer_value_written_over_in_a_loop() -> Written:
    w = Writer()
    n = w.size()
    x = w.input(n)
    own = w.copy(x)

    def body(sizes: Sizes, values: Sequence[Value]) -> Handed:
        return [w.launch(MIXES[0], own, dims=(n,), over=own)], [sizes[0] + 1]

    results, _ = w.loop([0], [x], lambda sizes: below(sizes[0], n), body)
    return w.finish(*results)


def no_number() -> Written:
    w = Writer()
    w.add(Fill(w.value(3), 256))
    return w.finish()


def fact_about_a_read_size() -> Written:
    w = Writer()
    n, m = w.size(), w.size()
    x = w.input(n)
    w.input(m)
    size = w.read(w.launch(COUNT, x))
    w.env.equate(size * n, m * n)
    return w.finish(w.launch(MIXES[0], x, dims=(size,)))


LOOP = """\
function disc_entry(%1: i64[N1], %2: i64[N2]) {
  while N3 < N2 with N3 = 0 -> N5, N4 = N1 -> N6, %3: i64[N4] = %1 -> %7: i64[N6] {
    if N3 == N4 -> %6: i64[N7], N7 {
      fill %4: i64[N4 * 2 + 1] with 0
      copy %3 at 0 -> %5: i64[N4 * 2 + 1] in %4
      return %5, N4 * 2 + 1
    } else {
      return %3, N4
    }
    return %6, N3 + 1, N7
  }
  launch mix1_0(%7, %2) -> %8: i64[N6]
  launch total_1(%8) -> %9: i64[]
  return %7, %9
}
"""
FUNCTION = """\
function picks[N4](%7: i64[N4] donated) -> %11: i64[N6], %12: i64[N4], N6 {
  launch count_2(%7) -> %8: i64[]
  read N5 = %8
  launch pick_3(%7) -> %9: i64[N5]
  launch over3_4(%7) -> %10: i64[N4] in %7
  return %9, %10, N5
}"""

REFUSED: list[tuple[Callable[[], Written], str]] = [
    (unwritten, r"reads %2: i64\[3\] in `return`, which nothing has written"),
    (late_symbol, r"needs N2 in `launch mix0_0.*`, which nothing has bound"),
    (value_of_a_branch, r"reads %2: i64\[N1\] in `return`, which nothing has written"),
    (written_twice, r"writes %1: i64\[N1\] twice"),
    (bound_twice, r"binds N1 twice"),
    (input_written_over, r"writes over %1, which is not its own"),
    (read_while_it_is_written_over, r"reads what it writes over"),
    (read_after_it_was_written_over, r"reads %1 after `launch over0_0.*` wrote over it"),
    (donated_and_read_again, r"reads %2 after `call f.*` wrote over it"),
    (outer_value_written_over_in_a_loop, r"writes over %2, which is not its own"),
    (no_number, r"fills with 256"),
    (fact_about_a_read_size, r"relies on .*, which no step checks"),
]


@pytest.mark.parametrize(("write", "message"), REFUSED, ids=[write.__name__ for write, _ in REFUSED])
def test_a_program_that_breaks_a_rule_is_refused(write: Callable[[], Written], message: str) -> None:
    with pytest.raises(CompilerBug, match=message):
        verify(write().program)


def test_the_text_of_a_program() -> None:
    assert str(TREES["append_loop"]().program) == LOOP
    assert str(TREES["called_functions"]().program.functions[2]) == FUNCTION
