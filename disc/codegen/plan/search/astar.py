"""A*: the least assignment of a problem, with the incumbent as the bound from above (Hart, Nilsson, Raphael 1968; Dali, paper 004, §2.1).

Nodes are assignments of the first variables, ranked by the sum of the bounds of all terms. The first complete one that is taken is the
least of all, since no bound is above what it bounds; what does not stay below the incumbent is dropped at once. So the result is never
worse than the rules under the cost, and equals theirs where nothing is better.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from disc.codegen.plan.search.problem import Assignment, Problem

MOST_CANDIDATES = 4096  # assignments, whole or in part, whose bounds are looked at; some 20 ms
_LEAST_GAIN = 1e-9  # of the incumbent's cost: what differs by rounding alone is equal


@dataclass(frozen=True)
class Found:
    """assignment: the best; cost, incumbent: seconds, of it and of the rules; candidates: how many assignments, whole or in part, were
    looked at; proved: whether nothing is better, False where the search ended at its limit."""

    assignment: Assignment
    cost: float
    incumbent: float
    candidates: int
    proved: bool


def search(problem: Problem, most: int = MOST_CANDIDATES) -> Found:
    """The best assignment. most: candidates, at which the search ends with the best complete one so far."""
    best, incumbent = problem.rules, problem.cost(problem.rules)
    least = incumbent
    limit = incumbent * (1 - _LEAST_GAIN)
    touched = [[place for place, term in enumerate(problem.terms) if number in term.scope] for number in range(len(problem.variables))]
    bounds = problem.parts([None] * len(problem.variables))
    heap: list[tuple[float, int, int, Assignment, list[float]]] = [(sum(bounds), 0, 0, (), bounds)]
    candidates, proved = 0, True
    while heap and heap[0][0] < limit:
        total, _, _, prefix, bounds = heapq.heappop(heap)
        if len(prefix) == len(problem.variables):
            return Found(prefix, total, incumbent, candidates, proved)
        if candidates >= most:
            proved = False
            break
        for value in problem.variables[len(prefix)].values:
            candidates += 1
            extended = (*prefix, value)
            own = _extended(problem, extended, bounds, touched[len(prefix)])
            total = sum(own)
            if total >= limit:
                continue
            if len(extended) == len(problem.variables):
                best, least, limit = extended, total, total
                limit = total * (1 + _LEAST_GAIN)
            heapq.heappush(heap, (total, -len(extended), candidates, extended, own))
    return Found(best, least, incumbent, candidates, proved)


def _extended(problem: Problem, prefix: Assignment, bounds: list[float], touched: list[int]) -> list[float]:
    """The bounds once the last variable of `prefix` is decided as well: only the terms that depend on it change."""
    own = list(bounds)
    for place in touched:
        term = problem.terms[place]
        own[place] = term.bound([prefix[number] if number < len(prefix) else None for number in term.scope])
    return own
