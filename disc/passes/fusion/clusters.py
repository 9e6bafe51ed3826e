"""Groups of ops that will become one kernel, as attributes on the ops of `@main`.

The fusion passes (paper §4.1) only decide: each reads the groups left by the one before, merges some, and writes them back as
`disc.group = 3 : i64` and `disc.kind = "stitch"`. `form-fusions` then builds the regions. Views and constants belong to no group:
every group that reads through one gets its own copy, because a view is only a change of index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch_mlir import ir

from disc.ir.costs import Costs
from disc.ir.graph import Attribute, Body, Node, Snapshot, is_row_reduction
from disc.ir.op_table import (
    ALONE,
    BINDING,
    CONTROL,
    LIBRARY,
    MADE,
    OPS,
    PRODUCTS,
    REORDERING,
    REPEATING,
    SEQUENTIAL,
    SOURCES,
    STORED,
    VIEWS,
)
from disc.ir.ops import main_block
from disc.ir.stages import load_env
from disc.shapes import Dim, ShapeEnv, Truth
from disc.targets.thresholds import DeviceThresholds

NOTE = "disc.note"  # marks an op with what `explain` shall say of the kernel that it becomes part of
MOST_RESHAPES = 8  # of one kernel, one behind the other: each may divide a place that the one before divided, and doubles its expression


@dataclass(eq=False)
class Cluster:
    """A group: its ops (first results) in program order, and what kind of kernel it will be."""

    id: int  # no other group has it
    kind: str
    nodes: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Use:
    """One op that reads a value, and what the views between them do."""

    user: Node
    expands: bool
    permutes: bool


class Clusters:
    """The groups of a function, the reads between its ops, and the queries of fusion.

    limits, costs: what decisions are made by; block: of the function, None for `@main`.
    """

    def __init__(self, module: ir.Module, device: DeviceThresholds, block: ir.Block | None = None) -> None:
        self.limits, self.costs = device.fusion, Costs.of(device)
        self.env: ShapeEnv = load_env(module)
        self.snapshot = Snapshot(self.env)
        self.body: Body = self.snapshot.block(block or main_block(module))
        self.order: dict[Node, int] = {}
        self.of: dict[Node, Cluster] = {}
        self.binding = {str(node.attrs["symbol"]): node for node in self.body.nodes if node.op in BINDING}
        # What lies in memory whoever reads it: what is returned, becomes a size, or is what a function of control flow is called with.
        given = (operand for node in self.body.nodes if node.op in BINDING or node.op in CONTROL for operand in node.operands)
        self.returned = {*self.body.yields, *given}
        self._whole = _whole(self.body)
        self._uses: dict[Node, tuple[Use, ...]] = {}
        self._successors: dict[Cluster, list[Cluster]] = {}  # until a group changes
        self._several: dict[int, Cluster] = {}  # groups of more than one op, by number
        self._next = 0
        self._read()

    # --- reading and writing attributes ----------------------------------------------------------------------------------

    def _read(self) -> None:
        found: dict[int, Cluster] = {}
        for position, node in enumerate(self.body.nodes):
            self.order[node] = position
            if node.result or not self.is_real(node):
                continue
            number = node.attrs.get("disc.group")
            if not isinstance(number, int):
                number = self._next
            cluster = found.get(number)
            if cluster is None:
                cluster = found[number] = Cluster(number, str(node.attrs.get("disc.kind", self._first_kind(node))))
            cluster.nodes.append(node)
            for each in node.siblings:
                self.of[each] = cluster
            self._next = max(self._next, number + 1)
        self._several.update((number, cluster) for number, cluster in found.items() if len(cluster.nodes) > 1)

    def _first_kind(self, node: Node) -> str:
        if node.op in PRODUCTS:
            return "compute"
        if node.op in CONTROL:
            return "control"
        if node.op in ALONE:
            return "size" if node.op in BINDING else "library" if node.op in SEQUENTIAL or node.op in LIBRARY else "loop"
        return "stitch" if is_row_reduction(node) else "loop"

    def write(self) -> None:
        """Stores the groups as attributes, numbered in program order."""
        numbers: dict[int, int] = {}
        with self.context():
            for node in self.body.nodes:
                cluster = self.of.get(node)
                if cluster is None or node.result:
                    continue
                number = numbers.setdefault(cluster.id, len(numbers))
                op = self.snapshot.ops[node.id]
                op.attributes["disc.group"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
                op.attributes["disc.kind"] = ir.StringAttr.get(cluster.kind)

    def context(self) -> ir.Context:
        """The context of the module."""
        return next(iter(self.snapshot.ops.values())).context if self.snapshot.ops else ir.Context.current

    # --- questions -------------------------------------------------------------------------------------------------------

    def is_real(self, node: Node) -> bool:
        """True for an op that belongs to a group: not a source, constant or view (unless the view itself is returned, or must lie in memory
        for a library op)."""
        if node.op in SOURCES:
            return False
        if node in self.returned or node in self._whole or STORED in node.attrs:
            return True
        return node.op not in MADE and node.op not in VIEWS

    def may_hold(self, nodes: list[Node]) -> bool:
        """Legality: a loop or row kernel of these ops is not larger than the device's limits."""
        return len(nodes) <= self.limits.most_ops and self.reshapes_behind(nodes) <= MOST_RESHAPES and self.may_read(nodes)

    def may_read(self, nodes: list[Node]) -> bool:
        """Legality, for every fusion pass: a kernel of these ops reads no more inputs than F_max (Dali, paper 004 §2.2)."""
        return len(self.inputs(nodes)) <= self.most_inputs(nodes)

    def most_inputs(self, nodes: list[Node]) -> int:
        """F_max of the kind that a group of these ops is of."""
        limits, products = self.limits.most_inputs, sum(node.op in PRODUCTS for node in nodes)
        if products:
            return limits.attention if products > 1 else limits.compute
        return limits.stitch if any(is_row_reduction(node) for node in nodes) else limits.loop

    def inputs(self, nodes: list[Node]) -> set[Node]:
        """What a kernel of these ops would read from memory: several elements each, by whatever views."""
        inside, found = set(nodes), set[Node]()
        pending = [operand for node in nodes for operand in node.operands]
        seen = set(pending)
        while pending:
            node = pending.pop()
            if node in inside or (node.siblings and node.siblings[0] in inside):
                continue
            through = node.op in VIEWS and not self.is_real(node)
            if not through and node.op not in MADE and self.count(node) != 1:
                found.add(node)
            fresh = [each for each in node.operands if through and each not in seen]
            seen.update(fresh)
            pending += fresh
        return found

    def reshapes_behind(self, nodes: list[Node]) -> int:
        """How many reshapes may lie one behind the other in a kernel of these ops and the views that they read through."""
        inside, depths = set(nodes), dict[Node, int]()
        for node in sorted(nodes, key=self.order.__getitem__):
            own = deepest = int(node.op == "disc.reshape")
            for operand in node.operands:
                depth = own
                while operand not in inside and operand.op in VIEWS and not self.is_real(operand):
                    depth += operand.op == "disc.reshape"
                    operand = operand.operands[0]
                deepest = max(deepest, depth + depths.get(operand, 0))
            depths[node] = deepest
            for each in node.siblings:
                depths[each] = depths[node]
        return max(depths.values(), default=0)

    def uses(self, node: Node) -> tuple[Use, ...]:
        """The real ops that read `node` (any result), through views."""
        found = self._uses.get(node)
        if found is None:
            collected: list[Use] = []
            for result in node.siblings or (node,):
                collected += self._through_views(result)
            found = self._uses[node] = tuple(collected)
        return found

    def _through_views(self, node: Node) -> list[Use]:
        found: list[Use] = []
        seen: set[tuple[int, bool, bool]] = set()
        pending = [Use(node, False, False)]
        while pending:
            use = pending.pop()
            if use.user is not node and self.is_real(use.user):
                found.append(use)
                continue
            if (use.user.id, use.expands, use.permutes) in seen:
                continue
            seen.add((use.user.id, use.expands, use.permutes))
            readers = self.readers(use.user)
            pending += [Use(each, use.expands or self.repeats(each), use.permutes or each.op in REORDERING) for each in reversed(readers)]
        return found

    def readers(self, node: Node) -> list[Node]:
        """The ops that read exactly this result (first results)."""
        return [user for user in dict.fromkeys(self._direct.get(node, ()))]

    @property
    def _direct(self) -> dict[Node, list[Node]]:
        found = getattr(self, "_direct_uses", None)
        if found is None:
            found = {}
            for user in self.body.nodes:
                if user.result == 0:
                    for operand in user.operands:
                        found.setdefault(operand, []).append(user)
            self._direct_uses = found
        return found

    def repeats(self, node: Node) -> bool:
        """True for a view that holds elements of its operand more than once."""
        if node.op not in REPEATING:
            return False
        reads = OPS[node.op].reads
        places = reads(node, self.env)[0] if reads is not None else ()
        return any(place is not None and len(place.steps) > 1 for place in places) or not self.same_count(node, node.operands[0])

    def same_count(self, first: Node, second: Node) -> bool:
        """True when both values provably have equally many elements."""
        return self.env.equal(self.count(first), self.count(second)) is Truth.YES

    def count(self, node: Node) -> Dim:
        """The number of elements."""
        return self.env.product(node.dims)

    def escapes(self, node: Node, clusters: Iterable[Cluster]) -> bool:
        """True when `node` is read outside `clusters` or returned."""
        inside = list(clusters)
        if any(result in self.returned for result in node.siblings or (node,)):
            return True
        return any(self.of[use.user] not in inside for use in self.uses(node))

    def roots(self, cluster: Cluster) -> list[Node]:
        """The ops of the group whose values are needed outside it."""
        return [node for node in cluster.nodes if self.escapes(node, (cluster,))]

    def successors(self, cluster: Cluster) -> list[Cluster]:
        """The groups that read from this one."""
        found = self._successors.get(cluster)
        if found is None:
            readers = {self.of[use.user]: None for node in cluster.nodes for use in self.uses(node)}
            for node in cluster.nodes if self.binding else ():
                readers.update(dict.fromkeys(self._sized_by(node)))
            readers.pop(cluster, None)
            found = self._successors[cluster] = list(readers)
        return found

    def _sized_by(self, node: Node) -> list[Cluster]:
        """The groups that need the size which `node` binds, if it does."""
        if node.op not in BINDING:
            return []
        return [cluster for cluster in self.all() if cluster.nodes[0] is not node and node in self._needs(cluster)]

    def _needs(self, cluster: Cluster) -> set[Node]:
        """The ops that bind what the sizes of a group depend on."""
        found: set[Node] = set()
        pending, seen = list(cluster.nodes), set(cluster.nodes)
        while pending and self.binding:
            node = pending.pop()
            found |= {self.binding[name] for name in self._symbols(node) if name in self.binding}
            if node.op in CONTROL:  # its functions may need whatever is bound before it
                found |= {each for each in self.binding.values() if self.order[each] < self.order[node]}
            fresh = [each for each in node.operands if each not in seen and not self.is_real(each)]
            seen.update(fresh)
            pending += fresh
        return found

    def _symbols(self, node: Node) -> set[str]:
        """What the dims and the attributes of an op depend on."""
        texts = [text for name in ("expr", "starts", "low", "sizes") if name in node.attrs for text in _texts(node.attrs[name])]
        sizes = [*node.dims, *(dim for each in node.siblings for dim in each.dims), *(self.env.parse(text) for text in texts)]
        return {name for size in sizes for name in self.env.simplify(size).symbols()}

    def producers(self, cluster: Cluster) -> list[Cluster]:
        """The groups that this one reads from, or that bind a size for it, in order of first op."""
        found: dict[int, Cluster] = {self.of[node].id: self.of[node] for node in self._needs(cluster)}
        seen: set[Node] = set()
        pending = [operand for node in cluster.nodes for operand in node.operands]
        while pending:
            node = pending.pop()
            if self.is_real(node):
                found[self.of[node].id] = self.of[node]
            elif node not in seen:
                seen.add(node)
                pending += node.operands
        found.pop(cluster.id, None)
        return sorted(found.values(), key=lambda each: min(self.order[node] for node in each.nodes))

    def would_cycle(self, producer: Cluster, consumer: Cluster) -> bool:
        """True when a third group lies on a path from `producer` to `consumer`.

        A group whose ops all come after the consumer's is passed over, unless a group that it may lead to has ops on both sides.
        """
        last = self._last_before(producer, consumer)
        pending = [each for each in self.successors(producer) if each is not consumer]
        seen = {each.id for each in pending}
        while pending:
            current = pending.pop()
            if current is consumer:
                return True
            if min(self.order[node] for node in current.nodes) > last:
                continue
            for each in self.successors(current):
                if each.id not in seen:
                    seen.add(each.id)
                    pending.append(each)
        return False

    def _last_before(self, producer: Cluster, consumer: Cluster) -> int:
        """The last op of the consumer and of the groups of several ops that begin before that one."""
        last = max(self.order[node] for node in consumer.nodes)
        others = (each for each in self._several.values() if each is not producer and each is not consumer)
        spans = ([self.order[node] for node in each.nodes] for each in others)
        return max([last, *(max(span) for span in spans if span and min(span) <= last)])

    def merge(self, producer: Cluster, consumer: Cluster, kind: str) -> Cluster:
        """Moves the ops of `producer` into `consumer`, which becomes of `kind`."""
        for each in (*self.producers(producer), producer, consumer):  # the others read from the same groups as before
            self._successors.pop(each, None)
        consumer.nodes = sorted(producer.nodes + consumer.nodes, key=lambda node: self.order[node])
        consumer.kind = kind
        for node in producer.nodes:
            for each in node.siblings or (node,):
                self.of[each] = consumer
        producer.nodes = []
        self._several.pop(producer.id, None)
        self._several[consumer.id] = consumer
        return consumer

    def store(self, view: Node, cluster: Cluster) -> None:
        """Makes `view` an op of `cluster`: the group writes its result in the order of the view."""
        self.mark_stored(view)
        self.of[view] = cluster
        cluster.nodes.append(view)
        self._several[cluster.id] = cluster
        self._successors.clear()

    def mark_stored(self, view: Node) -> None:
        """Makes `view` a real op from now on: some group writes it in its own order. The caller sees to its group."""
        view.attrs[STORED] = True
        with self.context():
            self.snapshot.ops[view.id].attributes[STORED] = ir.UnitAttr.get()
        self._uses.clear()
        self._successors.clear()

    def note(self, node: Node, text: str) -> None:
        """Makes `explain` say `text` of the kernel of `node`."""
        node.attrs[NOTE] = text
        with self.context():
            self.snapshot.ops[node.id].attributes[NOTE] = ir.StringAttr.get(text)

    def store_alone(self, view: Node) -> None:
        """Makes `view` a group: a kernel writes the value in the order of the view."""
        self._next += 1
        self.store(view, Cluster(self._next - 1, "loop"))

    def all(self) -> list[Cluster]:
        """Every group once, in order of first op."""
        return list({cluster.id: cluster for node in self.body.nodes if (cluster := self.of.get(node)) is not None}.values())


def _whole(body: Body) -> set[Node]:
    """The operands of library ops, which must lie in memory as they are; a reshape has the memory of its operand."""
    found: set[Node] = set()
    for node in body.nodes:
        for operand in node.operands if node.op in LIBRARY else ():
            while operand.op == "disc.reshape" and operand not in body.yields:
                operand = operand.operands[0]
            found.add(operand)
    return found


def _texts(attribute: Attribute) -> tuple[str, ...]:
    """The expressions of an attribute: one, or several."""
    return tuple(map(str, attribute)) if isinstance(attribute, tuple) else (str(attribute),)
