"""Plans have one text, which is read back exactly."""

from __future__ import annotations

import re
import types
from dataclasses import fields
from pathlib import Path
from typing import Union, get_args, get_origin, get_type_hints

import pytest

from disc.codegen.plan.text import IllegalPlan, Plan, read_plan
from disc.codegen.x86.notes import notes_of
from disc.codegen.x86.plans import KINDS, ProductPlan, TreePlan, read_schedules, tree_plan
from disc.ir.graph import Body
from disc.speculation.tree import every_schedule, packaged_tree
from disc.targets.x86 import read_target


def sample(hint: object, number: int) -> object:
    """Some value of a field's type."""
    if get_origin(hint) in (Union, types.UnionType):
        return None if number % 2 else sample(get_args(hint)[0], number)
    if get_origin(hint) is tuple:
        return tuple(sample(get_args(hint)[0], number + each) for each in range(number % 3))
    if isinstance(hint, type) and issubclass(hint, Plan):
        return plan_of(hint, number + 1)
    return {int: number - 1, bool: bool(number % 2), str: f"word-{number}x4+a/2"}[hint]  # type: ignore[index]


def plan_of(kind: type[Plan], number: int) -> Plan:
    hints = get_type_hints(kind)
    return kind(*(sample(hints[each.name], number + place) for place, each in enumerate(fields(kind))))


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("number", range(6))
def test_round_trip(kind: type[Plan], number: int) -> None:
    plan = plan_of(kind, number)
    assert read_plan(str(plan), KINDS) == plan
    assert read_plan(str(plan).replace(" = ", "=").replace(", ", " ,\n "), KINDS) == plan


@pytest.mark.parametrize("known", [{}, {1: 768, 2: 768, 3: 1}, {0: 12}])
def test_trees_are_read_back(known: dict[int, int]) -> None:
    for tree in (packaged_tree().prune(known), every_schedule().with_between(0, 4, 90, 4, 2, packaged_tree().schedules[0])):
        plan = read_plan(str(tree_plan(tree, None)), KINDS)
        assert isinstance(plan, TreePlan) and read_schedules(plan) == tree


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pool", "was expected"),
        ("pool{band = 8}", "was expected"),
        ("pool{rows = 8, band = 8}", "band was expected"),
        ("pool{band = 8, rows = eight}", "'eight' is no int"),
        ("pool{band = 8, rows = 8} pool", "goes on behind the plan"),
        ("pond{}", "there is no plan 'pond'"),
        ("winograd{tile = 2, block = 6, least = 0, enough = 1, direct = pool{band = 8, rows = 8}}", "must be indirect, not pool"),
        ("scan{lanes = []}", "is no str"),
        ("", "a word was expected"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read_plan(text, KINDS)


@pytest.mark.parametrize(
    "plan",
    [
        TreePlan(("60x4096",), ("@1",), None), TreePlan(("60x4096",), ("m>3?0:1", "@0"), None), TreePlan(("60x4096",), (), None),
        TreePlan(("60x4096",), ("w>3?1:2", "@0", "@0"), None), TreePlan(("60x4096+soon",), ("@0",), None), TreePlan(("60",), ("@0",), None),
    ],
)  # fmt: skip
def test_trees_that_are_none(plan: TreePlan) -> None:
    with pytest.raises(IllegalPlan):
        read_schedules(plan)


@pytest.mark.parametrize("text", [
    "pool{band = 37, rows = 41}", "depthwise-window{band = 37, rows = 41}", "window-last{band = 37, strip = 41, rows = 43, columns = 47}",
    "indirect{form = f32, panel = 37, lanes = 41, taps = 43, rows = 47, order = panels}",
    "winograd{tile = 2, block = 37, least = 41, enough = 43, "
    "direct = indirect{form = f32, panel = 47, lanes = 16, taps = 1, rows = 1, order = rows}}",
    "scan{lanes = no}", "scatter{}", "update{}",
])  # fmt: skip
def test_notes_say_what_the_plan_says(text: str) -> None:
    notes = notes_of(read_plan(text, KINDS), Body((), (), ()), read_target("x86-64-v4"))
    assert notes
    for number in re.findall(r"3[7-9]|4[0-9]", text):
        assert number in " ".join(notes)


def test_every_kernel_has_notes() -> None:
    """But parts of plans, which are no kernels."""
    told = re.findall(r"\b([A-Z]\w+Plan)\b", Path(notes_of.__code__.co_filename).read_text())
    assert {kind.__name__ for kind in KINDS.values()} - set(told) == {TreePlan.__name__}
    assert ProductPlan.__name__ in told
