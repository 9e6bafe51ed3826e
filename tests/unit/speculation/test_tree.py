"""Trees of schedules: choosing, pruning, reading; fitting to measurements that are made up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from disc.errors import DiscWarning
from disc.speculation.schedules import FAMILY, FEATURES, Schedule
from disc.speculation.tree import LEAF, Tree, every_schedule, find_tree, read_tree


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


@pytest.mark.parametrize("high", [60, None])
@pytest.mark.parametrize("seed", range(5))
def test_another_schedule_between_thresholds(seed: int, high: int | None) -> None:
    tree, generator = random_tree(seed), random.Random(seed)
    other = Schedule(6, 7, 1, 1)
    both = tree.with_between(0, 10, high, 4, 30, other)
    assert read_tree(both.to_json()) == both
    pruned = both.prune({3: 20})
    for _ in range(200):
        features = [generator.randrange(110) for _ in FEATURES]
        features[3] = 20
        wanted = other if 10 < features[0] <= (high or 110) and features[4] > 30 else tree.schedules[tree.choose(features)]
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


@pytest.mark.parametrize("content", ["", '{"schedules": [[', "[]", "\x00\xff"])
def test_a_damaged_tree_is_not_taken(tmp_path: Path, content: str) -> None:
    """A compile goes on, by the one that comes with disc."""
    brought = find_tree(tmp_path)
    (tmp_path / "schedules.json").write_bytes(content.encode("latin1"))
    with pytest.warns(DiscWarning, match="schedules.json' cannot be read, those that come with disc are taken: "):
        assert find_tree(tmp_path) == brought


def test_the_users_own_tree_comes_first(tmp_path: Path) -> None:
    brought = find_tree(tmp_path)
    own = random_tree(7)
    (tmp_path / "schedules.json").write_text(own.to_json())
    assert find_tree(tmp_path) == own != brought
