"""What a row kernel does one after the other, as the search sees it: passes over the row, the values that several of them need, and the
rounds that a reduction may be in.

A pass is one loop over the elements of a row: each round of reductions is one, the results are the last. What a pass computes stands in
its loop (input-inline) unless it is kept as a row in scratch by an earlier pass. A broadcast of a reduction is read out of order, for all
of the row: the pass of the reduction must be over before that of the reader begins (Dali, paper 004, Fig. 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from disc.codegen.plan.index import ONE, IndexSpace
from disc.codegen.plan.rows import RowPlan
from disc.codegen.plan.search.coupling import Loop
from disc.ir.costs import is_same_along_rows, op_cost
from disc.ir.graph import Body, Node
from disc.shapes import Dim

RESULTS = -1  # the user of values that is not a reduction: the results


@dataclass(frozen=True)
class Stages:
    """reductions: the first result of each that is the same for all of a row; rounds: for each, the first round that it may be in; latest:
    the last one. needs: for each, the reductions that it needs. roots: what each reads (`RESULTS`: what is stored per element). users:
    for each value computed per element, those that need it. kept: values that may be a row in scratch; left_out: those of them that another
    one decides, with that one. once: what is computed once per row."""

    reductions: tuple[Node, ...]
    rounds: tuple[int, ...]
    latest: tuple[int, ...]
    needs: tuple[frozenset[int], ...]
    roots: Mapping[int, tuple[Node, ...]]
    users: Mapping[Node, frozenset[int]]
    kept: tuple[Node, ...]
    left_out: Mapping[Node, Node]
    once: tuple[Node, ...]

    @property
    def passes(self) -> int:
        """Rounds of reductions, and one for the results."""
        return max(self.rounds, default=-1) + 2


def rows_that_may_be_kept(body: Body, dims: tuple[Dim, ...]) -> tuple[Node, ...]:
    """Every value that has the row's dims, a register form that scratch has room for, and something to compute."""
    return tuple(
        node for node in body.nodes if node.dims == dims and node.element != "i1" and op_cost(node) > 0 and node.op != "stablehlo.reduce"
    )


def per_element(root: Node, known: Set[Node] = frozenset()) -> list[Node]:
    """The values that are computed, and the inputs that are loaded, for each element of `root`, itself first; `known` are not looked into.
    What is reduced, or the same all along a row, is computed once per row."""
    found, pending, seen = list[Node](), [root], {root}
    while pending:
        node = pending.pop()
        found.append(node)
        if node in known or node.op == "stablehlo.reduce" or is_same_along_rows(node):
            continue
        read = node.operands[:1] if node.op == "disc.gather" else node.operands
        fresh = [operand for operand in read if operand not in seen and operand.dims]
        seen.update(fresh)
        pending += fresh
    return found


