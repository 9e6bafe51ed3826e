"""Factorizations of complex matrices, as pairs of real numbers: f32 and f64."""

from __future__ import annotations

from disc.frontend.call import Call
from disc.frontend.complex_matrices import NAMES
from disc.frontend.op_builder import OpBuilder, Tensor
from disc.frontend.rules.linalg import real
from disc.frontend.rules.overrides import Fault, Override, Rule
from disc.frontend.rules.sorting import sized_library
from disc.frontend.symbols import to_shape


def _rule(name: str) -> Rule:
    def rule(e: OpBuilder, call: Call) -> Tensor | tuple[Tensor, ...]:
        operands = [real(each) for each in call.arguments.values() if isinstance(each, Tensor)]
        results = [(to_shape(each.shape), each.dtype) for each in call.results]
        found = sized_library(e, f"disc.dynamic_{name}", operands, results)
        return found[0] if len(found) == 1 else found

    return rule


WHY = "an op of this compiler (frontend/complex_matrices.py)"
OF_PACKAGES: dict[str, Override] = {f"disc.{name}.default": Override(_rule(name), Fault.REFUSED, WHY) for name in NAMES}
