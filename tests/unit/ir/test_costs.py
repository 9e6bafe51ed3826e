"""The costs of decisions, each on both sides of the sizes at which two ways cost the same, and on devices that weigh otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disc.codegen.plan.rows import rows_to_keep
from disc.ir.costs import Costs
from disc.ir.dialect import disc_context
from disc.ir.graph import Body, Node
from disc.ir.stages import load_env, parse_module
from disc.shapes import Dim
from disc.speculation.versions import streamed_bytes
from disc.targets.select import select_targets, target_names
from disc.targets.x86_thresholds import CPU

COSTS = Costs.of(CPU)
SYMBOL = '"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()\n'


@pytest.mark.parametrize(
    ("way", "instructions"), [("load_near", 4), ("load_shared", 8), ("pass_through_memory", 32), ("keep", 12)]
)  # fmt: skip
def test_as_many_instructions_take_as_long(way: str, instructions: int) -> None:
    """Where each was chosen or measured, in instructions (`x86_thresholds.py`)."""
    seconds = getattr(COSTS, way)()
    assert COSTS.compute(instructions) == seconds
    assert COSTS.compute(instructions - 1) < seconds < COSTS.compute(instructions + 1)


def test_costs_are_seconds() -> None:
    assert COSTS.compute(8) == 1e-9, "four cycles at 4 GHz"
    assert COSTS.multiply(32 * 4_000_000_000) == 1.0
    twice = Costs.of(replace(CPU, rates=replace(CPU.rates, gigahertz=8)))
    assert twice.compute(8) == COSTS.compute(8) / 2 and twice.load_shared() == COSTS.load_shared() / 2
    assert Costs.of(replace(CPU, lanes=8)).multiply(32) == 2 * COSTS.multiply(32)


def test_transposing_blocks_is_cheaper_than_single_elements() -> None:
    assert COSTS.transpose(14) < COSTS.scatter(1) < COSTS.transpose(15)


def test_the_rates_of_the_device_are_those_of_its_widest_target() -> None:
    rates = [target.macs_per_cycle("f32") for target in select_targets(target_names())]
    assert COSTS.seconds(1) == COSTS.multiply(max(rates))


def row_kernel(negations: int) -> Body:
    """Rows that are negated so often, then summed and divided by the sum."""
    rows, sums = (Dim.symbol("S0"), Dim.symbol("S1")), (Dim.symbol("S0"),)
    nodes = [Node(0, "input", (), rows, "f32", {})]
    for number in range(negations):
        nodes.append(Node(number + 1, "stablehlo.negate", (nodes[-1],), rows, "f32", {}))
    start = Node(90, "stablehlo.constant", (), (), "f32", {})
    total = Node(91, "stablehlo.reduce", (nodes[-1], start), sums, "f32", {"dimensions": (1,)})
    result = Node(92, "stablehlo.subtract", (nodes[-1], total), rows, "f32", {})
    nodes[-1].uses.extend((total, result))
    return Body((nodes[0],), (*nodes, start, total, result), (result,))


@pytest.mark.parametrize(("negations", "kept"), [(11, False), (12, True)])
def test_rows_are_kept_where_a_store_and_a_load_take_no_longer(negations: int, kept: bool) -> None:
    body = row_kernel(negations)
    assert bool(rows_to_keep(body, body.yields[0].dims, COSTS)) is kept
    slow = Costs.of(replace(CPU, rates=replace(CPU.rates, kept_cycles=6.5)))
    assert not rows_to_keep(body, body.yields[0].dims, slow)


def summed_rows(count: int, broadcast: bool = False) -> Body:
    """Sums of so many rows, or of so many numbers of each row, minus their own sum."""
    rows, sums = (Dim.symbol("S0"), Dim.symbol("S1")), (Dim.symbol("S0"),)
    inputs = [Node(number, "input", (), sums if broadcast and number else rows, "f32", {}) for number in range(count)]
    nodes, value = list(inputs), inputs[0]
    for number, each in enumerate(inputs[1:]):
        if broadcast:
            each = Node(50 + number, "disc.broadcast_in_dim", (each,), rows, "f32", {"dims": (0,)})
            nodes.append(each)
        value = Node(70 + number, "stablehlo.add", (value, each), rows, "f32", {})
        nodes.append(value)
    total = Node(91, "stablehlo.reduce", (value, value), sums, "f32", {"dimensions": (1,)})
    result = Node(92, "stablehlo.subtract", (value, total), rows, "f32", {})
    value.uses.extend((total, result))
    return Body(tuple(inputs), (*nodes, total, result), (result,))


@pytest.mark.parametrize(("count", "broadcast", "kept"), [(3, False, False), (4, False, True), (4, True, False)])
def test_rows_are_kept_that_would_load_many_inputs_again(count: int, broadcast: bool, kept: bool) -> None:
    body = summed_rows(count, broadcast)
    assert bool(rows_to_keep(body, body.yields[0].dims, COSTS)) is kept


def loop(negations: int) -> Body:
    """Elements that are negated so often."""
    nodes = [Node(0, "input", (), (Dim.symbol("S0"),), "f32", {})]
    for number in range(negations):
        nodes.append(Node(number + 1, "stablehlo.negate", (nodes[-1],), nodes[0].dims, "f32", {}))
    return Body((nodes[0],), tuple(nodes), (nodes[-1],))


@pytest.mark.parametrize(("negations", "bypasses"), [(32, True), (33, False)])
def test_results_bypass_the_caches_where_memory_is_what_is_waited_for(negations: int, bypasses: bool) -> None:
    with disc_context():
        env = load_env(parse_module(SYMBOL + "func.func @main(%x: tensor<?xf32, [@S0]>) { return }"))
        assert (streamed_bytes(env, loop(negations), COSTS) is not None) is bypasses
        slow = Costs.of(replace(CPU, rates=replace(CPU.rates, memory_cycles=20)))
        assert streamed_bytes(env, loop(negations), slow) is not None