def read_stages(body: Body, plan: RowPlan) -> Stages:
    """The stages of the loops of a stitch kernel."""
    placed = [(node.siblings[0], number) for number, stage in enumerate(plan.stages) for node, _ in stage]
    first = dict(reversed(placed))
    reductions = tuple(first)
    roots = {number: node.operands[: len(node.operands) // 2] for number, node in enumerate(reductions)}
    roots[RESULTS] = plan.full_roots
    users = _users(roots)
    rounds = tuple(first[node] for node in reductions)
    # Behind what reads only parts (a gather), a reduction is computed again where it is needed: it may be in any round of the plan's.
    needs = tuple(frozenset(each for each in _needs(node, reductions) if rounds[each] < first[node]) for node in reductions)
    latest = _latest(rounds, needs)
    last = max(rounds, default=-1) + 1
    passes = {RESULTS: {last}, **{number: set(range(rounds[number], latest[number] + 1)) for number in range(len(reductions))}}
    kept = tuple(
        node
        for node in rows_that_may_be_kept(body, plan.space)
        if len(users.get(node, ())) > 1 and len(set[int]().union(*(passes[user] for user in users[node]))) > 1
    )
    return Stages(reductions, rounds, latest, needs, roots, users, kept, _left_out(kept, users, roots), _once(body, users, reductions))


def _users(roots: Mapping[int, tuple[Node, ...]]) -> dict[Node, frozenset[int]]:
    users: dict[Node, frozenset[int]] = {}
    for user, sources in roots.items():
        for node in {node for source in sources for node in per_element(source)}:
            users[node] = users.get(node, frozenset()) | {user}
    return users


def _needs(node: Node, reductions: tuple[Node, ...]) -> frozenset[int]:
    """The reductions behind the operands of one."""
    numbers = {sibling: number for number, each in enumerate(reductions) for sibling in each.siblings}
    found, pending, seen = set[int](), list(node.operands), set(node.operands)
    while pending:
        current = pending.pop()
        if current in numbers:
            found.add(numbers[current])
        fresh = [operand for operand in current.operands if operand not in seen]
        seen.update(fresh)
        pending += fresh
    return frozenset(found)


def _latest(rounds: tuple[int, ...], needs: tuple[frozenset[int], ...]) -> tuple[int, ...]:
    """The last round of each before those that need it."""
    latest = [max(rounds, default=0)] * len(rounds)
    for number in sorted(range(len(rounds)), key=lambda each: -rounds[each]):
        for source in needs[number]:
            latest[source] = min(latest[source], latest[number] - 1)
    return tuple(latest)


def _once(body: Body, users: Mapping[Node, frozenset[int]], reductions: tuple[Node, ...]) -> tuple[Node, ...]:
    """What is made of reductions, and is no value per element."""
    made = {sibling for node in reductions for sibling in node.siblings}
    found: list[Node] = []
    for node in body.nodes:
        if node not in made and node not in users and any(operand in made for operand in node.operands):
            made.add(node)
            found.append(node)
    return tuple(found)


def _left_out(kept: tuple[Node, ...], users: Mapping[Node, frozenset[int]], roots: Mapping[int, tuple[Node, ...]]) -> dict[Node, Node]:
    """Values that are read through one later value alone, by the same users: where either is kept, the later one is, which takes the same
    room, and from which no user computes anything again."""
    direct = {source for sources in roots.values() for source in sources}
    found: dict[Node, Node] = {}
    for node in kept:
        current = node
        while current not in direct:
            readers = {user for user in current.uses if user in users and not is_same_along_rows(user)}
            if len(readers) != 1 or len(set(current.uses)) != 1:
                break
            (current,) = readers
            if current in kept and users[current] == users[node]:
                found[node] = current
                break
    return found


def loops_of(space: IndexSpace, plan: RowPlan, stages: Stages) -> list[Loop]:
    """Every loop of every stage: of reductions, values that may be kept, and results, each over the dims of its own space. A loop over what
    names a row may have several rows side by side; one along a row, several vectors: of reductions these are chains of sums, of what is
    stored none, so that their access differs. What is kept is stored by the pass that needs it first."""
    rank = len(plan.group_dims)
    loops: list[Loop] = []
    names: dict[Node, int] = {}

    def add(name: str, dims: tuple[Dim, ...], made: Node, access: object) -> None:
        stage = len(names)
        behind = _behind(made)
        sources = frozenset(number for node, number in names.items() if node in behind)
        for axis, size in enumerate(dims):
            if size != ONE:
                way = ("rows",) if axis < rank else ("vectors", access)
                loops.append(Loop(stage, f"{name}.{axis}", size, way, sources))
        names[made] = stage

    order = sorted([*enumerate(stages.reductions), *((len(stages.reductions), node) for node in stages.kept)], key=lambda each: each[1].id)
    for number, node in order:
        if node in stages.kept:
            firsts = [stages.rounds[user] for user in stages.users[node] if user != RESULTS]
            add(node.name, plan.space, node, min(firsts, default=stages.passes - 1))
        else:
            add(node.name, node.operands[0].dims, node, stages.rounds[number])
    for root in plan.full_roots:
        add(f"{root.name} stored", plan.space, root, stages.passes - 1)
    for root in plan.group_roots:
        add(f"{root.name} stored", plan.group_dims, root, stages.passes - 1)
    return loops


def _behind(node: Node) -> set[Node]:
    pending, seen = [node], {node}
    while pending:
        fresh = [each for operand in pending.pop().operands for each in operand.siblings or (operand,) if each not in seen]
        seen.update(fresh)
        pending += fresh
    return seen
