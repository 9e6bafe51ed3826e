"""The plans of one stitch kernel as a problem: which variables there are, what coupling leaves of them, and what an assignment decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from disc.codegen.plan.index import IndexSpace
from disc.codegen.plan.rows import Dominant, RowPlan
from disc.codegen.plan.search.coupling import couple
from disc.codegen.plan.search.model import WIDTHS, DepartureTerm, Machine, OnceTerm, OrderTerm, PassTerm
from disc.codegen.plan.search.problem import Assignment, Problem, Term, Variable
from disc.codegen.plan.search.stages import RESULTS, Stages, loops_of, read_stages
from disc.ir.costs import op_cost
from disc.ir.graph import Body, Node
from disc.shapes import Truth

SHORT = (64, 128, 256, 512, 1024)  # elements of a row up to which rows may be side by side


@dataclass(frozen=True)
class Decision:
    """What is searched of a plan. rows: worked on at once, of up to `short` elements each; vectors: side by side, in the loop of each round
    of reductions, then of the results; past: whether results in memory bypass the caches; stages: the reductions by round; cached: values
    kept as a row in scratch."""

    rows: int
    short: int
    past: bool
    vectors: tuple[int, ...]
    stages: tuple[tuple[Dominant, ...], ...]
    cached: tuple[Node, ...]


@dataclass(frozen=True)
class RowsProblem:
    """problem: over what coupling left; costs: the same without what a departure from the rules must gain; variables, space: how many
    decisions and assignments there were before; moved: the numbers of the reductions whose round is decided."""

    problem: Problem
    costs: Problem
    variables: int
    space: int
    plan: RowPlan
    machine: Machine
    stages: Stages
    values: tuple[Node, ...]
    moved: tuple[int, ...]

    def decision(self, assignment: Assignment) -> Decision:
        """What an assignment says."""
        values, first = len(self.values), len(self.values) + len(self.moved)
        rounds = [*self.stages.rounds]
        for number, value in zip(self.moved, assignment[values:first], strict=True):
            rounds[number] = value
        cached = tuple(node for node, value in zip(self.values, assignment[:values], strict=True) if value)
        return Decision(
            assignment[first], assignment[first + 1], bool(assignment[first + 2]), assignment[first + 3 :], self._stages(rounds), cached
        )

    def _stages(self, rounds: Sequence[int]) -> tuple[tuple[Dominant, ...], ...]:
        numbers = {node: number for number, node in enumerate(self.stages.reductions)}
        found: list[list[Dominant]] = [[] for _ in self.plan.stages]
        for node, index in (each for stage in self.plan.stages for each in stage):
            found[rounds[numbers[node.siblings[0]]]].append((node, index))
        return tuple(tuple(stage) for stage in found)


def rows_problem(
    space: IndexSpace, body: Body, plan: RowPlan, machine: Machine, rule: Decision, least_gain: float, is_open: bool
) -> RowsProblem:
    """The problem of the loops of `plan`. rule: what the rules decide, whose stages are those of the plan. least_gain: the share of the
    rules' time that each departure from them must gain. is_open: whether rows side by side, and what is kept, may be others."""
    stages = read_stages(body, plan)
    values = tuple(node for node in stages.kept if node not in stages.left_out or node in rule.cached)
    moved = tuple(number for number in range(len(stages.reductions)) if stages.latest[number] > stages.rounds[number])
    loops = loops_of(space, plan, stages)
    classes = couple(loops, lambda left, right: space.env.equal(left, right) is Truth.YES)
    shared = {id(loop): len(found) for found in classes for loop in found}
    side = _first(rule.rows, WIDTHS) if is_open and rule.rows > 1 else (rule.rows,)
    along = [max((shared[id(loop)] for loop in loops if loop.access == ("vectors", number)), default=1) for number in range(stages.passes)]
    rounds = {number: tuple(range(stages.rounds[number], stages.latest[number] + 1)) for number in moved}
    # What is kept, and when, comes first: once that is decided, every pass has a bound that is its cost.
    variables = [
        *(
            Variable(f"keep {_name(body, node)}", _first(int(node in rule.cached), (0, 1) if is_open else ()), int(node in rule.cached))
            for node in values
        ),
        *(Variable(f"round of {_name(body, stages.reductions[number])}", each, each[0]) for number, each in rounds.items()),
        Variable("rows", side, rule.rows, max((shared[id(loop)] for loop in loops if loop.access == ("rows",)), default=1)),
        Variable("rows up to", _first(rule.short, SHORT) if len(side) > 1 else (rule.short,), rule.short),
        Variable("results past the caches", _first(int(rule.past), (0, 1) if machine.beyond else ()), int(rule.past)),
        *(
            Variable(_pass_name(number, stages), _first(rule.vectors[number], WIDTHS), rule.vectors[number], along[number])
            for number in range(stages.passes)
        ),
    ]

    def costs_of(machine: Machine, departure: float = 0.0) -> Problem:
        return Problem(tuple(variables), _terms(stages, machine, plan, values, moved, rule.vectors, departure))

    evenly = _evenly(machine, costs_of)
    costs = costs_of(evenly)
    departure = least_gain * costs.cost(costs.rules)
    others = len(variables) - stages.passes  # of the vectors of a pass, its term counts the departure
    departures = tuple(DepartureTerm((number,), variable.rule, departure) for number, variable in enumerate(variables[:others]))
    problem = Problem(tuple(variables), (*costs_of(evenly, departure).terms, *departures))
    whole = math.prod(len(side) if loop.access == ("rows",) else len(WIDTHS) for loop in loops)
    whole *= 2 ** len(stages.kept) * math.prod(map(len, rounds.values())) * (2 if machine.beyond else 1)
    whole *= len(SHORT) + 1 if len(side) > 1 else 1
    count = len(loops) + len(stages.kept) + len(moved) + int(len(side) > 1) + int(machine.beyond)
    return RowsProblem(problem, costs, count, whole, plan, machine, stages, values, moved)


