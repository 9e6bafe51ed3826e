"""form-fusions: every group becomes one isolated `kernel.fusion`; views and constants are copied into each group that reads them.

Requires groups on every real op; makes stage `fused`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.graph import Node
from disc.ir.op_table import EXTERNAL, STORED
from disc.ir.ops import strings
from disc.ir.passes import CompileState, FunctionPass
from disc.passes.fusion.clusters import NOTE, Cluster, Clusters

GROUPING = ("disc.group", "disc.kind", NOTE, STORED)  # attributes of ops in groups


@dataclass(frozen=True)
class FormFusions(FunctionPass):
    """Builds the regions in an order that respects every dependence, then erases the old ops."""

    name: ClassVar[str] = "form-fusions"
    makes: ClassVar[str | None] = "fused"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        clusters = Clusters(module, state.thresholds, block)
        builder = _Builder(clusters, block)
        for cluster in _topological(clusters):
            if cluster.kind == "control":
                builder.move(cluster.nodes[0])
            else:
                builder.build(cluster)
        builder.finish()


def _name_of(node: Node) -> str:
    """The op's name; of a custom op its own."""
    return re.sub(r"\W+", "_", str(node.attrs["function"])) if node.op == EXTERNAL else node.name


def _topological(clusters: Clusters) -> list[Cluster]:
    remaining = {cluster.id: cluster for cluster in clusters.all()}
    waiting: dict[int, int] = dict.fromkeys(remaining, 0)
    for cluster in remaining.values():
        for successor in clusters.successors(cluster):
            waiting[successor.id] += 1
    ready = [cluster for cluster in remaining.values() if not waiting[cluster.id]]
    order: list[Cluster] = []
    while ready:
        ready.sort(key=lambda cluster: clusters.order[cluster.nodes[0]], reverse=True)
        current = ready.pop()
        order.append(current)
        for successor in clusters.successors(current):
            waiting[successor.id] -= 1
            if not waiting[successor.id]:
                ready.append(successor)
    if len(order) != len(remaining):
        raise AssertionError("the groups depend on each other in a circle")
    return order


class _Builder:
    """Creates fusions before the terminator of the block."""

    def __init__(self, clusters: Clusters, block: ir.Block) -> None:
        self.clusters = clusters
        self.block = block
        self.terminator = block.operations[len(block.operations) - 1].operation
        self.old = [view.operation for view in block.operations][:-1]
        self.replaced: dict[Node, ir.Value] = {}
        self.values: dict[Node, ir.Value] = {}
        for node in clusters.body.arguments:
            self.values[node] = block.arguments[clusters.body.arguments.index(node)]
        for node in clusters.body.nodes:
            if node.op != "input":
                self.values[node] = clusters.snapshot.ops[node.id].results[node.result]

    def move(self, node: Node) -> None:
        """A control op stays as it is, and reads what fusions make."""
        op = self.clusters.snapshot.ops[node.id]
        copy = op.clone(ip=ir.InsertionPoint(self.terminator)).operation
        for name in ("disc.group", "disc.kind"):
            if name in copy.attributes:
                del copy.attributes[name]
        for number, operand in enumerate(node.operands):
            copy.operands[number] = self.replaced.get(operand, self.values[operand])
        self.replaced.update(zip(node.siblings, copy.results, strict=True))

    def build(self, cluster: Cluster) -> None:
        """One fusion: inputs are what its region reads and does not compute. An op that binds a symbol stands beside fusions."""
        if cluster.kind == "size":
            self._size(cluster.nodes[0])
            return
        results = [each for node in cluster.nodes for each in (node.siblings or (node,)) if self._needed(each, cluster)]
        inputs = self._inputs(cluster)
        attributes: dict[str, ir.Attribute] = {"kind": ir.StringAttr.get(cluster.kind), "name": ir.StringAttr.get(self._name(cluster))}
        notes = [str(node.attrs[NOTE]) for node in cluster.nodes if NOTE in node.attrs]
        if notes:
            attributes["notes"] = strings(*notes)
        fusion = ir.Operation.create(
            "kernel.fusion",
            results=[self.values[node].type for node in results],
            operands=[self.replaced.get(node, self.values[node]) for node in inputs],
            attributes=attributes,
            regions=1,
            loc=ir.Location.fused([self.clusters.snapshot.ops[node.id].location for node in cluster.nodes[:8]]),
            ip=ir.InsertionPoint(self.terminator),
        )
        region = ir.Block.create_at_start(fusion.regions[0], [self.values[node].type for node in inputs])
        inside: dict[Node, ir.Value] = dict(zip(inputs, region.arguments, strict=True))
        for node in self._region_nodes(cluster):
            self._copy(node, region, inside)
        ir.Operation.create("kernel.yield", operands=[inside[node] for node in results], ip=ir.InsertionPoint(region))
        self.replaced.update(zip(results, fusion.results, strict=True))

    def _size(self, node: Node) -> None:
        copy = self.clusters.snapshot.ops[node.id].clone(ip=ir.InsertionPoint(self.terminator)).operation
        for name in GROUPING:
            if name in copy.attributes:
                del copy.attributes[name]
        copy.operands[0] = self.replaced.get(node.operands[0], self.values[node.operands[0]])

    def _needed(self, node: Node, cluster: Cluster) -> bool:
        if node in self.clusters.returned:
            return True
        return any(self._read_outside(user, cluster) for user in self.clusters.readers(node))

    def _read_outside(self, user: Node, cluster: Cluster) -> bool:
        if self.clusters.is_real(user):
            return self.clusters.of[user] is not cluster
        return any(self.clusters.of[use.user] is not cluster for use in self.clusters.uses(user))

    def _region_nodes(self, cluster: Cluster) -> list[Node]:
        """The ops of the group and the views and constants that they read, in program order."""
        members = set(cluster.nodes)
        wanted: dict[Node, None] = {}
        pending = list(cluster.nodes)
        while pending:
            node = pending.pop()
            if node in wanted:
                continue
            wanted[node] = None
            for operand in node.operands:
                first = operand.siblings[0] if operand.siblings else operand
                if first in members or (operand.op != "input" and operand.op != "disc.weight" and not self.clusters.is_real(operand)):
                    pending.append(first)
        return sorted(wanted, key=lambda node: self.clusters.order[node])

    def _inputs(self, cluster: Cluster) -> list[Node]:
        inside = {each for node in self._region_nodes(cluster) for each in (node.siblings or (node,))}
        found = dict.fromkeys(operand for node in self._region_nodes(cluster) for operand in node.operands if operand not in inside)
        return list(found)

    def _copy(self, node: Node, region: ir.Block, inside: dict[Node, ir.Value]) -> None:
        copy = self.clusters.snapshot.ops[node.id].clone(ip=ir.InsertionPoint(region)).operation
        for name in GROUPING:
            if name in copy.attributes:
                del copy.attributes[name]
        for number, operand in enumerate(node.operands):
            copy.operands[number] = inside[operand]
        inside.update(zip(node.siblings or (node,), copy.results, strict=True))

    def _name(self, cluster: Cluster) -> str:
        names = list(dict.fromkeys(_name_of(node) for node in cluster.nodes))
        chosen = names if len(names) <= 4 else [*names[:3], names[-1]]
        return f"{cluster.kind}_{'_'.join(chosen)}"

    def finish(self) -> None:
        """Redirects the return and erases what was copied."""
        for number, node in enumerate(self.clusters.body.yields):
            if node in self.replaced:
                self.terminator.operands[number] = self.replaced[node]
        for op in reversed(self.old):
            if op.name != "disc.weight" or not any(True for result in op.results for _ in result.uses):
                op.erase()
