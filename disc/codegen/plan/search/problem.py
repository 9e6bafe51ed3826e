"""A choice among the plans of one kernel: variables, and terms whose sum is what an assignment costs (Dali, paper 004, §2.1, §2.3).

A term is a part of the work, such as one loop over a row, and depends on some of the variables. It gives a bound for an assignment that
leaves variables open, which no completion costs less than; with all of them decided the bound is the cost. So the sum of the bounds of all
terms is an admissible heuristic: of every open variable, each term counts the least that it may still cost.

Whether a kernel may have a plan is not asked here: the values of a variable are those that it may take (`may_*` of the kernel).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Assignment = tuple[int, ...]
Partial = Sequence[int | None]


@dataclass(frozen=True)
class Variable:
    """One decision. name: for display, each once in a problem; values: that it may take, at least one; rule: the one that the rules
    take, among them. stands_for: how many decisions were made one by coupling (`coupling.py`), itself included."""

    name: str
    values: tuple[int, ...]
    rule: int
    stands_for: int = 1

    def __post_init__(self) -> None:
        if self.rule not in self.values or len(set(self.values)) != len(self.values):
            raise ValueError(f"variable {self.name}: {self.rule} must be one of {self.values}, which differ")


class Term(Protocol):
    """A part of the cost."""

    @property
    def scope(self) -> Sequence[int]:
        """The numbers of the variables that it depends on."""
        ...

    def bound(self, values: Partial) -> float:
        """At least what this part costs, in seconds, by the values of the variables of `scope` (None: open), in their order; what it does
        cost where none is open. Deciding a variable never lowers it."""
        ...


@dataclass(frozen=True)
class Problem:
    """variables: in the order in which they are decided; terms: whose sum is to be least."""

    variables: tuple[Variable, ...]
    terms: tuple[Term, ...]

    @property
    def space(self) -> int:
        """How many assignments there are."""
        return math.prod(len(variable.values) for variable in self.variables)

    @property
    def open(self) -> int:
        """How many variables have a choice."""
        return sum(len(variable.values) > 1 for variable in self.variables)

    @property
    def rules(self) -> Assignment:
        """What the rules decide: the first incumbent."""
        return tuple(variable.rule for variable in self.variables)

    def cost(self, assignment: Assignment) -> float:
        """Seconds."""
        return sum(self.parts(assignment))

    def parts(self, values: Partial) -> list[float]:
        """The bound of every term."""
        return [term.bound([values[number] for number in term.scope]) for term in self.terms]
