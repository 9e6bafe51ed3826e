"""The trees that choose among the schedules of products and of attention on GPUs: one for each generation of GPUs and kind of
product, of attention also for each of some lengths of heads, in data/sm_90.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from disc.speculation.block_schedules import CUBLASLT, AttentionBlock, BlockSchedule, ProductSchedule, read_attention_block, read_schedule
from disc.speculation.kept import keep, read_kept
from disc.speculation.schedules import LIBRARY, QUESTIONS
from disc.speculation.tree import LEAF, DecisionTree

DATA = Path(__file__).parent / "data"
HALF, SINGLE, FAST = "half", "tf32x3", "tf32"  # products of 16 bits; of f32, as three products of tf32 or as one
KINDS = (HALF, SINGLE, FAST)
# Those of f32 whose right factor has its values of k next to each other, as the weights of a linear layer: Hopper's tensor cores read such
# ones alone from shared memory, four times as fast (measured on an H200: 345 instead of 87 TFLOP/s of tf32).
ALONG_K: Mapping[str, str] = {SINGLE: "tf32x3 along k", FAST: "tf32 along k"}
BASE: Mapping[str, str] = {**{kind: kind for kind in KINDS}, **{along: kind for kind, along in ALONG_K.items()}}
# Elements of a head, at most, that the schedules of attention are made for: registers hold twice as many of 16 bits as of f32.
HEADS = (64, 128, 256)
ATTENTION = tuple((kind, head) for kind in KINDS for head in HEADS if kind == HALF or head < 256)
_Schedule = TypeVar("_Schedule")


@dataclass(frozen=True)
class DeviceTree(DecisionTree[_Schedule]):
    """That of a GPU's kernel. measured: the GPU whose times corrected the model that it was fitted to; "" where none did."""

    measured: str = ""

    @property
    def source(self) -> str:
        """What its choices rest on, in words."""
        return f"by a model and times of an {self.measured}" if self.measured else "by a model"

    def to_record(self) -> Mapping[str, object]:
        """For JSON."""
        return {"schedules": list(map(str, self.schedules)), "nodes": self.nodes}


@dataclass(frozen=True)
class BlockTree(DeviceTree[ProductSchedule]):
    """That of a product, over (M, N, K, batch, SMs) and whether there is a library of products. A leaf with CUBLASLT lies where that was
    asked, beside one for GPUs without."""

    def choose(self, features: Sequence[int]) -> int:
        """As of any tree; where the last feature is left out, there is no library."""
        return super().choose((*features, 0)[: len(QUESTIONS)])

    @property
    def blocks(self) -> tuple[BlockSchedule, ...]:
        """The schedules of disc's own kernels."""
        return tuple(each for each in self.schedules if isinstance(each, BlockSchedule))

    def without_library(self) -> BlockTree:
        """The choices where there is no library."""
        return self.prune({LIBRARY: 0}) if CUBLASLT in self.schedules else self

    def without_maps(self, may: Callable[[BlockSchedule], bool], family: Collection[BlockSchedule]) -> BlockTree:
        """With plain loads in the schedules whose tensor maps cannot load a product's factors. family: those that compile."""
        others = [plain_loads(each, family) if isinstance(each, BlockSchedule) and not may(each) else each for each in self.schedules]
        if others == list(self.schedules):
            return self
        kept = tuple(dict.fromkeys(others))
        nodes = tuple(
            (LEAF, kept.index(others[place]), 0, 0) if number == LEAF else (number, place, *rest) for number, place, *rest in self.nodes
        )
        return replace(self, schedules=kept, nodes=nodes).prune({})


def plain_loads(schedule: BlockSchedule, family: Collection[BlockSchedule]) -> BlockSchedule:
    """A schedule without its tensor maps; as many programs as blocks where its family has no persistent ones of them."""
    plain = replace(schedule, mapped=False)
    return plain if plain in family else replace(plain, persistent=False)


@dataclass(frozen=True)
class AttentionTree(DeviceTree[AttentionBlock]):
    """That of attention, over (queries, keys, elements of a head, heads of all sequences, SMs)."""


def read_block_tree(record: Mapping[str, object]) -> BlockTree:
    """The tree of `to_record`. Raises ValueError for a record that is none."""
    return BlockTree(*_read(record, read_schedule))


def read_attention_tree(record: Mapping[str, object]) -> AttentionTree:
    """The tree of `to_record`. Raises ValueError for a record that is none."""
    return AttentionTree(*_read(record, read_attention_block))


