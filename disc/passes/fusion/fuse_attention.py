"""fuse-attention: dot → row-wise normalization → dot over the same rows becomes one group, so that no score leaves the chip.

    %s = dot_general %q, %k + epilogue   {group 4, compute}        all in one group of kind "attention":
    %p = softmax of %s                   {group 5, stitch}    →    for a block of rows: scores into scratch, softmax in place,
    %o = dot_general %p, %v              {group 6, compute}        product with %v

Nothing here looks for a softmax: any stitched row kernel between two dots will do, with any mask or bias in the first dot's
epilogue. Requires groups by stitch; only writes attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.graph import Node
from disc.ir.op_table import ALONE, PRODUCTS, STRUCTURAL, VIEWS
from disc.ir.passes import CompileState, FunctionPass
from disc.passes.fusion.clusters import Cluster, Clusters, is_row_reduction

Refusal = Callable[[Sequence[Node], Node, Node], str | None]


def _nothing(nodes: Sequence[Node], first: Node, second: Node) -> str | None:
    return None


@dataclass(frozen=True)
class FuseAttention(FunctionPass):
    """Merges dot, stitch and dot wherever they fit; where a softmax between two dots does not, its second dot gets a note that says why.

    refuses: what a device has against the nodes of a fusion (those of the block, without other kernels') whose scores come from the first
    dot and whose second dot is the other; None: it has a kernel.
    """

    name: ClassVar[str] = "fuse-attention"
    refuses: Refusal = _nothing

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        clusters = Clusters(module, state.thresholds, block)
        for cluster in clusters.all():
            found = match_attention(clusters, cluster) if cluster.kind == "stitch" else None
            if found is None or self.refuses(*_nodes(clusters, cluster, *found)) is not None:
                continue
            first, last = found
            clusters.merge(first, last, "attention")
            clusters.merge(cluster, last, "attention")
        clusters.write()
        for first, probability, last in softmax_between_dots(clusters):
            if clusters.of[last].kind != "attention":
                where = f" ({first.line})" if first.line else ""
                clusters.note(
                    last, f"no attention kernel with the dot of the scores{where}: {self._obstacle(clusters, first, probability, last)}"
                )

    def _obstacle(self, clusters: Clusters, first: Node, probability: Node, last: Node) -> str:
        middle = clusters.of[probability]
        found = match_attention(clusters, middle) if middle.kind == "stitch" else None
        own = self.refuses(*_nodes(clusters, middle, *found)) if found is not None else None
        return own or obstacle(clusters, first, probability, last)


def _nodes(clusters: Clusters, middle: Cluster, first: Cluster, last: Cluster) -> tuple[tuple[Node, ...], Node, Node]:
    """What `FuseAttention.refuses` is asked about."""
    scores, result = _dot(first), _dot(last)
    assert scores is not None and result is not None
    own = (first, middle, last)
    return tuple(node for node in clusters.body.nodes if clusters.of.get(node, middle) in own), scores, result


def match_attention(clusters: Clusters, middle: Cluster) -> tuple[Cluster, Cluster] | None:
    """(group of the scores' dot, group of the second dot) when `middle` is between them and has the only uses of their values."""
    if _rows_obstacle(clusters, middle) is not None:
        return None
    probability = clusters.roots(middle)[0]
    if _second_obstacle(clusters, probability) is not None:
        return None
    last = clusters.of[clusters.readers(probability)[0]]
    for first in clusters.all():
        if first.kind == "compute" and first is not last and _first_obstacle(clusters, first, middle, last) is None:
            return first, last
    return None


def obstacle(clusters: Clusters, first: Node, probability: Node, last: Node) -> str:
    """Why the dots `first` and `last` with the softmax `probability` between them are no attention kernel."""
    middle = clusters.of[probability]
    if middle.kind != "stitch":
        return f"its rows are part of a {middle.kind} kernel"
    found = _rows_obstacle(clusters, middle) or _second_obstacle(clusters, clusters.roots(middle)[0])
    return found or _first_obstacle(clusters, clusters.of[first], middle, clusters.of[last]) or "another dot has taken its rows"


def softmax_between_dots(clusters: Clusters) -> list[tuple[Node, Node, Node]]:
    """(dot of the scores, probabilities, dot that multiplies them) for every softmax whose scores come from a dot, element by element."""
    found: list[tuple[Node, Node, Node]] = []
    for last in clusters.body.nodes:
        if last.op != "stablehlo.dot_general":
            continue
        for operand in last.operands:
            probability = _source(operand)
            if probability.op != "stablehlo.divide":
                continue
            exponential = _source(probability.operands[0])
            first = _scores_dot(exponential) if exponential.op == "stablehlo.exponential" else None
            if first is not None and first is not last:
                found.append((first, probability, last))
    return found


def _source(node: Node) -> Node:
    """What `node` is a view or a conversion of."""
    while node.op in VIEWS or node.op == "stablehlo.convert":
        node = node.operands[0]
    return node


def _scores_dot(exponential: Node) -> Node | None:
    """The nearest dot that element-wise steps lead from."""
    pending, seen = [exponential], {exponential}
    while pending:
        current = pending.pop(0)
        if current.op == "stablehlo.dot_general":
            return current
        if current.body is None and current.op not in STRUCTURAL and current.op not in ALONE:
            fresh = [operand for operand in current.operands if operand not in seen]
            pending.extend(fresh)
            seen.update(fresh)
    return None


# --- legality: each gives the reason against, None where there is none ------------------------------------------------------------


def _rows_obstacle(clusters: Clusters, middle: Cluster) -> str | None:
    """`middle` makes rows of one value from rows."""
    if any(not is_row_reduction(node) for node in middle.nodes if node.op == "stablehlo.reduce"):
        return "its kernel reduces along other dims than the last"
    roots = clusters.roots(middle)
    if len(roots) != 1 or len(roots[0].siblings) > 1:
        return f"its rows have more results than one, here {', '.join(root.name for root in roots)}"
    return None


def _second_obstacle(clusters: Clusters, probability: Node) -> str | None:
    """One dot reads the probabilities, directly, and contracts them along their rows."""
    if probability in clusters.returned:
        return "the probabilities are returned"
    readers = clusters.readers(probability)
    if len(readers) != 1:
        return f"the probabilities are read more than once, by {', '.join(reader.name for reader in readers)}"
    if not clusters.is_real(readers[0]):
        return f"a {readers[0].name} lies between the probabilities and the dot that multiplies them"
    cluster = clusters.of[readers[0]]
    if cluster.kind != "compute" or readers[0] is not _dot(cluster):
        return f"the probabilities are read by {readers[0].name}"
    if not _multiplies_rows(probability, _dot(cluster)):
        return "the second dot does not have the probabilities on its left, their last dim contracted and the dims before the rows as batch"
    return None


def _first_obstacle(clusters: Clusters, first: Cluster, middle: Cluster, last: Cluster) -> str | None:
    """The rows alone read the scores, which the dot makes row by row."""
    if any(node in clusters.returned for node in first.nodes):
        return "the scores are returned"
    if clusters.successors(first) != [middle]:
        return "the scores are read by other kernels too, or by a loop before the rows"
    reason = _scores_obstacle(clusters, first, middle, clusters.roots(middle)[0])
    if reason is None and (clusters.would_cycle(first, middle) or clusters.would_cycle(middle, last)):
        return "another kernel reads one part of it and is read by the next"
    nodes = [*first.nodes, *middle.nodes, *last.nodes]
    if reason is None and not clusters.may_read(nodes):
        return f"together they read more than {clusters.most_inputs(nodes)} values"
    return reason


def _dot(cluster: Cluster) -> Node | None:
    found = [node for node in cluster.nodes if node.op in PRODUCTS]
    return found[0] if len(found) == 1 and found[0].op == "stablehlo.dot_general" else None


def _multiplies_rows(probability: Node, dot: Node | None) -> bool:
    """True when the dot contracts the last dim of its left operand `probability`, all dims before the row being batch dims in order."""
    if dot is None or dot.operands[0] is not probability or dot.operands[1] is probability:
        return False
    numbers = dot.attrs["dot_dimension_numbers"]
    assert isinstance(numbers, dict)
    rank = len(probability.dims)
    return numbers["lhs_contract"] == (rank - 1,) and numbers["lhs_batch"] == tuple(range(rank - 2))


def _scores_obstacle(clusters: Clusters, first: Cluster, middle: Cluster, probability: Node) -> str | None:
    """The group's one result has the dims of `probability`, rows along the dot's m, and is read by `middle` as it is."""
    dot, roots = _dot(first), clusters.roots(first)
    if dot is None or len(roots) != 1:
        return "the kernel of the scores holds another dot or has more results than one"
    readers = clusters.readers(roots[0])
    views = [node for node in first.nodes if node.op in ("stablehlo.transpose", "disc.reshape") and node.dims == dot.dims]
    views += [reader for reader in readers if not clusters.is_real(reader)]
    if views:
        return f"a {views[0].name} lies between the dot of the scores and the rows"
    if roots[0].dims != probability.dims or dot.dims != roots[0].dims:
        return "the scores have other dims than the rows"
    if not _narrow_float(roots[0].element):
        return f"the scores are {roots[0].element}"
    numbers = dot.attrs["dot_dimension_numbers"]
    assert isinstance(numbers, dict)
    batch = numbers["lhs_batch"]
    assert isinstance(batch, tuple)
    if len(batch) != len(probability.dims) - 2:
        return "the rows of the scores are more than one dim of the first dot"
    if not all(_rows(node, probability) for node in middle.nodes if node.op == "stablehlo.reduce"):
        return "a reduction does not take whole rows of the scores"
    return None


def _narrow_float(element: str) -> bool:
    """True for floats that compute in f32: the scores of a block are kept so."""
    return element in ("f32", "bf16", "f16")


def _rows(reduction: Node, probability: Node) -> bool:
    """True when the reduction takes whole rows of `probability`'s shape."""
    return reduction.operands[0].dims == probability.dims and reduction.ints("dimensions") == (len(probability.dims) - 1,)
