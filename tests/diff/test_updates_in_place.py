"""Slices that loops write, against StableHLO's reference interpreter: in place where nothing else reads what they are written over, and
right where something does. Starts that must be clamped, no trip, one, many."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stablehlo_oracle import OracleProgram
from torch._higher_order_ops import scan

import disc
from disc.errors import DiscError

BOX, PART, WORD, BIT = "tensor<NxTx6xf32>", "tensor<1x2x6xf32>", "tensor<i64>", "tensor<i1>"
IN_PLACE = "the slice alone is written"


def loop(name: str, boxes: str, body: str, returned: str) -> str:
    """A loop of %n trips that counts them in %i, around boxes that it carries, such as "%a = %x, %b = %x"."""
    count = boxes.count("=")
    return f"""
  %{name}:{count + 1} = stablehlo.while(%i = %zero, {boxes}) : {", ".join([WORD] + [BOX] * count)}
    cond {{ %p = stablehlo.compare LT, %i, %n : ({WORD}, {WORD}) -> {BIT}
      stablehlo.return %p : {BIT} }}
    do {{ %j = stablehlo.add %i, %one : {WORD}
      %at = stablehlo.add %i, %s : {WORD}
      {body}
      stablehlo.return %j, {returned} : {", ".join([WORD] + [BOX] * count)} }}"""


def update(result: str, box: str, part: str) -> str:
    return f"{result} = stablehlo.dynamic_update_slice {box}, {part}, %at, %t, %zero : ({BOX}, {PART}, {WORD}, {WORD}, {WORD}) -> {BOX}"


def part(result: str, box: str) -> str:
    return f"{result} = stablehlo.dynamic_slice {box}, %at, %t, %zero, sizes = [1, 2, 6] : ({BOX}, {WORD}, {WORD}, {WORD}) -> {PART}"


def program(loops: str, *returned: str) -> OracleProgram:
    return OracleProgram(f"""func.func @main(%x: {BOX}, %u: {PART}, %n: {WORD}, %s: {WORD}, %t: {WORD}) -> ({", ".join([BOX] * len(returned))}) {{
  %zero = stablehlo.constant dense<0> : {WORD}
  %one = stablehlo.constant dense<1> : {WORD}
  {loops}
  return {", ".join(returned)} : {", ".join([BOX] * len(returned))}
}}""")


def check(compiled: OracleProgram) -> None:
    random = np.random.default_rng(0)
    for n, t in ((1, 2), (3, 2), (5, 7), (2, 33)):
        values = [random.standard_normal(shape).astype(np.float32) for shape in ((n, t, 6), (1, 2, 6))]
        values[0][0, 0, :2] = np.nan, -0.0
        for trips, first, second in ((0, 0, 0), (1, 0, 1), (n, 0, t), (3, -2, -5), (4, n - 1, 3), (2, 2**62, -(2**63))):
            compiled.check({"N": n, "T": t}, inputs=[*values, np.array(trips), np.array(first), np.array(second)])


def in_place(compiled: OracleProgram) -> set[int]:
    """How many kernels write in place, on each target."""
    return {str(each.explain()).count(IN_PLACE) for each in compiled.executables}


def test_a_carried_value_that_is_read_before_is_written_in_place() -> None:
    """Two begin as one input, which is read afterwards; one takes what the other had."""
    body = f"{part('%v', '%b')}\n %w = stablehlo.negate %v : {PART}\n {update('%c', '%a', '%w')}\n {update('%d', '%b', '%u')}"
    compiled = program(loop("y", "%a = %x, %b = %x", body, "%c, %d") + f"\n%z = stablehlo.add %y#2, %x : {BOX}", "%y#1", "%z")
    assert in_place(compiled) == {2}
    check(compiled)


def test_values_that_are_read_afterwards_are_copied() -> None:
    """The old value is returned as well, makes the slice that is written over it, or is read by a branch."""
    late = f"""{update("%c", "%a", "%u")}
      %f = stablehlo.compare EQ, %i, %zero : ({WORD}, {WORD}) -> {BIT}
      %d = "stablehlo.if"(%f) ({{
        %g = stablehlo.subtract %b, %a : {BOX}
        stablehlo.return %g : {BOX}
      }}, {{
        %g = stablehlo.negate %a : {BOX}
        stablehlo.return %g : {BOX}
      }}) : ({BIT}) -> {BOX}"""
    loops = [
        loop("y", "%a = %x, %b = %x", update("%c", "%a", "%u"), "%c, %a"),
        loop("z", "%a = %x, %b = %y#1", update("%c", "%a", "%u"), "%b, %c"),
        loop("v", "%a = %z#1", f"{part('%d', '%a')}\n %e = stablehlo.add %d, %u : {PART}\n {update('%c', '%a', '%e')}", "%c"),
        loop("w", "%a = %y#1, %b = %x", late, "%c, %d"),
    ]
    compiled = program("\n".join(loops), "%y#1", "%y#2", "%z#1", "%z#2", "%v#1", "%w#1", "%w#2")
    assert in_place(compiled) == {1}  # of the second loop, whose next values change places
    check(compiled)


def test_loops_and_branches_within_write_what_a_loop_carries() -> None:
    inner = f"""%k:2 = stablehlo.while(%l = %zero, %b = %a) : {WORD}, {BOX}
        cond {{ %p = stablehlo.compare LT, %l, %i : ({WORD}, {WORD}) -> {BIT}
          stablehlo.return %p : {BIT} }}
        do {{ %m = stablehlo.add %l, %one : {WORD}
          {update("%c", "%b", "%u")}
          stablehlo.return %m, %c : {WORD}, {BOX} }}
      %odd = stablehlo.compare EQ, %i, %s : ({WORD}, {WORD}) -> {BIT}
      %h = "stablehlo.if"(%odd) ({{
        {update("%d", "%k#1", "%u")}
        stablehlo.return %d : {BOX}
      }}, {{
        stablehlo.return %k#1 : {BOX}
      }}) : ({BIT}) -> {BOX}
      %w = stablehlo.negate %u : {PART}
      {update("%e", "%h", "%w")}"""
    compiled = program(loop("y", "%a = %x", inner, "%e"), "%y#1")
    assert in_place(compiled) == {1}
    check(compiled)


class Stacks(torch.nn.Module):
    def forward(self, x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def step(state: torch.Tensor, at: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
            new = (state + at[0]).tanh()
            return new, (new * 2, state + 1, new.sum(-1) > 0, table.index_select(0, at[1].reshape(1)))

        last, stacked = scan(step, x.new_zeros(x.shape[1]), (x, index))
        return last, *stacked


def test_what_a_scan_stacks_is_written_in_place() -> None:
    model = Stacks().eval()
    table = torch.randn(9, 35)
    compiled = disc.compile(model, (torch.randn(6, 19), table, torch.randint(9, (6,))))
    assert str(compiled.explain()).count(IN_PLACE) == 4
    for rows in (1, 2, 7, 40):
        inputs = (torch.randn(rows, 19), table, torch.randint(9, (rows,)))
        torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)
    with pytest.raises(DiscError, match="index 9"):
        compiled(torch.randn(2, 19), table, torch.tensor([0, 9]))