def _read(
    record: Mapping[str, object], read: Callable[[str], _Schedule]
) -> tuple[tuple[_Schedule, ...], tuple[tuple[int, int, int, int], ...]]:
    try:
        schedules = tuple(map(read, record["schedules"]))  # pyright: ignore[reportArgumentType]
        nodes = tuple((int(a), int(b), int(c), int(d)) for a, b, c, d in record["nodes"])  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no tree of schedules of a GPU: {error}") from error
    for place, (feature, threshold, left, right) in enumerate(nodes):
        good = 0 <= threshold < len(schedules) if feature == LEAF else place < left < len(nodes) and place < right < len(nodes)
        if not good or feature >= len(QUESTIONS):
            raise ValueError(f"node {place} of the tree of schedules points outside")
    if not nodes:
        raise ValueError("the tree of schedules is empty")
    return schedules, nodes


def every_leaf(schedules: Sequence[ProductSchedule]) -> BlockTree:
    """A tree that reaches every schedule, by the number of SMs: for measuring, where `ral_force_choice` chooses."""
    return BlockTree(tuple(schedules), leaves(len(schedules)))


def leaves(count: int) -> tuple[tuple[int, int, int, int], ...]:
    """The nodes of such a tree."""
    sms, nodes = QUESTIONS.index("threads"), list[tuple[int, int, int, int]]()
    for number in range(count - 1):
        nodes += [(sms, number, 2 * number + 1, 2 * number + 2), (LEAF, number, 0, 0)]
    return (*nodes, (LEAF, count - 1, 0, 0))


def one_schedule(schedule: BlockSchedule) -> BlockTree:
    """The tree that always chooses this one."""
    return BlockTree((schedule,), ((LEAF, 0, 0, 0),))


@cache
def packaged_trees(architecture: int) -> Mapping[str, BlockTree]:
    """The trees for `sm_<architecture>` that come with disc, by the kind of product: one of KINDS, or of ALONG_K where that makes a
    difference."""
    return _trees(json.loads(tree_file(architecture).read_text()))


@cache
def product_trees(architecture: int, tuned: str) -> Mapping[str, BlockTree]:
    """The same, with those of `tuned`, the text of `write_trees`, in place of the ones that come with disc."""
    return {**packaged_trees(architecture), **(_trees(json.loads(tuned)) if tuned else {})}


def _trees(record: Mapping[str, Any]) -> Mapping[str, BlockTree]:
    return {kind: replace(read_block_tree(record[kind]), measured=record.get("measured", "")) for kind in BASE if kind in record}


def write_trees(folder: Path, architecture: int, trees: Mapping[str, BlockTree], gpu: str) -> Path:
    """Keeps the trees that times on a GPU were fitted to; programs that are compiled from now on for its kind choose by those of the cache
    folder. gpu: its product. Returns the file. Raises OutputError."""
    return keep(tuned_file(folder, architecture), trees_text(trees, gpu))


def trees_text(trees: Mapping[str, BlockTree], gpu: str = "") -> str:
    """What `product_trees` reads. gpu: the product whose times they were fitted to."""
    return json.dumps({**{kind: tree.to_record() for kind, tree in trees.items()}, "measured": gpu}, separators=(",", ":"))


def find_trees(folder: Path, architecture: int) -> str:
    """The text that `write_trees` has left in a folder; "" where there is none."""

    def checked(text: str) -> str:
        record = json.loads(text)
        if not isinstance(record, dict):
            raise ValueError("these are no trees of schedules of a GPU")
        _trees(record)  # pyright: ignore[reportUnknownArgumentType]
        return text.strip()

    return read_kept(tuned_file(folder, architecture), checked, "schedules") or ""


def tuned_file(folder: Path, architecture: int) -> Path:
    """Where a folder keeps the trees for GPUs of an architecture."""
    return folder / f"schedules-sm_{architecture}.json"


@cache
def attention_trees(architecture: int) -> Mapping[tuple[str, int], AttentionTree]:
    """The trees of attention that come with disc, by the kind of its products and one of HEADS."""
    record = json.loads(tree_file(architecture).read_text())["attention"]
    return {(kind, head): read_attention_tree(record[f"{kind} {head}"]) for kind, head in ATTENTION}


def tree_file(architecture: int) -> Path:
    """Where those of an architecture are kept."""
    return DATA / f"sm_{architecture}.json"
