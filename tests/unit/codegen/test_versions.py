"""Versions that stand in the IR: which are compiled, what each may rely on, which are refused."""

from __future__ import annotations

import re

import pytest

from disc.codegen.build import Built, Part, build
from disc.codegen.choose_kernels import ChooseKernels
from disc.codegen.host.entry import counter_names
from disc.codegen.plan.listing import Means
from disc.codegen.plan.versions import RowVersion, read_version
from disc.errors import CompilerBug
from disc.ir.dialect import disc_context
from disc.ir.graph import Body, Snapshot
from disc.ir.ops import main_block
from disc.ir.passes import CompileState, run_passes
from disc.ir.stages import load_env, parse_module
from disc.ir.weights import WeightTable
from disc.shapes import Dim
from disc.speculation.guards import AtLeast, AtMost, BeyondCache, Divides, Equal, all_of
from disc.speculation.schedules import FAMILY
from disc.speculation.tree import every_schedule
from disc.targets.x86 import read_target

FUSED = """
"disc.symbolic_dim"() {{sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"}} : () -> ()
"disc.symbolic_dim"() {{sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"}} : () -> ()
"disc.symbolic_dim"() {{sym_name = "S2", min = 0 : i64, divisor = 1 : i64, source = "arg1.0"}} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>, %y: tensor<?xf32, [@S2]>) -> tensor<?x?xf32, [@S0, @S1]> {{
  %0 = "kernel.fusion"(%x, %y) ({{
  ^bb0(%a: tensor<?x?xf32, [@S0, @S1]>, %b: tensor<?xf32, [@S2]>):
    %1 = "disc.broadcast_in_dim"(%b) {{dims = array<i64: 1>, maybe = array<i64: 0>}} : (tensor<?xf32, [@S2]>) -> tensor<?x?xf32, [@S0, @S1]>
    %2 = stablehlo.add %a, %1 : tensor<?x?xf32, [@S0, @S1]>
    "kernel.yield"(%2) : (tensor<?x?xf32, [@S0, @S1]>) -> ()
  }}) {{kind = "loop", name = "loop_add", versions = [{versions}]}} : (tensor<?x?xf32, [@S0, @S1]>, tensor<?xf32, [@S2]>) -> tensor<?x?xf32, [@S0, @S1]>
  return %0 : tensor<?x?xf32, [@S0, @S1]>
}}
"""
S0, S1, S2 = (Dim.symbol(name) for name in ("S0", "S1", "S2"))


def compiled(*versions: str) -> Built:
    with disc_context():
        module = parse_module(FUSED.format(versions=", ".join(f'"{each}"' for each in versions)))
        targets = (read_target("x86-64-v3"),)
        run_passes(module, (ChooseKernels(every_schedule(FAMILY[:1])),), CompileState(targets=targets))
        return build([Part(module, tuple(targets))], WeightTable(), Means())


def fusion() -> Body:
    with disc_context():
        module = parse_module(FUSED.format(versions='""'))
        body = Snapshot(load_env(module)).block(main_block(module))
    found = next(node.body for node in body.nodes if node.op == "kernel.fusion")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        (("odd(S1)", ""), "'odd(S1)' is no guard that is known here"),
        (("divides(16, S9)", ""), "S9"),
        (("divides(S0, S1)", ""), "no guard that is known"),
        (("divides(16, S1)",), "the last version of fusion loop_add has the guard divides(16, S1)"),
    ],
    ids=["unknown", "undeclared", "malformed", "conditional"],
)
def test_what_cannot_be_compiled_is_refused(versions: tuple[str, ...], message: str) -> None:
    with pytest.raises(CompilerBug, match=re.escape(message)):
        compiled(*versions)


def test_guards_reach_the_counters() -> None:
    counters = counter_names(compiled("equal(S2, S1) and divides(16, S1)", "equal(S2, S1)", "").targets["x86-64-v3"].program.launches)
    assert counters == ["loop_add_0[equal(S2, S1) and divides(16, S1)]", "loop_add_0[equal(S2, S1)]", "loop_add_0[any shape]"]


def test_what_a_version_may_rely_on() -> None:
    body = fusion()
    whole, equal = Divides(16, S1), Equal(S2, S1)
    assert read_version(all_of(()), body) == RowVersion()
    both = all_of((equal, whole, AtLeast(64, S1), BeyondCache(S0)))
    assert read_version(both, body) == RowVersion(both, whole, resolved=True, streams=True)
    few = all_of((AtMost(4, S0), AtLeast(131072, S1)))
    assert read_version(few, body) == RowVersion(few, most_rows=AtMost(4, S0))


def test_no_version_relies_on_what_its_guard_does_not_say() -> None:
    """An equality of other sizes resolves no broadcast of this fusion; rows of a multiple of 8 are not whole vectors of 16."""
    body = fusion()
    assert not read_version(Equal(S2, S0), body).resolved
    eight = read_version(Divides(8, S1), body)
    assert (eight.whole_length(8), eight.whole_length(16)) == (S1, None)
