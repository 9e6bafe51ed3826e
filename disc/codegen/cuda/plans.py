"""What is decided of a kernel for a GPU: the plans that `disc.plan` holds as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from disc.codegen.plan.text import IllegalPlan, Plan
from disc.codegen.plan.tree_text import node_texts, read_nodes
from disc.speculation.block_schedules import read_attention_block, read_schedule
from disc.speculation.block_trees import AttentionTree, BlockTree


@dataclass(frozen=True)
class LoopPlan(Plan):
    """A loop kernel. block: elements of a block; warps of a block."""

    name: ClassVar[str] = "loop"
    block: int
    warps: int


@dataclass(frozen=True)
class RowBlock(Plan):
    """columns: elements of a row in a block, a power of two; rows: rows of a block; warps."""

    name: ClassVar[str] = "row_block"
    columns: int
    rows: int
    warps: int


@dataclass(frozen=True)
class RowsPlan(Plan):
    """A stitch kernel. blocks: those in which a row lies whole, the shortest first; looped: that of longer rows."""

    name: ClassVar[str] = "rows"
    blocks: tuple[RowBlock, ...]
    looped: RowBlock


@dataclass(frozen=True)
class ProductPlan(Plan):
    """A compute kernel. schedules: as text (`speculation/block_schedules.py`); nodes: of the tree that chooses one in every call, over the
    sizes of the product and the GPU's SMs (`plan/tree_text.py`); precision: of products of f32, "tf32x3" or "tf32"."""

    name: ClassVar[str] = "product"
    schedules: tuple[str, ...]
    nodes: tuple[str, ...]
    precision: str


@dataclass(frozen=True)
class AttentionPlan(Plan):
    """An attention kernel: as of `ProductPlan`. nodes: over queries, keys, elements of a head, heads of all sequences, and SMs."""

    name: ClassVar[str] = "attention"
    schedules: tuple[str, ...]
    nodes: tuple[str, ...]
    precision: str


@dataclass(frozen=True)
class LibraryPlan(Plan):
    """A kernel around one op that is computed alone. op: its name; precision: of products of f32, as of `ProductPlan`."""

    name: ClassVar[str] = "library"
    op: str
    precision: str


@dataclass(frozen=True)
class HostPlan(Plan):
    """An op without a kernel for GPUs: the runtime's function of this name computes it on the CPU, of copies of its operands, for which the
    call waits."""

    name: ClassVar[str] = "host"
    function: str


def product_plan(tree: BlockTree, precision: str) -> ProductPlan:
    """A tree as a plan."""
    return ProductPlan(tuple(map(str, tree.schedules)), node_texts(tree.nodes), precision)


def read_tree(plan: ProductPlan) -> BlockTree:
    """The tree of a plan. Raises IllegalPlan."""
    try:
        schedules = tuple(map(read_schedule, plan.schedules))
    except ValueError as error:
        raise IllegalPlan("schedules", str(error)) from error
    return BlockTree(schedules, read_nodes(plan.nodes, len(schedules)))


def attention_plan(tree: AttentionTree, precision: str) -> AttentionPlan:
    """A tree as a plan."""
    return AttentionPlan(tuple(map(str, tree.schedules)), node_texts(tree.nodes), precision)


def read_blocks(plan: AttentionPlan) -> AttentionTree:
    """The tree of a plan. Raises IllegalPlan."""
    try:
        blocks = tuple(map(read_attention_block, plan.schedules))
    except ValueError as error:
        raise IllegalPlan("schedules", str(error)) from error
    return AttentionTree(blocks, read_nodes(plan.nodes, len(blocks)))


KINDS: dict[str, type[Plan]] = {
    each.name: each for each in (LoopPlan, RowBlock, RowsPlan, ProductPlan, AttentionPlan, LibraryPlan, HostPlan)
}
