"""Which rows' reductions the elements of a row kernel need: those of their own row alone, or others', made anew for each of them.

Sizes do not tell: in a square both dims may be the rows. So what each element reads is followed back from the results, dim by dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from disc.ir.graph import Node
from disc.ir.op_table import ELEMENTWISE, ONE, OPS, SOURCES, VIEWS
from disc.ir.reads import Place
from disc.passes.fusion.clusters import Clusters
from disc.shapes import Dim, Truth


@dataclass(frozen=True)
class Along:
    """How a position along a dim follows an iteration over the elements of all rows. dims: of that iteration; how: the steps and offsets of
    the places between that are more than one dim's own."""

    dims: frozenset[int] = frozenset()
    how: tuple[object, ...] = ()


Follows = tuple[Along, ...]


@dataclass
class OwnRows:
    """A walk from the results of a group back to its reductions.

    nodes: of the group; space: the dims of the iteration; rank: how many of them tell rows apart.
    """

    clusters: Clusters
    nodes: frozenset[Node]
    space: tuple[Dim, ...]
    rank: int
    found: dict[Node, object] = field(default_factory=dict)

    def hold(self, roots: Sequence[Node]) -> bool:
        """Whether each reduction is read at one place, which is the row's own and no other row's."""
        whole = tuple(Along(frozenset({dim})) for dim in range(len(self.space)))
        pending: list[tuple[Node, Follows]] = []
        for root in roots:
            full = self._equal(self.clusters.count(root), self.clusters.env.product(self.space))
            space = len(self.space) if full else self.rank
            pending.append((root, self._reshaped(whole[:space], self.space[:space], root.dims)))
        seen = set(pending)
        while pending:
            node, at = pending.pop()
            needed = self._reads(node, at)
            if needed is None:
                return False
            fresh = [each for each in needed if each not in seen]
            seen.update(fresh)
            pending += fresh
        return True

    def _reads(self, node: Node, at: Follows) -> list[tuple[Node, Follows]] | None:
        """What an element needs of the operands; None for a reduction of another row, or one that data chooses."""
        first = node.siblings[0] if node.siblings else node
        if node.op in SOURCES or not self._is_computed(first):
            return []
        if node.op == "stablehlo.reduce" and not self._is_own(first, at):
            return None
        if node.op in ELEMENTWISE:
            return [(operand, at) for operand in node.operands if operand.dims]
        reads = OPS[node.op].reads
        if node.op in VIEWS and reads is None:
            return [(node.operands[0], self._reshaped(at, node.dims, node.operands[0].dims))]
        if reads is None:
            return None if any(map(self._is_behind_reduction, node.operands)) else []
        places = zip(node.operands, reads(node, self.clusters.env), strict=True)
        return [(operand, tuple(self._through(place, at) for place in each)) for operand, each in places if operand.dims]

    def _is_computed(self, node: Node) -> bool:
        """Whether the group computes a value where it is read: as one of its ops, or as a view."""
        return node in self.nodes or (node.op in VIEWS and not self.clusters.is_real(node))

    def _is_own(self, node: Node, at: Follows) -> bool:
        dims = frozenset[int]().union(*(along.dims for along in at))
        rows = {dim for dim in range(self.rank) if not self._equal(self.space[dim], ONE)}
        place = [dim for along in at for dim in sorted(along.dims)], [along.how for along in at if along.how]
        return rows <= dims <= frozenset(range(self.rank)) and self.found.setdefault(node, place) == place

    def _is_behind_reduction(self, node: Node) -> bool:
        pending, seen = [node], {node}
        while pending:
            each = pending.pop()
            if each in self.nodes and each.op == "stablehlo.reduce":
                return True
            if self._is_computed(each):
                pending += [operand for operand in each.operands if operand not in seen]
                seen.update(each.operands)
        return False

    def _through(self, place: Place | None, at: Follows) -> Along:
        if place is None:
            return Along(frozenset({len(self.space)}))  # all of a dim that is reduced
        if place.same is not None:
            return at[place.same]
        joined = _joined([at[dim] for dim, _ in place.steps])
        return Along(joined.dims, (place, *joined.how))

    def _reshaped(self, at: Follows, dims: Sequence[Dim], source: Sequence[Dim]) -> Follows:
        """The place in a tensor of dims `source` of what is at `at` of its reshape to `dims`."""
        groups = self.clusters.env.reshape_groups(source, dims)
        if groups is None:
            (first, behind), (outer, inside) = self._cut(source), self._cut(dims)
            groups = [(first, outer), (behind, inside)]
        found = [Along()] * len(source)
        for inner, outer in groups:
            several = [axis for axis in inner if not self._equal(source[axis], ONE)]
            kept = [axis for axis in outer if not self._equal(dims[axis], ONE)]
            for axis in several:
                found[axis] = _joined([at[each] for each in kept])
        return tuple(found)

    def _cut(self, dims: Sequence[Dim]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The dims that tell rows apart, and those of a row; all of them are of a row where none begins with a dim."""
        env, row = self.clusters.env, self.clusters.env.product(self.space[self.rank :])
        first = next((cut for cut in range(len(dims), -1, -1) if self._equal(env.product(dims[cut:]), row)), 0)
        return tuple(range(first)), tuple(range(first, len(dims)))

    def _equal(self, left: Dim, right: Dim) -> bool:
        return self.clusters.env.equal(left, right) is Truth.YES


def _joined(several: Sequence[Along]) -> Along:
    """How a position follows that several dims' positions determine together."""
    return Along(frozenset[int]().union(*(each.dims for each in several)), tuple(how for each in several for how in each.how))
