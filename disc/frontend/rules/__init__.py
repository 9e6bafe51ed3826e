"""The table of rules: ATen overload → function that emits StableHLO for one call."""

from __future__ import annotations

from collections.abc import Callable

from disc.frontend.call import Call
from disc.frontend.emitter import Emitter, Tensor
from disc.frontend.rules import contractions, elementwise, indexing, pooling, reductions, signs, views

Rule = Callable[[Emitter, Call], Tensor | tuple[Tensor, ...]]


def _merged() -> dict[object, Rule]:
    table: dict[object, Rule] = {}
    for module in (elementwise, signs, views, reductions, contractions, indexing, pooling):
        for op, rule in module.RULES.items():
            if op in table:
                raise ValueError(f"two rules for {op}")
            table[op] = rule
    return table


RULES = _merged()
