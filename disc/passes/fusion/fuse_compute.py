"""fuse-compute: a dot or convolution takes the element-wise group that consumes it as its epilogue (paper §4.1).

    %0 = stablehlo.dot_general ...  {disc.group = 0, disc.kind = "compute"}
    %1 = stablehlo.add %0, %bias    {disc.group = 0, disc.kind = "compute"}

Requires groups by fuse-elementwise; only writes attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.costs import Costs
from disc.ir.graph import Node
from disc.ir.op_table import ALONE, PRODUCTS, STRUCTURAL, VIEWS, Kind, of_kind
from disc.ir.passes import CompileState, FunctionPass
from disc.passes.fusion.clusters import Cluster, Clusters
from disc.passes.fusion.fuse_elementwise import should_transpose_apart

EPILOGUE_STOPS = of_kind(Kind.REDUCTION) | ALONE | STRUCTURAL | PRODUCTS


@dataclass(frozen=True)
class FuseCompute(FunctionPass):
    """Merges each dot with its one consumer where that is a pure epilogue."""

    name: ClassVar[str] = "fuse-compute"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        clusters = Clusters(module, state.thresholds, block)
        for node in clusters.body.nodes:
            if node.op not in PRODUCTS:
                continue
            cluster = clusters.of[node]
            consumers = clusters.successors(cluster)
            if len(consumers) == 1 and may_be_epilogue(clusters, node, consumers[0]) and should_be_epilogue(consumers[0], clusters.costs):
                clusters.merge(cluster, consumers[0], "compute")
        for cluster in clusters.all():
            if cluster.kind == "compute":
                _store_transposed(clusters, cluster)
        clusters.write()


def _store_transposed(clusters: Clusters, cluster: Cluster) -> None:
    """Lets the dot write its result in the order in which its one reader, a transpose of all dims but the last, needs it.

    The rows that the epilogue stores stay whole, so this costs nothing, and the next dot reads its operand in place.
    """
    roots = clusters.roots(cluster)
    if len(roots) != 1 or len(roots[0].siblings) > 1:
        return
    value = roots[0]
    while value not in clusters.returned:
        readers = clusters.readers(value)
        if len(readers) != 1 or clusters.is_real(readers[0]):
            return
        view = readers[0]
        if view.op == "stablehlo.transpose":
            if view.ints("permutation")[-1] == len(view.dims) - 1:
                clusters.store(view, cluster)
            return
        if view.op != "disc.reshape":
            return
        value = view


def may_be_epilogue(clusters: Clusters, dot: Node, epilogue: Cluster) -> bool:
    """Legality: every op of the group is element-wise over the dot's elements, each read exactly where it is computed."""
    if epilogue.kind != "loop" or any(result in clusters.returned for result in dot.siblings):
        return False
    if any(node.op in EPILOGUE_STOPS for node in epilogue.nodes):
        return False
    if any(use.expands for use in clusters.uses(dot)):
        return False
    reached = _reached(clusters, dot, epilogue)
    if reached is None or any(root not in reached for root in clusters.roots(epilogue)):
        return False
    return clusters.may_read([*clusters.of[dot].nodes, *epilogue.nodes]) and not clusters.would_cycle(clusters.of[dot], epilogue)


def should_be_epilogue(epilogue: Cluster, costs: Costs) -> bool:
    """Profit: the rows of the dot stay rows, or a kernel of its own would take longer over their transpose than the dot."""
    return not any(should_transpose_apart(node, costs) for node in epilogue.nodes)


def _reached(clusters: Clusters, dot: Node, epilogue: Cluster) -> set[Node] | None:
    """The nodes of the group that depend on the dot by one-to-one steps; None when one reads it in two different places.

    `route` is the order of dims through transposes: two operands of one op must have come the same way.
    """
    route: dict[Node, tuple[object, ...]] = {dot: ()}
    members = set(epilogue.nodes)
    for node in clusters.body.nodes:
        sources = [operand for operand in node.operands if operand in route]
        if not sources or node is dot:
            continue
        if clusters.is_real(node) and node not in members:
            continue
        ways = {route[source] for source in sources}
        if len(ways) != 1:
            return None
        way = next(iter(ways))
        if node.op == "stablehlo.transpose":
            way = (*way, ("transpose", node.ints("permutation"), tuple(str(dim) for dim in node.dims)))
        elif node.op == "disc.reshape":
            way = (*way, ("reshape", tuple(str(dim) for dim in node.dims)))
        elif node.dims != sources[0].dims or node.op in VIEWS:
            if any(clusters.of.get(user) is epilogue for user in (use.user for use in clusters.uses(node))):
                return None
            continue
        route[node] = way
    return {node for node in route if node in members}
