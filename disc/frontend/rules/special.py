"""Functions that take iterations for each element, and checks, as ops that functions of the runtime compute (`Kind.LIBRARY`)."""

from __future__ import annotations

import torch

from disc.frontend.call import Call
from disc.frontend.op_builder import OpBuilder, RuleError, Tensor, wrap_dim
from disc.frontend.rules.elementwise import computed
from disc.frontend.rules.overrides import Fault, Override, Rule, overrides
from disc.frontend.rules.places import checked as checked_index
from disc.frontend.rules.sorting import library

aten = torch.ops.aten


def of_two(name: str) -> Rule:
    """Of tensors or numbers, element by element."""

    def rule(e: OpBuilder, call: Call) -> Tensor:
        def body(left: Tensor, right: Tensor) -> Tensor:
            shape = e.broadcast_shape(left.shape, right.shape)
            return library(name, [e.broadcast(left, shape), e.broadcast(right, shape)], [(shape, left.dtype)])[0]

        return computed(e, call, body)

    return rule


def of_integers(name: str) -> Rule:
    """The same of integers: eager has none for bools."""
    rule = of_two(name)

    def checked(e: OpBuilder, call: Call) -> Tensor | tuple[Tensor, ...]:
        if call.dtype.is_floating_point or call.dtype == torch.bool:
            raise RuleError(f"it is a function of integers, not of {call.dtype}")
        return rule(e, call)

    return checked


def check_finite(e: OpBuilder, call: Call) -> Tensor:
    return finite(call.tensor("numbers"))


def finite(x: Tensor) -> Tensor:
    """The same, in a call in which all elements, of f32 or f64, are finite."""
    return library("disc.check_finite", [x], [(x.shape, x.dtype)])[0]


def check_index(e: OpBuilder, call: Call) -> Tensor:
    return checked_index(e, call.tensor("indices"), call.size("size"), call.text("what") or "")


def logcumsumexp(e: OpBuilder, call: Call) -> Tensor:
    x = call.tensor("self")
    if not x.rank:
        return x
    dim = wrap_dim(call.integer("dim"), x.rank)
    return e.math(x, lambda wide: library("disc.logcumsumexp", [wide], [(wide.shape, wide.dtype)], dim=dim)[0])


ZETA = (aten.special_zeta.default, aten.special_zeta.self_scalar, aten.special_zeta.other_scalar)
OVERRIDES: dict[object, Override] = overrides(Fault.REFUSED, "no lowering to ops that disc has", {
    **dict.fromkeys(ZETA, of_two("disc.zeta")), aten.igamma.default: of_two("disc.igamma"), aten.igammac.default: of_two("disc.igammac"),
    aten.logcumsumexp.default: logcumsumexp, aten.gcd.default: of_integers("disc.gcd"), aten.lcm.default: of_integers("disc.lcm"),
})  # fmt: skip
OF_PACKAGES: dict[str, Override] = {
    "disc.check_finite.default": Override(check_finite, Fault.REFUSED, "an op of this compiler (frontend/finite.py)"),
    "disc.check_index.default": Override(check_index, Fault.REFUSED, "an op of this compiler (frontend/checked_values.py)"),
}
