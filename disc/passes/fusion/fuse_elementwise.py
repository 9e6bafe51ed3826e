"""fuse-elementwise: element-wise ops join their consumers, up to and including a reduction at the end (paper §4.1).

    %0 = stablehlo.add %a, %b          %0 = stablehlo.add %a, %b {disc.group = 0, disc.kind = "loop"}
    %1 = stablehlo.tanh %0        →    %1 = stablehlo.tanh %0    {disc.group = 0, disc.kind = "loop"}

Requires stage `named`; only writes attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.costs import Costs, op_cost
from disc.ir.graph import Node, is_row_reduction
from disc.ir.op_table import ALONE, DOTS, PRODUCTS, REORDERING, STRUCTURAL, VIEWS
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.reads import dims_in, numbers_of
from disc.passes.fusion.clusters import MOST_RESHAPES, Cluster, Clusters, Use
from disc.shapes.recursion import Recursive, run_recursive


@dataclass(frozen=True)
class FuseElementwise(FunctionPass):
    """Merges producers into consumers, last op first."""

    name: ClassVar[str] = "fuse-elementwise"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        clusters = Clusters(module, state.thresholds, block)
        found = [node for node in clusters.body.nodes if may_transpose_source(node)]
        transposed = [node.operands[0] for node in found if should_transpose_apart(node.operands[0], clusters.costs)]
        kernels = [node.operands[1] for node in clusters.body.nodes if node.op == "stablehlo.convolution"]
        kernels = [kernel for kernel in kernels if should_store_kernel(clusters, kernel)]
        for view in [*transposed, *kernels, *reversed_factors(clusters), *reordered_sums(clusters), *deep_reshapes(clusters)]:
            if not clusters.is_real(view):
                clusters.store_alone(view)
        for node in reversed(clusters.body.nodes):
            cluster = clusters.of.get(node)
            if cluster is None or node.result or cluster.nodes[-1] is not node:
                continue
            _merge_into_consumer(clusters, node, cluster)
        clusters.write()


def reversed_factors(clusters: Clusters) -> list[Node]:
    """What is reversed on its way to a dot, as the steps of a backward loop are. Profit: a product reads its factors in runs of memory,
    once for each panel; backward it would take them element by element, which costs more than to write them once."""
    found: dict[Node, None] = {}
    for node in clusters.body.nodes:
        for factor in node.operands[:2] if node.op in DOTS else ():
            while factor.op in VIEWS and not clusters.is_real(factor):
                if factor.op == "stablehlo.reverse":
                    found[factor] = None
                factor = factor.operands[0]
    return list(found)


def reordered_sums(clusters: Clusters) -> list[Node]:
    """The transposes that change the order in which a dot sums over the rows of its left factor, as where gradients of sequences first meet
    values of batches first. Profit: a row of such a factor has its elements neither side by side nor in even steps, so that they are
    gathered one by one, for each panel anew; runs of memory that change places once cost less."""
    if clusters.costs.transpose(1) >= clusters.costs.scatter(1):
        return []
    found = [_reordered_sum(clusters, node) for node in clusters.body.nodes if node.op == "stablehlo.dot_general"]
    return list(dict.fromkeys(view for view in found if view is not None))


def _reordered_sum(clusters: Clusters, dot: Node) -> Node | None:
    """The transpose, of all dims but the last, whose dims a reshape joins to the one that is summed over."""
    joined, summed = dot.operands[0], dims_in(numbers_of(dot, "dot_dimension_numbers"), "lhs_contract")
    if joined.op != "disc.reshape" or clusters.is_real(joined) or len(joined.dims) - 1 in summed:
        return None
    turned = joined.operands[0]
    if turned.op != "stablehlo.transpose" or clusters.is_real(turned) or scatters(turned):
        return None
    return turned if any(joined.dims[dim] not in turned.dims for dim in summed) else None


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


def may_transpose_source(node: Node) -> bool:
    """Whether a convolution over channels that are innermost in its source reads them as runs of memory once they lie so."""
    if node.op != "stablehlo.convolution":
        return False
    numbers = node.attrs["dimension_numbers"]
    assert isinstance(numbers, dict)
    return numbers["input_feature"] == len(node.dims) - 1


def should_store_kernel(clusters: Clusters, view: Node) -> bool:
    """Profit: every task of a convolution reads its kernel, which is small, for each few rows anew: what turns it is done once."""
    while view.op in VIEWS and not clusters.is_real(view):
        if view.op in REORDERING and view.op != "disc.slice":
            return True
        view = view.operands[0]
    return False


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
    if is_row_reduction(node):
        return False
    if clusters.escapes(node, (target, cluster)) and not _same_space(clusters, node, target):
        return False
    if not clusters.may_hold([*cluster.nodes, *target.nodes]):
        return False
    if not _reduces_once(clusters, node, target) or not _leaves_epilogues(clusters, node, target):
        return False
    return not clusters.would_cycle(cluster, target)


def _same_space(clusters: Clusters, node: Node, target: Cluster) -> bool:
    """True when `node` may be one more result of `target`: every result has as many elements, in the same order."""
    if any(each.op == "stablehlo.reduce" or each.op in ALONE for each in target.nodes):
        return False
    if any(use.permutes or use.expands for use in clusters.uses(node) if clusters.of[use.user] is target):
        return False
    return all(clusters.same_count(root, node) for root in clusters.roots(target))


def _reduces_once(clusters: Clusters, node: Node, target: Cluster) -> bool:
    """True when each reduction of the node's group is computed for one element of the target alone."""
    uses = _uses_in(clusters, node, target)
    if node.op == "stablehlo.reduce":
        return all(not use.expands and not use.permutes and use.user.op not in ("stablehlo.reduce", *STRUCTURAL) for use in uses)
    return not any(map(_repeats, uses)) or all(each.op != "stablehlo.reduce" for each in clusters.of[node].nodes)


