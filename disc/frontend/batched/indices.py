"""Numbers that only index tensors or become some: they may differ from instance to instance and the block is the same."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Protocol, cast

from disc.frontend.batched.classify import Classes
from disc.frontend.batched.steps import Compute, Step, names, uses


class Callee(Protocol):
    """A function of the user's that a region calls."""

    def indexing_parameters(self) -> frozenset[str]:
        """Its parameters that only index tensors."""
        ...

    def parameter(self, place: int | str, *, bound: bool) -> str | None:
        """The name of the parameter at a place among the arguments of a call; None where there is none. bound: the call gives the first one
        by itself."""
        ...


def only_index(steps: Iterable[Step], classes: Classes) -> frozenset[str]:
    """The names that the steps use to index tensors, or as the numbers of new ones (`torch.tensor(a)`, `torch.tensor([a, b])`), and for
    nothing else."""
    only: dict[str, bool] = {}
    for step in steps:
        indexing = frozenset[str]()
        if isinstance(step, Compute) and step in classes.lists:
            indexing = _names_among(cast("ast.List | ast.Tuple", step.value).elts)
        elif isinstance(step, Compute) and classes.of(step) == "tensor":
            indexing = _indexing(step)
        for name in uses(step):
            only[name] = only.get(name, True) and name in indexing
    return frozenset(name for name, kept in only.items() if kept)


def _indexing(step: Compute) -> frozenset[str]:
    value = step.value
    if isinstance(value, ast.Subscript):
        entries = value.slice.elts if isinstance(value.slice, ast.Tuple) else [value.slice]
        return _names_among(entries) - names(value.value)
    if isinstance(value, ast.Call) and step.seen.categories == {"number"}:
        return _names_among(value.args)
    if isinstance(value, ast.Call) and step.seen.categories == {"function"}:
        return _passed_on(value, step)
    return frozenset()


def _names_among(values: Sequence[ast.expr]) -> frozenset[str]:
    return frozenset(each.id for each in values if isinstance(each, ast.Name))


def _passed_on(call: ast.Call, step: Compute) -> frozenset[str]:
    """The names that the call hands to parameters which only index."""
    if len(step.seen.bound) != 1 or any(isinstance(each, ast.Starred) for each in call.args):
        return frozenset()
    (bound,) = step.seen.bound
    given: list[tuple[int | str | None, ast.expr]] = [*enumerate(call.args), *((each.arg, each.value) for each in call.keywords)]
    found, other = set[str](), names(call.func)
    for place, value in given:
        if not isinstance(value, ast.Name):
            continue
        parameters = [(each, each.parameter(place, bound=bound)) for each in cast("set[Callee]", step.seen.callees) if place is not None]
        only = bool(parameters) and all(name is not None and name in each.indexing_parameters() for each, name in parameters)
        (found if only else other).add(value.id)
    return frozenset(found - other)
