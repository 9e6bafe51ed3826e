"""The trees that choose among the schedules of products on GPUs: one for each kind of GPU and of product, in data/sm_90.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from disc.speculation.block_schedules import BlockSchedule, read_schedule
from disc.speculation.schedules import FEATURES
from disc.speculation.tree import LEAF, DecisionTree

DATA = Path(__file__).parent / "data"
HALF, SINGLE, FAST = "half", "tf32x3", "tf32"  # products of 16 bits; of f32, as three products of tf32 or as one
KINDS = (HALF, SINGLE, FAST)


@dataclass(frozen=True)
class BlockTree(DecisionTree[BlockSchedule]):
    """That of a product on a GPU, over (M, N, K, batch, SMs)."""

    def to_record(self) -> Mapping[str, object]:
        """For JSON; read back by `read_block_tree`."""
        return {"schedules": list(map(str, self.schedules)), "nodes": self.nodes}


def read_block_tree(record: Mapping[str, object]) -> BlockTree:
    """The tree of `BlockTree.to_record`. Raises ValueError for a record that is none."""
    try:
        schedules = tuple(map(read_schedule, record["schedules"]))  # pyright: ignore[reportArgumentType]
        nodes = tuple((int(a), int(b), int(c), int(d)) for a, b, c, d in record["nodes"])  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no tree of schedules of a GPU: {error}") from error
    for place, (feature, threshold, left, right) in enumerate(nodes):
        good = 0 <= threshold < len(schedules) if feature == LEAF else place < left < len(nodes) and place < right < len(nodes)
        if not good or feature >= len(FEATURES):
            raise ValueError(f"node {place} of the tree of schedules points outside")
    if not nodes:
        raise ValueError("the tree of schedules is empty")
    return BlockTree(schedules, nodes)


def one_schedule(schedule: BlockSchedule) -> BlockTree:
    """The tree that always chooses this one."""
    return BlockTree((schedule,), ((LEAF, 0, 0, 0),))


@cache
def packaged_trees(architecture: int) -> Mapping[str, BlockTree]:
    """The trees for `sm_<architecture>` that come with disc, by the kind of product."""
    record = json.loads(tree_file(architecture).read_text())
    return {kind: read_block_tree(record[kind]) for kind in KINDS}


def tree_file(architecture: int) -> Path:
    """Where those of an architecture are kept."""
    return DATA / f"sm_{architecture}.json"
