"""What replaces torch-mlir's form of an op, and why: every rule of ours has a reason.

`tests/diff/test_overrides.py` has torch-mlir lower a call of every op here, and fails where nothing is wrong with what it makes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from disc.frontend.call import Call
from disc.frontend.op_builder import OpBuilder, Tensor

Rule = Callable[[OpBuilder, Call], Tensor | tuple[Tensor, ...]]


class Fault(enum.Enum):
    """What torch-mlir's form is found to be."""

    REFUSED = "torch-mlir has no lowering, or one to ops that disc has not"
    WRONG = "other values or sizes than eager's, or an answer where eager refuses"
    CRASH = "the process ends"
    WORSE = "more ops after the graph passes"


@dataclass(frozen=True)
class Override:
    """because: which calls of the op have the fault."""

    rule: Rule
    fault: Fault
    because: str


def overrides(fault: Fault, because: str, rules: Mapping[object, Rule]) -> dict[object, Override]:
    return {op: Override(rule, fault, because) for op, rule in rules.items()}
