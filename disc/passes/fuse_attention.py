"""fuse-attention: dot → row-wise normalisation → dot over the same rows becomes one group, so that no score leaves the chip.

    %s = dot_general %q, %k + epilogue   {group 4, compute}        all in one group of kind "attention":
    %p = softmax of %s                   {group 5, stitch}    →    for a block of rows: scores into scratch, softmax in place,
    %o = dot_general %p, %v              {group 6, compute}        product with %v

Nothing here looks for a softmax: any stitched row kernel between two dots will do, with any mask or bias in the first dot's
epilogue. Requires groups by stitch; only writes attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.graph import Node
from disc.ir.passes import CompileState, Pass
from disc.passes.clusters import DOTS, Cluster, Clusters, is_row_reduction


@dataclass(frozen=True)
class FuseAttention(Pass):
    """Merges dot, stitch and dot wherever they fit."""

    name: ClassVar[str] = "fuse-attention"

    def apply(self, module: ir.Module, state: CompileState) -> None:
        clusters = Clusters(module)
        for cluster in clusters.all():
            found = match_attention(clusters, cluster) if cluster.kind == "stitch" else None
            if found is None:
                continue
            first, last = found
            clusters.merge(first, last, "attention")
            clusters.merge(cluster, last, "attention")
        clusters.write()


def match_attention(clusters: Clusters, middle: Cluster) -> tuple[Cluster, Cluster] | None:
    """(group of the scores' dot, group of the second dot) when `middle` stands between them and nobody else sees their values."""
    roots = clusters.roots(middle)
    if (
        len(roots) != 1
        or len(roots[0].siblings) > 1
        or any(not is_row_reduction(node) for node in middle.nodes if node.op == "stablehlo.reduce")
    ):
        return None
    probability = roots[0]
    last = _reader(clusters, probability)
    if last is None or not _multiplies_rows(probability, _dot(last)):
        return None
    for first in clusters.all():
        if (
            first.kind == "compute"
            and first is not last
            and clusters.successors(first) == [middle]
            and _makes_rows(clusters, first, middle, probability)
            and not clusters.would_cycle(first, middle)
            and not clusters.would_cycle(middle, last)
        ):
            return first, last
    return None


def _dot(cluster: Cluster) -> Node | None:
    found = [node for node in cluster.nodes if node.op in DOTS]
    return found[0] if len(found) == 1 and found[0].op == "stablehlo.dot_general" else None


def _reader(clusters: Clusters, value: Node) -> Cluster | None:
    """The one compute group that reads `value`, directly and in its dot."""
    readers = clusters.readers(value)
    if value in clusters.returned or len(readers) != 1 or not clusters.is_real(readers[0]):
        return None
    cluster = clusters.of[readers[0]]
    return cluster if cluster.kind == "compute" and readers[0] is _dot(cluster) else None


def _multiplies_rows(probability: Node, dot: Node | None) -> bool:
    """True when the dot contracts the last dim of its left operand `probability`, all dims before the row being batch dims in order."""
    if dot is None or dot.operands[0] is not probability or dot.operands[1] is probability:
        return False
    numbers = dot.attrs["dot_dimension_numbers"]
    assert isinstance(numbers, dict)
    rank = len(probability.dims)
    return numbers["lhs_contract"] == (rank - 1,) and numbers["lhs_batch"] == tuple(range(rank - 2))


def _makes_rows(clusters: Clusters, first: Cluster, middle: Cluster, probability: Node) -> bool:
    """True when the group's one result has the dims of `probability`, rows along the dot's m, and is read by `middle` as it is."""
    dot = _dot(first)
    roots = clusters.roots(first)
    if (
        dot is None
        or len(roots) != 1
        or roots[0].dims != probability.dims
        or dot.dims != roots[0].dims
        or not _narrow_float(roots[0].element)
    ):
        return False
    if any(not clusters.is_real(reader) for reader in clusters.readers(roots[0])):
        return False
    if any(node.op in ("stablehlo.transpose", "disc.reshape") and node.dims == dot.dims for node in first.nodes):
        return False
    numbers = dot.attrs["dot_dimension_numbers"]
    assert isinstance(numbers, dict)
    batch = numbers["lhs_batch"]
    assert isinstance(batch, tuple)
    return len(batch) == len(probability.dims) - 2 and all(
        _rows(node, probability) for node in middle.nodes if node.op == "stablehlo.reduce"
    )


def _narrow_float(element: str) -> bool:
    """True for floats that compute in f32: the scores of a block are kept so."""
    return element in ("f32", "bf16", "f16")


def _rows(reduction: Node, probability: Node) -> bool:
    """True when the reduction takes whole rows of `probability`'s shape."""
    return reduction.operands[0].dims == probability.dims and reduction.ints("dimensions") == (len(probability.dims) - 1,)
