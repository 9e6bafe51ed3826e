"""Rules that overrule the tree of schedules: where each decides, that they are on top of the tree, what data say of them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

import disc
from disc.codegen.x86.gemm import kernels
from disc.shapes import Dim
from disc.speculation.policy import (
    BLOCKS,
    DEEP,
    DEEP_SHARED,
    RULES,
    SHARED,
    STREAMED,
    STRIDED,
    STRIDED_SHARED,
    WHOLE_K,
    Product,
    Pruned,
    apply_rules,
    deciding,
    may_split,
    panel_columns,
    product_of,
    ruled_points,
    ruled_schedules,
    share_tiles,
    split_k,
    stay_with_columns,
    stay_with_parts,
    stream_small_b,
)
from disc.speculation.quality import judge_rules
from disc.speculation.records import Record
from disc.speculation.schedules import FAMILY, Schedule
from disc.speculation.sizes import Point, coarse_points, effective, fine_points
from disc.speculation.tree import LEAF, PACKAGED, Tree, read_tree
from disc.targets.x86_thresholds import CPU

M, LIMITS = Dim.symbol("m"), CPU.rules


def layer(n: int, k: int, batch: int | Dim = 1, packed: bool = True) -> Product:
    columns = panel_columns(n)
    return Product(M, Dim.of(n), Dim.of(k), Dim.of(batch), columns, columns * 4, 4, packed, LIMITS)


def test_a_small_b_is_streamed_past() -> None:
    """Where all of B stays in L2 and the result does not, from the first row on that makes it so."""
    found = stream_small_b(layer(256, 64))
    assert [each.schedule for each in found] == [STREAMED]
    assert [found[0].decides(rows, 1) for rows in (0, 1024, 1025, 100_000)] == [False, False, True, True]
    largest = LIMITS.resident_bytes // (256 * 4)
    assert stream_small_b(layer(256, largest)) and not stream_small_b(layer(256, largest + 1))
    assert not stream_small_b(layer(64, 64))  # a single panel
    assert not stream_small_b(layer(256, 64, packed=False))


def direct(n: int, k: int, strided: bool = False) -> Product:
    """A product of two activations, B read in place."""
    return replace(layer(n, k, packed=False), direct=True, strided=strided)


def test_parts_of_a_deep_b_read_in_place_serve_many_rows() -> None:
    found, rows = stay_with_parts(direct(512, WHOLE_K + 1)), LIMITS.direct_rows
    assert [each.schedule for each in found] == [DEEP, DEEP_SHARED]
    assert [found[0].decides(m, 1) for m in (rows, rows + 1)] == [False, True]
    assert [found[1].decides(rows + 1, threads) for threads in (8, 9)] == [False, True]  # more threads than panels
    assert not stay_with_parts(direct(512, WHOLE_K)) and not stay_with_parts(layer(512, 2 * WHOLE_K, packed=False))
    assert not stay_with_parts(replace(direct(512, 1), k=Dim.symbol("k")))


def test_panels_share_the_columns_of_a_strided_a() -> None:
    """Whatever k is, as the rows of a batch are."""
    found = stay_with_columns(replace(direct(512, 1, strided=True), k=Dim.symbol("k")))
    assert [each.schedule for each in found] == [STRIDED, STRIDED_SHARED]
    assert [found[0].decides(m, 1) for m in (STRIDED.rows, STRIDED.rows + 1)] == [False, True]
    assert [found[1].decides(STRIDED.rows + 1, threads) for threads in (8, 9)] == [False, True]
    assert not stay_with_columns(direct(512, 100)) and not stay_with_columns(direct(64, 100, strided=True))  # a single panel
    assert not stay_with_columns(replace(direct(512, 100, strided=True), direct=False))  # each task would pack B
    packed = replace(direct(512, 100, strided=True), direct=False, blocks=True)  # so it does, but the blocks of A are larger
    assert [each.schedule for each in stay_with_columns(packed)] == [STRIDED, STRIDED_SHARED]
    grouped = stay_with_columns(replace(direct(512 + 1, 100, strided=True), blocks=True))  # 9 panels are tasks of 3
    assert [each.schedule for each in grouped] == [STRIDED, STRIDED_SHARED]
    assert [grouped[1].decides(STRIDED_SHARED.rows + 1, threads) for threads in (3, 4)] == [False, True]
    assert not grouped[1].decides(STRIDED_SHARED.rows, 4)


def test_a_gradient_of_a_weight_takes_its_columns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler says of the product what the rule asks, and the result is eager's at sizes around those of tasks."""
    asked: list[Product] = []

    def note(tree: Tree, product: Product) -> Pruned:
        asked.append(product)
        return apply_rules(tree, product)

    class Gradient(nn.Module):
        def forward(self, gradient: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return gradient.t() @ rows

    monkeypatch.setattr(kernels, "apply_rules", note)
    auto = torch.export.Dim.AUTO
    for columns in (240, 241, 500):
        example = torch.zeros(5, columns), torch.zeros(5, 130)
        exe = disc.compile(Gradient(), example, ({0: auto}, {0: auto}), options=disc.Options(cache=False))
        found = asked.pop()
        assert found.direct and found.strided
        assert [each.decides(columns, 1) for each in stay_with_columns(found)] == [columns > STRIDED.rows, False]
        for rows in (1, 7, 513):
            gradient, x = torch.randn(rows, columns), torch.randn(rows, 130)
            torch.testing.assert_close(exe(gradient, x), gradient.t() @ x, rtol=1e-4, atol=1e-4)


def test_a_product_with_a_deep_b_is_eagers() -> None:
    """At numbers of rows on both sides of the threshold and of a task's."""
    right, auto = torch.randn(WHOLE_K + 700, 130), torch.export.Dim.AUTO

    class Deep(nn.Module):
        def forward(self, x: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return x @ right

    exe = disc.compile(Deep(), (torch.zeros(5, right.shape[0]), right), ({0: auto}, {}), options=disc.Options(cache=False))
    for rows in (1, LIMITS.direct_rows, LIMITS.direct_rows + 1, DEEP.rows + 3):
        x = torch.randn(rows, right.shape[0])
        torch.testing.assert_close(exe(x, right), x @ right, rtol=1e-3, atol=1e-3)


def test_tiles_are_shared_where_threads_are_more_than_panels() -> None:
    found = share_tiles(layer(96, 100))
    assert [each.schedule for each in found] == [SHARED]
    low, high = LIMITS.shared_rows
    assert [found[0].decides(rows, 3) for rows in (low, low + 1, high, high + 1)] == [False, True, True, False]
    assert not found[0].decides(low + 1, 2)  # as many threads as panels
    assert share_tiles(layer(64 * LIMITS.few_tasks, 100)) and not share_tiles(layer(64 * LIMITS.few_tasks + 1, 100))
    assert not share_tiles(layer(64, 100, batch=Dim.symbol("b"))) and not share_tiles(layer(64, 100, batch=0))


@pytest.mark.parametrize(
    ("n", "k", "parts"),
    [(64, LIMITS.split_depth - 1, 0), (64, LIMITS.split_depth, 2), (64, 4 * LIMITS.split_depth, 4), (64, 100 * LIMITS.split_depth, LIMITS.split_parts), (128, 4096, 0),
     (192, LIMITS.split_depth, 0), (192, 2 * LIMITS.split_depth, 2), (320, 2 * LIMITS.split_depth, 2), (448, 4096, 0), (16, 4096, 0), (33, 4096, 4)],
)  # fmt: skip
def test_k_is_split_where_panels_are_odd_and_few(n: int, k: int, parts: int) -> None:
    assert {each.schedule.parts for each in split_k(layer(n, k))} == ({parts} if parts else set())


def test_k_of_activations_and_of_batches_is_not_split() -> None:
    assert not split_k(layer(64, 4096, packed=False)) and not split_k(layer(64, 4096, batch=2))


def splits_of(tree: Tree, product: Product) -> tuple[Pruned, set[int]]:
    found = apply_rules(tree, product)
    return found, {schedule.parts for schedule in found.tree.schedules}


def test_a_tree_that_splits_k_is_left_alone_and_a_product_that_cannot_is_not_split() -> None:
    own = Tree((Schedule(12, 16, 1, 0, 3), Schedule(6, 64, 0, 1)), ((0, 5, 1, 2), (LEAF, 0, 0, 0), (LEAF, 1, 0, 0)))
    found, parts = splits_of(own, layer(64, 4096))
    assert found.split_rows is None and parts == {1, 3}
    found, parts = splits_of(own, layer(64, 4096, packed=False))
    assert found.split_rows == 0 and parts == {1}
    found, parts = splits_of(Tree(FAMILY[:1], ((LEAF, 0, 0, 0),)), layer(64, 4096))
    assert found.split_rows == 128 and parts == {1, 4}


@pytest.mark.parametrize("seed", range(4))
def test_the_last_rule_that_decides_is_taken_else_the_tree(seed: int) -> None:
    """In the finished tree, as the runtime will walk it, over rows at every threshold and on both sides of it."""
    pick, tree = random.Random(seed), read_tree(PACKAGED.read_text())
    for _ in range(25):
        n, k = pick.choice([16, 48, 61, 64, 96, 128, 192, 256, 300, 768, 1024]), pick.choice([64, 300, 1024, 2048, 4096, 16384])
        product = layer(n, k, batch=pick.choice([1, 1, 1, 2]), packed=pick.random() < 0.6)
        if not product.packed and pick.random() < 0.7:
            product = replace(product, direct=True, strided=pick.random() < 0.5)
        finished = apply_rules(tree, product).tree
        overrides = [each for rule in RULES for each in rule(product)]
        limits = [limit for each in overrides for limit in (each.low, each.high) if limit is not None]
        for rows in {1, 6, 7, 40, 5000, *limits, *(limit + 1 for limit in limits)}:
            for threads in {1, 2, 4, 32, *(max(each.threads, 1) for each in overrides), *(each.threads + 1 for each in overrides)}:
                features = (rows, n, k, product.batch.const, threads)
                decided = [each.schedule for each in overrides if each.decides(rows, threads)]
                wanted = decided[-1] if decided else tree.schedules[tree.choose(features)]
                assert finished.schedules[finished.choose(features)] == wanted, (features, product)


def test_no_rule_is_dead() -> None:
    """Each decides somewhere where no other one does."""
    products = [layer(n, k) for n in (64, 192, 256) for k in (64, 4096)]
    products += [direct(512, 2 * WHOLE_K), direct(512, 64, strided=True)]
    found = {rule: {each.schedule for product in products for each in rule(product)} for rule in RULES}
    assert all(found.values()) and not set.intersection(*found.values())


def test_the_compiler_and_the_data_mean_the_same_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rule is judged by is what it is asked when a layer of that size is compiled."""
    asked: list[Product] = []

    def note(tree: Tree, product: Product) -> Pruned:
        asked.append(product)
        return apply_rules(tree, product)

    monkeypatch.setattr(kernels, "apply_rules", note)
    for n, k in ((40, 48), (200, 1030)):
        disc.compile(nn.Linear(k, n).eval(), (torch.zeros(3, k),), ({0: torch.export.Dim.AUTO},), options=disc.Options(cache=False))
        found = replace(asked.pop(), m=M)
        assert found == product_of(Point(7, n, k, 1, 1, True)) == layer(n, k) and may_split(found)


def test_every_rule_is_measured_where_it_has_the_last_word() -> None:
    """With one thread and two, as the tool measures: sizes of each rule, and the schedules that they take."""
    points = ruled_points((1, 2))
    found = Counter(each[0] for each in map(deciding, points) if each is not None)
    assert set(found) == set(RULES) and found.total() == len(points) == len(set(points))
    assert not set(points) & {*coarse_points(1), *fine_points((1, 2))}
    assert {each[1] for each in map(deciding, points) if each is not None} == set(ruled_schedules(points))
    assert deciding(Point(16, 64, 4096, 1, 2, True)) == (split_k, replace(BLOCKS, parts=4))  # tiles would be shared, were k not split


# --- judged ---------------------------------------------------------------------------------------------------------------

TREE = Tree((FAMILY[0], BLOCKS), ((LEAF, 0, 0, 0),))


def record(point: Point, **seconds: float) -> Record:
    """Times of the tree's choice, of another schedule, and perhaps of the rule's."""
    schedules = {"tree": FAMILY[0], "other": BLOCKS, "rule": STREAMED}
    return Record(point, {effective(schedules[name], point): value for name, value in seconds.items()})


def test_what_cannot_be_judged_is_said_without_a_number() -> None:
    small, large = Point(64, 256, 64, 1, 1, True), Point(2048, 256, 64, 1, 1, True)
    nowhere, unmeasured = (
        next(iter(judge_rules([(TREE, each)], [stream_small_b]))) for each in (record(small, tree=1.0), record(large, tree=1.0, other=2.0))
    )
    assert str(nowhere) == "stream small b: cannot be judged, it decides at none of the measured sizes"
    assert str(unmeasured) == "stream small b: cannot be judged, its schedule was measured at none of the 1 sizes at which it decides"
    assert nowhere.ruled is None is unmeasured.ruled and not any(letter in str(nowhere) for letter in "%0123456789")


def test_a_rule_is_judged_against_trees_that_have_not_seen_the_size() -> None:
    """At sizes where it decides and its schedule was measured alone: the others would say nothing of it."""
    held = [
        (TREE, record(Point(2048, 256, 64, 1, 1, True), tree=2.0, other=3.0, rule=1.0)),
        (TREE, record(Point(1500, 256, 64, 1, 1, True), tree=1.0, other=2.0, rule=1.25)),
        (TREE, record(Point(3000, 256, 64, 1, 1, True), tree=1.0, other=2.0)),
        (TREE, record(Point(10, 256, 64, 1, 1, True), tree=5.0, other=1.0)),
    ]
    (found,) = judge_rules(held, [stream_small_b])
    assert found.decides == 3 and found.without is not None and found.ruled is not None
    assert (found.without.sizes, found.without.mean, found.ruled.mean) == (2, pytest.approx(0.75), pytest.approx(0.9))
    assert "decides at 3 sizes" in str(found) and "75.00% of the best speed" in str(found) and "90.00% of the best speed" in str(found)
