"""fuse-elementwise: element-wise ops join their consumers, up to and including a reduction at the end (paper §4.1).

    %0 = stablehlo.add %a, %b          %0 = stablehlo.add %a, %b {disc.group = 0, disc.kind = "loop"}
    %1 = stablehlo.tanh %0        →    %1 = stablehlo.tanh %0    {disc.group = 0, disc.kind = "loop"}

Requires stage `named`; only writes attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.costs import op_cost
from disc.ir.graph import Node, is_row_reduction
from disc.ir.op_table import ALONE, PRODUCTS, STRUCTURAL, VIEWS
from disc.ir.passes import CompileState, Pass
from disc.passes.fusion.clusters import MOST_RESHAPES, Cluster, Clusters, Use
from disc.shapes.recursion import Recursive, run_recursive


@dataclass(frozen=True)
class FuseElementwise(Pass):
    """Merges producers into consumers, last op first."""

    name: ClassVar[str] = "fuse-elementwise"

    def apply(self, module: ir.Module, state: CompileState) -> None:
        clusters = Clusters(module, state.thresholds.fusion)
        transposed = [node.operands[0] for node in clusters.body.nodes if should_transpose_source(node)]
        for view in [*transposed, *deep_reshapes(clusters)]:
            if not clusters.is_real(view):
                clusters.store_alone(view)
        for node in reversed(clusters.body.nodes):
            cluster = clusters.of.get(node)
            if cluster is None or node.result or cluster.nodes[-1] is not node:
                continue
            _merge_into_consumer(clusters, node, cluster)
        clusters.write()


def deep_reshapes(clusters: Clusters) -> list[Node]:
    """The reshapes behind which MOST_RESHAPES others lie with views alone between them, counted anew from each of them."""
    found: list[Node] = []
    depths: dict[Node, int] = {}
    for node in clusters.body.nodes:
        if node.op in VIEWS:
            depth = depths.get(node.operands[0], 0) + (node.op == "disc.reshape")
            depths[node] = depth % (MOST_RESHAPES + 1)
            if depth > MOST_RESHAPES:
                found.append(node)
    return found


def should_transpose_source(node: Node) -> bool:
    """Profit: a convolution over channels that are innermost in its source reads them as runs of memory, if they lie so."""
    if node.op != "stablehlo.convolution" or not scatters(node.operands[0]):
        return False
    numbers = node.attrs["dimension_numbers"]
    assert isinstance(numbers, dict)
    return numbers["input_feature"] == len(node.dims) - 1


def _merge_into_consumer(clusters: Clusters, node: Node, cluster: Cluster) -> None:
    targets = list({clusters.of[use.user].id: clusters.of[use.user] for use in clusters.uses(node)}.values())
    for target in targets:
        if target is not cluster and may_fuse(clusters, node, cluster, target) and should_fuse(clusters, node, target):
            clusters.merge(cluster, target, target.kind)
            return


def may_fuse(clusters: Clusters, node: Node, cluster: Cluster, target: Cluster) -> bool:
    """Legality: both are memory-bound, the result can be one iteration space, and no other group lies between."""
    if cluster.kind not in ("loop", "stitch") or target.kind not in ("loop", "stitch") or node.op in ALONE or node.op in PRODUCTS:
        return False
    if len(cluster.nodes) + len(target.nodes) > clusters.limits.most_ops or is_row_reduction(node):
        return False
    if clusters.escapes(node, (target, cluster)) and not _same_space(clusters, node, target):
        return False
    if clusters.reshapes_behind([*cluster.nodes, *target.nodes]) > MOST_RESHAPES:
        return False
    return not clusters.would_cycle(cluster, target)


def _same_space(clusters: Clusters, node: Node, target: Cluster) -> bool:
    """True when `node` may be one more result of `target`: every result has as many elements, in the same order."""
    if any(each.op == "stablehlo.reduce" or each.op in ALONE for each in target.nodes):
        return False
    if any(use.permutes or use.expands for use in clusters.uses(node) if clusters.of[use.user] is target):
        return False
    return all(clusters.same_count(root, node) for root in clusters.roots(target))


def should_fuse(clusters: Clusters, node: Node, target: Cluster) -> bool:
    """Profit: no value that is expensive to compute is computed repeatedly."""
    uses = [use for use in clusters.uses(node) if clusters.of[use.user] is target]
    if node.op == "stablehlo.reduce":
        return all(not use.expands and not use.permutes and use.user.op not in ("stablehlo.reduce", *STRUCTURAL) for use in uses)
    if any(use.user.op == "stablehlo.reduce_window" or scatters(use.user) for use in uses) and _follows_dot(clusters, node):
        return False
    if clusters.escapes(node, (clusters.of[node], target)) and not _follows_dot(clusters, node) and _reads_dot(clusters, target):
        return False  # a second result that no dot leads to would keep the target from being the dot's epilogue
    repeated = any(_repeats(use) for use in uses)
    if any(each.op == "stablehlo.reduce" for each in clusters.of[node].nodes) and repeated:
        return False
    return not repeated or inline_cost(clusters, node, target) <= clusters.limits.repeat_cost


def inline_cost(clusters: Clusters, node: Node, target: Cluster) -> int:
    """Instructions per element of `node` with all that `target` would compute along with it, up to one more than may be repeated.

    What a broadcast repeats costs nothing here where it will stay a kernel of its own: it is expensive, or read elsewhere too.
    """
    return run_recursive(_inline_cost(clusters, node, (clusters.of[node], target), {}))


def _inline_cost(clusters: Clusters, node: Node, inside: tuple[Cluster, Cluster], known: dict[Node, int]) -> Recursive[int]:
    if node in known:
        return known[node]
    most = clusters.limits.repeat_cost
    total, pending, seen = 0, [node], {node}
    while pending and total <= most:
        current = pending.pop()
        total += op_cost(current)
        if current.op == "stablehlo.reduce":
            continue
        for operand in current.operands:
            if operand not in seen and not (clusters.repeats(current) and (yield _stays(clusters, operand, inside, known))):
                seen.add(operand)
                pending.append(operand)
    known[node] = min(total, most + 1)
    return known[node]


def _stays(clusters: Clusters, node: Node, inside: tuple[Cluster, Cluster], known: dict[Node, int]) -> Recursive[bool]:
    """True when a kernel of its own makes `node`, which is smaller than what reads it."""
    source = _behind_views(clusters, node)
    if not clusters.is_real(source) or clusters.escapes(source, inside):
        return clusters.is_real(source)
    return (yield _inline_cost(clusters, source, inside, known)) > clusters.limits.repeat_cost


def scatters(view: Node) -> bool:
    """True for a transpose that moves the last dim: a dot that stores its rows in that order writes element by element, some 10 cycles
    each, where a kernel of its own transposes blocks in registers."""
    return view.op == "stablehlo.transpose" and view.ints("permutation")[-1] != len(view.dims) - 1


def _follows_dot(clusters: Clusters, node: Node) -> bool:
    """True when element-wise steps alone lie between a dot and `node`, which can then be its epilogue: it costs less nowhere else."""
    pending, seen = [node], {node}
    while pending:
        current = pending.pop()
        if current.op in PRODUCTS:
            return True
        if current in clusters.of and clusters.of[current].kind == "loop" and current.op not in ALONE:
            fresh = [operand for operand in current.operands if operand not in seen]
            pending.extend(fresh)
            seen.update(fresh)
    return False


def _reads_dot(clusters: Clusters, target: Cluster) -> bool:
    """True when an op of the group reads a dot's result, as it is or through views."""
    sources = {_behind_views(clusters, operand) for node in target.nodes for operand in node.operands}
    return any(source.op in PRODUCTS for source in sources)


def _behind_views(clusters: Clusters, node: Node) -> Node:
    while node.op in VIEWS and not clusters.is_real(node):
        node = node.operands[0]
    return node


def _repeats(use: Use) -> bool:
    """True when one element of the value is needed for several iterations of the user."""
    return use.expands or use.user.op in ("stablehlo.reduce_window", "disc.gather")
