"""Factorizations of complex matrices, as pairs of real numbers: f32 and f64."""

from __future__ import annotations

from disc.frontend.call import Call
from disc.frontend.complex_matrices import PLAIN
from disc.frontend.op_builder import OpBuilder, Tensor
from disc.frontend.rules.factorizations import is_checked, no_failures
from disc.frontend.rules.linalg import real
from disc.frontend.rules.overrides import Fault, Override, Rule
from disc.frontend.rules.sorting import Result, library, sized_library
from disc.frontend.symbols import to_shape


def _operands(call: Call) -> list[Tensor]:
    found = [each for each in call.arguments.values() if isinstance(each, Tensor)]
    return [real(each) if each.dtype.is_floating_point else each for each in found]


def _results(call: Call) -> list[Result]:
    return [(to_shape(each.shape), each.dtype) for each in call.results]


def _rule(name: str) -> Rule:
    def rule(e: OpBuilder, call: Call) -> Tensor | tuple[Tensor, ...]:
        found = sized_library(e, f"disc.dynamic_{name}", _operands(call), _results(call))
        return found[0] if len(found) == 1 else found

    return rule


def _lu(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    name = "complex_lu_checked" if call.flag("checked") or is_checked(call) else "complex_lu"
    return sized_library(e, f"disc.dynamic_{name}", _operands(call), _results(call))


def _cholesky_ex(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    results = _results(call)
    if not call.flag("checked") and not is_checked(call):
        return sized_library(e, "disc.dynamic_complex_cholesky_ex", _operands(call), results)
    factor = sized_library(e, "disc.dynamic_complex_cholesky", _operands(call), results[:1])[0]
    return factor, no_failures(e, factor.shape[:-3])


def _triangular_solve(e: OpBuilder, call: Call) -> Tensor:
    numbers = {name: call.flag(name) for name in ("upper", "unit")}
    return library("disc.complex_triangular_solve", _operands(call), _results(call), **numbers)[0]


WHY = "an op of this compiler (frontend/complex_matrices.py)"
_RULES: dict[str, Rule] = {
    **{name: _rule(name) for name in PLAIN},
    "complex_lu": _lu, "complex_cholesky_ex": _cholesky_ex, "complex_triangular_solve": _triangular_solve,
}  # fmt: skip
OF_PACKAGES: dict[str, Override] = {f"disc.{name}.default": Override(rule, Fault.REFUSED, WHY) for name, rule in _RULES.items()}
