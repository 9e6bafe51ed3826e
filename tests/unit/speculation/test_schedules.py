"""Trees of schedules: choosing, pruning, reading; fitting to measurements that are made up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from disc.speculation.schedules import FAMILY, FEATURES, LEAF, Schedule, Tree, every_schedule, find_tree, read_tree
from disc.speculation.tune import Point, Record, best_schedules, collect, effective, fit, losses, quality, read_record, read_records


def random_tree(seed: int, depth: int = 6) -> Tree:
    """A tree with thresholds up to 100 on every feature."""
    generator = random.Random(seed)
    nodes: list[tuple[int, int, int, int]] = []

    def grow(left: int) -> int:
        place = len(nodes)
        if left == 0 or generator.random() < 0.1:
            nodes.append((LEAF, generator.randrange(len(FAMILY)), 0, 0))
            return place
        nodes.append((0, 0, 0, 0))
        feature, threshold = generator.randrange(len(FEATURES)), generator.randrange(100)
        nodes[place] = (feature, threshold, grow(left - 1), grow(left - 1))
        return place

    grow(depth)
    return Tree(FAMILY, tuple(nodes))


@pytest.mark.parametrize("seed", range(20))
def test_a_pruned_tree_chooses_the_same(seed: int) -> None:
    tree, generator = random_tree(seed), random.Random(seed + 1000)
    known = {number: generator.randrange(100) for number in range(len(FEATURES)) if generator.random() < 0.5}
    pruned = tree.prune(known)
    assert len(pruned.nodes) <= len(tree.nodes)
    assert not known.keys() & {feature for feature, *_ in pruned.nodes}
    for _ in range(200):
        features = [known.get(number, generator.randrange(110)) for number in range(len(FEATURES))]
        assert pruned.schedules[pruned.choose(features)] == tree.schedules[tree.choose(features)]


def test_pruning_everything_leaves_one_schedule() -> None:
    pruned = random_tree(3).prune(dict.fromkeys(range(len(FEATURES)), 50))
    assert len(pruned.nodes) == len(pruned.schedules) == 1


@pytest.mark.parametrize("seed", range(5))
def test_another_schedule_above_a_threshold(seed: int) -> None:
    tree, generator = random_tree(seed), random.Random(seed)
    other = Schedule(6, 7, 1, 1)
    both = tree.with_above(0, 50, other)
    assert read_tree(both.to_json()) == both
    for _ in range(200):
        features = [generator.randrange(110) for _ in FEATURES]
        chosen = both.schedules[both.choose(features)]
        assert chosen == (other if features[0] > 50 else tree.schedules[tree.choose(features)])


@pytest.mark.parametrize("seed", range(5))
def test_another_schedule_between_thresholds(seed: int) -> None:
    tree, generator = random_tree(seed), random.Random(seed)
    other = Schedule(6, 7, 1, 1)
    both = tree.with_between(0, 10, 60, 4, 30, other)
    assert read_tree(both.to_json()) == both
    pruned = both.prune({3: 20})
    for _ in range(200):
        features = [generator.randrange(110) for _ in FEATURES]
        features[3] = 20
        wanted = other if 10 < features[0] <= 60 and features[4] > 30 else tree.schedules[tree.choose(features)]
        assert both.schedules[both.choose(features)] == pruned.schedules[pruned.choose(features)] == wanted


def test_all_schedules_can_be_reached_whatever_is_known() -> None:
    assert every_schedule().prune({0: 1, 1: 1, 2: 1, 3: 1}).schedules == FAMILY


def test_a_tree_is_read_back() -> None:
    tree = random_tree(5)
    assert read_tree(tree.to_json()) == tree
    assert read_tree(tree.to_json()).digest() == tree.digest() != random_tree(6).digest()


@pytest.mark.parametrize(
    "text",
    [
        "{}", "[1]", '{"schedules": [], "nodes": []}', '{"schedules": [[6, 1, 0, 0]], "nodes": [[0, 1, 0, 0]]}',
        '{"schedules": [[6, 1, 0, 0]], "nodes": [[-1, 1, 0, 0]]}', '{"schedules": [[0, 1, 0, 0]], "nodes": [[-1, 0, 0, 0]]}',
        '{"schedules": [[6, 1, 0, 0]], "nodes": [[9, 1, 1, 2], [-1, 0, 0, 0], [-1, 0, 0, 0]]}', "no json",
    ],
)  # fmt: skip
def test_what_is_no_tree_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_tree(text)


def test_the_users_own_tree_comes_first(tmp_path: Path) -> None:
    brought = find_tree(tmp_path)
    own = random_tree(7)
    (tmp_path / "schedules.json").write_text(own.to_json())
    assert find_tree(tmp_path) == own != brought


# --- fitting ---------------------------------------------------------------------------------------------------------------

SMALL, LARGE = Schedule(120, 4096, 0, 0), Schedule(240, 256, 1, 0)


def made_up(m: int, n: int) -> Record:
    """Up to 40 rows SMALL is twice as fast, above it LARGE."""
    point = Point(m, n, 512, 1, 1, True)
    times = {schedule: 3.0 for schedule in FAMILY}
    times[SMALL], times[LARGE] = (1.0, 2.0) if m <= 40 else (2.0, 1.0)
    kept: dict[Schedule, float] = {}
    for schedule, seconds in times.items():
        key = effective(schedule, point)
        kept[key] = min(seconds, kept.get(key, seconds))
    return Record(point, kept)


RECORDS = [made_up(m, n) for m in range(1, 400, 3) for n in (64, 768)]


def test_the_best_few_schedules_are_found() -> None:
    assert losses(RECORDS, best_schedules(RECORDS, 2)).min(axis=1).max() == 0
    assert losses(RECORDS, best_schedules(RECORDS, 1)).min(axis=1).max() > 0.5


def test_the_tree_that_is_fitted_takes_the_best() -> None:
    fitted = fit(RECORDS, (SMALL, LARGE, FAMILY[0]))
    assert fitted.held_out.sizes == len(RECORDS)
    assert fitted.held_out.near > 0.95
    assert fitted.tree.schedules[fitted.tree.choose((1, 64, 512, 1, 1))] == SMALL
    assert fitted.tree.schedules[fitted.tree.choose((300, 64, 512, 1, 1))] == LARGE


def test_a_bad_tree_is_judged_as_bad() -> None:
    judged = quality(Tree((LARGE,), ((LEAF, 0, 0, 0),)), RECORDS[:20])
    assert judged.accuracy == 0
    assert judged.mean == pytest.approx(0.5)


def test_measuring_goes_on_where_it_stopped(tmp_path: Path) -> None:
    class Fake:
        measured = 0

        def measure(self, point: Point) -> Record:
            self.measured += 1
            return made_up(point.m, point.n)

    store, bench = tmp_path / "records.jsonl", Fake()
    wanted = [record.point for record in RECORDS[:6]]
    measuring = collect(wanted, store, bench)  # pyright: ignore[reportArgumentType]
    for _ in range(2):
        next(measuring)
    store.write_text(store.read_text() + '{"m": 1, "cut')  # the machine went down while writing
    assert len(read_records(store)) == 2
    assert [done for done, _ in collect(wanted, store, bench)] == [3, 4, 5, 6]  # pyright: ignore[reportArgumentType]
    assert bench.measured == 6
    assert read_records(store)[0].point == RECORDS[0].point
    assert read_record(RECORDS[0].to_json()) == RECORDS[0]
