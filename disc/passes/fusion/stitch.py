"""stitch: memory-bound groups joined through rows (paper §4.2).

A row reduction is a dominant: its kept dims are group dims, its reduced dims tile dims. Groups join when, by the symbols of
their dims, every dominant forms the same rows, so that what one produces for a row is all that the next needs for it.

Groups that do not need each other join too where they read the rows of one input: its mean and maximum read it once.

Requires groups by fuse-elementwise and fuse-compute; only writes attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from torch_mlir import ir

from disc.ir.costs import op_cost
from disc.ir.graph import Node, is_row_reduction, row_space
from disc.ir.op_table import ALONE
from disc.ir.passes import CompileState, FunctionPass
from disc.passes.fusion.clusters import Cluster, Clusters
from disc.passes.fusion.fuse_attention import match_attention
from disc.passes.fusion.own_rows import OwnRows
from disc.shapes import Dim, Truth


@dataclass(frozen=True)
class Rows:
    """The iteration of a stitched kernel: the number of rows and the length of one."""

    groups: Dim
    tile: Dim


@dataclass(frozen=True)
class Stitch(FunctionPass):
    """Merges until nothing more fits, consumers first; then what reads the same rows side by side."""

    name: ClassVar[str] = "stitch"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        clusters = Clusters(module, state.thresholds, block)
        changed = True
        while changed:
            changed = False
            for consumer in reversed(clusters.all()):
                if consumer.nodes and _merge_producers(clusters, consumer):
                    changed = True
        _join_readers(clusters)
        clusters.write()


def _join_readers(clusters: Clusters) -> None:
    """Merges what reads the same rows side by side. Few pairs read anything in common, and the others cost no more than to see that."""
    stitched = [each for each in clusters.all() if each.kind == "stitch"]
    sources = {each.id: _given(clusters, each) for each in stitched}
    for first, second in combinations(stitched, 2):
        if not first.nodes or not second.nodes or sources[first.id].isdisjoint(sources[second.id]):
            continue
        if may_join(clusters, first, second) and may_share_rows(clusters, first, second):
            clusters.merge(first, second, "stitch")
            sources[second.id] = _given(clusters, second)


def _given(clusters: Clusters, cluster: Cluster) -> set[Node]:
    """The sources of the group that no kernel makes; a scalar, which everything may share, is none."""
    return {node for node in _sources(clusters, cluster) if node not in clusters.of and clusters.count(node) != 1}


def _merge_producers(clusters: Clusters, consumer: Cluster) -> bool:
    merged = False
    for producer in reversed(clusters.producers(consumer)):
        rows = may_stitch(clusters, producer, consumer)
        if rows is not None and may_hand_over(clusters, producer, consumer) and should_hand_over(clusters, producer, consumer):
            clusters.merge(producer, consumer, "stitch")
            merged = True
    return merged


def may_stitch(clusters: Clusters, producer: Cluster, consumer: Cluster) -> Rows | None:
    """Legality: the rows that both form, or None."""
    both = (producer, consumer)
    if any(each.kind not in ("loop", "stitch") for each in both) or "stitch" not in (producer.kind, consumer.kind):
        return None
    nodes = producer.nodes + consumer.nodes
    if any(node.op in ALONE for node in nodes) or not clusters.may_hold(nodes):
        return None
    if any(node.op == "stablehlo.reduce" and not is_row_reduction(node) for node in nodes):
        return None
    rows = _common_rows(clusters, nodes)
    if rows is None:
        return None
    roots = [node for node in nodes if clusters.escapes(node, both)]
    if not all(_fits(clusters, root, rows) for root in roots) or clusters.would_cycle(producer, consumer):
        return None
    return rows if _reads_own_rows(clusters, nodes, roots) else None


def _reads_own_rows(clusters: Clusters, nodes: list[Node], roots: list[Node]) -> bool:
    """Legality: each element needs the reductions of its own row alone. Those of others would be made anew for each element."""
    dims, rank = row_space(sorted(nodes, key=clusters.order.__getitem__))
    return OwnRows(clusters, frozenset(nodes), dims, rank).hold(roots)


def may_join(clusters: Clusters, first: Cluster, second: Cluster) -> bool:
    """Legality: neither needs the other, and both form the same rows."""
    if first in clusters.successors(second) or second in clusters.successors(first) or clusters.would_cycle(second, first):
        return False
    return may_stitch(clusters, first, second) is not None


def may_share_rows(clusters: Clusters, first: Cluster, second: Cluster) -> bool:
    """Structure: both read a value whose rows are those of the group. It is then read once and nothing is done twice, which is cheaper at
    all sizes. What comes from a dot or another kernel is left alone: it may become part of an attention kernel or an epilogue."""
    rows = _common_rows(clusters, first.nodes + second.nodes)
    shared = {node for node in _sources(clusters, first) & _sources(clusters, second) if node not in clusters.of}
    if rows is None:
        return False
    return any(_equal(clusters, clusters.count(node), clusters.env.product((rows.groups, rows.tile))) for node in shared)


def _sources(clusters: Clusters, cluster: Cluster) -> set[Node]:
    """The values that the group reads from memory, behind reshapes."""
    found: set[Node] = set()
    for operand in (operand for node in cluster.nodes for operand in node.operands):
        while operand.op == "disc.reshape" and not clusters.is_real(operand):
            operand = operand.operands[0]
        if clusters.of.get(operand) is not cluster:
            found.add(operand)
    return found


def _common_rows(clusters: Clusters, nodes: list[Node]) -> Rows | None:
    """The rows of every reduction among `nodes` when they agree."""
    found: Rows | None = None
    for node in nodes:
        if node.op != "stablehlo.reduce":
            continue
        reduced = set(node.ints("dimensions"))
        source = node.operands[0].dims
        rows = Rows(
            clusters.env.product([size for axis, size in enumerate(source) if axis not in reduced]),
            clusters.env.product([size for axis, size in enumerate(source) if axis in reduced]),
        )
        if found is not None and not (_equal(clusters, rows.groups, found.groups) and _equal(clusters, rows.tile, found.tile)):
            return None
        found = rows
    return found


def _equal(clusters: Clusters, left: Dim, right: Dim) -> bool:
    return clusters.env.equal(left, right) is Truth.YES


def _fits(clusters: Clusters, root: Node, rows: Rows) -> bool:
    """True when the value is one row per group (its last dims multiply to the tile) or one element per group."""
    count = clusters.count(root)
    if _equal(clusters, count, rows.groups):
        return True
    if not _equal(clusters, count, clusters.env.product((rows.groups, rows.tile))):
        return False
    return any(_equal(clusters, clusters.env.product(root.dims[first:]), rows.tile) for first in range(len(root.dims) + 1))


def may_hand_over(clusters: Clusters, producer: Cluster, consumer: Cluster) -> bool:
    """Structure: rows are read where they are made. Through a transpose or a broadcast of whole rows they would be made once for each row
    that reads them. Where none is, nothing is done twice, and what is handed over is neither stored nor loaded: cheaper at all sizes.

    The rows between two dots get no second result, such as a bias that others read too: an attention kernel has room for one.
    """
    if any(clusters.escapes(node, (producer, consumer)) for node in producer.nodes) and match_attention(clusters, consumer) is not None:
        return False
    for node in producer.nodes:
        for use in clusters.uses(node):
            if clusters.of[use.user] is not consumer:
                continue
            if use.permutes:
                return False
            if use.expands and not _row_value(clusters, node, producer, consumer):
                return False
    return True


def should_hand_over(clusters: Clusters, producer: Cluster, consumer: Cluster) -> bool:
    """Profit, per row, of numbers of rows that need none of their elements: within its row each takes the instructions of a whole vector,
    apart those of a lane, as far as there are rows for the lanes, and a load of what another kernel made."""
    rows, costs = _common_rows(clusters, producer.nodes + consumer.nodes), clusters.costs
    numbers = [node for node in producer.nodes if node.dims]
    if rows is None or producer.kind != "loop" or not all(_row_value(clusters, node, producer, consumer) for node in numbers):
        return True
    seconds = costs.compute(sum(map(op_cost, numbers)))
    lanes = min(costs.lanes, max(rows.groups.const, 1)) if rows.groups.is_const else costs.lanes
    return seconds <= seconds / lanes + costs.load_shared()


def _row_value(clusters: Clusters, node: Node, producer: Cluster, consumer: Cluster) -> bool:
    """True when `node` holds one element per row, which is computed once per row and read by every element of it."""
    rows = _common_rows(clusters, producer.nodes + consumer.nodes)
    return rows is not None and _equal(clusters, clusters.count(node), rows.groups)