def _leaves_epilogues(clusters: Clusters, node: Node, target: Cluster) -> bool:
    """True when what could be the epilogue of a dot still can be: `node` without a target that no epilogue may be, and the target
    without a second result that no dot leads to."""
    if node.op == "stablehlo.reduce":
        return True
    uses = _uses_in(clusters, node, target)
    if any(use.user.op == "stablehlo.reduce_window" or scatters(use.user) for use in uses) and _follows_dot(clusters, node):
        return False
    escapes = clusters.escapes(node, (clusters.of[node], target))
    return not escapes or _follows_dot(clusters, node) or not _reads_dot(clusters, target)


def should_fuse(clusters: Clusters, node: Node, target: Cluster) -> bool:
    """Profit, per vector of the target's elements where several need one of the node: to compute it for each takes no longer than to load
    what was computed once. Where none is needed twice, to store and load it would be in addition."""
    if node.op == "stablehlo.reduce" or not any(map(_repeats, _uses_in(clusters, node, target))):
        return True
    return _is_repeated(clusters, inline_instructions(clusters, node, target))


def _is_repeated(clusters: Clusters, instructions: int) -> bool:
    return clusters.costs.compute(instructions) <= clusters.costs.load_near()


def _uses_in(clusters: Clusters, node: Node, target: Cluster) -> list[Use]:
    return [use for use in clusters.uses(node) if clusters.of[use.user] is target]


def inline_instructions(clusters: Clusters, node: Node, target: Cluster) -> int:
    """Instructions for a vector of `node` with all that `target` would compute along with it; not all of them where they are too many.

    What a broadcast repeats costs nothing here where it will stay a kernel of its own: it is expensive, or read elsewhere too.
    """
    return run_recursive(_inline_instructions(clusters, node, (clusters.of[node], target), {}))


def _inline_instructions(clusters: Clusters, node: Node, inside: tuple[Cluster, Cluster], known: dict[Node, int]) -> Recursive[int]:
    if node in known:
        return known[node]
    total, pending, seen = 0, [node], {node}
    while pending and _is_repeated(clusters, total):
        current = pending.pop()
        total += op_cost(current)
        if current.op == "stablehlo.reduce":
            continue
        for operand in current.operands:
            if operand not in seen and not (clusters.repeats(current) and (yield _stays(clusters, operand, inside, known))):
                seen.add(operand)
                pending.append(operand)
    known[node] = total
    return total


def _stays(clusters: Clusters, node: Node, inside: tuple[Cluster, Cluster], known: dict[Node, int]) -> Recursive[bool]:
    """True when a kernel of its own makes `node`, which is smaller than what reads it."""
    source = _behind_views(clusters, node)
    if not clusters.is_real(source) or clusters.escapes(source, inside):
        return clusters.is_real(source)
    return not _is_repeated(clusters, (yield _inline_instructions(clusters, source, inside, known)))


def should_transpose_apart(node: Node, costs: Costs) -> bool:
    """Profit, per element: who reads rows through such a transpose, or stores them so, does it element by element; a kernel of its own
    transposes blocks in registers. That is a launch more, which takes less than a microsecond: 500 elements, at most, make up for it."""
    return scatters(node) and costs.transpose(1) < costs.scatter(1)


def scatters(view: Node) -> bool:
    """True for a transpose that moves the last dim: neighbors in a row become neighbors in a column."""
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
