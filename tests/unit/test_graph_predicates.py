"""The legality predicates of the graph passes, alone."""

from __future__ import annotations

import pytest

from disc.passes.dot_numbers import DotNumbers
from disc.passes.fold_transposes import ResultOrder, keeps_order_of_free_dims, result_order
from disc.passes.simplify_elementwise import is_lossless


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
