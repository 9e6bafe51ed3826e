"""The legality predicates of the graph passes, alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disc.ir.costs import Costs
from disc.ir.dialect import disc_context
from disc.ir.ops import block_ops, main_block, strings_attr
from disc.ir.stages import parse_module
from disc.passes.graph.channels_last import Group, gain, may_turn, should_turn
from disc.passes.graph.channels_last_ops import Convolution, first_order, last_order
from disc.passes.graph.dot_numbers import DotNumbers
from disc.passes.graph.fold_batch_norm import Step, should_fold
from disc.passes.graph.fold_transposes import ResultOrder, keeps_order_of_free_dims, result_order
from disc.passes.graph.merge_slices import split_columns, tiles
from disc.passes.graph.simplify_elementwise import is_lossless
from disc.targets.x86_thresholds import CPU

LIMITS, COSTS = CPU.graph, Costs.of(CPU)


@pytest.mark.parametrize(
    ("permutation", "bound", "legal"),
    [
        ([1, 0], [0], True),
        ([1, 0], [], False),
        ([0, 2, 1, 3], [0, 1, 3], True),
        ([1, 0, 2], [2], False),
        ([2, 0, 1], [0], True),
    ],
)
def test_a_transpose_folds_where_the_free_dims_keep_their_order(permutation: list[int], bound: list[int], legal: bool) -> None:
    assert keeps_order_of_free_dims(permutation, bound) is legal


@pytest.mark.parametrize(
    ("permutation", "batch", "left_free", "order"),
    [
        ([0, 2, 1], 1, 1, ResultOrder((0,), True)),
        ([1, 0, 2, 3], 2, 1, ResultOrder((1, 0), False)),
        ([2, 0, 1], 0, 2, ResultOrder((), True)),
        ([1, 2, 0], 0, 2, None),
        ([1, 0, 2], 1, 1, None),
    ],
)
def test_the_result_of_a_dot_may_swap_sides_and_reorder_its_batch(
    permutation: list[int], batch: int, left_free: int, order: ResultOrder | None
) -> None:
    assert result_order(permutation, batch, left_free) == order


def test_dot_numbers_permute_and_swap() -> None:
    numbers = DotNumbers(((0,), (1,)), ((2,), (0,)))
    assert numbers.bound(0) == (0, 2) and numbers.free(1, 4) == [2, 3]
    assert numbers.with_dims_of(0, [1, 2, 0]) == DotNumbers(((1,), (1,)), ((0,), (0,)))
    assert numbers.swapped().swapped() == numbers


@pytest.mark.parametrize(
    ("source", "target", "lossless"),
    [
        ("f16", "f32", True), ("bf16", "f32", True), ("f16", "bf16", False), ("bf16", "f16", False), ("f32", "f64", True),
        ("i8", "bf16", True), ("i16", "f16", False), ("i32", "f32", False), ("i32", "f64", True), ("ui8", "i8", False),
        ("ui8", "i16", True), ("i8", "ui64", False), ("i1", "f16", True), ("f32", "i64", False), ("i64", "i1", False),
    ],
)  # fmt: skip
def test_is_lossless(source: str, target: str, lossless: bool) -> None:
    assert is_lossless(source, target) is lossless


@pytest.mark.parametrize(
    ("slices", "starts"),
    [
        ([(0, 8), (8, 4)], ["0", "8"]),
        ([(8, 4), (0, 4), (4, 4)], ["0", "4", "8"]),
        ([(0, 4), (8, 4)], []),
        ([(0, 8), (4, 8)], []),
        ([(0, 8)], []),
        ([(0, 12)], []),
    ],
)
def test_slices_tile_the_last_dim_without_gap_or_overlap(slices: list[tuple[int, int]], starts: list[str]) -> None:
    x = "tensor<3x12xf32, [3, 12]>"
    lines = [
        f'%{place} = "disc.slice"(%x) {{starts = ["0", "{start}"], strides = array<i64: 1, 1>}} : ({x}) -> tensor<3x{size}xf32, [3, {size}]>'
        for place, (start, size) in enumerate(slices)
    ]
    with disc_context():
        module = parse_module("\n".join([f"func.func @main(%x: {x}) {{", *lines, "return", "}"]))
        assert [strings_attr(part, "starts")[1] for part in tiles(main_block(module).arguments[0])] == starts


@pytest.mark.parametrize(
    ("layout", "result", "before", "columns"),
    [
        ('"disc.reshape"(%x)', "[@S0, 3, 2, 4]", 1, 2),
        ('"disc.reshape"(%x)', "[@S0, 3, 8, 1]", 1, 2),
        ('"disc.reshape"(%x)', "[@S0, 3, 2, 4]", 0, 0),
        ('"disc.reshape"(%x)', "[@S0, 24]", 1, 0),
        ('"disc.reshape"(%x)', "[@S0, 24]", 2, 1),
        ("stablehlo.transpose %x, dims = [0, 1, 2]", "[@S0, 3, 8]", 1, 0),
    ],
)
def test_columns_survive_a_reshape_that_splits_them(layout: str, result: str, before: int, columns: int) -> None:
    sizes = result.strip("[]").replace("@S0", "?").replace(", ", "x")
    x = "tensor<?x3x8xf32, [@S0, 3, 8]>"
    text = f"""
    "disc.symbolic_dim"() {{sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"}} : () -> ()
    func.func @main(%x: {x}) {{
      %0 = {layout} : ({x}) -> tensor<{sizes}xf32, {result}>
      return
    }}"""
    with disc_context():
        module = parse_module(text)
        block = main_block(module)
        assert split_columns(block.arguments[0], block_ops(block)[0], before) == columns


@pytest.mark.parametrize(
    ("gained", "removed", "inserted", "pays"),
    [(1, 0, 2, False), (1, 0, 1, False), (2, 0, 1, True), (3, 0, 2, True), (0, 2, 0, True), (0, 1, 1, False), (1, 1, 1, True)],
)
def test_a_group_turns_channels_last_where_it_gains_more_than_its_transposes_cost(
    gained: int, removed: int, inserted: int, pays: bool
) -> None:
    assert should_turn(Group([], gained, inserted, removed)) is pays


def convolution(inputs: int, outputs: int, groups: int = 1, plain: bool = True) -> Convolution:
    return Convolution(inputs, outputs, groups, (3,), (1,), ((1, 1),), (1,), plain, "f32")


def test_what_may_turn_channels_last() -> None:
    assert may_turn(convolution(3, 16), True, LIMITS) and may_turn(convolution(1, 16, 16), True, LIMITS)
    assert not may_turn(convolution(3, 16), False, LIMITS), "the kernel must be constant"
    assert not may_turn(convolution(3, 7), True, LIMITS), "too few output channels"
    assert not may_turn(convolution(2, 16, 8), True, LIMITS), "neither dense nor depthwise"
    assert not may_turn(convolution(1, 32, 16), True, LIMITS), "two outputs per channel"
    assert not may_turn(convolution(3, 16, plain=False), True, LIMITS)


def test_what_a_convolution_gains() -> None:
    """Windows of 3: with n channels on both sides 3 n² multiply-adds for 2 n transposed elements, 249 each from n = 166 on. Measured were
    3x3 windows: no gain with 192 and 230 for each, gains with 288."""

    def gained(each: Convolution, costs: Costs = COSTS) -> int:
        return gain(each, LIMITS.last_gain, costs)

    assert gained(convolution(165, 165)) == 1 and gained(convolution(166, 166)) == 3
    assert gained(convolution(1, 167, 167)) == 0
    square = Convolution(64, 64, 1, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), True, "f32")
    assert gained(square) == 3 and gained(replace(square, inputs=32)) == 1, "288 and 192"
    assert gained(square, Costs.of(replace(CPU, rates=replace(CPU.rates, transpose_cycles=1.0)))) == 1
    strided = Convolution(200, 200, 1, (3,), (2,), ((1, 1),), (1,), True, "f32")
    assert gained(strided) == 1, "two elements are transposed for every position"


@pytest.mark.parametrize(
    ("steps", "pays"), [([], False), (["add"], False), (["multiply"], True), (["add", "multiply"], True), (["add", "add"], True)]
)
def test_steps_are_folded_where_fewer_are_left(steps: list[str], pays: bool) -> None:
    x = "tensor<3xf32, [3]>"
    lines = [f"%{number} = stablehlo.{name} %x, %x : {x}" for number, name in enumerate(steps)]
    with disc_context():
        module = parse_module("\n".join([f"func.func @main(%x: {x}) {{", *lines, "return", "}"]))
        block = main_block(module)
        assert should_fold([Step(op, block.arguments[0]) for op in block_ops(block)[: len(steps)]], COSTS) is pays


def test_the_two_orders_undo_each_other() -> None:
    for rank in (3, 4, 5):
        assert [last_order(rank)[dim] for dim in first_order(rank)] == list(range(rank))
