"""clone-producers: a cheap value that kernels on both sides of a dot read is computed in each of them, from smaller values.

    %m = stablehlo.compare LE, %column, %row              ... dots ...
    ... dots ...                                          %m1 = stablehlo.compare LE, %column, %row
    %a = stablehlo.select %m, %scores1, %low        ─►    %a  = stablehlo.select %m1, %scores1, %low
    ... dots ...                                          ... dots ...
    %b = stablehlo.select %m, %scores2, %low              %m2 = stablehlo.compare LE, %column, %row
                                                          %b  = stablehlo.select %m2, %scores2, %low

The mask of a causal model is such a value: every layer reads it. Computed once it is a buffer of length x length that each layer loads,
and after a load it is not visible that half of it is false. A smaller value that is computed, not read, is made once: in the order of dims
in which it is read, where its first readers would go across its rows. Requires stage `named`, before any groups; keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch_mlir import ir

from disc.ir.costs import Costs, op_cost
from disc.ir.graph import Node
from disc.ir.op_table import ELEMENTWISE, MADE, PRODUCTS, SOURCES, VIEWS
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.rewriting import erase_dead
from disc.passes.fusion.clusters import Clusters
from disc.shapes.recursion import Recursive, run_recursive


@dataclass
class Recipe:
    """What computes a value from smaller ones: the ops to copy, the transposes to store. instructions: for a vector of it."""

    nodes: dict[Node, None] = field(default_factory=dict)
    stored: list[Node] = field(default_factory=list)
    instructions: int = 0


@dataclass(frozen=True)
class CloneProducers(FunctionPass):
    """Gives the readers between two dots a copy of their own."""

    name: ClassVar[str] = "clone-producers"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        clusters = Clusters(module, state.thresholds, block)
        levels = dot_levels(clusters)
        for node in reversed(clusters.body.nodes):  # a copy then never reads what was copied for another place
            places = readers_by_level(clusters, node, levels) if may_clone(clusters, node) else {}
            recipe = read_recipe(clusters, node) if len(places) > 1 else None
            if recipe is not None and should_clone(recipe, clusters.costs):
                _clone(clusters, node, recipe, list(places.values()))
        erase_dead(block)  # the ops of which only copies are read


def dot_levels(clusters: Clusters) -> dict[Node, int]:
    """How many dots lie on the way to each value: values of different levels are never made by one loop or row kernel."""
    levels: dict[Node, int] = {}
    for node in clusters.body.nodes:
        levels[node] = max((levels.get(operand, 0) for operand in node.operands), default=0) + (node.op in PRODUCTS)
    return levels


def readers_by_level(clusters: Clusters, node: Node, levels: dict[Node, int]) -> dict[int, list[Node]]:
    """The ops that read `node`, through views."""
    found: dict[int, list[Node]] = {}
    for user in dict.fromkeys(use.user for use in clusters.uses(node)):
        found.setdefault(levels[user], []).append(user)
    return found


def may_clone(clusters: Clusters, node: Node) -> bool:
    """Legality: an element-wise op of one result that lives only in kernels that can take in what they read."""
    if node.op not in ELEMENTWISE or node in clusters.returned:
        return False
    return all(use.user.op in ELEMENTWISE or use.user.op == "stablehlo.reduce" for use in clusters.uses(node))


def should_clone(recipe: Recipe, costs: Costs) -> bool:
    """Profit, per vector of the value: what every reader computes again takes no longer than to load what another kernel made."""
    return costs.compute(recipe.instructions) <= costs.load_shared()


def read_recipe(clusters: Clusters, node: Node) -> Recipe | None:
    """How `node` is computed from values of fewer elements; None where it needs one of as many that is not cheap itself."""
    recipe = Recipe()
    return recipe if run_recursive(_collect(clusters, node, False, recipe)) else None


def _collect(clusters: Clusters, node: Node, expanded: bool, recipe: Recipe) -> Recursive[bool]:
    """Adds what computes `node`; expanded: a broadcast lies between `node` and the value in question."""
    if node in recipe.nodes:
        return True
    if node.op in MADE:
        recipe.nodes[node] = None
        return True
    if node.op in SOURCES:
        return expanded
    if node.op in VIEWS and not clusters.is_real(node):
        if expanded and _across_rows(node) and _made(clusters, node):
            recipe.stored.append(node)
            return True
        made_once = node.op == "disc.diagonals"  # its table: it would not be one if it were cheap
        if not made_once and not (yield _collect(clusters, node.operands[0], expanded or clusters.repeats(node), recipe)):
            return False
        recipe.nodes[node] = None
        return True
    if expanded and not _of_positions(clusters, node):
        return True  # a smaller value, made once
    if node.op not in ELEMENTWISE:
        return expanded
    recipe.instructions += op_cost(node)
    if not should_clone(recipe, clusters.costs):
        return False
    for operand in node.operands:
        if not (yield _collect(clusters, operand, expanded, recipe)):
            return False
    recipe.nodes[node] = None
    return True


def _across_rows(view: Node) -> bool:
    """True when neighbours in the view are not neighbours in its operand."""
    return view.op == "stablehlo.transpose" and view.ints("permutation")[-1] != len(view.dims) - 1


def _made(clusters: Clusters, view: Node) -> bool:
    """True when the program computes what is viewed."""
    node = view.operands[0]
    while node.op in VIEWS and not clusters.is_real(node):
        node = node.operands[0]
    return clusters.is_real(node)


def _of_positions(clusters: Clusters, node: Node) -> bool:
    """True when `node` is element-wise in row and column numbers and constants alone."""
    pending, seen = [node], {node}
    while pending:
        current = pending.pop()
        if current.op in MADE:
            continue
        if current.op not in VIEWS and current.op not in ELEMENTWISE:
            return False
        fresh = [operand for operand in current.operands if operand not in seen]
        pending.extend(fresh)
        seen.update(fresh)
    return True


def _clone(clusters: Clusters, node: Node, recipe: Recipe, places: list[list[Node]]) -> None:
    """One copy for each list of readers, before the first of them."""
    for view in recipe.stored:
        clusters.mark_stored(view)
    for readers in places:
        before = ir.InsertionPoint(clusters.snapshot.ops[min(readers, key=lambda reader: clusters.order[reader]).id])
        copies: dict[ir.Value, ir.Value] = {}
        for each in sorted(recipe.nodes, key=lambda each: clusters.order[each]):
            _copy(clusters.snapshot.ops[each.id], copies, before)
        for reader in readers:
            op = clusters.snapshot.ops[reader.id]
            for number, operand in enumerate(reader.operands):
                op.operands[number] = _moved(clusters, operand, op.operands[number], node, copies, before)


def _moved(
    clusters: Clusters, operand: Node, value: ir.Value, node: Node, copies: dict[ir.Value, ir.Value], before: ir.InsertionPoint
) -> ir.Value:
    """`value`, the operand of a reader; where it is `node` or a view of it, the copy."""
    path = [operand]
    while path[-1] is not node:
        if path[-1].op not in VIEWS or clusters.is_real(path[-1]):
            return value
        path.append(path[-1].operands[0])
    for view in reversed(path[:-1]):
        _copy(clusters.snapshot.ops[view.id], copies, before)
    return copies[value]


def _copy(op: ir.Operation, copies: dict[ir.Value, ir.Value], before: ir.InsertionPoint) -> None:
    """A copy of `op` that reads the copies of its operands."""
    if op.results[0] in copies:
        return
    copy = op.clone(ip=before).operation
    for number, operand in enumerate(op.operands):
        copy.operands[number] = copies.get(operand, operand)
    copies[op.results[0]] = copy.results[0]
