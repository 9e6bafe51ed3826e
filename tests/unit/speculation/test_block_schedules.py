"""Schedules of products on GPUs: their texts, trees of them."""

from __future__ import annotations

import pytest

from disc.speculation.block_families import FAMILIES
from disc.speculation.block_schedules import BlockSchedule, read_schedule
from disc.speculation.block_trees import one_schedule, read_block_tree

ALL = tuple(dict.fromkeys(each for kinds in FAMILIES.values() for family in kinds.values() for each in family))


def test_texts_are_read_back() -> None:
    assert [read_schedule(str(each)) for each in ALL] == list(ALL)
    assert str(BlockSchedule(16, 64, 128, 4, 4, parts=8)) == "16x64x128+w4+s4+g8/8"


@pytest.mark.parametrize("text", ["", "16x64", "12x64x32+w4+s3+g8", "64x64x32+w3+s3+g8", "64x64x32+w4+s0+g8", "64x16x32+w4+s3+g8+h2"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"schedule|blocks|warps|halves"):
        read_schedule(text)


def test_a_tree_is_read_back() -> None:
    tree = one_schedule(ALL[0])
    assert read_block_tree(tree.to_record()) == tree
    with pytest.raises(ValueError, match="points outside"):
        read_block_tree({"schedules": [str(ALL[0])], "nodes": [[0, 5, 1, 9]]})
    with pytest.raises(ValueError, match="no tree"):
        read_block_tree({"nodes": []})
