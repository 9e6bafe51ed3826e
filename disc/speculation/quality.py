"""How good choices of schedules are, by measured times: those of a tree, and of the rules that overrule it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from disc.speculation.policy import RULES, Rule, deciding
from disc.speculation.records import Record
from disc.speculation.schedules import Schedule
from disc.speculation.sizes import effective
from disc.speculation.tree import Tree


def losses(records: Sequence[Record], schedules: Sequence[Schedule]) -> npt.NDArray[np.float64]:
    """[size, schedule]: log of its time over the best one's; schedules that were not measured count as the worst of the size."""
    rows: list[list[float]] = []
    for record in records:
        best, worst = min(record.seconds.values()), max(record.seconds.values())
        rows.append([float(np.log(record.seconds.get(effective(schedule, record.point), worst) / best)) for schedule in schedules])
    return np.array(rows)


@dataclass(frozen=True)
class Quality:
    """How good a tree's choices are at so many `sizes`. accuracy: share of them where it takes the best; mean: of best time over time
    taken; near: share of sizes with at least 0.95 of the best speed; worst: the least of best time over time taken."""

    sizes: int
    accuracy: float
    mean: float
    near: float
    worst: float

    def __str__(self) -> str:
        return (f"{self.sizes} sizes: best schedule taken at {self.accuracy:.1%}, {self.mean:.2%} of the best speed on average, "
                f"{self.near:.1%} of sizes within 95 %, worst {self.worst:.1%}")  # fmt: skip


def quality(tree: Tree, records: Sequence[Record]) -> Quality:
    """Judges the tree's choices by measured times. "Best" is what no schedule beats by more than 1 %, about what a repetition differs."""
    return judge(speeds(tree, records))


def speeds(tree: Tree, records: Sequence[Record]) -> list[float]:
    """Of the best schedule's time over that of the one taken, for each record."""
    table = losses(records, tree.schedules)
    return [float(np.exp(-table[row, tree.choose(record.point.features)])) for row, record in enumerate(records)]


def judge(found: Sequence[float]) -> Quality:
    """Of the best time over the time taken, size by size."""
    values = np.array(found)
    return Quality(len(values), float((values >= 0.99).mean()), float(values.mean()), float((values >= 0.95).mean()), float(values.min()))


@dataclass(frozen=True)
class RuleQuality:
    """What the data say of a rule. decides: sizes at which it overrules the tree; without, ruled: the quality of the tree's choices and of
    the rule's at those of them where the rule's schedule was measured, None where it was at none."""

    rule: str
    decides: int
    without: Quality | None = None
    ruled: Quality | None = None

    def __str__(self) -> str:
        if self.decides == 0:
            return f"{self.rule}: cannot be judged, it decides at none of the measured sizes"
        if self.without is None:
            return f"{self.rule}: cannot be judged, its schedule was measured at none of the {self.decides} sizes at which it decides"
        return f"{self.rule}: decides at {self.decides} sizes\n  without  {self.without}\n  with     {self.ruled}"


def judge_rules(held: Sequence[tuple[Tree, Record]], rules: Sequence[Rule] = RULES) -> tuple[RuleQuality, ...]:
    """The quality of each rule where it has the last word, against trees that were not fitted to the sizes."""
    decided = [(deciding(record.point, rules), tree, record) for tree, record in held]
    return tuple(
        _judge_rule(rule, [(each[1], tree, record) for each, tree, record in decided if each and each[0] is rule]) for rule in rules
    )


def _judge_rule(rule: Rule, decided: Sequence[tuple[Schedule, Tree, Record]]) -> RuleQuality:
    name = rule.__name__.replace("_", " ")
    without: list[float] = []
    ruled: list[float] = []
    for schedule, tree, record in decided:
        key = effective(schedule, record.point)
        if key in record.seconds:
            without += speeds(tree, [record])
            ruled.append(min(record.seconds.values()) / record.seconds[key])
    return RuleQuality(name, len(decided), judge(without), judge(ruled)) if ruled else RuleQuality(name, len(decided))
