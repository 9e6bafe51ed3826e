"""What a task of a kernel costs, in cycles: by it the runtime decides how many threads join a launch."""

from __future__ import annotations

import pytest

from disc.codegen.build import Part, build
from disc.codegen.choose_kernels import ChooseKernels
from disc.codegen.plan.listing import Means
from disc.codegen.x86.function import product_cost
from disc.ir.dialect import disc_context
from disc.ir.passes import CompileState, run_passes
from disc.ir.stages import parse_module
from disc.ir.weights import WeightTable
from disc.shapes import Dim
from disc.speculation.schedules import FAMILY
from disc.speculation.tree import every_schedule
from disc.targets.x86 import ISAS, read_target

ALL = ISAS[-1]
K, M = Dim.symbol("k"), Dim.symbol("m")
SYMBOLS = "".join(
    f'"disc.symbolic_dim"() {{sym_name = "S{number}", min = 0 : i64, divisor = 1 : i64, source = "arg0.{number}"}} : () -> ()\n'
    for number in range(2)
)


@pytest.mark.parametrize(
    ("name", "element", "rate"),
    [
        ("x86-64-v3", "f32", 16), ("x86-64-v4", "f32", 32), ("x86-64-v3", "f64", 8), ("x86-64-v4", "f64", 16), ("x86-64-v4", "bf16", 32),
        (ALL, "bf16", 64), (ALL, "ui8", 128), (ALL, "f32", 32), ("x86-64-v4", "ui8", 32),
    ],
)  # fmt: skip
def test_a_product_costs_what_the_target_multiplies_per_cycle(name: str, element: str, rate: int) -> None:
    target = read_target(name)
    assert product_cost(target, (element, K * 640)) == K * 640 // rate + target.thresholds.task_cycles


def test_two_products_of_one_task() -> None:
    """Of attention; of one rate they are rounded together."""
    target = read_target(ALL)
    assert product_cost(target, ("f32", K), ("f32", M)) == (K + M) // 32 + target.thresholds.task_cycles
    assert product_cost(target, ("bf16", K), ("f32", M)) == K // 64 + M // 32 + target.thresholds.task_cycles


@pytest.mark.parametrize(("name", "lanes"), [("x86-64-v3", 8), ("x86-64-v4", 16)])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_task_of_a_scan_costs_its_own_steps(name: str, lanes: int, dim: int) -> None:
    """Along the last dim a task is a row, along another one all of it, in vectors."""
    kind = "tensor<?x?xf32, [@S0, @S1]>"
    text = f"""{SYMBOLS}func.func @main(%x: {kind}) -> {kind} {{
      %0 = "kernel.fusion"(%x) ({{
      ^bb0(%a: {kind}):
        %1 = "disc.cumulative"(%a) {{dim = {dim} : i64, kind = "max"}} : ({kind}) -> {kind}
        "kernel.yield"(%1) : ({kind}) -> ()
      }}) {{kind = "library", name = "scan"}} : ({kind}) -> {kind}
      return %0 : {kind}
    }}"""
    target = read_target(name)
    with disc_context():
        module = parse_module(text)
        run_passes(module, (ChooseKernels(every_schedule(FAMILY[:1])),), CompileState(targets=(target,)))
        (launch,) = build([Part(module, (target,))], WeightTable(), Means()).targets[name].program.launches
    rows, columns = Dim.symbol("S0"), Dim.symbol("S1")
    steps = columns if dim == 1 else rows * ((columns + (lanes - 1)) // lanes)
    assert launch.kernel.tasks == (rows if dim == 1 else Dim.of(1))
    assert launch.kernel.cost == steps * target.thresholds.scan_cycles + target.thresholds.task_cycles