def _evenly(machine: Machine, problem: Callable[[Machine], Problem]) -> Machine:
    """With weights by which the rules take as long at every length, and together as long as without weights."""
    lengths = [length for length, _ in machine.rows]
    times = [found.cost(found.rules) for found in (problem(replace(machine, rows=((length, 1.0),))) for length in lengths)]
    mean = sum(times) / len(times)
    return replace(machine, rows=tuple((length, mean / time if time else 1.0) for length, time in zip(lengths, times, strict=True)))


def _first(value: int, others: Sequence[int]) -> tuple[int, ...]:
    """Values to try, that of the rules first: of what costs the same, what is tried first is taken."""
    return tuple(dict.fromkeys((value, *others)))


def _name(body: Body, node: Node) -> str:
    """As plans number values."""
    return f"{node.name} {body.nodes.index(node)}"


def _pass_name(number: int, stages: Stages) -> str:
    return "vectors of results" if number == stages.passes - 1 else f"vectors of round {number}"


def _terms(
    stages: Stages, machine: Machine, plan: RowPlan, values: tuple[Node, ...], moved: tuple[int, ...], rule: Sequence[int], departure: float
) -> tuple[Term, ...]:
    """One for each pass, over the decisions that it may depend on. rule: the vectors of each, by the rules."""
    rows = len(values) + len(moved)
    found: list[Term] = []
    for number in range(stages.passes):
        users = [RESULTS] if number == stages.passes - 1 else _may_be_in(stages, number)
        seen = [place for place, node in enumerate(values) if stages.users[node] & set(users)]
        turned = [place for place, each in enumerate(moved) if _concerns(stages, each, users, [values[place] for place in seen])]
        scope = (rows, rows + 1, rows + 2, rows + 3 + number, *seen, *(len(values) + place for place in turned))
        kept, late = tuple(values[place] for place in seen), tuple(moved[place] for place in turned)
        found.append(PassTerm(stages, machine, number, scope, kept, late, len(plan.full_roots), (rule[number], departure)))
    once = sum(op_cost(node) for node in stages.once)
    found.append(OnceTerm(machine, (rows, rows + 1), once))
    if moved:
        found.append(OrderTerm(stages, tuple(range(len(values), rows)), moved))
    return tuple(found)


def _may_be_in(stages: Stages, number: int) -> list[int]:
    return [each for each in range(len(stages.reductions)) if stages.rounds[each] <= number <= stages.latest[each]]


def _concerns(stages: Stages, reduction: int, users: Sequence[int], values: Sequence[Node]) -> bool:
    """Whether the round of a reduction matters to a pass: it may be there, uses what the pass may keep, or reads an input of it first."""
    if reduction in users or any(reduction in stages.users[node] for node in values):
        return True
    return any(node.op == "input" and reduction in found and found & set(users) for node, found in stages.users.items())
